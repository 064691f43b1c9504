/* What goes wrong, where it is told, and that it harms nobody else. */
#include <string.h>

#include "fixture.h"

static const PairOptions plain = {0};
static const PairOptions writable = {.server_rdma_write = VIP_TRUE};

/* The break of a reliable connection: CONN_LOST and the Error state at both ends. */
static void broken(const Pair *pair)
{
    vi_reaches(pair->client, VIP_STATE_ERROR);
    vi_reaches(pair->server, VIP_STATE_ERROR);
    error_expected(pair->client, VIP_ERROR_CONN_LOST, NULL);
    error_expected(pair->server, VIP_ERROR_CONN_LOST, NULL);
}

/* --- descriptors that cannot be taken at all ------------------------------------------------- */

static void bad_post(Device *device, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle, bool send,
                     const char *what)
{
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    errors_forget();
    pair_open(&pair, device, &plain);
    VIP_RETURN answer = send ? VipPostSend(pair.client, descriptor, handle)
                             : VipPostRecv(pair.client, descriptor, handle);
    CHECK(answer == VIP_SUCCESS, "%s: the call itself answers %s", what, return_name((int)answer));
    if (error_expected(pair.client, VIP_ERROR_POST_DESC, &error))
        CHECK(error.NicHandle == device->nic && error.DescriptorPtr == descriptor &&
                  error.ResourceCode == VIP_RESOURCE_DESCRIPTOR,
              "%s: the error names NIC, VI and descriptor", what);
    vi_reaches(pair.client, VIP_STATE_ERROR);
    pair_close(&pair);
}

static void bad_posts(Device *device, Arena *arena)
{
    static VIP_DESCRIPTOR outside[2];
    size_t mark = arena->used;
    unsigned char *room = arena_bytes(arena, 256);
    VIP_DESCRIPTOR *odd = (VIP_DESCRIPTOR *)(void *)(room + 8), *good = arena_descriptor(arena, 1);
    VIP_DESCRIPTOR *last = (VIP_DESCRIPTOR *)(void *)(arena->base + arena->bytes);

    describe(good, room, arena->handle, 16);
    for (int send = 0; send < 2; send++) {
        bad_post(device, odd, arena->handle, send, "misaligned descriptor");
        bad_post(device, outside, arena->handle, send, "descriptor outside the region");
        bad_post(device, last, arena->handle, send, "descriptor behind the region");
        bad_post(device, good, arena->handle + 1, send, "made-up memory handle");
        bad_post(device, good, 0, send, "memory handle 0");
        bad_post(device, (VIP_DESCRIPTOR *)64, arena->handle, send, "made-up address");
    }
    arena->used = mark;
}

/* --- descriptors that complete in error ------------------------------------------------------ */

typedef struct {
    const char *what;
    VIP_UINT32 expected;
    void (*spoil)(VIP_DESCRIPTOR *descriptor, Arena *foreign);
} Fault;

static void reserved_control(VIP_DESCRIPTOR *d, Arena *f) { (void)f; d->CS.Control |= 0x0010; }
static void reserved_field(VIP_DESCRIPTOR *d, Arena *f) { (void)f; d->CS.Reserved = 1; }
static void reserved_operation(VIP_DESCRIPTOR *d, Arena *f) { (void)f; d->CS.Control |= VIP_CONTROL_OP_RESERVED; }
static void wrong_length(VIP_DESCRIPTOR *d, Arena *f) { (void)f; d->CS.Length++; }
static void missing_handle(VIP_DESCRIPTOR *d, Arena *f) { (void)f; d->DS[0].Local.Handle = 0; }
static void other_handle(VIP_DESCRIPTOR *d, Arena *f) { (void)f; d->DS[0].Local.Handle += 0x10001; }
static void foreign_tag(VIP_DESCRIPTOR *d, Arena *f)
{
    describe_segment(d, 0, f->base, f->handle, d->DS[0].Local.Length);
}
static void outside_region(VIP_DESCRIPTOR *d, Arena *f)
{
    (void)f;
    d->DS[0].Local.Data.AddressBits += 1u << 30;
}
static void wrapping(VIP_DESCRIPTOR *d, Arena *f)
{
    (void)f;
    d->DS[0].Local.Data.AddressBits = ~0ull - 7;
}
static void too_long(VIP_DESCRIPTOR *d, Arena *f)
{
    (void)f;
    d->CS.Length = d->DS[0].Local.Length = 65537;
}
static void too_many_segments(VIP_DESCRIPTOR *d, Arena *f) { (void)f; d->CS.SegCount = 0xFFFF; }

