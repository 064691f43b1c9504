/* Client-server connections: request, accept, reject, disconnect. */
#include <pthread.h>
#include <string.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};

/* Invalid addresses: too long, of another host, of another length. */
static void wrong_addresses(void)
{
    Address good, wrong, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_NIC_HANDLE nic = local_device.nic;
    VIP_VI_HANDLE vi = client_create(&plain);

    address_of(&local_device, "no-listener", &good);
#define WAIT_ON(a) VipConnectWait(nic, &(a).address, 0, &remote.address, &attributes, &connection)
#define REQUEST(l, r) VipConnectRequest(vi, &(l).address, &(r).address, WAIT_MS, &attributes)
    CHECK_RETURN(WAIT_ON(good), VIP_TIMEOUT);
    CHECK_RETURN(VipConnectWait(nic, NULL, 0, &remote.address, &attributes, &connection), INVALID);
    CHECK_RETURN(VipConnectWait(nic, &good.address, 0, NULL, &attributes, &connection), INVALID);
    CHECK_RETURN(VipConnectWait(nic, &good.address, 0, &remote.address, NULL, &connection),
                 INVALID);
    CHECK_RETURN(VipConnectWait(nic, &good.address, 0, &remote.address, &attributes, NULL),
                 INVALID);
    CHECK_RETURN(VipConnectRequest(vi, NULL, &good.address, 100, &attributes), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, &good.address, NULL, 100, &attributes), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, &good.address, &good.address, 100, NULL), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, &good.address, &good.address, 0, &attributes), INVALID);
    CHECK_RETURN(REQUEST(good, good), VIP_NO_MATCH);

    wrong = good;
    wrong.address.DiscriminatorLen = (VIP_UINT16)(local_device.attributes.MaxDiscriminatorLen + 1);
    CHECK_RETURN(WAIT_ON(wrong), INVALID);
    CHECK_RETURN(REQUEST(good, wrong), INVALID);
    CHECK_RETURN(REQUEST(wrong, good), INVALID);
    wrong.address.DiscriminatorLen = 0xFFFF;
    CHECK_RETURN(WAIT_ON(wrong), INVALID);
    wrong = good;
    wrong.address.HostAddressLen = 15;
    CHECK_RETURN(WAIT_ON(wrong), INVALID);
    CHECK_RETURN(REQUEST(good, wrong), INVALID);
    wrong = good;
    wrong.bytes[4 + 15] ^= 0x40;
    CHECK_RETURN(WAIT_ON(wrong), INVALID);
    CHECK_RETURN(REQUEST(wrong, good), INVALID);
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "the VI is still Idle");
#undef WAIT_ON
#undef REQUEST
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
}

/* Waits at the remote end for the next request. */
static VIP_CONN_HANDLE await_request(const char *discriminator, VIP_VI_ATTRIBUTES *attributes,
                                     Address *remote)
{
    Address local;
    VIP_CONN_HANDLE connection = NULL;

    address_of(&remote_device, discriminator, &local);
    REQUIRE_RETURN(VipConnectWait(remote_device.nic, &local.address, WAIT_MS, &remote->address,
                                  attributes, &connection),
                   VIP_SUCCESS);
    return connection;
}

/* Addresses and attributes that each end obtains of the other, and the states during
 * establishment. */
