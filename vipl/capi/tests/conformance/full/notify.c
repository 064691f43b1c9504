/* The Notify calls: who is called with what and when, and what a handler may do. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER
enum { MOST = 16, BYTES = 64 };

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
    Told told[MOST];
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
    if (CHECK(mailbox->count < MOST, "room for what handlers tell"))
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
    REQUIRE(mailbox->read < mailbox->count, "a handler is called");
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

/* A VI here with its queues on completion queues; NULL for none. */
static VIP_VI_HANDLE attached(VIP_CQ_HANDLE send_cq, VIP_CQ_HANDLE recv_cq)
{
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&here, &plain);
    VIP_VI_HANDLE vi = NULL;

    REQUIRE_RETURN(VipCreateVi(here.nic, &attributes, send_cq, recv_cq, &vi), VIP_SUCCESS);
    return vi;
}

/* --- who is called --------------------------------------------------------------------------- */

static void refused(void)
{
    Mailbox mailbox;
    Asked asked = {&mailbox, 0};
    VIP_CQ_HANDLE cq;

    mailbox_open(&mailbox);
    REQUIRE_RETURN(VipCreateCQ(here.nic, 4, &cq), VIP_SUCCESS);
    VIP_VI_HANDLE on_cq = attached(cq, cq), vi = client_create(&plain);
    CHECK_RETURN(VipSendNotify(vi, &asked, NULL), INVALID);
    CHECK_RETURN(VipRecvNotify(vi, &asked, NULL), INVALID);
    CHECK_RETURN(VipCQNotify(cq, &asked, NULL), INVALID);
    CHECK_RETURN(VipSendNotify(NULL, &asked, on_queue), INVALID);
    CHECK_RETURN(VipRecvNotify((VIP_VI_HANDLE)cq, &asked, on_queue), INVALID);
    CHECK_RETURN(VipCQNotify((VIP_CQ_HANDLE)vi, &asked, on_entry), INVALID);
    CHECK_RETURN(VipSendNotify(vi, &asked, on_queue), VIP_DESCRIPTOR_ERROR);
    CHECK_RETURN(VipRecvNotify(vi, &asked, on_queue), VIP_DESCRIPTOR_ERROR);
    CHECK_RETURN(VipSendNotify(on_cq, &asked, on_queue), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipRecvNotify(on_cq, &asked, on_queue), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDestroyVi(on_cq), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK_RETURN(VipSendNotify(vi, &asked, on_queue), INVALID);
    CHECK_RETURN(VipRecvNotify(vi, &asked, on_queue), INVALID);
    CHECK_RETURN(VipCQNotify(cq, &asked, on_entry), INVALID);
    CHECK(count_told(&mailbox) == 0, "nobody was called");
}

static void receives_in_order(void)
{
    enum { COUNT = 4 };
    VIP_DESCRIPTOR *recvs[COUNT];
    Asked asked[MOST];
    Mailbox mailbox;
    pthread_t recv_thread = pthread_self();
    Pair pair;

    mailbox_open(&mailbox);
    ask_for(asked, &mailbox);
    pair_open(&pair, &plain);
    for (unsigned n = 0; n < COUNT; n++)
        recvs[n] = post_recv(&mine, pair.client);
    for (unsigned n = 0; n < COUNT + 2; n++)
        CHECK_RETURN(VipRecvNotify(pair.client, &asked[n], on_queue), VIP_SUCCESS);
    for (unsigned n = 0; n < COUNT; n++) {
        VIP_DESCRIPTOR *send = post_send(&theirs, pair.server);
        Told told = next_told(&mailbox);
        CHECK(told.number == n && told.descriptor == recvs[n], "handler %u has descriptor %u",
              told.number, n);
        CHECK(told.nic == here.nic && told.vi == pair.client, "and its NIC and VI");
        CHECK((recvs[n]->CS.Status & ~(VIP_UINT32)VIP_STATUS_OP_MASK) == VIP_STATUS_DONE,
              "which is done");
        CHECK(!pthread_equal(told.thread, pthread_self()), "on another thread");
        CHECK(n == 0 || pthread_equal(told.thread, recv_thread), "always the same one");
        recv_thread = told.thread;
        sent(pair.server, send);
    }
    for (unsigned n = COUNT; n < COUNT + 2; n++) {
        Told told = next_told(&mailbox);
        CHECK(told.number == n && told.descriptor == NULL, "handler %u has none", told.number);
    }
    CHECK(count_told(&mailbox) == COUNT + 2, "nobody else was called");
    pair_close(&pair);
}

/* Each handler is called for one descriptor that is done, also if there are more. */
static void sends_that_are_done(void)
{
    enum { COUNT = 4 };
    VIP_DESCRIPTOR *sends[COUNT], *recvs[COUNT];
    Asked asked[MOST];
    Mailbox mailbox;
    Pair pair;

    mailbox_open(&mailbox);
    ask_for(asked, &mailbox);
    pair_open(&pair, &plain);
    for (unsigned n = 0; n < COUNT; n++)
        recvs[n] = post_recv(&theirs, pair.server);
    for (unsigned n = 0; n < COUNT; n++)
        sends[n] = post_send(&mine, pair.client);
    for (unsigned n = 0; n < COUNT; n++)
        received(pair.server, recvs[n]);
    for (unsigned n = 0; n < 2; n++) {
        CHECK_RETURN(VipSendNotify(pair.client, &asked[n], on_queue), VIP_SUCCESS);
        Told told = next_told(&mailbox);
        CHECK(told.number == n && told.descriptor == sends[n] && told.vi == pair.client,
              "send %u is told", n);
    }
    for (unsigned n = 2; n < COUNT; n++)
        CHECK((sent(pair.client, sends[n]) & VIP_STATUS_ERROR_MASK) == 0,
              "send %u is taken by VipSendWait", n);
    CHECK(count_told(&mailbox) == 2, "nobody else was called");
    pair_close(&pair);
}

static void by_entry(void)
{
    enum { COUNT = 3 };
    VIP_DESCRIPTOR *recvs[COUNT], *done;
    Asked asked[MOST];
    Mailbox mailbox;
    VIP_CQ_HANDLE cq;

    mailbox_open(&mailbox);
    ask_for(asked, &mailbox);
    REQUIRE_RETURN(VipCreateCQ(here.nic, 8, &cq), VIP_SUCCESS);
    Pair pair = {attached(NULL, cq), server_create(&plain)};
    pair_connect(&pair);
    /* An empty completion queue is no error: there is nothing yet. */
    for (unsigned n = 0; n < COUNT; n++) {
        CHECK_RETURN(VipCQNotify(cq, &asked[n], on_entry), VIP_SUCCESS);
        recvs[n] = post_recv(&mine, pair.client);
    }
    for (unsigned n = 0; n < COUNT; n++) {
        VIP_DESCRIPTOR *send = post_send(&theirs, pair.server);
        Told told = next_told(&mailbox);
        CHECK(told.number == n && told.nic == here.nic && told.vi == pair.client &&
                  told.recv_queue == VIP_TRUE,
              "entry %u is of the receive queue", n);
        CHECK_RETURN(VipRecvDone(pair.client, &done), VIP_SUCCESS);
        CHECK(done == recvs[n], "and its descriptor is still there");
        sent(pair.server, send);
    }
    pair_close(&pair);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
}

static void as_many_as_the_nic_has(void)
{
    enum { HANDLERS = 3 }; /* max_notifies_per_queue of the small NIC */
    Asked asked[MOST];
    Mailbox mailbox;
    Device small;
    Arena arena;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    VIP_RETURN answer = VIP_SUCCESS;
    unsigned recvs = 0, entries = 0;

    mailbox_open(&mailbox);
    ask_for(asked, &mailbox);
    device_open_named(&small, "SMALL");
    arena_open(&arena, &small, 8192, small.ptag, VIP_FALSE);
    REQUIRE_RETURN(VipCreateCQ(small.nic, 4, &cq), VIP_SUCCESS);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&small, &plain);
    REQUIRE_RETURN(VipCreateVi(small.nic, &attributes, NULL, NULL, &vi), VIP_SUCCESS);
    post_recv(&arena, vi);
    while (recvs < MOST && (answer = VipRecvNotify(vi, &asked[recvs], on_queue)) == VIP_SUCCESS)
        recvs++;
    CHECK(answer == VIP_ERROR_RESOURCE, "too many ask for a receive");
    while (entries < MOST && (answer = VipCQNotify(cq, &asked[entries], on_entry)) == VIP_SUCCESS)
        entries++;
    CHECK(answer == VIP_ERROR_RESOURCE, "too many ask for an entry");
    CHECK(recvs == HANDLERS && entries == HANDLERS, "%u and %u handlers wait", recvs, entries);
    CHECK_RETURN(VipDisconnect(vi), VIP_SUCCESS);
    Told told = next_told(&mailbox);
    CHECK(told.descriptor != NULL &&
              (told.descriptor->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) != 0,
          "the flushed one goes to the first");
    for (unsigned n = 1; n < HANDLERS; n++)
        CHECK(next_told(&mailbox).descriptor == NULL, "and the others are told that it was all");
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    arena_close(&arena);
    device_close(&small);
    CHECK(count_told(&mailbox) == HANDLERS,
          "what waits on a completion queue that ends is not called");
}

