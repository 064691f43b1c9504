/* Changes of the attributes of VIs and memory, and autodiscovery. */
#include <string.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};

static bool same_vi(const VIP_VI_ATTRIBUTES *a, const VIP_VI_ATTRIBUTES *b)
{
    return a->ReliabilityLevel == b->ReliabilityLevel && a->MaxTransferSize == b->MaxTransferSize &&
           a->QoS == b->QoS && a->Ptag == b->Ptag && a->EnableRdmaWrite == b->EnableRdmaWrite &&
           a->EnableRdmaRead == b->EnableRdmaRead;
}

static VIP_VI_ATTRIBUTES attributes_of(VIP_VI_HANDLE vi)
{
    VIP_VI_ATTRIBUTES found;
    VIP_VI_STATE state;
    VIP_BOOLEAN empty;

    REQUIRE_RETURN(VipQueryVi(vi, &state, &found, &empty, &empty), VIP_SUCCESS);
    return found;
}

/* If one attribute is invalid, none is changed. */
static void vi_attributes_one_by_one(void)
{
    VIP_VI_HANDLE vi = client_create(&plain);
    const VIP_VI_ATTRIBUTES before = attributes_of(vi);
    VIP_VI_ATTRIBUTES good = before, found;
    VIP_PROTECTION_HANDLE other, destroyed;

    REQUIRE_RETURN(VipCreatePtag(local_device.nic, &other), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreatePtag(local_device.nic, &destroyed), VIP_SUCCESS);
    REQUIRE_RETURN(VipDestroyPtag(local_device.nic, destroyed), VIP_SUCCESS);
    good.ReliabilityLevel = VIP_SERVICE_UNRELIABLE;
    good.MaxTransferSize = 999;
    good.Ptag = other;
    good.EnableRdmaWrite = VIP_TRUE;
    struct {
        VIP_VI_ATTRIBUTES attributes;
        VIP_RETURN result;
    } wrong[11];
    for (size_t n = 0; n < 11; n++)
        wrong[n].attributes = good;
    wrong[0].attributes.ReliabilityLevel = 3;
    wrong[0].result = VIP_INVALID_RELIABILITY_LEVEL;
    wrong[1].attributes.MaxTransferSize = local_device.attributes.MaxTransferSize + 1;
    wrong[1].result = VIP_INVALID_MTU;
    wrong[2].attributes.MaxTransferSize = 0;
    wrong[2].result = VIP_INVALID_MTU;
    wrong[3].attributes.QoS = &good;
    wrong[3].result = VIP_INVALID_QOS;
    wrong[4].attributes.Ptag = destroyed;
    wrong[4].result = VIP_INVALID_PTAG;
    wrong[5].attributes.Ptag = NULL;
    wrong[5].result = VIP_INVALID_PTAG;
    wrong[6].attributes.EnableRdmaRead = VIP_TRUE; /* invalid at Unreliable Delivery */
    wrong[6].result = VIP_INVALID_RDMAREAD;
    wrong[7].attributes.ReliabilityLevel = 0;
    wrong[7].result = VIP_INVALID_RELIABILITY_LEVEL;
    wrong[8].attributes.ReliabilityLevel = 8;
    wrong[8].result = VIP_INVALID_RELIABILITY_LEVEL;
    wrong[9].attributes.MaxTransferSize = ~0ul;
    wrong[9].result = VIP_INVALID_MTU;
    wrong[10].attributes.Ptag = vi;
    wrong[10].result = VIP_INVALID_PTAG;
    for (size_t n = 0; n < 11; n++) {
        CHECK_RETURN(VipSetViAttributes(vi, &wrong[n].attributes), wrong[n].result);
        found = attributes_of(vi);
        CHECK(same_vi(&found, &before), "row %zu changes nothing", n);
    }
    CHECK_RETURN(VipSetViAttributes(vi, NULL), INVALID);
    CHECK_RETURN(VipSetViAttributes(local_device.nic, &good), INVALID);
    CHECK_RETURN(VipSetViAttributes(vi, &good), VIP_SUCCESS);
    found = attributes_of(vi);
    CHECK(same_vi(&found, &good), "all attributes are changed");
    CHECK_RETURN(VipDestroyPtag(local_device.nic, other), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipSetViAttributes(vi, &good), INVALID);
    CHECK_RETURN(VipDestroyPtag(local_device.nic, other), VIP_SUCCESS);
}

