/* Every call with NULL, stale, made-up and foreign arguments, and its return codes. */
#define _POSIX_C_SOURCE 200809L

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

#define INVALID VIP_INVALID_PARAMETER

/* Handles of no object: NULL, small, an address, all ones, and every bit pattern in between. */
static VIP_PVOID made_up(unsigned n, const Device *device)
{
    static int variable;
    const VIP_PVOID values[] = {NULL, (VIP_PVOID)1, &variable, (VIP_PVOID)UINTPTR_MAX,
                                (VIP_PVOID)((uintptr_t)device->nic + 1),
                                (VIP_PVOID)((uintptr_t)device->nic ^ (1ull << 63)),
                                (VIP_PVOID)((uintptr_t)device->nic ^ (1ull << 32))};

    return n < sizeof values / sizeof values[0] ? values[n] : (VIP_PVOID)(uintptr_t)-2;
}
enum { MADE_UP = 7 };

/* Every call that takes a NIC handle, with one that is none. */
static void nic_calls(VIP_NIC_HANDLE bad, Device *device)
{
    VIP_NIC_ATTRIBUTES nic_attributes;
    VIP_VI_ATTRIBUTES attributes = vi_attributes(device, &(PairOptions){0});
    VIP_MEM_ATTRIBUTES memory = {device->ptag, VIP_FALSE, VIP_FALSE};
    VIP_MEM_HANDLE handle = 7;
    VIP_PVOID out;
    Address address, remote;
    VIP_CHAR name[64] = "localhost";
    VIP_ULONG length = sizeof name;

    address_of(device, "nobody", &address);
    CHECK_RETURN(VipQueryNic(bad, &nic_attributes), INVALID);
    CHECK_RETURN(VipErrorCallback(bad, NULL, NULL), INVALID);
    CHECK_RETURN(VipCreatePtag(bad, &out), INVALID);
    CHECK_RETURN(VipDestroyPtag(bad, device->ptag), INVALID);
    CHECK_RETURN(VipRegisterMem(bad, name, sizeof name, &memory, &handle), INVALID);
    CHECK(handle == 0, "a failed registration gives memory handle 0");
    CHECK_RETURN(VipDeregisterMem(bad, name, 1), INVALID);
    CHECK_RETURN(VipQueryMem(bad, name, 1, &memory), INVALID);
    CHECK_RETURN(VipSetMemAttributes(bad, name, 1, &memory), INVALID);
    VIP_AUTODISCOVERY_LIST list = {1, NULL, 0};
    CHECK_RETURN(VipQuerySystemManagementInfo(bad, VIP_SMI_AUTODISCOVERY, &list), INVALID);
    CHECK_RETURN(VipCreateVi(bad, &attributes, NULL, NULL, &out), INVALID);
    CHECK_RETURN(VipCreateCQ(bad, 16, &out), INVALID);
    CHECK_RETURN(VipConnectWait(bad, &address.address, 0, &remote.address, &attributes, &out),
                 INVALID);
    CHECK_RETURN(VipNSInit(bad, NULL), INVALID);
    CHECK_RETURN(VipNSGetHostByName(bad, name, &address.address, 0), INVALID);
    CHECK_RETURN(VipNSGetHostByAddr(bad, &address.address, name, &length), INVALID);
    CHECK_RETURN(VipNSShutdown(bad), INVALID);
    CHECK_RETURN(VipCloseNic(bad), INVALID);
}

