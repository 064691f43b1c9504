/* Tests of rules between two processes; see docs/spec/vipl-rules.md. */
#define _XOPEN_SOURCE 600

#include "common.h"

#include <stdlib.h>
#include <string.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

/* One end of a connection between two processes. */
typedef struct {
    Nic nic;
    Buffer buffer;
    VIP_VI_HANDLE vi;
} End;

static void end_open(End *end, VIP_RELIABILITY_LEVEL level)
{
    nic_open(&end->nic);
    buffer_open(&end->nic, &end->buffer, 131072, VIP_TRUE);
    end->vi = vi_make(&end->nic, level, VIP_TRUE, NULL);
}

static void end_close(End *end)
{
    vi_close(end->vi);
    buffer_close(&end->nic, &end->buffer);
    nic_close(&end->nic);
}

/* Returns the n-th descriptor of an end; descriptors are at the start of its buffer. */
static VIP_DESCRIPTOR *descriptor_of(End *end, unsigned n)
{
    return (VIP_DESCRIPTOR *)(void *)end->buffer.base + n;
}

#define DATA 65536 /* offset of sent, received and written data */

static void post_receive(End *end, unsigned n)
{
    describe(descriptor_of(end, n), &end->buffer, DATA, 64);
    EXPECT_OK(VipPostRecv(end->vi, descriptor_of(end, n), end->buffer.handle));
}

/* Posts a receive for a last message, whose data is not used and overlaps no other data. */
static void post_last_receive(End *end)
{
    describe(descriptor_of(end, 3), &end->buffer, DATA + 8192, 64);
    EXPECT_OK(VipPostRecv(end->vi, descriptor_of(end, 3), end->buffer.handle));
}

static void send_bytes(End *end, const void *bytes, VIP_ULONG count)
{
    memcpy(end->buffer.base + DATA + 1024, bytes, count);
    describe(descriptor_of(end, 1), &end->buffer, DATA + 1024, count);
    EXPECT_OK(VipPostSend(end->vi, descriptor_of(end, 1), end->buffer.handle));
    sent(end->vi);
}

/* Address and handle of a buffer, sent in a first message. */
typedef struct {
    VIP_UINT64 address;
    VIP_MEM_HANDLE handle;
} RemoteBuffer;

static void send_buffer_address(End *end)
{
    RemoteBuffer target;

    memset(&target, 0, sizeof target);
    target.address = (VIP_UINT64)(size_t)end->buffer.base;
    target.handle = end->buffer.handle;
    send_bytes(end, &target, sizeof target);
}

static RemoteBuffer receive_buffer_address(End *end)
{
    RemoteBuffer target;

    received(end->vi);
    memcpy(&target, end->buffer.base + DATA, sizeof target);
    return target;
}

static void write_bytes(End *end, const RemoteBuffer *target, VIP_ULONG offset, VIP_ULONG bytes)
{
    describe_write(descriptor_of(end, 2), &end->buffer, DATA, bytes,
                   (char *)(size_t)target->address + offset, target->handle);
    EXPECT_OK(VipPostSend(end->vi, descriptor_of(end, 2), end->buffer.handle));
    sent(end->vi);
}

int rule_2_the_highest_level_works(void)
{
    pid_t child = fork_child();
    VIP_RELIABILITY_LEVEL level = VIP_SERVICE_RELIABLE_RECEPTION;
    End end;

    nic_open(&end.nic);
    while ((end.nic.attributes.ReliabilityLevelSupport & level) == 0)
        level >>= 1;
    nic_close(&end.nic);
    EXPECT(level != 0);
    end_open(&end, level);
    post_receive(&end, 0);
    if (child == 0) {
        connect_client(&end.nic, end.vi, discriminator());
        send_bytes(&end, "ping", 5);
        received(end.vi);
        EXPECT(strcmp(end.buffer.base + DATA, "pong") == 0);
        end_close(&end);
        _exit(0);
    }
    connect_server(&end.nic, end.vi, discriminator());
    received(end.vi);
    EXPECT(strcmp(end.buffer.base + DATA, "ping") == 0);
    send_bytes(&end, "pong", 5);
    wait_for_child(child);
    end_close(&end);
    return 0;
}

