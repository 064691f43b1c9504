/*
 * Any call with any argument: handles that are live, stale, twisted or invented, pointers anywhere
 * into valid memory, garbage behind them. Nothing may crash, no answer may be none of VIP_RETURN,
 * and a connection of which the garbage knows nothing must go on working.
 *
 * What C promises is kept: pointers are NULL or point to memory that is long enough, strings end.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

enum {
    CALLS = 100000,
    CALLS_SMALL = 4000,
    CALLS_PER_OPENING = 500, /* with the same victims */
    ROOM_BYTES = 1 << 16,
    TAIL_BYTES = 4096, /* behind every pointer into the room */
    SPOTS = 8,
};

static const PairOptions plain = {0};
static const PairOptions writable = {.server_rdma_write = VIP_TRUE};

/* The opening that the garbage is about, and the one that it must not disturb. */
typedef struct {
    Device device;
    Arena arena;
    Pair pair;
    VIP_CQ_HANDLE cq;
    VIP_CONN_HANDLE connection; /* of a request that only the garbage may answer */
    Request *request;
} Victims;

static Victims victims;
static Pair bystander;

static unsigned char room[ROOM_BYTES];
static uint64_t state;

static uint64_t random64(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static unsigned below(unsigned bound)
{
    return (unsigned)(random64() >> 32) % bound;
}

/* --- arguments ------------------------------------------------------------------------------- */

/* A handle whose owner is not to be disturbed cannot be guessed on purpose. */
static bool protected(VIP_PVOID handle)
{
    return handle == here.nic || handle == here.ptag || handle == there.nic ||
           handle == there.ptag || handle == bystander.client || handle == bystander.server;
}

static VIP_PVOID any_handle(void)
{
    const VIP_PVOID live[] = {victims.device.nic,  victims.device.ptag, victims.pair.client,
                              victims.pair.server, victims.cq,          victims.connection};
    VIP_PVOID handle = live[below(sizeof live / sizeof live[0])];

    switch (below(8)) {
    case 0: handle = NULL; break;
    case 1: handle = (VIP_PVOID)(uintptr_t)random64(); break;
    case 2: handle = room + below(ROOM_BYTES); break;
    case 3: handle = (VIP_PVOID)((uintptr_t)handle ^ (1ull << below(64))); break;
    case 4: handle = (VIP_PVOID)((uintptr_t)handle + below(3) - 1); break;
    default: break;
    }
    return protected(handle) ? NULL : handle;
}

/* Writes garbage over a piece of memory: random, constant, or small numbers. */
static void garbage(unsigned char *target, size_t bytes)
{
    const unsigned kind = below(4);

    for (size_t i = 0; i < bytes; i++)
        target[i] = (unsigned char)(kind == 0   ? random64()
                                    : kind == 1 ? 0
                                    : kind == 2 ? below(4)
                                                : 0xFF);
}

/* NULL, or anywhere in the room, aligned or not, with fresh garbage there. */
static void *any_pointer(void)
{
    unsigned char *pointer = room + below(ROOM_BYTES - TAIL_BYTES);

    if (below(16) == 0)
        return NULL;
    if (below(2) == 0)
        pointer -= (uintptr_t)pointer % 64;
    if (pointer < room)
        pointer += 64;
    if (below(2) == 0)
        garbage(pointer, 64 + below(256));
    return pointer;
}

static VIP_CHAR *any_text(void)
{
    static const char *const texts[] = {"",      "VINIC", "VINIC0",    "VINIC1", "localhost",
                                        "SMALL", "VINIC99", "\xC3\x28", "/",     "no/such/file"};
    const unsigned count = sizeof texts / sizeof texts[0], choice = below(count + 4);
    VIP_CHAR *text = any_pointer();

    if (text == NULL)
        return NULL;
    if (choice < count)
        strcpy(text, texts[choice]);
    else
        text[below(TAIL_BYTES / 2)] = '\0';
    return text;
}

static VIP_ULONG any_number(void)
{
    switch (below(5)) {
    case 0: return 0;
    case 1: return below(100);
    case 2: return 1ul << below(64);
    case 3: return ~0ul - below(3);
    default: return random64();
    }
}

/* Of the waits only the short ones: an infinite one may wait for ever by right. */
static VIP_ULONG any_timeout(void)
{
    return below(20) == 0;
}

/* A good address with something wrong in it, or garbage; as long as its lengths say. */
static VIP_NET_ADDRESS *any_address(void)
{
    static Address address;

    if (below(16) == 0)
        return NULL;
    address_of(&here, below(2) ? "fuzz" : "victim", &address);
    switch (below(6)) {
    case 0: garbage(address.room, sizeof address.room); break;
    case 1: address.address.HostAddressLen = (VIP_UINT16)any_number(); break;
    case 2: address.address.DiscriminatorLen = (VIP_UINT16)any_number(); break;
    case 3: address.room[4 + below(16)] ^= (unsigned char)(1u << below(8)); break;
    default: break;
    }
    return &address.address;
}

static VIP_VI_ATTRIBUTES *any_vi_attributes(void)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&victims.device, &plain);
    void *pointer = any_pointer();

    if (pointer == NULL || below(3) == 0)
        return pointer;
    switch (below(4)) {
    case 0: attributes.ReliabilityLevel = (VIP_RELIABILITY_LEVEL)any_number(); break;
    case 1: attributes.MaxTransferSize = any_number(); break;
    case 2: attributes.Ptag = any_handle(); break;
    default: attributes.EnableRdmaWrite = (VIP_BOOLEAN)any_number(); break;
    }
    memcpy(pointer, &attributes, sizeof attributes);
    return pointer;
}

