/* Peer-to-peer connections: pending requests, matching, and results. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};

/* Requests a connection of `vi`, on `own`, with the peer that has this discriminator on `other`. */
static VIP_RETURN request_peer(const Device *own, const Device *other, VIP_VI_HANDLE vi,
                               const char *discriminator, VIP_ULONG timeout_ms)
{
    Address local, remote;

    address_of(own, "only a name", &local);
    address_of(other, discriminator, &remote);
    return VipConnectPeerRequest(vi, &local.address, &remote.address, timeout_ms);
}

static VIP_RETURN request_from_local(VIP_VI_HANDLE vi, const char *discriminator,
                                     VIP_ULONG timeout_ms)
{
    return request_peer(&local_device, &remote_device, vi, discriminator, timeout_ms);
}

static VIP_RETURN request_from_remote(VIP_VI_HANDLE vi, const char *discriminator,
                                      VIP_ULONG timeout_ms)
{
    return request_peer(&remote_device, &local_device, vi, discriminator, timeout_ms);
}

/* Polls VipConnectPeerDone until the request has a result. */
static VIP_RETURN poll_result(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    VIP_RETURN result;

    while ((result = VipConnectPeerDone(vi, attributes)) == VIP_NOT_DONE && now_ms() < deadline_ms)
        sched_yield();
    return result;
}

static void arguments(void)
{
    VIP_VI_HANDLE vi = client_create(&plain);
    VIP_VI_ATTRIBUTES attributes;
    Address own, elsewhere;

    address_of(&local_device, "x", &own);
    elsewhere = own;
    elsewhere.bytes[4 + 15] ^= 0x40;
    CHECK_RETURN(VipConnectPeerRequest(NULL, &own.address, &own.address, 10), INVALID);
    CHECK_RETURN(VipConnectPeerRequest(local_device.nic, &own.address, &own.address, 10), INVALID);
    CHECK_RETURN(VipConnectPeerRequest(vi, NULL, &own.address, 10), INVALID);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, NULL, 10), INVALID);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &own.address, 0), INVALID);
    CHECK_RETURN(VipConnectPeerRequest(vi, &elsewhere.address, &own.address, 10), INVALID);
    CHECK_RETURN(VipConnectPeerDone(NULL, &attributes), INVALID);
    CHECK_RETURN(VipConnectPeerDone(vi, NULL), INVALID);
    CHECK_RETURN(VipConnectPeerWait(NULL, &attributes), INVALID);
    CHECK_RETURN(VipConnectPeerWait(vi, NULL), INVALID);
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_INVALID_STATE);
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "the VI is unchanged");

    /* The result is returned by Done or by Wait. */
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &elsewhere.address, UNKNOWN_HOST_MS),
                 VIP_SUCCESS);
    check_unknown_host_result(vi, poll_result(vi, &attributes), true);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &elsewhere.address, UNKNOWN_HOST_MS),
                 VIP_SUCCESS);
    check_unknown_host_result(vi, VipConnectPeerWait(vi, &attributes), true);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_INVALID_STATE);
    vi_close(vi);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &own.address, 10), INVALID);
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), INVALID);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), INVALID);
}

