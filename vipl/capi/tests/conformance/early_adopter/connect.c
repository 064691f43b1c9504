/* Making and ending connections between a client here and a server there. */
#include <pthread.h>
#include <string.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};

/* Addresses that are none: too long, of another host, of another length. */
static void wrong_addresses(void)
{
    Address good, wrong, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_NIC_HANDLE nic = here.nic;
    VIP_VI_HANDLE vi = client_create(&plain);

    address_of(&here, "nobody-listens", &good);
#define WAIT_ON(a) VipConnectWait(nic, &(a).address, 0, &remote.address, &attributes, &connection)
#define REQUEST(l, r) VipConnectRequest(vi, &(l).address, &(r).address, WAIT_MS, &attributes)
    CHECK_RETURN(WAIT_ON(good), VIP_TIMEOUT);
    CHECK_RETURN(VipConnectWait(nic, NULL, 0, &remote.address, &attributes, &connection), INVALID);
    CHECK_RETURN(VipConnectWait(nic, &good.address, 0, NULL, &attributes, &connection), INVALID);
    CHECK_RETURN(VipConnectWait(nic, &good.address, 0, &remote.address, NULL, &connection), INVALID);
    CHECK_RETURN(VipConnectWait(nic, &good.address, 0, &remote.address, &attributes, NULL), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, NULL, &good.address, 100, &attributes), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, &good.address, NULL, 100, &attributes), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, &good.address, &good.address, 100, NULL), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, &good.address, &good.address, 0, &attributes), INVALID);
    CHECK_RETURN(REQUEST(good, good), VIP_NO_MATCH);

    wrong = good;
    wrong.address.DiscriminatorLen = (VIP_UINT16)(here.attributes.MaxDiscriminatorLen + 1);
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
    wrong.room[4 + 15] ^= 0x40;
    CHECK_RETURN(WAIT_ON(wrong), INVALID);
    CHECK_RETURN(REQUEST(wrong, good), INVALID);
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "the VI is Idle after all that");
#undef WAIT_ON
#undef REQUEST
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
}

/* Listens there for the request that comes next. */
static VIP_CONN_HANDLE await_request(const char *discriminator, VIP_VI_ATTRIBUTES *attributes,
                                     Address *remote)
{
    Address local;
    VIP_CONN_HANDLE connection = NULL;

    address_of(&there, discriminator, &local);
    REQUIRE_RETURN(VipConnectWait(there.nic, &local.address, WAIT_MS, &remote->address, attributes,
                                  &connection),
                   VIP_SUCCESS);
    return connection;
}

/* What each end is told of the other, and the states on the way. */
static void what_each_end_is_told(void)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes, client_sees;
    Pair pair = {client_create(&plain), server_create(&(PairOptions){.server_rdma_write = VIP_TRUE})};

    fresh_discriminator(discriminator, sizeof discriminator);
    memset(&remote, 0xEE, sizeof remote);
    Request *request = request_start(pair.client, discriminator, WAIT_MS);
    VIP_CONN_HANDLE connection = await_request(discriminator, &attributes, &remote);
    CHECK(remote.address.HostAddressLen == 16 && remote.address.DiscriminatorLen == 6 &&
              memcmp(remote.room + 4, here.attributes.LocalNicAddress, 16) == 0 &&
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
    CHECK_RETURN(VipConnectAccept(connection, pair.server), INVALID);
    CHECK_RETURN(VipConnectReject(connection), INVALID);
    address_of(&here, discriminator, &local);
    CHECK_RETURN(VipConnectRequest(pair.client, &local.address, &local.address, 10, &attributes),
                 VIP_INVALID_STATE);
    pair_close(&pair);
}

