/* Opening, querying and closing a NIC. */
#define _POSIX_C_SOURCE 200809L

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};

static void open_close_and_query(void)
{
    enum { HANDLES = 16 };
    const VIP_NIC_ATTRIBUTES *own = &local_device.attributes;
    VIP_UINT8 address[16];
    VIP_NIC_ATTRIBUTES attributes;
    VIP_NIC_HANDLE nic = NULL, handles[HANDLES];
    char long_name[5000];

    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    CHECK_RETURN(VipOpenNic(NULL, &nic), INVALID);
    CHECK_RETURN(VipOpenNic("VINIC", NULL), INVALID);
    CHECK(VipOpenNic("no such device", &nic) != VIP_SUCCESS, "an unknown device does not open");
    CHECK(VipOpenNic("", &nic) != VIP_SUCCESS, "a device without a name does not open");
    CHECK(VipOpenNic("VINIC77", &nic) != VIP_SUCCESS, "a device number too high does not open");
    CHECK(VipOpenNic("\xFF\xFE", &nic) != VIP_SUCCESS, "a name that is not UTF-8 does not open");
    CHECK(VipOpenNic(long_name, &nic) != VIP_SUCCESS, "a name that is too long does not open");
    CHECK_RETURN(VipQueryNic(local_device.nic, NULL), INVALID);

    /* A second handle of the same NIC, which becomes stale independently. */
    REQUIRE_RETURN(VipOpenNic("VINIC0", &nic), VIP_SUCCESS);
    CHECK(nic != NULL && nic != local_device.nic, "a second open returns another handle");
    CHECK_RETURN(VipQueryNic(nic, &attributes), VIP_SUCCESS);
    CHECK_RETURN(VipCloseNic(nic), VIP_SUCCESS);
    CHECK_RETURN(VipCloseNic(nic), INVALID);
    CHECK_RETURN(VipQueryNic(nic, &attributes), INVALID);
    CHECK_RETURN(VipCloseNic(NULL), INVALID);
    CHECK_RETURN(VipQueryNic(local_device.nic, &attributes), VIP_SUCCESS);

    /* Many handles at the same time, of one host with one address, which stays valid. */
    memcpy(address, own->LocalNicAddress, sizeof address);
    for (unsigned n = 0; n < HANDLES; n++) {
        REQUIRE_RETURN(VipOpenNic("VINIC0", &handles[n]), VIP_SUCCESS);
        CHECK_RETURN(VipQueryNic(handles[n], &attributes), VIP_SUCCESS);
        CHECK(memcmp(attributes.LocalNicAddress, address, sizeof address) == 0,
              "handle %u has the same address", n);
    }
    for (unsigned n = 0; n < HANDLES; n++)
        CHECK_RETURN(VipCloseNic(handles[n]), VIP_SUCCESS);
    CHECK(memcmp(own->LocalNicAddress, address, sizeof address) == 0, "the address stays valid");
}

/* Limits that the guide and old programs require. */
static void limits(void)
{
    const VIP_NIC_ATTRIBUTES *a = &local_device.attributes;
    const VIP_ULONG numbers[] = {
        a->HardwareVersion, a->ProviderVersion, a->MaxRegisterBytes, a->MaxRegisterRegions,
        a->MaxRegisterBlockBytes, a->MaxVI, a->MaxDescriptorsPerQueue, a->MaxSegmentsPerDesc,
        a->MaxCQ, a->MaxCQEntries, a->MaxTransferSize, a->NativeMTU, a->MaxPtags};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        CHECK(numbers[i] <= INT_MAX, "limit %zu, %lu, fits an int", i, numbers[i]);
    CHECK(memchr(a->Name, '\0', sizeof a->Name) != NULL && a->Name[0] != '\0',
          "the NIC has a name");
    CHECK(a->NicAddressLen == 16 && a->LocalNicAddress != NULL, "addresses have 16 bytes");
    CHECK(a->MaxDiscriminatorLen >= 16, "discriminators of 16 bytes");
    CHECK(a->MaxSegmentsPerDesc >= 252, "252 segments");
    CHECK(a->MaxTransferSize >= 131072, "messages of 128 KiB");
    CHECK(a->MaxPtags >= a->MaxVI && a->MaxVI > 0, "a protection tag for every VI");
    CHECK(a->MaxCQ > 0 && a->MaxCQEntries > 0 && a->MaxDescriptorsPerQueue > 0, "queues");
    CHECK(a->ReliabilityLevelSupport == (VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_DELIVERY |
                                         VIP_SERVICE_RELIABLE_RECEPTION),
          "all reliability levels");
    CHECK(a->RDMAReadSupport == (VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION),
          "RDMA reads at the reliable levels");
    CHECK(a->ThreadSafe == VIP_TRUE, "any thread may make any call");
}

