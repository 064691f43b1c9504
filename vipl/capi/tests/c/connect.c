/* Making and ending connections, flushing, and what may be destroyed when. */
#include <string.h>

#include "fixture.h"

static const PairOptions plain = {0};

/* What a waiting server is told, and what it may leave uninitialised. */
static void addresses(Device *device)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes, client_sees;
    VIP_CONN_HANDLE connection;
    Pair pair = {vi_create(device, &plain, false),
                 vi_create(device, &(PairOptions){.server_rdma_write = VIP_TRUE}, true)};

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(device, discriminator, &local);
    memset(&remote, 0xEE, sizeof remote);
    Request *request = request_start(device, pair.client, discriminator, WAIT_MS);
    REQUIRE_RETURN(VipConnectWait(device->nic, &local.address, VIP_INFINITE, &remote.address,
                                  &attributes, &connection),
                   VIP_SUCCESS);
    CHECK(remote.address.HostAddressLen == 16 && remote.address.DiscriminatorLen == 6 &&
              memcmp(remote.room + 4, device->attributes.LocalNicAddress, 16) == 0 &&
              memcmp(remote.room + 20, "client", 6) == 0,
          "RemoteAddr is the client's LocalAddr");
    bool untouched = true;
    for (size_t i = 26; i < sizeof remote.room; i++)
        untouched &= remote.room[i] == 0xEE;
    CHECK(untouched, "and no byte more of it is written");
    CHECK(attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY &&
              attributes.MaxTransferSize == 65536 && attributes.EnableRdmaWrite == VIP_FALSE,
          "the server sees the client's attributes");
    CHECK(vi_state(pair.client) == VIP_STATE_CONNECT_PENDING, "the client's VI is pending");
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectAccept(connection, pair.server), VIP_SUCCESS);
    CHECK_RETURN(request_finish(request, &client_sees), VIP_SUCCESS);
    CHECK(client_sees.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY &&
              client_sees.MaxTransferSize == 65536 && client_sees.EnableRdmaWrite == VIP_TRUE,
          "the client sees the server's attributes");
    CHECK(vi_state(pair.client) == VIP_STATE_CONNECTED, "the client is Connected");
    CHECK(vi_reaches(pair.server, VIP_STATE_CONNECTED), "the server is Connected");
    CHECK_RETURN(VipConnectAccept(connection, pair.server), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectReject(connection), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectRequest(pair.client, &local.address, &local.address, 10, &attributes),
                 VIP_INVALID_STATE);
    pair_close(&pair);
}

static void refusals(Device *device)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_VI_HANDLE client = vi_create(device, &plain, false), server = vi_create(device, &plain, true);
    unsigned long long begin_ms;

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(device, discriminator, &local);
#define AWAIT_REQUEST()                                                                            \
    REQUIRE_RETURN(VipConnectWait(device->nic, &local.address, WAIT_MS, &remote.address,           \
                                  &attributes, &connection),                                       \
                   VIP_SUCCESS)

    begin_ms = now_ms();
    CHECK_RETURN(VipConnectRequest(client, &local.address, &local.address, VIP_INFINITE,
                                   &attributes),
                 VIP_NO_MATCH);
    CHECK(now_ms() - begin_ms < 5000, "nobody listens: told at once");

    /* A host of which this NIC knows no port. */
    Address elsewhere = local;
    elsewhere.room[4 + 15] ^= 0x40;
    CHECK_RETURN(VipConnectRequest(client, &local.address, &elsewhere.address, WAIT_MS,
                                   &attributes),
                 VIP_NOT_REACHABLE);
    CHECK(vi_state(client) == VIP_STATE_IDLE, "a VI that reached nobody is Idle");

    Request *request = request_start(device, client, discriminator, WAIT_MS);
    AWAIT_REQUEST();
    CHECK_RETURN(VipConnectReject(connection), VIP_SUCCESS);
    CHECK_RETURN(request_finish(request, NULL), VIP_REJECT);
    CHECK(vi_state(client) == VIP_STATE_IDLE, "a rejected VI is Idle");

    /* The server takes the request and then its time. */
    begin_ms = now_ms();
    request = request_start(device, client, discriminator, 300);
    AWAIT_REQUEST();
    CHECK_RETURN(request_finish(request, NULL), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= 299, "the request lasted as long as it said");
    CHECK(vi_state(client) == VIP_STATE_IDLE, "a VI whose request timed out is Idle");
    CHECK_RETURN(VipConnectAccept(connection, server), VIP_TIMEOUT);
    request = request_start(device, client, discriminator, 300);
    AWAIT_REQUEST();
    CHECK_RETURN(request_finish(request, NULL), VIP_TIMEOUT);
    CHECK_RETURN(VipConnectReject(connection), VIP_SUCCESS);

    /* Both VIs are as good as new. */
    request = request_start(device, client, discriminator, WAIT_MS);
    AWAIT_REQUEST();
    CHECK_RETURN(VipConnectAccept(connection, server), VIP_SUCCESS);
    CHECK_RETURN(request_finish(request, NULL), VIP_SUCCESS);
    vi_close(client);
    vi_close(server);