static VIP_MEM_ATTRIBUTES *any_mem_attributes(void)
{
    VIP_MEM_ATTRIBUTES attributes = {any_handle(), (VIP_BOOLEAN)below(2), (VIP_BOOLEAN)below(2)};
    void *pointer = any_pointer();

    if (pointer != NULL && below(2) == 0)
        memcpy(pointer, &attributes, sizeof attributes);
    return pointer;
}

static VIP_MEM_HANDLE any_mem_handle(void)
{
    switch (below(4)) {
    case 0: return (VIP_MEM_HANDLE)any_number();
    case 1: return victims.arena.handle ^ (1u << below(32));
    default: return victims.arena.handle;
    }
}

/* A descriptor in registered memory whose fields are half right, or a pointer to no descriptor. */
static VIP_DESCRIPTOR *any_descriptor(void)
{
    VIP_DESCRIPTOR *descriptor = (VIP_DESCRIPTOR *)(void *)victims.arena.base + below(SPOTS);
    unsigned char *data = victims.arena.base + 4096 + below(8192);

    if (below(6) == 0)
        return any_pointer();
    if (below(3) == 0)
        describe(descriptor, data, any_mem_handle(), below(5000));
    else
        describe_write(descriptor, data, any_mem_handle(), below(5000), data, any_mem_handle());
    for (unsigned n = below(3); n > 0; n--)
        garbage((unsigned char *)descriptor + below(64), below(8));
    return descriptor;
}

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    (void)error;
}

/* Called with a descriptor that may be garbage by now; the pointer is not followed. */
static void on_queue(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                     VIP_DESCRIPTOR *descriptor)
{
    (void)context;
    (void)nic;
    (void)vi;
    (void)descriptor;
}

static void on_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                     VIP_BOOLEAN recv_queue)
{
    (void)context;
    (void)nic;
    (void)vi;
    (void)recv_queue;
}

/* --- calls ----------------------------------------------------------------------------------- */

static VIP_RETURN any_nic_call(unsigned which)
{
    VIP_NIC_HANDLE opened;
    VIP_RETURN answer;

    switch (which) {
    case 0:
        answer = VipOpenNic(any_text(), &opened);
        if (answer == VIP_SUCCESS)
            CHECK_RETURN(VipCloseNic(opened), VIP_SUCCESS);
        return answer;
    case 1: return below(64) == 0 ? VipCloseNic(any_handle()) : VipCloseNic(any_pointer());
    case 2: return VipQueryNic(any_handle(), any_pointer());
    case 3: return VipErrorCallback(any_handle(), any_pointer(), below(2) ? on_error : NULL);
    case 4: return VipNSInit(any_handle(), any_text());
    case 5: return VipNSGetHostByName(any_handle(), any_text(), any_pointer(), any_number());
    case 6: return VipNSGetHostByAddr(any_handle(), any_address(), any_pointer(), any_pointer());
    default: return VipNSShutdown(any_handle());
    }
}

