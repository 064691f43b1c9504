/* Rounds that attack through memory: rings, wake-ups, and registered regions. */
#define _GNU_SOURCE
#include "rounds.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE ((size_t)4096)

/* Returns the offset of a random word of the rings, with a high probability for the header, and of the inline buffers. */
static size_t random_word(struct rng *rng, const struct attached *app)
{
    static const size_t HEADER[] = {0, 8, AT_PROCESS_SLEEPS, AT_APPLICATION_SLEEPS,
                                    AT_SUBMISSIONS_TAKEN, AT_COMPLETIONS_TAKEN};
    size_t buffers_bytes = (size_t)app->inline_buffers * 2 * INLINE_BYTES;
    switch (rng_below(rng, 5)) {
    case 0:
        return HEADER[rng_below(rng, 6)];
    case 2:
        return 8 * rng_below(rng, app->rings_bytes / 8);
    case 1: /* The submissions that are read next. */
        return RINGS_HEADER +
               ((app->next_submission + rng_below(rng, 4)) & (app->submission_slots - 1)) * SUBMISSION_BYTES +
               8 * rng_below(rng, 8);
    default:
        return 8 * rng_below(rng, (app->rings_bytes - buffers_bytes) / 8);
    }
}

/* Returns a first word of a submission that is valid in this lap or in another one. */
static uint64_t random_header(struct rng *rng, const struct attached *app, uint64_t number)
{
    uint64_t lap = number / app->submission_slots + 1 + (rng_below(rng, 8) == 0);
    uint64_t vi = app->vi_count > 0 ? app->vis[rng_below(rng, app->vi_count)] : 0;
    if (rng_below(rng, 4) == 0)
        vi = rng_edge(rng, vi);
    return lap << 32 | (vi & 0xFFFF) << 16 | rng_below(rng, 4);
}

