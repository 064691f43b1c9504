/* Attributes changed after VI and memory were made, and the nodes that a NIC knows. */
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

/* One attribute is wrong and every other one new: none of them is taken. */
static void vi_attributes_one_by_one(void)
{
    VIP_VI_HANDLE vi = client_create(&plain);
    const VIP_VI_ATTRIBUTES before = attributes_of(vi);
    VIP_VI_ATTRIBUTES good = before, found;
    VIP_PROTECTION_HANDLE other, gone;

    REQUIRE_RETURN(VipCreatePtag(here.nic, &other), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreatePtag(here.nic, &gone), VIP_SUCCESS);
    REQUIRE_RETURN(VipDestroyPtag(here.nic, gone), VIP_SUCCESS);
    good.ReliabilityLevel = VIP_SERVICE_UNRELIABLE;
    good.MaxTransferSize = 999;
    good.Ptag = other;
    good.EnableRdmaWrite = VIP_TRUE;
    struct {
        VIP_VI_ATTRIBUTES attributes;
        VIP_RETURN answer;
    } wrong[7];
    for (size_t n = 0; n < 7; n++)
        wrong[n].attributes = good;
    wrong[0].attributes.ReliabilityLevel = 3;
    wrong[0].answer = VIP_INVALID_RELIABILITY_LEVEL;
    wrong[1].attributes.MaxTransferSize = here.attributes.MaxTransferSize + 1;
    wrong[1].answer = VIP_INVALID_MTU;
    wrong[2].attributes.MaxTransferSize = 0;
    wrong[2].answer = VIP_INVALID_MTU;
    wrong[3].attributes.QoS = &good;
    wrong[3].answer = VIP_INVALID_QOS;
    wrong[4].attributes.Ptag = gone;
    wrong[4].answer = VIP_INVALID_PTAG;
    wrong[5].attributes.Ptag = NULL;
    wrong[5].answer = VIP_INVALID_PTAG;
    wrong[6].attributes.EnableRdmaRead = VIP_TRUE; /* never offered on unreliable connections */
    wrong[6].answer = VIP_INVALID_RDMAREAD;
    for (size_t n = 0; n < 7; n++) {
        CHECK_RETURN(VipSetViAttributes(vi, &wrong[n].attributes), wrong[n].answer);
        found = attributes_of(vi);
        CHECK(same_vi(&found, &before), "row %zu changes nothing", n);
    }
    CHECK_RETURN(VipSetViAttributes(vi, NULL), INVALID);
    CHECK_RETURN(VipSetViAttributes(here.nic, &good), INVALID);
    CHECK_RETURN(VipSetViAttributes(vi, &good), VIP_SUCCESS);
    found = attributes_of(vi);
    CHECK(same_vi(&found, &good), "all of them are new");
    CHECK_RETURN(VipDestroyPtag(here.nic, other), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipSetViAttributes(vi, &good), INVALID);
    CHECK_RETURN(VipDestroyPtag(here.nic, other), VIP_SUCCESS);
}

static void vi_states(void)
{
    VIP_VI_ATTRIBUTES wanted, found;
    Pair pair;

    pair_open(&pair, &plain);
    found = wanted = attributes_of(pair.client);
    wanted.MaxTransferSize = 12345;
    CHECK_RETURN(VipSetViAttributes(pair.client, &wanted), VIP_INVALID_STATE);
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    CHECK_RETURN(VipSetViAttributes(pair.client, &wanted), VIP_INVALID_STATE);
    CHECK(attributes_of(pair.client).MaxTransferSize == found.MaxTransferSize, "nothing changed");
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    CHECK_RETURN(VipSetViAttributes(pair.client, &wanted), VIP_SUCCESS);
    wanted.Ptag = there.ptag;
    CHECK_RETURN(VipSetViAttributes(pair.server, &wanted), VIP_SUCCESS);
    pair_connect(&pair);
    pair_works(&pair, "with changed attributes");
    pair_close(&pair);
}

