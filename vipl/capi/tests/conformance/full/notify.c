/* The Notify calls: arguments and order of handler calls, and calls made by handlers. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER
enum { MAX_HANDLERS = 16, BYTES = 64 };

static const PairOptions plain = {0};

/* --- log of handler calls -------------------------------------------------------------------- */

typedef struct {
    unsigned number; /* of the handler, in the order of registration */
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *descriptor;
    VIP_BOOLEAN recv_queue;
    pthread_t thread;
} HandlerCall;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    HandlerCall entries[MAX_HANDLERS];
    unsigned count, read;
} CallLog;

/* A registered handler, passed as Context. */
typedef struct {
    CallLog *calls;
    unsigned number;
} Registration;

static void call_log_open(CallLog *calls)
{
    memset(calls, 0, sizeof *calls);
    pthread_mutex_init(&calls->lock, NULL);
    pthread_cond_init(&calls->more, NULL);
}

static void record_call(CallLog *calls, HandlerCall call)
{
    call.thread = pthread_self();
    pthread_mutex_lock(&calls->lock);
    if (CHECK(calls->count < MAX_HANDLERS, "the log of handler calls is not full"))
        calls->entries[calls->count++] = call;
    pthread_cond_broadcast(&calls->more);
    pthread_mutex_unlock(&calls->lock);
}

/* Waits for the next call of a handler. */
static HandlerCall next_call(CallLog *calls)
{
    struct timespec end;
    int failed = 0;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(&calls->lock);
    while (calls->read == calls->count && failed != ETIMEDOUT)
        failed = pthread_cond_timedwait(&calls->more, &calls->lock, &end);
    REQUIRE(calls->read < calls->count, "a handler is called");
    HandlerCall call = calls->entries[calls->read++];
    pthread_mutex_unlock(&calls->lock);
    return call;
}

static unsigned count_calls(CallLog *calls)
{
    pthread_mutex_lock(&calls->lock);
    unsigned count = calls->count;
    pthread_mutex_unlock(&calls->lock);
    return count;
}

static void on_queue(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                     VIP_DESCRIPTOR *descriptor)
{
    const Registration *registration = context;
    HandlerCall call = {.number = registration->number, .nic = nic, .vi = vi,
                        .descriptor = descriptor};

    record_call(registration->calls, call);
}

static void on_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                     VIP_BOOLEAN recv_queue)
{
    const Registration *registration = context;
    HandlerCall call = {.number = registration->number, .nic = nic, .vi = vi,
                        .recv_queue = recv_queue};

    record_call(registration->calls, call);
}

static void init_registrations(Registration *registrations, CallLog *calls)
{
    for (unsigned n = 0; n < MAX_HANDLERS; n++) {
        registrations[n].calls = calls;
        registrations[n].number = n;
    }
}

static VIP_DESCRIPTOR *post_recv(Arena *arena, VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *descriptor = arena_descriptor(arena, 1);

    describe(descriptor, arena_bytes(arena, BYTES), arena->handle, BYTES);
    CHECK_RETURN(VipPostRecv(vi, descriptor, arena->handle), VIP_SUCCESS);
    return descriptor;
}

static VIP_DESCRIPTOR *post_send(Arena *arena, VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *descriptor = arena_descriptor(arena, 1);

    describe(descriptor, arena_bytes(arena, BYTES), arena->handle, BYTES);
    CHECK_RETURN(VipPostSend(vi, descriptor, arena->handle), VIP_SUCCESS);
    return descriptor;
}

/* Creates a local VI with these completion queues; NULL for none. */
static VIP_VI_HANDLE vi_on_cqs(VIP_CQ_HANDLE send_cq, VIP_CQ_HANDLE recv_cq)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &plain);
    VIP_VI_HANDLE vi = NULL;

    REQUIRE_RETURN(VipCreateVi(local_device.nic, &attributes, send_cq, recv_cq, &vi), VIP_SUCCESS);
    return vi;
}

/* --- order and arguments --------------------------------------------------------------------- */

