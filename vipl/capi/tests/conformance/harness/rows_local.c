#include <string.h>

#include "rows.h"
#include "spoil.h"
#include "suite.h"

static PairOptions of_level(void)
{
    return (PairOptions){.reliability = test_level()};
}

/* Each fault, in a send and where it can be in a write or read; the other end gets nothing of it. */
static void local_error(const Fault *fault, const Arena *foreign, VIP_UINT16 operation)
{
    const PairOptions options = of_level();
    const size_t mark = mine.used, far_mark = theirs.used;
    VIP_DESCRIPTOR *send = arena_descriptor(&mine, 2), *recv = arena_descriptor(&theirs, 1), *done;
    unsigned char *data = arena_bytes(&mine, 64), *target = arena_bytes(&theirs, 64);
    Pair pair;

    errors_forget();
    pair_open(&pair, &options);
    describe(recv, target, theirs.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.server, recv, theirs.handle), VIP_SUCCESS);
    if (operation == VIP_CONTROL_OP_SENDRECV) {
        describe(send, data, mine.handle, 64);
        fault->spoil(send, foreign);
    } else {
        describe_write(send, data, mine.handle, 64, exposed.base, exposed.handle);
        send->CS.Control = operation;
        send->DS[1].Local.Handle += 0x10001;
    }
    CHECK_RETURN(VipPostSend(pair.client, send, mine.handle), VIP_SUCCESS);
    const VIP_UINT32 status = sent(pair.client, send);
    CHECK((status & VIP_STATUS_ERROR_MASK) == fault->expected, "%s: status 0x%08X", fault->what,
          status);
    row_seen("local_error", "sender");
    if (errors_break()) {
        CHECK((received(pair.server, recv) & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
              "%s: the receive there is flushed", fault->what);
    } else {
        CHECK(VipRecvDone(pair.server, &done) == VIP_NOT_DONE,
              "%s: the receive there waits for a message", fault->what);
        describe(send, data, mine.handle, 64);
        CHECK_RETURN(VipPostSend(pair.client, send, mine.handle), VIP_SUCCESS);
        CHECK((sent(pair.client, send) & VIP_STATUS_ERROR_MASK) == 0, "%s: the next is sent",
              fault->what);
        CHECK((received(pair.server, recv) & VIP_STATUS_ERROR_MASK) == 0, "%s: and arrives",
              fault->what);
    }
    pair_after_error(&pair, fault->what);
    row_seen("local_error", "receiver");
    mine.used = mark;
    theirs.used = far_mark;
}

void local_errors(void)
{
    static const Fault in_a_write = {"a write from memory that is not registered",
                                     VIP_STATUS_PROTECTION_ERROR, NULL},
                       in_a_read = {"a read into memory that is not registered",
                                    VIP_STATUS_PROTECTION_ERROR, NULL};
    VIP_PROTECTION_HANDLE other_tag;
    Arena foreign;

    REQUIRE_RETURN(VipCreatePtag(here.nic, &other_tag), VIP_SUCCESS);
    arena_open(&foreign, &here, 4096, other_tag, VIP_FALSE);
    for (unsigned n = 0; n < send_fault_count; n++)
        local_error(&send_faults[n], &foreign, VIP_CONTROL_OP_SENDRECV);
    local_error(&in_a_write, &foreign, VIP_CONTROL_OP_RDMAWRITE);
    if (here.attributes.RDMAReadSupport & test_level())
        local_error(&in_a_read, &foreign, VIP_CONTROL_OP_RDMAREAD);
    arena_close(&foreign);
    CHECK_RETURN(VipDestroyPtag(here.nic, other_tag), VIP_SUCCESS);
}

