#include "reads.h"

#include <stdint.h>
#include <string.h>

#include "spoil.h"
#include "suite.h"

enum { UNTOUCHED = 0xEE };

static PairOptions readers(void)
{
    return (PairOptions){.reliability = test_level(),
                         .server_rdma_write = VIP_TRUE,
                         .server_rdma_read = VIP_TRUE};
}

/* The exposed region once more, for reads and nothing else. */
static VIP_MEM_HANDLE let_read(VIP_PROTECTION_HANDLE tag)
{
    VIP_MEM_ATTRIBUTES attributes = {tag, VIP_FALSE, VIP_TRUE};
    VIP_MEM_HANDLE handle = 0;

    REQUIRE_RETURN(VipRegisterMem(there.nic, exposed.base, exposed.bytes, &attributes, &handle),
                   VIP_SUCCESS);
    return handle;
}

static void read_no_more(VIP_MEM_HANDLE handle)
{
    CHECK_RETURN(VipDeregisterMem(there.nic, exposed.base, handle), VIP_SUCCESS);
}

static bool all_are(const unsigned char *data, size_t bytes, unsigned char value)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != value)
            return false;
    }
    return true;
}

/* Reads of any length from any place: every byte and no other, and the target's program does nothing. */
void rdma_reads(void)
{
    static const struct {
        size_t at, bytes;
    } reads[] = {{0, 0},    {0, 1},       {8, 8},      {11, 8},   {1, 2095},
                 {3, 2096}, {4095, 4097}, {13, 65523}, {0, 65536}};
    const PairOptions options = readers();
    const VIP_MEM_HANDLE readable = let_read(there.ptag);
    VIP_DESCRIPTOR *read = arena_descriptor(&mine, 2), *recv = arena_descriptor(&theirs, 0), *done;
    unsigned char *target = arena_bytes(&mine, 65537);
    Pair pair;

    pair_open(&pair, &options);
    CHECK_RETURN(VipPostRecv(pair.server, recv, theirs.handle), VIP_SUCCESS);
    fill(exposed.base, exposed.bytes, 21);
    for (unsigned n = 0; n < sizeof reads / sizeof reads[0]; n++) {
        const size_t bytes = reads[n].bytes;

        memset(target, UNTOUCHED, 65537);
        describe_read(read, target, mine.handle, bytes, exposed.base + reads[n].at, readable);
        /* Reads carry no immediate data: the bit and the field are ignored. */
        if (n % 2 == 1)
            with_immediate(read, 0xDEAD);
        CHECK_RETURN(VipPostSend(pair.client, read, mine.handle), VIP_SUCCESS);
        const VIP_UINT32 status = sent(pair.client, read);
        CHECK((status & VIP_STATUS_ERROR_MASK) == 0 && !(status & VIP_STATUS_IMMEDIATE) &&
                  (status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RDMA_READ &&
                  read->CS.Length == bytes,
              "%zu bytes: the read tells what it did, 0x%08X", bytes, status);
        CHECK(memcmp(target, exposed.base + reads[n].at, bytes) == 0 && target[bytes] == UNTOUCHED,
              "%zu bytes at %zu: they are here, and no other", bytes, reads[n].at);
    }
    CHECK(VipRecvDone(pair.server, &done) == VIP_NOT_DONE, "a read takes no descriptor there");
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    received(pair.server, recv);
    pair_close(&pair);
    read_no_more(readable);
}

/* Scattered over segments of uneven and zero length; and a read of no segment but the address. */
void reads_of_many_segments(void)
{
    enum { MANY = 251 };
    const PairOptions options = readers();
    const VIP_MEM_HANDLE readable = let_read(there.ptag);
    VIP_DESCRIPTOR *read = arena_descriptor(&mine, MANY + 1);
    unsigned char *target = arena_bytes(&mine, 4096);
    size_t total = 0;
    Pair pair;

    pair_open(&pair, &options);
    fill(exposed.base, exposed.bytes, 4);
    describe_read(read, target, mine.handle, 0, exposed.base, readable);
    for (unsigned n = 0; n < MANY; n++) {
        describe_segment(read, n + 1, target + total, mine.handle, n % 7);
        total += n % 7;
    }
    read->CS.SegCount = MANY + 1;
    read->CS.Length = (VIP_UINT32)total;
    CHECK_RETURN(VipPostSend(pair.client, read, mine.handle), VIP_SUCCESS);
    sent(pair.client, read);
    CHECK(read->CS.Length == total && filled(target, total, 4), "251 segments, %zu bytes", total);

    describe_read(read, target, mine.handle, 0, exposed.base, readable);
    read->CS.SegCount = 1;
    CHECK_RETURN(VipPostSend(pair.client, read, mine.handle), VIP_SUCCESS);
    CHECK((sent(pair.client, read) & VIP_STATUS_ERROR_MASK) == 0 && read->CS.Length == 0,
          "a read of nothing is legal");
    pair_close(&pair);
    read_no_more(readable);
}

/* Reads, sends and writes posted at once complete in the order of posting, on the queue and on its CQ. */
void reads_complete_in_order(void)
{
    enum { ROUNDS = 4, KINDS = 3, POSTED = ROUNDS * KINDS, BYTES = 20000, SHORT_BYTES = 64 };
    const PairOptions options = readers();
    const VIP_MEM_HANDLE readable = let_read(there.ptag);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&here, &options);
    VIP_DESCRIPTOR *posted[POSTED], *recvs[ROUNDS], *done;
    unsigned char *target = arena_bytes(&mine, BYTES), *data = arena_bytes(&mine, SHORT_BYTES);
    unsigned char *received_into = arena_bytes(&theirs, SHORT_BYTES);
    VIP_CQ_HANDLE cq;
    Pair pair;

    REQUIRE_RETURN(VipCreateCQ(here.nic, POSTED, &cq), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreateVi(here.nic, &attributes, cq, NULL, &pair.client), VIP_SUCCESS);
    pair.server = server_create(&options);
    pair_connect(&pair);
    fill(exposed.base, BYTES, 9);
    for (unsigned n = 0; n < ROUNDS; n++) {
        recvs[n] = arena_descriptor(&theirs, 1);
        describe(recvs[n], received_into, theirs.handle, SHORT_BYTES);
        CHECK_RETURN(VipPostRecv(pair.server, recvs[n], theirs.handle), VIP_SUCCESS);
    }
    for (unsigned n = 0; n < POSTED; n++) {
        posted[n] = arena_descriptor(&mine, 2);
        switch (n % KINDS) {
        case 0: describe_read(posted[n], target, mine.handle, BYTES, exposed.base, readable); break;
        case 1: describe(posted[n], data, mine.handle, SHORT_BYTES); break;
        default:
            describe_write(posted[n], data, mine.handle, SHORT_BYTES, exposed.base + BYTES,
                           exposed.handle);
        }
        CHECK_RETURN(VipPostSend(pair.client, posted[n], mine.handle), VIP_SUCCESS);
    }
    for (unsigned n = 0; n < POSTED; n++) {
        VIP_VI_HANDLE vi = NULL;
        VIP_BOOLEAN recv_queue = VIP_TRUE;
        CHECK_RETURN(VipCQWait(cq, WAIT_MS, &vi, &recv_queue), VIP_SUCCESS);
        CHECK(vi == pair.client && recv_queue == VIP_FALSE, "entry %u is of the send queue", n);
        CHECK(VipSendDone(pair.client, &done) == VIP_SUCCESS && done == posted[n],
              "descriptor %u is the next", n);
        CHECK(n % KINDS != 0 || filled(target, BYTES, 9), "and what it read is here");
    }
    for (unsigned n = 0; n < ROUNDS; n++)
        received(pair.server, recvs[n]);
    pair_close(&pair);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    read_no_more(readable);
}

