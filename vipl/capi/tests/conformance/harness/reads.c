#include "reads.h"

#include <stdint.h>
#include <string.h>

#include "faults.h"
#include "suite.h"

enum { UNTOUCHED = 0xEE };

static PairOptions read_options(void)
{
    return (PairOptions){.reliability = test_level(),
                         .server_rdma_write = VIP_TRUE,
                         .server_rdma_read = VIP_TRUE};
}

/* Registers the exposed region a second time, for reads only. */
static VIP_MEM_HANDLE register_readable(VIP_PROTECTION_HANDLE tag)
{
    VIP_MEM_ATTRIBUTES attributes = {tag, VIP_FALSE, VIP_TRUE};
    VIP_MEM_HANDLE handle = 0;

    REQUIRE_RETURN(VipRegisterMem(remote_device.nic, exposed.base, exposed.bytes, &attributes,
                                  &handle),
                   VIP_SUCCESS);
    return handle;
}

static void deregister_readable(VIP_MEM_HANDLE handle)
{
    CHECK_RETURN(VipDeregisterMem(remote_device.nic, exposed.base, handle), VIP_SUCCESS);
}

static bool all_are(const unsigned char *data, size_t bytes, unsigned char value)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != value)
            return false;
    }
    return true;
}

/* Reads of any length and offset: every byte and no other, without a call of the target's
 * program. */
