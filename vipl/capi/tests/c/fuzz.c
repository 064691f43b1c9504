/*
 * Calls with random arguments: handles that are valid, stale, modified or random, pointers anywhere
 * into valid memory with garbage contents. No call may crash or return a value outside of
 * VIP_RETURN, and an unrelated connection must keep working.
 *
 * The obligations of the C caller are met: pointers are NULL or point to enough memory, strings are
 * terminated.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

enum {
    CALLS = 100000,
    CALLS_SMALL = 4000,
    CALLS_PER_NIC = 500, /* with the same targets */
    SCRATCH_BYTES = 1 << 16,
    TAIL_BYTES = 4096, /* after every pointer into the scratch memory */
    ENTRIES = 8,
};

static const PairOptions plain = {0};
static const PairOptions writable = {.server_rdma_write = VIP_TRUE};

/* The NIC handle and objects that the calls may affect, and a pair that they must not affect. */
typedef struct {
    Device device;
    Arena arena;
    Pair pair;
    VIP_CQ_HANDLE cq;
    VIP_CONN_HANDLE connection; /* of a request that is not accepted otherwise */
    Request *request;
} Targets;

static Targets targets;
static Pair control_pair;

static unsigned char scratch[SCRATCH_BYTES];
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

/* Reports whether a handle must not be used, because its object must not be affected. */
static bool is_protected(VIP_PVOID handle)
{
    return handle == local_device.nic || handle == local_device.ptag ||
           handle == remote_device.nic || handle == remote_device.ptag ||
           handle == control_pair.client || handle == control_pair.server;
}

static VIP_PVOID any_handle(void)
{
    const VIP_PVOID live[] = {targets.device.nic,  targets.device.ptag, targets.pair.client,
                              targets.pair.server, targets.cq,          targets.connection};
    VIP_PVOID handle = live[below(sizeof live / sizeof live[0])];

    switch (below(8)) {
    case 0: handle = NULL; break;
    case 1: handle = (VIP_PVOID)(uintptr_t)random64(); break;
    case 2: handle = scratch + below(SCRATCH_BYTES); break;
    case 3: handle = (VIP_PVOID)((uintptr_t)handle ^ (1ull << below(64))); break;
    case 4: handle = (VIP_PVOID)((uintptr_t)handle + below(3) - 1); break;
    default: break;
    }
    return is_protected(handle) ? NULL : handle;
}

/* Fills memory with garbage: random bytes, zeros, ones, or small numbers. */
static void garbage(unsigned char *target, size_t bytes)
{
    const unsigned kind = below(4);

    for (size_t i = 0; i < bytes; i++)
        target[i] = (unsigned char)(kind == 0   ? random64()
                                    : kind == 1 ? 0
                                    : kind == 2 ? below(4)
                                                : 0xFF);
}

/* Returns NULL or a pointer into the scratch memory, aligned or not, possibly to new garbage. */
static void *any_pointer(void)
{
    unsigned char *pointer = scratch + below(SCRATCH_BYTES - TAIL_BYTES);

    if (below(16) == 0)
        return NULL;
    if (below(2) == 0)
        pointer -= (uintptr_t)pointer % 64;
    if (pointer < scratch)
        pointer += 64;
    if (below(2) == 0)
        garbage(pointer, 64 + below(256));
    return pointer;
}

