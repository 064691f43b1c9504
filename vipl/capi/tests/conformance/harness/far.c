#define _GNU_SOURCE

#include "far.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "errors.h"
#include "message.h"

extern char **environ;

enum {
    DOORS = 6,      /* calls that can be on their way at a time */
    HANDLES = 8192, /* of the far process, over a whole run */
    WORDS = 32,
};

/*
 * Free in every process that Linux starts, and where valgrind puts nothing: far below the libraries
 * and far above programs.
 */
#define SHARED_BASE ((void *)0x030000000000ull)
#define SHARED_BYTES ((size_t)256 << 20)

static pid_t process;
static int life = -1; /* open as long as the far process shall live */
static int memory = -1;
static size_t shared_used;
static unsigned shared_pieces;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t door_free = PTHREAD_COND_INITIALIZER;
static struct {
    int socket;
    bool busy;
} doors[DOORS];
static VIP_PVOID handles[HANDLES];
static unsigned handle_count;

/* --- the process ----------------------------------------------------------------------------- */

bool far_exists(void)
{
    return getenv("VIPL_TEST_PEER") != NULL;
}

static void map_shared(void)
{
    void *mapped = mmap(SHARED_BASE, SHARED_BYTES, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED_NOREPLACE, memory, 0);

    REQUIRE(mapped == SHARED_BASE, "memory that both processes see (%s)", strerror(errno));
}

/* Fills in one word of the far process's command: a number. */
static char *number(char *text, size_t bytes, int value)
{
    snprintf(text, bytes, "%d", value);
    return text;
}

static void spawn(const int *far_sockets, int far_life)
{
    static char prefix[4096], own[4096], numbers[DOORS + 2][16];
    char *words[WORDS];
    unsigned count = 0;
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);

    REQUIRE(length > 0 && strlen(getenv("VIPL_TEST_PEER")) < sizeof prefix, "names of programs");
    own[length] = '\0';
    strcpy(prefix, getenv("VIPL_TEST_PEER"));
    for (char *word = strtok(prefix, " "); word != NULL; word = strtok(NULL, " ")) {
        REQUIRE(count + DOORS + 5 < WORDS, "room for the words of VIPL_TEST_PEER");
        words[count++] = word;
    }
    words[count++] = own;
    words[count++] = "--far";
    words[count++] = number(numbers[0], sizeof numbers[0], memory);
    words[count++] = number(numbers[1], sizeof numbers[1], far_life);
    for (unsigned n = 0; n < DOORS; n++)
        words[count++] = number(numbers[n + 2], sizeof numbers[0], far_sockets[n]);
    words[count] = NULL;
    REQUIRE(posix_spawnp(&process, words[0], NULL, NULL, words, environ) == 0,
            "the far process starts");
}

void far_start(void)
{
    int sockets[DOORS], ends[2], lives[2];

    if (!far_exists())
        return;
    if (memory < 0) {
        memory = memfd_create("vipl-test", 0);
        REQUIRE(memory >= 0 && ftruncate(memory, (off_t)SHARED_BYTES) == 0, "shared memory");
        map_shared();
    }
    REQUIRE(pipe(lives) == 0 && fcntl(lives[1], F_SETFD, FD_CLOEXEC) == 0, "a pipe");
    for (unsigned n = 0; n < DOORS; n++) {
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 &&
                    fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0,
                "a pair of sockets");
        doors[n].socket = ends[0];
        doors[n].busy = false;
        sockets[n] = ends[1];
    }
    spawn(sockets, lives[0]);
    for (unsigned n = 0; n < DOORS; n++)
        close(sockets[n]);
    close(lives[0]);
    life = lives[1];
}

static void reap(int expected_signal)
{
    int status = 0;

    REQUIRE(waitpid(process, &status, 0) == process, "the far process ends");
    if (expected_signal != 0)
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == expected_signal, "it was killed");
    else
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "the far process ends in good order (status 0x%x)", status);
    for (unsigned n = 0; n < DOORS; n++)
        close(doors[n].socket);
    process = 0;
}

void far_stop(void)
{
    if (process == 0)
        return;
    close(life);
    reap(0);
}

void far_kill(void)
{
    REQUIRE(process != 0 && kill(process, SIGKILL) == 0, "the far process is killed");
    reap(SIGKILL);
    close(life);
}

/* --- shared memory --------------------------------------------------------------------------- */

void *shared_get(size_t bytes)
{
    const size_t whole = (bytes + 4095) / 4096 * 4096;
    void *piece;

    pthread_mutex_lock(&lock);
    if (shared_pieces == 0)
        shared_used = 0;
    piece = (unsigned char *)SHARED_BASE + shared_used;
    shared_used += whole + 4096; /* a page that belongs to nobody, as behind other memory */
    shared_pieces++;
    pthread_mutex_unlock(&lock);
    REQUIRE(shared_used <= SHARED_BYTES, "room in the shared memory");
    memset(piece, 0, bytes);
    return piece;
}