/* Every call that takes a VI handle, with one that is none. */
static void vi_calls(VIP_VI_HANDLE bad, Device *device, Arena *arena)
{
    VIP_DESCRIPTOR *descriptor = arena_descriptor(arena, 1), *out;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_STATE state;
    VIP_BOOLEAN flag;
    Address address;

    address_of(device, "nobody", &address);
    CHECK_RETURN(VipQueryVi(bad, &state, &attributes, &flag, &flag), INVALID);
    attributes = vi_attributes(device, &(PairOptions){0});
    CHECK_RETURN(VipSetViAttributes(bad, &attributes), INVALID);
    CHECK_RETURN(VipPostSend(bad, descriptor, arena->handle), INVALID);
    CHECK_RETURN(VipPostRecv(bad, descriptor, arena->handle), INVALID);
    out = descriptor;
    CHECK_RETURN(VipSendDone(bad, &out), INVALID);
    CHECK(out == NULL, "no descriptor with an error");
    CHECK_RETURN(VipRecvDone(bad, &out), INVALID);
    CHECK_RETURN(VipSendWait(bad, 0, &out), INVALID);
    CHECK_RETURN(VipRecvWait(bad, 0, &out), INVALID);
    CHECK_RETURN(VipConnectRequest(bad, &address.address, &address.address, 10, &attributes),
                 INVALID);
    CHECK_RETURN(VipDisconnect(bad), INVALID);
    CHECK_RETURN(VipDestroyVi(bad), INVALID);
}

static void other_handles(VIP_PVOID bad, Device *device, VIP_VI_HANDLE vi)
{
    VIP_VI_HANDLE out;
    VIP_BOOLEAN flag;

    CHECK_RETURN(VipCQDone(bad, &out, &flag), INVALID);
    CHECK_RETURN(VipCQWait(bad, 0, &out, &flag), INVALID);
    CHECK_RETURN(VipDestroyCQ(bad), INVALID);
    CHECK_RETURN(VipConnectAccept(bad, vi), INVALID);
    CHECK_RETURN(VipConnectReject(bad), INVALID);
    CHECK_RETURN(VipDestroyPtag(device->nic, bad), INVALID);
}

/* Handles of one kind handed in as another. */
static void foreign_handles(Device *device, Arena *arena, VIP_VI_HANDLE vi, VIP_CQ_HANDLE cq)
{
    nic_calls(vi, device);
    nic_calls(cq, device);
    vi_calls(device->nic, device, arena);
    vi_calls(cq, device, arena);
    vi_calls(device->ptag, device, arena);
    other_handles(device->nic, device, vi);
    other_handles(vi, device, vi);
}

static void open_and_names(Device *device)
{
    VIP_NIC_HANDLE nic = NULL;
    char long_name[5000];

    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    CHECK_RETURN(VipOpenNic(NULL, &nic), INVALID);
    CHECK_RETURN(VipOpenNic("VINIC", NULL), INVALID);
    CHECK(VipOpenNic("no such device", &nic) != VIP_SUCCESS, "an unknown device does not open");
    CHECK(VipOpenNic("", &nic) != VIP_SUCCESS, "a device without a name does not open");
    CHECK(VipOpenNic("VINIC77", &nic) != VIP_SUCCESS, "a device number too high does not open");
    CHECK(VipOpenNic("\xFF\xFE", &nic) != VIP_SUCCESS, "a name that is no text does not open");
    CHECK(VipOpenNic(long_name, &nic) != VIP_SUCCESS, "an endless name does not open");
    CHECK_RETURN(VipQueryNic(device->nic, NULL), INVALID);

    /* The same NIC once more: another handle, which goes stale by itself. */
    REQUIRE_RETURN(VipOpenNic("VINIC0", &nic), VIP_SUCCESS);
    CHECK(nic != NULL && nic != device->nic, "a second opening gives a handle of its own");
    CHECK_RETURN(VipCloseNic(nic), VIP_SUCCESS);
    nic_calls(nic, device);
    CHECK_RETURN(VipQueryNic(device->nic, &device->attributes), VIP_SUCCESS);
}