static void invalid_requests(void)
{
    CallLog calls;
    Registration registration = {&calls, 0};
    VIP_CQ_HANDLE cq;

    call_log_open(&calls);
    REQUIRE_RETURN(VipCreateCQ(local_device.nic, 4, &cq), VIP_SUCCESS);
    VIP_VI_HANDLE on_cq = vi_on_cqs(cq, cq), vi = client_create(&plain);
    CHECK_RETURN(VipSendNotify(vi, &registration, NULL), INVALID);
    CHECK_RETURN(VipRecvNotify(vi, &registration, NULL), INVALID);
    CHECK_RETURN(VipCQNotify(cq, &registration, NULL), INVALID);
    CHECK_RETURN(VipSendNotify(NULL, &registration, on_queue), INVALID);
    CHECK_RETURN(VipRecvNotify((VIP_VI_HANDLE)cq, &registration, on_queue), INVALID);
    CHECK_RETURN(VipCQNotify((VIP_CQ_HANDLE)vi, &registration, on_entry), INVALID);
    CHECK_RETURN(VipSendNotify(vi, &registration, on_queue), VIP_DESCRIPTOR_ERROR);
    CHECK_RETURN(VipRecvNotify(vi, &registration, on_queue), VIP_DESCRIPTOR_ERROR);
    CHECK_RETURN(VipSendNotify(on_cq, &registration, on_queue), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipRecvNotify(on_cq, &registration, on_queue), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDestroyVi(on_cq), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK_RETURN(VipSendNotify(vi, &registration, on_queue), INVALID);
    CHECK_RETURN(VipRecvNotify(vi, &registration, on_queue), INVALID);
    CHECK_RETURN(VipCQNotify(cq, &registration, on_entry), INVALID);
    CHECK(count_calls(&calls) == 0, "no handler was called");
}

static void receives_in_order(void)
{
    enum { COUNT = 4 };
    VIP_DESCRIPTOR *recvs[COUNT];
    Registration registrations[MAX_HANDLERS];
    CallLog calls;
    pthread_t recv_thread = pthread_self();
    Pair pair;

    call_log_open(&calls);
    init_registrations(registrations, &calls);
    pair_open(&pair, &plain);
    for (unsigned n = 0; n < COUNT; n++)
        recvs[n] = post_recv(&local_arena, pair.client);
    for (unsigned n = 0; n < COUNT + 2; n++)
        CHECK_RETURN(VipRecvNotify(pair.client, &registrations[n], on_queue), VIP_SUCCESS);
    for (unsigned n = 0; n < COUNT; n++) {
        VIP_DESCRIPTOR *send = post_send(&remote_arena, pair.server);
        HandlerCall call = next_call(&calls);
        CHECK(call.number == n && call.descriptor == recvs[n], "handler %u has descriptor %u",
              call.number, n);
        CHECK(call.nic == local_device.nic && call.vi == pair.client, "and its NIC and VI");
        CHECK((recvs[n]->CS.Status & ~(VIP_UINT32)VIP_STATUS_OP_MASK) == VIP_STATUS_DONE,
              "which has completed");
        CHECK(!pthread_equal(call.thread, pthread_self()), "on another thread");
        CHECK(n == 0 || pthread_equal(call.thread, recv_thread), "always the same thread");
        recv_thread = call.thread;
        sent(pair.server, send);
    }
    for (unsigned n = COUNT; n < COUNT + 2; n++) {
        HandlerCall call = next_call(&calls);
        CHECK(call.number == n && call.descriptor == NULL, "handler %u has no descriptor",
              call.number);
    }
    CHECK(count_calls(&calls) == COUNT + 2, "no other handler was called");
    pair_close(&pair);
}

/* Each handler is called for one completed descriptor, also if there are more. */
static void completed_sends(void)
{
    enum { COUNT = 4 };
    VIP_DESCRIPTOR *sends[COUNT], *recvs[COUNT];
    Registration registrations[MAX_HANDLERS];
    CallLog calls;
    Pair pair;

    call_log_open(&calls);
    init_registrations(registrations, &calls);
    pair_open(&pair, &plain);
    for (unsigned n = 0; n < COUNT; n++)
        recvs[n] = post_recv(&remote_arena, pair.server);
    for (unsigned n = 0; n < COUNT; n++)
        sends[n] = post_send(&local_arena, pair.client);
    for (unsigned n = 0; n < COUNT; n++)
        received(pair.server, recvs[n]);
    for (unsigned n = 0; n < 2; n++) {
        CHECK_RETURN(VipSendNotify(pair.client, &registrations[n], on_queue), VIP_SUCCESS);
        HandlerCall call = next_call(&calls);
        CHECK(call.number == n && call.descriptor == sends[n] && call.vi == pair.client,
              "send %u is passed to its handler", n);
    }
    for (unsigned n = 2; n < COUNT; n++)
        CHECK((sent(pair.client, sends[n]) & VIP_STATUS_ERROR_MASK) == 0,
              "send %u is taken by VipSendWait", n);
    CHECK(count_calls(&calls) == 2, "no other handler was called");
    pair_close(&pair);
}

static void cq_entries(void)
{
    enum { COUNT = 3 };
    VIP_DESCRIPTOR *recvs[COUNT], *done;
    Registration registrations[MAX_HANDLERS];
    CallLog calls;
    VIP_CQ_HANDLE cq;

    call_log_open(&calls);
    init_registrations(registrations, &calls);
    REQUIRE_RETURN(VipCreateCQ(local_device.nic, 8, &cq), VIP_SUCCESS);
    Pair pair = {vi_on_cqs(NULL, cq), server_create(&plain)};
    pair_connect(&pair);
    /* An empty completion queue is no error. */
    for (unsigned n = 0; n < COUNT; n++) {
        CHECK_RETURN(VipCQNotify(cq, &registrations[n], on_entry), VIP_SUCCESS);
        recvs[n] = post_recv(&local_arena, pair.client);
    }
    for (unsigned n = 0; n < COUNT; n++) {
        VIP_DESCRIPTOR *send = post_send(&remote_arena, pair.server);
        HandlerCall call = next_call(&calls);
        CHECK(call.number == n && call.nic == local_device.nic && call.vi == pair.client &&
                  call.recv_queue == VIP_TRUE,
              "entry %u is of the receive queue", n);
        CHECK_RETURN(VipRecvDone(pair.client, &done), VIP_SUCCESS);
        CHECK(done == recvs[n], "and its descriptor is still on the queue");
        sent(pair.server, send);
    }
    pair_close(&pair);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
}

static void handler_limit(void)
{
    enum { HANDLERS = 3 }; /* max_notifies_per_queue of the small NIC */
    Registration registrations[MAX_HANDLERS];
    CallLog calls;
    Device small;
    Arena arena;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    VIP_RETURN result = VIP_SUCCESS;
    unsigned recvs = 0, entries = 0;

    call_log_open(&calls);
    init_registrations(registrations, &calls);
    device_open_named(&small, "SMALL");
    arena_open(&arena, &small, 8192, small.ptag, VIP_FALSE);
    REQUIRE_RETURN(VipCreateCQ(small.nic, 4, &cq), VIP_SUCCESS);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&small, &plain);
    REQUIRE_RETURN(VipCreateVi(small.nic, &attributes, NULL, NULL, &vi), VIP_SUCCESS);
    post_recv(&arena, vi);
    while (recvs < MAX_HANDLERS &&
           (result = VipRecvNotify(vi, &registrations[recvs], on_queue)) == VIP_SUCCESS)
        recvs++;
    CHECK(result == VIP_ERROR_RESOURCE, "too many handlers of a receive queue");
    while (entries < MAX_HANDLERS &&
           (result = VipCQNotify(cq, &registrations[entries], on_entry)) == VIP_SUCCESS)
        entries++;
    CHECK(result == VIP_ERROR_RESOURCE, "too many handlers of a completion queue");
    CHECK(recvs == HANDLERS && entries == HANDLERS, "%u and %u handlers are registered", recvs,
          entries);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    HandlerCall call = next_call(&calls);
    CHECK(call.descriptor != NULL &&
              (call.descriptor->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) != 0,
          "the first handler gets the flushed descriptor");
    for (unsigned n = 1; n < HANDLERS; n++)
        CHECK(next_call(&calls).descriptor == NULL,
              "and the others are called without a descriptor");
    /* More handlers can wait after some were called. */
    VIP_DESCRIPTOR *recv = post_recv(&arena, vi);
    CHECK_RETURN(VipRecvNotify(vi, &registrations[HANDLERS], on_queue), VIP_SUCCESS);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    CHECK(next_call(&calls).descriptor == recv, "a later handler gets the next descriptor");
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    arena_close(&arena);
    device_close(&small);
    CHECK(count_calls(&calls) == HANDLERS + 1,
          "handlers of a destroyed completion queue are not called");
}