void rdma_reads(void)
{
    static const struct {
        size_t at, bytes;
    } reads[] = {{0, 0},    {0, 1},       {8, 8},      {11, 8},   {1, 2095},
                 {3, 2096}, {0, 2097}, {4095, 4097}, {13, 65523}, {0, 65536}};
    const PairOptions options = read_options();
    const VIP_MEM_HANDLE readable = register_readable(remote_device.ptag);
    VIP_DESCRIPTOR *read = arena_descriptor(&local_arena, 2),
                   *recv = arena_descriptor(&remote_arena, 0), *done;
    unsigned char *target = arena_bytes(&local_arena, 65537);
    Pair pair;

    pair_open(&pair, &options);
    CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
    fill(exposed.base, exposed.bytes, 21);
    for (unsigned n = 0; n < sizeof reads / sizeof reads[0]; n++) {
        const size_t bytes = reads[n].bytes;

        memset(target, UNTOUCHED, 65537);
        describe_read(read, target, local_arena.handle, bytes, exposed.base + reads[n].at,
                      readable);
        /* Reads have no immediate data: the bit and the field are ignored. */
        if (n % 2 == 1)
            with_immediate(read, 0xDEAD);
        CHECK_RETURN(VipPostSend(pair.client, read, local_arena.handle), VIP_SUCCESS);
        const VIP_UINT32 status = sent(pair.client, read);
        CHECK((status & VIP_STATUS_ERROR_MASK) == 0 && !(status & VIP_STATUS_IMMEDIATE) &&
                  (status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RDMA_READ &&
                  read->CS.Length == bytes,
              "%zu bytes: status and length of the read, 0x%08X", bytes, status);
        CHECK(memcmp(target, exposed.base + reads[n].at, bytes) == 0 && target[bytes] == UNTOUCHED,
              "%zu bytes at %zu: they are read, and no other", bytes, reads[n].at);
    }
    CHECK(VipRecvDone(pair.server, &done) == VIP_NOT_DONE,
          "a read consumes no descriptor of the target");
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    received(pair.server, recv);
    pair_close(&pair);
    deregister_readable(readable);
}

/* Reads scattered over segments of uneven and zero length; and a read without data segments. */
void reads_of_many_segments(void)
{
    enum { MANY = 251 };
    const PairOptions options = read_options();
    const VIP_MEM_HANDLE readable = register_readable(remote_device.ptag);
    VIP_DESCRIPTOR *read = arena_descriptor(&local_arena, MANY + 1);
    unsigned char *target = arena_bytes(&local_arena, 4096);
    size_t total = 0;
    Pair pair;

    pair_open(&pair, &options);
    fill(exposed.base, exposed.bytes, 4);
    describe_read(read, target, local_arena.handle, 0, exposed.base, readable);
    /* A byte between two segments must not be written. */
    memset(target, UNTOUCHED, 4096);
    for (unsigned n = 0; n < MANY; n++) {
        describe_segment(read, n + 1, target + total + n, local_arena.handle, n % 7);
        total += n % 7;
    }
    read->CS.SegCount = MANY + 1;
    read->CS.Length = (VIP_UINT32)total;
    CHECK_RETURN(VipPostSend(pair.client, read, local_arena.handle), VIP_SUCCESS);
    sent(pair.client, read);
    size_t at = 0, wrong = 0;
    for (unsigned n = 0; n < MANY; n++) {
        wrong += memcmp(target + at + n, exposed.base + at, n % 7) != 0;
        at += n % 7;
        wrong += target[at + n] != UNTOUCHED;
    }
    CHECK(read->CS.Length == total && wrong == 0, "251 segments, %zu bytes", total);

    describe_read(read, target, local_arena.handle, 0, exposed.base, readable);
    read->CS.SegCount = 1;
    CHECK_RETURN(VipPostSend(pair.client, read, local_arena.handle), VIP_SUCCESS);
    CHECK((sent(pair.client, read) & VIP_STATUS_ERROR_MASK) == 0 && read->CS.Length == 0,
          "a read of 0 bytes is legal");
    pair_close(&pair);
    deregister_readable(readable);
}

/* Reads, sends and writes complete in the order of posting, on the queue and on its CQ. */
void reads_complete_in_order(void)
{
    enum { ROUNDS = 4, KINDS = 3, POSTED = ROUNDS * KINDS, BYTES = 20000, SHORT_BYTES = 64 };
    const PairOptions options = read_options();
    const VIP_MEM_HANDLE readable = register_readable(remote_device.ptag);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &options);
    VIP_DESCRIPTOR *posted[POSTED], *recvs[ROUNDS], *done;
    unsigned char *target = arena_bytes(&local_arena, BYTES),
                  *data = arena_bytes(&local_arena, SHORT_BYTES);
    unsigned char *received_into = arena_bytes(&remote_arena, SHORT_BYTES);
    VIP_CQ_HANDLE cq;
    Pair pair;

    REQUIRE_RETURN(VipCreateCQ(local_device.nic, POSTED, &cq), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreateVi(local_device.nic, &attributes, cq, NULL, &pair.client), VIP_SUCCESS);
    pair.server = server_create(&options);
    pair_connect(&pair);
    fill(exposed.base, BYTES, 9);
    for (unsigned n = 0; n < ROUNDS; n++) {
        recvs[n] = arena_descriptor(&remote_arena, 1);
        describe(recvs[n], received_into, remote_arena.handle, SHORT_BYTES);
        CHECK_RETURN(VipPostRecv(pair.server, recvs[n], remote_arena.handle), VIP_SUCCESS);
    }
    for (unsigned n = 0; n < POSTED; n++) {
        posted[n] = arena_descriptor(&local_arena, 2);
        switch (n % KINDS) {
        case 0: describe_read(posted[n], target, local_arena.handle, BYTES, exposed.base,
                              readable); break;
        case 1: describe(posted[n], data, local_arena.handle, SHORT_BYTES); break;
        default:
            describe_write(posted[n], data, local_arena.handle, SHORT_BYTES, exposed.base + BYTES,
                           exposed.handle);
        }
        CHECK_RETURN(VipPostSend(pair.client, posted[n], local_arena.handle), VIP_SUCCESS);
    }
    for (unsigned n = 0; n < POSTED; n++) {
        VIP_VI_HANDLE vi = NULL;
        VIP_BOOLEAN recv_queue = VIP_TRUE;
        CHECK_RETURN(VipCQWait(cq, WAIT_MS, &vi, &recv_queue), VIP_SUCCESS);
        CHECK(vi == pair.client && recv_queue == VIP_FALSE, "entry %u is of the send queue", n);
        CHECK(VipSendDone(pair.client, &done) == VIP_SUCCESS && done == posted[n],
              "descriptor %u is the next", n);
        CHECK(n % KINDS != 0 || filled(target, BYTES, 9), "and its data has arrived");
    }
    for (unsigned n = 0; n < ROUNDS; n++)
        received(pair.server, recvs[n]);
    pair_close(&pair);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    deregister_readable(readable);
}

/* A fenced write waits for the reads before it, which read the old data. */
void fenced_behind_reads(void)
{
    enum { ROUNDS = 10, READS = 3, BYTES = 60000 };
    const PairOptions options = read_options();
    const VIP_MEM_HANDLE readable = register_readable(remote_device.ptag);
    VIP_DESCRIPTOR *reads[READS], *write = arena_descriptor(&local_arena, 2);
    unsigned char *targets[READS], *data = arena_bytes(&local_arena, BYTES);
    Pair pair;

    for (unsigned n = 0; n < READS; n++) {
        reads[n] = arena_descriptor(&local_arena, 2);
        targets[n] = arena_bytes(&local_arena, BYTES);
    }
    pair_open(&pair, &options);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned n = 0; n < READS; n++) {
            describe_read(reads[n], targets[n], local_arena.handle, BYTES, exposed.base, readable);
            CHECK_RETURN(VipPostSend(pair.client, reads[n], local_arena.handle), VIP_SUCCESS);
        }
        memset(data, (int)round + 1, BYTES);
        describe_write(write, data, local_arena.handle, BYTES, exposed.base, exposed.handle);
        write->CS.Control |= VIP_CONTROL_QFENCE;
        CHECK_RETURN(VipPostSend(pair.client, write, local_arena.handle), VIP_SUCCESS);
        for (unsigned n = 0; n < READS; n++) {
            sent(pair.client, reads[n]);
            CHECK(all_are(targets[n], BYTES, (unsigned char)round),
                  "round %u: read %u does not see the later write", round, n);
        }
        CHECK((sent(pair.client, write) & VIP_STATUS_ERROR_MASK) == 0, "the write completes");
    }
    pair_close(&pair);
    deregister_readable(readable);
}

