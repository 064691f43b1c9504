#include "transfers.h"

#include <string.h>

#include "suite.h"

void messages_of_all_sizes(void)
{
    static const size_t sizes[] = {0,    1,    3,    4,    63,   64,    1423,  1424,
                                   1425, 2047, 2048, 2112, 2113, 4096, 65535, 131072};
    const PairOptions options = {.reliability = test_level(), .max_transfer_bytes = 131072};
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *recv = arena_descriptor(&remote_arena, 1);
    unsigned char *data = arena_bytes(&local_arena, 131072),
                  *target = arena_bytes(&remote_arena, 131072);
    Pair pair;

    pair_open(&pair, &options);
    for (unsigned n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        const bool immediate = n % 2 == 1;

        fill(data, sizes[n], n);
        memset(target, 0, 131072);
        describe(recv, target, remote_arena.handle, 131072);
        describe(send, data, local_arena.handle, sizes[n]);
        if (immediate)
            with_immediate(send, 0xC0DE0000u + n);
        CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
        CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
        VIP_UINT32 status = sent(pair.client, send);
        CHECK((status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_SEND && send->CS.Length == sizes[n],
              "%zu bytes: operation and length of the send", sizes[n]);
        status = received(pair.server, recv);
        CHECK((status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RECEIVE && recv->CS.Length == sizes[n],
              "%zu bytes: operation and length of the receive", sizes[n]);
        CHECK(((status & VIP_STATUS_IMMEDIATE) != 0) == immediate &&
                  (!immediate || recv->CS.ImmediateData == 0xC0DE0000u + n),
              "%zu bytes: immediate data %s", sizes[n], immediate ? "arrives" : "is absent");
        CHECK(filled(target, sizes[n], n), "%zu bytes: all bytes are correct", sizes[n]);
    }
    pair_close(&pair);
}

/* Gather and scatter over many segments of uneven and zero length, and over no segments. */
void many_segments(void)
{
    enum { MANY = 252 };
    const PairOptions options = {.reliability = test_level()};
    size_t total = 0, offset = 0;
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, MANY),
                   *recv = arena_descriptor(&remote_arena, MANY);
    unsigned char *data = arena_bytes(&local_arena, 65536),
                  *target = arena_bytes(&remote_arena, 65536);
    Pair pair;

    pair_open(&pair, &options);
    for (unsigned n = 0; n < MANY; n++) {
        describe_segment(send, n, data + total, local_arena.handle, n % 7);
        total += n % 7;
    }
    for (unsigned n = 0; n < MANY - 1; n++) {
        describe_segment(recv, n, target + offset, remote_arena.handle, n % 5);
        offset += n % 5;
    }
    describe_segment(recv, MANY - 1, target + offset, remote_arena.handle, 1000);
    fill(data, total, 9);
    send->CS.SegCount = recv->CS.SegCount = MANY;
    send->CS.Length = (VIP_UINT32)total;
    CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
    sent(pair.client, send);
    received(pair.server, recv);
    CHECK(recv->CS.Length == total && filled(target, total, 9), "252 segments, %zu bytes", total);

    memset(send, 0, sizeof *send);
    memset(recv, 0, sizeof *recv);
    with_immediate(send, 0xFFFFFFFFu);
    CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
    sent(pair.client, send);
    VIP_UINT32 status = received(pair.server, recv);
    CHECK(recv->CS.Length == 0 && (status & VIP_STATUS_IMMEDIATE) &&
              recv->CS.ImmediateData == 0xFFFFFFFFu,
          "no segments, immediate data only");
    pair_close(&pair);
}

/* Bits and fields that are ignored in posted descriptors. */
void ignored_fields(void)
{
    const PairOptions options = {.reliability = test_level()};
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *recv = arena_descriptor(&remote_arena, 1);
    unsigned char *data = arena_bytes(&local_arena, 64), *target = arena_bytes(&remote_arena, 64);
    Pair pair;

    pair_open(&pair, &options);
    fill(data, 64, 3);
    describe(recv, target, remote_arena.handle, 64);
    recv->CS.Control = VIP_CONTROL_IMMEDIATE | VIP_CONTROL_QFENCE;
    recv->CS.Next.AddressBits = 0xDEADBEEFDEADBEEFull;
    recv->CS.NextHandle = 0xABADCAFE;
    recv->CS.Length = 0x12345678;
    recv->CS.Status = 0xFFFFFFFF;
    describe(send, data, local_arena.handle, 64);
    send->CS.Control |= VIP_CONTROL_QFENCE;
    send->CS.Next.AddressBits = 1;
    send->CS.NextHandle = 2;
    CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
    sent(pair.client, send);
    VIP_UINT32 status = received(pair.server, recv);
    CHECK((status & VIP_STATUS_ERROR_MASK) == 0 && !(status & VIP_STATUS_IMMEDIATE) &&
              recv->CS.Length == 64 && filled(target, 64, 3),
          "Control, Next and Length of a posted receive are ignored");
    pair_close(&pair);
}

/* A receive may be longer than the VI's MaxTransferSize, which limits messages (5.2, status bit
 * 3). */
void receives_longer_than_the_transfer_size(void)
{
    enum { MAX_BYTES = 1024 };
    const PairOptions options = {.reliability = test_level(), .max_transfer_bytes = MAX_BYTES};
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *recv = arena_descriptor(&remote_arena, 1);
    unsigned char *data = arena_bytes(&local_arena, MAX_BYTES);
    unsigned char *target = arena_bytes(&remote_arena, 2 * MAX_BYTES);
    Pair pair;

    pair_open(&pair, &options);
    fill(data, MAX_BYTES, 9);
    describe(recv, target, remote_arena.handle, 2 * MAX_BYTES);
    CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
    describe(send, data, local_arena.handle, MAX_BYTES);
    CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
    sent(pair.client, send);
    VIP_UINT32 status = received(pair.server, recv);
    CHECK((status & VIP_STATUS_ERROR_MASK) == 0 && recv->CS.Length == MAX_BYTES &&
              filled(target, MAX_BYTES, 9),
          "a receive of %d bytes accepts a message of %d: 0x%08X", 2 * MAX_BYTES, MAX_BYTES,
          status);
    pair_close(&pair);
}

/* Polls until the queue returns a descriptor. */
static VIP_RETURN spin(VIP_RETURN (*collect)(VIP_VI_HANDLE, VIP_DESCRIPTOR **), VIP_VI_HANDLE vi,
                       VIP_DESCRIPTOR **done)
{
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    VIP_RETURN result;

    do {
        result = collect(vi, done);
    } while (result == VIP_NOT_DONE && now_ms() < deadline_ms);
    return result;
}

static VIP_RETURN send_done(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **done)
{
    return VipSendDone(vi, done);
}

static VIP_RETURN recv_done(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **done)
{
    return VipRecvDone(vi, done);
}

/* Many messages in flight: order is kept, nothing is lost. */
void in_order(void)
{
    enum { DEPTH = 16, BYTES = 256 };
    const unsigned messages = small_counts() || has_remote_process() ? 64 : 4096;
    const PairOptions options = {.reliability = test_level()};
    VIP_DESCRIPTOR *sends[DEPTH], *recvs[DEPTH];
    unsigned char *data[DEPTH], *target[DEPTH];
    unsigned wrong = 0;
    Pair pair;

    pair_open(&pair, &options);
    for (unsigned n = 0; n < DEPTH; n++) {
        sends[n] = arena_descriptor(&local_arena, 1);
        recvs[n] = arena_descriptor(&remote_arena, 1);
        data[n] = arena_bytes(&local_arena, BYTES);
        target[n] = arena_bytes(&remote_arena, BYTES);
    }
    for (unsigned first = 0; first < messages; first += DEPTH) {
        for (unsigned n = 0; n < DEPTH; n++) {
            describe(recvs[n], target[n], remote_arena.handle, BYTES);
            wrong += VipPostRecv(pair.server, recvs[n], remote_arena.handle) != VIP_SUCCESS;
        }
        for (unsigned n = 0; n < DEPTH; n++) {
            fill(data[n], BYTES, first + n);
            describe(sends[n], data[n], local_arena.handle, BYTES);
            wrong += VipPostSend(pair.client, sends[n], local_arena.handle) != VIP_SUCCESS;
        }
        for (unsigned n = 0; n < DEPTH; n++) {
            VIP_DESCRIPTOR *done = NULL;
            wrong += spin(send_done, pair.client, &done) != VIP_SUCCESS || done != sends[n];
            wrong += spin(recv_done, pair.server, &done) != VIP_SUCCESS || done != recvs[n] ||
                     !filled(target[n], BYTES, first + n);
        }
    }
    CHECK(wrong == 0, "%u messages, 16 at a time: in order and complete (%u wrong)", messages,
          wrong);
    pair_close(&pair);
}

/* RDMA writes: no completion at the target without immediate data, one with it; flags may be
 * polled. */
void rdma_writes(void)
{
    enum { BYTES = 20000 };
    static const size_t sizes[] = {0, 1, 7, 64, 2113, BYTES};
    const PairOptions options = {.reliability = test_level(), .server_rdma_write = VIP_TRUE};
    VIP_DESCRIPTOR *write = arena_descriptor(&local_arena, 2),
                   *recv = arena_descriptor(&remote_arena, 1), *done;
    unsigned char *data = arena_bytes(&local_arena, BYTES), *target = exposed.base + 24;
    Pair pair;

    pair_open(&pair, &options);
    fill(data, BYTES, 5);
    describe_write(write, data, local_arena.handle, BYTES, target, exposed.handle);
    CHECK_RETURN(VipPostSend(pair.client, write, local_arena.handle), VIP_SUCCESS);
    VIP_UINT32 status = sent(pair.client, write);
    CHECK((status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RDMA_WRITE, "operation of the write");
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    const volatile unsigned char *last = target + BYTES - 1;
    unsigned char wanted[BYTES];
    fill(wanted, BYTES, 5);
    while (*last != wanted[BYTES - 1] && now_ms() < deadline_ms) {
    }
    CHECK(filled(target, BYTES, 5),
          "all bytes have arrived when the last has, without a call of the target");
    CHECK(exposed.base[23] == 0 && target[BYTES] == 0, "and no other byte is written");
    CHECK_RETURN(VipRecvDone(pair.server, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == NULL, "a write without immediate data consumes no descriptor");

    for (unsigned n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        const size_t bytes = sizes[n];

        describe(recv, exposed.base + 32768, exposed.handle, 0);
        CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
        fill(data, bytes, 6 + n);
        describe_write(write, data, local_arena.handle, bytes, target, exposed.handle);
        with_immediate(write, n * 0x89ABCDEFu);
        CHECK_RETURN(VipPostSend(pair.client, write, local_arena.handle), VIP_SUCCESS);
        sent(pair.client, write);
        status = received(pair.server, recv);
        CHECK((status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_REMOTE_RDMA_WRITE &&
                  (status & VIP_STATUS_IMMEDIATE) && recv->CS.ImmediateData == n * 0x89ABCDEFu &&
                  recv->CS.Length == bytes && filled(target, bytes, 6 + n),
              "a write of %zu bytes with immediate data completes a receive", bytes);
    }

    describe_write(write, data, local_arena.handle, 0, target, exposed.handle);
    CHECK_RETURN(VipPostSend(pair.client, write, local_arena.handle), VIP_SUCCESS);
    CHECK((sent(pair.client, write) & VIP_STATUS_ERROR_MASK) == 0, "a write of 0 bytes is legal");
    pair_works(&pair, "after the writes");
    pair_close(&pair);
}