static void corrupt_word(struct rng *rng, const struct attached *app)
{
    size_t at = random_word(rng, app);
    uint64_t *word = (uint64_t *)(void *)(app->rings + at);
    uint64_t value = rng_edge(rng, __atomic_load_n(word, __ATOMIC_RELAXED));
    if (at >= RINGS_HEADER && at % SUBMISSION_BYTES == 0)
        value = random_header(rng, app, (at - RINGS_HEADER) / SUBMISSION_BYTES);
    if (rng_below(rng, 4) == 0)
        __atomic_fetch_add(word, rng_below(rng, 3) - 1, __ATOMIC_RELAXED);
    else
        __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

struct corrupter {
    struct rng rng;
    const struct attached *app;
    unsigned count;
};

static void *corrupt_words(void *argument)
{
    struct corrupter *corrupter = argument;
    for (unsigned i = 0; i < corrupter->count; i++)
        corrupt_word(&corrupter->rng, corrupter->app);
    return NULL;
}

/* Starts another thread that corrupts the rings; false on error. */
static bool start_corrupter(struct intruder *in, struct corrupter *corrupter, pthread_t *thread)
{
    corrupter->rng.state = rng_next(&in->rng);
    corrupter->app = &in->app;
    corrupter->count = 200 + (unsigned)rng_below(&in->rng, 2000);
    return pthread_create(thread, NULL, corrupt_words, corrupter) == 0;
}

static void garbage(struct intruder *in)
{
    struct corrupter corrupter;
    pthread_t thread;
    if (in->app.vi_count == 0)
        create_vi(&in->app, in->app.calls, 2);
    bool two = start_corrupter(in, &corrupter, &thread);
    for (unsigned i = (unsigned)rng_below(&in->rng, 500); i > 0; i--)
        corrupt_word(&in->rng, &in->app);
    if (two)
        pthread_join(thread, NULL);
}

/* Posts well-formed submissions with random fields, while another thread may corrupt the rings. */
static void submissions(struct intruder *in)
{
    struct rng *rng = &in->rng;
    struct corrupter corrupter;
    pthread_t thread;
    if (in->app.vi_count == 0 && create_vi(&in->app, in->app.calls, 1) == 0)
        return;
    bool two = rng_below(rng, 2) == 0 && start_corrupter(in, &corrupter, &thread);
    for (unsigned i = (unsigned)rng_below(rng, 200); i > 0; i--) {
        uint64_t vi = in->app.vis[rng_below(rng, in->app.vi_count)];
        struct submission submission = {
            .vi = rng_below(rng, 4) == 0 ? rng_edge(rng, vi) : vi,
            .kind = (unsigned)rng_below(rng, 3),
            .control = (unsigned)(rng_edge(rng, 0) & 0xFFFF),
            .segments = (unsigned)rng_below(rng, rng_below(rng, 16) == 0 ? 65536 : 2),
            .length = (uint32_t)rng_edge(rng, 64),
            .remote_handle = (uint32_t)rng_edge(rng, 1),
            .fault = rng_below(rng, 3) == 0 ? (uint32_t)rng_edge(rng, 0) : 0,
            .remote_address = rng_edge(rng, (uint64_t)(uintptr_t)&submission),
            .address = rng_edge(rng, (uint64_t)(uintptr_t)&submission),
            .handle = (uint32_t)rng_edge(rng, 1),
            .segment_length = (uint32_t)rng_edge(rng, 64),
        };
        submit(&in->app, &submission);
        if (rng_below(rng, 8) == 0)
            take_completions(&in->app);
    }
    if (two)
        pthread_join(thread, NULL);
}

/* Refills the ring continuously, so that a reader without a limit would never end. */
static void full_ring(struct intruder *in)
{
    struct attached *app = &in->app;
    if (app->next_submission != 0)
        return;
    struct message message;
    begin(&message, QUERY_VI);
    put_number(&message, 0);
    send_message(app->calls, &message);
    for (uint32_t lap = 1; lap < 40; lap++)
        for (uint32_t at = 0; at < app->submission_slots; at++) {
            uint64_t *submission = (uint64_t *)(void *)(app->rings + RINGS_HEADER + at * SUBMISSION_BYTES);
            __atomic_store_n(submission, (uint64_t)lap << 32, __ATOMIC_RELEASE);
        }
    receive_message(app->calls, &message, 20000);
}

/* Fills, drains, polls, makes blocking and closes the eventfd by which it wakes the process. */
static void wake_ups(struct intruder *in)
{
    struct attached *app = &in->app;
    struct rng *rng = &in->rng;
    uint64_t full = UINT64_MAX - 1, count;
    struct pollfd waits[256];
    fcntl(app->waker, F_SETFL, O_NONBLOCK);
    bool was_empty = read(app->waker, &count, sizeof count) < 0;
    /* Not both: the writes of the intruder itself would block. */
    if (was_empty && rng_below(rng, 2) == 0)
        fcntl(app->waker, F_SETFL, 0);
    else if (write(app->waker, &full, sizeof full) < 0)
        return;
    for (unsigned i = 0; i < 256; i++)
        waits[i] = (struct pollfd){.fd = app->waker, .events = POLLIN};
    uint64_t vi = create_vi(app, app->calls, 2);
    for (unsigned i = 0; i < 500 && vi != 0; i++) {
        /* Requests a wake-up and posts a submission that completes immediately. */
        __atomic_store_n((uint32_t *)(void *)(app->rings + AT_APPLICATION_SLEEPS), 1,
                         __ATOMIC_SEQ_CST);
        struct submission submission = {.vi = vi};
        submit(app, &submission);
        if (i % 4 == 0)
            take_completions(app);
        if (i % 16 == 0)
            poll(waits, 256, 0);
    }
    if (rng_below(rng, 4) == 0) {
        close(app->waker);
        app->waker = -1;
    }
    if (app->waker >= 0)
        fcntl(app->waker, F_SETFL, O_NONBLOCK);
}

/* Posts submissions that complete immediately, without taking completions. */
static void unread_completions(struct intruder *in)
{
    uint64_t vi = create_vi(&in->app, in->app.calls, 1);
    for (unsigned i = 0; vi != 0 && i < 3000; i++) {
        struct submission submission = {.vi = vi};
        submit(&in->app, &submission);
        if (i % 512 == 511) {
            struct message message;
            begin(&message, QUERY_VI);
            put_number(&message, vi);
            if (!ask(in->app.calls, &message, 20000))
                return;
        }
    }
}

static bool punch(int fd, size_t at, size_t bytes)
{
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)bytes) == 0;
}

/* Checks that pages cannot be removed from a file that the process has mapped, since a poller could block on
 * that. */