static const Fault send_faults[] = {
    {"reserved Control bit", VIP_STATUS_FORMAT_ERROR, reserved_control},
    {"reserved field", VIP_STATUS_FORMAT_ERROR, reserved_field},
    {"reserved operation", VIP_STATUS_FORMAT_ERROR, reserved_operation},
    {"Length that is not the sum", VIP_STATUS_LENGTH_ERROR, wrong_length},
    {"memory handle 0", VIP_STATUS_PROTECTION_ERROR, missing_handle},
    {"made-up memory handle", VIP_STATUS_PROTECTION_ERROR, other_handle},
    {"memory of another tag", VIP_STATUS_PROTECTION_ERROR, foreign_tag},
    {"memory outside the region", VIP_STATUS_PROTECTION_ERROR, outside_region},
    {"address that wraps round", VIP_STATUS_PROTECTION_ERROR, wrapping},
    {"more than MaxTransferSize", VIP_STATUS_LENGTH_ERROR, too_long},
    {"too many segments", VIP_STATUS_LENGTH_ERROR, too_many_segments},
};

/* Posts a spoilt send; at Reliable Delivery the connection breaks, at Unreliable it goes on. */
static void send_fault(Device *device, Arena *arena, Arena *foreign, const Fault *fault,
                       VIP_RELIABILITY_LEVEL level)
{
    const bool reliable = level == VIP_SERVICE_RELIABLE_DELIVERY;
    size_t mark = arena->used;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1);
    unsigned char *data = arena_bytes(arena, 64);
    Pair pair;

    errors_forget();
    pair_open(&pair, device, &(PairOptions){.reliability = level});
    describe(send, data, arena->handle, 64);
    fault->spoil(send, foreign);
    CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
    VIP_UINT32 status = sent(pair.client, send);
    CHECK((status & VIP_STATUS_ERROR_MASK) == fault->expected, "%s: status 0x%08X", fault->what,
          status);
    if (reliable) {
        broken(&pair);
    } else {
        CHECK(vi_state(pair.client) == VIP_STATE_CONNECTED, "%s: stays Connected", fault->what);
        pair_works(&pair, arena, fault->what);
    }
    pair_close(&pair);
    arena->used = mark;
}

static void send_faults_of(Device *device, Arena *arena, Arena *foreign)
{
    for (size_t n = 0; n < sizeof send_faults / sizeof send_faults[0]; n++) {
        send_fault(device, arena, foreign, &send_faults[n], VIP_SERVICE_RELIABLE_DELIVERY);
        if (device->attributes.ReliabilityLevelSupport & VIP_SERVICE_UNRELIABLE)
            send_fault(device, arena, foreign, &send_faults[n], VIP_SERVICE_UNRELIABLE);
    }
}

/* The receive side: a descriptor that is malformed, without rights, or too small. */
static void recv_fault(Device *device, Arena *arena, Arena *foreign, const char *what,
                       void (*spoil)(VIP_DESCRIPTOR *, Arena *), size_t room, VIP_UINT32 expected)
{
    size_t mark = arena->used;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1), *recv = arena_descriptor(arena, 1);
    VIP_DESCRIPTOR *next = arena_descriptor(arena, 1);
    unsigned char *data = arena_bytes(arena, 64), *target = arena_bytes(arena, 64);
    Pair pair;

    errors_forget();
    pair_open(&pair, device, &plain);
    describe(send, data, arena->handle, 64);
    describe(recv, target, arena->handle, room);
    describe(next, target, arena->handle, 64);
    if (spoil != NULL)
        spoil(recv, foreign);
    CHECK_RETURN(VipPostRecv(pair.server, recv, arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostRecv(pair.server, next, arena->handle), VIP_SUCCESS);
    CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
    VIP_UINT32 status = received(pair.server, recv);
    CHECK((status & VIP_STATUS_ERROR_MASK) == expected, "%s: status 0x%08X", what, status);
    if (expected == VIP_STATUS_LENGTH_ERROR)
        CHECK(recv->CS.Length == 0, "%s: Length is 0", what);
    status = received(pair.server, next);
    CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR,
          "%s: the receive behind it is flushed", what);
    broken(&pair);
    pair_close(&pair);
    arena->used = mark;
}

static void rdma_in_receive_queue(VIP_DESCRIPTOR *d, Arena *f)
{
    (void)f;
    d->CS.Control |= VIP_CONTROL_OP_RDMAWRITE;
}