static VIP_RETURN any_object_call(unsigned which)
{
    switch (which) {
    case 0:
        return VipCreateVi(any_handle(), any_vi_attributes(), below(2) ? NULL : any_handle(),
                           below(2) ? NULL : any_handle(), any_pointer());
    case 1: return VipDestroyVi(any_handle());
    case 2:
        return VipQueryVi(any_handle(), any_pointer(), any_pointer(), any_pointer(), any_pointer());
    case 3: return VipCreateCQ(any_handle(), below(4) ? below(100) : any_number(), any_pointer());
    case 4: return VipDestroyCQ(any_handle());
    case 5: return VipCreatePtag(any_handle(), any_pointer());
    case 6: return VipDestroyPtag(any_handle(), any_handle());
    case 7:
        return below(2) ? VipRegisterMem(any_handle(), room + below(ROOM_BYTES - TAIL_BYTES),
                                         below(TAIL_BYTES), any_mem_attributes(), any_pointer())
                        : VipRegisterMem(any_handle(), (VIP_PVOID)(uintptr_t)(1ull << 47),
                                         any_number(), any_mem_attributes(), any_pointer());
    case 8:
        return VipDeregisterMem(any_handle(), below(8) ? any_pointer() : victims.arena.base,
                                any_mem_handle());
    default:
        return VipQueryMem(any_handle(), below(2) ? any_pointer() : victims.arena.base,
                           any_mem_handle(), any_pointer());
    }
}

/* A list as C promises it: its array is as long as it says, for as many as there can be. */
static VIP_RETURN any_discovery(void)
{
    VIP_NET_ADDRESS *entries[SPOTS];
    VIP_AUTODISCOVERY_LIST list = {any_number(), below(4) ? entries : NULL, below(SPOTS + 1)};

    for (unsigned n = 0; n < SPOTS; n++)
        entries[n] = any_pointer();
    return VipQuerySystemManagementInfo(any_handle(),
                                        below(8) ? VIP_SMI_AUTODISCOVERY : any_number(),
                                        below(8) ? &list : NULL);
}

static VIP_RETURN any_change(unsigned which)
{
    switch (which) {
    case 0: return VipSetViAttributes(any_handle(), any_vi_attributes());
    case 1:
        return VipSetMemAttributes(any_handle(), below(2) ? any_pointer() : victims.arena.base,
                                   any_mem_handle(), any_mem_attributes());
    default: return any_discovery();
    }
}

static VIP_RETURN any_vi_call(unsigned which)
{
    switch (which) {
    case 0:
        return VipConnectWait(any_handle(), any_address(), any_timeout(), any_pointer(),
                              any_pointer(), any_pointer());
    case 1: return VipConnectAccept(any_handle(), any_handle());
    case 2: return VipConnectReject(any_handle());
    case 3:
        return VipConnectRequest(any_handle(), any_address(), any_address(), any_timeout(),
                                 any_pointer());
    case 4: return below(4) == 0 ? VipDisconnect(any_handle()) : VipDisconnect(any_pointer());
    case 5: return VipPostSend(any_handle(), any_descriptor(), any_mem_handle());
    case 6: return VipPostRecv(any_handle(), any_descriptor(), any_mem_handle());
    case 7: return VipSendDone(any_handle(), any_pointer());
    case 8: return VipRecvDone(any_handle(), any_pointer());
    case 9: return VipSendWait(any_handle(), any_timeout(), any_pointer());
    case 10: return VipRecvWait(any_handle(), any_timeout(), any_pointer());
    case 11: return VipCQDone(any_handle(), any_pointer(), any_pointer());
    case 12: return VipSendNotify(any_handle(), any_pointer(), below(8) ? on_queue : NULL);
    case 13: return VipRecvNotify(any_handle(), any_pointer(), below(8) ? on_queue : NULL);
    case 14: return VipCQNotify(any_handle(), any_pointer(), below(8) ? on_entry : NULL);
    case 15: return VipResizeCQ(any_handle(), below(4) ? below(100) : any_number());
    case 16:
        return VipConnectPeerRequest(any_handle(), any_address(), any_address(), any_timeout());
    case 17: return VipConnectPeerDone(any_handle(), any_pointer());
    case 18: return VipConnectPeerWait(any_handle(), any_pointer());
    default: return VipCQWait(any_handle(), any_timeout(), any_pointer(), any_pointer());
    }
}

