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

Device here, there;
Arena mine, theirs, exposed;

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

void device_open_far(Device *device, const char *name)
{
    if (!far_exists()) {
        device_open_named(device, name);
        return;
    }
    REQUIRE_RETURN(far_open(name, &device->nic, &device->attributes), VIP_SUCCESS);
    REQUIRE_RETURN(VipCreatePtag(device->nic, &device->ptag), VIP_SUCCESS);
}

void device_close(Device *device)
{
    CHECK_RETURN(VipDestroyPtag(device->nic, device->ptag), VIP_SUCCESS);
    CHECK_RETURN(VipCloseNic(device->nic), VIP_SUCCESS);
}

static void open_near_end(const char *name)
{
    device_open_named(&here, name);
    errors_catch(&here);
    arena_open(&mine, &here, ARENA_BYTES, here.ptag, VIP_FALSE);
}

static void furnish_far_end(void)
{
    errors_catch(&there);
    arena_open(&theirs, &there, ARENA_BYTES, there.ptag, VIP_FALSE);
    arena_open(&exposed, &there, EXPOSED_BYTES, there.ptag, VIP_TRUE);
}

static void open_far_end(const char *name)
{
    device_open_far(&there, name);
    furnish_far_end();
}

static void close_ends(void)
{
    arena_close(&exposed);
    arena_close(&theirs);
    arena_close(&mine);
    device_close(&there);
    device_close(&here);
}

void fixture_open(void)
{
    far_start();
    open_near_end("VINIC");
    open_far_end("VINIC");
}

void fixture_close(void)
{
    close_ends();
    far_stop();
}

/* The usual ends, while others are in their places. */
static struct {
    Device here, there;
    Arena mine, theirs, exposed;
} usual;

static void put_aside(void)
{
    usual.here = here;
    usual.there = there;
    usual.mine = mine;
    usual.theirs = theirs;
    usual.exposed = exposed;
}

void fixture_use(const char *name)
{
    put_aside();
    open_near_end(name);
    open_far_end(name);
}

void fixture_use_here(const char *name)
{
    put_aside();
    open_near_end(name);
    device_open_named(&there, name);
    furnish_far_end();
}

void fixture_use_end(void)
{
    close_ends();
    here = usual.here;
    there = usual.there;
    mine = usual.mine;
    theirs = usual.theirs;
    exposed = usual.exposed;
}

void fixture_reset(void)
{
    mine.used = theirs.used = exposed.used = 0;
    memset(exposed.base, 0, exposed.bytes);
    errors_forget();
}

void fixture_reopen_far(void)
{
    shared_put(theirs.base, theirs.bytes);
    shared_put(exposed.base, exposed.bytes);
    far_start();
    open_far_end("VINIC");
}

/* Memory that the other end's process can see, if there is one. */
static void *memory_get(size_t bytes)
{
    void *base;

    if (far_exists())
        return shared_get(bytes);
    REQUIRE(posix_memalign(&base, 4096, bytes) == 0, "%zu bytes of memory", bytes);
    memset(base, 0, bytes);
    return base;
}

void arena_open(Arena *arena, Device *device, size_t bytes, VIP_PROTECTION_HANDLE ptag,
                VIP_BOOLEAN rdma_write)
{
    VIP_MEM_ATTRIBUTES attributes = {ptag, rdma_write, VIP_FALSE};

    arena->device = device;
    arena->base = memory_get(bytes);
    arena->bytes = bytes;
    arena->used = 0;
    REQUIRE_RETURN(VipRegisterMem(device->nic, arena->base, bytes, &attributes, &arena->handle),
                   VIP_SUCCESS);
}

void arena_forget(Arena *arena)
{
    if (far_exists())
        shared_put(arena->base, arena->bytes);
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

VIP_VI_HANDLE client_create(const PairOptions *options)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&here, options);
    VIP_VI_HANDLE vi = NULL;

    REQUIRE_RETURN(VipCreateVi(here.nic, &attributes, NULL, NULL, &vi), VIP_SUCCESS);
    return vi;
}

