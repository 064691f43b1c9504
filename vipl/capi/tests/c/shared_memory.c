/* viaduct_alloc and viaduct_free: allocation, registration and use of the memory. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <viaduct.h>

#include "fixture.h"

enum { PAGE = 4096, MESSAGE_BYTES = 9000 };

static const PairOptions writable = {.server_rdma_write = VIP_TRUE};

static Arena shared_arena(Device *device, size_t bytes, VIP_BOOLEAN rdma_write)
{
    VIP_MEM_ATTRIBUTES rights = {device->ptag, rdma_write, VIP_FALSE};
    Arena arena = {.device = device, .base = viaduct_alloc(bytes), .bytes = bytes};

    REQUIRE(arena.base != NULL, "%zu bytes are allocated", bytes);
    REQUIRE_RETURN(VipRegisterMem(device->nic, arena.base, bytes, &rights, &arena.handle),
                   VIP_SUCCESS);
    return arena;
}

static void shared_arena_close(Arena *arena)
{
    CHECK_RETURN(VipDeregisterMem(arena->device->nic, arena->base, arena->handle), VIP_SUCCESS);
    viaduct_free(arena->base);
}

/* Allocations are zeroed whole pages; failures return NULL and set errno. */
static void allocating(void)
{
    static const size_t sizes[] = {1, PAGE - 1, PAGE, PAGE + 1, 1 << 20};

    for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        unsigned char *memory = viaduct_alloc(sizes[n]);
        size_t zeros = 0;

        REQUIRE(memory != NULL, "%zu bytes are allocated", sizes[n]);
        CHECK((uintptr_t)memory % PAGE == 0, "they are aligned to a page");
        while (zeros < sizes[n] && memory[zeros] == 0)
            zeros++;
        CHECK(zeros == sizes[n], "they are zeros");
        memset(memory, 0xA5, sizes[n]);
        errno = 4711;
        viaduct_free(memory);
        CHECK(errno == 4711, "errno is preserved");
    }
    errno = 0;
    CHECK(viaduct_alloc(0) == NULL && errno == EINVAL, "no bytes: EINVAL");
    errno = 0;
    CHECK(viaduct_alloc(SIZE_MAX / 4) == NULL && errno != 0, "too many bytes: errno is set");
    viaduct_free(NULL);
}

/* A pointer that viaduct_alloc did not return is logged and ignored. */
static void freeing_foreign_pointers(const char *directory)
{
    char path[4096], line[1000] = "";
    unsigned char *memory = viaduct_alloc(2 * PAGE), *other = malloc(10);
    unsigned lines = 0;

    REQUIRE(memory != NULL && other != NULL, "memory");
    snprintf(path, sizeof path, "%s/stderr", directory);
    REQUIRE(freopen(path, "w", stderr) != NULL, "standard error is in a file");
    errno = 4711;
    viaduct_free(other);
    viaduct_free(memory + PAGE);
    viaduct_free(&lines);
    CHECK(errno == 4711, "errno is preserved");
    memory[0] = memory[2 * PAGE - 1] = 1;
    viaduct_free(memory);
    viaduct_free(memory);
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL, "the file");
    while (fgets(line, sizeof line, file) != NULL) {
        lines++;
        CHECK(strstr(line, "viaduct_free") != NULL, "%s", line);
    }
    fclose(file);
    CHECK(lines == 4, "each is logged: %u lines", lines);
    free(other);
}

/* Messages and RDMA writes between such memory. */
static void messages_and_writes(void)
{
    Arena local = shared_arena(&local_device, 1 << 16, VIP_FALSE);
    Arena remote = shared_arena(&remote_device, 1 << 16, VIP_TRUE);
    Pair pair;

    pair_open(&pair, &writable);
    unsigned char *from = arena_bytes(&local, MESSAGE_BYTES),
                  *to = arena_bytes(&remote, MESSAGE_BYTES);
    VIP_DESCRIPTOR *send = arena_descriptor(&local, 1), *receive = arena_descriptor(&remote, 1);
    fill(from, MESSAGE_BYTES, 1);
    describe(receive, to, remote.handle, MESSAGE_BYTES);
    REQUIRE_RETURN(VipPostRecv(pair.server, receive, remote.handle), VIP_SUCCESS);
    describe(send, from, local.handle, MESSAGE_BYTES);
    REQUIRE_RETURN(VipPostSend(pair.client, send, local.handle), VIP_SUCCESS);
    received(pair.server, receive);
    sent(pair.client, send);
    CHECK(filled(to, MESSAGE_BYTES, 1), "the message is complete");

    fill(from, MESSAGE_BYTES, 2);
    VIP_DESCRIPTOR *write = arena_descriptor(&local, 2);
    describe_write(write, from, local.handle, MESSAGE_BYTES, to, remote.handle);
    with_immediate(write, 2);
    describe(receive, to, remote.handle, 0);
    REQUIRE_RETURN(VipPostRecv(pair.server, receive, remote.handle), VIP_SUCCESS);
    REQUIRE_RETURN(VipPostSend(pair.client, write, local.handle), VIP_SUCCESS);
    received(pair.server, receive);
    sent(pair.client, write);
    CHECK(filled(to, MESSAGE_BYTES, 2), "the write is complete");
    pair_close(&pair);
    shared_arena_close(&local);
    shared_arena_close(&remote);
}

/* Parent and child share the memory after fork. */
static void fork_shares_the_memory(void)
{
    unsigned char *memory = viaduct_alloc(1);
    int status = -1;

    REQUIRE(memory != NULL, "memory");
    pid_t child = fork();
    if (child == 0) {
        memory[0] = 7;
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && status == 0, "the child");
    CHECK(memory[0] == 7, "the parent sees the child's write");
    viaduct_free(memory);
}

int main(int argc, char **argv)
{
    REQUIRE(argc > 1, "usage: shared_memory DIRECTORY");
    allocating();
    fork_shares_the_memory();
    fixture_open();
    messages_and_writes();
    fixture_close();
    freeing_foreign_pointers(argv[1]);
    return check_summary();
}