/* Checks that attributes of a VI in this state, valid or not, are refused and change nothing. */
static void change_is_refused(VIP_VI_HANDLE vi, VIP_VI_STATE state)
{
    const VIP_VI_ATTRIBUTES before = attributes_of(vi);
    VIP_VI_ATTRIBUTES wanted = before, found;

    wanted.MaxTransferSize = 999;
    wanted.EnableRdmaWrite = VIP_TRUE;
    for (unsigned n = 0; n < 2; n++) {
        CHECK_RETURN(VipSetViAttributes(vi, &wanted), VIP_INVALID_STATE);
        found = attributes_of(vi);
        CHECK(vi_state(vi) == state && same_vi(&found, &before), "state %d: nothing is changed",
              (int)state);
        wanted.ReliabilityLevel = 0; /* the state is checked before the attributes */
    }
}

static void vi_states(void)
{
    char discriminator[32];
    Address local, remote;
    VIP_CONN_HANDLE connection;
    VIP_VI_ATTRIBUTES wanted, found;
    Pair pair;

    pair_open(&pair, &plain);
    change_is_refused(pair.client, VIP_STATE_CONNECTED);
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    change_is_refused(pair.client, VIP_STATE_ERROR);
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    wanted = attributes_of(pair.client);
    wanted.MaxTransferSize = 12345;
    CHECK_RETURN(VipSetViAttributes(pair.client, &wanted), VIP_SUCCESS);
    /* The server changes its VI to the attributes of the request before it accepts. */
    fresh_discriminator(discriminator, sizeof discriminator);
    Request *request = request_start(pair.client, discriminator, WAIT_MS);
    address_of(&remote_device, discriminator, &local);
    REQUIRE_RETURN(VipConnectWait(remote_device.nic, &local.address, WAIT_MS, &remote.address,
                                  &found, &connection),
                   VIP_SUCCESS);
    CHECK(found.MaxTransferSize == 12345, "the request has the changed attributes");
    change_is_refused(pair.client, VIP_STATE_CONNECT_PENDING);
    CHECK_RETURN(VipConnectAccept(connection, pair.server), VIP_INVALID_MTU);
    wanted.Ptag = remote_device.ptag;
    CHECK_RETURN(VipSetViAttributes(pair.server, &wanted), VIP_SUCCESS);
    CHECK_RETURN(VipConnectAccept(connection, pair.server), VIP_SUCCESS);
    CHECK_RETURN(request_finish(request, NULL), VIP_SUCCESS);
    pair_works(&pair, "with changed attributes");
    pair_close(&pair);
}

static void mem_attributes(void)
{
    static unsigned char region[3 * 4096];
    const VIP_MEM_ATTRIBUTES before = {local_device.ptag, VIP_FALSE, VIP_FALSE};
    VIP_MEM_ATTRIBUTES good = {NULL, VIP_TRUE, VIP_TRUE}, wrong, found;
    VIP_PROTECTION_HANDLE other, destroyed;
    VIP_NIC_HANDLE nic = local_device.nic;
    VIP_MEM_HANDLE handle;

    REQUIRE_RETURN(VipCreatePtag(nic, &other), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreatePtag(nic, &destroyed), VIP_SUCCESS);
    REQUIRE_RETURN(VipDestroyPtag(nic, destroyed), VIP_SUCCESS);
    good.Ptag = other;
    wrong = before;
    REQUIRE_RETURN(VipRegisterMem(nic, region + 5, 5000, &wrong, &handle), VIP_SUCCESS);
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, handle, NULL), INVALID);
    CHECK_RETURN(VipSetMemAttributes(nic, region + 6, handle, &good), INVALID);
    CHECK_RETURN(VipSetMemAttributes(nic, NULL, handle, &good), INVALID);
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, 0, &good), INVALID);
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, handle + 1, &good), INVALID);
    wrong = good;
    wrong.Ptag = NULL;
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, handle, &wrong), VIP_INVALID_PTAG);
    /* The region is checked before the attributes. */
    CHECK_RETURN(VipSetMemAttributes(nic, region + 6, handle, &wrong), INVALID);
    wrong.Ptag = nic;
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, handle, &wrong), VIP_INVALID_PTAG);
    wrong.Ptag = destroyed;
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, handle, &wrong), VIP_INVALID_PTAG);
    CHECK_RETURN(VipQueryMem(nic, region + 5, handle, &found), VIP_SUCCESS);
    CHECK(found.Ptag == before.Ptag && found.EnableRdmaWrite == VIP_FALSE &&
              found.EnableRdmaRead == VIP_FALSE,
          "a refused change has no effect");
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, handle, &good), VIP_SUCCESS);
    CHECK_RETURN(VipQueryMem(nic, region + 5, handle, &found), VIP_SUCCESS);
    CHECK(found.Ptag == other && found.EnableRdmaWrite == VIP_TRUE &&
              found.EnableRdmaRead == VIP_TRUE,
          "all attributes are changed");
    CHECK_RETURN(VipDestroyPtag(nic, other), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDeregisterMem(nic, region + 5, handle), VIP_SUCCESS);
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, handle, &good), INVALID);
    CHECK_RETURN(VipDestroyPtag(nic, other), VIP_SUCCESS);
}