/* What the guide and old programs expect of a NIC's limits. */
static void nic_limits(const Device *device)
{
    const VIP_NIC_ATTRIBUTES *a = &device->attributes;
    const VIP_ULONG numbers[] = {
        a->HardwareVersion, a->ProviderVersion, a->MaxRegisterBytes, a->MaxRegisterRegions,
        a->MaxRegisterBlockBytes, a->MaxVI, a->MaxDescriptorsPerQueue, a->MaxSegmentsPerDesc,
        a->MaxCQ, a->MaxCQEntries, a->MaxTransferSize, a->NativeMTU, a->MaxPtags};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        CHECK(numbers[i] <= INT_MAX, "limit %zu, %lu, fits an int", i, numbers[i]);
    CHECK(memchr(a->Name, '\0', sizeof a->Name) != NULL && a->Name[0] != '\0', "the NIC has a name");
    CHECK(a->NicAddressLen == 16 && a->LocalNicAddress != NULL, "addresses have 16 bytes");
    CHECK(a->MaxDiscriminatorLen >= 16, "discriminators of 16 bytes");
    CHECK(a->MaxSegmentsPerDesc >= 252, "252 segments");
    CHECK(a->MaxTransferSize >= 131072, "messages of 128 KiB");
    CHECK(a->MaxPtags >= a->MaxVI && a->MaxVI > 0, "a protection tag for every VI");
    CHECK(a->MaxCQ > 0 && a->MaxCQEntries > 0 && a->MaxDescriptorsPerQueue > 0, "queues");
    CHECK(a->ReliabilityLevelSupport & VIP_SERVICE_RELIABLE_DELIVERY, "Reliable Delivery");
    CHECK(a->ReliabilityLevelSupport == (VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_DELIVERY |
                                         VIP_SERVICE_RELIABLE_RECEPTION),
          "all reliability levels");
    CHECK(a->RDMAReadSupport == (VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION),
          "RDMA reads where nothing is lost without notice");
    CHECK(a->ThreadSafe == VIP_TRUE || a->ThreadSafe == VIP_FALSE, "ThreadSafe is a VIP_BOOLEAN");
}

static void create_vi(Device *device)
{
    const VIP_VI_ATTRIBUTES good = vi_attributes(device, &(PairOptions){0});
    VIP_VI_ATTRIBUTES wrong;
    VIP_VI_HANDLE vi;

    CHECK_RETURN(VipCreateVi(device->nic, NULL, NULL, NULL, &vi), INVALID);
    wrong = good;
    CHECK_RETURN(VipCreateVi(device->nic, &wrong, NULL, NULL, NULL), INVALID);
    CHECK_RETURN(VipCreateVi(device->nic, &wrong, device->nic, NULL, &vi), INVALID);
    CHECK_RETURN(VipCreateVi(device->nic, &wrong, NULL, (VIP_CQ_HANDLE)99, &vi), INVALID);
    const VIP_RELIABILITY_LEVEL levels[] = {0, 3, 8, 0xFFFF};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        wrong.ReliabilityLevel = levels[i];
        CHECK_RETURN(VipCreateVi(device->nic, &wrong, NULL, NULL, &vi),
                     VIP_INVALID_RELIABILITY_LEVEL);
    }
    for (VIP_RELIABILITY_LEVEL level = 1; level <= 4; level = (VIP_RELIABILITY_LEVEL)(level * 2)) {
        bool reads = device->attributes.RDMAReadSupport & level;
        wrong.ReliabilityLevel = level;
        CHECK_RETURN(VipCreateVi(device->nic, &wrong, NULL, NULL, &vi), VIP_SUCCESS);
        CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
        wrong.EnableRdmaRead = VIP_TRUE;
        CHECK_RETURN(VipCreateVi(device->nic, &wrong, NULL, NULL, &vi),
                     reads ? VIP_SUCCESS : VIP_INVALID_RDMAREAD);
        if (reads)
            CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
        wrong.EnableRdmaRead = VIP_FALSE;
    }
    wrong = good;
    wrong.MaxTransferSize = device->attributes.MaxTransferSize + 1;
    CHECK_RETURN(VipCreateVi(device->nic, &wrong, NULL, NULL, &vi), VIP_INVALID_MTU);
    wrong = good;
    wrong.QoS = &wrong;
    CHECK_RETURN(VipCreateVi(device->nic, &wrong, NULL, NULL, &vi), VIP_INVALID_QOS);
    wrong = good;
    wrong.Ptag = (VIP_PROTECTION_HANDLE)5;
    CHECK_RETURN(VipCreateVi(device->nic, &wrong, NULL, NULL, &vi), VIP_INVALID_PTAG);
    wrong.Ptag = NULL;
    CHECK_RETURN(VipCreateVi(device->nic, &wrong, NULL, NULL, &vi), VIP_INVALID_PTAG);
}

