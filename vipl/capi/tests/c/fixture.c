#define _POSIX_C_SOURCE 200809L

#include "fixture.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

void device_close(Device *device)
{
    CHECK_RETURN(VipDestroyPtag(device->nic, device->ptag), VIP_SUCCESS);
    CHECK_RETURN(VipCloseNic(device->nic), VIP_SUCCESS);
}

void arena_open(Arena *arena, Device *device, size_t bytes, VIP_PROTECTION_HANDLE ptag,
                VIP_BOOLEAN rdma_write)
{
    VIP_MEM_ATTRIBUTES attributes = {ptag, rdma_write, VIP_FALSE};
    void *base;

    REQUIRE(posix_memalign(&base, 4096, bytes) == 0, "%zu bytes of memory", bytes);
    memset(base, 0, bytes);
    arena->device = device;
    arena->base = base;
    arena->bytes = bytes;
    arena->used = 0;
    REQUIRE_RETURN(VipRegisterMem(device->nic, base, bytes, &attributes, &arena->handle),
                   VIP_SUCCESS);
}

void arena_close(Arena *arena)
{
    CHECK_RETURN(VipDeregisterMem(arena->device->nic, arena->base, arena->handle), VIP_SUCCESS);
    free(arena->base);
}

unsigned char *arena_bytes(Arena *arena, size_t bytes)
{
    unsigned char *piece = arena->base + arena->used;

    arena->used += (bytes + VIP_DESCRIPTOR_ALIGNMENT - 1) / VIP_DESCRIPTOR_ALIGNMENT *
                   VIP_DESCRIPTOR_ALIGNMENT;
    if (arena->used > arena->bytes)
        REQUIRE(false, "the test's arena is too small");
    return piece;
}

VIP_DESCRIPTOR *arena_descriptor(Arena *arena, unsigned segments)
{
    size_t bytes = sizeof(VIP_CONTROL_SEGMENT) + segments * sizeof(VIP_DESCRIPTOR_SEGMENT);
    void *piece = arena_bytes(arena, bytes < sizeof(VIP_DESCRIPTOR) ? sizeof(VIP_DESCRIPTOR) : bytes);

    memset(piece, 0, bytes);
    return piece;
}

void address_of(const Device *device, const char *discriminator, Address *address)
{
    size_t host_bytes = device->attributes.NicAddressLen, bytes = strlen(discriminator);

    memset(address, 0, sizeof *address);
    address->address.HostAddressLen = (VIP_UINT16)host_bytes;
    address->address.DiscriminatorLen = (VIP_UINT16)bytes;
    memcpy(address->room + 4, device->attributes.LocalNicAddress, host_bytes);
    memcpy(address->room + 4 + host_bytes, discriminator, bytes);
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

VIP_VI_HANDLE vi_create(const Device *device, const PairOptions *options, bool server)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(device, options);
    VIP_VI_HANDLE vi = NULL;

    attributes.EnableRdmaWrite = server ? options->server_rdma_write : VIP_FALSE;
    REQUIRE_RETURN(VipCreateVi(device->nic, &attributes, server ? options->server_send_cq : NULL,
                               server ? options->server_recv_cq : NULL, &vi),
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
    VIP_RETURN answer;
};

static void *request_run(void *argument)
{
    Request *request = argument;
    const unsigned long long deadline_ms = now_ms() + WAIT_MS;

    do {
        request->answer =
            VipConnectRequest(request->vi, &request->local.address, &request->remote.address,
                              request->timeout_ms, &request->attributes);
        sched_yield();
    } while (request->answer == VIP_NO_MATCH && now_ms() < deadline_ms);
    return NULL;
}

Request *request_start(const Device *device, VIP_VI_HANDLE vi, const char *discriminator,
                       VIP_ULONG timeout_ms)
{
    Request *request = calloc(1, sizeof *request);

    REQUIRE(request != NULL, "memory for a request");
    request->vi = vi;
    request->timeout_ms = timeout_ms;
    address_of(device, "client", &request->local);
    address_of(device, discriminator, &request->remote);
    REQUIRE(pthread_create(&request->thread, NULL, request_run, request) == 0, "a thread");
    return request;
}

VIP_RETURN request_finish(Request *request, VIP_VI_ATTRIBUTES *remote)
{
    pthread_join(request->thread, NULL);
    VIP_RETURN answer = request->answer;
    if (remote != NULL)
        *remote = request->attributes;
    free(request);
    return answer;
}

void pair_connect(Pair *pair, const Device *device)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(device, discriminator, &local);
    Request *request = request_start(device, pair->client, discriminator, WAIT_MS);
    REQUIRE_RETURN(VipConnectWait(device->nic, &local.address, WAIT_MS, &remote.address,
                                  &attributes, &connection),
                   VIP_SUCCESS);
    REQUIRE_RETURN(VipConnectAccept(connection, pair->server), VIP_SUCCESS);
    REQUIRE_RETURN(request_finish(request, NULL), VIP_SUCCESS);
}

