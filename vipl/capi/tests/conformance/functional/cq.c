/* Completion queues. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <time.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};
enum { MAX_OBJECTS = 64 }; /* above every limit of the small NIC */

static void arguments(void)
{
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE from;
    VIP_BOOLEAN recv_queue;

    CHECK_RETURN(VipCreateCQ(local_device.nic, 16, NULL), INVALID);
    CHECK_RETURN(VipCreateCQ(NULL, 16, &cq), INVALID);
    CHECK_RETURN(VipCreateCQ(local_device.nic, 0, &cq), INVALID);
    CHECK_RETURN(VipCreateCQ(local_device.nic, local_device.attributes.MaxCQEntries + 1, &cq),
                 VIP_ERROR_RESOURCE);
    REQUIRE_RETURN(VipCreateCQ(local_device.nic, 16, &cq), VIP_SUCCESS);
    CHECK_RETURN(VipCQDone(cq, NULL, &recv_queue), INVALID);
    CHECK_RETURN(VipCQDone(cq, &from, NULL), INVALID);
    CHECK_RETURN(VipCQWait(cq, 0, NULL, &recv_queue), INVALID);
    CHECK_RETURN(VipCQWait(cq, 0, &from, NULL), INVALID);
    CHECK_RETURN(VipCQDone(cq, &from, &recv_queue), VIP_NOT_DONE);
    CHECK_RETURN(VipCQWait(cq, 0, &from, &recv_queue), VIP_TIMEOUT);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyCQ(cq), INVALID);
    CHECK_RETURN(VipCQDone(cq, &from, &recv_queue), INVALID);
    CHECK_RETURN(VipCQWait(cq, 0, &from, &recv_queue), INVALID);
}

/* Sends from one VI to the other and takes the entry of the watched VI. */
static void one_entry(VIP_VI_HANDLE from, Arena *source, VIP_VI_HANDLE to, Arena *target,
                      VIP_CQ_HANDLE cq, VIP_VI_HANDLE watched, bool wait)
{
    const size_t mark = source->used, remote_mark = target->used;
    VIP_DESCRIPTOR *send = arena_descriptor(source, 1), *recv = arena_descriptor(target, 1), *done;
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    const VIP_BOOLEAN expected = watched == to ? VIP_TRUE : VIP_FALSE;
    VIP_VI_HANDLE vi = NULL;
    VIP_BOOLEAN recv_queue = 7;
    VIP_RETURN result;

    describe(recv, arena_bytes(target, 64), target->handle, 64);
    describe(send, arena_bytes(source, 64), source->handle, 64);
    CHECK_RETURN(VipPostRecv(to, recv, target->handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(from, send, source->handle), VIP_SUCCESS);
    if (wait) {
        result = VipCQWait(cq, WAIT_MS, &vi, &recv_queue);
    } else {
        do {
            result = VipCQDone(cq, &vi, &recv_queue);
        } while (result == VIP_NOT_DONE && now_ms() < deadline_ms);
    }
    CHECK(result == VIP_SUCCESS && vi == watched && recv_queue == expected,
          "the entry names VI and queue: %s", return_name((int)result));
    if (watched == to) {
        CHECK(VipRecvDone(to, &done) == VIP_SUCCESS && done == recv, "the receive has completed");
        sent(from, send);
    } else {
        CHECK(VipSendDone(from, &done) == VIP_SUCCESS && done == send, "the send has completed");
        received(to, recv);
    }
    source->used = mark;
    target->used = remote_mark;
}

/* Both queues of a VI on one completion queue. */
static void both_queues(VIP_ULONG entries)
{
    VIP_DESCRIPTOR *done;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv_queue;
    Pair pair;

    REQUIRE_RETURN(VipCreateCQ(remote_device.nic, entries, &cq), VIP_SUCCESS);
    const PairOptions options = {.server_send_cq = cq, .server_recv_cq = cq};
    pair_open(&pair, &options);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipRecvWait(pair.server, 0, &done), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipSendWait(pair.server, 0, &done), VIP_ERROR_RESOURCE);
    for (unsigned round = 0; round < 4; round++) {
        one_entry(pair.client, &local_arena, pair.server, &remote_arena, cq, pair.server,
                  round % 2 == 0);
        one_entry(pair.server, &remote_arena, pair.client, &local_arena, cq, pair.server,
                  round % 2 == 0);
    }
    CHECK_RETURN(VipCQDone(cq, &vi, &recv_queue), VIP_NOT_DONE);
    /* Disconnect, drain, destroy VI, destroy CQ: in that order, without waiting. */
    pair_close(&pair);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
}