static VIP_CHAR *any_text(void)
{
    static const char *const texts[] = {"",      "VINIC", "VINIC0",    "VINIC1", "localhost",
                                        "SMALL", "VINIC99", "\xC3\x28", "/",     "no/such/file"};
    const unsigned count = sizeof texts / sizeof texts[0], index = below(count + 4);
    VIP_CHAR *text = any_pointer();

    if (text == NULL)
        return NULL;
    if (index < count)
        strcpy(text, texts[index]);
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

/* Returns 0 or 1 ms: a longer wait would stall the test. */
static VIP_ULONG any_timeout(void)
{
    return below(20) == 0;
}

/* Returns NULL, a valid address, one with a fault, or garbage; as long as its lengths state. */
static VIP_NET_ADDRESS *any_address(void)
{
    static Address address;

    if (below(16) == 0)
        return NULL;
    address_of(&local_device, below(2) ? "fuzz" : "target", &address);
    switch (below(6)) {
    case 0: garbage(address.bytes, sizeof address.bytes); break;
    case 1: address.address.HostAddressLen = (VIP_UINT16)any_number(); break;
    case 2: address.address.DiscriminatorLen = (VIP_UINT16)any_number(); break;
    case 3: address.bytes[4 + below(16)] ^= (unsigned char)(1u << below(8)); break;
    default: break;
    }
    return &address.address;
}

static VIP_VI_ATTRIBUTES *any_vi_attributes(void)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&targets.device, &plain);
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
    case 1: return targets.arena.handle ^ (1u << below(32));
    default: return targets.arena.handle;
    }
}

/* Returns a partly valid descriptor in registered memory, or a pointer to no descriptor. */
static VIP_DESCRIPTOR *any_descriptor(void)
{
    VIP_DESCRIPTOR *descriptor = (VIP_DESCRIPTOR *)(void *)targets.arena.base + below(ENTRIES);
    unsigned char *data = targets.arena.base + 4096 + below(8192);

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

/* The descriptor may be overwritten with garbage; it is not dereferenced. */
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

static VIP_RETURN any_nic_call(unsigned choice)
{
    VIP_NIC_HANDLE opened;
    VIP_RETURN result;

    switch (choice) {
    case 0:
        result = VipOpenNic(any_text(), &opened);
        if (result == VIP_SUCCESS)
            CHECK_RETURN(VipCloseNic(opened), VIP_SUCCESS);
        return result;
    case 1: return below(64) == 0 ? VipCloseNic(any_handle()) : VipCloseNic(any_pointer());
    case 2: return VipQueryNic(any_handle(), any_pointer());
    case 3: return VipErrorCallback(any_handle(), any_pointer(), below(2) ? on_error : NULL);
    case 4: return VipNSInit(any_handle(), any_text());
    case 5: return VipNSGetHostByName(any_handle(), any_text(), any_pointer(), any_number());
    case 6: return VipNSGetHostByAddr(any_handle(), any_address(), any_pointer(), any_pointer());
    default: return VipNSShutdown(any_handle());
    }
}

static VIP_RETURN any_object_call(unsigned choice)
{
    switch (choice) {
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
        return below(2) ? VipRegisterMem(any_handle(), scratch + below(SCRATCH_BYTES - TAIL_BYTES),
                                         below(TAIL_BYTES), any_mem_attributes(), any_pointer())
                        : VipRegisterMem(any_handle(), (VIP_PVOID)(uintptr_t)(1ull << 47),
                                         any_number(), any_mem_attributes(), any_pointer());
    case 8:
        return VipDeregisterMem(any_handle(), below(8) ? any_pointer() : targets.arena.base,
                                any_mem_handle());
    default:
        return VipQueryMem(any_handle(), below(2) ? any_pointer() : targets.arena.base,
                           any_mem_handle(), any_pointer());
    }
}

/* Calls VipQuerySystemManagementInfo with a list whose array is as long as it states. */
static VIP_RETURN any_discovery(void)
{
    VIP_NET_ADDRESS *entries[ENTRIES];
    VIP_AUTODISCOVERY_LIST list = {any_number(), below(4) ? entries : NULL, below(ENTRIES + 1)};

    for (unsigned n = 0; n < ENTRIES; n++)
        entries[n] = any_pointer();
    return VipQuerySystemManagementInfo(any_handle(),
                                        below(8) ? VIP_SMI_AUTODISCOVERY : any_number(),
                                        below(8) ? &list : NULL);
}

static VIP_RETURN any_change(unsigned choice)
{
    switch (choice) {
    case 0: return VipSetViAttributes(any_handle(), any_vi_attributes());
    case 1:
        return VipSetMemAttributes(any_handle(), below(2) ? any_pointer() : targets.arena.base,
                                   any_mem_handle(), any_mem_attributes());
    default: return any_discovery();
    }
}

static VIP_RETURN any_vi_call(unsigned choice)
{
    switch (choice) {
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
    unsigned choice = below(NIC_CALLS + OBJECT_CALLS + VI_CALLS + CHANGES);

    if (choice < CHANGES)
        return any_change(choice);
    choice -= CHANGES;
    if (choice < NIC_CALLS)
        return any_nic_call(choice);
    choice -= NIC_CALLS;
    return choice < OBJECT_CALLS ? any_object_call(choice) : any_vi_call(choice - OBJECT_CALLS);
}

/* --- rounds ---------------------------------------------------------------------------------- */

static VIP_VI_HANDLE target_vi(const PairOptions *options)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&targets.device, options);
    VIP_VI_HANDLE vi;

    attributes.EnableRdmaWrite = options->server_rdma_write;
    REQUIRE_RETURN(VipCreateVi(targets.device.nic, &attributes, NULL, NULL, &vi), VIP_SUCCESS);
    return vi;
}