/* With an unusable configuration no NIC is opened. */
static void unusable_configurations(void)
{
    static const char *const contents[] = {
        "[[nic]]\nname = \"VINIC0\"\n[nic.no_such_port]\n",
        "[[nic]]\nname = \"VINIC0\"\n[nic.shm]\nno_such_key = 1\n",
        "[[nic]]\nname = \"VINIC0\"\n[nic.shm]\n[nic.limits]\nmax_vi = 0\n",
        "[[nic",
        "\xFF\xFE",
    };
    const char *good = getenv("VIADUCT_CONFIG");
    char path[512], kept[512];
    VIP_NIC_HANDLE nic = NULL;

    REQUIRE(good != NULL && strlen(good) < sizeof kept, "the test has a configuration");
    strcpy(kept, good);
    snprintf(path, sizeof path, "%s/broken.toml", test_directory());
    setenv("VIADUCT_CONFIG", path, 1);
    CHECK_RETURN(VipOpenNic("VINIC0", &nic), VIP_ERROR_RESOURCE);
    for (size_t n = 0; n < sizeof contents / sizeof contents[0]; n++) {
        FILE *file = fopen(path, "w");
        REQUIRE(file != NULL && fputs(contents[n], file) >= 0 && fclose(file) == 0,
                "a file for the configuration");
        CHECK_RETURN(VipOpenNic("VINIC0", &nic), VIP_ERROR_RESOURCE);
    }
    setenv("VIADUCT_CONFIG", kept, 1);
    remove(path);
    CHECK(nic == NULL, "a NIC that does not open gives no handle");
}

/* Another handle keeps the NIC open: objects that are not released with their own handle exceed the
 * limits of the NIC. */
static void close_one_of_two_handles_repeatedly(void)
{
    VIP_MEM_ATTRIBUTES region;
    VIP_VI_HANDLE vi, vi_with_cq, done_vi;
    VIP_BOOLEAN empty;
    VIP_VI_STATE state;
    VIP_CQ_HANDLE cq;
    Device kept, closed;
    Arena arena;

    device_open_named(&kept, "SMALL");
    for (unsigned round = 0; round < 5; round++) {
        device_open_named(&closed, "SMALL");
        arena_open(&arena, &closed, 8192, closed.ptag, VIP_FALSE);
        VIP_VI_ATTRIBUTES attributes = vi_attributes(&closed, &plain);
        REQUIRE_RETURN(VipCreateCQ(closed.nic, 1, &cq), VIP_SUCCESS);
        REQUIRE_RETURN(VipCreateVi(closed.nic, &attributes, NULL, NULL, &vi), VIP_SUCCESS);
        REQUIRE_RETURN(VipCreateVi(closed.nic, &attributes, cq, NULL, &vi_with_cq), VIP_SUCCESS);
        VIP_DESCRIPTOR *recv = arena_descriptor(&arena, 1);
        describe(recv, arena.base + 4096, arena.handle, 64);
        CHECK_RETURN(VipPostRecv(vi, recv, arena.handle), VIP_SUCCESS);
        CHECK_RETURN(VipCloseNic(closed.nic), VIP_SUCCESS);
        CHECK_RETURN(VipQueryVi(vi, &state, &attributes, &empty, &empty), INVALID);
        CHECK_RETURN(VipQueryVi(vi_with_cq, &state, &attributes, &empty, &empty), INVALID);
        CHECK_RETURN(VipCQDone(cq, &done_vi, &empty), INVALID);
        CHECK_RETURN(VipQueryMem(kept.nic, arena.base, arena.handle, &region), INVALID);
        arena_forget(&arena);
    }
    device_close(&kept);
}

/* VipCloseNic releases all objects, whose handles are invalid afterwards. */
static void close_releases_all_objects(void)
{
    const VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &plain);
    VIP_VI_ATTRIBUTES wanted = attributes;
    Device second = local_device;
    Arena arena;
    Pair pair;
    VIP_DESCRIPTOR *done;
    unsigned written = 0;

    device_open(&second);
    arena_open(&arena, &second, 8192, second.ptag, VIP_FALSE);
    wanted.Ptag = second.ptag;
    REQUIRE_RETURN(VipCreateVi(second.nic, &wanted, NULL, NULL, &pair.client), VIP_SUCCESS);
    pair.server = server_create(&plain);
    pair_connect(&pair);
    VIP_DESCRIPTOR *recv = arena_descriptor(&arena, 1);
    describe(recv, arena.base + 4096, arena.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.client, recv, arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipCloseNic(second.nic), VIP_SUCCESS);
    memset(arena.base, 0xAA, arena.bytes);
    CHECK_RETURN(VipRecvDone(pair.client, &done), INVALID);
    CHECK_RETURN(VipDisconnect(pair.client), INVALID);
    CHECK_RETURN(VipDeregisterMem(local_device.nic, arena.base, arena.handle), INVALID);
    expect_error(pair.server, VIP_ERROR_CONN_LOST, NULL);
    vi_close(pair.server);
    for (size_t i = 0; i < arena.bytes; i++)
        written += arena.base[i] != 0xAA;
    CHECK(written == 0, "%u bytes of released memory are written", written);
    arena_forget(&arena);
    close_one_of_two_handles_repeatedly();
}