static void entries_of_both_queues(void)
{
    both_queues(1);
    both_queues(64);
}

/* Takes the oldest entry and checks that it is of this queue. */
static void expect_entry(VIP_CQ_HANDLE cq, VIP_VI_HANDLE vi, VIP_BOOLEAN recv_queue)
{
    VIP_VI_HANDLE from = NULL;
    VIP_BOOLEAN is_recv = 7;

    CHECK_RETURN(VipCQDone(cq, &from, &is_recv), VIP_SUCCESS);
    CHECK(from == vi && is_recv == recv_queue, "the entry names VI and queue");
}

/* An entry stays until it is taken, also if its descriptor was taken before or its VI is
 * destroyed. */
static void entries_of_taken_descriptors(void)
{
    enum { COUNT = 6 };
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    VIP_DESCRIPTOR *recvs[COUNT], *done;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv_queue;
    VIP_RETURN result;
    VIP_CQ_HANDLE cq;
    Pair pair;

    REQUIRE_RETURN(VipCreateCQ(remote_device.nic, 2 * COUNT, &cq), VIP_SUCCESS);
    const PairOptions options = {.server_recv_cq = cq};
    pair_open(&pair, &options);
    for (unsigned n = 0; n < COUNT; n++) {
        recvs[n] = arena_descriptor(&remote_arena, 0);
        CHECK_RETURN(VipPostRecv(pair.server, recvs[n], remote_arena.handle), VIP_SUCCESS);
    }
    for (unsigned n = 0; n < 2; n++) {
        VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 0);
        CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
        sent(pair.client, send);
        do {
            result = VipRecvDone(pair.server, &done);
        } while (result == VIP_NOT_DONE && now_ms() < deadline_ms);
        CHECK(result == VIP_SUCCESS && done == recvs[n], "receive %u is taken: %s", n,
              return_name((int)result));
    }
    for (unsigned n = 0; n < 2; n++) {
        expect_entry(cq, pair.server, VIP_TRUE);
        CHECK_RETURN(VipRecvDone(pair.server, &done), VIP_NOT_DONE);
    }
    CHECK_RETURN(VipCQDone(cq, &vi, &recv_queue), VIP_NOT_DONE);
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    for (unsigned n = 2; n < COUNT; n++)
        CHECK(VipRecvDone(pair.server, &done) == VIP_DESCRIPTOR_ERROR && done == recvs[n],
              "descriptor %u is taken without its entry", n);
    expect_entry(cq, pair.server, VIP_TRUE);
    CHECK(VipRecvDone(pair.server, &done) == VIP_DESCRIPTOR_ERROR && done == NULL,
          "nothing is posted");
    vi = pair.server;
    pair_close(&pair);
    for (unsigned n = 3; n < COUNT; n++) {
        expect_entry(cq, vi, VIP_TRUE);
        CHECK_RETURN(VipRecvDone(vi, &done), INVALID);
    }
    CHECK_RETURN(VipCQDone(cq, &vi, &recv_queue), VIP_NOT_DONE);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
}