/* Starts a request of a target VI and takes it from VipConnectWait. */
static Request *start_request(VIP_VI_HANDLE vi, VIP_CONN_HANDLE *connection)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(&targets.device, discriminator, &local);
    Request *request =
        request_between(&targets.device, &targets.device, vi, discriminator, VIP_INFINITE);
    REQUIRE_RETURN(VipConnectWait(targets.device.nic, &local.address, WAIT_MS, &remote.address,
                                  &attributes, connection),
                   VIP_SUCCESS);
    return request;
}

static void open_targets(void)
{
    const PairOptions *options = below(2) ? &writable : &plain;

    device_open(&targets.device);
    arena_open(&targets.arena, &targets.device, 1 << 15, targets.device.ptag, VIP_TRUE);
    REQUIRE_RETURN(VipCreateCQ(targets.device.nic, 16, &targets.cq), VIP_SUCCESS);
    targets.pair.client = target_vi(&plain);
    targets.pair.server = target_vi(options);
    targets.request = start_request(targets.pair.client, &targets.connection);
    REQUIRE_RETURN(VipConnectAccept(targets.connection, targets.pair.server), VIP_SUCCESS);
    REQUIRE_RETURN(request_finish(targets.request, NULL), VIP_SUCCESS);
    targets.request = start_request(target_vi(&plain), &targets.connection);
}

/* Closes the NIC, unless a random call has closed it, with all objects of random calls. */
static void close_targets(void)
{
    VIP_RETURN result = VipCloseNic(targets.device.nic);

    CHECK(result == VIP_SUCCESS || result == VIP_INVALID_PARAMETER,
          "the NIC of the targets is closed");
    /* Accepted, rejected, or ended by closing the NIC. */
    result = request_finish(targets.request, NULL);
    CHECK(result != VIP_NOT_DONE, "the request has ended with %s", return_name((int)result));
    arena_forget(&targets.arena);
}

int main(int argc, char **argv)
{
    const unsigned calls = small_counts() ? CALLS_SMALL : CALLS;
    unsigned wrong = 0;

    state = argc > 2 ? strtoull(argv[2], NULL, 0) : 0x5DEECE66D2545F49ull;
    printf("seed    0x%llx\n", (unsigned long long)state);
    /* Unknown devices would be logged. */
    setenv("VIADUCT_LOG", "off", 1);
    fixture_open();
    pair_open(&control_pair, &plain);
    for (unsigned n = 0; n < calls; n++) {
        if (n % CALLS_PER_NIC == 0) {
            if (n > 0)
                close_targets();
            open_targets();
        }
        VIP_RETURN result = any_call();
        wrong += (int)result < VIP_SUCCESS || (int)result > VIP_NOT_REACHABLE;
    }
    CHECK(wrong == 0, "%u calls, each returns a VIP_RETURN (%u do not)", calls, wrong);
    close_targets();
    pair_works(&control_pair, "the control pair, after all calls");
    pair_close(&control_pair);
    fixture_close();
    return check_summary();
}