void pair_open(Pair *pair, const Device *device, const PairOptions *options)
{
    pair->client = vi_create(device, options, false);
    pair->server = vi_create(device, options, true);
    pair_connect(pair, device);
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
    /* Descriptors are longer than their type where there are more than two segments. */
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

void with_immediate(VIP_DESCRIPTOR *descriptor, VIP_UINT32 immediate)
{
    descriptor->CS.Control |= VIP_CONTROL_IMMEDIATE;
    descriptor->CS.ImmediateData = immediate;
}

/* Judges what a Wait call has brought. */
static VIP_UINT32 came_back(VIP_RETURN answer, const VIP_DESCRIPTOR *descriptor,
                            const VIP_DESCRIPTOR *expected, const char *queue)
{
    if (!CHECK(descriptor == expected && descriptor != NULL,
               "%s queue: %s with the descriptor expected next", queue, return_name((int)answer)))
        return 0;
    VIP_UINT32 status = descriptor->CS.Status;
    CHECK((answer == VIP_SUCCESS) == ((status & VIP_STATUS_ERROR_MASK) == 0),
          "%s queue: %s fits status 0x%08X", queue, return_name((int)answer), status);
    CHECK((status & VIP_STATUS_DONE) != 0 && (status & VIP_STATUS_RESERVED) == 0,
          "%s queue: status 0x%08X is done, reserved bits clear", queue, status);
    return status;
}

VIP_UINT32 sent(VIP_VI_HANDLE vi, const VIP_DESCRIPTOR *expected)
{
    VIP_DESCRIPTOR *descriptor = NULL;
    VIP_RETURN answer = VipSendWait(vi, WAIT_MS, &descriptor);

    return came_back(answer, descriptor, expected, "send");
}

VIP_UINT32 received(VIP_VI_HANDLE vi, const VIP_DESCRIPTOR *expected)
{
    VIP_DESCRIPTOR *descriptor = NULL;
    VIP_RETURN answer = VipRecvWait(vi, WAIT_MS, &descriptor);

    return came_back(answer, descriptor, expected, "receive");
}

static void passes(VIP_VI_HANDLE from, VIP_VI_HANDLE to, Arena *arena, const char *who)
{
    const size_t bytes = 1000;
    size_t mark = arena->used;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1), *recv = arena_descriptor(arena, 1);
    unsigned char *data = arena_bytes(arena, bytes), *target = arena_bytes(arena, bytes);

    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 5 + 3);
    memset(target, 0, bytes);
    describe(send, data, arena->handle, bytes);
    describe(recv, target, arena->handle, bytes);
    CHECK_RETURN(VipPostRecv(to, recv, arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(from, send, arena->handle), VIP_SUCCESS);
    sent(from, send);
    received(to, recv);
    CHECK(recv->CS.Length == bytes && memcmp(data, target, bytes) == 0, "%s: a message passes", who);
    arena->used = mark;
}

void pair_works(const Pair *pair, Arena *arena, const char *who)
{
    passes(pair->client, pair->server, arena, who);
    passes(pair->server, pair->client, arena, who);
}

/* --- asynchronous errors --------------------------------------------------------------------- */

enum { ERRORS_KEPT = 4096 };

static pthread_mutex_t errors_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t errors_changed = PTHREAD_COND_INITIALIZER;
static VIP_ERROR_DESCRIPTOR errors[ERRORS_KEPT];
static unsigned error_count;

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    pthread_mutex_lock(&errors_lock);
    if (context == errors && error_count < ERRORS_KEPT)
        errors[error_count++] = *error;
    pthread_cond_broadcast(&errors_changed);
    pthread_mutex_unlock(&errors_lock);
}

void errors_catch(const Device *device)
{
    REQUIRE_RETURN(VipErrorCallback(device->nic, errors, on_error), VIP_SUCCESS);
}

void errors_forget(void)
{
    pthread_mutex_lock(&errors_lock);
    error_count = 0;
    pthread_mutex_unlock(&errors_lock);
}

/* The first error of a kind; the lock is held. */
static const VIP_ERROR_DESCRIPTOR *find_error(VIP_VI_HANDLE vi, VIP_ERROR_CODE code)
{
    for (unsigned i = 0; i < error_count; i++) {
        if (errors[i].ViHandle == vi && errors[i].ErrorCode == code)
            return &errors[i];
    }
    return NULL;
}

bool error_expected(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found)
{
    const VIP_ERROR_DESCRIPTOR *error;
    struct timespec deadline;
    int waited = 0;

    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(&errors_lock);
    while ((error = find_error(vi, code)) == NULL && waited == 0)
        waited = pthread_cond_timedwait(&errors_changed, &errors_lock, &deadline);
    if (error != NULL && found != NULL)
        *found = *error;
    pthread_mutex_unlock(&errors_lock);
    return CHECK(error != NULL, "asynchronous error %d is reported", (int)code);
}

unsigned errors_of(VIP_VI_HANDLE vi, VIP_ERROR_CODE code)
{
    unsigned count = 0;

    pthread_mutex_lock(&errors_lock);
    for (unsigned i = 0; i < error_count; i++)
        count += errors[i].ViHandle == vi && errors[i].ErrorCode == code;
    pthread_mutex_unlock(&errors_lock);
    return count;
}