/* The error of a completion that cannot be written names the completion queue. */
static void entry_of_a_descriptor_in_deregistered_memory(void)
{
    VIP_ERROR_DESCRIPTOR error;
    VIP_DESCRIPTOR *done;
    VIP_CQ_HANDLE cq;
    Arena deregistered;
    Pair pair;

    errors_clear();
    REQUIRE_RETURN(VipCreateCQ(remote_device.nic, 16, &cq), VIP_SUCCESS);
    const PairOptions options = {.server_recv_cq = cq};
    arena_open(&deregistered, &remote_device, 4096, remote_device.ptag, VIP_FALSE);
    pair_open(&pair, &options);
    VIP_DESCRIPTOR *recv = arena_descriptor(&deregistered, 0);
    CHECK_RETURN(VipPostRecv(pair.server, recv, deregistered.handle), VIP_SUCCESS);
    CHECK_RETURN(VipDeregisterMem(remote_device.nic, deregistered.base, deregistered.handle),
                 VIP_SUCCESS);
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    if (expect_error(pair.server, VIP_ERROR_COMP_PROT, &error))
        CHECK(error.CQHandle == cq && error.DescriptorPtr == recv &&
                  error.ResourceCode == VIP_RESOURCE_DESCRIPTOR &&
                  error.OpCode == VIP_STATUS_OP_RECEIVE,
              "the error names completion queue, descriptor and operation");
    expect_entry(cq, pair.server, VIP_TRUE);
    VipRecvDone(pair.server, &done);
    CHECK(done == recv, "the descriptor is taken off its queue");
    pair_close(&pair);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    arena_forget(&deregistered);
}

static void waiting(void)
{
    enum { NAP_MS = 200 };
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv_queue;

    REQUIRE_RETURN(VipCreateCQ(local_device.nic, 4, &cq), VIP_SUCCESS);
    const unsigned long long begin_ms = now_ms();
    CHECK_RETURN(VipCQWait(cq, NAP_MS, &vi, &recv_queue), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= NAP_MS - 1, "the CQ wait lasted");
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
}

typedef struct {
    VIP_CQ_HANDLE cq;
    VIP_RETURN result;
} Waiter;

static void *wait_for_ever(void *argument)
{
    Waiter *waiter = argument;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv_queue;

    waiter->result = VipCQWait(waiter->cq, VIP_INFINITE, &vi, &recv_queue);
    return NULL;
}

/* Closing a NIC destroys its completion queues and ends the calls that wait on them. */
static void closing_nic_with_a_cq(void)
{
    const struct timespec nap = {0, 50000000};
    Waiter waiter = {NULL, VIP_NOT_DONE};
    pthread_t thread;
    Device closed;

    device_open(&closed);
    REQUIRE_RETURN(VipCreateCQ(closed.nic, 4, &waiter.cq), VIP_SUCCESS);
    REQUIRE(pthread_create(&thread, NULL, wait_for_ever, &waiter) == 0, "a thread");
    /* Lets the thread sleep; the checks also hold if it does not yet. */
    nanosleep(&nap, NULL);
    CHECK_RETURN(VipCloseNic(closed.nic), VIP_SUCCESS);
    pthread_join(thread, NULL);
    CHECK_RETURN(waiter.result, INVALID);
    CHECK_RETURN(VipDestroyCQ(waiter.cq), INVALID);
}

static void cq_limit(void)
{
    VIP_CQ_HANDLE queues[MAX_OBJECTS];
    VIP_ULONG count = 0;
    VIP_RETURN result;
    Device small;

    device_open_named(&small, "SMALL");
    CHECK_RETURN(VipCreateCQ(small.nic, small.attributes.MaxCQEntries + 1, &queues[0]),
                 VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipCreateCQ(small.nic, ~0ul, &queues[0]), VIP_ERROR_RESOURCE);
    for (unsigned round = 0; round < 2; round++) {
        while ((result = VipCreateCQ(small.nic, small.attributes.MaxCQEntries, &queues[count])) ==
               VIP_SUCCESS)
            count++;
        CHECK(result == VIP_ERROR_RESOURCE && count == small.attributes.MaxCQ,
              "%lu completion queues, then %s", count, return_name((int)result));
        while (count > 0)
            CHECK_RETURN(VipDestroyCQ(queues[--count]), VIP_SUCCESS);
    }
    device_close(&small);
}

