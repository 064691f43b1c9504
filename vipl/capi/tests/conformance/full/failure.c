/* A NIC whose shared segment another process cuts short: what is told, what the calls answer, and a new start. */
#define _POSIX_C_SOURCE 200809L

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "suite.h"

/* The NIC whose segment is the file that FRAGILE_SEGMENT names; it is of this process alone. */
#define FRAGILE_NIC "FRAGILE"

static const PairOptions plain = {0};

static void cut_the_segment_short(void)
{
    const char *path = getenv("FRAGILE_SEGMENT");
    char command[1024];

    REQUIRE(path != NULL, "the test says where the segment is");
    snprintf(command, sizeof command, "truncate --no-create --size 0 '%s'", path);
    REQUIRE(system(command) == 0, "%s", command);
}

static void what_is_told(const Pair *pair)
{
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    VIP_ERROR_DESCRIPTOR error;

    if (error_expected(NULL, VIP_ERROR_CATASTROPHIC, &error))
        CHECK((error.NicHandle == here.nic || error.NicHandle == there.nic) &&
                  error.ViHandle == NULL && error.CQHandle == NULL && error.DescriptorPtr == NULL &&
                  error.ResourceCode == VIP_RESOURCE_NIC,
              "the error names the NIC and nothing else");
    vi_reaches(pair->client, VIP_STATE_ERROR);
    vi_reaches(pair->server, VIP_STATE_ERROR);
    error_expected(pair->client, VIP_ERROR_CONN_LOST, NULL);
    error_expected(pair->server, VIP_ERROR_CONN_LOST, NULL);
    while (errors_of(NULL, VIP_ERROR_CATASTROPHIC) < 2 && now_ms() < deadline_ms)
        sched_yield();
    CHECK(errors_of(NULL, VIP_ERROR_CATASTROPHIC) == 2, "once for each opening");
}

static void calls_afterwards(const Pair *pair)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&here, &plain);
    Address local, remote;
    VIP_CONN_HANDLE connection;
    VIP_VI_HANDLE vi;
    VIP_NIC_HANDLE nic = NULL;
    VIP_NIC_ATTRIBUTES found;

    address_of(&here, "nobody", &local);
    CHECK_RETURN(VipConnectWait(here.nic, &local.address, VIP_INFINITE, &remote.address,
                                &attributes, &connection),
                 VIP_ERROR_RESOURCE);
    attributes = vi_attributes(&here, &plain);
    CHECK_RETURN(VipCreateVi(here.nic, &attributes, NULL, NULL, &vi), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipOpenNic(FRAGILE_NIC, &nic), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipConnectRequest(pair->client, &local.address, &local.address, VIP_INFINITE,
                                   &attributes),
                 VIP_INVALID_STATE);
    CHECK_RETURN(VipDisconnect(pair->client), VIP_SUCCESS);
    CHECK_RETURN(VipConnectRequest(pair->client, &local.address, &local.address, VIP_INFINITE,
                                   &attributes),
                 VIP_NOT_REACHABLE);
    CHECK(vi_state(pair->client) == VIP_STATE_ERROR, "a reliable VI is in Error again");
    CHECK_RETURN(VipQueryNic(here.nic, &found), VIP_SUCCESS);
}

/* A peer request that nobody matches. */
static VIP_VI_HANDLE pooled(const char *discriminator)
{
    VIP_VI_HANDLE vi = client_create(&plain);
    Address own;

    address_of(&here, discriminator, &own);
    CHECK_RETURN(VipConnectPeerRequest(vi, &own.address, &own.address, VIP_INFINITE), VIP_SUCCESS);
    return vi;
}

static void a_nic_that_fails(void)
{
    Pair pair;
    VIP_VI_ATTRIBUTES attributes;

    fixture_use_here(FRAGILE_NIC);
    pair_open(&pair, &plain);
    pair_works(&pair, "before");
    VIP_DESCRIPTOR *receive = arena_descriptor(&theirs, 0);
    CHECK_RETURN(VipPostRecv(pair.server, receive, theirs.handle), VIP_SUCCESS);
    VIP_VI_HANDLE asks = pooled("asks"), waits = pooled("waits");
    cut_the_segment_short();
    what_is_told(&pair);
    CHECK_RETURN(VipConnectPeerWait(waits, &attributes), VIP_NOT_REACHABLE);
    CHECK_RETURN(VipConnectPeerDone(asks, &attributes), VIP_NOT_REACHABLE);
    CHECK(vi_state(asks) == VIP_STATE_ERROR && vi_state(waits) == VIP_STATE_ERROR,
          "reliable VIs that cannot reach anybody are in Error");
    vi_close(asks);
    vi_close(waits);
    CHECK(received(pair.server, receive) & VIP_STATUS_DESC_FLUSHED_ERROR, "the receive is flushed");
    calls_afterwards(&pair);
    pair_close(&pair);
    fixture_use_end();

    fixture_use_here(FRAGILE_NIC);
    pair_open(&pair, &plain);
    pair_works(&pair, "after it was opened again");
    pair_close(&pair);
    fixture_use_end();
}

static const Test tests[] = {
    TEST(a_nic_that_fails, .clauses = "6.3.1 7.5 3.8.1 3.3.7 3.3.8",
         .answers = "VipConnectWait ERROR_RESOURCE; VipCreateVi ERROR_RESOURCE;"
                    "VipOpenNic ERROR_RESOURCE; VipConnectRequest NOT_REACHABLE INVALID_STATE;"
                    "VipConnectPeerDone NOT_REACHABLE; VipConnectPeerWait NOT_REACHABLE"),
};

SUITE_MAIN(tests)
