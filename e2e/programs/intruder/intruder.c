/* Attacks a datapath process by all that it shares with an application.
 *
 *   intruder SOCKET DEVICE ROUNDS SEED [FIRST]
 *
 * Lives of some rounds each follow one another until so many were played. A life ends in order, at
 * once, or is killed in the middle, and may leave a child behind that keeps its sockets. What it
 * does is decided by the seed and the number of its first round. Between lives an ordinary
 * application asks for something, and is served in time. Exit status 0 if it always was. */
#define _GNU_SOURCE
#include "rounds.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LONGEST_LIFE 24
/* Longer than the process takes for anything, on a busy machine. */
#define PATIENCE_MS 20000
/* A life that lasts so long hangs. */
#define LONGEST_LIFE_S 120

bool make_pair(struct intruder *in, struct pair *pair, bool shared)
{
    memset(pair, 0, sizeof *pair);
    pair->bytes = 65536;
    pair->fd = shared ? shared_memory(pair->bytes) : -1;
    int flags = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    pair->memory = mmap(NULL, pair->bytes, PROT_READ | PROT_WRITE, flags, pair->fd, 0);
    if (pair->memory == MAP_FAILED) {
        if (pair->fd >= 0)
            close(pair->fd);
        return false;
    }
    struct attached *app = &in->app;
    unsigned reliability = 1u << chance_below(&in->chance, 3);
    pair->one = create_vi(app, app->calls, reliability);
    pair->two = create_vi(app, app->calls, reliability);
    uint64_t address = (uint64_t)(uintptr_t)pair->memory;
    pair->region = register_memory(app, app->calls, address, pair->bytes, pair->fd);
    in->tally->regions += pair->region != 0;
    in->name += 2;
    if (pair->one != 0 && pair->two != 0 && pair->region != 0 &&
        connect_pair(app, in->socket, pair->one, pair->two, in->name)) {
        in->tally->pairs++;
        return true;
    }
    end_pair(pair);
    return false;
}

void end_pair(struct pair *pair)
{
    munmap(pair->memory, pair->bytes);
    if (pair->fd >= 0)
        close(pair->fd);
}

/* Is the conversation over? The process ends it with who breaks the rules. */
static bool is_over(int socket)
{
    struct pollfd waits = {.fd = socket, .events = POLLIN};
    return poll(&waits, 1, 0) != 0;
}

bool stand(struct intruder *in)
{
    if (in->attached && (is_over(in->app.life) || is_over(in->app.calls) || in->app.vi_count > 8)) {
        in->tally->cut_off += is_over(in->app.life);
        let_go(&in->app);
        in->attached = false;
    }
    if (!in->attached) {
        in->attached = attach(&in->app, in->socket, in->device, PATIENCE_MS);
        in->tally->attached += in->attached;
        in->tally->turned_away += !in->attached;
    }
    return in->attached;
}

static void *die_soon(void *argument)
{
    struct timespec time = {.tv_nsec = *(const long *)argument};
    nanosleep(&time, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* A child that keeps what its parent had, and does not outlive the test. */
static void leave_child(void)
{
    if (fork() == 0) {
        struct timespec time = {.tv_nsec = 50000000};
        nanosleep(&time, NULL);
        _exit(0);
    }
}

static void live(struct intruder *in, unsigned rounds, bool names)
{
    struct chance *chance = &in->chance;
    static long soon;
    pthread_t thread;
    uint64_t end = chance_below(chance, 4);
    if (end == 0) {
        soon = (long)chance_below(chance, 5000000);
        if (pthread_create(&thread, NULL, die_soon, &soon) != 0)
            _exit(4);
    }
    while (rounds-- > 0) {
        bool by_memory = chance_below(chance, 2) == 0;
        const struct kind *kind =
            by_memory ? &MEMORY_ROUNDS[chance_below(chance, MEMORY_ROUND_COUNT)]
                      : &SOCKET_ROUNDS[chance_below(chance, SOCKET_ROUND_COUNT)];
        if (names) {
            printf("round: %s\n", kind->name);
            fflush(stdout);
        }
        if (stand(in)) {
            kind->play(in);
            in->tally->completions += in->app.next_entry;
            in->tally->rounds++;
        }
    }
    if (end == 1)
        leave_child();
    _exit(0);
}

static long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* An ordinary application: everything that it asks for is done, in time. */
static bool is_served(const char *socket, const char *device)
{
    struct attached app;
    struct message message;
    long begun = now_ms();
    /* Those that were killed may not be gone yet. */
    while (!attach(&app, socket, device, PATIENCE_MS))
        if (now_ms() - begun > PATIENCE_MS)
            return false;
    uint64_t vi = create_vi(&app, app.calls, 2);
    begin(&message, DESTROY_VI);
    put_number(&message, vi);
    bool served = vi != 0 && ask(app.calls, &message, PATIENCE_MS) && get_number(&message) == DONE;
    let_go(&app);
    return served;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: intruder SOCKET DEVICE ROUNDS SEED [FIRST]\n");
        return 2;
    }
    uint64_t rounds = strtoull(argv[3], NULL, 10), seed = strtoull(argv[4], NULL, 10);
    bool alone = argc > 5;
    uint64_t first = alone ? strtoull(argv[5], NULL, 10) : 0;
    uint64_t died = 0;
    long longest = 0;
    struct tally *tally =
        mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tally == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    while (tally->rounds < rounds) {
        struct intruder in = {.tally = tally, .socket = argv[1], .device = argv[2]};
        in.chance.state = seed * 0x9E3779B97F4A7C15u ^ first;
        unsigned length = 1 + (unsigned)chance_below(&in.chance, LONGEST_LIFE);
        in.name = (uint32_t)getpid() << 16 ^ (uint32_t)first << 4;
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 2;
        }
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            /* Whoever attacks by its own memory lets the process reach it. */
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
            alarm(LONGEST_LIFE_S);
            live(&in, length, alone);
        }
        int status = 0;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        died += killed;
        if (!killed && status != 0) {
            printf("failed: the life of round %llu ends with status %#x\n",
                   (unsigned long long)first, (unsigned)status);
            return 1;
        }
        long asked = now_ms();
        if (!is_served(argv[1], argv[2])) {
            printf("failed: after the life of round %llu an application is not served\n",
                   (unsigned long long)first);
            return 1;
        }
        if (now_ms() - asked > longest)
            longest = now_ms() - asked;
        first += length;
    }
    printf("count killed %llu\ncount longest_ms %ld\n", (unsigned long long)died, longest);
    printf("count played %lu\ncount attached %lu\ncount turned_away %lu\ncount cut_off %lu\n"
           "count pairs %lu\ncount regions %lu\ncount completions %lu\ncount captures %lu\n",
           tally->rounds, tally->attached, tally->turned_away, tally->cut_off, tally->pairs,
           tally->regions, tally->completions, tally->captures);
    return 0;
}