/* A fenced write waits for the reads before it: what they read is older. */
void fenced_behind_reads(void)
{
    enum { ROUNDS = 10, READS = 3, BYTES = 60000 };
    const PairOptions options = readers();
    const VIP_MEM_HANDLE readable = let_read(there.ptag);
    VIP_DESCRIPTOR *reads[READS], *write = arena_descriptor(&mine, 2);
    unsigned char *targets[READS], *data = arena_bytes(&mine, BYTES);
    Pair pair;

    for (unsigned n = 0; n < READS; n++) {
        reads[n] = arena_descriptor(&mine, 2);
        targets[n] = arena_bytes(&mine, BYTES);
    }
    pair_open(&pair, &options);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned n = 0; n < READS; n++) {
            describe_read(reads[n], targets[n], mine.handle, BYTES, exposed.base, readable);
            CHECK_RETURN(VipPostSend(pair.client, reads[n], mine.handle), VIP_SUCCESS);
        }
        memset(data, (int)round + 1, BYTES);
        describe_write(write, data, mine.handle, BYTES, exposed.base, exposed.handle);
        write->CS.Control |= VIP_CONTROL_QFENCE;
        CHECK_RETURN(VipPostSend(pair.client, write, mine.handle), VIP_SUCCESS);
        for (unsigned n = 0; n < READS; n++) {
            sent(pair.client, reads[n]);
            CHECK(all_are(targets[n], BYTES, (unsigned char)round),
                  "round %u: read %u sees nothing of the write behind it", round, n);
        }
        CHECK((sent(pair.client, write) & VIP_STATUS_ERROR_MASK) == 0, "the write is done");
    }
    pair_close(&pair);
    read_no_more(readable);
}

