/* Rounds that attack by memory: the rings, the wake-ups, and registered regions. */
#define _GNU_SOURCE
#include "rounds.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
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

static void empty(int bell)
{
    uint8_t some[4096];
    while (recv(bell, some, sizeof some, MSG_DONTWAIT) > 0)
        ;
}

/* What wakes either side is filled, emptied, made to block, and shut. */
static void bells(struct intruder *in)
{
    struct attached *app = &in->app;
    struct chance *chance = &in->chance;
    uint64_t much = UINT64_MAX - 1;
    int least = 1;
    fcntl(app->bell, F_SETFL, chance_below(chance, 2) == 0 ? O_NONBLOCK : 0);
    setsockopt(app->bell, SOL_SOCKET, SO_RCVBUF, &least, sizeof least);
    if (chance_below(chance, 2) == 0)
        while (send(app->bell, &much, sizeof much, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
            ;
    uint64_t vi = create_vi(app, app->calls, 2);
    for (unsigned i = 0; i < 500 && vi != 0; i++) {
        /* It asks to be woken, and something ends at once. */
        __atomic_store_n((uint32_t *)(void *)(app->arena + AT_APPLICATION_SLEEPS), 1,
                         __ATOMIC_SEQ_CST);
        struct line line = {.vi = vi};
        submit(app, &line);
        if (i % 4 == 0)
            take_completions(app);
        if (i % 16 == 0 && chance_below(chance, 4) == 0)
            empty(app->bell);
    }
    if (chance_below(chance, 3) == 0)
        shutdown(app->bell, (int)chance_below(chance, 3));
    if (chance_below(chance, 4) == 0) {
        close(app->bell);
        app->bell = -1;
    }
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

static void hole(const struct pair *pair, size_t at)
{
    if (pair->fd >= 0)
        fallocate(pair->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)PAGE);
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
    case 4:
        hole(pair, at);
        break;
    default:
        if (pair->fd >= 0 && ftruncate(pair->fd, (off_t)at) == 0)
            mmap(page, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
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

/* The arena itself loses its pages. */
static void punched_arena(struct intruder *in)
{
    struct attached *app = &in->app;
    for (size_t at = 0; at < app->arena_bytes; at += PAGE)
        if (chance_below(&in->chance, 3) == 0)
            fallocate(app->arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                      (off_t)PAGE);
    /* Refused, both: it is sealed. */
    if (ftruncate(app->arena_fd, (off_t)chance_below(&in->chance, app->arena_bytes)) == 0)
        _exit(3);
    if (ftruncate(app->arena_fd, (off_t)app->arena_bytes * 2) == 0)
        _exit(3);
}

const struct kind MEMORY_ROUNDS[] = {
    {"garbage", garbage}, {"submissions", submissions}, {"endless", endless},
    {"bells", bells},     {"deaf", deaf},               {"memory", memory},
    {"punched arena", punched_arena},
};
const unsigned MEMORY_ROUND_COUNT = sizeof MEMORY_ROUNDS / sizeof *MEMORY_ROUNDS;