static void recv_faults_of(Device *device, Arena *arena, Arena *foreign)
{
    recv_fault(device, arena, foreign, "one byte too small", NULL, 63, VIP_STATUS_LENGTH_ERROR);
    recv_fault(device, arena, foreign, "reserved Control bit", reserved_control, 64,
               VIP_STATUS_FORMAT_ERROR);
    recv_fault(device, arena, foreign, "reserved field", reserved_field, 64,
               VIP_STATUS_FORMAT_ERROR);
    recv_fault(device, arena, foreign, "RDMA in the receive queue", rdma_in_receive_queue, 64,
               VIP_STATUS_FORMAT_ERROR);
    recv_fault(device, arena, foreign, "made-up memory handle", other_handle, 64,
               VIP_STATUS_PROTECTION_ERROR);
    recv_fault(device, arena, foreign, "memory of another tag", foreign_tag, 64,
               VIP_STATUS_PROTECTION_ERROR);
    recv_fault(device, arena, foreign, "memory outside the region", outside_region, 64,
               VIP_STATUS_PROTECTION_ERROR);
}

/* --- RDMA writes that are refused ------------------------------------------------------------ */

typedef struct {
    const char *what;
    const PairOptions *options;
    size_t offset, bytes;  /* of the write, in the exposed region */
    VIP_UINT32 handle_add; /* to the region's handle */
    bool closed;           /* into a region without EnableRdmaWrite */
} Refusal;

static void refused(Device *device, Arena *arena, Arena *exposed, const Refusal *refusal,
                    bool immediate)
{
    size_t mark = arena->used;
    VIP_DESCRIPTOR *write = arena_descriptor(arena, 2), *recv = arena_descriptor(arena, 1);
    unsigned char *data = arena_bytes(arena, 4096);
    Arena *target = refusal->closed ? arena : exposed;
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    errors_forget();
    memset(exposed->base, 0, exposed->bytes);
    memset(data, 0x77, 4096);
    pair_open(&pair, device, refusal->options);
    describe(recv, data, arena->handle, 0);
    describe_write(write, data, arena->handle, refusal->bytes, target->base + refusal->offset,
                   target->handle + refusal->handle_add);
    if (immediate) {
        with_immediate(write, 1);
        CHECK_RETURN(VipPostRecv(pair.server, recv, arena->handle), VIP_SUCCESS);
    }
    CHECK_RETURN(VipPostSend(pair.client, write, arena->handle), VIP_SUCCESS);
    if (immediate) {
        VIP_UINT32 status = received(pair.server, recv);
        CHECK((status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_PROTECTION_ERROR,
              "%s, immediate: the receive tells, 0x%08X", refusal->what, status);
        CHECK(errors_of(pair.server, VIP_ERROR_RDMAW_PROT) == 0,
              "%s, immediate: and no asynchronous error", refusal->what);
    } else if (error_expected(pair.server, VIP_ERROR_RDMAW_PROT, &error)) {
        CHECK(error.NicHandle == device->nic && error.OpCode == VIP_STATUS_OP_REMOTE_RDMA_WRITE,
              "%s: the error names the NIC and the operation", refusal->what);
    }
    broken(&pair);
    bool untouched = true;
    for (size_t i = 0; i < exposed->bytes; i++)
        untouched &= exposed->base[i] == 0;
    CHECK(untouched, "%s: the target is untouched", refusal->what);
    pair_close(&pair);
    arena->used = mark;
}

static void refusals(Device *device, Arena *arena, Arena *exposed)
{
    const Refusal all[] = {
        {"one byte past the end", &writable, exposed->bytes - 63, 64, 0, false},
        {"one byte before the start", &writable, (size_t)-1, 64, 0, false},
        {"an address that wraps round", &writable, (size_t)-8 - (size_t)(uintptr_t)exposed->base, 64,
         0, false},
        {"nothing, at a bad address", &writable, exposed->bytes + 4096, 0, 0, false},
        {"made-up handle", &writable, 0, 64, 0x10001, false},
        {"region without the right", &writable, 0, 64, 0, true},
        {"VI without the right", &plain, 0, 64, 0, false},
    };

    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) {
        refused(device, arena, exposed, &all[n], false);
        refused(device, arena, exposed, &all[n], true);
    }
}

/* --- the rest -------------------------------------------------------------------------------- */

static void receive_queue_empty(Device *device, Arena *arena)
{
    size_t mark = arena->used;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1), *done;
    Pair pair;

    errors_forget();
    pair_open(&pair, device, &plain);
    describe(send, arena_bytes(arena, 64), arena->handle, 64);
    CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
    error_expected(pair.server, VIP_ERROR_RECVQ_EMPTY, NULL);
    broken(&pair);
    VipSendWait(pair.client, WAIT_MS, &done);
    CHECK(done == send, "the send comes back");
    pair_close(&pair);
    arena->used = mark;
}