static void check_sealed(int fd, uint8_t *page, size_t at)
{
    if (punch(fd, at, PAGE) || ftruncate(fd, (off_t)at) == 0 ||
        (page != NULL && madvise(page, PAGE, MADV_REMOVE) == 0))
        _exit(3);
}

/* Removes or protects a random page of the intruder's memory. */
static void remove_page(struct rng *rng, const struct pair *pair)
{
    size_t at = rng_below(rng, pair->bytes / PAGE) * PAGE;
    uint8_t *page = pair->memory + at;
    switch (rng_below(rng, 6)) {
    case 0:
        munmap(page, PAGE);
        break;
    case 1:
        mprotect(page, PAGE, (int)rng_below(rng, 2) * PROT_READ);
        break;
    case 2:
        mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        break;
    case 3:
        madvise(page, PAGE, MADV_DONTNEED);
        break;
    default:
        if (pair->fd >= 0)
            check_sealed(pair->fd, NULL, at);
    }
}

/* Messages and writes between two VIs of the intruder, whose memory is unmapped meanwhile. */
static void memory(struct intruder *in)
{
    struct rng *rng = &in->rng;
    struct pair pair;
    if (!make_pair(in, &pair, rng_below(rng, 2) == 0))
        return;
    for (unsigned i = 0; i < 60; i++) {
        bool is_inline = rng_below(rng, 2) == 0;
        uint32_t length = (uint32_t)rng_below(rng, is_inline ? INLINE_BYTES + 1 : pair.bytes / 2);
        struct submission submission = {
            .vi = pair.two,
            .kind = 1,
            .segments = 1,
            .length = length,
            .address = (uint64_t)(uintptr_t)pair.memory,
            .handle = pair.region,
            .segment_length = length,
        };
        submit(&in->app, &submission);
        submission.vi = pair.one;
        submission.kind = 0;
        submission.address += pair.bytes / 2;
        /* 1: an RDMA write. */
        submission.control = (unsigned)rng_below(rng, 2);
        submission.remote_address = (uint64_t)(uintptr_t)pair.memory + rng_below(rng, pair.bytes);
        submission.remote_handle = pair.region;
        /* Often that of another send that is not complete. */
        if (is_inline && in->app.inline_buffers > 0)
            submission.inline_buffer = 1 + (uint32_t)rng_below(rng, in->app.inline_buffers);
        submit(&in->app, &submission);
        submission.inline_buffer = 0;
        if (rng_below(rng, 8) == 0)
            remove_page(rng, &pair);
        if (rng_below(rng, 8) == 0)
            take_completions(&in->app);
    }
    struct message message;
    if (rng_below(rng, 2) == 0) {
        begin(&message, DEREGISTER);
        put_number(&message, in->app.nic);
        put_number(&message, (uint64_t)(uintptr_t)pair.memory);
        put_number(&message, pair.region);
        ask(in->app.calls, &message, 20000);
    }
    end_pair(&pair);
}

/* Tries to remove pages of the rings. */
static void punched_rings(struct intruder *in)
{
    struct attached *app = &in->app;
    for (size_t at = 0; at < app->rings_bytes; at += PAGE)
        if (rng_below(&in->rng, 3) == 0)
            check_sealed(app->rings_fd, app->rings + at, at);
    /* The file is sealed. */
    if (ftruncate(app->rings_fd, (off_t)app->rings_bytes * 2) == 0)
        _exit(3);
}

/* Removes pages of the rings before they are sealed, and confirms the mapping or not. */
static void early_rings(struct intruder *in)
{
    struct message message;
    int socket = connect_socket(in->socket);
    if (socket < 0)
        return;
    if (ask_for_rings(socket, &message, in->device, 20000)) {
        int rings = message.fds[0];
        if (!punch(rings, 0, 1 << 20))
            _exit(3);
        begin(&message, rng_below(&in->rng, 4) == 0 ? OPEN : RINGS_MAPPED);
        if (rng_below(&in->rng, 4) != 0 && ask(socket, &message, 20000) &&
            get_number(&message) == ATTACHED)
            check_sealed(rings, NULL, 0);
        close(rings);
        close(message.fds[1]);
    }
    close(socket);
}

struct puncher {
    int fd;
    size_t bytes;
    bool stop;
};

static void *punch_on(void *argument)
{
    struct puncher *puncher = argument;
    while (!__atomic_load_n(&puncher->stop, __ATOMIC_RELAXED))
        punch(puncher->fd, 0, puncher->bytes);
    return NULL;
}