/* A completion queue that is used by either queue of a VI cannot be destroyed. */
static void cq_in_use_is_not_destroyed(void)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &plain);
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;

    REQUIRE_RETURN(VipCreateCQ(local_device.nic, 4, &cq), VIP_SUCCESS);
    for (unsigned n = 0; n < 2; n++) {
        REQUIRE_RETURN(VipCreateVi(local_device.nic, &attributes, n == 0 ? cq : NULL,
                                   n == 1 ? cq : NULL, &vi),
                       VIP_SUCCESS);
        CHECK_RETURN(VipDestroyCQ(cq), VIP_ERROR_RESOURCE);
        CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    }
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
}

/* Resizing a queue with entries: no entry is lost, however small the queue. */
static void resizing(void)
{
    enum { COUNT = 12 };
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &plain);
    VIP_DESCRIPTOR *recvs[COUNT], *done;
    VIP_VI_HANDLE vi, from;
    VIP_BOOLEAN recv_queue;
    VIP_CQ_HANDLE cq;

    REQUIRE_RETURN(VipCreateCQ(local_device.nic, 1, &cq), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreateVi(local_device.nic, &attributes, NULL, cq, &vi), VIP_SUCCESS);
    CHECK_RETURN(VipResizeCQ(cq, 0), INVALID);
    CHECK_RETURN(VipResizeCQ(NULL, 8), INVALID);
    CHECK_RETURN(VipResizeCQ((VIP_CQ_HANDLE)vi, 8), INVALID);
    CHECK_RETURN(VipResizeCQ(cq, local_device.attributes.MaxCQEntries + 1), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipResizeCQ(cq, ~0ul), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipResizeCQ(cq, 1000), VIP_SUCCESS);
    for (unsigned n = 0; n < COUNT; n++) {
        recvs[n] = arena_descriptor(&local_arena, 0);
        CHECK_RETURN(VipPostRecv(vi, recvs[n], local_arena.handle), VIP_SUCCESS);
    }
    CHECK_RETURN(VipResizeCQ(cq, 1), VIP_SUCCESS);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    for (unsigned n = 0; n < COUNT; n++) {
        CHECK_RETURN(VipResizeCQ(cq, n % 2 == 0 ? 1 : 500), VIP_SUCCESS);
        CHECK(VipCQDone(cq, &from, &recv_queue) == VIP_SUCCESS && from == vi && recv_queue,
              "entry %u is in the queue", n);
        CHECK(VipRecvDone(vi, &done) == VIP_DESCRIPTOR_ERROR && done == recvs[n],
              "and descriptor %u has completed", n);
    }
    CHECK_RETURN(VipCQDone(cq, &from, &recv_queue), VIP_NOT_DONE);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK_RETURN(VipResizeCQ(cq, 8), INVALID);
}

typedef struct {
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    unsigned messages, wrong;
} Collector;

/* Waits for entries and takes their descriptors. */
static void *collect(void *argument)
{
    Collector *collector = argument;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv_queue;
    VIP_DESCRIPTOR *done;

    for (unsigned n = 0; n < collector->messages; n++) {
        if (VipCQWait(collector->cq, WAIT_MS, &vi, &recv_queue) != VIP_SUCCESS ||
            vi != collector->vi || !recv_queue || VipRecvDone(vi, &done) != VIP_SUCCESS ||
            done->CS.Length != n % 64)
            collector->wrong++;
    }
    return NULL;
}

