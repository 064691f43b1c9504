/* Connections between peers: the pool, the match, what comes of a request and who is told. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

static const PairOptions plain = {0};

/* Asks with `vi` for whoever else asks for this discriminator of this host. */
static VIP_RETURN ask(const Device *device, VIP_VI_HANDLE vi, const char *discriminator,
                      VIP_ULONG timeout_ms)
{
    Address local, remote;

    address_of(device, "a name and no more", &local);
    address_of(device, discriminator, &remote);
    return VipConnectPeerRequest(vi, &local.address, &remote.address, timeout_ms);
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

static void arguments(Device *device)
{
    VIP_VI_HANDLE vi = vi_create(device, &plain, false);
    VIP_VI_ATTRIBUTES attributes;
    Address own, elsewhere;

    address_of(device, "x", &own);
    elsewhere = own;
    elsewhere.room[4 + 15] ^= 0x40;
    CHECK_RETURN(VipConnectPeerRequest(NULL, &own.address, &own.address, 10),
                 VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerRequest(device->nic, &own.address, &own.address, 10),
                 VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerRequest(vi, NULL, &own.address, 10), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, NULL, 10), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &own.address, 0), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerRequest(vi, &elsewhere.address, &own.address, 10),
                 VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerDone(NULL, &attributes), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerDone(vi, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerWait(NULL, &attributes), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerWait(vi, NULL), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_INVALID_STATE);
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "none of this changed the VI");

    /* A host of which this NIC knows no port: told by Done or Wait, and the VI stays Idle. */
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &elsewhere.address, VIP_INFINITE),
                 VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_NOT_REACHABLE);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &elsewhere.address, VIP_INFINITE),
                 VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_NOT_REACHABLE);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_INVALID_STATE);
    vi_close(vi);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &own.address, 10), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_INVALID_PARAMETER);
}

