/* Data between two VIs of one process: messages, completion queues, waits, RDMA writes, flushing. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fixture.h"

static unsigned char pattern(unsigned message, size_t offset)
{
    return (unsigned char)(message * 37 + offset * 11 + (offset >> 8) + 1);
}

static void fill(unsigned char *data, size_t bytes, unsigned message)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = pattern(message, i);
}

static bool filled(const unsigned char *data, size_t bytes, unsigned message)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != pattern(message, i))
            return false;
    }
    return true;
}

static void messages_of_all_sizes(Device *device, Arena *arena)
{
    static const size_t sizes[] = {0, 1, 3, 4, 63, 64, 1423, 1424, 1425, 2048, 4096, 65535, 131072};
    const PairOptions options = {.max_transfer_bytes = 131072};
    size_t mark = arena->used;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1), *recv = arena_descriptor(arena, 1);
    unsigned char *data = arena_bytes(arena, 131072), *target = arena_bytes(arena, 131072);
    Pair pair;

    pair_open(&pair, device, &options);
    for (unsigned n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        bool immediate = n % 2 == 1;

        fill(data, sizes[n], n);
        memset(target, 0, 131072);
        describe(recv, target, arena->handle, 131072);
        describe(send, data, arena->handle, sizes[n]);
        if (immediate)
            with_immediate(send, 0xC0DE0000u + n);
        CHECK_RETURN(VipPostRecv(pair.server, recv, arena->handle), VIP_SUCCESS);
        CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
        VIP_UINT32 status = sent(pair.client, send);
        CHECK((status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_SEND && send->CS.Length == sizes[n],
              "%zu bytes: the send tells what it did", sizes[n]);
        status = received(pair.server, recv);
        CHECK((status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RECEIVE && recv->CS.Length == sizes[n],
              "%zu bytes: the receive tells what it got", sizes[n]);
        CHECK(((status & VIP_STATUS_IMMEDIATE) != 0) == immediate &&
                  (!immediate || recv->CS.ImmediateData == 0xC0DE0000u + n),
              "%zu bytes: immediate data %s", sizes[n], immediate ? "crosses" : "is absent");
        CHECK(filled(target, sizes[n], n), "%zu bytes: every byte is right", sizes[n]);
    }
    pair_close(&pair);
    arena->used = mark;
}

/* Gather and scatter over many segments of uneven and zero length, and over none at all. */
static void segments(Device *device, Arena *arena)
{
    enum { MANY = 252 };
    const PairOptions options = {0};
    size_t mark = arena->used, total = 0, offset = 0;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, MANY), *recv = arena_descriptor(arena, MANY);
    unsigned char *data = arena_bytes(arena, 65536), *target = arena_bytes(arena, 65536);
    Pair pair;

    pair_open(&pair, device, &options);
    for (unsigned n = 0; n < MANY; n++) {
        describe_segment(send, n, data + total, arena->handle, n % 7);
        total += n % 7;
    }
    for (unsigned n = 0; n < MANY; n++) {
        size_t bytes = n % 5;
        describe_segment(recv, n, target + offset, arena->handle, bytes);
        offset += bytes;
    }
    describe_segment(recv, MANY - 1, target + offset - (MANY - 1) % 5, arena->handle, 1000);
    fill(data, total, 9);
    send->CS.SegCount = recv->CS.SegCount = MANY;
    send->CS.Length = (VIP_UINT32)total;
    CHECK_RETURN(VipPostRecv(pair.server, recv, arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
    sent(pair.client, send);
    received(pair.server, recv);
    CHECK(recv->CS.Length == total && filled(target, total, 9), "252 segments, %zu bytes", total);

    memset(send, 0, sizeof *send);
    memset(recv, 0, sizeof *recv);
    with_immediate(send, 0xFFFFFFFFu);
    CHECK_RETURN(VipPostRecv(pair.server, recv, arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
    sent(pair.client, send);
    VIP_UINT32 status = received(pair.server, recv);
    CHECK(recv->CS.Length == 0 && (status & VIP_STATUS_IMMEDIATE) &&
              recv->CS.ImmediateData == 0xFFFFFFFFu,
          "no segments, immediate data alone");
    pair_close(&pair);
    arena->used = mark;
}

/* Bits and fields of posted receives that mean nothing there. */
static void ignored_fields(Device *device, Arena *arena)
{
    const PairOptions options = {0};
    size_t mark = arena->used;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1), *recv = arena_descriptor(arena, 1);
    unsigned char *data = arena_bytes(arena, 64), *target = arena_bytes(arena, 64);
    Pair pair;

    pair_open(&pair, device, &options);
    fill(data, 64, 3);
    describe(recv, target, arena->handle, 64);
    recv->CS.Control = VIP_CONTROL_IMMEDIATE | VIP_CONTROL_QFENCE;
    recv->CS.Next.AddressBits = 0xDEADBEEFDEADBEEFull;
    recv->CS.NextHandle = 0xABADCAFE;
    recv->CS.Length = 0x12345678;
    recv->CS.Status = 0xFFFFFFFF;
    describe(send, data, arena->handle, 64);
    send->CS.Control |= VIP_CONTROL_QFENCE;
    send->CS.Next.AddressBits = 1;
    send->CS.NextHandle = 2;
    CHECK_RETURN(VipPostRecv(pair.server, recv, arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
    sent(pair.client, send);
    VIP_UINT32 status = received(pair.server, recv);
    CHECK((status & VIP_STATUS_ERROR_MASK) == 0 && !(status & VIP_STATUS_IMMEDIATE) &&
              recv->CS.Length == 64 && filled(target, 64, 3),
          "Control, Next, Length of a posted receive do not matter");
    pair_close(&pair);
    arena->used = mark;
}

/* Many messages in flight: order is kept, nothing is lost. */
static void in_order(Device *device, Arena *arena)
{
    enum { DEPTH = 16, BYTES = 256 };
    const unsigned messages = small_counts() ? 64 : 4096;
    const PairOptions options = {0};
    size_t mark = arena->used;
    VIP_DESCRIPTOR *sends[DEPTH], *recvs[DEPTH];
    unsigned char *data[DEPTH], *target[DEPTH];
    unsigned wrong = 0;
    Pair pair;

    pair_open(&pair, device, &options);
    for (unsigned n = 0; n < DEPTH; n++) {
        sends[n] = arena_descriptor(arena, 1);
        recvs[n] = arena_descriptor(arena, 1);
        data[n] = arena_bytes(arena, BYTES);
        target[n] = arena_bytes(arena, BYTES);
    }
    for (unsigned first = 0; first < messages; first += DEPTH) {
        for (unsigned n = 0; n < DEPTH; n++) {
            describe(recvs[n], target[n], arena->handle, BYTES);
            wrong += VipPostRecv(pair.server, recvs[n], arena->handle) != VIP_SUCCESS;
        }
        for (unsigned n = 0; n < DEPTH; n++) {
            fill(data[n], BYTES, first + n);
            describe(sends[n], data[n], arena->handle, BYTES);
            wrong += VipPostSend(pair.client, sends[n], arena->handle) != VIP_SUCCESS;
        }
        for (unsigned n = 0; n < DEPTH; n++) {
            VIP_DESCRIPTOR *done = NULL;
            wrong += VipSendWait(pair.client, WAIT_MS, &done) != VIP_SUCCESS || done != sends[n];
            wrong += VipRecvWait(pair.server, WAIT_MS, &done) != VIP_SUCCESS || done != recvs[n] ||
                     !filled(target[n], BYTES, first + n);
        }
    }
    CHECK(wrong == 0, "%u messages, 16 at a time: in order and whole (%u wrong)", messages, wrong);
    pair_close(&pair);
    arena->used = mark;
}

/* Both queues of a VI on one completion queue. */
static void completion_queue(Device *device, Arena *arena, VIP_ULONG entries)
{
    size_t mark = arena->used;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1), *recv = arena_descriptor(arena, 1), *done;
    unsigned char *data = arena_bytes(arena, 128);
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv_queue;
    Pair pair;

    REQUIRE_RETURN(VipCreateCQ(device->nic, entries, &cq), VIP_SUCCESS);
    const PairOptions options = {.server_send_cq = cq, .server_recv_cq = cq};
    pair_open(&pair, device, &options);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipRecvWait(pair.server, 0, &done), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipSendWait(pair.server, 0, &done), VIP_ERROR_RESOURCE);
    for (unsigned round = 0; round < 3; round++) {
        describe(recv, data, arena->handle, 64);
        describe(send, data + 64, arena->handle, 64);
        CHECK_RETURN(VipPostRecv(pair.server, recv, arena->handle), VIP_SUCCESS);
        CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
        sent(pair.client, send);
        CHECK_RETURN(VipCQWait(cq, WAIT_MS, &vi, &recv_queue), VIP_SUCCESS);
        CHECK(vi == pair.server && recv_queue == VIP_TRUE, "the entry names VI and receive queue");
        CHECK(VipRecvDone(pair.server, &done) == VIP_SUCCESS && done == recv,
              "the descriptor is there");

        describe(recv, data, arena->handle, 64);
        CHECK_RETURN(VipPostRecv(pair.client, recv, arena->handle), VIP_SUCCESS);
        CHECK_RETURN(VipPostSend(pair.server, send, arena->handle), VIP_SUCCESS);
        const unsigned long long deadline_ms = now_ms() + WAIT_MS;
        VIP_RETURN answer;
        do {
            answer = VipCQDone(cq, &vi, &recv_queue);
        } while (answer == VIP_NOT_DONE && now_ms() < deadline_ms);
        CHECK(answer == VIP_SUCCESS, "VipCQDone: %s", return_name((int)answer));
        CHECK(vi == pair.server && recv_queue == VIP_FALSE, "the entry names VI and send queue");
        CHECK(VipSendDone(pair.server, &done) == VIP_SUCCESS && done == send,
              "the descriptor is there");
        received(pair.client, recv);
    }
    CHECK_RETURN(VipCQDone(cq, &vi, &recv_queue), VIP_NOT_DONE);
    /* Disconnect, drain, destroy VI, destroy CQ: in that order, at once. */
    pair_close(&pair);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    arena->used = mark;
}

static double thread_cpu_ms(void)
{
    struct timespec used;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

typedef struct {
    VIP_VI_HANDLE vi;
    VIP_RETURN answer;
    VIP_DESCRIPTOR *descriptor;
} Waiter;

static void *wait_for_ever(void *argument)
{
    Waiter *waiter = argument;

    waiter->answer = VipRecvWait(waiter->vi, VIP_INFINITE, &waiter->descriptor);
    return NULL;
}

/* Waits sleep, last as long as they say in milliseconds, and end with what they wait for. */
static void waits(Device *device, Arena *arena)
{
    enum { NAP_MS = 200 };
    const PairOptions options = {0};
    size_t mark = arena->used;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1), *recv = arena_descriptor(arena, 1), *done;
    unsigned char *data = arena_bytes(arena, 128);
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv_queue;
    pthread_t thread;
    Pair pair;

    pair_open(&pair, device, &options);
    CHECK_RETURN(VipRecvWait(pair.server, VIP_INFINITE, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == NULL, "an empty queue is not waited on");
    describe(recv, data, arena->handle, 64);
    CHECK_RETURN(VipPostRecv(pair.server, recv, arena->handle), VIP_SUCCESS);

    unsigned long long begin_ms = now_ms();
    double begin_cpu_ms = thread_cpu_ms();
    CHECK_RETURN(VipRecvWait(pair.server, NAP_MS, &done), VIP_TIMEOUT);
    unsigned long long lasted_ms = now_ms() - begin_ms;
    double cpu_ms = thread_cpu_ms() - begin_cpu_ms;
    CHECK(lasted_ms >= NAP_MS - 1 && lasted_ms < NAP_MS * 20, "the wait lasted %llu ms", lasted_ms);
    CHECK(cpu_ms < NAP_MS / 2, "and took %.1f ms of processor time", cpu_ms);
    CHECK(done == NULL, "a time-out brings no descriptor");

    REQUIRE_RETURN(VipCreateCQ(device->nic, 4, &cq), VIP_SUCCESS);
    begin_ms = now_ms();
    CHECK_RETURN(VipCQWait(cq, NAP_MS, &vi, &recv_queue), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= NAP_MS - 1, "the CQ wait lasted");
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);

    Waiter waiter = {pair.server, VIP_NOT_DONE, NULL};
    REQUIRE(pthread_create(&thread, NULL, wait_for_ever, &waiter) == 0, "a thread");
    const struct timespec nap = {0, NAP_MS * 1000000L};
    nanosleep(&nap, NULL); /* the wait must outlast this */
    describe(send, data + 64, arena->handle, 64);
    CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
    pthread_join(thread, NULL);
    CHECK(waiter.answer == VIP_SUCCESS && waiter.descriptor == recv,
          "an infinite wait ends with the message");
    sent(pair.client, send);
    pair_close(&pair);
    arena->used = mark;
}

/* RDMA writes: silent without immediate data, a completion with it, flags may be polled. */
static void rdma_writes(Device *device, Arena *arena, Arena *exposed)
{
    enum { BYTES = 20000 };
    const PairOptions options = {.server_rdma_write = VIP_TRUE};
    size_t mark = arena->used;
    VIP_DESCRIPTOR *write = arena_descriptor(arena, 2), *recv = arena_descriptor(arena, 1), *done;
    unsigned char *data = arena_bytes(arena, BYTES), *target = exposed->base + 24;
    Pair pair;

    pair_open(&pair, device, &options);
    memset(exposed->base, 0, exposed->bytes);
    fill(data, BYTES, 5);
    describe_write(write, data, arena->handle, BYTES, target, exposed->handle);
    CHECK_RETURN(VipPostSend(pair.client, write, arena->handle), VIP_SUCCESS);
    VIP_UINT32 status = sent(pair.client, write);
    CHECK((status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RDMA_WRITE, "the write tells what it did");
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    const volatile unsigned char *last = target + BYTES - 1;
    while (*last != pattern(5, BYTES - 1) && now_ms() < deadline_ms) {
    }
    CHECK(filled(target, BYTES, 5), "when the last byte is there, all are, with no call here");
    CHECK(exposed->base[23] == 0 && target[BYTES] == 0, "and no byte beside them");
    CHECK_RETURN(VipRecvDone(pair.server, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == NULL, "a plain write takes no descriptor");

    describe(recv, data, arena->handle, 0);
    CHECK_RETURN(VipPostRecv(pair.server, recv, arena->handle), VIP_SUCCESS);
    fill(data, BYTES, 6);
    describe_write(write, data, arena->handle, BYTES, target, exposed->handle);
    with_immediate(write, 0x89ABCDEF);
    CHECK_RETURN(VipPostSend(pair.client, write, arena->handle), VIP_SUCCESS);
    sent(pair.client, write);
    status = received(pair.server, recv);
    CHECK((status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_REMOTE_RDMA_WRITE &&
              (status & VIP_STATUS_IMMEDIATE) && recv->CS.ImmediateData == 0x89ABCDEF &&
              recv->CS.Length == BYTES && filled(target, BYTES, 6),
          "a write with immediate data completes a receive");

    describe_write(write, data, arena->handle, 0, target, exposed->handle);
    CHECK_RETURN(VipPostSend(pair.client, write, arena->handle), VIP_SUCCESS);
    CHECK((sent(pair.client, write) & VIP_STATUS_ERROR_MASK) == 0, "a write of nothing is legal");
    pair_works(&pair, arena, "after the writes");
    pair_close(&pair);
    arena->used = mark;
}

/* Registering is cheap, overlaps, and one registration's end leaves another whole. */
static void registrations(Device *device, Arena *arena)
{
    const unsigned rounds = small_counts() ? 50 : 5000;
    static unsigned char block[65536];
    VIP_MEM_ATTRIBUTES attributes = {device->ptag, VIP_FALSE, VIP_FALSE};
    const PairOptions options = {0};
    size_t mark = arena->used;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1), *recv = arena_descriptor(arena, 1);
    unsigned char *target = arena_bytes(arena, 4096);
    VIP_MEM_HANDLE outer, inner;
    unsigned wrong = 0;
    Pair pair;

    CHECK_RETURN(VipRegisterMem(device->nic, block, sizeof block, &attributes, &outer), VIP_SUCCESS);
    for (unsigned n = 0; n < rounds; n++) {
        unsigned char *start = block + n * 13 % 60000;
        wrong += VipRegisterMem(device->nic, start, 1 + n % 5000, &attributes, &inner) !=
                 VIP_SUCCESS;
        wrong += inner == 0 || inner == outer;
        wrong += VipDeregisterMem(device->nic, start, inner) != VIP_SUCCESS;
    }
    CHECK(wrong == 0, "%u registrations of any alignment (%u wrong)", rounds, wrong);
    pair_open(&pair, device, &options);
    fill(block + 777, 4096, 8);
    describe(recv, target, arena->handle, 4096);
    describe(send, block + 777, outer, 4096);
    CHECK_RETURN(VipPostRecv(pair.server, recv, arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
    sent(pair.client, send);
    received(pair.server, recv);
    CHECK(filled(target, 4096, 8), "the overlapping registration is whole");
    pair_close(&pair);
    CHECK_RETURN(VipDeregisterMem(device->nic, block, outer), VIP_SUCCESS);
    arena->used = mark;
}

/* Handles of one opening of the NIC are good for VIs of another. */
static void two_openings(Device *device, Arena *arena)
{
    const PairOptions options = {0};
    Device second = *device;
    Pair pair;

    REQUIRE_RETURN(VipOpenNic("VINIC", &second.nic), VIP_SUCCESS);
    pair.client = vi_create(&second, &options, false);
    pair.server = vi_create(device, &options, true);
    pair_connect(&pair, device);
    pair_works(&pair, arena, "two openings of one NIC");
    pair_close(&pair);
    CHECK_RETURN(VipCloseNic(second.nic), VIP_SUCCESS);
}

/* Memory of collected descriptors is the program's again. */
static void descriptors_are_let_go(Device *device, Arena *arena)
{
    const PairOptions options = {0};
    size_t mark = arena->used;
    Pair pair;

    pair_open(&pair, device, &options);
    pair_works(&pair, arena, "before");
    VIP_DESCRIPTOR *left = arena_descriptor(arena, 1);
    unsigned char *target = arena_bytes(arena, 64);
    describe(left, target, arena->handle, 64);
    CHECK_RETURN(VipPostRecv(pair.server, left, arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    CHECK(vi_drain(pair.server) == 1, "the posted receive comes back");
    memset(left, 0xA5, sizeof *left);
    memset(target, 0xA5, 64);
    vi_close(pair.client);
    CHECK_RETURN(VipDestroyVi(pair.server), VIP_SUCCESS);
    bool untouched = true;
    for (size_t i = 0; i < 64; i++)
        untouched &= ((unsigned char *)left)[i] == 0xA5 && target[i] == 0xA5;
    CHECK(untouched, "nothing is written to it afterwards");
    arena->used = mark;
}

int main(void)
{
    Device device;
    Arena arena, exposed;

    device_open(&device);
    errors_catch(&device);
    arena_open(&arena, &device, 1 << 20, device.ptag, VIP_FALSE);
    arena_open(&exposed, &device, 1 << 16, device.ptag, VIP_TRUE);
    messages_of_all_sizes(&device, &arena);
    segments(&device, &arena);
    ignored_fields(&device, &arena);
    in_order(&device, &arena);
    completion_queue(&device, &arena, 1);
    completion_queue(&device, &arena, 64);
    waits(&device, &arena);
    rdma_writes(&device, &arena, &exposed);
    registrations(&device, &arena);
    two_openings(&device, &arena);
    descriptors_are_let_go(&device, &arena);
    arena_close(&exposed);
    arena_close(&arena);
    device_close(&device);
    return check_summary();
}
