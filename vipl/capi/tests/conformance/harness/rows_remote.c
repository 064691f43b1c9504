#include <string.h>

#include "rows.h"
#include "spoil.h"
#include "suite.h"

void no_receive_posted(void)
{
    const PairOptions options = {.reliability = test_level()};
    VIP_DESCRIPTOR *send = arena_descriptor(&mine, 1);
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    pair_open(&pair, &options);
    describe(send, arena_bytes(&mine, 64), mine.handle, 64);
    CHECK_RETURN(VipPostSend(pair.client, send, mine.handle), VIP_SUCCESS);
    check_refused_sender(sent(pair.client, send), VIP_STATUS_REMOTE_DESC_ERROR, "no receive");
    row_seen("no_receive", "sender");
    if (error_expected(pair.server, VIP_ERROR_RECVQ_EMPTY, &error))
        CHECK(error.NicHandle == there.nic && error.ViHandle == pair.server,
              "the error names the NIC and the VI");
    pair_after_error(&pair, "no receive");
    row_seen("no_receive", "receiver");
}

/* A receive with something wrong meets a message of 64 bytes. */
static void bad_receive(const char *row, const char *what, const Fault *fault, const Arena *foreign,
                        size_t room, VIP_UINT32 expected)
{
    const PairOptions options = {.reliability = test_level()};
    const size_t mark = mine.used, far_mark = theirs.used;
    VIP_DESCRIPTOR *send = arena_descriptor(&mine, 1), *recv = arena_descriptor(&theirs, 1);
    VIP_DESCRIPTOR *next = arena_descriptor(&theirs, 1);
    unsigned char *data = arena_bytes(&mine, 64), *target = arena_bytes(&theirs, 64);
    Pair pair;

    errors_forget();
    pair_open(&pair, &options);
    describe(send, data, mine.handle, 64);
    describe(recv, target, theirs.handle, room);
    describe(next, target, theirs.handle, 64);
    if (fault != NULL)
        fault->spoil(recv, foreign);
    CHECK_RETURN(VipPostRecv(pair.server, recv, theirs.handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostRecv(pair.server, next, theirs.handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, mine.handle), VIP_SUCCESS);
    check_refused_sender(sent(pair.client, send), VIP_STATUS_REMOTE_DESC_ERROR, what);
    row_seen(row, "sender");
    VIP_UINT32 status = received(pair.server, recv);
    CHECK((status & VIP_STATUS_ERROR_MASK) == expected, "%s: status 0x%08X", what, status);
    if (expected == VIP_STATUS_LENGTH_ERROR)
        CHECK(recv->CS.Length == 0, "%s: Length is 0", what);
    if (errors_break()) {
        status = received(pair.server, next);
        CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
              "%s: the receive behind it is flushed", what);
    } else {
        describe(send, data, mine.handle, 64);
        CHECK_RETURN(VipPostSend(pair.client, send, mine.handle), VIP_SUCCESS);
        CHECK((sent(pair.client, send) & VIP_STATUS_ERROR_MASK) == 0, "%s: the next is sent", what);
        status = received(pair.server, next);
        CHECK((status & VIP_STATUS_ERROR_MASK) == 0, "%s: the receive behind it is good", what);
    }
    pair_after_error(&pair, what);
    row_seen(row, "receiver");
    mine.used = mark;
    theirs.used = far_mark;
}

void receive_too_small(void)
{
    bad_receive("receive_too_small", "one byte too small", NULL, NULL, 63, VIP_STATUS_LENGTH_ERROR);
    bad_receive("receive_too_small", "no room at all", NULL, NULL, 0, VIP_STATUS_LENGTH_ERROR);
}

void receive_malformed(void)
{
    VIP_PROTECTION_HANDLE other_tag;
    Arena foreign;

    REQUIRE_RETURN(VipCreatePtag(there.nic, &other_tag), VIP_SUCCESS);
    arena_open(&foreign, &there, 4096, other_tag, VIP_FALSE);
    for (unsigned n = 0; n < recv_fault_count; n++)
        bad_receive("receive_malformed", recv_faults[n].what, &recv_faults[n], &foreign, 64,
                    recv_faults[n].expected);
    arena_close(&foreign);
    CHECK_RETURN(VipDestroyPtag(there.nic, other_tag), VIP_SUCCESS);
}

/* --- RDMA writes that are refused ------------------------------------------------------------ */

typedef struct {
    const char *what;
    bool vi_allows;
    size_t offset, bytes;  /* of the write, in the exposed region */
    VIP_UINT32 handle_add; /* to the region's handle */
    const Arena *other;    /* a region that may not be written, in place of the exposed one */
} Refusal;

