#include <string.h>

#include "rows.h"
#include "faults.h"
#include "suite.h"

void no_receive_posted(void)
{
    const PairOptions options = {.reliability = test_level()};
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1);
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    pair_open(&pair, &options);
    describe(send, arena_bytes(&local_arena, 64), local_arena.handle, 64);
    CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
    check_refused_sender(sent(pair.client, send), VIP_STATUS_REMOTE_DESC_ERROR, "no receive");
    row_seen("no_receive", "sender");
    if (expect_error(pair.server, VIP_ERROR_RECVQ_EMPTY, &error))
        CHECK(error.NicHandle == remote_device.nic && error.ViHandle == pair.server,
              "the error names the NIC and the VI");
    check_pair_after_error(&pair, "no receive");
    row_seen("no_receive", "receiver");
}

/* Sends a message of 64 bytes to a faulty receive. */
static void bad_receive(const char *row, const char *what, const Fault *fault, const Arena *foreign,
                        size_t receive_bytes, VIP_UINT32 expected)
{
    const PairOptions options = {.reliability = test_level()};
    const size_t mark = local_arena.used, remote_mark = remote_arena.used;
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *recv = arena_descriptor(&remote_arena, 1);
    VIP_DESCRIPTOR *next = arena_descriptor(&remote_arena, 1);
    unsigned char *data = arena_bytes(&local_arena, 64), *target = arena_bytes(&remote_arena, 64);
    Pair pair;

    errors_clear();
    pair_open(&pair, &options);
    describe(send, data, local_arena.handle, 64);
    describe(recv, target, remote_arena.handle, receive_bytes);
    describe(next, target, remote_arena.handle, 64);
    if (fault != NULL)
        fault->inject(recv, foreign);
    CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostRecv(pair.server, next, remote_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
    check_refused_sender(sent(pair.client, send), VIP_STATUS_REMOTE_DESC_ERROR, what);
    row_seen(row, "sender");
    VIP_UINT32 status = received(pair.server, recv);
    CHECK((status & VIP_STATUS_ERROR_MASK) == expected, "%s: status 0x%08X", what, status);
    if (expected == VIP_STATUS_LENGTH_ERROR)
        CHECK(recv->CS.Length == 0, "%s: Length is 0", what);
    if (errors_break_connection()) {
        status = received(pair.server, next);
        CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
              "%s: the next receive is flushed", what);
    } else {
        describe(send, data, local_arena.handle, 64);
        CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
        CHECK((sent(pair.client, send) & VIP_STATUS_ERROR_MASK) == 0,
              "%s: the next message is sent", what);
        status = received(pair.server, next);
        CHECK((status & VIP_STATUS_ERROR_MASK) == 0, "%s: the next receive succeeds", what);
    }
    check_pair_after_error(&pair, what);
    row_seen(row, "receiver");
    local_arena.used = mark;
    remote_arena.used = remote_mark;
}

void receive_too_small(void)
{
    bad_receive("receive_too_small", "one byte too small", NULL, NULL, 63, VIP_STATUS_LENGTH_ERROR);
    bad_receive("receive_too_small", "no segment bytes", NULL, NULL, 0, VIP_STATUS_LENGTH_ERROR);
}

void receive_malformed(void)
{
    VIP_PROTECTION_HANDLE other_tag;
    Arena foreign;

    REQUIRE_RETURN(VipCreatePtag(remote_device.nic, &other_tag), VIP_SUCCESS);
    arena_open(&foreign, &remote_device, 4096, other_tag, VIP_FALSE);
    for (unsigned n = 0; n < recv_fault_count; n++)
        bad_receive("receive_malformed", recv_faults[n].what, &recv_faults[n], &foreign, 64,
                    recv_faults[n].expected);
    arena_close(&foreign);
    CHECK_RETURN(VipDestroyPtag(remote_device.nic, other_tag), VIP_SUCCESS);
}

/* --- RDMA writes that are refused ------------------------------------------------------------ */

typedef struct {
    const char *what;
    bool vi_allows;
    size_t offset, bytes;  /* of the write, in the exposed region */
    VIP_UINT32 handle_add; /* added to the handle of the region */
    const Arena *other;    /* a region that must not be written, instead of the exposed region */
} Refusal;

