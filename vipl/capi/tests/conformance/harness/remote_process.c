#define _GNU_SOURCE

#include "remote_process.h"

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
#include "remote_message.h"

extern char **environ;

enum {
    CHANNELS = 6,   /* maximum number of concurrent calls */
    HANDLES = 8192, /* maximum number of remote handles in a run */
    MAX_ARGUMENTS = 32,
};

/*
 * Unused in every process on Linux, also under valgrind: below the libraries and above programs.
 */
#define SHARED_BASE ((void *)0x030000000000ull)
#define SHARED_BYTES ((size_t)256 << 20)

static pid_t process;
static int stop_pipe = -1; /* the remote process exits when it is closed */
static int memory = -1;
static size_t shared_used;
static unsigned shared_pieces;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t channel_free = PTHREAD_COND_INITIALIZER;
static struct {
    int socket;
    bool busy;
} channels[CHANNELS];
static VIP_PVOID handles[HANDLES];
static unsigned handle_count;

/* --- the process ----------------------------------------------------------------------------- */

bool has_remote_process(void)
{
    return getenv("VIPL_TEST_PEER") != NULL;
}

static void map_shared(void)
{
    void *mapped = mmap(SHARED_BASE, SHARED_BYTES, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED_NOREPLACE, memory, 0);

    REQUIRE(mapped == SHARED_BASE, "memory is mapped in both processes (%s)", strerror(errno));
}

/* Formats a numeric argument of the remote process. */
static char *number(char *text, size_t bytes, int value)
{
    snprintf(text, bytes, "%d", value);
    return text;
}

static void spawn(const int *remote_sockets, int remote_stop_pipe)
{
    static char prefix[4096], program[4096], numbers[CHANNELS + 2][16];
    char *argv[MAX_ARGUMENTS];
    unsigned argc = 0;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);

    REQUIRE(length > 0 && strlen(getenv("VIPL_TEST_PEER")) < sizeof prefix,
            "the paths fit the buffers");
    program[length] = '\0';
    strcpy(prefix, getenv("VIPL_TEST_PEER"));
    for (char *word = strtok(prefix, " "); word != NULL; word = strtok(NULL, " ")) {
        REQUIRE(argc + CHANNELS + 5 < MAX_ARGUMENTS, "VIPL_TEST_PEER has too many words");
        argv[argc++] = word;
    }
    argv[argc++] = program;
    argv[argc++] = "--remote-process";
    argv[argc++] = number(numbers[0], sizeof numbers[0], memory);
    argv[argc++] = number(numbers[1], sizeof numbers[1], remote_stop_pipe);
    for (unsigned n = 0; n < CHANNELS; n++)
        argv[argc++] = number(numbers[n + 2], sizeof numbers[0], remote_sockets[n]);
    argv[argc] = NULL;
    REQUIRE(posix_spawnp(&process, argv[0], NULL, NULL, argv, environ) == 0,
            "the remote process starts");
}

void remote_process_start(void)
{
    int sockets[CHANNELS], ends[2], stop_pipes[2];

    if (!has_remote_process())
        return;
    if (memory < 0) {
        memory = memfd_create("vipl-test", 0);
        REQUIRE(memory >= 0 && ftruncate(memory, (off_t)SHARED_BYTES) == 0, "shared memory");
        map_shared();
    }
    REQUIRE(pipe(stop_pipes) == 0 && fcntl(stop_pipes[1], F_SETFD, FD_CLOEXEC) == 0, "a pipe");
    for (unsigned n = 0; n < CHANNELS; n++) {
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 &&
                    fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0,
                "a pair of sockets");
        channels[n].socket = ends[0];
        channels[n].busy = false;
        sockets[n] = ends[1];
    }
    spawn(sockets, stop_pipes[0]);
    for (unsigned n = 0; n < CHANNELS; n++)
        close(sockets[n]);
    close(stop_pipes[0]);
    stop_pipe = stop_pipes[1];
}

static void reap(int expected_signal)
{
    int status = 0;

    REQUIRE(waitpid(process, &status, 0) == process, "the remote process ends");
    if (expected_signal != 0)
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == expected_signal, "it was killed");
    else
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "the remote process exits with success (status 0x%x)", status);
    for (unsigned n = 0; n < CHANNELS; n++)
        close(channels[n].socket);
    process = 0;
}

void remote_process_stop(void)
{
    if (process == 0)
        return;
    close(stop_pipe);
    reap(0);
}

void remote_process_kill(void)
{
    REQUIRE(process != 0 && kill(process, SIGKILL) == 0, "the remote process is killed");
    reap(SIGKILL);
    close(stop_pipe);
}

/* --- shared memory --------------------------------------------------------------------------- */

void *shared_alloc(size_t bytes)
{
    const size_t whole = (bytes + 4095) / 4096 * 4096;
    void *piece;

    pthread_mutex_lock(&lock);
    if (shared_pieces == 0)
        shared_used = 0;
    piece = (unsigned char *)SHARED_BASE + shared_used;
    shared_used += whole + 4096; /* an unused page between allocations */
    shared_pieces++;
    pthread_mutex_unlock(&lock);
    REQUIRE(shared_used <= SHARED_BYTES, "the shared memory is not exhausted");
    memset(piece, 0, bytes);
    return piece;
}

