/* Attacks a datapath process through the messages and the memory that it shares with applications.
 *
 *   intruder SOCKET DEVICE ROUNDS SEED [FIRST]
 *
 * Runs consecutive child processes ("sessions") of some rounds each, ROUNDS in total. A session exits,
 * or is killed at a random time, and may leave a child process that keeps its sockets. Its actions are
 * determined by the seed and the number of its first round; FIRST repeats the session that begins with
 * that round. After each session an ordinary application makes some calls. Exit status 0 if all of them
 * succeeded within the timeout. */
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

#define MAX_SESSION_ROUNDS 24
/* Upper limit for one reply of the process on a busy machine. */
#define TIMEOUT_MS 20000
/* Upper limit for the duration of a session in seconds. */
#define MAX_SESSION_S 120

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
    unsigned reliability = 1u << rng_below(&in->rng, 3);
    pair->one = create_vi(app, app->calls, reliability);
    pair->two = create_vi(app, app->calls, reliability);
    uint64_t address = (uint64_t)(uintptr_t)pair->memory;
    pair->region = register_memory(app, app->calls, address, pair->bytes, pair->fd);
    in->totals->regions += pair->region != 0;
    in->name += 2;
    if (pair->one != 0 && pair->two != 0 && pair->region != 0 &&
        connect_pair(app, in->socket, pair->one, pair->two, in->name)) {
        in->totals->pairs++;
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

/* Whether the connection is closed. The process closes it after a protocol violation. */
static bool is_closed(int socket)
{
    struct pollfd waits = {.fd = socket, .events = POLLIN};
    return poll(&waits, 1, 0) != 0;
}

bool ensure_attached(struct intruder *in)
{
    if (in->attached && (is_closed(in->app.control) || is_closed(in->app.calls) || in->app.vi_count > 8)) {
        in->totals->connections_closed += is_closed(in->app.control);
        detach(&in->app);
        in->attached = false;
    }
    if (!in->attached) {
        in->attached = attach(&in->app, in->socket, in->device, TIMEOUT_MS);
        in->totals->attached += in->attached;
        in->totals->rejected += !in->attached;
    }
    return in->attached;
}

static void *kill_after_delay(void *argument)
{
    struct timespec time = {.tv_nsec = *(const long *)argument};
    nanosleep(&time, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Forks a child that holds the descriptors of its parent for a short time. */
static void fork_child(void)
{
    if (fork() == 0) {
        struct timespec time = {.tv_nsec = 50000000};
        nanosleep(&time, NULL);
        _exit(0);
    }
}

static void run_session(struct intruder *in, unsigned rounds, bool verbose)
{
    struct rng *rng = &in->rng;
    static long delay_ns;
    pthread_t thread;
    uint64_t end = rng_below(rng, 4);
    if (end == 0) {
        delay_ns = (long)rng_below(rng, 5000000);
        if (pthread_create(&thread, NULL, kill_after_delay, &delay_ns) != 0)
            _exit(4);
    }
    while (rounds-- > 0) {
        bool by_memory = rng_below(rng, 2) == 0;
        const struct round *round =
            by_memory ? &MEMORY_ROUNDS[rng_below(rng, MEMORY_ROUND_COUNT)]
                      : &SOCKET_ROUNDS[rng_below(rng, SOCKET_ROUND_COUNT)];
        if (verbose) {
            printf("round: %s\n", round->name);
            fflush(stdout);
        }
        if (ensure_attached(in)) {
            round->run(in);
            in->totals->completions += in->app.next_completion;
            in->totals->rounds++;
        }
    }
    if (end == 1)
        fork_child();
    _exit(0);
}

static long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Whether an ordinary application can attach and make calls within the timeout. */
static bool is_served(const char *socket, const char *device)
{
    struct attached app;
    struct message message;
    long started = now_ms();
    /* The process may not have released killed applications yet. */
    while (!attach(&app, socket, device, TIMEOUT_MS))
        if (now_ms() - started > TIMEOUT_MS)
            return false;
    uint64_t vi = create_vi(&app, app.calls, 2);
    begin(&message, DESTROY_VI);
    put_number(&message, vi);
    bool served = vi != 0 && ask(app.calls, &message, TIMEOUT_MS) && get_number(&message) == DONE;
    detach(&app);
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
    struct totals *totals =
        mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (totals == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    while (totals->rounds < rounds) {
        struct intruder in = {.totals = totals, .socket = argv[1], .device = argv[2]};
        in.rng.state = seed * 0x9E3779B97F4A7C15u ^ first;
        unsigned length = 1 + (unsigned)rng_below(&in.rng, MAX_SESSION_ROUNDS);
        in.name = (uint32_t)getpid() << 16 ^ (uint32_t)first << 4;
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 2;
        }
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            /* Allows the process to access the memory of the session. */
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
            alarm(MAX_SESSION_S);
            run_session(&in, length, alone);
        }
        int status = 0;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        died += killed;
        if (!killed && status != 0) {
            printf("failed: the session from round %llu ended with status %#x\n",
                   (unsigned long long)first, (unsigned)status);
            return 1;
        }
        long started = now_ms();
        if (!is_served(argv[1], argv[2])) {
            printf("failed: after the session from round %llu an application is not served\n",
                   (unsigned long long)first);
            return 1;
        }
        if (now_ms() - started > longest)
            longest = now_ms() - started;
        first += length;
    }
    printf("count killed %llu\ncount longest_ms %ld\n", (unsigned long long)died, longest);
    printf("count rounds %lu\ncount attached %lu\ncount rejected %lu\ncount connections_closed %lu\n"
           "count pairs %lu\ncount regions %lu\ncount completions %lu\ncount captures %lu\n",
           totals->rounds, totals->attached, totals->rejected, totals->connections_closed, totals->pairs,
           totals->regions, totals->completions, totals->captures);
    return 0;
}
