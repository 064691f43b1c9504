/* VipCloseNic: it cleans up whatever is left, and ends the calls that wait on what it takes away. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "fixture.h"

static const PairOptions plain = {0};

/* VipCloseNic cleans up whatever is left, and its handles are no good afterwards. */
static void everything_open(Device *device)
{
    Device second = *device;
    Arena arena;
    Pair pair;
    VIP_CQ_HANDLE cq;
    VIP_DESCRIPTOR *done;

    REQUIRE_RETURN(VipOpenNic("VINIC", &second.nic), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreatePtag(second.nic, &second.ptag), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreateCQ(second.nic, 8, &cq), VIP_SUCCESS);
    arena_open(&arena, &second, 8192, second.ptag, VIP_FALSE);
    pair_open(&pair, &second, &plain);
    VIP_DESCRIPTOR *recv = arena_descriptor(&arena, 1);
    describe(recv, arena.base + 4096, arena.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.server, recv, arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipCloseNic(second.nic), VIP_SUCCESS);
    CHECK_RETURN(VipRecvDone(pair.server, &done), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipDisconnect(pair.client), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipDestroyPtag(device->nic, second.ptag), VIP_INVALID_PARAMETER);
    CHECK_RETURN(VipDeregisterMem(device->nic, arena.base, arena.handle), VIP_INVALID_PARAMETER);
    free(arena.base);
}

/* A call that waits for ever, in a thread of its own. */
typedef struct {
    const char *name;
    VIP_RETURN (*call)(const Device *device, const Pair *pair, VIP_CQ_HANDLE cq);
    const Device *device;
    const Pair *pair;
    VIP_CQ_HANDLE cq;
    VIP_RETURN answer;
} Blocked;

static VIP_RETURN block_in_recv(const Device *device, const Pair *pair, VIP_CQ_HANDLE cq)
{
    VIP_DESCRIPTOR *done;

    (void)device;
    (void)cq;
    return VipRecvWait(pair->server, VIP_INFINITE, &done);
}

static VIP_RETURN block_in_cq(const Device *device, const Pair *pair, VIP_CQ_HANDLE cq)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv_queue;

    (void)device;
    (void)pair;
    return VipCQWait(cq, VIP_INFINITE, &vi, &recv_queue);
}

static VIP_RETURN block_in_listen(const Device *device, const Pair *pair, VIP_CQ_HANDLE cq)
{
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;

    (void)pair;
    (void)cq;
    address_of(device, "nobody asks", &local);
    return VipConnectWait(device->nic, &local.address, VIP_INFINITE, &remote.address, &attributes,
                          &connection);
}

static void *run_blocked(void *argument)
{
    Blocked *blocked = argument;

    blocked->answer = blocked->call(blocked->device, blocked->pair, blocked->cq);
    return NULL;
}

static void waits_end(const Device *device)
{
    const struct timespec nap = {0, 50000000};
    Device closed = *device;
    Arena arena;
    Pair pair;
    VIP_CQ_HANDLE cq;
    Blocked blocked[] = {
        {"VipRecvWait", block_in_recv, &closed, &pair, NULL, VIP_NOT_DONE},
        {"VipCQWait", block_in_cq, &closed, &pair, NULL, VIP_NOT_DONE},
        {"VipConnectWait", block_in_listen, &closed, &pair, NULL, VIP_NOT_DONE},
    };
    enum { BLOCKED = sizeof blocked / sizeof blocked[0] };
    pthread_t threads[BLOCKED];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;

    device_open(&closed);
    arena_open(&arena, &closed, 8192, closed.ptag, VIP_FALSE);
    REQUIRE_RETURN(VipCreateCQ(closed.nic, 4, &cq), VIP_SUCCESS);
    pair_open(&pair, &closed, &plain);
    VIP_DESCRIPTOR *recv = arena_descriptor(&arena, 1);
    describe(recv, arena.base + 4096, arena.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.server, recv, arena.handle), VIP_SUCCESS);
    for (unsigned n = 0; n < BLOCKED; n++) {
        blocked[n].cq = cq;
        REQUIRE(pthread_create(&threads[n], NULL, run_blocked, &blocked[n]) == 0, "a thread");
    }
    /* And a request that is taken and never answered. */
    VIP_VI_HANDLE asking = vi_create(&closed, &plain, false);
    Request *request = request_start(&closed, asking, "held", VIP_INFINITE);
    address_of(&closed, "held", &local);
    REQUIRE_RETURN(VipConnectWait(closed.nic, &local.address, WAIT_MS, &remote.address, &attributes,
                                  &connection),
                   VIP_SUCCESS);
    /* Time for the threads to go to sleep; what is checked holds also for those that have not. */
    nanosleep(&nap, NULL);
    CHECK_RETURN(VipCloseNic(closed.nic), VIP_SUCCESS);
    for (unsigned n = 0; n < BLOCKED; n++) {
        pthread_join(threads[n], NULL);
        CHECK(blocked[n].answer == VIP_INVALID_PARAMETER || blocked[n].answer == VIP_DESCRIPTOR_ERROR,
              "%s ends with %s", blocked[n].name, return_name((int)blocked[n].answer));
    }
    VIP_RETURN answer = request_finish(request, NULL);
    CHECK(answer == VIP_INVALID_PARAMETER || answer == VIP_INVALID_STATE,
          "VipConnectRequest ends with %s", return_name((int)answer));
    free(arena.base);
}

int main(void)
{
    Device device;

    device_open(&device);
    everything_open(&device);
    waits_end(&device); /* the NIC stays up */
    device_close(&device);
    waits_end(&device); /* the NIC goes down */
    return check_summary();
}
