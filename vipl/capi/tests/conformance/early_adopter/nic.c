/* Opening, looking at and closing a NIC. */
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

static void opening(void)
{
    VIP_NIC_ATTRIBUTES attributes;
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
    CHECK_RETURN(VipQueryNic(here.nic, NULL), INVALID);

    /* The same NIC once more: another handle, which goes stale by itself. */
    REQUIRE_RETURN(VipOpenNic("VINIC0", &nic), VIP_SUCCESS);
    CHECK(nic != NULL && nic != here.nic, "a second opening gives a handle of its own");
    CHECK_RETURN(VipQueryNic(nic, &attributes), VIP_SUCCESS);
    CHECK_RETURN(VipCloseNic(nic), VIP_SUCCESS);
    CHECK_RETURN(VipCloseNic(nic), INVALID);
    CHECK_RETURN(VipQueryNic(nic, &attributes), INVALID);
    CHECK_RETURN(VipCloseNic(NULL), INVALID);
    CHECK_RETURN(VipQueryNic(here.nic, &attributes), VIP_SUCCESS);
}

/* What the guide, and programs that are older than this NIC, expect of its limits. */
static void limits(void)
{
    const VIP_NIC_ATTRIBUTES *a = &here.attributes;
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
    CHECK(a->ReliabilityLevelSupport == (VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_DELIVERY |
                                         VIP_SERVICE_RELIABLE_RECEPTION),
          "all reliability levels");
    CHECK(a->RDMAReadSupport == (VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION),
          "RDMA reads where nothing is lost without notice");
    CHECK(a->ThreadSafe == VIP_TRUE, "any thread may make any call");
}

/* A configuration that cannot be read or used is no reason to open something else. */
static void unusable_configurations(void)
{
    static const char *const contents[] = {
        "[[nic]]\nname = \"VINIC0\"\nport = \"carrier pigeon\"\n",
        "[[nic]]\nname = \"VINIC0\"\nno_such_key = 1\n",
        "[[nic]]\nname = \"VINIC0\"\nmax_vi = 0\n",
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

/* VipCloseNic cleans up whatever is left, and its handles are no good afterwards. */
static void closing_with_everything_open(void)
{
    const VIP_VI_ATTRIBUTES attributes = vi_attributes(&here, &plain);
    VIP_VI_ATTRIBUTES wanted = attributes;
    Device second = here;
    Arena arena;
    Pair pair;
    VIP_DESCRIPTOR *done;

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
    CHECK_RETURN(VipRecvDone(pair.client, &done), INVALID);
    CHECK_RETURN(VipDisconnect(pair.client), INVALID);
    CHECK_RETURN(VipDeregisterMem(here.nic, arena.base, arena.handle), INVALID);
    error_expected(pair.server, VIP_ERROR_CONN_LOST, NULL);
    vi_close(pair.server);
    arena_forget(&arena);
}

/* --- calls that wait while their NIC is closed ----------------------------------------------- */

typedef struct {
    const char *name;
    VIP_RETURN (*call)(const Device *device, VIP_VI_HANDLE vi);
    const Device *device;
    VIP_VI_HANDLE vi;
    VIP_RETURN answer;
} Blocked;

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
    address_of(device, "nobody asks", &local);
    return VipConnectWait(device->nic, &local.address, VIP_INFINITE, &remote.address, &attributes,
                          &connection);
}

static void *run_blocked(void *argument)
{
    Blocked *blocked = argument;

    blocked->answer = blocked->call(blocked->device, blocked->vi);
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
    Blocked blocked[] = {
        {"VipRecvWait", block_in_recv, &closed, pair.client, VIP_NOT_DONE},
        {"VipConnectWait", block_in_listen, &closed, pair.client, VIP_NOT_DONE},
    };
    pthread_t threads[2];
    for (unsigned n = 0; n < 2; n++)
        REQUIRE(pthread_create(&threads[n], NULL, run_blocked, &blocked[n]) == 0, "a thread");
    /* And a request that is taken and never answered. */
    VIP_VI_HANDLE asking;
    REQUIRE_RETURN(VipCreateVi(closed.nic, &attributes, NULL, NULL, &asking), VIP_SUCCESS);
    Request *request = request_start(asking, "held", VIP_INFINITE);
    address_of(&there, "held", &local);
    REQUIRE_RETURN(VipConnectWait(there.nic, &local.address, WAIT_MS, &remote.address, &attributes,
                                  &connection),
                   VIP_SUCCESS);
    /* Time for the threads to go to sleep; what is checked holds also for those that have not. */
    nanosleep(&nap, NULL);
    CHECK_RETURN(VipCloseNic(closed.nic), VIP_SUCCESS);
    for (unsigned n = 0; n < 2; n++) {
        pthread_join(threads[n], NULL);
        CHECK(blocked[n].answer == INVALID || blocked[n].answer == VIP_DESCRIPTOR_ERROR,
              "%s ends with %s", blocked[n].name, return_name((int)blocked[n].answer));
    }
    VIP_RETURN answer = request_finish(request, NULL);
    CHECK(answer == INVALID || answer == VIP_INVALID_STATE, "VipConnectRequest ends with %s",
          return_name((int)answer));
    CHECK_RETURN(VipConnectReject(connection), VIP_SUCCESS);
    error_expected(pair.server, VIP_ERROR_CONN_LOST, NULL);
    vi_close(pair.server);
    arena_forget(&arena);
}

static const Test tests[] = {
    TEST(opening, .clauses = "3.1.1 3.1.2 3.7.1 6.5",
         .answers = "VipOpenNic SUCCESS INVALID_PARAMETER; VipCloseNic SUCCESS INVALID_PARAMETER;"
                    "VipQueryNic SUCCESS INVALID_PARAMETER"),
    TEST(limits, .clauses = "3.7.1 4.5 5.4"),
    TEST(unusable_configurations, .clauses = "3.1.1", .answers = "VipOpenNic ERROR_RESOURCE"),
    TEST(closing_with_everything_open, .clauses = "3.1.2 6.2",
         .answers = "VipCloseNic SUCCESS; VipDisconnect INVALID_PARAMETER"),
    TEST(closing_ends_waits, .clauses = "3.1.2", .answers = "VipCloseNic SUCCESS"),
};

SUITE_MAIN(tests)