#define ROUNDS 50
#define BLOCK 4096

/* Writes blocks filled with the number of the round; the last word is the flag. */
static void write_rounds(End *end, const RemoteBuffer *target)
{
    VIP_UINT64 *words = (VIP_UINT64 *)(void *)(end->buffer.base + DATA);
    VIP_UINT64 round;
    size_t i;

    for (round = 1; round <= ROUNDS; round++) {
        for (i = 0; i < BLOCK / sizeof *words; i++)
            words[i] = round;
        write_bytes(end, target, BLOCK * (VIP_ULONG)(round % 8), BLOCK);
    }
}

/* One-sided operations: a target that polls a word and makes no call. */
static int one_sided(void)
{
    pid_t child = fork_child();
    volatile VIP_UINT64 *words;
    VIP_UINT64 round;
    RemoteBuffer target;
    size_t i;
    End end;

    end_open(&end, VIP_SERVICE_RELIABLE_DELIVERY);
    if (child == 0) {
        post_receive(&end, 0);
        connect_client(&end.nic, end.vi, discriminator());
        target = receive_buffer_address(&end);
        target.address += 16384;
        post_last_receive(&end);
        write_rounds(&end, &target);
        /* Until the target has checked the data. */
        received(end.vi);
        end_close(&end);
        _exit(0);
    }
    connect_server(&end.nic, end.vi, discriminator());
    send_buffer_address(&end);
    /* The last block of the last round; eight blocks are used in turn. */
    words = (volatile VIP_UINT64 *)(void *)(end.buffer.base + 16384 + BLOCK * (ROUNDS % 8));
    while (words[BLOCK / sizeof *words - 1] != ROUNDS)
        ;
    for (i = 0; i < BLOCK / sizeof *words; i++)
        EXPECT(words[i] == ROUNDS);
    for (round = ROUNDS - 7; round < ROUNDS; round++) {
        words = (volatile VIP_UINT64 *)(void *)(end.buffer.base + 16384 + BLOCK * (round % 8));
        for (i = 0; i < BLOCK / sizeof *words; i++)
            EXPECT(words[i] == round);
    }
    send_bytes(&end, "done", 5);
    wait_for_child(child);
    end_close(&end);
    return 0;
}

int rule_5_the_target_makes_no_call(void)
{
    return one_sided();
}

/* Reads a block while it is written repeatedly: words are atomic, and the last word is written
 * last. */
int rule_6_last_word_is_visible_last(void)
{
    pid_t child = fork_child();
    volatile VIP_UINT64 *words;
    VIP_UINT64 *source, round, flag, word;
    RemoteBuffer target;
    size_t i;
    End end;

    end_open(&end, VIP_SERVICE_RELIABLE_DELIVERY);
    if (child == 0) {
        post_receive(&end, 0);
        connect_client(&end.nic, end.vi, discriminator());
        target = receive_buffer_address(&end);
        post_last_receive(&end);
        source = (VIP_UINT64 *)(void *)(end.buffer.base + DATA);
        for (round = 1; round <= 2000; round++) {
            for (i = 0; i < BLOCK / sizeof *source; i++)
                source[i] = round << 32 | round;
            write_bytes(&end, &target, 16384, BLOCK);
        }
        received(end.vi);
        end_close(&end);
        _exit(0);
    }
    connect_server(&end.nic, end.vi, discriminator());
    send_buffer_address(&end);
    words = (volatile VIP_UINT64 *)(void *)(end.buffer.base + 16384);
    do {
        flag = words[BLOCK / sizeof *words - 1];
        __sync_synchronize();
        for (i = 0; i < BLOCK / sizeof *words; i++) {
            word = words[i];
            EXPECT(word >> 32 == (word & 0xFFFFFFFF) && word >= flag);
        }
    } while (flag >> 32 != 2000);
    send_bytes(&end, "done", 5);
    wait_for_child(child);
    end_close(&end);
    return 0;
}

