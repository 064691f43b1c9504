/* Registered memory. */
#include <string.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};
enum { MAX_OBJECTS = 64 }; /* above every limit of the small NIC */

static void registering(void)
{
    static unsigned char region[10000];
    VIP_MEM_ATTRIBUTES attributes = {local_device.ptag, VIP_TRUE, VIP_FALSE}, found;
    VIP_MEM_HANDLE handle = 1;

    CHECK_RETURN(VipRegisterMem(local_device.nic, NULL, 4096, &attributes, &handle), INVALID);
    CHECK(handle == 0, "a failed registration gives memory handle 0");
    CHECK_RETURN(VipRegisterMem(local_device.nic, region, 4096, NULL, &handle), INVALID);
    CHECK_RETURN(VipRegisterMem(local_device.nic, region, 4096, &attributes, NULL), INVALID);
    CHECK_RETURN(VipRegisterMem(local_device.nic, region, 0, &attributes, &handle), INVALID);
    CHECK(VipRegisterMem(local_device.nic, region, ~0ul, &attributes, &handle) != VIP_SUCCESS,
          "a region that wraps around is not registered");
    attributes.Ptag = (VIP_PROTECTION_HANDLE)5;
    CHECK_RETURN(VipRegisterMem(local_device.nic, region, 4096, &attributes, &handle),
                 VIP_INVALID_PTAG);
    attributes.Ptag = NULL;
    CHECK_RETURN(VipRegisterMem(local_device.nic, region, 4096, &attributes, &handle),
                 VIP_INVALID_PTAG);
    attributes.Ptag = local_device.ptag;

    REQUIRE_RETURN(VipRegisterMem(local_device.nic, region + 1, 4099, &attributes, &handle),
                   VIP_SUCCESS);
    CHECK(handle != 0, "a memory handle is not 0");
    CHECK_RETURN(VipQueryMem(local_device.nic, region + 1, handle, NULL), INVALID);
    CHECK_RETURN(VipQueryMem(local_device.nic, region + 1, handle, &found), VIP_SUCCESS);
    CHECK(found.Ptag == local_device.ptag && found.EnableRdmaWrite == VIP_TRUE &&
              found.EnableRdmaRead == VIP_FALSE,
          "the attributes are returned as they were set");
    CHECK_RETURN(VipQueryMem(local_device.nic, region + 5000, handle, &found), INVALID);
    CHECK_RETURN(VipQueryMem(local_device.nic, region + 1, handle + 1, &found), INVALID);
    CHECK_RETURN(VipDeregisterMem(local_device.nic, region + 5000, handle), INVALID);
    CHECK_RETURN(VipDeregisterMem(local_device.nic, NULL, handle), INVALID);
    CHECK_RETURN(VipDeregisterMem(local_device.nic, region + 1, handle), VIP_SUCCESS);
    CHECK_RETURN(VipDeregisterMem(local_device.nic, region + 1, handle), INVALID);
    CHECK_RETURN(VipDeregisterMem(local_device.nic, region + 1, 0), INVALID);
    CHECK_RETURN(VipQueryMem(local_device.nic, region + 1, handle, &found), INVALID);
}

/* A region may be readable; the reliability level of reads depends on the VI. */
static void readable_memory(void)
{
    static unsigned char region[4096];
    VIP_MEM_ATTRIBUTES attributes = {local_device.ptag, VIP_FALSE, VIP_TRUE}, found;
    VIP_MEM_HANDLE handle;

    REQUIRE_RETURN(VipRegisterMem(local_device.nic, region, sizeof region, &attributes, &handle),
                   VIP_SUCCESS);
    CHECK_RETURN(VipQueryMem(local_device.nic, region, handle, &found), VIP_SUCCESS);
    CHECK(found.EnableRdmaRead == VIP_TRUE && found.EnableRdmaWrite == VIP_FALSE,
          "the attributes of readable memory are returned");
    CHECK_RETURN(VipDeregisterMem(local_device.nic, region, handle), VIP_SUCCESS);
}