/* --- calls made by handlers ------------------------------------------------------------------ */

/* Sends the message back, posts the receive again and registers itself again. */
static void echo_message(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                         VIP_DESCRIPTOR *descriptor)
{
    VIP_DESCRIPTOR *back = NULL;
    HandlerCall call = {.nic = nic, .vi = vi, .descriptor = descriptor};

    if (descriptor == NULL || (descriptor->CS.Status & VIP_STATUS_ERROR_MASK) != 0) {
        record_call(context, call);
        return;
    }
    void *data = descriptor->DS[0].Local.Data.Address;
    describe(descriptor, data, local_arena.handle, descriptor->CS.Length);
    CHECK_RETURN(VipPostSend(vi, descriptor, local_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipSendWait(vi, WAIT_MS, &back), VIP_SUCCESS);
    describe(descriptor, data, local_arena.handle, BYTES);
    CHECK_RETURN(VipPostRecv(vi, descriptor, local_arena.handle), VIP_SUCCESS);
    CHECK_RETURN(VipRecvNotify(vi, context, echo_message), VIP_SUCCESS);
}

static void echo_server_in_handlers(void)
{
    const unsigned messages = small_counts() ? 20 : 200;
    CallLog calls;
    Pair pair;

    call_log_open(&calls);
    pair_open(&pair, &plain);
    /* Two receives: the next message may arrive before this descriptor is posted again. */
    post_recv(&local_arena, pair.client);
    post_recv(&local_arena, pair.client);
    CHECK_RETURN(VipRecvNotify(pair.client, &calls, echo_message), VIP_SUCCESS);
    VIP_DESCRIPTOR *send = arena_descriptor(&remote_arena, 1),
                   *recv = arena_descriptor(&remote_arena, 1);
    unsigned char *data = arena_bytes(&remote_arena, BYTES),
                  *echo = arena_bytes(&remote_arena, BYTES);
    for (unsigned n = 0; n < messages; n++) {
        memset(data, (int)n, BYTES);
        describe(recv, echo, remote_arena.handle, BYTES);
        describe(send, data, remote_arena.handle, 1 + n % BYTES);
        CHECK_RETURN(VipPostRecv(pair.server, recv, remote_arena.handle), VIP_SUCCESS);
        CHECK_RETURN(VipPostSend(pair.server, send, remote_arena.handle), VIP_SUCCESS);
        sent(pair.server, send);
        received(pair.server, recv);
        CHECK(recv->CS.Length == 1 + n % BYTES && memcmp(data, echo, recv->CS.Length) == 0,
              "message %u is echoed", n);
    }
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    CHECK(next_call(&calls).descriptor != NULL,
          "the handler is called at the end of the connection");
    pair_close(&pair);
}

typedef struct {
    CallLog calls;
    bool close;
    VIP_RETURN first, second;
} Destroyer;

/* A handler that destroys its own queue. */
static void destroy_queue(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                          VIP_DESCRIPTOR *descriptor)
{
    Destroyer *destroyer = context;
    VIP_DESCRIPTOR *done = descriptor;
    HandlerCall call = {.nic = nic, .vi = vi, .descriptor = descriptor};

    if (destroyer->close) {
        destroyer->first = VipCloseNic(nic);
        destroyer->second = VipCloseNic(nic);
    } else {
        CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
        while (done != NULL)
            VipRecvDone(vi, &done);
        destroyer->first = VipDestroyVi(vi);
        destroyer->second = VipRecvNotify(vi, context, destroy_queue);
    }
    record_call(&destroyer->calls, call);
}

static void destroyed_by_its_handler(bool close)
{
    Device second;
    Registration registrations[MAX_HANDLERS];
    CallLog others;
    Destroyer destroyer = {.close = close};
    Arena arena;
    Pair pair;

    errors_clear();
    call_log_open(&destroyer.calls);
    call_log_open(&others);
    init_registrations(registrations, &others);
    device_open(&second);
    arena_open(&arena, &second, 8192, second.ptag, VIP_FALSE);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&second, &plain);
    REQUIRE_RETURN(VipCreateVi(second.nic, &attributes, NULL, NULL, &pair.client), VIP_SUCCESS);
    pair.server = server_create(&plain);
    pair_connect(&pair);
    for (unsigned n = 0; n < 3; n++)
        post_recv(&arena, pair.client);
    CHECK_RETURN(VipRecvNotify(pair.client, &destroyer, destroy_queue), VIP_SUCCESS);
    for (unsigned n = 0; n < 5; n++)
        CHECK_RETURN(VipRecvNotify(pair.client, &registrations[n], on_queue), VIP_SUCCESS);
    VIP_DESCRIPTOR *send = post_send(&remote_arena, pair.server);
    HandlerCall call = next_call(&destroyer.calls);
    CHECK(call.descriptor != NULL && destroyer.first == VIP_SUCCESS && destroyer.second == INVALID,
          "a handler may %s", close ? "close its NIC" : "destroy its VI");
    CHECK(count_calls(&others) == 0, "later handlers are not called");
    sent(pair.server, send);
    expect_error(pair.server, VIP_ERROR_CONN_LOST, NULL);
    vi_close(pair.server);
    CHECK_RETURN(VipDestroyVi(pair.client), INVALID);
    if (close) {
        arena_forget(&arena);
    } else {
        arena_close(&arena);
        device_close(&second);
    }
}