int rule_7_fields_of_posted_receives(void)
{
    pid_t child = fork_child();
    VIP_DESCRIPTOR *descriptor;
    End end;

    end_open(&end, VIP_SERVICE_RELIABLE_DELIVERY);
    descriptor = descriptor_of(&end, 0);
    describe(descriptor, &end.buffer, DATA, 64);
    if (child == 0) {
        post_last_receive(&end);
        connect_client(&end.nic, end.vi, discriminator());
        descriptor->CS.Control |= VIP_CONTROL_IMMEDIATE;
        descriptor->CS.ImmediateData = 0xFEDCBA98;
        EXPECT_OK(VipPostSend(end.vi, descriptor, end.buffer.handle));
        sent(end.vi);
        received(end.vi);
        end_close(&end);
        _exit(0);
    }
    descriptor->CS.Control = VIP_CONTROL_IMMEDIATE | VIP_CONTROL_QFENCE;
    descriptor->CS.Next.AddressBits = ~(VIP_UINT64)0;
    descriptor->CS.NextHandle = 0x12345678;
    EXPECT_OK(VipPostRecv(end.vi, descriptor, end.buffer.handle));
    connect_server(&end.nic, end.vi, discriminator());
    EXPECT(received(end.vi) == descriptor);
    EXPECT((descriptor->CS.Status & VIP_STATUS_IMMEDIATE) != 0);
    EXPECT(descriptor->CS.ImmediateData == 0xFEDCBA98);
    send_bytes(&end, "done", 5);
    wait_for_child(child);
    end_close(&end);
    return 0;
}

#define RECEIVES 200

