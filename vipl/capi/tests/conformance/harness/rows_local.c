#include <string.h>

#include "rows.h"
#include "faults.h"
#include "suite.h"

static PairOptions level_options(void)
{
    return (PairOptions){.reliability = test_level()};
}

/* Posts a send, write or read with a fault; the remote end receives nothing of it. */
static void local_error(const Fault *fault, const Arena *foreign, VIP_UINT16 operation)
{
    const PairOptions options = level_options();
    const size_t mark = local_arena.used, remote_mark = remote_arena.used;
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 2),
                   *recv = arena_descriptor(&remote_arena, 1), *done;
    unsigned char *data = arena_bytes(&local_arena, 64), *target = arena_bytes(&remote_arena, 64);
    Pair pair;

    errors_clear();
    pair_open(&pair, &options);
    describe(recv, target, remote_arena.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
    if (operation == VIP_CONTROL_OP_SENDRECV) {
        describe(send, data, local_arena.handle, 64);
        fault->inject(send, foreign);
    } else {
        describe_write(send, data, local_arena.handle, 64, exposed.base, exposed.handle);
        send->CS.Control = operation;
        send->DS[1].Local.Handle += 0x10001;
    }
    CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
    const VIP_UINT32 status = sent(pair.client, send);
    CHECK((status & VIP_STATUS_ERROR_MASK) == fault->expected, "%s: status 0x%08X", fault->what,
          status);
    row_seen("local_error", "sender");
    if (errors_break_connection()) {
        CHECK((received(pair.server, recv) & VIP_STATUS_ERROR_MASK) ==
              VIP_STATUS_DESC_FLUSHED_ERROR, "%s: the receive of the server is flushed",
              fault->what);
    } else {
        CHECK(VipRecvDone(pair.server, &done) == VIP_NOT_DONE,
              "%s: the receive of the server is pending", fault->what);
        describe(send, data, local_arena.handle, 64);
        CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
        CHECK((sent(pair.client, send) & VIP_STATUS_ERROR_MASK) == 0,
              "%s: the next message is sent", fault->what);
        CHECK((received(pair.server, recv) & VIP_STATUS_ERROR_MASK) == 0, "%s: and received",
              fault->what);
    }
    check_pair_after_error(&pair, fault->what);
    row_seen("local_error", "receiver");
    local_arena.used = mark;
    remote_arena.used = remote_mark;
}

void local_errors(void)
{
    static const Fault in_a_write = {"a write from unregistered memory",
                                     VIP_STATUS_PROTECTION_ERROR, NULL},
                       in_a_read = {"a read into unregistered memory",
                                    VIP_STATUS_PROTECTION_ERROR, NULL};
    VIP_PROTECTION_HANDLE other_tag;
    Arena foreign;

    REQUIRE_RETURN(VipCreatePtag(local_device.nic, &other_tag), VIP_SUCCESS);
    arena_open(&foreign, &local_device, 4096, other_tag, VIP_FALSE);
    for (unsigned n = 0; n < send_fault_count; n++)
        local_error(&send_faults[n], &foreign, VIP_CONTROL_OP_SENDRECV);
    local_error(&in_a_write, &foreign, VIP_CONTROL_OP_RDMAWRITE);
    if (local_device.attributes.RDMAReadSupport & test_level())
        local_error(&in_a_read, &foreign, VIP_CONTROL_OP_RDMAREAD);
    arena_close(&foreign);
    CHECK_RETURN(VipDestroyPtag(local_device.nic, other_tag), VIP_SUCCESS);
}