static void overrun(Device *device)
{
    const VIP_ULONG limit = device->attributes.MaxDescriptorsPerQueue;
    VIP_ERROR_DESCRIPTOR error;
    Arena arena;
    unsigned wrong = 0;

    errors_forget();
    arena_open(&arena, device, (limit + 2) * sizeof(VIP_DESCRIPTOR), device->ptag, VIP_FALSE);
    VIP_VI_HANDLE vi = vi_create(device, &plain, false);
    for (VIP_ULONG n = 0; n < limit; n++)
        wrong += VipPostRecv(vi, arena_descriptor(&arena, 0), arena.handle) != VIP_SUCCESS;
    CHECK(wrong == 0 && vi_state(vi) == VIP_STATE_IDLE, "%lu descriptors are taken", limit);
    CHECK(errors_of(vi, VIP_ERROR_VI_OVERRUN) == 0, "without an error");
    CHECK_RETURN(VipPostRecv(vi, arena_descriptor(&arena, 0), arena.handle), VIP_SUCCESS);
    if (error_expected(vi, VIP_ERROR_VI_OVERRUN, &error))
        CHECK(error.NicHandle == device->nic && error.ResourceCode == VIP_RESOURCE_VI &&
                  error.OpCode == VIP_STATUS_OP_RECEIVE,
              "the error names NIC, VI and operation");
    vi_reaches(vi, VIP_STATE_ERROR);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK(vi_drain(vi) >= limit, "all descriptors come back");
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    arena_close(&arena);
}

/* The region of a posted descriptor ends: that shows when its completion is to be written. */
static void region_taken_away(Device *device, Arena *arena, bool message)
{
    size_t mark = arena->used;
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1), *done;
    Arena gone;
    VIP_ERROR_DESCRIPTOR error;
    Pair pair;

    errors_forget();
    arena_open(&gone, device, 8192, device->ptag, VIP_FALSE);
    pair_open(&pair, device, &plain);
    VIP_DESCRIPTOR *recv = arena_descriptor(&gone, 1);
    describe(recv, gone.base + 4096, gone.handle, 64);
    CHECK_RETURN(VipPostRecv(pair.server, recv, gone.handle), VIP_SUCCESS);
    arena_close(&gone);
    if (message) {
        describe(send, arena_bytes(arena, 64), arena->handle, 64);
        CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
    } else {
        CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    }
    if (error_expected(pair.server, VIP_ERROR_COMP_PROT, &error))
        CHECK(error.DescriptorPtr == recv && error.ResourceCode == VIP_RESOURCE_DESCRIPTOR &&
                  error.OpCode == VIP_STATUS_OP_RECEIVE,
              "the error names the descriptor and what it was for");
    if (message)
        broken(&pair);
    else
        CHECK(vi_state(pair.server) == VIP_STATE_IDLE, "VipDisconnect leads to Idle all the same");
    VipRecvDone(pair.server, &done);
    CHECK(done == recv, "the descriptor comes off its queue");
    pair_close(&pair);
    arena->used = mark;
}

/* NULL brings the default handler back. */
static void default_handler(Device *device)
{
    Pair pair;

    errors_forget();
    CHECK_RETURN(VipErrorCallback(device->nic, NULL, NULL), VIP_SUCCESS);
    pair_open(&pair, device, &plain);
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    vi_reaches(pair.server, VIP_STATE_ERROR);
    CHECK(errors_of(pair.server, VIP_ERROR_CONN_LOST) == 0, "the old handler is not called");
    pair_close(&pair);
    errors_catch(device);
}

int main(void)
{
    Device device;
    Arena arena, exposed, foreign;
    VIP_PROTECTION_HANDLE other_tag;
    Pair bystander;

    device_open(&device);
    errors_catch(&device);
    REQUIRE_RETURN(VipCreatePtag(device.nic, &other_tag), VIP_SUCCESS);
    arena_open(&arena, &device, 1 << 17, device.ptag, VIP_FALSE);
    arena_open(&exposed, &device, 8192, device.ptag, VIP_TRUE);
    arena_open(&foreign, &device, 4096, other_tag, VIP_FALSE);
    pair_open(&bystander, &device, &plain);

    bad_posts(&device, &arena);
    send_faults_of(&device, &arena, &foreign);
    recv_faults_of(&device, &arena, &foreign);
    refusals(&device, &arena, &exposed);
    receive_queue_empty(&device, &arena);
    overrun(&device);
    region_taken_away(&device, &arena, true);
    region_taken_away(&device, &arena, false);
    default_handler(&device);

    pair_works(&bystander, &arena, "the bystander, after all that");
    pair_close(&bystander);
    arena_close(&foreign);
    arena_close(&exposed);
    arena_close(&arena);
    CHECK_RETURN(VipDestroyPtag(device.nic, other_tag), VIP_SUCCESS);
    device_close(&device);
    return check_summary();
}