static void matching_requests_connect(void)
{
    char discriminator[32];
    VIP_VI_ATTRIBUTES attributes;
    Pair pair = {client_create(&plain),
                 server_create(&(PairOptions){.server_rdma_write = VIP_TRUE})};

    fresh_discriminator(discriminator, sizeof discriminator);
    CHECK_RETURN(request_from_local(pair.client, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerDone(pair.client, &attributes), VIP_NOT_DONE);
    CHECK(vi_state(pair.client) == VIP_STATE_CONNECT_PENDING, "the VI is Connect Pending");

    /* In this state other calls on the VI fail. */
    Address own;
    address_of(&local_device, discriminator, &own);
    CHECK_RETURN(request_from_local(pair.client, discriminator, 10), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectRequest(pair.client, &own.address, &own.address, 10, &attributes),
                 VIP_INVALID_STATE);
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);
    attributes = vi_attributes(&local_device, &plain);
    attributes.EnableRdmaWrite = VIP_TRUE; /* not changed: the server obtains the old value */
    CHECK_RETURN(VipSetViAttributes(pair.client, &attributes), VIP_INVALID_STATE);
    attributes.ReliabilityLevel = 0; /* the state is checked before the attributes */
    CHECK_RETURN(VipSetViAttributes(pair.client, &attributes), VIP_INVALID_STATE);

    CHECK_RETURN(request_from_remote(pair.server, discriminator, WAIT_MS), VIP_SUCCESS);
    CHECK_RETURN(poll_result(pair.client, &attributes), VIP_SUCCESS);
    CHECK(attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY &&
              attributes.MaxTransferSize == 65536 && attributes.EnableRdmaWrite == VIP_TRUE &&
              attributes.Ptag == NULL,
          "the client obtains the server's attributes");
    CHECK_RETURN(VipConnectPeerWait(pair.server, &attributes), VIP_SUCCESS);
    CHECK(attributes.EnableRdmaWrite == VIP_FALSE, "and the server the client's");
    CHECK(vi_state(pair.client) == VIP_STATE_CONNECTED, "the client is Connected");
    CHECK(vi_state(pair.server) == VIP_STATE_CONNECTED, "the server is Connected");
    CHECK_RETURN(VipConnectPeerDone(pair.client, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectPeerWait(pair.server, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(request_from_local(pair.client, discriminator, 10), VIP_INVALID_STATE);
    pair_works(&pair, "peers");
    pair_close(&pair);
}

/* A request without a match, with its result by Wait and by Done, and cancelled. */
static void unmatched_request_times_out(void)
{
    char discriminator[32], other[32];
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi = client_create(&plain), remote_vi = server_create(&plain);
    VIP_DESCRIPTOR *recv = arena_descriptor(&local_arena, 1), *done;

    describe(recv, arena_bytes(&local_arena, 64), local_arena.handle, 64);
    CHECK_RETURN(VipPostRecv(vi, recv, local_arena.handle), VIP_SUCCESS);
    fresh_discriminator(discriminator, sizeof discriminator);
    fresh_discriminator(other, sizeof other);
    CHECK_RETURN(request_from_remote(remote_vi, other, VIP_INFINITE), VIP_SUCCESS);

    unsigned long long begin_ms = now_ms();
    CHECK_RETURN(request_from_local(vi, discriminator, 200), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= 199, "VipConnectPeerWait lasts as long as the request");
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "a VI whose request timed out is Idle");
    begin_ms = now_ms();
    CHECK_RETURN(request_from_local(vi, discriminator, 200), VIP_SUCCESS);
    CHECK_RETURN(poll_result(vi, &attributes), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= 199, "VipConnectPeerDone returns VIP_NOT_DONE until the timeout");
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectPeerDone(remote_vi, &attributes), VIP_NOT_DONE);

    /* Cancelled. */
    CHECK_RETURN(request_from_local(vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_NOT_DONE);
    CHECK(VipRecvDone(vi, &done) == VIP_NOT_DONE,
          "receives stay posted while the VI is Connect Pending");
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "a VI that is disconnected is Idle");
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(VipRecvDone(vi, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == recv && (recv->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR),
          "VipDisconnect flushes its receives");
    CHECK_RETURN(VipDisconnect(remote_vi), VIP_SUCCESS);

    /* Used again. */
    CHECK_RETURN(request_from_local(vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(request_from_remote(remote_vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_SUCCESS);
    CHECK_RETURN(poll_result(remote_vi, &attributes), VIP_SUCCESS);
    vi_close(vi);
    vi_close(remote_vi);
}

/* Both ends obtain the attribute conflict, in either order of requests. */
static void conflict(const PairOptions *options, VIP_RETURN expected, bool remote_first)
{
    char discriminator[32];
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi = client_create(&plain), remote_vi = server_create(options);

    fresh_discriminator(discriminator, sizeof discriminator);
    if (remote_first)
        CHECK_RETURN(request_from_remote(remote_vi, discriminator, WAIT_MS), VIP_SUCCESS);
    CHECK_RETURN(request_from_local(vi, discriminator, WAIT_MS), VIP_SUCCESS);
    if (!remote_first)
        CHECK_RETURN(request_from_remote(remote_vi, discriminator, WAIT_MS), VIP_SUCCESS);
    CHECK_RETURN(poll_result(remote_first ? remote_vi : vi, &attributes), expected);
    CHECK_RETURN(VipConnectPeerWait(remote_first ? vi : remote_vi, &attributes), expected);
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "the local VI is Idle again");
    CHECK(vi_state(remote_vi) == VIP_STATE_IDLE, "the remote VI is Idle again");
    vi_close(vi);
    vi_close(remote_vi);
}

static void conflicts(void)
{
    const PairOptions other_level = {.reliability = VIP_SERVICE_UNRELIABLE};
    const PairOptions other_size = {.max_transfer_bytes = 32768};

    for (int remote_first = 0; remote_first < 2; remote_first++) {
        conflict(&other_level, VIP_INVALID_RELIABILITY_LEVEL, remote_first);
        conflict(&other_size, VIP_INVALID_MTU, remote_first);
    }
}

/* Peer requests do not match clients and servers. */
static void no_match_with_client_or_server(void)
{
    char discriminator[32];
    Address own, peer_address, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_VI_HANDLE client = client_create(&plain), peer = server_create(&plain);

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(&local_device, discriminator, &own);
    address_of(&remote_device, discriminator, &peer_address);
    CHECK_RETURN(request_from_remote(peer, discriminator, 500), VIP_SUCCESS);
    CHECK_RETURN(VipConnectRequest(client, &own.address, &peer_address.address, WAIT_MS,
                                   &attributes),
                 VIP_NO_MATCH);
    CHECK_RETURN(VipConnectWait(local_device.nic, &own.address, 100, &remote.address, &attributes,
                                &connection),
                 VIP_TIMEOUT);
    CHECK_RETURN(VipConnectPeerWait(peer, &attributes), VIP_TIMEOUT);
    vi_close(client);
    vi_close(peer);
}

/* --- threads --------------------------------------------------------------------------------- */

/* A VipConnectPeerWait in a thread of its own. */
typedef struct {
    pthread_t thread;
    VIP_VI_HANDLE vi;
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN result;
} Waiter;

static void *waiter_run(void *argument)
{
    Waiter *waiter = argument;

    waiter->result = VipConnectPeerWait(waiter->vi, &waiter->attributes);
    return NULL;
}

static void waiter_start(Waiter *waiter, VIP_VI_HANDLE vi)
{
    waiter->vi = vi;
    REQUIRE(pthread_create(&waiter->thread, NULL, waiter_run, waiter) == 0, "a thread");
}

static VIP_RETURN waiter_finish(Waiter *waiter)
{
    pthread_join(waiter->thread, NULL);
    return waiter->result;
}

/* Several waiting threads, and a request that is cancelled while a thread waits. */
static void waiting(void)
{
    char discriminator[32];
    Waiter waiters[2];
    VIP_VI_HANDLE vi = client_create(&plain), peer = server_create(&plain);
    VIP_VI_ATTRIBUTES attributes;

    /* One of two threads obtains the result. */
    fresh_discriminator(discriminator, sizeof discriminator);
    CHECK_RETURN(request_from_local(vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    waiter_start(&waiters[0], vi);
    waiter_start(&waiters[1], vi);
    CHECK_RETURN(request_from_remote(peer, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(peer, &attributes), VIP_SUCCESS);
    VIP_RETURN first = waiter_finish(&waiters[0]), second = waiter_finish(&waiters[1]);
    CHECK((first == VIP_SUCCESS && second == VIP_INVALID_STATE) ||
              (first == VIP_INVALID_STATE && second == VIP_SUCCESS),
          "one of two threads obtains the result (%s, %s)", return_name((int)first),
          return_name((int)second));

    /* Another thread cancels the request. */
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK_RETURN(request_from_local(vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    waiter_start(&waiters[0], vi);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK_RETURN(waiter_finish(&waiters[0]), VIP_INVALID_STATE);
    vi_close(vi);
    vi_close(peer);
}

/* A NIC is closed with pending requests and waiting threads. */
static void nic_closed_with_pending_requests(void)
{
    Device closed;
    char discriminator[32];
    Waiter waiter;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vis[2];

    device_open(&closed);
    attributes = vi_attributes(&closed, &plain);
    for (unsigned n = 0; n < 2; n++) {
        REQUIRE_RETURN(VipCreateVi(closed.nic, &attributes, NULL, NULL, &vis[n]), VIP_SUCCESS);
        fresh_discriminator(discriminator, sizeof discriminator);
        CHECK_RETURN(request_peer(&closed, &remote_device, vis[n], discriminator, VIP_INFINITE),
                     VIP_SUCCESS);
    }
    waiter_start(&waiter, vis[0]);
    CHECK_RETURN(VipConnectPeerDone(vis[1], &attributes), VIP_NOT_DONE);
    CHECK_RETURN(VipCloseNic(closed.nic), VIP_SUCCESS);
    CHECK_RETURN(waiter_finish(&waiter), INVALID);
    CHECK_RETURN(VipConnectPeerDone(vis[1], &attributes), INVALID);
}

/* --- many requests --------------------------------------------------------------------------- */

/* Many requests of one program with the same addresses are matched in pairs. */
static void many_equal_requests(void)
{
    enum { REQUESTS = 20 };
    char discriminator[32];
    VIP_VI_HANDLE vis[REQUESTS];
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE extra = client_create(&plain);

    fresh_discriminator(discriminator, sizeof discriminator);
    for (unsigned n = 0; n < REQUESTS; n++) {
        vis[n] = client_create(&plain);
        CHECK_RETURN(request_peer(&local_device, &local_device, vis[n], discriminator, WAIT_MS),
                     VIP_SUCCESS);
    }
    for (unsigned n = 0; n < REQUESTS; n++)
        CHECK_RETURN(poll_result(vis[n], &attributes), VIP_SUCCESS);
    CHECK_RETURN(request_peer(&local_device, &local_device, extra, discriminator, 100),
                 VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(extra, &attributes), VIP_TIMEOUT);
    for (unsigned n = 0; n < REQUESTS; n++)
        vi_close(vis[n]);
    vi_close(extra);
}

/* The request of the remote VI, made in a thread concurrently with the local request. */
typedef struct {
    VIP_VI_HANDLE vi;
    const char *discriminator;
    pthread_barrier_t *start;
    VIP_RETURN result;
} RemoteRequest;

static void *remote_request_run(void *argument)
{
    RemoteRequest *request = argument;

    pthread_barrier_wait(request->start);
    request->result = request_from_remote(request->vi, request->discriminator, WAIT_MS);
    return NULL;
}

/* Both VIs request the connection concurrently, repeatedly. */
static void simultaneous_requests(void)
{
    const unsigned rounds = small_counts() ? 10 : 300;
    Pair pair = {client_create(&plain), server_create(&plain)};
    VIP_VI_ATTRIBUTES attributes;
    pthread_barrier_t start;

    REQUIRE(pthread_barrier_init(&start, NULL, 2) == 0, "a barrier");
    for (unsigned n = 0; n < rounds; n++) {
        RemoteRequest remote = {pair.server, "rendezvous", &start, VIP_NOT_DONE};
        pthread_t thread;

        REQUIRE(pthread_create(&thread, NULL, remote_request_run, &remote) == 0, "a thread");
        pthread_barrier_wait(&start);
        CHECK_RETURN(request_from_local(pair.client, "rendezvous", WAIT_MS), VIP_SUCCESS);
        pthread_join(thread, NULL);
        CHECK(remote.result == VIP_SUCCESS, "round %u: the remote request succeeds", n);
        REQUIRE((n % 2 ? VipConnectPeerWait(pair.client, &attributes)
                       : poll_result(pair.client, &attributes)) == VIP_SUCCESS,
                "round %u: the local VI is connected", n);
        REQUIRE((n % 2 ? poll_result(pair.server, &attributes)
                       : VipConnectPeerWait(pair.server, &attributes)) == VIP_SUCCESS,
                "round %u: the remote VI is connected", n);
        pair_works(&pair, "simultaneous requests");
        CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
        CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    }
    pthread_barrier_destroy(&start);
    pair_close(&pair);
}

static const Test tests[] = {
    TEST(arguments, .clauses = "3.3.6 3.3.7 3.3.8",
         .returns = "VipConnectPeerRequest SUCCESS INVALID_PARAMETER;"
                    "VipConnectPeerDone INVALID_PARAMETER INVALID_STATE;"
                    "VipConnectPeerWait INVALID_PARAMETER INVALID_STATE"),
    TEST(matching_requests_connect, .clauses = "3.3.6 3.3.7 3.3.8 6.7",
         .returns = "VipConnectPeerRequest SUCCESS INVALID_STATE;"
                    "VipConnectPeerDone SUCCESS NOT_DONE INVALID_STATE;"
                    "VipConnectPeerWait SUCCESS INVALID_STATE; VipConnectRequest INVALID_STATE"),
    TEST(unmatched_request_times_out, .clauses = "3.3.6 3.3.7 3.3.8 6.7",
         .returns = "VipConnectPeerDone TIMEOUT NOT_DONE; VipConnectPeerWait TIMEOUT"),
    TEST(conflicts, .clauses = "3.3.7 3.3.8",
         .returns = "VipConnectPeerDone INVALID_RELIABILITY_LEVEL INVALID_MTU;"
                    "VipConnectPeerWait INVALID_RELIABILITY_LEVEL INVALID_MTU"),
    TEST(no_match_with_client_or_server, .clauses = "3.3.6 6.7",
         .returns = "VipConnectRequest NO_MATCH"),
    TEST(waiting, .clauses = "3.3.8 3.3.5",
         .returns = "VipConnectPeerWait SUCCESS INVALID_STATE"),
    TEST(nic_closed_with_pending_requests, .clauses = "3.1.2 3.3.8",
         .returns = "VipConnectPeerWait INVALID_PARAMETER"),
    TEST(many_equal_requests, .clauses = "6.7", .returns = "VipConnectPeerDone SUCCESS"),
    TEST(simultaneous_requests, .clauses = "6.7 3.3.6",
         .returns = "VipConnectPeerDone SUCCESS; VipConnectPeerWait SUCCESS"),
};

SUITE_MAIN(tests)