static void nobody_there(void)
{
    const unsigned long long begin_ms = now_ms();
    Address local, elsewhere;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE client = client_create(&plain);

    address_of(&there, "nobody-listens", &elsewhere);
    address_of(&here, "client", &local);
    CHECK_RETURN(VipConnectRequest(client, &local.address, &elsewhere.address, VIP_INFINITE,
                                   &attributes),
                 VIP_NO_MATCH);
    CHECK(now_ms() - begin_ms < WAIT_MS / 2, "nobody listens: told at once");
    elsewhere.room[4 + 15] ^= 0x40;
    unknown_host_answered(client,
                          VipConnectRequest(client, &local.address, &elsewhere.address,
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

    /* The server takes the request and then its time. */
    const unsigned long long begin_ms = now_ms();
    request = request_start(client, discriminator, 300);
    connection = await_request(discriminator, &attributes, &remote);
    CHECK_RETURN(request_finish(request, NULL), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= 299, "the request lasted as long as it said");
    CHECK(vi_state(client) == VIP_STATE_IDLE, "a VI whose request timed out is Idle");
    CHECK_RETURN(VipConnectAccept(connection, server), VIP_TIMEOUT);
    request = request_start(client, discriminator, 300);
    connection = await_request(discriminator, &attributes, &remote);
    CHECK_RETURN(request_finish(request, NULL), VIP_TIMEOUT);
    CHECK_RETURN(VipConnectReject(connection), VIP_SUCCESS);

    /* Both VIs are as good as new. */
    request = request_start(client, discriminator, WAIT_MS);
    connection = await_request(discriminator, &attributes, &remote);
    CHECK_RETURN(VipConnectAccept(connection, server), VIP_SUCCESS);
    CHECK_RETURN(request_finish(request, NULL), VIP_SUCCESS);
    vi_close(client);
    vi_close(server);
}

/* A VI that does not fit is refused, the next one may still take the request. */
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
    pair_close(&busy);
    vi_close(other);
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
    post_receives(pair.client, &mine, at_client, POSTED);
    post_receives(pair.server, &theirs, at_server, POSTED);
    CHECK_RETURN(VipRecvDone(pair.client, &done), VIP_NOT_DONE);
    CHECK(done == NULL, "nothing is done yet");
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    CHECK(vi_state(pair.client) == VIP_STATE_IDLE, "the VI that disconnects is Idle");
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    flushed_in_order(pair.client, at_client, POSTED);
    error_expected(pair.server, VIP_ERROR_CONN_LOST, NULL);
    vi_reaches(pair.server, VIP_STATE_ERROR);
    CHECK_RETURN(VipDestroyVi(pair.server), VIP_INVALID_STATE);
    flushed_in_order(pair.server, at_server, POSTED);
    CHECK(errors_of(pair.client, VIP_ERROR_CONN_LOST) == 0,
          "the one that disconnects gets no error");
    for (unsigned n = 0; n < 2; n++) {
        CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
        CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    }
    CHECK(vi_state(pair.server) == VIP_STATE_IDLE, "VipDisconnect leads from Error to Idle");
    CHECK_RETURN(VipDisconnect(NULL), INVALID);
    pair_connect(&pair);
    pair_works(&pair, "the same VIs connected anew");
    pair_close(&pair);
}

static void again_and_again(void)
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

/* --- more requests than a NIC keeps ---------------------------------------------------------- */

typedef struct {
    const Device *device;
    const char *discriminator;
    VIP_RETURN answer;
    VIP_CONN_HANDLE connection;
} Server;

static void *wait_for_client(void *argument)
{
    Server *server = argument;
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;

    address_of(server->device, server->discriminator, &local);
    server->answer = VipConnectWait(server->device->nic, &local.address, WAIT_MS, &remote.address,
                                    &attributes, &server->connection);
    return NULL;
}

/* The small NIC keeps one request for its program; whoever comes next is told so. */
static void as_many_requests_as_the_nic_keeps(void)
{
    Device small;
    VIP_VI_HANDLE vis[3];
    pthread_t thread;

    device_open_named(&small, "SMALL");
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&small, &plain);
    for (unsigned n = 0; n < 3; n++)
        REQUIRE_RETURN(VipCreateVi(small.nic, &attributes, NULL, NULL, &vis[n]), VIP_SUCCESS);
    Server one = {&small, "first", VIP_NOT_DONE, NULL}, two = {&small, "second", VIP_NOT_DONE, NULL};
    Request *held = request_between(&small, &small, vis[0], one.discriminator, WAIT_MS);
    wait_for_client(&one);
    CHECK(one.answer == VIP_SUCCESS, "the first request is there");
    REQUIRE(pthread_create(&thread, NULL, wait_for_client, &two) == 0, "a thread");
    Request *refused = request_between(&small, &small, vis[1], two.discriminator, WAIT_MS);
    CHECK_RETURN(request_finish(refused, NULL), VIP_ERROR_RESOURCE);
    CHECK(vi_state(vis[1]) == VIP_STATE_IDLE, "the VI is Idle again");

    CHECK_RETURN(VipConnectReject(one.connection), VIP_SUCCESS);
    CHECK_RETURN(request_finish(held, NULL), VIP_REJECT);
    Request *again = request_between(&small, &small, vis[1], two.discriminator, WAIT_MS);
    pthread_join(thread, NULL);
    CHECK(two.answer == VIP_SUCCESS, "with room for it the second request comes through");
    CHECK_RETURN(VipConnectAccept(two.connection, vis[2]), VIP_SUCCESS);
    CHECK_RETURN(request_finish(again, NULL), VIP_SUCCESS);
    for (unsigned n = 0; n < 3; n++)
        vi_close(vis[n]);
    device_close(&small);
}

static const Test tests[] = {
    TEST(wrong_addresses, .clauses = "3.3.1 3.3.4 4.2",
         .answers = "VipConnectWait TIMEOUT INVALID_PARAMETER;"
                    "VipConnectRequest INVALID_PARAMETER NO_MATCH"),
    TEST(what_each_end_is_told, .clauses = "3.3.1 3.3.2 3.3.4 6.7",
         .answers = "VipConnectWait SUCCESS; VipConnectAccept SUCCESS INVALID_PARAMETER;"
                    "VipConnectReject INVALID_PARAMETER; VipConnectRequest SUCCESS INVALID_STATE"),
    TEST(nobody_there, .clauses = "3.3.4", .answers = "VipConnectRequest NO_MATCH"),
    TEST(rejected_and_timed_out, .clauses = "3.3.2 3.3.3 3.3.4",
         .answers = "VipConnectReject SUCCESS; VipConnectRequest REJECT TIMEOUT SUCCESS;"
                    "VipConnectAccept TIMEOUT SUCCESS"),
    TEST(attributes_that_conflict, .clauses = "3.3.2 6.7",
         .answers = "VipConnectAccept INVALID_MTU INVALID_RELIABILITY_LEVEL INVALID_STATE "
                    "INVALID_PARAMETER SUCCESS"),
    TEST(disconnecting, .clauses = "3.3.5 3.2.2 6.2",
         .answers = "VipDisconnect SUCCESS INVALID_PARAMETER; VipDestroyVi INVALID_STATE;"
                    "VipRecvDone NOT_DONE DESCRIPTOR_ERROR"),
    TEST(again_and_again, .clauses = "3.3.5 6.2", .answers = "VipDisconnect SUCCESS"),
    TEST(as_many_requests_as_the_nic_keeps, .clauses = "3.3.4",
         .answers = "VipConnectRequest ERROR_RESOURCE REJECT SUCCESS"),
};

SUITE_MAIN(tests)