static void region_limit(void)
{
    static unsigned char block[4096];
    VIP_MEM_HANDLE handles[MAX_OBJECTS];
    VIP_ULONG count = 0;
    VIP_RETURN result;
    Device small;

    device_open_named(&small, "SMALL");
    VIP_MEM_ATTRIBUTES attributes = {small.ptag, VIP_FALSE, VIP_FALSE};
    CHECK_RETURN(VipRegisterMem(small.nic, block, small.attributes.MaxRegisterBytes + 4096,
                                &attributes, &handles[0]),
                 VIP_ERROR_RESOURCE);
    for (unsigned round = 0; round < 2; round++) {
        while ((result = VipRegisterMem(small.nic, block, sizeof block, &attributes,
                                        &handles[count])) == VIP_SUCCESS)
            count++;
        CHECK(result == VIP_ERROR_RESOURCE && count == small.attributes.MaxRegisterRegions,
              "%lu regions, then %s", count, return_name((int)result));
        while (count > 0)
            CHECK_RETURN(VipDeregisterMem(small.nic, block, handles[--count]), VIP_SUCCESS);
    }
    device_close(&small);
}

/* Registrations are cheap and may overlap; the end of one does not affect another. */
static void overlapping_registrations(void)
{
    const unsigned rounds = small_counts() ? 50 : 5000;
    static unsigned char block[65536];
    VIP_MEM_ATTRIBUTES attributes = {local_device.ptag, VIP_FALSE, VIP_FALSE};
    VIP_DESCRIPTOR *send = arena_descriptor(&local_arena, 1),
                   *recv = arena_descriptor(&remote_arena, 1);
    unsigned char *target = arena_bytes(&remote_arena, 4096);
    VIP_MEM_HANDLE outer, inner;
    unsigned wrong = 0;
    Pair pair;

    CHECK_RETURN(VipRegisterMem(local_device.nic, block, sizeof block, &attributes, &outer),
                 VIP_SUCCESS);
    for (unsigned n = 0; n < rounds; n++) {
        unsigned char *start = block + n * 13 % 60000;
        wrong += VipRegisterMem(local_device.nic, start, 1 + n % 5000, &attributes, &inner) !=
                                           VIP_SUCCESS;
        wrong += inner == 0 || inner == outer;
        wrong += VipDeregisterMem(local_device.nic, start, inner) != VIP_SUCCESS;
    }
    CHECK(wrong == 0, "%u registrations of any alignment (%u wrong)", rounds, wrong);
    pair_open(&pair, &plain);
    fill(block + 777, 4096, 8);
    describe(recv, target, remote_arena.handle, 4096);
    describe(send, block + 777, outer, 4096);
    CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, local_arena.handle), VIP_SUCCESS);
    sent(pair.client, send);
    received(pair.server, recv);
    CHECK(filled(target, 4096, 8), "the overlapping registration is not affected");
    pair_close(&pair);
    CHECK_RETURN(VipDeregisterMem(local_device.nic, block, outer), VIP_SUCCESS);
}

static const Test tests[] = {
    TEST(registering, .clauses = "3.4.3 3.4.4 3.7.5",
         .returns = "VipRegisterMem SUCCESS INVALID_PARAMETER INVALID_PTAG;"
                    "VipDeregisterMem SUCCESS INVALID_PARAMETER;"
                    "VipQueryMem SUCCESS INVALID_PARAMETER"),
    TEST(readable_memory, .clauses = "3.4.3 3.7.5", .returns = "VipRegisterMem SUCCESS"),
    TEST(region_limit, .clauses = "3.4.3 3.7.1",
         .returns = "VipRegisterMem SUCCESS ERROR_RESOURCE"),
    TEST(overlapping_registrations, .clauses = "3.4.3 3.4.4",
         .returns = "VipRegisterMem SUCCESS; VipDeregisterMem SUCCESS"),
};

SUITE_MAIN(tests)