static void query_vi(Device *device, VIP_VI_HANDLE vi)
{
    VIP_VI_STATE state = VIP_STATE_ERROR;
    VIP_VI_ATTRIBUTES attributes;
    VIP_BOOLEAN send_empty = 7, recv_empty = 7;

    CHECK_RETURN(VipQueryVi(vi, NULL, &attributes, &send_empty, &recv_empty), INVALID);
    CHECK_RETURN(VipQueryVi(vi, &state, NULL, &send_empty, &recv_empty), INVALID);
    CHECK_RETURN(VipQueryVi(vi, &state, &attributes, NULL, &recv_empty), INVALID);
    CHECK_RETURN(VipQueryVi(vi, &state, &attributes, &send_empty, NULL), INVALID);
    CHECK_RETURN(VipQueryVi(vi, &state, &attributes, &send_empty, &recv_empty), VIP_SUCCESS);
    CHECK(state == VIP_STATE_IDLE && send_empty == VIP_TRUE && recv_empty == VIP_TRUE,
          "a new VI is Idle and empty");
    CHECK(attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY &&
              attributes.MaxTransferSize == 65536 && attributes.QoS == NULL &&
              attributes.Ptag == device->ptag && attributes.EnableRdmaWrite == VIP_FALSE &&
              attributes.EnableRdmaRead == VIP_FALSE,
          "the attributes come back as they were set");
}