static void refused_write(const Refusal *refusal, bool immediate)
{
    const PairOptions options = {.reliability = test_level(),
                                 .server_rdma_write = refusal->vi_allows ? VIP_TRUE : VIP_FALSE};
    const char *row = immediate ? "write_with_immediate_refused" : "write_refused";
    const size_t mark = local_arena.used, remote_mark = remote_arena.used;
    VIP_DESCRIPTOR *write = arena_descriptor(&local_arena, 2),
                   *recv = arena_descriptor(&remote_arena, 1);
    unsigned char *data = arena_bytes(&local_arena, 4096);
    const Arena *target = refusal->other != NULL ? refusal->other : &exposed;
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    errors_clear();
    memset(exposed.base, 0, exposed.bytes);
    memset(data, 0x77, 4096);
    pair_open(&pair, &options);
    describe(recv, remote_arena.base, remote_arena.handle, 0);
    describe_write(write, data, local_arena.handle, refusal->bytes, target->base + refusal->offset,
                   target->handle + refusal->handle_add);
    if (immediate) {
        with_immediate(write, 1);
        CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
    }
    CHECK_RETURN(VipPostSend(pair.client, write, local_arena.handle), VIP_SUCCESS);
    check_refused_sender(sent(pair.client, write), VIP_STATUS_RDMA_PROT_ERROR, refusal->what);
    row_seen(row, "sender");
    if (immediate) {
        const VIP_UINT32 status = received(pair.server, recv);
        CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_PROTECTION_ERROR &&
                  !(status & VIP_STATUS_IMMEDIATE),
              "%s, immediate: the receive has a protection error, 0x%08X", refusal->what, status);
        CHECK(errors_count(pair.server, VIP_ERROR_RDMAW_PROT) == 0,
              "%s, immediate: no asynchronous error", refusal->what);
    } else if (expect_error(pair.server, VIP_ERROR_RDMAW_PROT, &error)) {
        CHECK(error.NicHandle == remote_device.nic &&
              error.OpCode == VIP_STATUS_OP_REMOTE_RDMA_WRITE,
              "%s: the error names the NIC and the operation", refusal->what);
    }
    check_pair_after_error(&pair, refusal->what);
    row_seen(row, "receiver");
    bool untouched = true;
    for (size_t i = 0; i < exposed.bytes; i++)
        untouched &= exposed.base[i] == 0;
    for (size_t i = 0; refusal->other != NULL && i < refusal->bytes; i++)
        untouched &= refusal->other->base[refusal->offset + i] != 0x77;
    CHECK(untouched, "%s: the target is untouched", refusal->what);
    local_arena.used = mark;
    remote_arena.used = remote_mark;
}

static void refused_writes(bool immediate)
{
    VIP_PROTECTION_HANDLE other_tag;
    Arena foreign;

    REQUIRE_RETURN(VipCreatePtag(remote_device.nic, &other_tag), VIP_SUCCESS);
    arena_open(&foreign, &remote_device, 4096, other_tag, VIP_TRUE);
    const Refusal all[] = {
        {"one byte past the end", true, exposed.bytes - 63, 64, 0, NULL},
        {"one byte before the start", true, (size_t)-1, 64, 0, NULL},
        {"an address that wraps around", true, (size_t)-8 - (size_t)(uintptr_t)exposed.base, 64, 0,
         NULL},
        {"0 bytes at an invalid address", true, exposed.bytes + 4096, 0, 0, NULL},
        {"invalid handle", true, 0, 64, 0x10001, NULL},
        {"memory handle 0", true, 0, 64, 0u - exposed.handle, NULL},
        /* The end of the region: its start has descriptors, with arbitrary bytes. */
        {"region without the right", true, remote_arena.bytes - 64, 64, 0, &remote_arena},
        {"region of another tag", true, 0, 64, 0, &foreign},
        {"VI without the right", false, 0, 64, 0, NULL},
    };

    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        refused_write(&all[n], immediate);
    arena_close(&foreign);
    CHECK_RETURN(VipDestroyPtag(remote_device.nic, other_tag), VIP_SUCCESS);
}

void write_refused(void)
{
    refused_writes(false);
}

void write_with_immediate_refused(void)
{
    refused_writes(true);
}

/* --- the peer ends the connection ------------------------------------------------------------ */

/* Posts a receive at the client, and ends the connection at the server by `leave`. */
static void peer_leaves(const char *row, void (*leave)(const Pair *pair))
{
    const PairOptions options = {.reliability = test_level()};
    VIP_DESCRIPTOR *recv = arena_descriptor(&local_arena, 1);
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    pair_open(&pair, &options);
    pair_works(&pair, row);
    describe(recv, arena_bytes(&local_arena, 64), local_arena.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.client, recv, local_arena.handle), VIP_SUCCESS);
    leave(&pair);
    row_seen(row, "peer");
    if (expect_error(pair.client, VIP_ERROR_CONN_LOST, &error))
        CHECK(error.NicHandle == local_device.nic && error.CQHandle == NULL &&
                  error.ResourceCode == VIP_RESOURCE_VI,
              "%s: the error names the NIC and the VI", row);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    CHECK((received(pair.client, recv) & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
          "%s: the receive is flushed", row);
    CHECK(errors_count(pair.client, VIP_ERROR_CONN_LOST) == 1, "%s: CONN_LOST is reported once",
          row);
    row_seen(row, "consumer");
    vi_close(pair.client);
}

static void disconnect_and_destroy(const Pair *pair)
{
    CHECK_RETURN(VipDisconnect(pair->server), VIP_SUCCESS);
    CHECK(vi_state(pair->server) == VIP_STATE_IDLE, "the VI that disconnects is Idle");
    CHECK(errors_count(pair->server, VIP_ERROR_CONN_LOST) == 0, "and reports no error");
    CHECK_RETURN(VipDestroyVi(pair->server), VIP_SUCCESS);
}

static void close_remote_nic(const Pair *pair)
{
    (void)pair;
    CHECK_RETURN(VipCloseNic(remote_device.nic), VIP_SUCCESS);
    remote_process_stop();
}

static void kill_remote_process(const Pair *pair)
{
    (void)pair;
    remote_process_kill();
}

void peer_disconnects(void)
{
    peer_leaves("peer_disconnects", disconnect_and_destroy);
}

void peer_closes(void)
{
    peer_leaves("peer_closes", close_remote_nic);
    fixture_reopen_remote();
}

void peer_dies(void)
{
    peer_leaves("peer_dies", kill_remote_process);
    fixture_reopen_remote();
}