/* --- waiting calls during VipCloseNic -------------------------------------------------------- */

typedef struct {
    const char *name;
    VIP_RETURN (*call)(const Device *device, VIP_VI_HANDLE vi);
    const Device *device;
    VIP_VI_HANDLE vi;
    VIP_RETURN result;
} BlockedCall;

static VIP_RETURN block_in_recv(const Device *device, VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *done;

    (void)device;
    return VipRecvWait(vi, VIP_INFINITE, &done);
}

static VIP_RETURN block_in_listen(const Device *device, VIP_VI_HANDLE vi)
{
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;

    (void)vi;
    address_of(device, "no client", &local);
    return VipConnectWait(device->nic, &local.address, VIP_INFINITE, &remote.address, &attributes,
                          &connection);
}

static void *run_blocked(void *argument)
{
    BlockedCall *blocked = argument;

    blocked->result = blocked->call(blocked->device, blocked->vi);
    return NULL;
}

static void closing_ends_waits(void)
{
    const struct timespec nap = {0, 50000000};
    Device closed;
    Arena arena;
    Pair pair;
    Address local, remote;
    VIP_CONN_HANDLE connection;

    device_open(&closed);
    arena_open(&arena, &closed, 8192, closed.ptag, VIP_FALSE);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&closed, &plain);
    REQUIRE_RETURN(VipCreateVi(closed.nic, &attributes, NULL, NULL, &pair.client), VIP_SUCCESS);
    pair.server = server_create(&plain);
    pair_connect(&pair);
    VIP_DESCRIPTOR *recv = arena_descriptor(&arena, 1);
    describe(recv, arena.base + 4096, arena.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.client, recv, arena.handle), VIP_SUCCESS);
    BlockedCall blocked[] = {
        {"VipRecvWait", block_in_recv, &closed, pair.client, VIP_NOT_DONE},
        {"VipConnectWait", block_in_listen, &closed, pair.client, VIP_NOT_DONE},
    };
    pthread_t threads[2];
    for (unsigned n = 0; n < 2; n++)
        REQUIRE(pthread_create(&threads[n], NULL, run_blocked, &blocked[n]) == 0, "a thread");
    /* And a pending request that is not accepted. */
    VIP_VI_HANDLE requesting_vi;
    REQUIRE_RETURN(VipCreateVi(closed.nic, &attributes, NULL, NULL, &requesting_vi), VIP_SUCCESS);
    Request *request = request_start(requesting_vi, "pending", VIP_INFINITE);
    address_of(&remote_device, "pending", &local);
    REQUIRE_RETURN(VipConnectWait(remote_device.nic, &local.address, WAIT_MS, &remote.address,
                                  &attributes, &connection),
                   VIP_SUCCESS);
    /* Lets the threads sleep; the checks also hold for threads that do not yet. */
    nanosleep(&nap, NULL);
    CHECK_RETURN(VipCloseNic(closed.nic), VIP_SUCCESS);
    for (unsigned n = 0; n < 2; n++) {
        pthread_join(threads[n], NULL);
        CHECK(blocked[n].result == INVALID || blocked[n].result == VIP_DESCRIPTOR_ERROR,
              "%s ends with %s", blocked[n].name, return_name((int)blocked[n].result));
    }
    VIP_RETURN result = request_finish(request, NULL);
    CHECK(result == INVALID || result == VIP_INVALID_STATE, "VipConnectRequest ends with %s",
          return_name((int)result));
    CHECK_RETURN(VipConnectReject(connection), VIP_SUCCESS);
    expect_error(pair.server, VIP_ERROR_CONN_LOST, NULL);
    vi_close(pair.server);
    arena_forget(&arena);
}

static const Test tests[] = {
    TEST(open_close_and_query, .clauses = "3.1.1 3.1.2 3.7.1 6.5",
         .returns = "VipOpenNic SUCCESS INVALID_PARAMETER; VipCloseNic SUCCESS INVALID_PARAMETER;"
                    "VipQueryNic SUCCESS INVALID_PARAMETER"),
    TEST(limits, .clauses = "3.7.1 4.5 5.4"),
    TEST(unusable_configurations, .clauses = "3.1.1", .returns = "VipOpenNic ERROR_RESOURCE"),
    TEST(close_releases_all_objects, .clauses = "3.1.2 6.2",
         .returns = "VipCloseNic SUCCESS; VipDisconnect INVALID_PARAMETER"),
    TEST(closing_ends_waits, .clauses = "3.1.2", .returns = "VipCloseNic SUCCESS"),
};

SUITE_MAIN(tests)