int rule_8_receives_before_connecting(void)
{
    pid_t child = fork_child();
    VIP_DESCRIPTOR *descriptor;
    VIP_VI_HANDLE from;
    VIP_BOOLEAN is_recv;
    VIP_CQ_HANDLE cq;
    unsigned n;
    End end;

    nic_open(&end.nic);
    buffer_open(&end.nic, &end.buffer, 131072, VIP_FALSE);
    EXPECT_OK(VipCreateCQ(end.nic.nic, 1, &cq));
    end.vi = vi_make(&end.nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, child == 0 ? NULL : cq);
    if (child == 0) {
        post_receive(&end, 0);
        connect_client(&end.nic, end.vi, discriminator());
        for (n = 0; n < RECEIVES; n++)
            send_bytes(&end, &n, sizeof n);
        received(end.vi);
        vi_close(end.vi);
        _exit(0);
    }
    for (n = 0; n < RECEIVES; n++)
        post_receive(&end, 4 + n);
    connect_server(&end.nic, end.vi, discriminator());
    for (n = 0; n < RECEIVES; n++) {
        /* Every second one after its CQ entry, the others directly from the queue. */
        if (n % 2 == 0)
            EXPECT_OK(VipCQWait(cq, WAIT_MS, &from, &is_recv));
        while (VipRecvDone(end.vi, &descriptor) == VIP_NOT_DONE)
            ;
        EXPECT(descriptor == descriptor_of(&end, 4 + n));
        EXPECT((descriptor->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
    }
    send_bytes(&end, "done", 5);
    wait_for_child(child);
    vi_close(end.vi);
    /* The entries of the others are still in the CQ. */
    for (n = 0; n < RECEIVES / 2; n++)
        EXPECT_OK(VipCQDone(cq, &from, &is_recv));
    EXPECT(VipCQDone(cq, &from, &is_recv) == VIP_NOT_DONE);
    EXPECT_OK(VipDestroyCQ(cq));
    buffer_close(&end.nic, &end.buffer);
    nic_close(&end.nic);
    return 0;
}

int rule_9_no_listener(void)
{
    pid_t child = fork_child();
    VIP_NET_ADDRESS *local, *remote;
    VIP_VI_ATTRIBUTES attributes;
    time_t begun;
    unsigned n;
    End end;

    end_open(&end, VIP_SERVICE_RELIABLE_DELIVERY);
    if (child == 0) {
        /* A second program of the host, which listens for another discriminator. */
        connect_server(&end.nic, end.vi, discriminator());
        end_close(&end);
        _exit(0);
    }
    local = address_make(&end.nic, "client");
    remote = address_make(&end.nic, "no listener");
    begun = time(NULL);
    for (n = 0; n < 2000; n++)
        EXPECT(VipConnectRequest(end.vi, local, remote, VIP_INFINITE, &attributes) ==
               VIP_NO_MATCH);
    EXPECT(time(NULL) - begun <= 10);
    free(local);
    free(remote);
    connect_client(&end.nic, end.vi, discriminator());
    wait_for_child(child);
    end_close(&end);
    return 0;
}

int rule_10_equal_peer_addresses(void)
{
    pid_t child = fork_child();
    VIP_NET_ADDRESS *both;
    VIP_VI_ATTRIBUTES attributes;
    End end;

    end_open(&end, VIP_SERVICE_RELIABLE_DELIVERY);
    both = address_make(&end.nic, discriminator());
    post_receive(&end, 0);
    EXPECT_OK(VipConnectPeerRequest(end.vi, both, both, WAIT_MS));
    EXPECT_OK(VipConnectPeerWait(end.vi, &attributes));
    send_bytes(&end, "peer", 5);
    received(end.vi);
    EXPECT(strcmp(end.buffer.base + DATA, "peer") == 0);
    free(both);
    if (child == 0)
        _exit(0);
    wait_for_child(child);
    end_close(&end);
    return 0;
}

int rule_14_exit_without_teardown(void)
{
    VIP_DESCRIPTOR *descriptor;
    unsigned run;
    pid_t child;
    End end;

    for (run = 0; run < 3; run++) {
        child = fork_child();
        end_open(&end, VIP_SERVICE_RELIABLE_DELIVERY);
        errors_count(&end.nic);
        post_receive(&end, 0);
        post_receive(&end, 1);
        if (child == 0) {
            connect_client(&end.nic, end.vi, discriminator());
            describe(descriptor_of(&end, 2), &end.buffer, DATA, 64);
            EXPECT_OK(VipPostSend(end.vi, descriptor_of(&end, 2), end.buffer.handle));
            sent(end.vi);
            /* Exits without teardown. */
            _exit(0);
        }
        connect_server(&end.nic, end.vi, discriminator());
        EXPECT(received(end.vi) == descriptor_of(&end, 0));
        wait_for_child(child);
        error_await(VIP_ERROR_CONN_LOST);
        EXPECT(VipRecvWait(end.vi, WAIT_MS, &descriptor) == VIP_DESCRIPTOR_ERROR);
        EXPECT(descriptor == descriptor_of(&end, 1));
        EXPECT((descriptor->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) != 0);
        end_close(&end);
    }
    return 0;
}

int rule_17_waits_sleep(void)
{
    pid_t child = fork_child();
    struct timespec half = {0, 500000000};
    VIP_DESCRIPTOR *descriptor;
    clock_t before, after;
    struct tms begin, end_of;
    End end;

    end_open(&end, VIP_SERVICE_RELIABLE_DELIVERY);
    if (child == 0) {
        connect_client(&end.nic, end.vi, discriminator());
        nanosleep(&half, NULL); /* longer than both waits of the peer */
        nanosleep(&half, NULL);
        send_bytes(&end, "late", 5);
        post_receive(&end, 0);
        received(end.vi);
        end_close(&end);
        _exit(0);
    }
    post_receive(&end, 0);
    connect_server(&end.nic, end.vi, discriminator());
    before = times(&begin);
    EXPECT(VipRecvWait(end.vi, 300, &descriptor) == VIP_TIMEOUT && descriptor == NULL);
    after = times(&end_of);
    EXPECT(after - before >= 29 * sysconf(_SC_CLK_TCK) / 100);
    EXPECT(end_of.tms_utime + end_of.tms_stime - begin.tms_utime - begin.tms_stime <
           15 * sysconf(_SC_CLK_TCK) / 100);
    EXPECT_OK(VipRecvWait(end.vi, VIP_INFINITE, &descriptor));
    EXPECT(descriptor == descriptor_of(&end, 0));
    send_bytes(&end, "done", 5);
    wait_for_child(child);
    end_close(&end);
    return 0;
}
