/* The calls of viaduct.h: memory that can be shared, registered and used as any other. */
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

/* Whole pages of zeros; what cannot be allocated is NULL with a reason. */
static void allocating(void)
{
    static const size_t sizes[] = {1, PAGE - 1, PAGE, PAGE + 1, 1 << 20};

    for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        unsigned char *memory = viaduct_alloc(sizes[n]);
        size_t zeros = 0;

        REQUIRE(memory != NULL, "%zu bytes are allocated", sizes[n]);
        CHECK((uintptr_t)memory % PAGE == 0, "they begin with a page");
        while (zeros < sizes[n] && memory[zeros] == 0)
            zeros++;
        CHECK(zeros == sizes[n], "they are zeros");
        memset(memory, 0xA5, sizes[n]);
        errno = 4711;
        viaduct_free(memory);
        CHECK(errno == 4711, "errno is left alone");
    }
    errno = 0;
    CHECK(viaduct_alloc(0) == NULL && errno == EINVAL, "no bytes: EINVAL");
    errno = 0;
    CHECK(viaduct_alloc(SIZE_MAX / 4) == NULL && errno != 0, "too many bytes: a reason");
    viaduct_free(NULL);
}

/* A pointer that is not of viaduct_alloc is told, and nothing happens to it. */
static void freeing_what_is_not_ours(const char *directory)
{
    char path[4096], told[1000] = "";
    unsigned char *memory = viaduct_alloc(2 * PAGE), *other = malloc(10);
    unsigned lines = 0;

    REQUIRE(memory != NULL && other != NULL, "memory");
    snprintf(path, sizeof path, "%s/stderr", directory);
    REQUIRE(freopen(path, "w", stderr) != NULL, "standard error is in a file");
    errno = 4711;
    viaduct_free(other);
    viaduct_free(memory + PAGE);
    viaduct_free(&lines);
    CHECK(errno == 4711, "errno is left alone");
    memory[0] = memory[2 * PAGE - 1] = 1;
    viaduct_free(memory);
    viaduct_free(memory);
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL, "the file");
    while (fgets(told, sizeof told, file) != NULL) {
        lines++;
        CHECK(strstr(told, "viaduct_free") != NULL, "%s", told);
    }
    fclose(file);
    CHECK(lines == 4, "each is told: %u lines", lines);
    free(other);
}

/* Messages and writes between such memory. */
static void messages_and_writes(void)
{
    Arena near = shared_arena(&here, 1 << 16, VIP_FALSE);
    Arena far = shared_arena(&there, 1 << 16, VIP_TRUE);
    Pair pair;

    pair_open(&pair, &writable);
    unsigned char *from = arena_bytes(&near, MESSAGE_BYTES), *to = arena_bytes(&far, MESSAGE_BYTES);
    VIP_DESCRIPTOR *send = arena_descriptor(&near, 1), *receive = arena_descriptor(&far, 1);
    fill(from, MESSAGE_BYTES, 1);
    describe(receive, to, far.handle, MESSAGE_BYTES);
    REQUIRE_RETURN(VipPostRecv(pair.server, receive, far.handle), VIP_SUCCESS);
    describe(send, from, near.handle, MESSAGE_BYTES);
    REQUIRE_RETURN(VipPostSend(pair.client, send, near.handle), VIP_SUCCESS);
    received(pair.server, receive);
    sent(pair.client, send);
    CHECK(filled(to, MESSAGE_BYTES, 1), "the message is whole");

    fill(from, MESSAGE_BYTES, 2);
    VIP_DESCRIPTOR *write = arena_descriptor(&near, 2);
    describe_write(write, from, near.handle, MESSAGE_BYTES, to, far.handle);
    with_immediate(write, 2);
    describe(receive, to, far.handle, 0);
    REQUIRE_RETURN(VipPostRecv(pair.server, receive, far.handle), VIP_SUCCESS);
    REQUIRE_RETURN(VipPostSend(pair.client, write, near.handle), VIP_SUCCESS);
    received(pair.server, receive);
    sent(pair.client, write);
    CHECK(filled(to, MESSAGE_BYTES, 2), "the write is whole");
    pair_close(&pair);
    shared_arena_close(&near);
    shared_arena_close(&far);
}

/* What the header says of fork. */
static void a_child_shares_it(void)
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
    CHECK(memory[0] == 7, "what the child wrote is seen");
    viaduct_free(memory);
}

int main(int count, char **words)
{
    REQUIRE(count > 1, "usage: shared DIRECTORY");
    allocating();
    a_child_shares_it();
    fixture_open();
    messages_and_writes();
    fixture_close();
    freeing_what_is_not_ours(words[1]);
    return check_summary();
}
