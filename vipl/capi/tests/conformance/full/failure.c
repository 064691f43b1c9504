/* A NIC whose shared segment is truncated by another process: errors, return codes, and
 * reopening. */
#define _POSIX_C_SOURCE 200809L

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "suite.h"

/* The NIC whose segment is the file named by FRAGILE_SEGMENT; used by this process only. */
#define FRAGILE_NIC "FRAGILE"

static const PairOptions plain = {0};

static void truncate_segment(void)
{
    const char *path = getenv("FRAGILE_SEGMENT");
    char command[1024];

    REQUIRE(path != NULL, "FRAGILE_SEGMENT is set");
    snprintf(command, sizeof command, "truncate --no-create --size 0 '%s'", path);
    REQUIRE(system(command) == 0, "%s", command);
}

static void check_reports(const Pair *pair)
{
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    VIP_ERROR_DESCRIPTOR error;

    if (expect_error(NULL, VIP_ERROR_CATASTROPHIC, &error))
        CHECK((error.NicHandle == local_device.nic || error.NicHandle == remote_device.nic) &&
                  error.ViHandle == NULL && error.CQHandle == NULL && error.DescriptorPtr == NULL &&
                  error.ResourceCode == VIP_RESOURCE_NIC,
              "the error names only the NIC");
    vi_reaches(pair->client, VIP_STATE_ERROR);
    vi_reaches(pair->server, VIP_STATE_ERROR);
    expect_error(pair->client, VIP_ERROR_CONN_LOST, NULL);
    expect_error(pair->server, VIP_ERROR_CONN_LOST, NULL);
    while (errors_count(NULL, VIP_ERROR_CATASTROPHIC) < 2 && now_ms() < deadline_ms)
        sched_yield();
    CHECK(errors_count(NULL, VIP_ERROR_CATASTROPHIC) == 2, "once for each NIC handle");
}

static void check_calls(const Pair *pair)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &plain);
    Address local, remote;
    VIP_CONN_HANDLE connection;
    VIP_VI_HANDLE vi;
    VIP_NIC_HANDLE nic = NULL;
    VIP_NIC_ATTRIBUTES found;

    address_of(&local_device, "no-client", &local);
    CHECK_RETURN(VipConnectWait(local_device.nic, &local.address, VIP_INFINITE, &remote.address,
                                &attributes, &connection),
                 VIP_ERROR_RESOURCE);
    attributes = vi_attributes(&local_device, &plain);
    CHECK_RETURN(VipCreateVi(local_device.nic, &attributes, NULL, NULL, &vi), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipOpenNic(FRAGILE_NIC, &nic), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipConnectRequest(pair->client, &local.address, &local.address, VIP_INFINITE,
                                   &attributes),
                 VIP_INVALID_STATE);
    CHECK_RETURN(VipDisconnect(pair->client), VIP_SUCCESS);
    CHECK_RETURN(VipConnectRequest(pair->client, &local.address, &local.address, VIP_INFINITE,
                                   &attributes),
                 VIP_NOT_REACHABLE);
    CHECK(vi_state(pair->client) == VIP_STATE_ERROR, "a reliable VI is in Error again");
    CHECK_RETURN(VipQueryNic(local_device.nic, &found), VIP_SUCCESS);
}

/* Makes a peer request that does not match. */
static VIP_VI_HANDLE pending_peer_request(const char *discriminator)
{
    VIP_VI_HANDLE vi = client_create(&plain);
    Address own;

    address_of(&local_device, discriminator, &own);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &own.address, VIP_INFINITE), VIP_SUCCESS);
    return vi;
}

static void failed_nic(void)
{
    Pair pair;
    VIP_VI_ATTRIBUTES attributes;

    fixture_use_one_process(FRAGILE_NIC);
    pair_open(&pair, &plain);
    pair_works(&pair, "before");
    VIP_DESCRIPTOR *receive = arena_descriptor(&remote_arena, 0);
    CHECK_RETURN(VipPostRecv(pair.server, receive, remote_arena.handle), VIP_SUCCESS);
    VIP_VI_HANDLE polled = pending_peer_request("polled"),
                  waiting = pending_peer_request("waiting");
    truncate_segment();
    check_reports(&pair);
    CHECK_RETURN(VipConnectPeerWait(waiting, &attributes), VIP_NOT_REACHABLE);
    CHECK_RETURN(VipConnectPeerDone(polled, &attributes), VIP_NOT_REACHABLE);
    CHECK(vi_state(polled) == VIP_STATE_ERROR && vi_state(waiting) == VIP_STATE_ERROR,
          "reliable VIs without a route are in Error");
    vi_close(polled);
    vi_close(waiting);
    CHECK(received(pair.server, receive) & VIP_STATUS_DESC_FLUSHED_ERROR, "the receive is flushed");
    check_calls(&pair);
    pair_close(&pair);
    fixture_use_end();

    fixture_use_one_process(FRAGILE_NIC);
    pair_open(&pair, &plain);
    pair_works(&pair, "after reopening");
    pair_close(&pair);
    fixture_use_end();
}

static const Test tests[] = {
    TEST(failed_nic, .clauses = "6.3.1 7.5 3.8.1 3.3.7 3.3.8",
         .returns = "VipConnectWait ERROR_RESOURCE; VipCreateVi ERROR_RESOURCE;"
                    "VipOpenNic ERROR_RESOURCE; VipConnectRequest NOT_REACHABLE INVALID_STATE;"
                    "VipConnectPeerDone NOT_REACHABLE; VipConnectPeerWait NOT_REACHABLE"),
};

SUITE_MAIN(tests)
