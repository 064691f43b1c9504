/*
 * Lost and damaged frames: the NICs LOSSY and DAMAGED, whose configuration injects the fault. The
 * affected frame is random, so each test repeats until it has observed its row.
 */
#include <string.h>

#include "rows.h"
#include "faults.h"
#include "suite.h"

enum {
    LONG_BYTES = 65536, /* tens of frames */
    SHORT_BYTES = 64,   /* one frame */
    ROUNDS = 400,
    LOSS_TIMEOUT_MS = 2000, /* a multiple of E_D_TOV, after which a message is lost */
    CONNECT_ATTEMPTS = 30
};

/* Connects a pair over a NIC that may also lose the requests. */
static void connect_lossy(Pair *pair)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_RETURN requested = VIP_NOT_DONE, accepted = VIP_NOT_DONE;

    for (unsigned n = 0; n < CONNECT_ATTEMPTS &&
         (requested != VIP_SUCCESS || accepted != VIP_SUCCESS); n++) {
        CHECK_RETURN(VipDisconnect(pair->client), VIP_SUCCESS);
        CHECK_RETURN(VipDisconnect(pair->server), VIP_SUCCESS);
        vi_drain(pair->client);
        vi_drain(pair->server);
        fresh_discriminator(discriminator, sizeof discriminator);
        address_of(&remote_device, discriminator, &local);
        Request *request = request_start(pair->client, discriminator, LOSS_TIMEOUT_MS);
        accepted = VipConnectWait(remote_device.nic, &local.address, LOSS_TIMEOUT_MS,
                                  &remote.address, &attributes, &connection);
        if (accepted == VIP_SUCCESS)
            accepted = VipConnectAccept(connection, pair->server);
        requested = request_finish(request, NULL);
    }
    REQUIRE(requested == VIP_SUCCESS && accepted == VIP_SUCCESS, "the pair is connected");
}

static void open_lossy_pair(Pair *pair, const char *nic)
{
    const PairOptions options = {.reliability = test_level(), .server_rdma_write = VIP_TRUE};

    fixture_use(nic);
    pair->client = client_create(&options);
    pair->server = server_create(&options);
    connect_lossy(pair);
}

static void close_lossy_pair(Pair *pair)
{
    pair_close(pair);
    fixture_use_end();
}

/* The outcome of one message. */
typedef struct {
    VIP_UINT32 sent, received; /* status; 0 without a completion */
    bool arrived;              /* a receive completed */
    bool is_broken;                 /* the connection can no longer be used */
} Outcome;

/* Sends a message; posts a receive for it unless an earlier one is still pending. */
static Outcome send_one(const Pair *pair, VIP_DESCRIPTOR *send, VIP_DESCRIPTOR *recv, size_t bytes,
                        bool *posted)
{
    unsigned char *data = local_arena.base + local_arena.used,
                  *target = remote_arena.base + remote_arena.used;
    VIP_DESCRIPTOR *done = NULL;
    Outcome outcome = {0, 0, false, false};

    if (!*posted) {
        describe(recv, target, remote_arena.handle, LONG_BYTES);
        CHECK_RETURN(VipPostRecv(pair->server, recv, remote_arena.handle), VIP_SUCCESS);
        *posted = true;
    }
    describe(send, data, local_arena.handle, bytes);
    CHECK_RETURN(VipPostSend(pair->client, send, local_arena.handle), VIP_SUCCESS);
    outcome.sent = sent(pair->client, send);
    outcome.is_broken = (outcome.sent & VIP_STATUS_ERROR_MASK) != 0;
    if (VipRecvWait(pair->server, LOSS_TIMEOUT_MS, &done) != VIP_TIMEOUT) {
        CHECK(done == recv, "the receive completes");
        outcome.received = recv->CS.Status;
        outcome.arrived = true;
        outcome.is_broken |=
            errors_break_connection() && (outcome.received & VIP_STATUS_ERROR_MASK) != 0;
        *posted = false;
    }
    return outcome;
}

