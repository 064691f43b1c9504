#define _POSIX_C_SOURCE 200809L

#include "fixture.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "errors.h"
#include "suite.h"

enum { ARENA_BYTES = 1 << 20, EXPOSED_BYTES = 1 << 16 };

Device local_device, remote_device;
Arena local_arena, remote_arena, exposed;

/* --- set-up ---------------------------------------------------------------------------------- */

bool small_counts(void)
{
    return getenv("VIPL_TEST_SMALL") != NULL;
}

unsigned long long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000;
}

void device_open(Device *device)
{
    device_open_named(device, "VINIC");
}

void device_open_named(Device *device, const char *name)
{
    REQUIRE_RETURN(VipOpenNic(name, &device->nic), VIP_SUCCESS);
    REQUIRE_RETURN(VipQueryNic(device->nic, &device->attributes), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreatePtag(device->nic, &device->ptag), VIP_SUCCESS);
}

void device_open_remote(Device *device, const char *name)
{
    if (!has_remote_process()) {
        device_open_named(device, name);
        return;
    }
    REQUIRE_RETURN(remote_open_nic(name, &device->nic, &device->attributes), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreatePtag(device->nic, &device->ptag), VIP_SUCCESS);
}

void device_close(Device *device)
{
    CHECK_RETURN(VipDestroyPtag(device->nic, device->ptag), VIP_SUCCESS);
    CHECK_RETURN(VipCloseNic(device->nic), VIP_SUCCESS);
}

static void open_local_end(const char *name)
{
    device_open_named(&local_device, name);
    errors_register(&local_device);
    arena_open(&local_arena, &local_device, ARENA_BYTES, local_device.ptag, VIP_FALSE);
}

static void prepare_remote_end(void)
{
    errors_register(&remote_device);
    arena_open(&remote_arena, &remote_device, ARENA_BYTES, remote_device.ptag, VIP_FALSE);
    arena_open(&exposed, &remote_device, EXPOSED_BYTES, remote_device.ptag, VIP_TRUE);
}

static void open_remote_end(const char *name)
{
    device_open_remote(&remote_device, name);
    prepare_remote_end();
}

static void close_ends(void)
{
    arena_close(&exposed);
    arena_close(&remote_arena);
    arena_close(&local_arena);
    device_close(&remote_device);
    device_close(&local_device);
}

void fixture_open(void)
{
    remote_process_start();
    open_local_end("VINIC");
    open_remote_end("VINIC");
}

void fixture_close(void)
{
    close_ends();
    remote_process_stop();
}

/* The default ends, saved while others are in use. */
static struct {
    Device local_device, remote_device;
    Arena local_arena, remote_arena, exposed;
} saved;

static void save_ends(void)
{
    saved.local_device = local_device;
    saved.remote_device = remote_device;
    saved.local_arena = local_arena;
    saved.remote_arena = remote_arena;
    saved.exposed = exposed;
}

void fixture_use(const char *name)
{
    save_ends();
    open_local_end(name);
    open_remote_end(name);
}

void fixture_use_one_process(const char *name)
{
    save_ends();
    open_local_end(name);
    device_open_named(&remote_device, name);
    prepare_remote_end();
}

void fixture_use_end(void)
{
    close_ends();
    local_device = saved.local_device;
    remote_device = saved.remote_device;
    local_arena = saved.local_arena;
    remote_arena = saved.remote_arena;
    exposed = saved.exposed;
}

void fixture_reset(void)
{
    local_arena.used = remote_arena.used = exposed.used = 0;
    memset(exposed.base, 0, exposed.bytes);
    errors_clear();
}

void fixture_reopen_remote(void)
{
    shared_free(remote_arena.base, remote_arena.bytes);
    shared_free(exposed.base, exposed.bytes);
    remote_process_start();
    open_remote_end("VINIC");
}

/* Allocates memory that the remote process maps, if there is one. */
static void *memory_alloc(size_t bytes)
{
    void *base;

    if (has_remote_process())
        return shared_alloc(bytes);
    REQUIRE(posix_memalign(&base, 4096, bytes) == 0, "%zu bytes of memory", bytes);
    memset(base, 0, bytes);
    return base;
}

void arena_open(Arena *arena, Device *device, size_t bytes, VIP_PROTECTION_HANDLE ptag,
                VIP_BOOLEAN rdma_write)
{
    VIP_MEM_ATTRIBUTES attributes = {ptag, rdma_write, VIP_FALSE};

    arena->device = device;
    arena->base = memory_alloc(bytes);
    arena->bytes = bytes;
    arena->used = 0;
    REQUIRE_RETURN(VipRegisterMem(device->nic, arena->base, bytes, &attributes, &arena->handle),
                   VIP_SUCCESS);
}

void arena_forget(Arena *arena)
{
    if (has_remote_process())
        shared_free(arena->base, arena->bytes);
    else
        free(arena->base);
}

