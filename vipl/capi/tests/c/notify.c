/* The Notify calls: who is called with what and when, and what a handler may do; VipResizeCQ. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fixture.h"

#define SMALL_NIC "SMALL"
#define INVALID VIP_INVALID_PARAMETER
enum { MOST = 16 };

static const PairOptions plain = {0};

/* --- what handlers tell ---------------------------------------------------------------------- */

typedef struct {
    unsigned number; /* of the handler, in the order of the calls that asked for it */
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *descriptor;
    VIP_BOOLEAN recv_queue;
    pthread_t thread;
} Told;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    Told told[64];
    unsigned count, read;
} Mailbox;

/* One request: passed as Context. */
typedef struct {
    Mailbox *mailbox;
    unsigned number;
} Asked;

static void mailbox_open(Mailbox *mailbox)
{
    memset(mailbox, 0, sizeof *mailbox);
    pthread_mutex_init(&mailbox->lock, NULL);
    pthread_cond_init(&mailbox->more, NULL);
}

static void put(Mailbox *mailbox, Told told)
{
    told.thread = pthread_self();
    pthread_mutex_lock(&mailbox->lock);
    if (mailbox->count < sizeof mailbox->told / sizeof mailbox->told[0])
        mailbox->told[mailbox->count++] = told;
    pthread_cond_broadcast(&mailbox->more);
    pthread_mutex_unlock(&mailbox->lock);
}

/* Waits for the next call of a handler. */
static Told next_told(Mailbox *mailbox)
{
    struct timespec end;
    int failed = 0;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(&mailbox->lock);
    while (mailbox->read == mailbox->count && failed != ETIMEDOUT)
        failed = pthread_cond_timedwait(&mailbox->more, &mailbox->lock, &end);
    if (mailbox->read == mailbox->count)
        REQUIRE(false, "a handler is called");
    Told told = mailbox->told[mailbox->read++];
    pthread_mutex_unlock(&mailbox->lock);
    return told;
}

static unsigned count_told(Mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    unsigned count = mailbox->count;
    pthread_mutex_unlock(&mailbox->lock);
    return count;
}

static void on_queue(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                     VIP_DESCRIPTOR *descriptor)
{
    const Asked *asked = context;
    Told told = {.number = asked->number, .nic = nic, .vi = vi, .descriptor = descriptor};

    put(asked->mailbox, told);
}

static void on_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                     VIP_BOOLEAN recv_queue)
{
    const Asked *asked = context;
    Told told = {.number = asked->number, .nic = nic, .vi = vi, .recv_queue = recv_queue};

    put(asked->mailbox, told);
}

static void ask_for(Asked *asked, Mailbox *mailbox)
{
    for (unsigned n = 0; n < MOST; n++) {
        asked[n].mailbox = mailbox;
        asked[n].number = n;
    }
}

/* A posted receive of up to 64 bytes. */
static VIP_DESCRIPTOR *post_recv(Arena *arena, VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *descriptor = arena_descriptor(arena, 1);

    describe(descriptor, arena_bytes(arena, 64), arena->handle, 64);
    CHECK_RETURN(VipPostRecv(vi, descriptor, arena->handle), VIP_SUCCESS);
    return descriptor;
}

static VIP_DESCRIPTOR *post_send(Arena *arena, VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *descriptor = arena_descriptor(arena, 1);

    describe(descriptor, arena_bytes(arena, 64), arena->handle, 64);
    CHECK_RETURN(VipPostSend(vi, descriptor, arena->handle), VIP_SUCCESS);
    return descriptor;
}

/* --- who is called --------------------------------------------------------------------------- */

