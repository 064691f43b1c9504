/* Connections between peers: the pool, the match, what comes of a request and who is told. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};

/* Asks with `vi`, which is at `own` end, for whoever asks for this discriminator at the other. */
static VIP_RETURN ask(const Device *own, const Device *other, VIP_VI_HANDLE vi,
                      const char *discriminator, VIP_ULONG timeout_ms)
{
    Address local, remote;

    address_of(own, "a name, no more", &local);
    address_of(other, discriminator, &remote);
    return VipConnectPeerRequest(vi, &local.address, &remote.address, timeout_ms);
}

static VIP_RETURN ask_here(VIP_VI_HANDLE vi, const char *discriminator, VIP_ULONG timeout_ms)
{
    return ask(&here, &there, vi, discriminator, timeout_ms);
}

static VIP_RETURN ask_there(VIP_VI_HANDLE vi, const char *discriminator, VIP_ULONG timeout_ms)
{
    return ask(&there, &here, vi, discriminator, timeout_ms);
}

/* Calls Done until there is something to tell. */
static VIP_RETURN outcome(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    VIP_RETURN answer;

    while ((answer = VipConnectPeerDone(vi, attributes)) == VIP_NOT_DONE && now_ms() < deadline_ms)
        sched_yield();
    return answer;
}

static void arguments(void)
{
    VIP_VI_HANDLE vi = client_create(&plain);
    VIP_VI_ATTRIBUTES attributes;
    Address own, elsewhere;

    address_of(&here, "x", &own);
    elsewhere = own;
    elsewhere.room[4 + 15] ^= 0x40;
    CHECK_RETURN(VipConnectPeerRequest(NULL, &own.address, &own.address, 10), INVALID);
    CHECK_RETURN(VipConnectPeerRequest(here.nic, &own.address, &own.address, 10), INVALID);
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
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "none of this changed the VI");

    /* Told by Done or Wait. */
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &elsewhere.address, UNKNOWN_HOST_MS),
                 VIP_SUCCESS);
    unknown_host_answered(vi, outcome(vi, &attributes), true);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &elsewhere.address, UNKNOWN_HOST_MS),
                 VIP_SUCCESS);
    unknown_host_answered(vi, VipConnectPeerWait(vi, &attributes), true);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_INVALID_STATE);
    vi_close(vi);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &own.address, 10), INVALID);
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), INVALID);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), INVALID);
}