static void mem_attributes(void)
{
    static unsigned char region[3 * 4096];
    const VIP_MEM_ATTRIBUTES before = {here.ptag, VIP_FALSE, VIP_FALSE};
    VIP_MEM_ATTRIBUTES good = {NULL, VIP_TRUE, VIP_TRUE}, wrong, found;
    VIP_PROTECTION_HANDLE other;
    VIP_NIC_HANDLE nic = here.nic;
    VIP_MEM_HANDLE handle;

    REQUIRE_RETURN(VipCreatePtag(nic, &other), VIP_SUCCESS);
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
    wrong.Ptag = nic;
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, handle, &wrong), VIP_INVALID_PTAG);
    CHECK_RETURN(VipQueryMem(nic, region + 5, handle, &found), VIP_SUCCESS);
    CHECK(found.Ptag == before.Ptag && found.EnableRdmaWrite == VIP_FALSE &&
              found.EnableRdmaRead == VIP_FALSE,
          "what was refused changed nothing");
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, handle, &good), VIP_SUCCESS);
    CHECK_RETURN(VipQueryMem(nic, region + 5, handle, &found), VIP_SUCCESS);
    CHECK(found.Ptag == other && found.EnableRdmaWrite == VIP_TRUE &&
              found.EnableRdmaRead == VIP_TRUE,
          "all of them are new");
    CHECK_RETURN(VipDestroyPtag(nic, other), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDeregisterMem(nic, region + 5, handle), VIP_SUCCESS);
    CHECK_RETURN(VipSetMemAttributes(nic, region + 5, handle, &good), INVALID);
    CHECK_RETURN(VipDestroyPtag(nic, other), VIP_SUCCESS);
}

/* A region and a VI are opened for writes of the peer, and closed again under the connection. */
static void rights_that_change(void)
{
    VIP_MEM_ATTRIBUTES closed = {here.ptag, VIP_FALSE, VIP_FALSE},
                       opened = {here.ptag, VIP_TRUE, VIP_FALSE};
    VIP_DESCRIPTOR *write = arena_descriptor(&theirs, 2);
    unsigned char *data = arena_bytes(&theirs, 64);
    volatile unsigned char *target = arena_bytes(&mine, 64);
    Pair pair = {client_create(&plain), server_create(&plain)};
    VIP_VI_ATTRIBUTES writable = attributes_of(pair.client);

    writable.EnableRdmaWrite = VIP_TRUE;
    CHECK_RETURN(VipSetViAttributes(pair.client, &writable), VIP_SUCCESS);
    CHECK_RETURN(VipSetMemAttributes(here.nic, mine.base, mine.handle, &opened), VIP_SUCCESS);
    pair_connect(&pair);
    memset(data, 0x5A, 64);
    target[63] = 0;
    describe_write(write, data, theirs.handle, 64, (void *)(uintptr_t)target, mine.handle);
    CHECK_RETURN(VipPostSend(pair.server, write, theirs.handle), VIP_SUCCESS);
    CHECK((sent(pair.server, write) & VIP_STATUS_ERROR_MASK) == 0, "a write that is allowed");
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    while (target[63] != 0x5A && now_ms() < deadline_ms) {
    }
    CHECK(target[63] == 0x5A, "arrives");

    CHECK_RETURN(VipSetMemAttributes(here.nic, mine.base, mine.handle, &closed), VIP_SUCCESS);
    memset(data, 0xA5, 64);
    describe_write(write, data, theirs.handle, 64, (void *)(uintptr_t)target, mine.handle);
    CHECK_RETURN(VipPostSend(pair.server, write, theirs.handle), VIP_SUCCESS);
    sent(pair.server, write);
    error_expected(pair.client, VIP_ERROR_RDMAW_PROT, NULL);
    CHECK(target[0] == 0x5A && target[63] == 0x5A, "one that is not allowed writes nothing");
    vi_reaches(pair.client, VIP_STATE_ERROR);
    vi_reaches(pair.server, VIP_STATE_ERROR);
    pair_close(&pair);
}