static void refused(Device *device)
{
    Mailbox mailbox;
    Asked asked = {&mailbox, 0};
    PairOptions options = {0};
    VIP_CQ_HANDLE cq;

    mailbox_open(&mailbox);
    REQUIRE_RETURN(VipCreateCQ(device->nic, 4, &cq), VIP_SUCCESS);
    options.server_send_cq = options.server_recv_cq = cq;
    VIP_VI_HANDLE attached = vi_create(device, &options, true), vi = vi_create(device, &plain, false);
    CHECK_RETURN(VipSendNotify(vi, &asked, NULL), INVALID);
    CHECK_RETURN(VipRecvNotify(vi, &asked, NULL), INVALID);
    CHECK_RETURN(VipCQNotify(cq, &asked, NULL), INVALID);
    CHECK_RETURN(VipSendNotify(NULL, &asked, on_queue), INVALID);
    CHECK_RETURN(VipRecvNotify((VIP_VI_HANDLE)cq, &asked, on_queue), INVALID);
    CHECK_RETURN(VipCQNotify((VIP_CQ_HANDLE)vi, &asked, on_entry), INVALID);
    CHECK_RETURN(VipSendNotify(vi, &asked, on_queue), VIP_DESCRIPTOR_ERROR);
    CHECK_RETURN(VipRecvNotify(vi, &asked, on_queue), VIP_DESCRIPTOR_ERROR);
    CHECK_RETURN(VipSendNotify(attached, &asked, on_queue), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipRecvNotify(attached, &asked, on_queue), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDestroyVi(attached), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK_RETURN(VipSendNotify(vi, &asked, on_queue), INVALID);
    CHECK_RETURN(VipRecvNotify(vi, &asked, on_queue), INVALID);
    CHECK_RETURN(VipCQNotify(cq, &asked, on_entry), INVALID);
    CHECK(count_told(&mailbox) == 0, "nobody was called");
}

static void in_order(Device *device, Arena *arena)
{
    enum { COUNT = 4 };
    const size_t mark = arena->used;
    VIP_DESCRIPTOR *recvs[COUNT], *sends[COUNT];
    Asked asked[MOST];
    Mailbox mailbox;
    pthread_t recv_thread = pthread_self();
    Pair pair;

    mailbox_open(&mailbox);
    ask_for(asked, &mailbox);
    pair_open(&pair, device, &plain);
    for (unsigned n = 0; n < COUNT; n++)
        recvs[n] = post_recv(arena, pair.server);
    for (unsigned n = 0; n < COUNT + 2; n++)
        CHECK_RETURN(VipRecvNotify(pair.server, &asked[n], on_queue), VIP_SUCCESS);
    for (unsigned n = 0; n < COUNT; n++) {
        sends[n] = post_send(arena, pair.client);
        Told told = next_told(&mailbox);
        CHECK(told.number == n && told.descriptor == recvs[n], "handler %u has descriptor %u",
              told.number, n);
        CHECK(told.nic == device->nic && told.vi == pair.server, "and its NIC and VI");
        CHECK((recvs[n]->CS.Status & ~(VIP_UINT32)VIP_STATUS_OP_MASK) == VIP_STATUS_DONE,
              "which is done");
        CHECK(!pthread_equal(told.thread, pthread_self()), "on another thread");
        CHECK(n == 0 || pthread_equal(told.thread, recv_thread), "always the same one");
        recv_thread = told.thread;
    }
    for (unsigned n = COUNT; n < COUNT + 2; n++) {
        Told told = next_told(&mailbox);
        CHECK(told.number == n && told.descriptor == NULL, "handler %u has none", told.number);
    }
    /* The sends are done: each handler is called for one of them, also if there is more. */
    for (unsigned n = 0; n < 2; n++) {
        CHECK_RETURN(VipSendNotify(pair.client, &asked[n], on_queue), VIP_SUCCESS);
        Told told = next_told(&mailbox);
        CHECK(told.number == n && told.descriptor == sends[n] && told.vi == pair.client,
              "send %u is told", n);
    }
    CHECK(sent(pair.client, sends[2]) != 0 && sent(pair.client, sends[3]) != 0,
          "the others are taken by the Wait calls");
    CHECK(count_told(&mailbox) == COUNT + 4, "nobody else was called");
    pair_close(&pair);
    arena->used = mark;
}

static void by_entry(Device *device, Arena *arena)
{
    enum { COUNT = 3 };
    const size_t mark = arena->used;
    PairOptions options = {0};
    VIP_DESCRIPTOR *recvs[COUNT], *done;
    Asked asked[MOST];
    Mailbox mailbox;
    VIP_CQ_HANDLE cq;
    Pair pair;

    mailbox_open(&mailbox);
    ask_for(asked, &mailbox);
    REQUIRE_RETURN(VipCreateCQ(device->nic, 8, &cq), VIP_SUCCESS);
    options.server_recv_cq = cq;
    pair_open(&pair, device, &options);
    /* An empty completion queue is no error: there is nothing yet. */
    for (unsigned n = 0; n < COUNT; n++) {
        CHECK_RETURN(VipCQNotify(cq, &asked[n], on_entry), VIP_SUCCESS);
        recvs[n] = post_recv(arena, pair.server);
    }
    for (unsigned n = 0; n < COUNT; n++) {
        VIP_DESCRIPTOR *send = post_send(arena, pair.client);
        Told told = next_told(&mailbox);
        CHECK(told.number == n && told.nic == device->nic && told.vi == pair.server &&
                  told.recv_queue == VIP_TRUE,
              "entry %u is of the server's receive queue", n);
        CHECK_RETURN(VipRecvDone(pair.server, &done), VIP_SUCCESS);
        CHECK(done == recvs[n], "and its descriptor is still there");
        sent(pair.client, send);
    }
    pair_close(&pair);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    arena->used = mark;
}

static void limited(void)
{
    Asked asked[MOST];
    Mailbox mailbox;
    Device device;
    Arena arena;
    VIP_CQ_HANDLE cq;
    VIP_RETURN answer = VIP_SUCCESS;
    unsigned count[3] = {0, 0, 0};

    mailbox_open(&mailbox);
    ask_for(asked, &mailbox);
    device_open_named(&device, SMALL_NIC);
    arena_open(&arena, &device, 8192, device.ptag, VIP_FALSE);
    REQUIRE_RETURN(VipCreateCQ(device.nic, 4, &cq), VIP_SUCCESS);
    Pair pair;
    pair_open(&pair, &device, &plain);
    post_recv(&arena, pair.server);
    while (count[0] < MOST &&
           (answer = VipRecvNotify(pair.server, &asked[count[0]], on_queue)) == VIP_SUCCESS)
        count[0]++;
    CHECK(answer == VIP_ERROR_RESOURCE, "too many ask for a receive");
    while (count[1] < MOST && (answer = VipCQNotify(cq, &asked[count[1]], on_entry)) == VIP_SUCCESS)
        count[1]++;
    CHECK(answer == VIP_ERROR_RESOURCE, "too many ask for an entry");
    CHECK(count[0] == 3 && count[1] == 3, "%u and %u handlers wait", count[0], count[1]);
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    Told told = next_told(&mailbox);
    CHECK(told.descriptor != NULL &&
              (told.descriptor->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) != 0,
          "the flushed one goes to the first");
    for (unsigned n = 1; n < 3; n++)
        CHECK(next_told(&mailbox).descriptor == NULL, "and the others are told that it was all");
    pair_close(&pair);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    arena_close(&arena);
    device_close(&device);
    CHECK(count_told(&mailbox) == 3, "what waits on a completion queue that ends is not called");
}

/* --- what a handler may do ------------------------------------------------------------------- */

typedef struct {
    Arena *arena;
    VIP_VI_HANDLE vi;
    unsigned left; /* messages to answer */
    Mailbox mailbox;
} Answerer;

/* Sends the message back, posts it again and asks to be called again. */
static void answer_message(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                           VIP_DESCRIPTOR *descriptor)
{
    Answerer *answerer = context;
    VIP_DESCRIPTOR *back = NULL;
    Told told = {.nic = nic, .vi = vi, .descriptor = descriptor};
    const VIP_MEM_HANDLE handle = answerer->arena->handle;

    if (descriptor == NULL || (descriptor->CS.Status & VIP_STATUS_ERROR_MASK) != 0) {
        put(&answerer->mailbox, told);
        return;
    }
    describe(descriptor, descriptor->DS[0].Local.Data.Address, handle, descriptor->CS.Length);
    CHECK_RETURN(VipPostSend(vi, descriptor, handle), VIP_SUCCESS);
    CHECK_RETURN(VipSendWait(vi, WAIT_MS, &back), VIP_SUCCESS);
    describe(descriptor, descriptor->DS[0].Local.Data.Address, handle, 64);
    CHECK_RETURN(VipPostRecv(vi, descriptor, handle), VIP_SUCCESS);
    CHECK_RETURN(VipRecvNotify(vi, answerer, answer_message), VIP_SUCCESS);
}

static void server_without_a_loop(Device *device, Arena *arena)
{
    const unsigned messages = small_counts() ? 20 : 200;
    const size_t mark = arena->used;
    Answerer answerer = {.arena = arena};
    Pair pair;

    mailbox_open(&answerer.mailbox);
    pair_open(&pair, device, &plain);
    /* Two: the next message may come before the descriptor of this one is posted again. */
    post_recv(arena, pair.server);
    post_recv(arena, pair.server);
    CHECK_RETURN(VipRecvNotify(pair.server, &answerer, answer_message), VIP_SUCCESS);
    VIP_DESCRIPTOR *send = arena_descriptor(arena, 1), *recv = arena_descriptor(arena, 1);
    unsigned char *data = arena_bytes(arena, 64), *echo = arena_bytes(arena, 64);
    for (unsigned n = 0; n < messages; n++) {
        memset(data, (int)n, 64);
        describe(recv, echo, arena->handle, 64);
        describe(send, data, arena->handle, 1 + n % 64);
        CHECK_RETURN(VipPostRecv(pair.client, recv, arena->handle), VIP_SUCCESS);
        CHECK_RETURN(VipPostSend(pair.client, send, arena->handle), VIP_SUCCESS);
        sent(pair.client, send);
        received(pair.client, recv);
        CHECK(recv->CS.Length == 1 + n % 64 && memcmp(data, echo, recv->CS.Length) == 0,
              "message %u comes back", n);
    }
    CHECK_RETURN(VipDisconnect(pair.client), VIP_SUCCESS);
    CHECK(next_told(&answerer.mailbox).descriptor != NULL, "the handler learns of the end");
    pair_close(&pair);
    arena->used = mark;
}

typedef struct {
    Mailbox mailbox;
    bool close;
    VIP_RETURN first, second;
} Ender;

/* Ends its own queue. */
static void end_queue(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                      VIP_DESCRIPTOR *descriptor)
{
    Ender *ender = context;
    VIP_DESCRIPTOR *done = descriptor;
    Told told = {.nic = nic, .vi = vi, .descriptor = descriptor};

    if (ender->close) {
        ender->first = VipCloseNic(nic);
        ender->second = VipCloseNic(nic);
    } else {
        CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
        while (done != NULL)
            VipRecvDone(vi, &done);
        ender->first = VipDestroyVi(vi);
        ender->second = VipRecvNotify(vi, context, end_queue);
    }
    put(&ender->mailbox, told);
}

static void ended_by_its_handler(const Device *device, bool close)
{
    Device second = *device;
    Asked asked[MOST];
    Mailbox others;
    Ender ender = {.close = close};
    Arena arena;
    Pair pair;

    mailbox_open(&ender.mailbox);
    mailbox_open(&others);
    ask_for(asked, &others);
    device_open(&second);
    arena_open(&arena, &second, 8192, second.ptag, VIP_FALSE);
    pair_open(&pair, &second, &plain);
    for (unsigned n = 0; n < 3; n++)
        post_recv(&arena, pair.server);
    CHECK_RETURN(VipRecvNotify(pair.server, &ender, end_queue), VIP_SUCCESS);
    for (unsigned n = 0; n < 5; n++)
        CHECK_RETURN(VipRecvNotify(pair.server, &asked[n], on_queue), VIP_SUCCESS);
    VIP_DESCRIPTOR *send = post_send(&arena, pair.client);
    Told told = next_told(&ender.mailbox);
    CHECK(told.descriptor != NULL && ender.first == VIP_SUCCESS && ender.second == INVALID,
          "a handler may %s", close ? "close its NIC" : "destroy its VI");
    CHECK(count_told(&others) == 0, "those behind it are not called");
    if (close) {
        CHECK_RETURN(VipDestroyVi(pair.client), INVALID);
        free(arena.base);
        return;
    }
    sent(pair.client, send);
    vi_close(pair.client);
    CHECK_RETURN(VipDestroyVi(pair.server), INVALID);
    arena_close(&arena);
    device_close(&second);
}

/* --- destruction from outside ---------------------------------------------------------------- */

typedef struct {
    Mailbox mailbox;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool go_on, returned;
} Slow;

static void slow_handler(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                         VIP_DESCRIPTOR *descriptor)
{
    Slow *slow = context;
    Told told = {.nic = nic, .vi = vi, .descriptor = descriptor};

    put(&slow->mailbox, told);
    pthread_mutex_lock(&slow->lock);
    while (!slow->go_on)
        pthread_cond_wait(&slow->changed, &slow->lock);
    slow->returned = true;
    pthread_mutex_unlock(&slow->lock);
}

static void *let_it_return(void *argument)
{
    const struct timespec nap = {0, 20000000};
    Slow *slow = argument;

    /* Time enough for who does not wait for the handler to be caught. */
    nanosleep(&nap, NULL);
    pthread_mutex_lock(&slow->lock);
    slow->go_on = true;
    pthread_cond_broadcast(&slow->changed);
    pthread_mutex_unlock(&slow->lock);
    return NULL;
}

static void destroyed_under_its_handler(Device *device, Arena *arena)
{
    const size_t mark = arena->used;
    Asked asked[MOST];
    Mailbox others;
    Slow slow = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t thread;

    mailbox_open(&slow.mailbox);
    mailbox_open(&others);
    ask_for(asked, &others);
    VIP_VI_HANDLE vi = vi_create(device, &plain, false);
    post_recv(arena, vi);
    post_recv(arena, vi);
    CHECK_RETURN(VipRecvNotify(vi, &slow, slow_handler), VIP_SUCCESS);
    for (unsigned n = 0; n < 3; n++)
        CHECK_RETURN(VipRecvNotify(vi, &asked[n], on_queue), VIP_SUCCESS);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    next_told(&slow.mailbox);
    CHECK(vi_drain(vi) == 1, "the other receive is taken from under the handlers");
    REQUIRE(pthread_create(&thread, NULL, let_it_return, &slow) == 0, "a thread");
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    pthread_mutex_lock(&slow.lock);
    CHECK(slow.returned, "VipDestroyVi waits for the handler that runs");
    pthread_mutex_unlock(&slow.lock);
    pthread_join(thread, NULL);
    CHECK(count_told(&others) == 0, "and cancels the others");
    arena->used = mark;
}

/* --- VipResizeCQ ------------------------------------------------------------------------------ */

static void resized(Device *device, Arena *arena)
{
    enum { COUNT = 12 };
    const size_t mark = arena->used;
    const VIP_ULONG most = device->attributes.MaxCQEntries;
    PairOptions options = {0};
    VIP_DESCRIPTOR *recvs[COUNT], *done;
    VIP_VI_HANDLE from;
    VIP_BOOLEAN recv_queue;
    VIP_CQ_HANDLE cq;

    REQUIRE_RETURN(VipCreateCQ(device->nic, 1, &cq), VIP_SUCCESS);
    options.server_recv_cq = cq;
    VIP_VI_HANDLE vi = vi_create(device, &options, true);
    CHECK_RETURN(VipResizeCQ(cq, 0), INVALID);
    CHECK_RETURN(VipResizeCQ(NULL, 8), INVALID);
    CHECK_RETURN(VipResizeCQ((VIP_CQ_HANDLE)vi, 8), INVALID);
    CHECK_RETURN(VipResizeCQ(cq, most + 1), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipResizeCQ(cq, ~0ul), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipResizeCQ(cq, 1000), VIP_SUCCESS);
    for (unsigned n = 0; n < COUNT; n++)
        recvs[n] = post_recv(arena, vi);
    CHECK_RETURN(VipResizeCQ(cq, 1), VIP_SUCCESS);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    for (unsigned n = 0; n < COUNT; n++) {
        CHECK_RETURN(VipResizeCQ(cq, n % 2 == 0 ? 1 : 500), VIP_SUCCESS);
        CHECK(VipCQDone(cq, &from, &recv_queue) == VIP_SUCCESS && from == vi && recv_queue,
              "entry %u is there", n);
        CHECK(VipRecvDone(vi, &done) == VIP_DESCRIPTOR_ERROR && done == recvs[n],
              "and stands for descriptor %u", n);
    }
    CHECK_RETURN(VipCQDone(cq, &from, &recv_queue), VIP_NOT_DONE);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK_RETURN(VipResizeCQ(cq, 8), INVALID);
    arena->used = mark;
}

int main(void)
{
    Device device;
    Arena arena;

    device_open(&device);
    arena_open(&arena, &device, 65536, device.ptag, VIP_FALSE);
    refused(&device);
    in_order(&device, &arena);
    by_entry(&device, &arena);
    limited();
    server_without_a_loop(&device, &arena);
    ended_by_its_handler(&device, false);
    ended_by_its_handler(&device, true);
    destroyed_under_its_handler(&device, &arena);
    resized(&device, &arena);
    arena_close(&arena);
    device_close(&device);
    return check_summary();
}