/* Checks that a send on this VI comes back flushed at once. */
static void send_is_flushed(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *send, const char *state)
{
    VIP_DESCRIPTOR *done;

    describe(send, mine.base, mine.handle, 64);
    CHECK_RETURN(VipPostSend(vi, send, mine.handle), VIP_SUCCESS);
    CHECK_RETURN(VipSendDone(vi, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == send && (send->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR),
          "%s: a send comes back flushed", state);
}

static void receive_comes_back(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *recv, const char *when)
{
    VIP_DESCRIPTOR *done;

    CHECK_RETURN(VipRecvDone(vi, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == recv && (recv->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR),
          "%s: a receive comes back flushed", when);
}

void posting_outside_connected(void)
{
    const PairOptions options = of_level();
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_DESCRIPTOR *send = arena_descriptor(&mine, 1), *recv = arena_descriptor(&mine, 1), *done;
    unsigned char *target = arena_bytes(&mine, 64);
    VIP_VI_HANDLE vi = client_create(&options);

    /* Idle. */
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    send_is_flushed(vi, send, "Idle");
    describe(recv, target, mine.handle, 64);
    CHECK_RETURN(VipPostRecv(vi, recv, mine.handle), VIP_SUCCESS);
    CHECK(VipRecvDone(vi, &done) == VIP_NOT_DONE, "Idle: a receive is kept");
    CHECK_RETURN(VipDestroyVi(vi), VIP_INVALID_STATE);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    receive_comes_back(vi, recv, "disconnected while Idle");

    /* Connect Pending. */
    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(&there, discriminator, &local);
    Request *request = request_start(vi, discriminator, WAIT_MS);
    REQUIRE_RETURN(VipConnectWait(there.nic, &local.address, WAIT_MS, &remote.address, &attributes,
                                  &connection),
                   VIP_SUCCESS);
    CHECK(vi_state(vi) == VIP_STATE_CONNECT_PENDING, "the request is pending");
    send_is_flushed(vi, send, "Connect Pending");
    row_seen("send_posted_unconnected", "consumer");
    describe(recv, target, mine.handle, 64);
    CHECK_RETURN(VipPostRecv(vi, recv, mine.handle), VIP_SUCCESS);
    CHECK(VipRecvDone(vi, &done) == VIP_NOT_DONE, "Connect Pending: a receive is kept");
    row_seen("receive_posted_unconnected", "consumer");
    CHECK_RETURN(VipDestroyVi(vi), VIP_INVALID_STATE);
    row_seen("destroy_wants_idle", "consumer");
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK(request_finish(request, NULL) != VIP_SUCCESS, "a request that is given up does not connect");
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "VipDisconnect leads from Connect Pending to Idle");
    row_seen("disconnect_in_any_state", "consumer");
    receive_comes_back(vi, recv, "disconnected while pending");
    CHECK_RETURN(VipConnectReject(connection), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
}

void posting_in_the_error_state(void)
{
    const PairOptions options = of_level();
    VIP_DESCRIPTOR *send = arena_descriptor(&mine, 1), *recv = arena_descriptor(&mine, 1);
    unsigned char *target = arena_bytes(&mine, 64);
    Pair pair;

    pair_open(&pair, &options);
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    row_seen("destroy_wants_idle", "consumer");
    send_is_flushed(pair.client, send, "Error");
    row_seen("send_posted_in_error", "consumer");
    describe(recv, target, mine.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.client, recv, mine.handle), VIP_SUCCESS);
    receive_comes_back(pair.client, recv, "Error");
    row_seen("receive_posted_in_error", "consumer");
    pair_close(&pair);
}

/* More descriptors than a queue has room for. */
void overrun(void)
{
    const VIP_ULONG limit = here.attributes.MaxDescriptorsPerQueue;
    const PairOptions options = of_level();
    VIP_ERROR_DESCRIPTOR error;
    Arena arena;
    unsigned wrong = 0;
    Pair pair;

    arena_open(&arena, &here, (limit + 2) * sizeof(VIP_DESCRIPTOR), here.ptag, VIP_FALSE);
    pair_open(&pair, &options);
    for (VIP_ULONG n = 0; n < limit; n++)
        wrong += VipPostRecv(pair.client, arena_descriptor(&arena, 0), arena.handle) != VIP_SUCCESS;
    CHECK(wrong == 0 && vi_state(pair.client) == VIP_STATE_CONNECTED, "%lu descriptors are taken",
          limit);
    CHECK(errors_of(pair.client, VIP_ERROR_VI_OVERRUN) == 0, "without an error");
    CHECK_RETURN(VipPostRecv(pair.client, arena_descriptor(&arena, 0), arena.handle), VIP_SUCCESS);
    if (error_expected(pair.client, VIP_ERROR_VI_OVERRUN, &error))
        CHECK(error.NicHandle == here.nic && error.ResourceCode == VIP_RESOURCE_VI &&
                  error.OpCode == VIP_STATUS_OP_RECEIVE,
              "the error names NIC, VI and operation");
    vi_reaches(pair.client, VIP_STATE_ERROR);
    row_seen("overrun", "consumer");
    vi_reaches(pair.server, VIP_STATE_ERROR);
    error_expected(pair.server, VIP_ERROR_CONN_LOST, NULL);
    row_seen("overrun", "peer");
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    CHECK(vi_drain(pair.client) >= limit, "all descriptors come back");
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_SUCCESS);
    vi_close(pair.server);
    arena_close(&arena);
}

