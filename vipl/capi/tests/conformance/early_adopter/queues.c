/* Posting to work queues, and Done and Wait calls. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};

static void arguments(void)
{
    VIP_VI_HANDLE vi = client_create(&plain);
    VIP_DESCRIPTOR *descriptor = arena_descriptor(&local_arena, 1), *out = descriptor;

    CHECK_RETURN(VipPostSend(NULL, descriptor, local_arena.handle), INVALID);
    CHECK_RETURN(VipPostRecv(NULL, descriptor, local_arena.handle), INVALID);
    CHECK_RETURN(VipSendDone(vi, NULL), INVALID);
    CHECK_RETURN(VipRecvDone(vi, NULL), INVALID);
    CHECK_RETURN(VipSendWait(vi, 0, NULL), INVALID);
    CHECK_RETURN(VipRecvWait(vi, 0, NULL), INVALID);
    CHECK_RETURN(VipSendDone(vi, &out), VIP_DESCRIPTOR_ERROR);
    CHECK(out == NULL, "an empty send queue returns NULL");
    out = descriptor;
    CHECK_RETURN(VipRecvDone(vi, &out), VIP_DESCRIPTOR_ERROR);
    CHECK(out == NULL, "an empty receive queue returns NULL");
    out = descriptor;
    CHECK_RETURN(VipSendWait(vi, VIP_INFINITE, &out), VIP_DESCRIPTOR_ERROR);
    CHECK(out == NULL, "VipSendWait does not wait on an empty queue");
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
}

/* Receives may be posted before connecting, in any number. */
static void posting_while_idle(void)
{
    enum { POSTED = 40 };
    VIP_DESCRIPTOR *recvs[POSTED], *send = arena_descriptor(&local_arena, 1);
    unsigned char *data = arena_bytes(&local_arena, 64), *target = arena_bytes(&remote_arena, 64);
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_STATE state;
    VIP_BOOLEAN send_empty, recv_empty;
    Pair pair = {client_create(&plain), server_create(&plain)};

    for (unsigned n = 0; n < POSTED; n++) {
        recvs[n] = arena_descriptor(&remote_arena, 1);
        describe(recvs[n], target, remote_arena.handle, 64);
        CHECK_RETURN(VipPostRecv(pair.server, recvs[n], remote_arena.handle), VIP_SUCCESS);
    }
    CHECK_RETURN(VipQueryVi(pair.server, &state, &attributes, &send_empty, &recv_empty),
                 VIP_SUCCESS);
    CHECK(send_empty == VIP_TRUE && recv_empty == VIP_FALSE, "VipQueryVi reports the receives");
    CHECK_RETURN(VipDestroyVi(pair.server), VIP_INVALID_STATE);
    pair_connect(&pair);
    for (unsigned n = 0; n < POSTED; n++) {
        describe(send, data, local_arena.handle, 64);
        CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
        sent(pair.client, send);
        received(pair.server, recvs[n]);
    }
    pair_close(&pair);
}

/* --- waiting --------------------------------------------------------------------------------- */