static void connection_reports_addresses_and_attributes(void)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes, server_attributes;
    Pair pair = {client_create(&plain),
                 server_create(&(PairOptions){.server_rdma_write = VIP_TRUE})};

    fresh_discriminator(discriminator, sizeof discriminator);
    memset(&remote, 0xEE, sizeof remote);
    Request *request = request_start(pair.client, discriminator, WAIT_MS);
    VIP_CONN_HANDLE connection = await_request(discriminator, &attributes, &remote);
    CHECK(remote.address.HostAddressLen == 16 && remote.address.DiscriminatorLen == 6 &&
              memcmp(remote.bytes + 4, local_device.attributes.LocalNicAddress, 16) == 0 &&
              memcmp(remote.bytes + 20, "client", 6) == 0,
          "RemoteAddr is the client's LocalAddr");
    bool untouched = true;
    for (size_t i = 26; i < sizeof remote.bytes; i++)
        untouched &= remote.bytes[i] == 0xEE;
    CHECK(untouched, "and no byte after it is written");
    CHECK(attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY &&
              attributes.MaxTransferSize == 65536 && attributes.EnableRdmaWrite == VIP_FALSE &&
              attributes.Ptag == NULL,
          "the server obtains the client's attributes");
    CHECK(vi_state(pair.client) == VIP_STATE_CONNECT_PENDING, "the client's VI is pending");
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectAccept(connection, pair.server), VIP_SUCCESS);
    CHECK_RETURN(request_finish(request, &server_attributes), VIP_SUCCESS);
    CHECK(server_attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY &&
              server_attributes.MaxTransferSize == 65536 &&
              server_attributes.EnableRdmaWrite == VIP_TRUE && server_attributes.Ptag == NULL,
          "the client obtains the server's attributes");
    CHECK(vi_state(pair.client) == VIP_STATE_CONNECTED, "the client is Connected");
    CHECK(vi_reaches(pair.server, VIP_STATE_CONNECTED), "the server is Connected");
    CHECK_RETURN(VipConnectAccept(connection, pair.server), INVALID);
    CHECK_RETURN(VipConnectReject(connection), INVALID);
    address_of(&local_device, discriminator, &local);
    CHECK_RETURN(VipConnectRequest(pair.client, &local.address, &local.address, 10, &attributes),
                 VIP_INVALID_STATE);
    pair_close(&pair);
}

static void request_without_listener(void)
{
    const unsigned long long begin_ms = now_ms();
    Address local, listener;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE client = client_create(&plain);

    address_of(&remote_device, "no-listener", &listener);
    address_of(&local_device, "client", &local);
    CHECK_RETURN(VipConnectRequest(client, &local.address, &listener.address, VIP_INFINITE,
                                   &attributes),
                 VIP_NO_MATCH);
    CHECK(now_ms() - begin_ms < WAIT_MS / 2, "VIP_NO_MATCH is returned immediately");
    listener.bytes[4 + 15] ^= 0x40;
    check_unknown_host_result(client,
                              VipConnectRequest(client, &local.address, &listener.address,
                                                UNKNOWN_HOST_MS, &attributes),
                              false);
    vi_close(client);
}

static void rejected_and_timed_out(void)
{
    char discriminator[32];
    Address remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE client = client_create(&plain), server = server_create(&plain);

    fresh_discriminator(discriminator, sizeof discriminator);
    Request *request = request_start(client, discriminator, WAIT_MS);
    VIP_CONN_HANDLE connection = await_request(discriminator, &attributes, &remote);
    CHECK_RETURN(VipConnectReject(connection), VIP_SUCCESS);
    CHECK_RETURN(request_finish(request, NULL), VIP_REJECT);
    CHECK(vi_state(client) == VIP_STATE_IDLE, "a rejected VI is Idle");

    /* The server accepts after the client's timeout. */
    const unsigned long long begin_ms = now_ms();
    request = request_start(client, discriminator, 300);
    connection = await_request(discriminator, &attributes, &remote);
    CHECK_RETURN(request_finish(request, NULL), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= 299, "the request lasted for its timeout");
    CHECK(vi_state(client) == VIP_STATE_IDLE, "a VI whose request timed out is Idle");
    CHECK_RETURN(VipConnectAccept(connection, server), VIP_TIMEOUT);
    CHECK_RETURN(VipConnectAccept(connection, server), INVALID);
    request = request_start(client, discriminator, 300);
    connection = await_request(discriminator, &attributes, &remote);
    CHECK_RETURN(request_finish(request, NULL), VIP_TIMEOUT);
    CHECK_RETURN(VipConnectReject(connection), VIP_SUCCESS);

    /* Both VIs can be used again. */
    request = request_start(client, discriminator, WAIT_MS);
    connection = await_request(discriminator, &attributes, &remote);
    CHECK_RETURN(VipConnectAccept(connection, server), VIP_SUCCESS);
    CHECK_RETURN(request_finish(request, NULL), VIP_SUCCESS);
    vi_close(client);
    vi_close(server);
}