/* Two VIs of one program on one NIC. */
static void meeting(Device *device, Arena *arena)
{
    char discriminator[32];
    VIP_VI_ATTRIBUTES attributes;
    Pair pair = {vi_create(device, &plain, false),
                 vi_create(device, &(PairOptions){.server_rdma_write = VIP_TRUE}, true)};

    fresh_discriminator(discriminator, sizeof discriminator);
    CHECK_RETURN(ask(device, pair.client, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerDone(pair.client, &attributes), VIP_NOT_DONE);
    CHECK(vi_state(pair.client) == VIP_STATE_CONNECT_PENDING, "the VI is Pending Connect");

    /* In this state the VI is good for nothing else. */
    Address own;
    address_of(device, discriminator, &own);
    CHECK_RETURN(ask(device, pair.client, discriminator, 10), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectRequest(pair.client, &own.address, &own.address, 10, &attributes),
                 VIP_INVALID_STATE);
    CHECK_RETURN(VipDestroyVi(pair.client), VIP_INVALID_STATE);

    CHECK_RETURN(ask(device, pair.server, discriminator, WAIT_MS), VIP_SUCCESS);
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
    CHECK_RETURN(ask(device, pair.client, discriminator, 10), VIP_INVALID_STATE);
    pair_works(&pair, arena, "peers of one program");
    pair_close(&pair);
}

/* A request whose match does not come, for each way to be told. */
static void nobody_comes(Device *device, Arena *arena)
{
    char discriminator[32], other[32];
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi = vi_create(device, &plain, false), far = vi_create(device, &plain, true);
    VIP_DESCRIPTOR *recv = arena_descriptor(arena, 1), *done;

    describe(recv, arena_bytes(arena, 64), arena->handle, 64);
    CHECK_RETURN(VipPostRecv(vi, recv, arena->handle), VIP_SUCCESS);
    fresh_discriminator(discriminator, sizeof discriminator);
    fresh_discriminator(other, sizeof other);
    CHECK_RETURN(ask(device, far, other, VIP_INFINITE), VIP_SUCCESS);

    unsigned long long begin_ms = now_ms();
    CHECK_RETURN(ask(device, vi, discriminator, 200), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= 199, "VipConnectPeerWait lasts as long as the request");
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "a VI whose request timed out is Idle");
    begin_ms = now_ms();
    CHECK_RETURN(ask(device, vi, discriminator, 200), VIP_SUCCESS);
    CHECK_RETURN(outcome(vi, &attributes), VIP_TIMEOUT);
    CHECK(now_ms() - begin_ms >= 199, "VipConnectPeerDone answers VIP_NOT_DONE as long");
    CHECK_RETURN(VipConnectPeerDone(vi, &attributes), VIP_INVALID_STATE);
    CHECK_RETURN(VipConnectPeerDone(far, &attributes), VIP_NOT_DONE);

    /* Taken back. */
    CHECK_RETURN(ask(device, vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
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
    CHECK_RETURN(ask(device, vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(ask(device, far, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(vi, &attributes), VIP_SUCCESS);
    CHECK_RETURN(outcome(far, &attributes), VIP_SUCCESS);
    vi_close(vi);
    vi_close(far);
}

/* Both ends are told which attribute differs. */
static void conflicts(Device *device)
{
    const struct {
        PairOptions options;
        VIP_RETURN expected;
    } cases[] = {
        {{.reliability = VIP_SERVICE_UNRELIABLE}, VIP_INVALID_RELIABILITY_LEVEL},
        {{.max_transfer_bytes = 32768}, VIP_INVALID_MTU},
    };

    for (unsigned n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        for (int other_first = 0; other_first < 2; other_first++) {
            char discriminator[32];
            VIP_VI_ATTRIBUTES attributes;
            VIP_VI_HANDLE vis[2] = {vi_create(device, &plain, false),
                                    vi_create(device, &cases[n].options, true)};

            fresh_discriminator(discriminator, sizeof discriminator);
            CHECK_RETURN(ask(device, vis[other_first], discriminator, WAIT_MS), VIP_SUCCESS);
            CHECK_RETURN(ask(device, vis[!other_first], discriminator, WAIT_MS), VIP_SUCCESS);
            CHECK_RETURN(outcome(vis[other_first], &attributes), cases[n].expected);
            CHECK_RETURN(VipConnectPeerWait(vis[!other_first], &attributes), cases[n].expected);
            CHECK(vi_state(vis[0]) == VIP_STATE_IDLE, "one is Idle again");
            CHECK(vi_state(vis[1]) == VIP_STATE_IDLE, "the other is Idle again");
            vi_close(vis[0]);
            vi_close(vis[1]);
        }
    }
}

/* Clients and servers do not meet peers. */
static void other_model(Device *device)
{
    char discriminator[32];
    Address own, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_VI_HANDLE client = vi_create(device, &plain, false), peer = vi_create(device, &plain, true);

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(device, discriminator, &own);
    CHECK_RETURN(ask(device, peer, discriminator, 300), VIP_SUCCESS);
    CHECK_RETURN(VipConnectRequest(client, &own.address, &own.address, WAIT_MS, &attributes),
                 VIP_NO_MATCH);
    CHECK_RETURN(VipConnectWait(device->nic, &own.address, 100, &remote.address, &attributes,
                                &connection),
                 VIP_TIMEOUT);
    CHECK_RETURN(VipConnectPeerWait(peer, &attributes), VIP_TIMEOUT);
    vi_close(client);
    vi_close(peer);
}

/* Several threads, and threads whose request ends in their sleep. */
static void waiting(Device *device)
{
    char discriminator[32];
    Waiter waiters[2];
    VIP_VI_HANDLE vi = vi_create(device, &plain, false), peer = vi_create(device, &plain, true);
    VIP_VI_ATTRIBUTES attributes;

    /* One of two is told. */
    fresh_discriminator(discriminator, sizeof discriminator);
    CHECK_RETURN(ask(device, vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    waiter_start(&waiters[0], vi);
    waiter_start(&waiters[1], vi);
    CHECK_RETURN(ask(device, peer, discriminator, VIP_INFINITE), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(peer, &attributes), VIP_SUCCESS);
    VIP_RETURN first = waiter_finish(&waiters[0]), second = waiter_finish(&waiters[1]);
    CHECK((first == VIP_SUCCESS && second == VIP_INVALID_STATE) ||
              (first == VIP_INVALID_STATE && second == VIP_SUCCESS),
          "one of two threads is told of the connection (%s, %s)", return_name((int)first),
          return_name((int)second));

    /* Another thread takes the request back. */
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK_RETURN(ask(device, vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    waiter_start(&waiters[0], vi);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK_RETURN(waiter_finish(&waiters[0]), VIP_INVALID_STATE);
    vi_close(vi);
    vi_close(peer);
}

/* A NIC is closed under requests and threads that wait for them. */
static void closed_underneath(void)
{
    Device device;
    char discriminator[32];
    Waiter waiter;
    VIP_VI_ATTRIBUTES attributes;

    device_open(&device);
    VIP_VI_HANDLE vi = vi_create(&device, &plain, false), other = vi_create(&device, &plain, true);
    fresh_discriminator(discriminator, sizeof discriminator);
    CHECK_RETURN(ask(&device, vi, discriminator, VIP_INFINITE), VIP_SUCCESS);
    fresh_discriminator(discriminator, sizeof discriminator);
    CHECK_RETURN(ask(&device, other, discriminator, VIP_INFINITE), VIP_SUCCESS);
    waiter_start(&waiter, vi);
    CHECK_RETURN(VipConnectPeerDone(other, &attributes), VIP_NOT_DONE);
    CHECK_RETURN(VipCloseNic(device.nic), VIP_SUCCESS);
    CHECK_RETURN(waiter_finish(&waiter), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipConnectPeerDone(other, &attributes), VIP_INVALID_PARAMETER);
}

/* Many requests with the same addresses: as many pairs. */
static void crowd(Device *device)
{
    enum { CROWD = 20 };
    char discriminator[32];
    VIP_VI_HANDLE vis[CROWD];
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE odd = vi_create(device, &plain, true);

    fresh_discriminator(discriminator, sizeof discriminator);
    for (unsigned n = 0; n < CROWD; n++) {
        vis[n] = vi_create(device, &plain, false);
        CHECK_RETURN(ask(device, vis[n], discriminator, WAIT_MS), VIP_SUCCESS);
    }
    for (unsigned n = 0; n < CROWD; n++)
        CHECK_RETURN(outcome(vis[n], &attributes), VIP_SUCCESS);
    CHECK_RETURN(ask(device, odd, discriminator, 100), VIP_SUCCESS);
    CHECK_RETURN(VipConnectPeerWait(odd, &attributes), VIP_TIMEOUT);
    for (unsigned n = 0; n < CROWD; n++)
        vi_close(vis[n]);
    vi_close(odd);
}

/* Lets both programs go on at the same moment. */
static void meet(int to, int from)
{
    char byte = 'x';

    REQUIRE(write(to, &byte, 1) == 1 && read(from, &byte, 1) == 1, "the other program is there");
}

/* One of two programs that ask for each other at once, again and again: for the same pair of
 * addresses, as programs that know of no order between them do. */
static void one_of_two(int to, int from)
{
    const unsigned rounds = small_counts() ? 10 : 300;
    Device device;
    Arena arena;
    Pair pair;
    Address own;
    VIP_VI_ATTRIBUTES attributes;

    device_open(&device);
    errors_catch(&device);
    arena_open(&arena, &device, 1 << 16, device.ptag, VIP_FALSE);
    address_of(&device, "rendezvous", &own);
    pair.client = vi_create(&device, &plain, false);
    VIP_DESCRIPTOR *send = arena_descriptor(&arena, 1), *recv = arena_descriptor(&arena, 1);
    unsigned *number = (unsigned *)arena_bytes(&arena, sizeof *number),
             *other = (unsigned *)arena_bytes(&arena, sizeof *other);
    for (unsigned n = 0; n < rounds; n++) {
        describe(recv, other, arena.handle, sizeof *other);
        CHECK_RETURN(VipPostRecv(pair.client, recv, arena.handle), VIP_SUCCESS);
        meet(to, from);
        CHECK_RETURN(VipConnectPeerRequest(pair.client, &own.address, &own.address, WAIT_MS),
                     VIP_SUCCESS);
        REQUIRE((n % 2 ? VipConnectPeerWait(pair.client, &attributes)
                       : outcome(pair.client, &attributes)) == VIP_SUCCESS,
                "round %u: connected", n);
        *number = n;
        describe(send, number, arena.handle, sizeof *number);
        CHECK_RETURN(VipPostSend(pair.client, send, arena.handle), VIP_SUCCESS);
        sent(pair.client, send);
        received(pair.client, recv);
        CHECK(*other == n, "round %u: with the VI of this round", n);
        meet(to, from);
        CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    }
    vi_close(pair.client);
    arena_close(&arena);
    device_close(&device);
}

/* Forks before either program has opened a NIC. */
static void two_processes(void)
{
    int there[2], back[2], status;

    REQUIRE(pipe(there) == 0 && pipe(back) == 0, "pipes");
    pid_t child = fork();
    REQUIRE(child >= 0, "a second process");
    if (child == 0) {
        check_quietly();
        one_of_two(back[1], there[0]);
        _exit(check_summary());
    }
    one_of_two(there[1], back[0]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "the second process passed its checks");
}

int main(void)
{
    Device device;
    Arena arena;

    two_processes();
    device_open(&device);
    errors_catch(&device);
    arena_open(&arena, &device, 1 << 17, device.ptag, VIP_FALSE);
    arguments(&device);
    meeting(&device, &arena);
    nobody_comes(&device, &arena);
    conflicts(&device);
    other_model(&device);
    waiting(&device);
    closed_underneath();
    crowd(&device);
    arena_close(&arena);
    device_close(&device);
    return check_summary();
}