static void handler_destroys_its_vi(void)
{
    destroyed_by_its_handler(false);
}

static void handler_closes_its_nic(void)
{
    destroyed_by_its_handler(true);
}

/* --- destruction while a handler runs -------------------------------------------------------- */

typedef struct {
    CallLog calls;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool may_return, returned;
} SlowHandler;

static void slow_handler(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                         VIP_DESCRIPTOR *descriptor)
{
    SlowHandler *slow = context;
    HandlerCall call = {.nic = nic, .vi = vi, .descriptor = descriptor};

    record_call(&slow->calls, call);
    pthread_mutex_lock(&slow->lock);
    while (!slow->may_return)
        pthread_cond_wait(&slow->changed, &slow->lock);
    slow->returned = true;
    pthread_mutex_unlock(&slow->lock);
}

static void *release_handler(void *argument)
{
    const struct timespec nap = {0, 20000000};
    SlowHandler *slow = argument;

    /* Long enough to detect a VipDestroyVi that does not wait for the handler. */
    nanosleep(&nap, NULL);
    pthread_mutex_lock(&slow->lock);
    slow->may_return = true;
    pthread_cond_broadcast(&slow->changed);
    pthread_mutex_unlock(&slow->lock);
    return NULL;
}

static void vi_destroyed_while_its_handler_runs(void)
{
    Registration registrations[MAX_HANDLERS];
    CallLog others;
    SlowHandler slow = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t thread;
    VIP_VI_HANDLE vi = client_create(&plain);

    call_log_open(&slow.calls);
    call_log_open(&others);
    init_registrations(registrations, &others);
    post_recv(&local_arena, vi);
    post_recv(&local_arena, vi);
    CHECK_RETURN(VipRecvNotify(vi, &slow, slow_handler), VIP_SUCCESS);
    for (unsigned n = 0; n < 3; n++)
        CHECK_RETURN(VipRecvNotify(vi, &registrations[n], on_queue), VIP_SUCCESS);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    next_call(&slow.calls);
    CHECK(vi_drain(vi) == 1, "the other receive is taken before the handlers are called");
    REQUIRE(pthread_create(&thread, NULL, release_handler, &slow) == 0, "a thread");
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    pthread_mutex_lock(&slow.lock);
    CHECK(slow.returned, "VipDestroyVi waits for the handler that runs");
    pthread_mutex_unlock(&slow.lock);
    pthread_join(thread, NULL);
    CHECK(count_calls(&others) == 0, "and cancels the other handlers");
}