#undef AWAIT_REQUEST
}

/* A VI that does not fit is refused, the next one may still take the request. */
static void conflicts(Device *device)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_VI_HANDLE client = vi_create(device, &plain, false), server = vi_create(device, &plain, true);
    VIP_VI_HANDLE smaller = vi_create(device, &(PairOptions){.max_transfer_bytes = 32768}, true);
    const bool unreliable = device->attributes.ReliabilityLevelSupport & VIP_SERVICE_UNRELIABLE;
    Pair busy;

    pair_open(&busy, device, &plain);
    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(device, discriminator, &local);
    Request *request = request_start(device, client, discriminator, WAIT_MS);
    REQUIRE_RETURN(VipConnectWait(device->nic, &local.address, WAIT_MS, &remote.address,
                                  &attributes, &connection),
                   VIP_SUCCESS);
    CHECK_RETURN(VipConnectAccept(connection, smaller), VIP_INVALID_MTU);
    if (unreliable) {
        VIP_VI_HANDLE other =
            vi_create(device, &(PairOptions){.reliability = VIP_SERVICE_UNRELIABLE}, true);
        CHECK_RETURN(VipConnectAccept(connection, other), VIP_INVALID_RELIABILITY_LEVEL);
        vi_close(other);
    }
    CHECK_RETURN(VipConnectAccept(connection, busy.server), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectAccept(connection, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectAccept(connection, server), VIP_SUCCESS);
    CHECK_RETURN(request_finish(request, NULL), VIP_SUCCESS);
    pair_close(&busy);
    vi_close(smaller);
    vi_close(client);
    vi_close(server);
}

