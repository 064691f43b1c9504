/*
 * Wires that lose and damage frames: the NICs LOSSY and DAMAGED, whose configuration injects the fault.
 * Which frame it meets is chance, so each test goes on until it has seen what it is about.
 */
#include <string.h>

#include "rows.h"
#include "spoil.h"
#include "suite.h"

enum {
    LONG_BYTES = 65536, /* tens of frames */
    SHORT_BYTES = 64,   /* one */
    ROUNDS = 400,
    DECIDED_MS = 2000, /* E_D_TOV is a fraction of it: what has not come by then is lost */
    CONNECTS = 30
};

/* Connects over a wire that may lose the requests, too. */
static void connect_over(Pair *pair)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_RETURN asked = VIP_NOT_DONE, answered = VIP_NOT_DONE;

    for (unsigned n = 0; n < CONNECTS && (asked != VIP_SUCCESS || answered != VIP_SUCCESS); n++) {
        CHECK_RETURN(VipDisconnect(pair->client), VIP_SUCCESS);
        CHECK_RETURN(VipDisconnect(pair->server), VIP_SUCCESS);
        vi_drain(pair->client);
        vi_drain(pair->server);
        fresh_discriminator(discriminator, sizeof discriminator);
        address_of(&there, discriminator, &local);
        Request *request = request_start(pair->client, discriminator, DECIDED_MS);
        answered = VipConnectWait(there.nic, &local.address, DECIDED_MS, &remote.address,
                                  &attributes, &connection);
        if (answered == VIP_SUCCESS)
            answered = VipConnectAccept(connection, pair->server);
        asked = request_finish(request, NULL);
    }
    REQUIRE(asked == VIP_SUCCESS && answered == VIP_SUCCESS, "the two get connected");
}

static void open_over(Pair *pair, const char *nic)
{
    const PairOptions options = {.reliability = test_level(), .server_rdma_write = VIP_TRUE};

    fixture_use(nic);
    pair->client = client_create(&options);
    pair->server = server_create(&options);
    connect_over(pair);
}

static void close_over(Pair *pair)
{
    pair_close(pair);
    fixture_use_end();
}

/* What came of one message. */
typedef struct {
    VIP_UINT32 sent, received; /* status; 0 if nothing came */
    bool arrived;              /* a receive completed */
    bool over;                 /* the connection is not to be used any more */
} Fate;

/* Sends a message of some bytes into a receive that is posted unless an earlier one still is. */
static Fate send_one(const Pair *pair, VIP_DESCRIPTOR *send, VIP_DESCRIPTOR *recv, size_t bytes,
                     bool *posted)
{
    unsigned char *data = mine.base + mine.used, *target = theirs.base + theirs.used;
    VIP_DESCRIPTOR *done = NULL;
    Fate fate = {0, 0, false, false};

    if (!*posted) {
        describe(recv, target, theirs.handle, LONG_BYTES);
        CHECK_RETURN(VipPostRecv(pair->server, recv, theirs.handle), VIP_SUCCESS);
        *posted = true;
    }
    describe(send, data, mine.handle, bytes);
    CHECK_RETURN(VipPostSend(pair->client, send, mine.handle), VIP_SUCCESS);
    fate.sent = sent(pair->client, send);
    fate.over = (fate.sent & VIP_STATUS_ERROR_MASK) != 0;
    if (VipRecvWait(pair->server, DECIDED_MS, &done) != VIP_TIMEOUT) {
        CHECK(done == recv, "the receive comes back");
        fate.received = recv->CS.Status;
        fate.arrived = true;
        fate.over |= errors_break() && (fate.received & VIP_STATUS_ERROR_MASK) != 0;
        *posted = false;
    }
    return fate;
}