/* --- what a handler may do ------------------------------------------------------------------- */

/* Sends the message back, posts it again and asks to be called again. */
static void answer_message(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                           VIP_DESCRIPTOR *descriptor)
{
    VIP_DESCRIPTOR *back = NULL;
    Told told = {.nic = nic, .vi = vi, .descriptor = descriptor};

    if (descriptor == NULL || (descriptor->CS.Status & VIP_STATUS_ERROR_MASK) != 0) {
        put(context, told);
        return;
    }
    void *data = descriptor->DS[0].Local.Data.Address;
    describe(descriptor, data, mine.handle, descriptor->CS.Length);
    CHECK_RETURN(VipPostSend(vi, descriptor, mine.handle), VIP_SUCCESS);
    CHECK_RETURN(VipSendWait(vi, WAIT_MS, &back), VIP_SUCCESS);
    describe(descriptor, data, mine.handle, BYTES);
    CHECK_RETURN(VipPostRecv(vi, descriptor, mine.handle), VIP_SUCCESS);
    CHECK_RETURN(VipRecvNotify(vi, context, answer_message), VIP_SUCCESS);
}

static void server_without_a_loop(void)
{
    const unsigned messages = small_counts() ? 20 : 200;
    Mailbox ends;
    Pair pair;

    mailbox_open(&ends);
    pair_open(&pair, &plain);
    /* Two: the next message may come before the descriptor of this one is posted again. */
    post_recv(&mine, pair.client);
    post_recv(&mine, pair.client);
    CHECK_RETURN(VipRecvNotify(pair.client, &ends, answer_message), VIP_SUCCESS);
    VIP_DESCRIPTOR *send = arena_descriptor(&theirs, 1), *recv = arena_descriptor(&theirs, 1);
    unsigned char *data = arena_bytes(&theirs, BYTES), *echo = arena_bytes(&theirs, BYTES);
    for (unsigned n = 0; n < messages; n++) {
        memset(data, (int)n, BYTES);
        describe(recv, echo, theirs.handle, BYTES);
        describe(send, data, theirs.handle, 1 + n % BYTES);
        CHECK_RETURN(VipPostRecv(pair.server, recv, theirs.handle), VIP_SUCCESS);
        CHECK_RETURN(VipPostSend(pair.server, send, theirs.handle), VIP_SUCCESS);
        sent(pair.server, send);
        received(pair.server, recv);
        CHECK(recv->CS.Length == 1 + n % BYTES && memcmp(data, echo, recv->CS.Length) == 0,
              "message %u comes back", n);
    }
    CHECK_RETURN(VipDisconnect(pair.server), VIP_SUCCESS);
    CHECK(next_told(&ends).descriptor != NULL, "the handler learns of the end");
    pair_close(&pair);
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

static void ended_by_its_handler(bool close)
{
    Device second;
    Asked asked[MOST];
    Mailbox others;
    Ender ender = {.close = close};
    Arena arena;
    Pair pair;

    errors_forget();
    mailbox_open(&ender.mailbox);
    mailbox_open(&others);
    ask_for(asked, &others);
    device_open(&second);
    arena_open(&arena, &second, 8192, second.ptag, VIP_FALSE);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&second, &plain);
    REQUIRE_RETURN(VipCreateVi(second.nic, &attributes, NULL, NULL, &pair.client), VIP_SUCCESS);
    pair.server = server_create(&plain);
    pair_connect(&pair);
    for (unsigned n = 0; n < 3; n++)
        post_recv(&arena, pair.client);
    CHECK_RETURN(VipRecvNotify(pair.client, &ender, end_queue), VIP_SUCCESS);
    for (unsigned n = 0; n < 5; n++)
        CHECK_RETURN(VipRecvNotify(pair.client, &asked[n], on_queue), VIP_SUCCESS);
    VIP_DESCRIPTOR *send = post_send(&theirs, pair.server);
    Told told = next_told(&ender.mailbox);
    CHECK(told.descriptor != NULL && ender.first == VIP_SUCCESS && ender.second == INVALID,
          "a handler may %s", close ? "close its NIC" : "destroy its VI");
    CHECK(count_told(&others) == 0, "those behind it are not called");
    sent(pair.server, send);
    error_expected(pair.server, VIP_ERROR_CONN_LOST, NULL);
    vi_close(pair.server);
    CHECK_RETURN(VipDestroyVi(pair.client), INVALID);
    if (close) {
        arena_forget(&arena);
    } else {
        arena_close(&arena);
        device_close(&second);
    }
}