static void memory_calls(Device *device)
{
    static unsigned char region[10000];
    VIP_MEM_ATTRIBUTES attributes = {device->ptag, VIP_TRUE, VIP_FALSE}, found;
    VIP_MEM_HANDLE handle = 1;
    VIP_PROTECTION_HANDLE ptag;

    CHECK_RETURN(VipRegisterMem(device->nic, NULL, 4096, &attributes, &handle), INVALID);
    CHECK(handle == 0, "a failed registration gives memory handle 0");
    CHECK_RETURN(VipRegisterMem(device->nic, region, 4096, NULL, &handle), INVALID);
    CHECK_RETURN(VipRegisterMem(device->nic, region, 4096, &attributes, NULL), INVALID);
    CHECK_RETURN(VipRegisterMem(device->nic, region, 0, &attributes, &handle), INVALID);
    CHECK(VipRegisterMem(device->nic, region, ~0ul, &attributes, &handle) != VIP_SUCCESS,
          "a region that wraps round is not registered");
    attributes.Ptag = (VIP_PROTECTION_HANDLE)5;
    CHECK_RETURN(VipRegisterMem(device->nic, region, 4096, &attributes, &handle), VIP_INVALID_PTAG);
    attributes.Ptag = device->ptag;
    attributes.EnableRdmaRead = VIP_TRUE;
    REQUIRE_RETURN(VipRegisterMem(device->nic, region, 4096, &attributes, &handle), VIP_SUCCESS);
    CHECK_RETURN(VipQueryMem(device->nic, region, handle, &found), VIP_SUCCESS);
    CHECK(found.EnableRdmaRead == VIP_TRUE, "memory that peers may read says so");
    CHECK_RETURN(VipDeregisterMem(device->nic, region, handle), VIP_SUCCESS);
    attributes.EnableRdmaRead = VIP_FALSE;

    REQUIRE_RETURN(VipRegisterMem(device->nic, region + 1, 4099, &attributes, &handle), VIP_SUCCESS);
    CHECK(handle != 0, "a memory handle is not 0");
    CHECK_RETURN(VipQueryMem(device->nic, region + 1, handle, NULL), INVALID);
    CHECK_RETURN(VipQueryMem(device->nic, region + 1, handle, &found), VIP_SUCCESS);
    CHECK(found.Ptag == device->ptag && found.EnableRdmaWrite == VIP_TRUE &&
              found.EnableRdmaRead == VIP_FALSE,
          "the attributes come back as they were set");
    CHECK_RETURN(VipQueryMem(device->nic, region + 5000, handle, &found), INVALID);
    CHECK_RETURN(VipQueryMem(device->nic, region + 1, handle + 1, &found), INVALID);
    CHECK_RETURN(VipDeregisterMem(device->nic, region + 5000, handle), INVALID);
    CHECK_RETURN(VipDeregisterMem(device->nic, NULL, handle), INVALID);
    CHECK_RETURN(VipDeregisterMem(device->nic, region + 1, handle), VIP_SUCCESS);
    CHECK_RETURN(VipDeregisterMem(device->nic, region + 1, handle), INVALID);
    CHECK_RETURN(VipDeregisterMem(device->nic, region + 1, 0), INVALID);
    CHECK_RETURN(VipQueryMem(device->nic, region + 1, handle, &found), INVALID);

    CHECK_RETURN(VipCreatePtag(device->nic, NULL), INVALID);
    CHECK_RETURN(VipCreatePtag(device->nic, &ptag), VIP_SUCCESS);
    attributes.Ptag = ptag;
    CHECK_RETURN(VipRegisterMem(device->nic, region, 64, &attributes, &handle), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(device->nic, ptag), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDeregisterMem(device->nic, region, handle), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(device->nic, ptag), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(device->nic, ptag), INVALID);
}

static void queue_calls(Device *device, VIP_VI_HANDLE vi, Arena *arena)
{
    VIP_DESCRIPTOR *out = (VIP_DESCRIPTOR *)(void *)arena->base;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE from;
    VIP_BOOLEAN recv_queue;

    CHECK_RETURN(VipPostSend(vi, NULL, arena->handle), INVALID);
    CHECK_RETURN(VipPostRecv(vi, NULL, arena->handle), INVALID);
    CHECK_RETURN(VipSendDone(vi, NULL), INVALID);
    CHECK_RETURN(VipRecvDone(vi, NULL), INVALID);
    CHECK_RETURN(VipSendWait(vi, 0, NULL), INVALID);
    CHECK_RETURN(VipRecvWait(vi, 0, NULL), INVALID);
    CHECK_RETURN(VipSendDone(vi, &out), VIP_DESCRIPTOR_ERROR);
    CHECK(out == NULL, "an empty queue gives NULL");

    CHECK_RETURN(VipCreateCQ(device->nic, 16, NULL), INVALID);
    CHECK(VipCreateCQ(device->nic, 0, &cq) == INVALID, "a CQ needs an entry");
    CHECK(VipCreateCQ(device->nic, device->attributes.MaxCQEntries + 1, &cq) != VIP_SUCCESS,
          "a CQ has its limit");
    REQUIRE_RETURN(VipCreateCQ(device->nic, 16, &cq), VIP_SUCCESS);
    CHECK_RETURN(VipCQDone(cq, NULL, &recv_queue), INVALID);
    CHECK_RETURN(VipCQDone(cq, &from, NULL), INVALID);
    CHECK_RETURN(VipCQWait(cq, 0, NULL, &recv_queue), INVALID);
    CHECK_RETURN(VipCQWait(cq, 0, &from, NULL), INVALID);
    CHECK_RETURN(VipCQDone(cq, &from, &recv_queue), VIP_NOT_DONE);
    CHECK_RETURN(VipCQWait(cq, 0, &from, &recv_queue), VIP_TIMEOUT);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyCQ(cq), INVALID);
    CHECK_RETURN(VipCQDone(cq, &from, &recv_queue), INVALID);
}