static double thread_cpu_ms(void)
{
    struct timespec used;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

typedef struct {
    VIP_VI_HANDLE vi;
    VIP_RETURN result;
    VIP_DESCRIPTOR *descriptor;
} Waiter;

static void *wait_for_ever(void *argument)
{
    Waiter *waiter = argument;

    waiter->result = VipRecvWait(waiter->vi, VIP_INFINITE, &waiter->descriptor);
    return NULL;
}

/* Wait calls sleep, last for their timeout in milliseconds, and end with a completion. */
static void waiting(void)
{
    enum { NAP_MS = 200 };
    VIP_DESCRIPTOR *send = arena_descriptor(&remote_arena, 1),
                   *recv = arena_descriptor(&local_arena, 1), *done;
    unsigned char *data = arena_bytes(&remote_arena, 64), *target = arena_bytes(&local_arena, 64);
    pthread_t thread;
    Pair pair;

    pair_open(&pair, &plain);
    CHECK_RETURN(VipRecvWait(pair.client, VIP_INFINITE, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == NULL, "VipRecvWait does not wait on an empty queue");
    describe(recv, target, local_arena.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.client, recv, local_arena.handle), VIP_SUCCESS);

    const unsigned long long begin_ms = now_ms();
    const double begin_cpu_ms = thread_cpu_ms();
    CHECK_RETURN(VipRecvWait(pair.client, NAP_MS, &done), VIP_TIMEOUT);
    const unsigned long long lasted_ms = now_ms() - begin_ms;
    const double cpu_ms = thread_cpu_ms() - begin_cpu_ms;
    CHECK(lasted_ms >= NAP_MS - 1, "the wait lasted %llu ms", lasted_ms);
    CHECK(cpu_ms < NAP_MS / 2, "and used %.1f ms of processor time", cpu_ms);
    CHECK(done == NULL, "VIP_TIMEOUT returns no descriptor");

    Waiter waiter = {pair.client, VIP_NOT_DONE, NULL};
    REQUIRE(pthread_create(&thread, NULL, wait_for_ever, &waiter) == 0, "a thread");
    const struct timespec nap = {0, NAP_MS * 1000000L};
    nanosleep(&nap, NULL); /* the wait must outlast this */
    describe(send, data, remote_arena.handle, 64);
    CHECK_RETURN(VipPostSend(pair.server, send, remote_arena.handle), VIP_SUCCESS);
    pthread_join(thread, NULL);
    CHECK(waiter.result == VIP_SUCCESS && waiter.descriptor == recv,
          "an infinite wait ends with the message");
    sent(pair.server, send);
    pair_close(&pair);
}

/* A message longer than one iteration of the poll loop: not done, timed out, completed. */
static void collecting_a_long_message(void)
{
    Device small;
    bool not_done = false, timed_out = false;
    VIP_DESCRIPTOR *done;
    Arena arena;
    VIP_VI_HANDLE vis[2];
    Address local, remote;
    VIP_CONN_HANDLE connection;

    device_open_named(&small, "SMALL");
    const size_t bytes = small.attributes.MaxTransferSize;
    arena_open(&arena, &small, 2 * bytes + 4096, small.ptag, VIP_FALSE);
    VIP_DESCRIPTOR *send = arena_descriptor(&arena, 1), *recv = arena_descriptor(&arena, 1);
    unsigned char *data = arena_bytes(&arena, bytes), *target = arena_bytes(&arena, bytes);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&small,
                                                 &(PairOptions){.max_transfer_bytes = bytes});
    for (unsigned n = 0; n < 2; n++)
        REQUIRE_RETURN(VipCreateVi(small.nic, &attributes, NULL, NULL, &vis[n]), VIP_SUCCESS);
    Request *request = request_between(&small, &small, vis[0], "long", WAIT_MS);
    address_of(&small, "long", &local);
    REQUIRE_RETURN(VipConnectWait(small.nic, &local.address, WAIT_MS, &remote.address, &attributes,
                                  &connection),
                   VIP_SUCCESS);
    REQUIRE_RETURN(VipConnectAccept(connection, vis[1]), VIP_SUCCESS);
    REQUIRE_RETURN(request_finish(request, NULL), VIP_SUCCESS);
    fill(data, bytes, 4);
    /* Repeated if this thread was not scheduled before the message was sent. */
    for (unsigned round = 0; round < 20 && !(not_done && timed_out); round++) {
        memset(target, 0, bytes);
        describe(recv, target, arena.handle, bytes);
        describe(send, data, arena.handle, bytes);
        CHECK_RETURN(VipPostRecv(vis[1], recv, arena.handle), VIP_SUCCESS);
        CHECK_RETURN(VipPostSend(vis[0], send, arena.handle), VIP_SUCCESS);
        VIP_RETURN result = VipSendDone(vis[0], &done);
        if (result == VIP_NOT_DONE) {
            not_done = done == NULL;
            result = VipSendWait(vis[0], 0, &done);
        }
        if (result == VIP_TIMEOUT) {
            timed_out = done == NULL;
            result = VipSendWait(vis[0], WAIT_MS, &done);
        }
        CHECK(result == VIP_SUCCESS && done == send, "%zu bytes are sent", bytes);
        CHECK((received(vis[1], recv) & VIP_STATUS_ERROR_MASK) == 0 && recv->CS.Length == bytes &&
                  memcmp(data, target, bytes) == 0,
              "%zu bytes arrive", bytes);
    }
    CHECK(not_done, "a send in progress is VIP_NOT_DONE");
    CHECK(timed_out, "and VIP_TIMEOUT with a timeout of 0");
    vi_close(vis[0]);
    vi_close(vis[1]);
    arena_close(&arena);
    device_close(&small);
}

/* Memory of completed descriptors belongs to the program again. */
static void completed_descriptors_are_not_accessed(void)
{
    Pair pair;

    pair_open(&pair, &plain);
    pair_works(&pair, "before");
    VIP_DESCRIPTOR *flushed = arena_descriptor(&local_arena, 1);
    unsigned char *target = arena_bytes(&local_arena, 64);
    describe(flushed, target, local_arena.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.client, flushed, local_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    CHECK(vi_drain(pair.client) == 1, "the posted receive is flushed");
    memset(flushed, 0xA5, sizeof *flushed);
    memset(target, 0xA5, 64);
    vi_close(pair.server);
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_SUCCESS);
    bool untouched = true;
    for (size_t i = 0; i < 64; i++)
        untouched &= ((unsigned char *)flushed)[i] == 0xA5 && target[i] == 0xA5;
    CHECK(untouched, "the memory is not written afterwards");
}

static const Test tests[] = {
    TEST(arguments, .clauses = "3.5.1 3.5.2 3.5.3 3.5.4 3.5.5 3.5.6",
         .returns = "VipPostSend INVALID_PARAMETER; VipPostRecv INVALID_PARAMETER;"
                    "VipSendDone INVALID_PARAMETER DESCRIPTOR_ERROR;"
                    "VipRecvDone INVALID_PARAMETER DESCRIPTOR_ERROR;"
                    "VipSendWait INVALID_PARAMETER DESCRIPTOR_ERROR;"
                    "VipRecvWait INVALID_PARAMETER"),
    TEST(posting_while_idle, .clauses = "3.5.4 5.5 3.7.3",
         .returns = "VipPostRecv SUCCESS; VipDestroyVi INVALID_STATE"),
    TEST(waiting, .clauses = "3.5.3 3.5.6 4.1",
         .returns = "VipRecvWait SUCCESS TIMEOUT DESCRIPTOR_ERROR; VipSendWait SUCCESS"),
    TEST(collecting_a_long_message, .clauses = "3.5.2 3.5.3",
         .returns = "VipSendDone NOT_DONE; VipSendWait TIMEOUT SUCCESS"),
    TEST(completed_descriptors_are_not_accessed, .clauses = "5.5",
         .returns = "VipPostRecv SUCCESS"),
};

SUITE_MAIN(tests)