static void refused(const Refusal *refusal, bool immediate)
{
    const PairOptions options = {.reliability = test_level(),
                                 .server_rdma_write = refusal->vi_allows ? VIP_TRUE : VIP_FALSE};
    const char *row = immediate ? "write_with_immediate_refused" : "write_refused";
    const size_t mark = mine.used, far_mark = theirs.used;
    VIP_DESCRIPTOR *write = arena_descriptor(&mine, 2), *recv = arena_descriptor(&theirs, 1);
    unsigned char *data = arena_bytes(&mine, 4096);
    const Arena *target = refusal->other != NULL ? refusal->other : &exposed;
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    errors_forget();
    memset(exposed.base, 0, exposed.bytes);
    memset(data, 0x77, 4096);
    pair_open(&pair, &options);
    describe(recv, theirs.base, theirs.handle, 0);
    describe_write(write, data, mine.handle, refusal->bytes, target->base + refusal->offset,
                   target->handle + refusal->handle_add);
    if (immediate) {
        with_immediate(write, 1);
        CHECK_RETURN(VipPostRecv(pair.server, recv, theirs.handle), VIP_SUCCESS);
    }
    CHECK_RETURN(VipPostSend(pair.client, write, mine.handle), VIP_SUCCESS);
    check_refused_sender(sent(pair.client, write), VIP_STATUS_RDMA_PROT_ERROR, refusal->what);
    row_seen(row, "sender");
    if (immediate) {
        const VIP_UINT32 status = received(pair.server, recv);
        CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_PROTECTION_ERROR,
              "%s, immediate: the receive tells, 0x%08X", refusal->what, status);
        CHECK(errors_of(pair.server, VIP_ERROR_RDMAW_PROT) == 0,
              "%s, immediate: and no asynchronous error", refusal->what);
    } else if (error_expected(pair.server, VIP_ERROR_RDMAW_PROT, &error)) {
        CHECK(error.NicHandle == there.nic && error.OpCode == VIP_STATUS_OP_REMOTE_RDMA_WRITE,
              "%s: the error names the NIC and the operation", refusal->what);
    }
    pair_after_error(&pair, refusal->what);
    row_seen(row, "receiver");
    bool untouched = true;
    for (size_t i = 0; i < exposed.bytes; i++)
        untouched &= exposed.base[i] == 0;
    for (size_t i = 0; refusal->other != NULL && i < refusal->bytes; i++)
        untouched &= refusal->other->base[refusal->offset + i] != 0x77;
    CHECK(untouched, "%s: the target is untouched", refusal->what);
    mine.used = mark;
    theirs.used = far_mark;
}

static void refusals(bool immediate)
{
    VIP_PROTECTION_HANDLE other_tag;
    Arena foreign;

    REQUIRE_RETURN(VipCreatePtag(there.nic, &other_tag), VIP_SUCCESS);
    arena_open(&foreign, &there, 4096, other_tag, VIP_TRUE);
    const Refusal all[] = {
        {"one byte past the end", true, exposed.bytes - 63, 64, 0, NULL},
        {"one byte before the start", true, (size_t)-1, 64, 0, NULL},
        {"an address that wraps round", true, (size_t)-8 - (size_t)(uintptr_t)exposed.base, 64, 0,
         NULL},
        {"nothing, at a bad address", true, exposed.bytes + 4096, 0, 0, NULL},
        {"made-up handle", true, 0, 64, 0x10001, NULL},
        /* Its end: its begin has descriptors, in which any byte can be. */
        {"region without the right", true, theirs.bytes - 64, 64, 0, &theirs},
        {"region of another tag", true, 0, 64, 0, &foreign},
        {"VI without the right", false, 0, 64, 0, NULL},
    };

    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        refused(&all[n], immediate);
    arena_close(&foreign);
    CHECK_RETURN(VipDestroyPtag(there.nic, other_tag), VIP_SUCCESS);
}

void write_refused(void)
{
    refusals(false);
}

void write_with_immediate_refused(void)
{
    refusals(true);
}

/* --- the other end goes ---------------------------------------------------------------------- */

/* The client's VI with a receive posted, and the server's end going in one way or another. */
static void goes(const char *row, void (*go)(const Pair *pair))
{
    const PairOptions options = {.reliability = test_level()};
    VIP_DESCRIPTOR *recv = arena_descriptor(&mine, 1);
    Pair pair;

    pair_open(&pair, &options);
    pair_works(&pair, row);
    describe(recv, arena_bytes(&mine, 64), mine.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.client, recv, mine.handle), VIP_SUCCESS);
    go(&pair);
    row_seen(row, "peer");
    error_expected(pair.client, VIP_ERROR_CONN_LOST, NULL);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    CHECK((received(pair.client, recv) & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
          "%s: the receive is flushed", row);
    CHECK(errors_of(pair.client, VIP_ERROR_CONN_LOST) == 1, "%s: told once", row);
    row_seen(row, "consumer");
    vi_close(pair.client);
}

static void disconnect_and_destroy(const Pair *pair)
{
    CHECK_RETURN(VipDisconnect(pair->server), VIP_SUCCESS);
    CHECK(vi_state(pair->server) == VIP_STATE_IDLE, "who disconnects is Idle");
    CHECK(errors_of(pair->server, VIP_ERROR_CONN_LOST) == 0, "and gets no error");
    CHECK_RETURN(VipDestroyVi(pair->server), VIP_SUCCESS);
}

static void close_nic(const Pair *pair)
{
    (void)pair;
    CHECK_RETURN(VipCloseNic(there.nic), VIP_SUCCESS);
    far_stop();
}

static void die(const Pair *pair)
{
    (void)pair;
    far_kill();
}

void peer_disconnects(void)
{
    goes("peer_disconnects", disconnect_and_destroy);
}

void peer_closes(void)
{
    goes("peer_closes", close_nic);
    fixture_reopen_far();
}

void peer_dies(void)
{
    goes("peer_dies", die);
    fixture_reopen_far();
}
