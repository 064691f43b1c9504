/* What happens at the limits: a NIC that has little of everything, and one that cannot be opened. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

/* The NIC that the test's configuration makes small. */
#define SMALL_NIC "SMALL"
enum { MOST = 64 }; /* more than it has of anything */

static const PairOptions plain = {0};

/* A configuration that cannot be read or used is no reason to open something else. */
static void unusable_configurations(const char *directory)
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
    snprintf(path, sizeof path, "%s/broken.toml", directory);
    setenv("VIADUCT_CONFIG", path, 1);
    CHECK_RETURN(VipOpenNic("VINIC0", &nic), VIP_ERROR_RESOURCE);
    for (size_t n = 0; n < sizeof contents / sizeof contents[0]; n++) {
        FILE *file = fopen(path, "w");
        REQUIRE(file != NULL && fputs(contents[n], file) >= 0 && fclose(file) == 0,
                "a file for the configuration");
        CHECK_RETURN(VipOpenNic("VINIC0", &nic), VIP_ERROR_RESOURCE);
    }
    setenv("VIADUCT_CONFIG", kept, 1);
    CHECK(nic == NULL, "a NIC that does not open gives no handle");
}

static void virtual_interfaces(const Device *device)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(device, &plain);
    VIP_VI_HANDLE vis[MOST];
    VIP_ULONG count = 0;
    VIP_RETURN answer;

    while ((answer = VipCreateVi(device->nic, &attributes, NULL, NULL, &vis[count])) == VIP_SUCCESS)
        count++;
    CHECK(answer == VIP_ERROR_RESOURCE && count == device->attributes.MaxVI,
          "%lu VIs, then %s", count, return_name((int)answer));
    CHECK_RETURN(VipDestroyVi(vis[0]), VIP_SUCCESS);
    CHECK_RETURN(VipCreateVi(device->nic, &attributes, NULL, NULL, &vis[0]), VIP_SUCCESS);
    while (count > 0)
        CHECK_RETURN(VipDestroyVi(vis[--count]), VIP_SUCCESS);
}

static void protection_tags(const Device *device)
{
    VIP_PROTECTION_HANDLE tags[MOST];
    VIP_ULONG count = 0;
    VIP_RETURN answer;

    while ((answer = VipCreatePtag(device->nic, &tags[count])) == VIP_SUCCESS)
        count++;
    CHECK(answer == VIP_ERROR_RESOURCE && count + 1 == device->attributes.MaxPtags,
          "%lu tags beside the test's own, then %s", count, return_name((int)answer));
    while (count > 0)
        CHECK_RETURN(VipDestroyPtag(device->nic, tags[--count]), VIP_SUCCESS);
}

static void completion_queues(const Device *device)
{
    VIP_CQ_HANDLE queues[MOST];
    VIP_ULONG count = 0;
    VIP_RETURN answer;

    CHECK_RETURN(VipCreateCQ(device->nic, device->attributes.MaxCQEntries + 1, &queues[0]),
                 VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipCreateCQ(device->nic, ~0ul, &queues[0]), VIP_ERROR_RESOURCE);
    while ((answer = VipCreateCQ(device->nic, device->attributes.MaxCQEntries, &queues[count])) ==
           VIP_SUCCESS)
        count++;
    CHECK(answer == VIP_ERROR_RESOURCE && count == device->attributes.MaxCQ,
          "%lu completion queues, then %s", count, return_name((int)answer));
    while (count > 0)
        CHECK_RETURN(VipDestroyCQ(queues[--count]), VIP_SUCCESS);
}

static void regions(const Device *device)
{
    static unsigned char block[4096];
    VIP_MEM_ATTRIBUTES attributes = {device->ptag, VIP_FALSE, VIP_FALSE};
    VIP_MEM_HANDLE handles[MOST];
    VIP_ULONG count = 0;
    VIP_RETURN answer;

    CHECK_RETURN(VipRegisterMem(device->nic, block, device->attributes.MaxRegisterBytes + 4096,
                                &attributes, &handles[0]),
                 VIP_ERROR_RESOURCE);
    while ((answer = VipRegisterMem(device->nic, block, sizeof block, &attributes,
                                    &handles[count])) == VIP_SUCCESS)
        count++;
    CHECK(answer == VIP_ERROR_RESOURCE && count == device->attributes.MaxRegisterRegions,
          "%lu regions, then %s", count, return_name((int)answer));
    while (count > 0)
        CHECK_RETURN(VipDeregisterMem(device->nic, block, handles[--count]), VIP_SUCCESS);
}

typedef struct {
    const Device *device;
    const char *discriminator;
    VIP_RETURN answer;
    VIP_CONN_HANDLE connection;
} Server;

