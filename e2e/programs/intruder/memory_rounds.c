/* Rounds that attack by memory: the rings, the wake-ups, and registered regions. */
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

/* Any word of the arena, the header more often than its size deserves. */
static size_t some_word(struct chance *chance, const struct attached *app)
{
    static const size_t HEADER[] = {0, 8, AT_PROCESS_SLEEPS, AT_APPLICATION_SLEEPS,
                                    AT_SUBMISSIONS_TAKEN, AT_COMPLETIONS_TAKEN};
    switch (chance_below(chance, 4)) {
    case 0:
        return HEADER[chance_below(chance, 6)];
    case 1: /* The lines that are read next. */
        return ARENA_HEADER +
               ((app->next_line + chance_below(chance, 4)) & (app->lines - 1)) * LINE_BYTES +
               8 * chance_below(chance, 8);
    default:
        return 8 * chance_below(chance, app->arena_bytes / 8);
    }
}

/* A first word that is valid in this lap or another one. */
static uint64_t some_head(struct chance *chance, const struct attached *app, uint64_t number)
{
    uint64_t lap = number / app->lines + 1 + (chance_below(chance, 8) == 0);
    uint64_t vi = app->vi_count > 0 ? app->vis[chance_below(chance, app->vi_count)] : 0;
    if (chance_below(chance, 4) == 0)
        vi = chance_odd(chance, vi);
    return lap << 32 | (vi & 0xFFFF) << 16 | chance_below(chance, 4);
}