static void meeting(void)
{
    char discriminator[32];
    VIP_VI_ATTRIBUTES attributes;
    Pair pair = {client_create(&plain), server_create(&(PairOptions){.server_rdma_write = VIP_TRUE})};

    fresh_discriminator(discriminator, sizeof discriminator);
    CHECK_RETURN(ask_here(pair.client, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerDone(pair.client, &attributes), VIP_NOT_DONE);
    CHECK(vi_state(pair.client) == VIP_STATE_CONNECT_PENDING, "the VI is Pending Connect");

    /* In this state the VI is good for nothing else. */
    Address own;
    address_of(&here, discriminator, &own);
    CHECK_RETURN(ask_here(pair.client, discriminator, 10), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectRequest(pair.client, &own.address, &own.address, 10, &attributes),
                 VIP_INVALID_STATE);
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);

    CHECK_RETURN(ask_there(pair.server, discriminator, WAIT_MS), VIP_SUCCESS);
    CHECK_RETURN(outcome(pair.client, &attributes), VIP_SUCCESS);
    CHECK(attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY &&
              attributes.MaxTransferSize == 65536 && attributes.EnableRdmaWrite == VIP_TRUE &&
              attributes.Ptag == NULL,
          "one sees the other's attributes");
    CHECK_RETURN(VipConnectPeerWait(pair.server, &attributes), VIP_SUCCESS);
    CHECK(attributes.EnableRdmaWrite == VIP_FALSE, "and the other the one's");
    CHECK(vi_state(pair.client) == VIP_STATE_CONNECTED, "the one is Connected");
    CHECK(vi_state(pair.server) == VIP_STATE_CONNECTED, "the other is Connected");
    CHECK_RETURN(VipConnectPeerDone(pair.client, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectPeerWait(pair.server, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(ask_here(pair.client, discriminator, 10), VIP_INVALID_STATE);
    pair_works(&pair, "peers");
    pair_close(&pair);
}

/* A request whose match does not come, for each way to be told. */
static void nobody_comes(void)
{
    char discriminator[32], other[32];
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi = client_create(&plain), far = server_create(&plain);
    VIP_DESCRIPTOR *recv = arena_descriptor(&mine, 1), *done;

    describe(recv, arena_bytes(&mine, 64), mine.handle, 64);
    CHECK_RETURN(VipPostRecv(vi, recv, mine.handle), VIP_SUCCESS);
    fresh_discriminator(discriminator, sizeof discriminator);
    fresh_discriminator(other, sizeof other);
    CHECK_RETURN(ask_there(far, other, VIP_INFINITE), VIP_SUCCESS);

    unsigned long long begin_ms = now_ms();
    CHECK_RETURN(ask_here(vi, discriminator, 200), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= 199, "VipConnectPeerWait lasts as long as the request");
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "a VI whose request timed out is Idle");
    begin_ms = now_ms();
    CHECK_RETURN(ask_here(vi, discriminator, 200), VIP_SUCCESS);
    CHECK_RETURN(outcome(vi, &attributes), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= 199, "VipConnectPeerDone answers VIP_NOT_DONE as long");
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectPeerDone(far, &attributes), VIP_NOT_DONE);

    /* Taken back. */
    CHECK_RETURN(ask_here(vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_NOT_DONE);
    CHECK(VipRecvDone(vi, &done) == VIP_NOT_DONE, "receives stay while the VI is Pending Connect");
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "a VI that is disconnected is Idle");
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(VipRecvDone(vi, &done), VIP_DESCRIPTOR_ERROR);
    CHECK(done == recv && (recv->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR),
          "VipDisconnect flushes its receives");
    CHECK_RETURN(VipDisconnect(far), VIP_SUCCESS);

    /* As good as new. */
    CHECK_RETURN(ask_here(vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(ask_there(far, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_SUCCESS);
    CHECK_RETURN(outcome(far, &attributes), VIP_SUCCESS);
    vi_close(vi);
    vi_close(far);
}

/* Both ends are told which attribute differs, whoever asks first. */
static void conflict(const PairOptions *options, VIP_RETURN expected, bool far_first)
{
    char discriminator[32];
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi = client_create(&plain), far = server_create(options);

    fresh_discriminator(discriminator, sizeof discriminator);
    if (far_first)
        CHECK_RETURN(ask_there(far, discriminator, WAIT_MS), VIP_SUCCESS);
    CHECK_RETURN(ask_here(vi, discriminator, WAIT_MS), VIP_SUCCESS);
    if (!far_first)
        CHECK_RETURN(ask_there(far, discriminator, WAIT_MS), VIP_SUCCESS);
    CHECK_RETURN(outcome(far_first ? far : vi, &attributes), expected);
    CHECK_RETURN(VipConnectPeerWait(far_first ? vi : far, &attributes), expected);
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "one is Idle again");
    CHECK(vi_state(far) == VIP_STATE_IDLE, "the other is Idle again");
    vi_close(vi);
    vi_close(far);
}

static void conflicts(void)
{
    const PairOptions other_level = {.reliability = VIP_SERVICE_UNRELIABLE};
    const PairOptions other_size = {.max_transfer_bytes = 32768};

    for (int far_first = 0; far_first < 2; far_first++) {
        conflict(&other_level, VIP_INVALID_RELIABILITY_LEVEL, far_first);
        conflict(&other_size, VIP_INVALID_MTU, far_first);
    }
}

/* Clients and servers do not meet peers. */
static void other_model(void)
{
    char discriminator[32];
    Address own, far, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_VI_HANDLE client = client_create(&plain), peer = server_create(&plain);

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(&here, discriminator, &own);
    address_of(&there, discriminator, &far);
    CHECK_RETURN(ask_there(peer, discriminator, 500), VIP_SUCCESS);
    CHECK_RETURN(VipConnectRequest(client, &own.address, &far.address, WAIT_MS, &attributes),
                 VIP_NO_MATCH);
    CHECK_RETURN(VipConnectWait(here.nic, &own.address, 100, &remote.address, &attributes,
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
    VIP_RETURN answer;
} Waiter;

static void *waiter_run(void *argument)
{
    Waiter *waiter = argument;

    waiter->answer = VipConnectPeerWait(waiter->vi, &waiter->attributes);
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
    return waiter->answer;
}

/* Several threads, and threads whose request ends in their sleep. */
static void waiting(void)
{
    char discriminator[32];
    Waiter waiters[2];
    VIP_VI_HANDLE vi = client_create(&plain), peer = server_create(&plain);
    VIP_VI_ATTRIBUTES attributes;

    /* One of two is told. */
    fresh_discriminator(discriminator, sizeof discriminator);
    CHECK_RETURN(ask_here(vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    waiter_start(&waiters[0], vi);
    waiter_start(&waiters[1], vi);
    CHECK_RETURN(ask_there(peer, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(peer, &attributes), VIP_SUCCESS);
    VIP_RETURN first = waiter_finish(&waiters[0]), second = waiter_finish(&waiters[1]);
    CHECK((first == VIP_SUCCESS && second == VIP_INVALID_STATE) ||
              (first == VIP_INVALID_STATE && second == VIP_SUCCESS),
          "one of two threads is told of the connection (%s, %s)", return_name((int)first),
          return_name((int)second));

    /* Another thread takes the request back. */
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK_RETURN(ask_here(vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    waiter_start(&waiters[0], vi);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK_RETURN(waiter_finish(&waiters[0]), VIP_INVALID_STATE);
    vi_close(vi);
    vi_close(peer);
}

/* A NIC is closed under requests and threads that wait for them. */
static void closed_underneath(void)
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
        CHECK_RETURN(ask(&closed, &there, vis[n], discriminator, VIP_INFINITE), VIP_SUCCESS);
    }
    waiter_start(&waiter, vis[0]);
    CHECK_RETURN(VipConnectPeerDone(vis[1], &attributes), VIP_NOT_DONE);
    CHECK_RETURN(VipCloseNic(closed.nic), VIP_SUCCESS);
    CHECK_RETURN(waiter_finish(&waiter), INVALID);
    CHECK_RETURN(VipConnectPeerDone(vis[1], &attributes), INVALID);
}

/* --- many requests --------------------------------------------------------------------------- */

/* Many requests of one program with the same addresses: as many pairs. */
static void crowd(void)
{
    enum { CROWD = 20 };
    char discriminator[32];
    VIP_VI_HANDLE vis[CROWD];
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE odd = client_create(&plain);

    fresh_discriminator(discriminator, sizeof discriminator);
    for (unsigned n = 0; n < CROWD; n++) {
        vis[n] = client_create(&plain);
        CHECK_RETURN(ask(&here, &here, vis[n], discriminator, WAIT_MS), VIP_SUCCESS);
    }
    for (unsigned n = 0; n < CROWD; n++)
        CHECK_RETURN(outcome(vis[n], &attributes), VIP_SUCCESS);
    CHECK_RETURN(ask(&here, &here, odd, discriminator, 100), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(odd, &attributes), VIP_TIMEOUT);
    for (unsigned n = 0; n < CROWD; n++)
        vi_close(vis[n]);
    vi_close(odd);
}

/* The far end's request, made in a thread while this one makes its own. */
typedef struct {
    VIP_VI_HANDLE vi;
    const char *discriminator;
    pthread_barrier_t *start;
    VIP_RETURN answer;
} FarRequest;

static void *far_request_run(void *argument)
{
    FarRequest *request = argument;

    pthread_barrier_wait(request->start);
    request->answer = ask_there(request->vi, request->discriminator, WAIT_MS);
    return NULL;
}

/* Programs that know of no order between them ask for each other at once, again and again. */
static void both_at_once(void)
{
    const unsigned rounds = small_counts() ? 10 : 300;
    Pair pair = {client_create(&plain), server_create(&plain)};
    VIP_VI_ATTRIBUTES attributes;
    pthread_barrier_t start;

    REQUIRE(pthread_barrier_init(&start, NULL, 2) == 0, "a barrier");
    for (unsigned n = 0; n < rounds; n++) {
        FarRequest far = {pair.server, "rendezvous", &start, VIP_NOT_DONE};
        pthread_t thread;

        REQUIRE(pthread_create(&thread, NULL, far_request_run, &far) == 0, "a thread");
        pthread_barrier_wait(&start);
        CHECK_RETURN(ask_here(pair.client, "rendezvous", WAIT_MS), VIP_SUCCESS);
        pthread_join(thread, NULL);
        CHECK(far.answer == VIP_SUCCESS, "round %u: the other asks, too", n);
        REQUIRE((n % 2 ? VipConnectPeerWait(pair.client, &attributes)
                       : outcome(pair.client, &attributes)) == VIP_SUCCESS,
                "round %u: connected here", n);
        REQUIRE((n % 2 ? outcome(pair.server, &attributes)
                       : VipConnectPeerWait(pair.server, &attributes)) == VIP_SUCCESS,
                "round %u: connected there", n);
        pair_works(&pair, "asked at once");
        CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
        CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    }
    pthread_barrier_destroy(&start);
    pair_close(&pair);
}

static const Test tests[] = {
    TEST(arguments, .clauses = "3.3.6 3.3.7 3.3.8",
         .answers = "VipConnectPeerRequest SUCCESS INVALID_PARAMETER;"
                    "VipConnectPeerDone INVALID_PARAMETER INVALID_STATE;"
                    "VipConnectPeerWait INVALID_PARAMETER INVALID_STATE"),
    TEST(meeting, .clauses = "3.3.6 3.3.7 3.3.8 6.7",
         .answers = "VipConnectPeerRequest SUCCESS INVALID_STATE;"
                    "VipConnectPeerDone SUCCESS NOT_DONE INVALID_STATE;"
                    "VipConnectPeerWait SUCCESS INVALID_STATE; VipConnectRequest INVALID_STATE"),
    TEST(nobody_comes, .clauses = "3.3.6 3.3.7 3.3.8 6.7",
         .answers = "VipConnectPeerDone TIMEOUT NOT_DONE; VipConnectPeerWait TIMEOUT"),
    TEST(conflicts, .clauses = "3.3.7 3.3.8",
         .answers = "VipConnectPeerDone INVALID_RELIABILITY_LEVEL INVALID_MTU;"
                    "VipConnectPeerWait INVALID_RELIABILITY_LEVEL INVALID_MTU"),
    TEST(other_model, .clauses = "3.3.6 6.7", .answers = "VipConnectRequest NO_MATCH"),
    TEST(waiting, .clauses = "3.3.8 3.3.5",
         .answers = "VipConnectPeerWait SUCCESS INVALID_STATE"),
    TEST(closed_underneath, .clauses = "3.1.2 3.3.8",
         .answers = "VipConnectPeerWait INVALID_PARAMETER"),
    TEST(crowd, .clauses = "6.7", .answers = "VipConnectPeerDone SUCCESS"),
    TEST(both_at_once, .clauses = "6.7 3.3.6",
         .answers = "VipConnectPeerDone SUCCESS; VipConnectPeerWait SUCCESS"),
};

SUITE_MAIN(tests)