enum { NIC_CALLS = 8, OBJECT_CALLS = 10, VI_CALLS = 20, CHANGES = 3 };

static VIP_RETURN any_call(void)
{
    unsigned which = below(NIC_CALLS + OBJECT_CALLS + VI_CALLS + CHANGES);

    if (which < CHANGES)
        return any_change(which);
    which -= CHANGES;
    if (which < NIC_CALLS)
        return any_nic_call(which);
    which -= NIC_CALLS;
    return which < OBJECT_CALLS ? any_object_call(which) : any_vi_call(which - OBJECT_CALLS);
}

/* --- rounds ---------------------------------------------------------------------------------- */

static VIP_VI_HANDLE victim_vi(const PairOptions *options)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&victims.device, options);
    VIP_VI_HANDLE vi;

    attributes.EnableRdmaWrite = options->server_rdma_write;
    REQUIRE_RETURN(VipCreateVi(victims.device.nic, &attributes, NULL, NULL, &vi), VIP_SUCCESS);
    return vi;
}

/* Takes a request of a victim's VI. */
static Request *ask(VIP_VI_HANDLE vi, VIP_CONN_HANDLE *connection)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(&victims.device, discriminator, &local);
    Request *request =
        request_between(&victims.device, &victims.device, vi, discriminator, VIP_INFINITE);
    REQUIRE_RETURN(VipConnectWait(victims.device.nic, &local.address, WAIT_MS, &remote.address,
                                  &attributes, connection),
                   VIP_SUCCESS);
    return request;
}

static void open_victims(void)
{
    const PairOptions *options = below(2) ? &writable : &plain;

    device_open(&victims.device);
    arena_open(&victims.arena, &victims.device, 1 << 15, victims.device.ptag, VIP_TRUE);
    REQUIRE_RETURN(VipCreateCQ(victims.device.nic, 16, &victims.cq), VIP_SUCCESS);
    victims.pair.client = victim_vi(&plain);
    victims.pair.server = victim_vi(options);
    victims.request = ask(victims.pair.client, &victims.connection);
    REQUIRE_RETURN(VipConnectAccept(victims.connection, victims.pair.server), VIP_SUCCESS);
    REQUIRE_RETURN(request_finish(victims.request, NULL), VIP_SUCCESS);
    victims.request = ask(victim_vi(&plain), &victims.connection);
}

/* Closing takes everything away that the garbage has made; it may have closed the NIC itself. */
static void close_victims(void)
{
    VIP_RETURN answer = VipCloseNic(victims.device.nic);

    CHECK(answer == VIP_SUCCESS || answer == VIP_INVALID_PARAMETER, "the victims' NIC is closed");
    /* Answered, or ended with the NIC. */
    answer = request_finish(victims.request, NULL);
    CHECK(answer != VIP_NOT_DONE, "the request has ended with %s", return_name((int)answer));
    arena_forget(&victims.arena);
}

int main(int count, char **words)
{
    const unsigned calls = small_counts() ? CALLS_SMALL : CALLS;
    unsigned wrong = 0;

    state = count > 2 ? strtoull(words[2], NULL, 0) : 0x5DEECE66D2545F49ull;
    printf("seed    0x%llx\n", (unsigned long long)state);
    /* Each unknown device would be logged. */
    setenv("VIADUCT_LOG", "off", 1);
    fixture_open();
    pair_open(&bystander, &plain);
    for (unsigned n = 0; n < calls; n++) {
        if (n % CALLS_PER_OPENING == 0) {
            if (n > 0)
                close_victims();
            open_victims();
        }
        VIP_RETURN answer = any_call();
        wrong += (int)answer < VIP_SUCCESS || (int)answer > VIP_NOT_REACHABLE;
    }
    CHECK(wrong == 0, "%u calls, each with an answer of VIP_RETURN (%u without)", calls, wrong);
    close_victims();
    pair_works(&bystander, "the bystander, after all that");
    pair_close(&bystander);
    fixture_close();
    return check_summary();
}