/* Rows of a lost or damaged frame of a message, depending on the NIC. */
static void incomplete_message(const char *nic)
{
    const VIP_UINT32 partial = VIP_STATUS_TRANSPORT_ERROR | VIP_STATUS_PARTIAL_ERROR;
    bool seen = false, posted = false;
    Pair pair;

    open_lossy_pair(&pair, nic);
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *recv = arena_descriptor(&remote_arena, 1);
    for (unsigned n = 0; n < ROUNDS && !seen; n++) {
        errors_clear();
        const Outcome outcome = send_one(&pair, send, recv, LONG_BYTES, &posted);
        seen = outcome.arrived && (outcome.received & VIP_STATUS_ERROR_MASK) == partial;
        if (seen && errors_break_connection()) {
            expect_broken(&pair, "a frame is missing");
            /* At Reliable Delivery the connection can break before the last frames are sent. */
            if (senders_get_remote_errors() ||
                (outcome.sent & VIP_STATUS_ERROR_MASK) != VIP_STATUS_DESC_FLUSHED_ERROR)
                check_sender(outcome.sent, VIP_STATUS_TRANSPORT_ERROR, "a frame is missing");
        } else if (seen) {
            CHECK(vi_state(pair.client) == VIP_STATE_CONNECTED &&
                      vi_state(pair.server) == VIP_STATE_CONNECTED,
                  "both VIs stay Connected after a missing frame");
            check_sender(outcome.sent, 0, "a frame is missing");
        }
        if (outcome.is_broken) {
            connect_lossy(&pair);
            posted = false;
        }
    }
    CHECK(seen, "%s: a receive with TRANSPORT_ERROR and PARTIAL_ERROR", nic);
    row_seen("frame_missing", "sender");
    row_seen("frame_missing", "receiver");
    close_lossy_pair(&pair);
}

void frame_missing(void)
{
    incomplete_message("LOSSY");
}

void frame_damaged(void)
{
    incomplete_message("DAMAGED");
}

void message_lost(void)
{
    bool lost = false, seen = false, posted = false;
    Pair pair;

    open_lossy_pair(&pair, "LOSSY");
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *recv = arena_descriptor(&remote_arena, 1);
    for (unsigned n = 0; n < ROUNDS && !seen; n++) {
        if (!lost)
            errors_clear();
        const Outcome outcome = send_one(&pair, send, recv, SHORT_BYTES, &posted);
        const VIP_UINT32 errors = outcome.received & VIP_STATUS_ERROR_MASK;
        if (!errors_break_connection()) {
            /* The loss is not reported, and the next message arrives. */
            seen = lost && outcome.arrived && errors == 0;
            lost |= !outcome.arrived;
        } else if (senders_get_remote_errors()) {
            /* The sender waits for the acknowledgement, so no later message reveals the loss; a
             * message whose acknowledgement was lost has no error at the receiver. */
            seen = (outcome.sent & VIP_STATUS_ERROR_MASK) == VIP_STATUS_TRANSPORT_ERROR &&
                   errors == VIP_STATUS_DESC_FLUSHED_ERROR;
        } else {
            seen = errors == VIP_STATUS_TRANSPORT_ERROR ||
                   errors_count(pair.server, VIP_ERROR_RDMA_TRANSPORT) > 0;
            lost |= !outcome.arrived;
        }
        if (seen && errors_break_connection())
            expect_broken(&pair, "a message is lost");
        if (outcome.is_broken && !seen) {
            connect_lossy(&pair);
            lost = posted = false;
        }
    }
    CHECK(seen, "a message is lost");
    if (!errors_break_connection())
        CHECK(vi_state(pair.client) == VIP_STATE_CONNECTED &&
                  vi_state(pair.server) == VIP_STATE_CONNECTED &&
                  errors_count(pair.server, VIP_ERROR_RDMA_TRANSPORT) == 0,
              "and no error is reported");
    row_seen("message_lost", "sender");
    row_seen("message_lost", "receiver");
    close_lossy_pair(&pair);
}