void arena_close(Arena *arena)
{
    CHECK_RETURN(VipDeregisterMem(arena->device->nic, arena->base, arena->handle), VIP_SUCCESS);
    arena_forget(arena);
}

unsigned char *arena_bytes(Arena *arena, size_t bytes)
{
    unsigned char *piece = arena->base + arena->used;

    arena->used += (bytes + VIP_DESCRIPTOR_ALIGNMENT - 1) / VIP_DESCRIPTOR_ALIGNMENT *
                   VIP_DESCRIPTOR_ALIGNMENT;
    if (arena->used > arena->bytes)
        REQUIRE(false, "the arena of the test is too small");
    return piece;
}

VIP_DESCRIPTOR *arena_descriptor(Arena *arena, unsigned segments)
{
    size_t bytes = sizeof(VIP_CONTROL_SEGMENT) + segments * sizeof(VIP_DESCRIPTOR_SEGMENT);
    void *piece = arena_bytes(arena,
                              bytes < sizeof(VIP_DESCRIPTOR) ? sizeof(VIP_DESCRIPTOR) : bytes);

    memset(piece, 0, bytes);
    return piece;
}

void address_of(const Device *device, const char *discriminator, Address *address)
{
    size_t host_bytes = device->attributes.NicAddressLen, bytes = strlen(discriminator);

    memset(address, 0, sizeof *address);
    address->address.HostAddressLen = (VIP_UINT16)host_bytes;
    address->address.DiscriminatorLen = (VIP_UINT16)bytes;
    memcpy(address->bytes + 4, device->attributes.LocalNicAddress, host_bytes);
    memcpy(address->bytes + 4 + host_bytes, discriminator, bytes);
}

void fresh_discriminator(char *text, size_t bytes)
{
    static unsigned last;

    snprintf(text, bytes, "test-%u", __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED));
}

VIP_VI_ATTRIBUTES vi_attributes(const Device *device, const PairOptions *options)
{
    VIP_VI_ATTRIBUTES attributes;

    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel =
        options->reliability ? options->reliability : VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = options->max_transfer_bytes ? options->max_transfer_bytes : 65536;
    attributes.Ptag = device->ptag;
    return attributes;
}

VIP_VI_HANDLE client_create(const PairOptions *options)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, options);
    VIP_VI_HANDLE vi = NULL;

    REQUIRE_RETURN(VipCreateVi(local_device.nic, &attributes, NULL, NULL, &vi), VIP_SUCCESS);
    return vi;
}

VIP_VI_HANDLE server_create(const PairOptions *options)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&remote_device, options);
    VIP_VI_HANDLE vi = NULL;

    attributes.EnableRdmaWrite = options->server_rdma_write;
    attributes.EnableRdmaRead = options->server_rdma_read;
    REQUIRE_RETURN(VipCreateVi(remote_device.nic, &attributes, options->server_send_cq,
                               options->server_recv_cq, &vi),
                   VIP_SUCCESS);
    return vi;
}

/* --- connections ----------------------------------------------------------------------------- */

struct Request {
    pthread_t thread;
    VIP_VI_HANDLE vi;
    Address local, remote;
    VIP_ULONG timeout_ms;
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN result;
};

static void *request_run(void *argument)
{
    Request *request = argument;
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;

    do {
        request->result =
            VipConnectRequest(request->vi, &request->local.address, &request->remote.address,
                              request->timeout_ms, &request->attributes);
        sched_yield();
    } while (request->result == VIP_NO_MATCH && now_ms() < deadline_ms);
    return NULL;
}

Request *request_between(const Device *from, const Device *to, VIP_VI_HANDLE vi,
                         const char *discriminator, VIP_ULONG timeout_ms)
{
    Request *request = calloc(1, sizeof *request);

    REQUIRE(request != NULL, "memory for a request");
    request->vi = vi;
    request->timeout_ms = timeout_ms;
    address_of(from, "client", &request->local);
    address_of(to, discriminator, &request->remote);
    REQUIRE(pthread_create(&request->thread, NULL, request_run, request) == 0, "a thread");
    return request;
}

Request *request_start(VIP_VI_HANDLE vi, const char *discriminator, VIP_ULONG timeout_ms)
{
    return request_between(&local_device, &remote_device, vi, discriminator, timeout_ms);
}

VIP_RETURN request_finish(Request *request, VIP_VI_ATTRIBUTES *remote)
{
    pthread_join(request->thread, NULL);
    VIP_RETURN result = request->result;
    if (remote != NULL)
        *remote = request->attributes;
    free(request);
    return result;
}