static void scribble_once(struct chance *chance, const struct attached *app)
{
    size_t at = some_word(chance, app);
    uint64_t *word = (uint64_t *)(void *)(app->arena + at);
    uint64_t value = chance_odd(chance, __atomic_load_n(word, __ATOMIC_RELAXED));
    if (at >= ARENA_HEADER && at % LINE_BYTES == 0)
        value = some_head(chance, app, (at - ARENA_HEADER) / LINE_BYTES);
    if (chance_below(chance, 4) == 0)
        __atomic_fetch_add(word, chance_below(chance, 3) - 1, __ATOMIC_RELAXED);
    else
        __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

struct scribbler {
    struct chance chance;
    const struct attached *app;
    unsigned strokes;
};

static void *scribble(void *argument)
{
    struct scribbler *scribbler = argument;
    for (unsigned i = 0; i < scribbler->strokes; i++)
        scribble_once(&scribbler->chance, scribbler->app);
    return NULL;
}

/* Starts another thread that scribbles; false if it could not be started. */
static bool beside(struct intruder *in, struct scribbler *scribbler, pthread_t *thread)
{
    scribbler->chance.state = chance_next(&in->chance);
    scribbler->app = &in->app;
    scribbler->strokes = 200 + (unsigned)chance_below(&in->chance, 2000);
    return pthread_create(thread, NULL, scribble, scribbler) == 0;
}

static void garbage(struct intruder *in)
{
    struct scribbler scribbler;
    pthread_t thread;
    if (in->app.vi_count == 0)
        create_vi(&in->app, in->app.calls, 2);
    bool two = beside(in, &scribbler, &thread);
    for (unsigned i = (unsigned)chance_below(&in->chance, 500); i > 0; i--)
        scribble_once(&in->chance, &in->app);
    if (two)
        pthread_join(thread, NULL);
}

/* Sound lines, with anything in their fields, from one thread; another one changes what stands. */
static void submissions(struct intruder *in)
{
    struct chance *chance = &in->chance;
    struct scribbler scribbler;
    pthread_t thread;
    if (in->app.vi_count == 0 && create_vi(&in->app, in->app.calls, 1) == 0)
        return;
    bool two = chance_below(chance, 2) == 0 && beside(in, &scribbler, &thread);
    for (unsigned i = (unsigned)chance_below(chance, 200); i > 0; i--) {
        uint64_t vi = in->app.vis[chance_below(chance, in->app.vi_count)];
        struct line line = {
            .vi = chance_below(chance, 4) == 0 ? chance_odd(chance, vi) : vi,
            .kind = (unsigned)chance_below(chance, 3),
            .control = (unsigned)(chance_odd(chance, 0) & 0xFFFF),
            .segments = (unsigned)chance_below(chance, chance_below(chance, 16) == 0 ? 65536 : 2),
            .length = (uint32_t)chance_odd(chance, 64),
            .remote_handle = (uint32_t)chance_odd(chance, 1),
            .fault = chance_below(chance, 3) == 0 ? (uint32_t)chance_odd(chance, 0) : 0,
            .remote_address = chance_odd(chance, (uint64_t)(uintptr_t)&line),
            .address = chance_odd(chance, (uint64_t)(uintptr_t)&line),
            .handle = (uint32_t)chance_odd(chance, 1),
            .segment_length = (uint32_t)chance_odd(chance, 64),
        };
        submit(&in->app, &line);
        if (chance_below(chance, 8) == 0)
            take_completions(&in->app);
    }
    if (two)
        pthread_join(thread, NULL);
}

/* The ring is always full: whoever takes all that is there takes for ever. */
static void endless(struct intruder *in)
{
    struct attached *app = &in->app;
    if (app->next_line != 0)
        return;
    struct message message;
    begin(&message, QUERY_VI);
    put_number(&message, 0);
    say(app->calls, &message);
    for (uint32_t lap = 1; lap < 40; lap++)
        for (uint32_t at = 0; at < app->lines; at++) {
            uint64_t *line = (uint64_t *)(void *)(app->arena + ARENA_HEADER + at * LINE_BYTES);
            __atomic_store_n(line, (uint64_t)lap << 32, __ATOMIC_RELEASE);
        }
    hear(app->calls, &message, 20000);
}

/* The eventfd by which it wakes the process is filled, emptied, made to block, waited for many times over, and
 * closed. */
static void wake_ups(struct intruder *in)
{
    struct attached *app = &in->app;
    struct chance *chance = &in->chance;
    uint64_t full = UINT64_MAX - 1, count;
    struct pollfd waits[256];
    fcntl(app->waker, F_SETFL, O_NONBLOCK);
    bool was_empty = read(app->waker, &count, sizeof count) < 0;
    /* Not both: its own writes would block. */
    if (was_empty && chance_below(chance, 2) == 0)
        fcntl(app->waker, F_SETFL, 0);
    else if (write(app->waker, &full, sizeof full) < 0)
        return;
    for (unsigned i = 0; i < 256; i++)
        waits[i] = (struct pollfd){.fd = app->waker, .events = POLLIN};
    uint64_t vi = create_vi(app, app->calls, 2);
    for (unsigned i = 0; i < 500 && vi != 0; i++) {
        /* It asks to be woken, and something ends at once. */
        __atomic_store_n((uint32_t *)(void *)(app->arena + AT_APPLICATION_SLEEPS), 1,
                         __ATOMIC_SEQ_CST);
        struct line line = {.vi = vi};
        submit(app, &line);
        if (i % 4 == 0)
            take_completions(app);
        if (i % 16 == 0)
            poll(waits, 256, 0);
    }
    if (chance_below(chance, 4) == 0) {
        close(app->waker);
        app->waker = -1;
    }
    if (app->waker >= 0)
        fcntl(app->waker, F_SETFL, O_NONBLOCK);
}

/* Completions are never taken; what it posts comes back at once. */
static void deaf(struct intruder *in)
{
    uint64_t vi = create_vi(&in->app, in->app.calls, 1);
    for (unsigned i = 0; vi != 0 && i < 3000; i++) {
        struct line line = {.vi = vi};
        submit(&in->app, &line);
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

/* Nobody takes a page out of a file that the process has mapped, or a poller may wait for that. */
static void must_be_sealed(int fd, uint8_t *page, size_t at)
{
    if (punch(fd, at, PAGE) || ftruncate(fd, (off_t)at) == 0 ||
        (page != NULL && madvise(page, PAGE, MADV_REMOVE) == 0))
        _exit(3);
}

/* Takes a page away in one way or another. */
static void take_page(struct chance *chance, const struct pair *pair)
{
    size_t at = chance_below(chance, pair->bytes / PAGE) * PAGE;
    uint8_t *page = pair->memory + at;
    switch (chance_below(chance, 6)) {
    case 0:
        munmap(page, PAGE);
        break;
    case 1:
        mprotect(page, PAGE, (int)chance_below(chance, 2) * PROT_READ);
        break;
    case 2:
        mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        break;
    case 3:
        madvise(page, PAGE, MADV_DONTNEED);
        break;
    default:
        if (pair->fd >= 0)
            must_be_sealed(pair->fd, NULL, at);
    }
}

/* Messages and writes between two VIs of the intruder, whose memory goes meanwhile. */
static void memory(struct intruder *in)
{
    struct chance *chance = &in->chance;
    struct pair pair;
    if (!make_pair(in, &pair, chance_below(chance, 2) == 0))
        return;
    for (unsigned i = 0; i < 60; i++) {
        uint32_t length = (uint32_t)chance_below(chance, pair.bytes / 2);
        struct line line = {
            .vi = pair.two,
            .kind = 1,
            .segments = 1,
            .length = length,
            .address = (uint64_t)(uintptr_t)pair.memory,
            .handle = pair.region,
            .segment_length = length,
        };
        submit(&in->app, &line);
        line.vi = pair.one;
        line.kind = 0;
        line.address += pair.bytes / 2;
        /* 1: a write. */
        line.control = (unsigned)chance_below(chance, 2);
        line.remote_address = (uint64_t)(uintptr_t)pair.memory + chance_below(chance, pair.bytes);
        line.remote_handle = pair.region;
        submit(&in->app, &line);
        if (chance_below(chance, 8) == 0)
            take_page(chance, &pair);
        if (chance_below(chance, 8) == 0)
            take_completions(&in->app);
    }
    struct message message;
    if (chance_below(chance, 2) == 0) {
        begin(&message, DEREGISTER);
        put_number(&message, in->app.nic);
        put_number(&message, (uint64_t)(uintptr_t)pair.memory);
        put_number(&message, pair.region);
        ask(in->app.calls, &message, 20000);
    }
    end_pair(&pair);
}

/* The arena itself is to lose its pages. */
static void punched_arena(struct intruder *in)
{
    struct attached *app = &in->app;
    for (size_t at = 0; at < app->arena_bytes; at += PAGE)
        if (chance_below(&in->chance, 3) == 0)
            must_be_sealed(app->arena_fd, app->arena + at, at);
    /* Refused, too: it is sealed. */
    if (ftruncate(app->arena_fd, (off_t)app->arena_bytes * 2) == 0)
        _exit(3);
}

/* The rings lose their pages before they are sealed, and are confirmed or not. */
static void early_arena(struct intruder *in)
{
    struct message message;
    int socket = reach(in->socket);
    if (socket < 0)
        return;
    if (ask_for_rings(socket, &message, in->device, 20000)) {
        int arena = message.fds[0];
        if (!punch(arena, 0, 1 << 20))
            _exit(3);
        begin(&message, chance_below(&in->chance, 4) == 0 ? OPEN : RINGS_MAPPED);
        if (chance_below(&in->chance, 4) != 0 && ask(socket, &message, 20000) &&
            get_number(&message) == ATTACHED)
            must_be_sealed(arena, NULL, 0);
        close(arena);
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

/* Says that a file is freed, which may be in use still. */
static void say_freed(struct intruder *in, int fd)
{
    struct message message;
    struct stat facts;
    int socket = reach(in->socket);
    if (socket < 0 || fstat(fd, &facts) != 0)
        return;
    begin(&message, FREE);
    put_number(&message, VERSION);
    put_number(&message, strlen(in->device));
    put_bytes(&message, in->device, strlen(in->device));
    put_number(&message, facts.st_dev);
    put_number(&message, facts.st_ino);
    if (!ask(socket, &message, 20000) || get_number(&message) != DONE)
        _exit(3);
    close(socket);
}

/* Files that would cost the process more than they are charged for, or that lose pages while they
 * are registered. */
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
    switch (chance_below(&in->chance, 3)) {
    case 0: /* Sparse. */
        punch(fd, chance_below(&in->chance, bytes / PAGE) * PAGE, PAGE);
        if (register_memory(app, app->calls, at, PAGE, fd) != 0)
            _exit(3);
        break;
    case 1: { /* Longer than all that it may have. */
        int sparse = memfd_create("long", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (ftruncate(sparse, (off_t)1 << 40) != 0 ||
            fcntl(sparse, F_ADD_SEALS, F_SEAL_SHRINK) != 0 ||
            register_memory(app, app->calls, at, PAGE, sparse) != 0)
            _exit(3);
        close(sparse);
        break;
    }
    default: /* It is punched meanwhile. */
        if (pthread_create(&thread, NULL, punch_on, &puncher) != 0)
            break;
        uint32_t region = register_memory(app, app->calls, at, bytes, fd);
        __atomic_store_n(&puncher.stop, true, __ATOMIC_RELAXED);
        pthread_join(thread, NULL);
        if (region != 0 && lseek(fd, 0, SEEK_HOLE) != (off_t)bytes)
            _exit(3);
        if (region != 0)
            must_be_sealed(fd, NULL, 0);
    }
    if (chance_below(&in->chance, 2) == 0)
        say_freed(in, fd);
    if (chance_below(&in->chance, 2) == 0)
        register_memory(app, app->calls, at, PAGE, fd);
    close(fd);
}

/* Writes with guessed memory handles at full rate: no write may reach memory. */
static void guesses(struct intruder *in)
{
    struct chance *chance = &in->chance;
    struct pair pair;
    if (!make_pair(in, &pair, chance_below(chance, 2) == 0))
        return;
    size_t half = pair.bytes / 2;
    memset(pair.memory + half, 0x5A, half);
    for (unsigned i = 0; i < 2000; i++) {
        struct line line = {
            .vi = pair.one,
            /* A write. */
            .control = 1,
            .segments = 1,
            .length = 64,
            .address = (uint64_t)(uintptr_t)pair.memory + half,
            .handle = pair.region,
            .segment_length = 64,
            .remote_address = (uint64_t)(uintptr_t)pair.memory,
            .remote_handle = pair.region ^ (uint32_t)(1 + chance_below(chance, UINT32_MAX)),
        };
        submit(&in->app, &line);
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

const struct kind MEMORY_ROUNDS[] = {
    {"garbage", garbage}, {"submissions", submissions}, {"endless", endless},
    {"wake-ups", wake_ups}, {"deaf", deaf},               {"memory", memory},
    {"punched arena", punched_arena}, {"early arena", early_arena}, {"files", files},
    {"guesses", guesses},
};
const unsigned MEMORY_ROUND_COUNT = sizeof MEMORY_ROUNDS / sizeof *MEMORY_ROUNDS;