/* Unreliable: an incomplete write, followed by a message; no error is reported. */
static bool write_is_incomplete(const Pair *pair, VIP_DESCRIPTOR *write, VIP_DESCRIPTOR *send,
                                VIP_DESCRIPTOR *recv, bool *posted, unsigned round)
{
    unsigned char *data = local_arena.base + local_arena.used;

    fill(data, LONG_BYTES, round);
    describe_write(write, data, local_arena.handle, LONG_BYTES, exposed.base, exposed.handle);
    CHECK_RETURN(VipPostSend(pair->client, write, local_arena.handle), VIP_SUCCESS);
    check_sender(sent(pair->client, write), 0, "a frame of a write is missing");
    if (!send_one(pair, send, recv, SHORT_BYTES, posted).arrived)
        return false;
    CHECK(errors_count(pair->server, VIP_ERROR_RDMAW_ABORT) == 0 &&
              errors_count(pair->server, VIP_ERROR_RDMAW_DATA) == 0 &&
              vi_state(pair->server) == VIP_STATE_CONNECTED,
          "an unreliable write reports nothing");
    return !filled(exposed.base, LONG_BYTES, round);
}

/* Reliable: writes until the connection breaks; true if this error is reported at the target. */
static bool writes_until_broken(Pair *pair, VIP_DESCRIPTOR *write, VIP_ERROR_CODE error)
{
    static unsigned serial;
    unsigned char *data = local_arena.base + local_arena.used;
    VIP_UINT32 status = 0;

    errors_clear();
    for (unsigned n = 0; n < ROUNDS && (status & VIP_STATUS_ERROR_MASK) == 0; n++) {
        fill(data, LONG_BYTES, ++serial);
        describe_write(write, data, local_arena.handle, LONG_BYTES, exposed.base, exposed.handle);
        CHECK_RETURN(VipPostSend(pair->client, write, local_arena.handle), VIP_SUCCESS);
        status = sent(pair->client, write);
    }
    expect_broken(pair, "a frame of a write is missing");
    const bool began = errors_count(pair->server, VIP_ERROR_RDMAW_ABORT) > 0 ||
                       errors_count(pair->server, VIP_ERROR_RDMAW_DATA) > 0;
    /* If the acknowledgement was lost, the write is complete and the target reports no error. */
    const bool is_complete =
        senders_get_remote_errors() && filled(exposed.base, LONG_BYTES, serial);
    CHECK(began || is_complete || errors_count(pair->server, VIP_ERROR_RDMA_TRANSPORT) > 0,
          "the target reports the write");
    if (senders_get_remote_errors())
        CHECK((status & VIP_STATUS_TRANSPORT_ERROR) != 0,
              "the writer has a transport error, 0x%08X", status);
    return errors_count(pair->server, error) > 0;
}

/* Rows of a lost or damaged frame of a write; at a reliable level the target reports `error`. */
static void incomplete_write(const char *nic, VIP_ERROR_CODE error, const char *row)
{
    bool seen = false, posted = false;
    Pair pair;

    open_lossy_pair(&pair, nic);
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *recv = arena_descriptor(&remote_arena, 1);
    VIP_DESCRIPTOR *write = arena_descriptor(&local_arena, 2);
    for (unsigned n = 0; n < CONNECT_ATTEMPTS && !seen; n++) {
        if (!errors_break_connection()) {
            seen = write_is_incomplete(&pair, write, send, recv, &posted, n);
        } else {
            seen = writes_until_broken(&pair, write, error);
            connect_lossy(&pair);
        }
    }
    CHECK(seen, "a write is incomplete");
    row_seen(row, "sender");
    row_seen(row, "receiver");
    close_lossy_pair(&pair);
}

void frame_of_a_write_missing(void)
{
    incomplete_write("LOSSY", VIP_ERROR_RDMAW_ABORT, "frame_of_a_write_missing");
}

void frame_of_a_write_damaged(void)
{
    incomplete_write("DAMAGED", VIP_ERROR_RDMAW_DATA, "frame_of_a_write_damaged");
}