void pair_connect(Pair *pair)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(&remote_device, discriminator, &local);
    Request *request = request_start(pair->client, discriminator, WAIT_MS);
    REQUIRE_RETURN(VipConnectWait(remote_device.nic, &local.address, WAIT_MS, &remote.address,
                                  &attributes, &connection),
                   VIP_SUCCESS);
    REQUIRE_RETURN(VipConnectAccept(connection, pair->server), VIP_SUCCESS);
    REQUIRE_RETURN(request_finish(request, NULL), VIP_SUCCESS);
}

void pair_open(Pair *pair, const PairOptions *options)
{
    pair->client = client_create(options);
    pair->server = server_create(options);
    pair_connect(pair);
}

unsigned vi_drain(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *descriptor;
    unsigned drained = 0;

    while (VipSendDone(vi, &descriptor) != VIP_NOT_DONE && descriptor != NULL)
        drained++;
    while (VipRecvDone(vi, &descriptor) != VIP_NOT_DONE && descriptor != NULL)
        drained++;
    return drained;
}

void vi_close(VIP_VI_HANDLE vi)
{
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    vi_drain(vi);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
}

void pair_close(Pair *pair)
{
    vi_close(pair->client);
    vi_close(pair->server);
}

/* VIPL_TEST_UNKNOWN_HOST is the behaviour of VINIC's network for an unknown host: unset, no route;
 * "silent", no response; "refuses", the connection is refused, which a peer request ignores. */
static VIP_RETURN unknown_host_result(bool is_peer)
{
    const char *network = getenv("VIPL_TEST_UNKNOWN_HOST");

    if (network == NULL)
        return VIP_NOT_REACHABLE;
    REQUIRE(strcmp(network, "silent") == 0 || strcmp(network, "refuses") == 0,
            "VIPL_TEST_UNKNOWN_HOST=%s", network);
    return is_peer || strcmp(network, "silent") == 0 ? VIP_TIMEOUT : VIP_NO_MATCH;
}

void check_unknown_host_result(VIP_VI_HANDLE vi, VIP_RETURN result, bool is_peer)
{
    const bool breaks = result == VIP_NOT_REACHABLE && test_level() != VIP_SERVICE_UNRELIABLE;

    CHECK_RETURN(result, unknown_host_result(is_peer));
    CHECK(vi_state(vi) == (breaks ? VIP_STATE_ERROR : VIP_STATE_IDLE),
          "only a reliable VI whose peer cannot be reached is in Error");
}

VIP_VI_STATE vi_state(VIP_VI_HANDLE vi)
{
    VIP_VI_STATE state = VIP_STATE_IDLE;
    VIP_VI_ATTRIBUTES attributes;
    VIP_BOOLEAN send_empty, recv_empty;

    CHECK_RETURN(VipQueryVi(vi, &state, &attributes, &send_empty, &recv_empty), VIP_SUCCESS);
    return state;
}

bool vi_reaches(VIP_VI_HANDLE vi, VIP_VI_STATE state)
{
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;
    VIP_VI_STATE found = state;
    VIP_VI_ATTRIBUTES attributes;
    VIP_BOOLEAN send_empty, recv_empty;

    do {
        if (VipQueryVi(vi, &found, &attributes, &send_empty, &recv_empty) != VIP_SUCCESS)
            return CHECK(false, "VipQueryVi while waiting for state %d", (int)state);
        sched_yield();
    } while (found != state && now_ms() < deadline_ms);
    return CHECK(found == state, "the VI reaches state %d (is %d)", (int)state, (int)found);
}

/* --- descriptors ----------------------------------------------------------------------------- */

void describe_segment(VIP_DESCRIPTOR *descriptor, unsigned n, const void *data,
                      VIP_MEM_HANDLE handle, size_t bytes)
{
    /* A descriptor with more than two segments is longer than its type. */
    VIP_DESCRIPTOR_SEGMENT *segments = descriptor->DS;

    segments[n].Local.Data.AddressBits = (VIP_UINT64)(uintptr_t)data;
    segments[n].Local.Handle = handle;
    segments[n].Local.Length = (VIP_UINT32)bytes;
}

void describe(VIP_DESCRIPTOR *descriptor, const void *data, VIP_MEM_HANDLE handle, size_t bytes)
{
    memset(&descriptor->CS, 0, sizeof descriptor->CS);
    descriptor->CS.SegCount = 1;
    descriptor->CS.Length = (VIP_UINT32)bytes;
    describe_segment(descriptor, 0, data, handle, bytes);
}

void describe_write(VIP_DESCRIPTOR *descriptor, const void *data, VIP_MEM_HANDLE handle,
                    size_t bytes, const void *remote, VIP_MEM_HANDLE remote_handle)
{
    memset(descriptor, 0, sizeof *descriptor);
    descriptor->CS.SegCount = 2;
    descriptor->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
    descriptor->CS.Length = (VIP_UINT32)bytes;
    descriptor->DS[0].Remote.Data.AddressBits = (VIP_UINT64)(uintptr_t)remote;
    descriptor->DS[0].Remote.Handle = remote_handle;
    describe_segment(descriptor, 1, data, handle, bytes);
}