/* The error of a send queue that overruns names the operation of the descriptor that was too much. */
static void overrun_by(VIP_UINT16 control, VIP_ULONG operation)
{
    const VIP_ULONG limit = here.attributes.MaxDescriptorsPerQueue;
    PairOptions options = of_level();
    VIP_ERROR_DESCRIPTOR error;
    Arena arena;
    Pair pair;

    options.server_rdma_write = VIP_TRUE;
    errors_forget();
    arena_open(&arena, &here, (limit + 2) * sizeof(VIP_DESCRIPTOR), here.ptag, VIP_FALSE);
    pair_open(&pair, &options);
    for (VIP_ULONG n = 0; n <= limit; n++) {
        VIP_DESCRIPTOR *send = arena_descriptor(&arena, 0);
        describe_write(send, mine.base, mine.handle, 0, exposed.base, exposed.handle);
        send->CS.Control = n < limit ? VIP_CONTROL_OP_RDMAWRITE : control;
        CHECK_RETURN(VipPostSend(pair.client, send, arena.handle), VIP_SUCCESS);
    }
    if (error_expected(pair.client, VIP_ERROR_VI_OVERRUN, &error))
        CHECK(error.OpCode == operation && error.CQHandle == NULL,
              "the error names the operation 0x%lX: 0x%lX", operation, error.OpCode);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    vi_drain(pair.client);
    pair_close(&pair);
    arena_close(&arena);
}

void overrun_by_each_operation(void)
{
    overrun_by(VIP_CONTROL_OP_SENDRECV, VIP_STATUS_OP_SEND);
    overrun_by(VIP_CONTROL_OP_RDMAWRITE, VIP_STATUS_OP_RDMA_WRITE);
    overrun_by(VIP_CONTROL_OP_RDMAREAD, VIP_STATUS_OP_RDMA_READ);
}

/* The region of a posted descriptor ends: that shows when its completion is to be written. */
static void memory_gone(bool message)
{
    const PairOptions options = of_level();
    VIP_DESCRIPTOR *send = arena_descriptor(&theirs, 1), *done;
    Arena gone;
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    errors_forget();
    arena_open(&gone, &here, 8192, here.ptag, VIP_FALSE);
    pair_open(&pair, &options);
    VIP_DESCRIPTOR *recv = arena_descriptor(&gone, 1);
    describe(recv, gone.base + 4096, gone.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.client, recv, gone.handle), VIP_SUCCESS);
    CHECK_RETURN(VipDeregisterMem(here.nic, gone.base, gone.handle), VIP_SUCCESS);
    if (message) {
        describe(send, arena_bytes(&theirs, 64), theirs.handle, 64);
        CHECK_RETURN(VipPostSend(pair.server, send, theirs.handle), VIP_SUCCESS);
    } else {
        CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    }
    if (error_expected(pair.client, VIP_ERROR_COMP_PROT, &error))
        CHECK(error.DescriptorPtr == recv && error.ResourceCode == VIP_RESOURCE_DESCRIPTOR &&
                  error.OpCode == VIP_STATUS_OP_RECEIVE,
              "the error names the descriptor and what it was for");
    if (message) {
        broken(&pair, "memory that goes");
        row_seen("memory_gone", "consumer");
        row_seen("memory_gone", "peer");
    } else {
        CHECK(vi_state(pair.client) == VIP_STATE_IDLE, "VipDisconnect leads to Idle all the same");
    }
    VipRecvDone(pair.client, &done);
    CHECK(done == recv, "the descriptor comes off its queue");
    pair_close(&pair);
    arena_forget(&gone);
}

void memory_of_a_posted_descriptor_goes(void)
{
    memory_gone(true);
    memory_gone(false);
}