/* Both rows of a bad frame in a message: `damaged` only says how the frame is lost. */
static void part_of_a_message_is_missing(const char *nic)
{
    const VIP_UINT32 partial = VIP_STATUS_TRANSPORT_ERROR | VIP_STATUS_PARTIAL_ERROR;
    bool seen = false, posted = false;
    Pair pair;

    open_over(&pair, nic);
    VIP_DESCRIPTOR *send = arena_descriptor(&mine, 1), *recv = arena_descriptor(&theirs, 1);
    for (unsigned n = 0; n < ROUNDS && !seen; n++) {
        errors_forget();
        const Fate fate = send_one(&pair, send, recv, LONG_BYTES, &posted);
        seen = fate.arrived && (fate.received & VIP_STATUS_ERROR_MASK) == partial;
        if (seen && errors_break()) {
            broken(&pair, "a frame is missing");
            /* At Reliable Delivery the connection can break while the last frames wait for the port. */
            if (senders_are_told() ||
                (fate.sent & VIP_STATUS_ERROR_MASK) != VIP_STATUS_DESC_FLUSHED_ERROR)
                check_sender(fate.sent, VIP_STATUS_TRANSPORT_ERROR, "a frame is missing");
        } else if (seen) {
            CHECK(vi_state(pair.client) == VIP_STATE_CONNECTED &&
                      vi_state(pair.server) == VIP_STATE_CONNECTED,
                  "a missing frame leaves both Connected");
            check_sender(fate.sent, 0, "a frame is missing");
        }
        if (fate.over) {
            connect_over(&pair);
            posted = false;
        }
    }
    CHECK(seen, "%s: a receive with TRANSPORT_ERROR and PARTIAL_ERROR", nic);
    row_seen("frame_missing", "sender");
    row_seen("frame_missing", "receiver");
    close_over(&pair);
}

void frame_missing(void)
{
    part_of_a_message_is_missing("LOSSY");
}

void frame_damaged(void)
{
    part_of_a_message_is_missing("DAMAGED");
}

void message_lost(void)
{
    bool lost = false, seen = false, posted = false;
    Pair pair;

    open_over(&pair, "LOSSY");
    VIP_DESCRIPTOR *send = arena_descriptor(&mine, 1), *recv = arena_descriptor(&theirs, 1);
    for (unsigned n = 0; n < ROUNDS && !seen; n++) {
        if (!lost)
            errors_forget();
        const Fate fate = send_one(&pair, send, recv, SHORT_BYTES, &posted);
        const VIP_UINT32 errors = fate.received & VIP_STATUS_ERROR_MASK;
        if (!errors_break()) {
            /* One that is not noticed, and the next that arrives as if nothing had been. */
            seen = lost && fate.arrived && errors == 0;
            lost |= !fate.arrived;
        } else if (senders_are_told()) {
            /* The sender waits for the answer, so that no later message shows the loss; what came and
             * was not answered has no error there. */
            seen = (fate.sent & VIP_STATUS_ERROR_MASK) == VIP_STATUS_TRANSPORT_ERROR &&
                   errors == VIP_STATUS_DESC_FLUSHED_ERROR;
        } else {
            seen = errors == VIP_STATUS_TRANSPORT_ERROR ||
                   errors_of(pair.server, VIP_ERROR_RDMA_TRANSPORT) > 0;
            lost |= !fate.arrived;
        }
        if (seen && errors_break())
            broken(&pair, "a message is lost");
        if (fate.over && !seen) {
            connect_over(&pair);
            lost = posted = false;
        }
    }
    CHECK(seen, "a message is lost on its way");
    if (!errors_break())
        CHECK(vi_state(pair.client) == VIP_STATE_CONNECTED &&
                  vi_state(pair.server) == VIP_STATE_CONNECTED &&
                  errors_of(pair.server, VIP_ERROR_RDMA_TRANSPORT) == 0,
              "and nobody notices");
    row_seen("message_lost", "sender");
    row_seen("message_lost", "receiver");
    close_over(&pair);
}

