/* A NIC whose shared segment another process cuts short: what is told, what the calls answer, and a new start. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>

#include "fixture.h"

/* The NIC whose segment is the file that FRAGILE_SEGMENT names. */
#define FRAGILE_NIC "FRAGILE"

static const PairOptions plain = {0};

static void cut_the_segment_short(void)
{
    const char *path = getenv("FRAGILE_SEGMENT");
    char command[1024];

    REQUIRE(path != NULL, "the test says where the segment is");
    snprintf(command, sizeof command, "truncate --size 0 '%s'", path);
    REQUIRE(system(command) == 0, "%s", command);
}

static void what_is_told(const Device *device, const Pair *pair)
{
    VIP_ERROR_DESCRIPTOR error;

    if (error_expected(NULL, VIP_ERROR_CATASTROPHIC, &error))
        CHECK(error.NicHandle == device->nic && error.ViHandle == NULL && error.CQHandle == NULL &&
                  error.DescriptorPtr == NULL && error.ResourceCode == VIP_RESOURCE_NIC,
              "the error names the NIC and nothing else");
    vi_reaches(pair->client, VIP_STATE_ERROR);
    vi_reaches(pair->server, VIP_STATE_ERROR);
    error_expected(pair->client, VIP_ERROR_CONN_LOST, NULL);
    error_expected(pair->server, VIP_ERROR_CONN_LOST, NULL);
    CHECK(errors_of(NULL, VIP_ERROR_CATASTROPHIC) == 1, "once");
}

static void calls_afterwards(Device *device, const Pair *pair)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(device, &plain);
    Address local, remote;
    VIP_CONN_HANDLE connection;
    VIP_VI_HANDLE vi;
    VIP_NIC_HANDLE nic = NULL;

    address_of(device, "nobody", &local);
    CHECK_RETURN(VipConnectWait(device->nic, &local.address, VIP_INFINITE, &remote.address,
                                &attributes, &connection),
                 VIP_ERROR_RESOURCE);
    attributes = vi_attributes(device, &plain);
    CHECK_RETURN(VipCreateVi(device->nic, &attributes, NULL, NULL, &vi), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipOpenNic(FRAGILE_NIC, &nic), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipConnectRequest(pair->client, &local.address, &local.address, VIP_INFINITE,
                                   &attributes),
                 VIP_INVALID_STATE);
    CHECK_RETURN(VipDisconnect(pair->client), VIP_SUCCESS);
    CHECK_RETURN(VipConnectRequest(pair->client, &local.address, &local.address, VIP_INFINITE,
                                   &attributes),
                 VIP_NOT_REACHABLE);
    CHECK(vi_state(pair->client) == VIP_STATE_ERROR, "a reliable VI is in Error again");
    CHECK_RETURN(VipQueryNic(device->nic, &device->attributes), VIP_SUCCESS);
}

int main(void)
{
    Device device;
    Arena arena;
    Pair pair;

    device_open_named(&device, FRAGILE_NIC);
    errors_catch(&device);
    arena_open(&arena, &device, 1 << 16, device.ptag, VIP_FALSE);
    pair_open(&pair, &device, &plain);
    pair_works(&pair, &arena, "before");
    VIP_DESCRIPTOR *receive = arena_descriptor(&arena, 0);
    CHECK_RETURN(VipPostRecv(pair.server, receive, arena.handle), VIP_SUCCESS);
    cut_the_segment_short();
    what_is_told(&device, &pair);
    CHECK(received(pair.server, receive) & VIP_STATUS_DESC_FLUSHED_ERROR, "the receive is flushed");
    calls_afterwards(&device, &pair);
    pair_close(&pair);
    arena_close(&arena);
    device_close(&device);

    device_open_named(&device, FRAGILE_NIC);
    arena_open(&arena, &device, 1 << 16, device.ptag, VIP_FALSE);
    pair_open(&pair, &device, &plain);
    pair_works(&pair, &arena, "after it was opened again");
    pair_close(&pair);
    arena_close(&arena);
    device_close(&device);
    return check_summary();
}