/* A VI with other attributes is refused; the request can be accepted with another VI. */
static void attributes_that_conflict(void)
{
    char discriminator[32];
    Address remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE client = client_create(&plain), server = server_create(&plain);
    VIP_VI_HANDLE smaller = server_create(&(PairOptions){.max_transfer_bytes = 32768});
    VIP_VI_HANDLE other = server_create(&(PairOptions){.reliability = VIP_SERVICE_UNRELIABLE});
    Pair busy;

    pair_open(&busy, &plain);
    fresh_discriminator(discriminator, sizeof discriminator);
    Request *request = request_start(client, discriminator, WAIT_MS);
    VIP_CONN_HANDLE connection = await_request(discriminator, &attributes, &remote);
    CHECK_RETURN(VipConnectAccept(connection, smaller), VIP_INVALID_MTU);
    CHECK_RETURN(VipConnectAccept(connection, other), VIP_INVALID_RELIABILITY_LEVEL);
    CHECK_RETURN(VipConnectAccept(connection, busy.server), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectAccept(connection, NULL), INVALID);
    CHECK_RETURN(VipConnectAccept(connection, server), VIP_SUCCESS);
    CHECK_RETURN(request_finish(request, NULL), VIP_SUCCESS);
    pair_works(&busy, "after a refused accept");
    pair_close(&busy);
    vi_close(other);
    vi_close(smaller);
    vi_close(client);
    vi_close(server);
}

/* Checks that the posted descriptors are flushed, in the order of posting. */
static void flushed_in_order(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *const *posted, unsigned count)
{
    VIP_DESCRIPTOR *done;

    for (unsigned n = 0; n < count; n++) {
        VIP_RETURN result = VipRecvDone(vi, &done);
        CHECK(result == VIP_DESCRIPTOR_ERROR && done == posted[n] &&
                  (done->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR),
              "receive %u is flushed, in order", n);
    }
    CHECK_RETURN(VipRecvDone(vi, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == NULL, "the queue is empty");
}

static void post_receives(VIP_VI_HANDLE vi, Arena *arena, VIP_DESCRIPTOR **posted, unsigned count)
{
    unsigned char *target = arena_bytes(arena, 64);

    for (unsigned n = 0; n < count; n++) {
        posted[n] = arena_descriptor(arena, 1);
        describe(posted[n], target, arena->handle, 64);
        CHECK_RETURN(VipPostRecv(vi, posted[n], arena->handle), VIP_SUCCESS);
    }
}

static void disconnecting(void)
{
    enum { POSTED = 5 };
    VIP_DESCRIPTOR *at_client[POSTED], *at_server[POSTED], *done;
    Pair pair;

    pair_open(&pair, &plain);
    post_receives(pair.client, &local_arena, at_client, POSTED);
    post_receives(pair.server, &remote_arena, at_server, POSTED);
    CHECK_RETURN(VipRecvDone(pair.client, &done), VIP_NOT_DONE);
    CHECK(done == NULL, "nothing has completed yet");
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    CHECK(vi_state(pair.client) == VIP_STATE_IDLE, "the VI that disconnects is Idle");
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    flushed_in_order(pair.client, at_client, POSTED);
    expect_error(pair.server, VIP_ERROR_CONN_LOST, NULL);
    vi_reaches(pair.server, VIP_STATE_ERROR);
    CHECK_RETURN(VipDestroyVi(pair.server), VIP_INVALID_STATE);
    flushed_in_order(pair.server, at_server, POSTED);
    CHECK(errors_count(pair.client, VIP_ERROR_CONN_LOST) == 0,
          "the VI that disconnects reports no error");
    for (unsigned n = 0; n < 2; n++) {
        CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
        CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    }
    CHECK(vi_state(pair.server) == VIP_STATE_IDLE, "VipDisconnect leads from Error to Idle");
    CHECK_RETURN(VipDisconnect(NULL), INVALID);
    pair_connect(&pair);
    pair_works(&pair, "the same VIs connected again");
    pair_close(&pair);
}

static void repeated_connections(void)
{
    const unsigned rounds = small_counts() ? 3 : 100;
    Pair pair;

    pair_open(&pair, &plain);
    for (unsigned n = 0; n < rounds; n++) {
        CHECK_RETURN(VipDisconnect(n % 2 ? pair.client : pair.server), VIP_SUCCESS);
        CHECK_RETURN(VipDisconnect(n % 2 ? pair.server : pair.client), VIP_SUCCESS);
        pair_connect(&pair);
    }
    pair_works(&pair, "after many connections");
    pair_close(&pair);
}

/* --- limit of pending requests --------------------------------------------------------------- */

typedef struct {
    const Device *device;
    const char *discriminator;
    VIP_RETURN result;
    VIP_CONN_HANDLE connection;
} Server;

static void *wait_for_client(void *argument)
{
    Server *server = argument;
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;

    address_of(server->device, server->discriminator, &local);
    server->result = VipConnectWait(server->device->nic, &local.address, WAIT_MS, &remote.address,
                                    &attributes, &server->connection);
    return NULL;
}

/* The small NIC holds one pending request; the next request is VIP_ERROR_RESOURCE. */
static void pending_request_limit(void)
{
    Device small;
    VIP_VI_HANDLE vis[3];
    pthread_t thread;

    device_open_named(&small, "SMALL");
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&small, &plain);
    for (unsigned n = 0; n < 3; n++)
        REQUIRE_RETURN(VipCreateVi(small.nic, &attributes, NULL, NULL, &vis[n]), VIP_SUCCESS);
    Server first = {&small, "first", VIP_NOT_DONE, NULL},
           second = {&small, "second", VIP_NOT_DONE, NULL};
    Request *pending = request_between(&small, &small, vis[0], first.discriminator, WAIT_MS);
    wait_for_client(&first);
    CHECK(first.result == VIP_SUCCESS, "the first request arrives");
    REQUIRE(pthread_create(&thread, NULL, wait_for_client, &second) == 0, "a thread");
    Request *refused = request_between(&small, &small, vis[1], second.discriminator, WAIT_MS);
    CHECK_RETURN(request_finish(refused, NULL), VIP_ERROR_RESOURCE);
    CHECK(vi_state(vis[1]) == VIP_STATE_IDLE, "the VI is Idle again");

    CHECK_RETURN(VipConnectReject(first.connection), VIP_SUCCESS);
    CHECK_RETURN(request_finish(pending, NULL), VIP_REJECT);
    Request *repeated = request_between(&small, &small, vis[1], second.discriminator, WAIT_MS);
    pthread_join(thread, NULL);
    CHECK(second.result == VIP_SUCCESS, "the second request arrives after the first is rejected");
    CHECK_RETURN(VipConnectAccept(second.connection, vis[2]), VIP_SUCCESS);
    CHECK_RETURN(request_finish(repeated, NULL), VIP_SUCCESS);
    for (unsigned n = 0; n < 3; n++)
        vi_close(vis[n]);
    device_close(&small);
}