/* Sends FREE for a file that may still be in use. */
static void send_free(struct intruder *in, int fd)
{
    struct message message;
    struct stat status;
    int socket = connect_socket(in->socket);
    if (socket < 0 || fstat(fd, &status) != 0)
        return;
    begin(&message, FREE);
    put_number(&message, VERSION);
    put_number(&message, strlen(in->device));
    put_bytes(&message, in->device, strlen(in->device));
    put_number(&message, status.st_dev);
    put_number(&message, status.st_ino);
    if (!ask(socket, &message, 20000) || get_number(&message) != DONE)
        _exit(3);
    close(socket);
}

/* Registers files that use more memory of the process than their quota accounts for, or that lose pages
 * during registration. */
static void files(struct intruder *in)
{
    struct attached *app = &in->app;
    const uint64_t at = 0x30000000;
    size_t bytes = 1 << 20;
    int fd = shared_memory(bytes);
    if (fd < 0)
        return;
    struct puncher puncher = {.fd = fd, .bytes = bytes};
    pthread_t thread;
    switch (rng_below(&in->rng, 3)) {
    case 0: /* Sparse. */
        punch(fd, rng_below(&in->rng, bytes / PAGE) * PAGE, PAGE);
        if (register_memory(app, app->calls, at, PAGE, fd) != 0)
            _exit(3);
        break;
    case 1: { /* Longer than the quota. */
        int sparse = memfd_create("long", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (ftruncate(sparse, (off_t)1 << 40) != 0 ||
            fcntl(sparse, F_ADD_SEALS, F_SEAL_SHRINK) != 0 ||
            register_memory(app, app->calls, at, PAGE, sparse) != 0)
            _exit(3);
        close(sparse);
        break;
    }
    default: /* Punched during registration. */
        if (pthread_create(&thread, NULL, punch_on, &puncher) != 0)
            break;
        uint32_t region = register_memory(app, app->calls, at, bytes, fd);
        __atomic_store_n(&puncher.stop, true, __ATOMIC_RELAXED);
        pthread_join(thread, NULL);
        if (region != 0 && lseek(fd, 0, SEEK_HOLE) != (off_t)bytes)
            _exit(3);
        if (region != 0)
            check_sealed(fd, NULL, 0);
    }
    if (rng_below(&in->rng, 2) == 0)
        send_free(in, fd);
    if (rng_below(&in->rng, 2) == 0)
        register_memory(app, app->calls, at, PAGE, fd);
    close(fd);
}

/* Posts RDMA writes with guessed memory handles at full rate: no write may change memory. */
static void guessed_handles(struct intruder *in)
{
    struct rng *rng = &in->rng;
    struct pair pair;
    if (!make_pair(in, &pair, rng_below(rng, 2) == 0))
        return;
    size_t half = pair.bytes / 2;
    memset(pair.memory + half, 0x5A, half);
    for (unsigned i = 0; i < 2000; i++) {
        struct submission submission = {
            .vi = pair.one,
            /* An RDMA write. */
            .control = 1,
            .segments = 1,
            .length = 64,
            .address = (uint64_t)(uintptr_t)pair.memory + half,
            .handle = pair.region,
            .segment_length = 64,
            .remote_address = (uint64_t)(uintptr_t)pair.memory,
            .remote_handle = pair.region ^ (uint32_t)(1 + rng_below(rng, UINT32_MAX)),
        };
        submit(&in->app, &submission);
        if (i % 16 == 0)
            take_completions(&in->app);
    }
    struct message message;
    begin(&message, DISCONNECT);
    put_number(&message, pair.one);
    ask(in->app.calls, &message, 20000);
    for (size_t at = 0; at < half; at++)
        if (pair.memory[at] != 0)
            _exit(3);
    end_pair(&pair);
}

const struct round MEMORY_ROUNDS[] = {
    {"garbage", garbage},
    {"submissions", submissions},
    {"full ring", full_ring},
    {"wake-ups", wake_ups},
    {"unread completions", unread_completions},
    {"memory", memory},
    {"punched rings", punched_rings},
    {"early rings", early_rings},
    {"files", files},
    {"guessed handles", guessed_handles},
};
const unsigned MEMORY_ROUND_COUNT = sizeof MEMORY_ROUNDS / sizeof *MEMORY_ROUNDS;