/* Addresses that are none: too long, of another host, of another length. */
static void address_calls(Device *device, VIP_VI_HANDLE vi)
{
    Address good, wrong, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;
    VIP_NIC_HANDLE nic = device->nic;

    address_of(device, "nobody-listens", &good);
#define WAIT_ON(a) VipConnectWait(nic, &(a).address, 0, &remote.address, &attributes, &connection)
#define REQUEST(l, r) VipConnectRequest(vi, &(l).address, &(r).address, WAIT_MS, &attributes)
    CHECK_RETURN(WAIT_ON(good), VIP_TIMEOUT);
    CHECK_RETURN(VipConnectWait(nic, NULL, 0, &remote.address, &attributes, &connection), INVALID);
    CHECK_RETURN(VipConnectWait(nic, &good.address, 0, NULL, &attributes, &connection), INVALID);
    CHECK_RETURN(VipConnectWait(nic, &good.address, 0, &remote.address, NULL, &connection), INVALID);
    CHECK_RETURN(VipConnectWait(nic, &good.address, 0, &remote.address, &attributes, NULL), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, NULL, &good.address, 100, &attributes), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, &good.address, NULL, 100, &attributes), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, &good.address, &good.address, 100, NULL), INVALID);
    CHECK_RETURN(VipConnectRequest(vi, &good.address, &good.address, 0, &attributes), INVALID);
    CHECK_RETURN(REQUEST(good, good), VIP_NO_MATCH);

    wrong = good;
    wrong.address.DiscriminatorLen = (VIP_UINT16)(device->attributes.MaxDiscriminatorLen + 1);
    CHECK_RETURN(WAIT_ON(wrong), INVALID);
    CHECK_RETURN(REQUEST(good, wrong), INVALID);
    CHECK_RETURN(REQUEST(wrong, good), INVALID);
    wrong.address.DiscriminatorLen = 0xFFFF;
    CHECK_RETURN(WAIT_ON(wrong), INVALID);
    wrong = good;
    wrong.address.HostAddressLen = 15;
    CHECK_RETURN(WAIT_ON(wrong), INVALID);
    CHECK_RETURN(REQUEST(good, wrong), INVALID);
    wrong = good;
    wrong.room[4 + 15] ^= 0x40;
    CHECK_RETURN(WAIT_ON(wrong), INVALID);
    CHECK_RETURN(REQUEST(wrong, good), INVALID);
    CHECK(vi_state(vi) == VIP_STATE_IDLE, "the VI is Idle after all that");
#undef WAIT_ON
#undef REQUEST
}

static void write_hosts(const char *directory, char *path, size_t path_bytes)
{
    snprintf(path, path_bytes, "%s/hosts", directory);
    FILE *file = fopen(path, "w");

    REQUIRE(file != NULL, "a file for host names");
    fprintf(file, "# only here\n192.0.2.7 onlyhere Alias\n192.0.2.8 onlyhere\n");
    REQUIRE(fclose(file) == 0, "the file is written");
}