void shared_put(void *piece, size_t bytes)
{
    /* Its pages go back to the system; what is used next is new. */
    CHECK(madvise(piece, (bytes + 4095) / 4096 * 4096, MADV_REMOVE) == 0, "pages are given back");
    pthread_mutex_lock(&lock);
    shared_pieces--;
    pthread_mutex_unlock(&lock);
}

/* --- handles --------------------------------------------------------------------------------- */

bool far_handle(VIP_PVOID handle)
{
    return (VIP_PVOID *)handle >= handles && (VIP_PVOID *)handle < handles + HANDLES;
}

/* What the far process calls it. */
static VIP_PVOID there_called(VIP_PVOID handle)
{
    return far_handle(handle) ? *(VIP_PVOID *)handle : handle;
}

/* What we call it. */
static VIP_PVOID here_called(VIP_PVOID value)
{
    unsigned n = 0;

    if (value == NULL)
        return NULL;
    pthread_mutex_lock(&lock);
    while (n < handle_count && handles[n] != value)
        n++;
    if (n == handle_count && n < HANDLES)
        handles[handle_count++] = value;
    pthread_mutex_unlock(&lock);
    REQUIRE(n < HANDLES, "room for the far process's handles");
    return &handles[n];
}

/* --- asking ---------------------------------------------------------------------------------- */

static unsigned take_door(void)
{
    unsigned n = DOORS;

    pthread_mutex_lock(&lock);
    while (n == DOORS) {
        n = 0;
        while (n < DOORS && doors[n].busy)
            n++;
        if (n == DOORS)
            pthread_cond_wait(&door_free, &lock);
    }
    doors[n].busy = true;
    pthread_mutex_unlock(&lock);
    return n;
}

/* Has the far process make a call; its handles become ours. */
VIP_RETURN far_ask(Message *message)
{
    const unsigned door = take_door();
    ssize_t moved;

    for (unsigned n = 0; n < MESSAGE_HANDLES; n++)
        message->handles[n] = there_called(message->handles[n]);
    message->vi_attributes.Ptag = there_called(message->vi_attributes.Ptag);
    message->mem_attributes.Ptag = there_called(message->mem_attributes.Ptag);
    moved = send(doors[door].socket, message, sizeof *message, MSG_NOSIGNAL);
    if (moved == (ssize_t)sizeof *message)
        moved = recv(doors[door].socket, message, sizeof *message, MSG_WAITALL);
    REQUIRE(moved == (ssize_t)sizeof *message, "the far process answers");
    pthread_mutex_lock(&lock);
    doors[door].busy = false;
    pthread_cond_signal(&door_free);
    pthread_mutex_unlock(&lock);
    if (message->out != NULL)
        message->out = here_called(message->out);
    return message->answer;
}

bool far_error_wait(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found)
{
    Message message = {.call = ERROR_WAIT, .handles = {vi}, .code = code};

    if (far_ask(&message) != VIP_SUCCESS)
        return false;
    if (found != NULL) {
        *found = message.error;
        found->NicHandle = here_called(found->NicHandle);
        found->ViHandle = here_called(found->ViHandle);
        if (found->CQHandle != NULL)
            found->CQHandle = here_called(found->CQHandle);
    }
    return true;
}

unsigned far_errors_of(VIP_VI_HANDLE vi, VIP_ERROR_CODE code)
{
    Message message = {.call = ERRORS_OF, .handles = {vi}, .code = code};

    far_ask(&message);
    return (unsigned)message.number;
}

void far_errors_catch(VIP_NIC_HANDLE nic)
{
    Message message = {.call = ERRORS_CATCH, .handles = {nic}};

    REQUIRE_RETURN(far_ask(&message), VIP_SUCCESS);
}

void far_errors_forget(void)
{
    Message message = {.call = ERRORS_FORGET};

    if (process != 0)
        far_ask(&message);
}

/* --- the far process itself ------------------------------------------------------------------ */

static void *serve_door(void *argument)
{
    const int *socket = argument;
    Message message;

    while (recv(*socket, &message, sizeof message, MSG_WAITALL) == (ssize_t)sizeof message) {
        message.out = NULL;
        message_answer(&message);
        if (send(*socket, &message, sizeof message, MSG_NOSIGNAL) != (ssize_t)sizeof message)
            break;
    }
    return NULL;
}

int far_serve(int count, char **words)
{
    static int sockets[DOORS];
    pthread_t thread;
    char byte;

    REQUIRE(count == DOORS + 4, "the words that the near process gives");
    memory = atoi(words[2]);
    map_shared();
    for (unsigned n = 0; n < DOORS; n++) {
        sockets[n] = atoi(words[n + 4]);
        REQUIRE(pthread_create(&thread, NULL, serve_door, &sockets[n]) == 0, "a thread");
    }
    /* Until the near process lets go. Whatever is open then stays open. */
    while (read(atoi(words[3]), &byte, 1) < 0 && errno == EINTR) {
    }
    return EXIT_SUCCESS;
}