VIP_VI_HANDLE server_create(const PairOptions *options)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&there, options);
    VIP_VI_HANDLE vi = NULL;

    attributes.EnableRdmaWrite = options->server_rdma_write;
    attributes.EnableRdmaRead = options->server_rdma_read;
    REQUIRE_RETURN(VipCreateVi(there.nic, &attributes, options->server_send_cq,
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
    return request_between(&here, &there, vi, discriminator, timeout_ms);
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

void pair_connect(Pair *pair)
{
    char discriminator[32];
    Address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;

    fresh_discriminator(discriminator, sizeof discriminator);
    address_of(&there, discriminator, &local);
    Request *request = request_start(pair->client, discriminator, WAIT_MS);
    REQUIRE_RETURN(VipConnectWait(there.nic, &local.address, WAIT_MS, &remote.address,
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

/* VIPL_TEST_UNKNOWN_HOST says what the network of VINIC is like: not set, it has no way to other hosts; "silent", nobody
 * answers; "refuses", the host answers that nobody listens, which peers do not take for an answer. */
static VIP_RETURN unknown_host_answer(bool is_peer)
{
    const char *network = getenv("VIPL_TEST_UNKNOWN_HOST");

    if (network == NULL)
        return VIP_NOT_REACHABLE;
    REQUIRE(strcmp(network, "silent") == 0 || strcmp(network, "refuses") == 0,
            "VIPL_TEST_UNKNOWN_HOST=%s", network);
    return is_peer || strcmp(network, "silent") == 0 ? VIP_TIMEOUT : VIP_NO_MATCH;
}

void unknown_host_answered(VIP_VI_HANDLE vi, VIP_RETURN answer, bool is_peer)
{
    const bool breaks = answer == VIP_NOT_REACHABLE && test_level() != VIP_SERVICE_UNRELIABLE;

    CHECK_RETURN(answer, unknown_host_answer(is_peer));
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

static void passes(VIP_VI_HANDLE from, Arena *source, VIP_VI_HANDLE to, Arena *target,
                   const char *who)
{
    const size_t bytes = 1000, source_mark = source->used, target_mark = target->used;
    VIP_DESCRIPTOR *send = arena_descriptor(source, 1), *recv = arena_descriptor(target, 1);
    unsigned char *data = arena_bytes(source, bytes), *room = arena_bytes(target, bytes);

    fill(data, bytes, 77);
    memset(room, 0, bytes);
    describe(send, data, source->handle, bytes);
    describe(recv, room, target->handle, bytes);
    CHECK_RETURN(VipPostRecv(to, recv, target->handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(from, send, source->handle), VIP_SUCCESS);
    sent(from, send);
    received(to, recv);
    CHECK(recv->CS.Length == bytes && filled(room, bytes, 77), "%s: a message passes", who);
    source->used = source_mark;
    target->used = target_mark;
}

void pair_works(const Pair *pair, const char *who)
{
    passes(pair->client, &mine, pair->server, &theirs, who);
    passes(pair->server, &theirs, pair->client, &mine, who);
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

void errors_catch(const Device *device)
{
    if (far_handle(device->nic))
        far_errors_catch(device->nic);
    else
        REQUIRE_RETURN(errors_register(device->nic), VIP_SUCCESS);
}

void errors_forget(void)
{
    errors_drop();
    far_errors_forget();
}

bool error_expected(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found)
{
    const bool came = far_handle(vi) ? far_error_wait(vi, code, found) : error_wait(vi, code, found);

    return CHECK(came, "asynchronous error %d is reported", (int)code);
}

unsigned errors_of(VIP_VI_HANDLE vi, VIP_ERROR_CODE code)
{
    return far_handle(vi) ? far_errors_of(vi, code) : errors_counted(vi, code);
}