/* --- reads that are refused ------------------------------------------------------------------ */

typedef struct {
    const char *what;
    bool vi_allows;
    size_t offset, bytes; /* of the read, in the exposed region */
    VIP_MEM_HANDLE handle;
} Refusal;

static void refused(const Refusal *refusal)
{
    PairOptions options = readers();
    const size_t mark = mine.used, far_mark = theirs.used;
    VIP_DESCRIPTOR *read = arena_descriptor(&mine, 2), *behind = arena_descriptor(&mine, 1);
    VIP_DESCRIPTOR *recv = arena_descriptor(&theirs, 1);
    unsigned char *target = arena_bytes(&mine, 64);
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    errors_forget();
    options.server_rdma_read = refusal->vi_allows ? VIP_TRUE : VIP_FALSE;
    memset(target, UNTOUCHED, 64);
    pair_open(&pair, &options);
    describe(recv, arena_bytes(&theirs, 64), theirs.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.server, recv, theirs.handle), VIP_SUCCESS);
    describe_read(read, target, mine.handle, refusal->bytes, exposed.base + refusal->offset,
                  refusal->handle);
    describe(behind, arena_bytes(&mine, 64), mine.handle, 64);
    CHECK_RETURN(VipPostSend(pair.client, read, mine.handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, behind, mine.handle), VIP_SUCCESS);
    VIP_UINT32 status = sent(pair.client, read);
    CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_RDMA_PROT_ERROR && read->CS.Length == 0,
          "%s: the reader is told, 0x%08X", refusal->what, status);
    CHECK(all_are(target, 64, UNTOUCHED), "%s: nothing comes", refusal->what);
    status = sent(pair.client, behind);
    CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
          "%s: the send behind it is flushed, 0x%08X", refusal->what, status);
    row_seen("read_refused", "sender");
    if (error_expected(pair.server, VIP_ERROR_RDMAR_PROT, &error))
        CHECK(error.NicHandle == there.nic && error.ResourceCode == VIP_RESOURCE_VI &&
                  error.OpCode == VIP_STATUS_OP_RDMA_READ,
              "%s: the error names the NIC, the VI and the operation", refusal->what);
    status = received(pair.server, recv);
    CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
          "%s: the receive there is flushed, 0x%08X", refusal->what, status);
    pair_after_error(&pair, refusal->what);
    row_seen("read_refused", "receiver");
    mine.used = mark;
    theirs.used = far_mark;
}

void read_refused(void)
{
    VIP_PROTECTION_HANDLE other_tag;

    REQUIRE_RETURN(VipCreatePtag(there.nic, &other_tag), VIP_SUCCESS);
    const VIP_MEM_HANDLE readable = let_read(there.ptag), foreign = let_read(other_tag);
    const Refusal all[] = {
        {"one byte past the end", true, exposed.bytes - 63, 64, readable},
        {"one byte before the start", true, (size_t)-1, 64, readable},
        {"an address that wraps round", true, (size_t)-8 - (size_t)(uintptr_t)exposed.base, 64,
         readable},
        {"nothing, at a bad address", true, exposed.bytes + 4096, 0, readable},
        {"made-up handle", true, 0, 64, readable + 0x10001},
        {"region that may only be written", true, 0, 64, exposed.handle},
        {"region of another tag", true, 0, 64, foreign},
        {"VI without the right", false, 0, 64, readable},
    };

    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        refused(&all[n]);
    read_no_more(foreign);
    read_no_more(readable);
    CHECK_RETURN(VipDestroyPtag(there.nic, other_tag), VIP_SUCCESS);
}