static void name_calls(Device *device, const char *directory)
{
    static const VIP_UINT8 mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 7};
    VIP_NIC_HANDLE nic = device->nic;
    char path[512], name[] = "ONLYHERE", unknown[] = "no.such.host";
    char localhost[] = "localhost", found[64], tiny[8] = "unhurt";
    VIP_ULONG length;
    Address address;

    write_hosts(directory, path, sizeof path);
    memset(&address, 0xEE, sizeof address);
    address.address.HostAddressLen = 0;
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 0), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSShutdown(nic), VIP_ERROR_NAMESERVICE);
    CHECK(VipNSInit(nic, (char[]){"/no/such/file"}) != VIP_SUCCESS, "a missing file is told");
    CHECK_RETURN(VipNSInit(nic, path), VIP_SUCCESS);
    CHECK_RETURN(VipNSInit(nic, path), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSGetHostByName(nic, NULL, &address.address, 0), INVALID);
    CHECK_RETURN(VipNSGetHostByName(nic, name, NULL, 0), INVALID);
    CHECK_RETURN(VipNSGetHostByName(nic, unknown, &address.address, 0), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 2), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, ~0ul), VIP_ERROR_NAMESERVICE);
    address.address.HostAddressLen = 15;
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 0), INVALID);
    address.address.HostAddressLen = 0;
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 1), VIP_SUCCESS);
    CHECK(address.room[4 + 15] == 8, "the second address");
    CHECK_RETURN(VipNSGetHostByName(nic, name, &address.address, 0), VIP_SUCCESS);
    CHECK(address.address.HostAddressLen == 16 && address.address.DiscriminatorLen == 0xEEEE &&
              memcmp(address.room + 4, mapped, 16) == 0 && address.room[20] == 0xEE,
          "the host part is written, and nothing else");

    length = sizeof found;
    CHECK_RETURN(VipNSGetHostByAddr(nic, NULL, found, &length), INVALID);
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, NULL, &length), INVALID);
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, found, NULL), INVALID);
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, found, &length), VIP_SUCCESS);
    CHECK(length == 8 && strcmp(found, "onlyhere") == 0, "the name comes back: %s", found);
    length = sizeof tiny;
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, tiny, &length), INVALID);
    CHECK(length == 9 && strcmp(tiny, "unhurt") == 0, "the room needed is told: %lu", length);
    length = sizeof found;
    address.room[4 + 15] = 99;
    CHECK_RETURN(VipNSGetHostByAddr(nic, &address.address, found, &length), VIP_ERROR_NAMESERVICE);

    CHECK_RETURN(VipNSGetHostByName(nic, localhost, &address.address, 0), VIP_SUCCESS);
    CHECK(memcmp(address.room + 4, device->attributes.LocalNicAddress, 16) == 0,
          "localhost is this NIC");
    CHECK_RETURN(VipNSShutdown(nic), VIP_SUCCESS);
    CHECK_RETURN(VipNSShutdown(nic), VIP_ERROR_NAMESERVICE);
    CHECK_RETURN(VipNSInit(nic, NULL), VIP_SUCCESS);
    CHECK_RETURN(VipNSShutdown(nic), VIP_SUCCESS);
    remove(path);
}

int main(int count, char **words)
{
    const PairOptions plain = {0};
    Device device;
    Arena arena;
    VIP_CQ_HANDLE cq;

    REQUIRE(count == 2, "usage: args DIRECTORY");
    device_open(&device);
    arena_open(&arena, &device, 1 << 16, device.ptag, VIP_FALSE);
    VIP_VI_HANDLE vi = vi_create(&device, &plain, false), gone = vi_create(&device, &plain, false);
    REQUIRE_RETURN(VipCreateCQ(device.nic, 4, &cq), VIP_SUCCESS);

    open_and_names(&device);
    nic_limits(&device);
    for (unsigned n = 0; n < MADE_UP; n++) {
        VIP_PVOID bad = made_up(n, &device);
        nic_calls(bad, &device);
        vi_calls(bad, &device, &arena);
        other_handles(bad, &device, vi);
    }
    foreign_handles(&device, &arena, vi, cq);
    CHECK_RETURN(VipDestroyVi(gone), VIP_SUCCESS);
    vi_calls(gone, &device, &arena);
    create_vi(&device);
    query_vi(&device, vi);
    memory_calls(&device);
    queue_calls(&device, vi, &arena);
    address_calls(&device, vi);
    name_calls(&device, words[1]);

    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(device.nic, device.ptag), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    arena_close(&arena);
    device_close(&device);
    nic_calls(device.nic, &device);
    return check_summary();
}