/* The same while messages arrive and another thread waits for them. */
static void resizing_while_messages_arrive(void)
{
    enum { MESSAGES = 64 };
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &plain);
    VIP_DESCRIPTOR *send = arena_descriptor(&remote_arena, 1);
    unsigned char *data = arena_bytes(&remote_arena, 64), *target = arena_bytes(&local_arena, 64);
    Collector collector = {.messages = MESSAGES};
    pthread_t thread;
    Pair pair;

    REQUIRE_RETURN(VipCreateCQ(local_device.nic, 1, &collector.cq), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreateVi(local_device.nic, &attributes, NULL, collector.cq, &pair.client),
                   VIP_SUCCESS);
    collector.vi = pair.client;
    pair.server = server_create(&plain);
    for (unsigned n = 0; n < MESSAGES; n++) {
        VIP_DESCRIPTOR *recv = arena_descriptor(&local_arena, 1);
        describe(recv, target, local_arena.handle, 64);
        CHECK_RETURN(VipPostRecv(pair.client, recv, local_arena.handle), VIP_SUCCESS);
    }
    pair_connect(&pair);
    REQUIRE(pthread_create(&thread, NULL, collect, &collector) == 0, "a thread");
    for (unsigned n = 0; n < MESSAGES; n++) {
        describe(send, data, remote_arena.handle, n % 64);
        CHECK_RETURN(VipPostSend(pair.server, send, remote_arena.handle), VIP_SUCCESS);
        CHECK_RETURN(VipResizeCQ(collector.cq, 1 + n * 7 % 50), VIP_SUCCESS);
        sent(pair.server, send);
    }
    pthread_join(thread, NULL);
    CHECK(collector.wrong == 0, "%u entries, in order (%u wrong)", MESSAGES, collector.wrong);
    pair_close(&pair);
    CHECK_RETURN(VipDestroyCQ(collector.cq), VIP_SUCCESS);
}

static const Test tests[] = {
    TEST(arguments, .clauses = "3.5.7 3.5.8 3.6.1 3.6.2",
         .returns = "VipCreateCQ SUCCESS INVALID_PARAMETER ERROR_RESOURCE;"
                    "VipDestroyCQ SUCCESS INVALID_PARAMETER;"
                    "VipCQDone NOT_DONE INVALID_PARAMETER; VipCQWait TIMEOUT INVALID_PARAMETER"),
    TEST(entries_of_both_queues, .clauses = "3.5.7 3.5.8 3.6.2 6.1",
         .returns = "VipCQWait SUCCESS; VipCQDone SUCCESS NOT_DONE; VipDestroyCQ ERROR_RESOURCE;"
                    "VipRecvWait ERROR_RESOURCE; VipSendWait ERROR_RESOURCE"),
    TEST(entries_of_taken_descriptors, .clauses = "3.5.7 7.1 7.5",
         .returns = "VipCQDone SUCCESS NOT_DONE; VipRecvDone NOT_DONE DESCRIPTOR_ERROR"),
    TEST(entry_of_a_descriptor_in_deregistered_memory, .clauses = "3.8.1 4.4"),
    TEST(waiting, .clauses = "3.5.8", .returns = "VipCQWait TIMEOUT"),
    TEST(closing_nic_with_a_cq, .clauses = "3.1.2", .returns = "VipDestroyCQ INVALID_PARAMETER"),
    TEST(cq_limit, .clauses = "3.6.1 3.7.1",
         .returns = "VipCreateCQ SUCCESS ERROR_RESOURCE"),
    TEST(resizing, .clauses = "3.6.3",
         .returns = "VipResizeCQ SUCCESS INVALID_PARAMETER ERROR_RESOURCE"),
    TEST(resizing_while_messages_arrive, .clauses = "3.6.3 6.1", .returns = "VipResizeCQ SUCCESS"),
    TEST(cq_in_use_is_not_destroyed, .clauses = "3.6.2", .returns = "VipDestroyCQ ERROR_RESOURCE"),
};

SUITE_MAIN(tests)