/* Checks that a send on this VI is flushed immediately. */
static void send_is_flushed(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *send, const char *state)
{
    VIP_DESCRIPTOR *done;

    describe(send, local_arena.base, local_arena.handle, 64);
    CHECK_RETURN(VipPostSend(vi, send, local_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipSendDone(vi, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == send && (send->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR),
          "%s: a send is flushed", state);
}

static void receive_is_flushed(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *recv, const char *when)
{
    VIP_DESCRIPTOR *done;

    CHECK_RETURN(VipRecvDone(vi, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == recv && (recv->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR),
          "%s: a receive is flushed", when);
}

void posting_outside_connected(void)
{
    const PairOptions options = level_options();
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *recv = arena_descriptor(&local_arena, 1), *done;
    unsigned char *target = arena_bytes(&local_arena, 64);
    VIP_VI_HANDLE vi = client_create(&options);

    /* Idle. */
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    send_is_flushed(vi, send, "Idle");
    describe(recv, target, local_arena.handle, 64);
    CHECK_RETURN(VipPostRecv(vi, recv, local_arena.handle), VIP_SUCCESS);
    CHECK(VipRecvDone(vi, &done) == VIP_NOT_DONE, "Idle: a receive stays posted");
    CHECK_RETURN(VipDestroyVi(vi), VIP_INVALID_STATE);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    receive_is_flushed(vi, recv, "disconnected while Idle");

    /* Connect Pending. */
    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(&remote_device, discriminator, &local);
    Request *request = request_start(vi, discriminator, WAIT_MS);
    REQUIRE_RETURN(VipConnectWait(remote_device.nic, &local.address, WAIT_MS, &remote.address,
                                  &attributes, &connection),
                   VIP_SUCCESS);
    CHECK(vi_state(vi) == VIP_STATE_CONNECT_PENDING, "the request is pending");
    send_is_flushed(vi, send, "Connect Pending");
    row_seen("send_posted_unconnected", "consumer");
    describe(recv, target, local_arena.handle, 64);
    CHECK_RETURN(VipPostRecv(vi, recv, local_arena.handle), VIP_SUCCESS);
    CHECK(VipRecvDone(vi, &done) == VIP_NOT_DONE, "Connect Pending: a receive stays posted");
    row_seen("receive_posted_unconnected", "consumer");
    CHECK_RETURN(VipDestroyVi(vi), VIP_INVALID_STATE);
    row_seen("destroy_requires_idle", "consumer");
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK(request_finish(request, NULL) != VIP_SUCCESS,
          "a cancelled request does not connect");
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "VipDisconnect leads from Connect Pending to Idle");
    row_seen("disconnect_in_any_state", "consumer");
    receive_is_flushed(vi, recv, "disconnected while pending");
    CHECK_RETURN(VipConnectReject(connection), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
}

void posting_in_the_error_state(void)
{
    const PairOptions options = level_options();
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *recv = arena_descriptor(&local_arena, 1);
    unsigned char *target = arena_bytes(&local_arena, 64);
    Pair pair;

    pair_open(&pair, &options);
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    row_seen("destroy_requires_idle", "consumer");
    send_is_flushed(pair.client, send, "Error");
    row_seen("send_posted_in_error", "consumer");
    describe(recv, target, local_arena.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.client, recv, local_arena.handle), VIP_SUCCESS);
    receive_is_flushed(pair.client, recv, "Error");
    row_seen("receive_posted_in_error", "consumer");
    pair_close(&pair);
}

/* Posts more descriptors than a queue holds. */
void overrun(void)
{
    const VIP_ULONG limit = local_device.attributes.MaxDescriptorsPerQueue;
    const PairOptions options = level_options();
    VIP_ERROR_DESCRIPTOR error;
    Arena arena;
    unsigned wrong = 0;
    Pair pair;

    arena_open(&arena, &local_device, (limit + 2) * sizeof(VIP_DESCRIPTOR), local_device.ptag,
               VIP_FALSE);
    pair_open(&pair, &options);
    for (VIP_ULONG n = 0; n < limit; n++)
        wrong += VipPostRecv(pair.client, arena_descriptor(&arena, 0), arena.handle) != VIP_SUCCESS;
    CHECK(wrong == 0 && vi_state(pair.client) == VIP_STATE_CONNECTED,
          "%lu descriptors are accepted", limit);
    CHECK(errors_count(pair.client, VIP_ERROR_VI_OVERRUN) == 0, "without an error");
    VIP_DESCRIPTOR *excess = arena_descriptor(&arena, 0);
    CHECK_RETURN(VipPostRecv(pair.client, excess, arena.handle), VIP_SUCCESS);
    if (expect_error(pair.client, VIP_ERROR_VI_OVERRUN, &error))
        CHECK(error.NicHandle == local_device.nic && error.ResourceCode == VIP_RESOURCE_VI &&
                  error.DescriptorPtr == excess && error.OpCode == VIP_STATUS_OP_RECEIVE,
              "the error names NIC, VI, descriptor and operation");
    vi_reaches(pair.client, VIP_STATE_ERROR);
    row_seen("overrun", "consumer");
    vi_reaches(pair.server, VIP_STATE_ERROR);
    expect_error(pair.server, VIP_ERROR_CONN_LOST, NULL);
    row_seen("overrun", "peer");
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    CHECK(vi_drain(pair.client) == limit, "all descriptors but the excess one are returned");
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_SUCCESS);
    vi_close(pair.server);
    arena_close(&arena);
}

/* Overruns a send queue; the error names the operation of the excess descriptor. */
static void overrun_by(VIP_UINT16 control, VIP_ULONG operation)
{
    const VIP_ULONG limit = local_device.attributes.MaxDescriptorsPerQueue;
    PairOptions options = level_options();
    VIP_ERROR_DESCRIPTOR error;
    Arena arena;
    Pair pair;

    options.server_rdma_write = VIP_TRUE;
    errors_clear();
    arena_open(&arena, &local_device, (limit + 2) * sizeof(VIP_DESCRIPTOR), local_device.ptag,
               VIP_FALSE);
    pair_open(&pair, &options);
    for (VIP_ULONG n = 0; n <= limit; n++) {
        VIP_DESCRIPTOR *send = arena_descriptor(&arena, 0);
        describe_write(send, local_arena.base, local_arena.handle, 0, exposed.base, exposed.handle);
        send->CS.Control = n < limit ? VIP_CONTROL_OP_RDMAWRITE : control;
        CHECK_RETURN(VipPostSend(pair.client, send, arena.handle), VIP_SUCCESS);
    }
    if (expect_error(pair.client, VIP_ERROR_VI_OVERRUN, &error))
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

/* Deregisters the region of a posted descriptor; the error is reported on completion. */
static void deregister_posted_memory(bool message)
{
    const PairOptions options = level_options();
    VIP_DESCRIPTOR *send = arena_descriptor(&remote_arena, 1), *done;
    Arena deregistered;
    VIP_ERROR_DESCRIPTOR error;
    unsigned written = 0;
    Pair pair;

    errors_clear();
    arena_open(&deregistered, &local_device, 8192, local_device.ptag, VIP_FALSE);
    pair_open(&pair, &options);
    VIP_DESCRIPTOR *recv = arena_descriptor(&deregistered, 1);
    describe(recv, deregistered.base + 4096, deregistered.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.client, recv, deregistered.handle), VIP_SUCCESS);
    CHECK_RETURN(VipDeregisterMem(local_device.nic, deregistered.base, deregistered.handle),
                 VIP_SUCCESS);
    memset(deregistered.base, 0xAA, deregistered.bytes);
    if (message) {
        describe(send, arena_bytes(&remote_arena, 64), remote_arena.handle, 64);
        CHECK_RETURN(VipPostSend(pair.server, send, remote_arena.handle), VIP_SUCCESS);
    } else {
        CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    }
    if (expect_error(pair.client, VIP_ERROR_COMP_PROT, &error))
        CHECK(error.DescriptorPtr == recv && error.ResourceCode == VIP_RESOURCE_DESCRIPTOR &&
                  error.OpCode == VIP_STATUS_OP_RECEIVE,
              "the error names the descriptor and the operation");
    if (message) {
        expect_broken(&pair, "deregistered memory");
        row_seen("memory_deregistered", "consumer");
        row_seen("memory_deregistered", "peer");
    } else {
        CHECK(vi_state(pair.client) == VIP_STATE_IDLE, "VipDisconnect leads to Idle");
    }
    VipRecvDone(pair.client, &done);
    CHECK(done == recv, "the descriptor is taken off its queue");
    pair_close(&pair);
    for (size_t i = 0; i < deregistered.bytes; i++)
        written += deregistered.base[i] != 0xAA;
    CHECK(written == 0, "%u bytes of deregistered memory are written", written);
    arena_forget(&deregistered);
}

void memory_of_a_posted_descriptor_deregistered(void)
{
    deregister_posted_memory(true);
    deregister_posted_memory(false);
}