void describe_read(VIP_DESCRIPTOR *descriptor, const void *data, VIP_MEM_HANDLE handle,
                   size_t bytes, const void *remote, VIP_MEM_HANDLE remote_handle)
{
    describe_write(descriptor, data, handle, bytes, remote, remote_handle);
    descriptor->CS.Control = VIP_CONTROL_OP_RDMAREAD;
}

void with_immediate(VIP_DESCRIPTOR *descriptor, VIP_UINT32 immediate)
{
    descriptor->CS.Control |= VIP_CONTROL_IMMEDIATE;
    descriptor->CS.ImmediateData = immediate;
}

/* Checks the descriptor and status that a Wait call returned. */
static VIP_UINT32 check_completion(VIP_RETURN result, const VIP_DESCRIPTOR *descriptor,
                                   const VIP_DESCRIPTOR *expected, const char *queue)
{
    if (!CHECK(descriptor == expected && descriptor != NULL,
               "%s queue: %s returns the descriptor posted next", queue, return_name((int)result)))
        return 0;
    VIP_UINT32 status = descriptor->CS.Status;
    CHECK((result == VIP_SUCCESS) == ((status & VIP_STATUS_ERROR_MASK) == 0),
          "%s queue: %s is consistent with status 0x%08X", queue, return_name((int)result), status);
    CHECK((status & VIP_STATUS_DONE) != 0 && (status & VIP_STATUS_RESERVED) == 0,
          "%s queue: status 0x%08X is done, reserved bits clear", queue, status);
    return status;
}

VIP_UINT32 sent(VIP_VI_HANDLE vi, const VIP_DESCRIPTOR *expected)
{
    VIP_DESCRIPTOR *descriptor = NULL;
    VIP_RETURN result = VipSendWait(vi, WAIT_MS, &descriptor);

    return check_completion(result, descriptor, expected, "send");
}

VIP_UINT32 received(VIP_VI_HANDLE vi, const VIP_DESCRIPTOR *expected)
{
    VIP_DESCRIPTOR *descriptor = NULL;
    VIP_RETURN result = VipRecvWait(vi, WAIT_MS, &descriptor);

    return check_completion(result, descriptor, expected, "receive");
}

static void exchange_message(VIP_VI_HANDLE from, Arena *source, VIP_VI_HANDLE to, Arena *target,
                             const char *what)
{
    const size_t bytes = 1000, source_mark = source->used, target_mark = target->used;
    VIP_DESCRIPTOR *send = arena_descriptor(source, 1), *recv = arena_descriptor(target, 1);
    unsigned char *data = arena_bytes(source, bytes), *buffer = arena_bytes(target, bytes);

    fill(data, bytes, 77);
    memset(buffer, 0, bytes);
    describe(send, data, source->handle, bytes);
    describe(recv, buffer, target->handle, bytes);
    CHECK_RETURN(VipPostRecv(to, recv, target->handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(from, send, source->handle), VIP_SUCCESS);
    sent(from, send);
    received(to, recv);
    CHECK(recv->CS.Length == bytes && filled(buffer, bytes, 77), "%s: a message passes", what);
    source->used = source_mark;
    target->used = target_mark;
}

void pair_works(const Pair *pair, const char *what)
{
    exchange_message(pair->client, &local_arena, pair->server, &remote_arena, what);
    exchange_message(pair->server, &remote_arena, pair->client, &local_arena, what);
}

static unsigned char pattern(unsigned message, size_t offset)
{
    return (unsigned char)(message * 37 + offset * 11 + (offset >> 8) + 1);
}

void fill(unsigned char *data, size_t bytes, unsigned message)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = pattern(message, i);
}

bool filled(const unsigned char *data, size_t bytes, unsigned message)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != pattern(message, i))
            return false;
    }
    return true;
}

/* --- asynchronous errors, at either end ------------------------------------------------------ */

void errors_register(const Device *device)
{
    if (is_remote_handle(device->nic))
        remote_errors_register(device->nic);
    else
        REQUIRE_RETURN(local_errors_register(device->nic), VIP_SUCCESS);
}

void errors_clear(void)
{
    local_errors_clear();
    remote_errors_clear();
}

bool expect_error(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found)
{
    const bool reported = is_remote_handle(vi) ? remote_error_wait(vi, code,
                                                                   found) : local_error_wait(vi,
                                                                                             code,
                                                                                             found);

    return CHECK(reported, "asynchronous error %d is reported", (int)code);
}

unsigned errors_count(VIP_VI_HANDLE vi, VIP_ERROR_CODE code)
{
    return is_remote_handle(vi) ? remote_errors_count(vi, code) : local_errors_count(vi, code);
}