enum { HOSTS = 2 };

static void autodiscovery(void)
{
    Device small;
    static const VIP_UINT8 last[HOSTS] = {9, 8}; /* of the small NIC's neighbours */
    static Address untouched, rooms[HOSTS + 1];
    VIP_NET_ADDRESS *entries[HOSTS + 1];
    VIP_AUTODISCOVERY_LIST list = {1, entries, 0};

    device_open_named(&small, "SMALL");
    VIP_NIC_HANDLE nic = small.nic;
    memset(&untouched, 0xEE, sizeof untouched);
    untouched.address.HostAddressLen = small.attributes.NicAddressLen;
    for (unsigned n = 0; n < HOSTS + 1; n++) {
        rooms[n] = untouched;
        entries[n] = &rooms[n].address;
    }
    CHECK_RETURN(VipQuerySystemManagementInfo(nic, 0, &list), INVALID);
    CHECK_RETURN(VipQuerySystemManagementInfo(nic, 2, &list), INVALID);
    CHECK_RETURN(VipQuerySystemManagementInfo(nic, ~0ul, &list), INVALID);
    CHECK_RETURN(VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, NULL), INVALID);
#define DISCOVER() VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, &list)
    /* Asking how many there are takes no array. */
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
    entries[1] = &rooms[1].address;
    rooms[1].address.HostAddressLen = (VIP_UINT16)(small.attributes.NicAddressLen - 1);
    CHECK_RETURN(DISCOVER(), INVALID);
    rooms[1].address.HostAddressLen = 40;
    CHECK(memcmp(&rooms[0], &untouched, sizeof untouched) == 0, "a refusal writes no entry");
    list.NumAdAddrs = HOSTS + 1;
    CHECK_RETURN(DISCOVER(), VIP_SUCCESS);
    CHECK(list.NumAdAddrs == HOSTS && list.ADAddrArray == entries && list.NumberOfHops == 1,
          "%lu entries are written", list.NumAdAddrs);
    for (unsigned n = 0; n < HOSTS; n++) {
        const VIP_UINT8 *host = rooms[n].address.HostAddress;
        CHECK(rooms[n].address.HostAddressLen == 16 && host[10] == 0xFF && host[12] == 192 &&
                  host[15] == last[n],
              "entry %u is 192.0.2.%u", n, last[n]);
        CHECK(rooms[n].address.DiscriminatorLen == 0xEEEE && rooms[n].room[20] == 0xEE,
              "and nothing but a host");
    }
    CHECK(memcmp(&rooms[HOSTS], &untouched, sizeof untouched) == 0, "the entry that is too many");
    /* Nobody is nearer than one hop. */
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
         .answers = "VipSetViAttributes SUCCESS INVALID_PARAMETER INVALID_RELIABILITY_LEVEL "
                    "INVALID_MTU INVALID_QOS INVALID_PTAG INVALID_RDMAREAD"),
    TEST(vi_states, .clauses = "3.7.2", .answers = "VipSetViAttributes SUCCESS INVALID_STATE"),
    TEST(mem_attributes, .clauses = "3.7.4",
         .answers = "VipSetMemAttributes SUCCESS INVALID_PARAMETER INVALID_PTAG"),
    TEST(rights_that_change, .clauses = "3.7.2 3.7.4 3.8.1",
         .answers = "VipSetViAttributes SUCCESS; VipSetMemAttributes SUCCESS"),
    TEST(autodiscovery, .clauses = "3.7.6",
         .answers = "VipQuerySystemManagementInfo SUCCESS INVALID_PARAMETER ERROR_RESOURCE"),
};

SUITE_MAIN(tests)