/* Enables RDMA writes of a VI and a region, and disables them again during the connection. */
static void changed_access_rights(void)
{
    VIP_MEM_ATTRIBUTES closed = {local_device.ptag, VIP_FALSE, VIP_FALSE},
                       opened = {local_device.ptag, VIP_TRUE, VIP_FALSE};
    VIP_DESCRIPTOR *write = arena_descriptor(&remote_arena, 2);
    unsigned char *data = arena_bytes(&remote_arena, 64);
    volatile unsigned char *target = arena_bytes(&local_arena, 64);
    Pair pair = {client_create(&plain), server_create(&plain)};
    VIP_VI_ATTRIBUTES writable = attributes_of(pair.client);

    writable.EnableRdmaWrite = VIP_TRUE;
    CHECK_RETURN(VipSetViAttributes(pair.client, &writable), VIP_SUCCESS);
    CHECK_RETURN(VipSetMemAttributes(local_device.nic, local_arena.base, local_arena.handle,
                                     &opened), VIP_SUCCESS);
    pair_connect(&pair);
    memset(data, 0x5A, 64);
    target[63] = 0;
    describe_write(write, data, remote_arena.handle, 64, (void *)(uintptr_t)target,
                   local_arena.handle);
    CHECK_RETURN(VipPostSend(pair.server, write, remote_arena.handle), VIP_SUCCESS);
    CHECK((sent(pair.server, write) & VIP_STATUS_ERROR_MASK) == 0, "a permitted write completes");
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    while (target[63] != 0x5A && now_ms() < deadline_ms) {
    }
    CHECK(target[63] == 0x5A, "and arrives");

    CHECK_RETURN(VipSetMemAttributes(local_device.nic, local_arena.base, local_arena.handle,
                                     &closed), VIP_SUCCESS);
    memset(data, 0xA5, 64);
    describe_write(write, data, remote_arena.handle, 64, (void *)(uintptr_t)target,
                   local_arena.handle);
    CHECK_RETURN(VipPostSend(pair.server, write, remote_arena.handle), VIP_SUCCESS);
    sent(pair.server, write);
    expect_error(pair.client, VIP_ERROR_RDMAW_PROT, NULL);
    CHECK(target[0] == 0x5A && target[63] == 0x5A, "a refused write has no effect");
    vi_reaches(pair.client, VIP_STATE_ERROR);
    vi_reaches(pair.server, VIP_STATE_ERROR);
    pair_close(&pair);
}

enum { HOSTS = 2 };

static void autodiscovery(void)
{
    Device small;
    static const VIP_UINT8 last[HOSTS] = {9, 8}; /* of the small NIC's neighbours */
    static Address untouched, addresses[HOSTS + 1];
    VIP_NET_ADDRESS *entries[HOSTS + 1];
    VIP_AUTODISCOVERY_LIST list = {1, entries, 0};

    device_open_named(&small, "SMALL");
    VIP_NIC_HANDLE nic = small.nic;
    memset(&untouched, 0xEE, sizeof untouched);
    untouched.address.HostAddressLen = small.attributes.NicAddressLen;
    for (unsigned n = 0; n < HOSTS + 1; n++) {
        addresses[n] = untouched;
        entries[n] = &addresses[n].address;
    }
    CHECK_RETURN(VipQuerySystemManagementInfo(nic, 0, &list), INVALID);
    CHECK_RETURN(VipQuerySystemManagementInfo(nic, 2, &list), INVALID);
    CHECK_RETURN(VipQuerySystemManagementInfo(nic, ~0ul, &list), INVALID);
    CHECK_RETURN(VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, NULL), INVALID);