void shared_free(void *piece, size_t bytes)
{
    /* Returns the pages to the system, so that they are zeroed for the next use. */
    CHECK(madvise(piece, (bytes + 4095) / 4096 * 4096, MADV_REMOVE) == 0,
          "pages are returned to the system");
    pthread_mutex_lock(&lock);
    shared_pieces--;
    pthread_mutex_unlock(&lock);
}

/* --- handles --------------------------------------------------------------------------------- */

bool is_remote_handle(VIP_PVOID handle)
{
    return (VIP_PVOID *)handle >= handles && (VIP_PVOID *)handle < handles + HANDLES;
}

/* Converts a local representation to the handle of the remote process. */
static VIP_PVOID to_remote_handle(VIP_PVOID handle)
{
    return is_remote_handle(handle) ? *(VIP_PVOID *)handle : handle;
}

/* Converts a handle of the remote process to its local representation. */
static VIP_PVOID to_local_handle(VIP_PVOID value)
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
    REQUIRE(n < HANDLES, "the table of remote handles is not full");
    return &handles[n];
}

/* --- calls ----------------------------------------------------------------------------------- */

static unsigned acquire_channel(void)
{
    unsigned n = CHANNELS;

    pthread_mutex_lock(&lock);
    while (n == CHANNELS) {
        n = 0;
        while (n < CHANNELS && channels[n].busy)
            n++;
        if (n == CHANNELS)
            pthread_cond_wait(&channel_free, &lock);
    }
    channels[n].busy = true;
    pthread_mutex_unlock(&lock);
    return n;
}

/* Executes a call in the remote process, with handles converted in both directions. */
VIP_RETURN remote_call(RemoteMessage *message)
{
    const unsigned channel = acquire_channel();
    ssize_t moved;

    for (unsigned n = 0; n < MESSAGE_HANDLES; n++)
        message->handles[n] = to_remote_handle(message->handles[n]);
    message->vi_attributes.Ptag = to_remote_handle(message->vi_attributes.Ptag);
    message->mem_attributes.Ptag = to_remote_handle(message->mem_attributes.Ptag);
    moved = send(channels[channel].socket, message, sizeof *message, MSG_NOSIGNAL);
    if (moved == (ssize_t)sizeof *message)
        moved = recv(channels[channel].socket, message, sizeof *message, MSG_WAITALL);
    REQUIRE(moved == (ssize_t)sizeof *message, "the remote process responds");
    pthread_mutex_lock(&lock);
    channels[channel].busy = false;
    pthread_cond_signal(&channel_free);
    pthread_mutex_unlock(&lock);
    if (message->out != NULL)
        message->out = to_local_handle(message->out);
    return message->result;
}

bool remote_error_wait(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found)
{
    RemoteMessage message = {.call = ERROR_WAIT, .handles = {vi}, .code = code};

    if (remote_call(&message) != VIP_SUCCESS)
        return false;
    if (found != NULL) {
        *found = message.error;
        found->NicHandle = to_local_handle(found->NicHandle);
        found->ViHandle = to_local_handle(found->ViHandle);
        if (found->CQHandle != NULL)
            found->CQHandle = to_local_handle(found->CQHandle);
    }
    return true;
}

unsigned remote_errors_count(VIP_VI_HANDLE vi, VIP_ERROR_CODE code)
{
    RemoteMessage message = {.call = ERRORS_COUNT, .handles = {vi}, .code = code};

    remote_call(&message);
    return (unsigned)message.number;
}

void remote_errors_register(VIP_NIC_HANDLE nic)
{
    RemoteMessage message = {.call = ERRORS_REGISTER, .handles = {nic}};

    REQUIRE_RETURN(remote_call(&message), VIP_SUCCESS);
}

void remote_errors_clear(void)
{
    RemoteMessage message = {.call = ERRORS_CLEAR};

    if (process != 0)
        remote_call(&message);
}

/* --- in the remote process ------------------------------------------------------------------- */

static void *serve_channel(void *argument)
{
    const int *socket = argument;
    RemoteMessage message;

    while (recv(*socket, &message, sizeof message, MSG_WAITALL) == (ssize_t)sizeof message) {
        message.out = NULL;
        message_execute(&message);
        if (send(*socket, &message, sizeof message, MSG_NOSIGNAL) != (ssize_t)sizeof message)
            break;
    }
    return NULL;
}

int remote_process_serve(int argc, char **argv)
{
    static int sockets[CHANNELS];
    pthread_t thread;
    char byte;

    REQUIRE(argc == CHANNELS + 4, "the arguments of the remote process");
    memory = atoi(argv[2]);
    map_shared();
    for (unsigned n = 0; n < CHANNELS; n++) {
        sockets[n] = atoi(argv[n + 4]);
        REQUIRE(pthread_create(&thread, NULL, serve_channel, &sockets[n]) == 0, "a thread");
    }
    /* Until the local process closes the stop pipe. Open objects are not closed. */
    while (read(atoi(argv[3]), &byte, 1) < 0 && errno == EINTR) {
    }
    return EXIT_SUCCESS;
}