static void *wait_for_client(void *argument)
{
    Server *server = argument;
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;

    address_of(server->device, server->discriminator, &local);
    server->answer = VipConnectWait(server->device->nic, &local.address, WAIT_MS, &remote.address,
                                    &attributes, &server->connection);
    return NULL;
}

/* The NIC keeps one request for its program; whoever comes next is told so. */
static void connection_requests(const Device *device)
{
    VIP_VI_HANDLE first = vi_create(device, &plain, false), second = vi_create(device, &plain, false);
    VIP_VI_HANDLE accepting = vi_create(device, &plain, true);
    Server one = {device, "first", VIP_NOT_DONE, NULL}, two = {device, "second", VIP_NOT_DONE, NULL};
    pthread_t thread;

    Request *held = request_start(device, first, one.discriminator, WAIT_MS);
    wait_for_client(&one);
    CHECK(one.answer == VIP_SUCCESS, "the first request is there");
    REQUIRE(pthread_create(&thread, NULL, wait_for_client, &two) == 0, "a thread");
    Request *refused = request_start(device, second, two.discriminator, WAIT_MS);
    CHECK_RETURN(request_finish(refused, NULL), VIP_ERROR_RESOURCE);
    CHECK(vi_state(second) == VIP_STATE_IDLE, "the VI is Idle again");

    CHECK_RETURN(VipConnectReject(one.connection), VIP_SUCCESS);
    CHECK_RETURN(request_finish(held, NULL), VIP_REJECT);
    Request *again = request_start(device, second, two.discriminator, WAIT_MS);
    pthread_join(thread, NULL);
    CHECK(two.answer == VIP_SUCCESS, "with room for it the second request comes through");
    CHECK_RETURN(VipConnectAccept(two.connection, accepting), VIP_SUCCESS);
    CHECK_RETURN(request_finish(again, NULL), VIP_SUCCESS);
    vi_close(first);
    vi_close(second);
    vi_close(accepting);
}

/* A message that is longer than one turn of the poll loop takes it: not done, not in time, done. */
static void long_message(Device *device)
{
    const size_t bytes = device->attributes.MaxTransferSize;
    const PairOptions options = {.max_transfer_bytes = bytes};
    bool not_done = false, timed_out = false;
    VIP_DESCRIPTOR *done;
    Arena arena;
    Pair pair;

    arena_open(&arena, device, 2 * bytes + 4096, device->ptag, VIP_FALSE);
    VIP_DESCRIPTOR *send = arena_descriptor(&arena, 1), *recv = arena_descriptor(&arena, 1);
    unsigned char *data = arena_bytes(&arena, bytes), *target = arena_bytes(&arena, bytes);
    pair_open(&pair, device, &options);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 7 + (i >> 8) + (i >> 16));
    /* Again if this thread was kept from looking until the message was gone. */
    for (unsigned round = 0; round < 20 && !(not_done && timed_out); round++) {
        memset(target, 0, bytes);
        describe(recv, target, arena.handle, bytes);
        describe(send, data, arena.handle, bytes);
        CHECK_RETURN(VipPostRecv(pair.server, recv, arena.handle), VIP_SUCCESS);
        CHECK_RETURN(VipPostSend(pair.client, send, arena.handle), VIP_SUCCESS);
        VIP_RETURN answer = VipSendDone(pair.client, &done);
        if (answer == VIP_NOT_DONE) {
            not_done = done == NULL;
            answer = VipSendWait(pair.client, 0, &done);
        }
        if (answer == VIP_TIMEOUT) {
            timed_out = done == NULL;
            answer = VipSendWait(pair.client, WAIT_MS, &done);
        }
        CHECK(answer == VIP_SUCCESS && done == send, "%zu bytes are sent", bytes);
        CHECK((received(pair.server, recv) & VIP_STATUS_ERROR_MASK) == 0 &&
                  recv->CS.Length == bytes && memcmp(data, target, bytes) == 0,
              "%zu bytes arrive", bytes);
    }
    CHECK(not_done, "a send in the middle of its way is VIP_NOT_DONE");
    CHECK(timed_out, "and outlasts a time-out of nothing");
    pair_close(&pair);
    arena_close(&arena);
}

int main(int count, char **words)
{
    Device device;

    REQUIRE(count == 2, "usage: limits DIRECTORY");
    unusable_configurations(words[1]);
    device_open_named(&device, SMALL_NIC);
    virtual_interfaces(&device);
    protection_tags(&device);
    completion_queues(&device);
    regions(&device);
    connection_requests(&device);
    long_message(&device);
    device_close(&device);
    return check_summary();
}