static const Test tests[] = {
    TEST(invalid_requests, .clauses = "3.5.9 3.5.10 3.5.11",
         .returns = "VipSendNotify INVALID_PARAMETER DESCRIPTOR_ERROR ERROR_RESOURCE;"
                    "VipRecvNotify INVALID_PARAMETER DESCRIPTOR_ERROR ERROR_RESOURCE;"
                    "VipCQNotify INVALID_PARAMETER"),
    TEST(receives_in_order, .clauses = "3.5.10 3.5.12", .returns = "VipRecvNotify SUCCESS"),
    TEST(completed_sends, .clauses = "3.5.9 3.5.12", .returns = "VipSendNotify SUCCESS"),
    TEST(cq_entries, .clauses = "3.5.11 3.5.12", .returns = "VipCQNotify SUCCESS"),
    TEST(handler_limit, .clauses = "3.5.10 3.5.11 3.5.12",
         .returns = "VipRecvNotify SUCCESS ERROR_RESOURCE; VipCQNotify SUCCESS ERROR_RESOURCE"),
    TEST(echo_server_in_handlers, .clauses = "3.5.12", .returns = "VipRecvNotify SUCCESS"),
    TEST(handler_destroys_its_vi, .clauses = "3.5.12 3.2.2",
         .returns = "VipDestroyVi SUCCESS; VipRecvNotify INVALID_PARAMETER"),
    TEST(handler_closes_its_nic, .clauses = "3.5.12 3.1.2",
         .returns = "VipCloseNic SUCCESS INVALID_PARAMETER"),
    TEST(vi_destroyed_while_its_handler_runs, .clauses = "3.5.12 3.2.2",
         .returns = "VipDestroyVi SUCCESS; VipRecvNotify SUCCESS"),
};

SUITE_MAIN(tests)