/* Checks that the posted descriptors come back flushed, in the order they were posted. */
static void flushed_in_order(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *const *posted, unsigned count)
{
    VIP_DESCRIPTOR *done;

    for (unsigned n = 0; n < count; n++) {
        VIP_RETURN answer = VipRecvDone(vi, &done);
        CHECK(answer == VIP_DESCRIPTOR_ERROR && done == posted[n] &&
                  (done->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR),
              "receive %u comes back flushed, in its turn", n);
    }
    CHECK_RETURN(VipRecvDone(vi, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == NULL, "and that was all");
}

static void disconnecting(Device *device, Arena *arena)
{
    enum { POSTED = 5 };
    size_t mark = arena->used;
    VIP_DESCRIPTOR *recvs[2 * POSTED], *done;
    unsigned char *target = arena_bytes(arena, 64);
    Pair pair;

    errors_forget();
    pair_open(&pair, device, &plain);
    for (unsigned n = 0; n < 2 * POSTED; n++) {
        recvs[n] = arena_descriptor(arena, 1);
        describe(recvs[n], target, arena->handle, 64);
        CHECK_RETURN(VipPostRecv(n < POSTED ? pair.client : pair.server, recvs[n], arena->handle),
                     VIP_SUCCESS);
    }
    CHECK_RETURN(VipRecvDone(pair.client, &done), VIP_NOT_DONE);
    CHECK(done == NULL, "nothing is done yet");
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    CHECK(vi_state(pair.client) == VIP_STATE_IDLE, "the VI that disconnects is Idle");
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    flushed_in_order(pair.client, recvs, POSTED);
    error_expected(pair.server, VIP_ERROR_CONN_LOST, NULL);
    vi_reaches(pair.server, VIP_STATE_ERROR);
    CHECK_RETURN(VipDestroyVi(pair.server), VIP_INVALID_STATE);
    flushed_in_order(pair.server, recvs + POSTED, POSTED);
    CHECK(errors_of(pair.client, VIP_ERROR_CONN_LOST) == 0,
          "the one that disconnects gets no error");

    /* In the Error state descriptors come back at once. */
    describe(recvs[0], target, arena->handle, 64);
    CHECK_RETURN(VipPostRecv(pair.server, recvs[0], arena->handle), VIP_SUCCESS);
    flushed_in_order(pair.server, recvs, 1);
    describe(recvs[0], target, arena->handle, 64);
    CHECK_RETURN(VipPostSend(pair.server, recvs[0], arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipSendDone(pair.server, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == recvs[0] && (done->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR), "a send, too");

    for (unsigned n = 0; n < 2; n++) {
        CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
        CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    }
    CHECK(vi_state(pair.server) == VIP_STATE_IDLE, "VipDisconnect leads from Error to Idle");
    pair_connect(&pair, device);
    pair_works(&pair, arena, "the same VIs connected anew");
    pair_close(&pair);
    arena->used = mark;
}

/* Receives may be posted before connecting, sends may not. */
static void posting_while_idle(Device *device, Arena *arena)
{
    enum { POSTED = 40 };
    size_t mark = arena->used;
    VIP_DESCRIPTOR *recvs[POSTED], *send = arena_descriptor(arena, 1), *done;
    unsigned char *data = arena_bytes(arena, 64);
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_STATE state;
    VIP_BOOLEAN send_empty, recv_empty;
    Pair pair = {vi_create(device, &plain, false), vi_create(device, &plain, true)};

    describe(send, data, arena->handle, 64);
    CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipSendDone(pair.client, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == send && (send->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR),
          "a send on an Idle VI comes back flushed");
    for (unsigned n = 0; n < POSTED; n++) {
        recvs[n] = arena_descriptor(arena, 1);
        describe(recvs[n], data, arena->handle, 64);
        CHECK_RETURN(VipPostRecv(pair.server, recvs[n], arena->handle), VIP_SUCCESS);
    }
    CHECK_RETURN(VipQueryVi(pair.server, &state, &attributes, &send_empty, &recv_empty),
                 VIP_SUCCESS);
    CHECK(send_empty == VIP_TRUE && recv_empty == VIP_FALSE, "VipQueryVi sees the receives");
    CHECK_RETURN(VipDestroyVi(pair.server), VIP_INVALID_STATE);
    pair_connect(&pair, device);
    for (unsigned n = 0; n < POSTED; n++) {
        describe(send, data, arena->handle, 64);
        CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
        sent(pair.client, send);
        received(pair.server, recvs[n]);
    }
    pair_close(&pair);

    /* VipDisconnect on an Idle VI gives its receives back. */
    VIP_VI_HANDLE idle = vi_create(device, &plain, true);
    describe(recvs[0], data, arena->handle, 64);
    CHECK_RETURN(VipPostRecv(idle, recvs[0], arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipDisconnect(idle), VIP_SUCCESS);
    flushed_in_order(idle, recvs, 1);
    CHECK_RETURN(VipDestroyVi(idle), VIP_SUCCESS);
    arena->used = mark;
}

/* The name service may end while connections go on. */
static void without_name_service(Device *device, Arena *arena)
{
    Pair pair;

    CHECK_RETURN(VipNSInit(device->nic, NULL), VIP_SUCCESS);
    pair_open(&pair, device, &plain);
    CHECK_RETURN(VipNSShutdown(device->nic), VIP_SUCCESS);
    pair_works(&pair, arena, "after VipNSShutdown");
    pair_close(&pair);
}

static void again_and_again(Device *device, Arena *arena)
{
    const unsigned rounds = small_counts() ? 3 : 100;
    Pair pair;

    pair_open(&pair, device, &plain);
    for (unsigned n = 0; n < rounds; n++) {
        CHECK_RETURN(VipDisconnect(n % 2 ? pair.client : pair.server), VIP_SUCCESS);
        CHECK_RETURN(VipDisconnect(n % 2 ? pair.server : pair.client), VIP_SUCCESS);
        pair_connect(&pair, device);
    }
    pair_works(&pair, arena, "after many connections");
    pair_close(&pair);
}

int main(void)
{
    Device device;
    Arena arena;

    device_open(&device);
    errors_catch(&device);
    arena_open(&arena, &device, 1 << 17, device.ptag, VIP_FALSE);
    addresses(&device);
    refusals(&device);
    conflicts(&device);
    disconnecting(&device, &arena);
    posting_while_idle(&device, &arena);
    without_name_service(&device, &arena);
    again_and_again(&device, &arena);
    arena_close(&arena);
    device_close(&device);
    return check_summary();
}