#define DISCOVER() VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, &list)
    /* Querying the number of nodes needs no array. */
    list.ADAddrArray = NULL;
    CHECK_RETURN(DISCOVER(), VIP_ERROR_RESOURCE);
    CHECK(list.NumAdAddrs == HOSTS, "%lu entries are needed", list.NumAdAddrs);
    CHECK_RETURN(DISCOVER(), INVALID);
    list.ADAddrArray = entries;
    list.NumAdAddrs = 1;
    CHECK_RETURN(DISCOVER(), VIP_ERROR_RESOURCE);
    CHECK(list.NumAdAddrs == HOSTS, "%lu entries are needed", list.NumAdAddrs);
    entries[1] = NULL;
    CHECK_RETURN(DISCOVER(), INVALID);
    entries[1] = &addresses[1].address;
    addresses[1].address.HostAddressLen = (VIP_UINT16)(small.attributes.NicAddressLen - 1);
    CHECK_RETURN(DISCOVER(), INVALID);
    addresses[1].address.HostAddressLen = 40;
    CHECK(memcmp(&addresses[0], &untouched, sizeof untouched) == 0,
          "a failed call writes no entry");
    list.NumAdAddrs = HOSTS + 1;
    CHECK_RETURN(DISCOVER(), VIP_SUCCESS);
    CHECK(list.NumAdAddrs == HOSTS && list.ADAddrArray == entries && list.NumberOfHops == 1,
          "%lu entries are written", list.NumAdAddrs);
    for (unsigned n = 0; n < HOSTS; n++) {
        const VIP_UINT8 *host = addresses[n].address.HostAddress;
        CHECK(addresses[n].address.HostAddressLen == 16 && host[10] == 0xFF && host[12] == 192 &&
                  host[15] == last[n],
              "entry %u is 192.0.2.%u", n, last[n]);
        CHECK(addresses[n].address.DiscriminatorLen == 0xEEEE && addresses[n].bytes[20] == 0xEE,
              "only the host address is written");
    }
    CHECK(memcmp(&addresses[HOSTS], &untouched, sizeof untouched) == 0,
          "the unused entry is not written");
    /* All nodes are at least one hop away. */
    list.NumberOfHops = 0;
    CHECK_RETURN(DISCOVER(), VIP_SUCCESS);
    CHECK(list.NumAdAddrs == 0, "%lu entries within no hop", list.NumAdAddrs);
    list.NumberOfHops = ~0ul;
    CHECK_RETURN(DISCOVER(), VIP_ERROR_RESOURCE);
    CHECK(list.NumAdAddrs == HOSTS, "%lu entries within any number of hops", list.NumAdAddrs);
#undef DISCOVER
    device_close(&small);
}

static const Test tests[] = {
    TEST(vi_attributes_one_by_one, .clauses = "3.7.2",
         .returns = "VipSetViAttributes SUCCESS INVALID_PARAMETER INVALID_RELIABILITY_LEVEL "
                    "INVALID_MTU INVALID_QOS INVALID_PTAG INVALID_RDMAREAD"),
    TEST(vi_states, .clauses = "3.7.2", .returns = "VipSetViAttributes SUCCESS INVALID_STATE"),
    TEST(mem_attributes, .clauses = "3.7.4",
         .returns = "VipSetMemAttributes SUCCESS INVALID_PARAMETER INVALID_PTAG"),
    TEST(changed_access_rights, .clauses = "3.7.2 3.7.4 3.8.1",
         .returns = "VipSetViAttributes SUCCESS; VipSetMemAttributes SUCCESS"),
    TEST(autodiscovery, .clauses = "3.7.6",
         .returns = "VipQuerySystemManagementInfo SUCCESS INVALID_PARAMETER ERROR_RESOURCE"),
};

SUITE_MAIN(tests)