static void a_handler_destroys_its_vi(void)
{
    ended_by_its_handler(false);
}

static void a_handler_closes_its_nic(void)
{
    ended_by_its_handler(true);
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

static void destroyed_under_its_handler(void)
{
    Asked asked[MOST];
    Mailbox others;
    Slow slow = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t thread;
    VIP_VI_HANDLE vi = client_create(&plain);

    mailbox_open(&slow.mailbox);
    mailbox_open(&others);
    ask_for(asked, &others);
    post_recv(&mine, vi);
    post_recv(&mine, vi);
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
}

static const Test tests[] = {
    TEST(refused, .clauses = "3.5.9 3.5.10 3.5.11",
         .answers = "VipSendNotify INVALID_PARAMETER DESCRIPTOR_ERROR ERROR_RESOURCE;"
                    "VipRecvNotify INVALID_PARAMETER DESCRIPTOR_ERROR ERROR_RESOURCE;"
                    "VipCQNotify INVALID_PARAMETER"),
    TEST(receives_in_order, .clauses = "3.5.10 3.5.12", .answers = "VipRecvNotify SUCCESS"),
    TEST(sends_that_are_done, .clauses = "3.5.9 3.5.12", .answers = "VipSendNotify SUCCESS"),
    TEST(by_entry, .clauses = "3.5.11 3.5.12", .answers = "VipCQNotify SUCCESS"),
    TEST(as_many_as_the_nic_has, .clauses = "3.5.10 3.5.11 3.5.12",
         .answers = "VipRecvNotify SUCCESS ERROR_RESOURCE; VipCQNotify SUCCESS ERROR_RESOURCE"),
    TEST(server_without_a_loop, .clauses = "3.5.12", .answers = "VipRecvNotify SUCCESS"),
    TEST(a_handler_destroys_its_vi, .clauses = "3.5.12 3.2.2",
         .answers = "VipDestroyVi SUCCESS; VipRecvNotify INVALID_PARAMETER"),
    TEST(a_handler_closes_its_nic, .clauses = "3.5.12 3.1.2",
         .answers = "VipCloseNic SUCCESS INVALID_PARAMETER"),
    TEST(destroyed_under_its_handler, .clauses = "3.5.12 3.2.2",
         .answers = "VipDestroyVi SUCCESS; VipRecvNotify SUCCESS"),
};

SUITE_MAIN(tests)