/* Unreliable: a write that is not whole, and a message behind it that tells nothing of that. */
static bool write_is_torn(const Pair *pair, VIP_DESCRIPTOR *write, VIP_DESCRIPTOR *send,
                          VIP_DESCRIPTOR *recv, bool *posted, unsigned round)
{
    unsigned char *data = mine.base + mine.used;

    fill(data, LONG_BYTES, round);
    describe_write(write, data, mine.handle, LONG_BYTES, exposed.base, exposed.handle);
    CHECK_RETURN(VipPostSend(pair->client, write, mine.handle), VIP_SUCCESS);
    check_sender(sent(pair->client, write), 0, "a frame of a write is missing");
    if (!send_one(pair, send, recv, SHORT_BYTES, posted).arrived)
        return false;
    CHECK(errors_of(pair->server, VIP_ERROR_RDMAW_ABORT) == 0 &&
              errors_of(pair->server, VIP_ERROR_RDMAW_DATA) == 0 &&
              vi_state(pair->server) == VIP_STATE_CONNECTED,
          "an unreliable write tells nothing");
    return !filled(exposed.base, LONG_BYTES, round);
}

/* Reliable: writes until the connection breaks; true if the target is told this error. */
static bool writes_break(Pair *pair, VIP_DESCRIPTOR *write, VIP_ERROR_CODE error)
{
    static unsigned serial;
    unsigned char *data = mine.base + mine.used;
    VIP_UINT32 status = 0;

    errors_forget();
    for (unsigned n = 0; n < ROUNDS && (status & VIP_STATUS_ERROR_MASK) == 0; n++) {
        fill(data, LONG_BYTES, ++serial);
        describe_write(write, data, mine.handle, LONG_BYTES, exposed.base, exposed.handle);
        CHECK_RETURN(VipPostSend(pair->client, write, mine.handle), VIP_SUCCESS);
        status = sent(pair->client, write);
    }
    broken(pair, "a frame of a write is missing");
    const bool began = errors_of(pair->server, VIP_ERROR_RDMAW_ABORT) > 0 ||
                       errors_of(pair->server, VIP_ERROR_RDMAW_DATA) > 0;
    /* The answer may be what was lost: then the write is whole, and the target knows of no error. */
    const bool whole = senders_are_told() && filled(exposed.base, LONG_BYTES, serial);
    CHECK(began || whole || errors_of(pair->server, VIP_ERROR_RDMA_TRANSPORT) > 0,
          "the target is told of the write");
    if (senders_are_told())
        CHECK((status & VIP_STATUS_TRANSPORT_ERROR) != 0, "and the writer, 0x%08X", status);
    return errors_of(pair->server, error) > 0;
}

/* A frame of a write is lost on this NIC, and a target at a reliable level is told so by this error. */
static void part_of_a_write_is_missing(const char *nic, VIP_ERROR_CODE error, const char *row)
{
    bool seen = false, posted = false;
    Pair pair;

    open_over(&pair, nic);
    VIP_DESCRIPTOR *send = arena_descriptor(&mine, 1), *recv = arena_descriptor(&theirs, 1);
    VIP_DESCRIPTOR *write = arena_descriptor(&mine, 2);
    for (unsigned n = 0; n < CONNECTS && !seen; n++) {
        if (!errors_break()) {
            seen = write_is_torn(&pair, write, send, recv, &posted, n);
        } else {
            seen = writes_break(&pair, write, error);
            connect_over(&pair);
        }
    }
    CHECK(seen, "a write is torn");
    row_seen(row, "sender");
    row_seen(row, "receiver");
    close_over(&pair);
}

void frame_of_a_write_missing(void)
{
    part_of_a_write_is_missing("LOSSY", VIP_ERROR_RDMAW_ABORT, "frame_of_a_write_missing");
}

void frame_of_a_write_damaged(void)
{
    part_of_a_write_is_missing("DAMAGED", VIP_ERROR_RDMAW_DATA, "frame_of_a_write_damaged");
}