static const Test tests[] = {
    TEST(wrong_addresses, .clauses = "3.3.1 3.3.4 4.2",
         .returns = "VipConnectWait TIMEOUT INVALID_PARAMETER;"
                    "VipConnectRequest INVALID_PARAMETER NO_MATCH"),
    TEST(connection_reports_addresses_and_attributes, .clauses = "3.3.1 3.3.2 3.3.4 6.7",
         .returns = "VipConnectWait SUCCESS; VipConnectAccept SUCCESS INVALID_PARAMETER;"
                    "VipConnectReject INVALID_PARAMETER; VipConnectRequest SUCCESS INVALID_STATE"),
    TEST(request_without_listener, .clauses = "3.3.4", .returns = "VipConnectRequest NO_MATCH"),
    TEST(rejected_and_timed_out, .clauses = "3.3.2 3.3.3 3.3.4",
         .returns = "VipConnectReject SUCCESS; VipConnectRequest REJECT TIMEOUT SUCCESS;"
                    "VipConnectAccept TIMEOUT SUCCESS"),
    TEST(attributes_that_conflict, .clauses = "3.3.2 6.7",
         .returns = "VipConnectAccept INVALID_MTU INVALID_RELIABILITY_LEVEL INVALID_STATE "
                    "INVALID_PARAMETER SUCCESS"),
    TEST(disconnecting, .clauses = "3.3.5 3.2.2 6.2",
         .returns = "VipDisconnect SUCCESS INVALID_PARAMETER; VipDestroyVi INVALID_STATE;"
                    "VipRecvDone NOT_DONE DESCRIPTOR_ERROR"),
    TEST(repeated_connections, .clauses = "3.3.5 6.2", .returns = "VipDisconnect SUCCESS"),
    TEST(pending_request_limit, .clauses = "3.3.4",
         .returns = "VipConnectRequest ERROR_RESOURCE REJECT SUCCESS"),
};

SUITE_MAIN(tests)