/* --- reads that are refused ------------------------------------------------------------------ */

typedef struct {
    const char *what;
    bool vi_allows;
    size_t offset, bytes; /* of the read, in the exposed region */
    VIP_MEM_HANDLE handle;
} Refusal;

static void refused_read(const Refusal *refusal)
{
    PairOptions options = read_options();
    const size_t mark = local_arena.used, remote_mark = remote_arena.used;
    VIP_DESCRIPTOR *read = arena_descriptor(&local_arena, 2),
                   *next = arena_descriptor(&local_arena, 1);
    VIP_DESCRIPTOR *recv = arena_descriptor(&remote_arena, 1);
    unsigned char *target = arena_bytes(&local_arena, 64);
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    errors_clear();
    options.server_rdma_read = refusal->vi_allows ? VIP_TRUE : VIP_FALSE;
    memset(target, UNTOUCHED, 64);
    pair_open(&pair, &options);
    describe(recv, arena_bytes(&remote_arena, 64), remote_arena.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
    describe_read(read, target, local_arena.handle, refusal->bytes, exposed.base + refusal->offset,
                  refusal->handle);
    describe(next, arena_bytes(&local_arena, 64), local_arena.handle, 64);
    CHECK_RETURN(VipPostSend(pair.client, read, local_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, next, local_arena.handle), VIP_SUCCESS);
    VIP_UINT32 status = sent(pair.client, read);
    CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_RDMA_PROT_ERROR && read->CS.Length == 0,
          "%s: the read has a protection error, 0x%08X", refusal->what, status);
    CHECK(all_are(target, 64, UNTOUCHED), "%s: nothing is read", refusal->what);
    status = sent(pair.client, next);
    CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
          "%s: the next send is flushed, 0x%08X", refusal->what, status);
    row_seen("read_refused", "sender");
    if (expect_error(pair.server, VIP_ERROR_RDMAR_PROT, &error))
        CHECK(error.NicHandle == remote_device.nic && error.ResourceCode == VIP_RESOURCE_VI &&
                  error.OpCode == VIP_STATUS_OP_RDMA_READ && error.CQHandle == NULL &&
                  error.DescriptorPtr == NULL,
              "%s: the error names the NIC, the VI and the operation", refusal->what);
    status = received(pair.server, recv);
    CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
          "%s: the receive of the server is flushed, 0x%08X", refusal->what, status);
    check_pair_after_error(&pair, refusal->what);
    row_seen("read_refused", "receiver");
    local_arena.used = mark;
    remote_arena.used = remote_mark;
}

void read_refused(void)
{
    VIP_PROTECTION_HANDLE other_tag;

    REQUIRE_RETURN(VipCreatePtag(remote_device.nic, &other_tag), VIP_SUCCESS);
    const VIP_MEM_HANDLE readable = register_readable(remote_device.ptag),
                         foreign = register_readable(other_tag);
    const Refusal all[] = {
        {"one byte past the end", true, exposed.bytes - 63, 64, readable},
        {"many bytes past the end", true, exposed.bytes - 64, 4096, readable},
        {"one byte before the start", true, (size_t)-1, 64, readable},
        {"an address that wraps around", true, (size_t)-8 - (size_t)(uintptr_t)exposed.base, 64,
         readable},
        {"0 bytes at an invalid address", true, exposed.bytes + 4096, 0, readable},
        {"invalid handle", true, 0, 64, readable + 0x10001},
        {"memory handle 0", true, 0, 64, 0},
        {"memory handle 0, 0 bytes", true, 0, 0, 0},
        {"region without the right", true, 0, 64, exposed.handle},
        {"region without the right, 0 bytes", true, 0, 0, exposed.handle},
        {"region of another tag", true, 0, 64, foreign},
        {"VI without the right", false, 0, 64, readable},
        {"VI without the right, 0 bytes", false, 0, 0, readable},
    };

    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        refused_read(&all[n]);
    deregister_readable(foreign);
    deregister_readable(readable);
    CHECK_RETURN(VipDestroyPtag(remote_device.nic, other_tag), VIP_SUCCESS);
}
