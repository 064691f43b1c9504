#define _GNU_SOURCE
#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

uint64_t rng_next(struct rng *rng)
{
    uint64_t z = rng->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t rng_below(struct rng *rng, uint64_t limit)
{
    return rng_next(rng) % limit;
}

uint64_t rng_edge(struct rng *rng, uint64_t near)
{
    switch (rng_below(rng, 8)) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX - rng_below(rng, 3);
    case 2:
        return (uint64_t)1 << rng_below(rng, 64);
    case 3:
        return ((uint64_t)1 << rng_below(rng, 64)) - 1;
    case 4:
        return UINT32_MAX - rng_below(rng, 3);
    case 5:
        return near + rng_below(rng, 9) - 4;
    case 6:
        return near ^ (uint64_t)1 << rng_below(rng, 64);
    default:
        return rng_next(rng);
    }
}

void put_number(struct message *message, uint64_t number)
{
    do {
        uint8_t byte = number & 0x7F;
        number >>= 7;
        message->bytes[message->length++] = byte | (number != 0 ? 0x80 : 0);
    } while (number != 0);
}

void put_bytes(struct message *message, const void *bytes, size_t count)
{
    memcpy(message->bytes + message->length, bytes, count);
    message->length += count;
}

void begin(struct message *message, enum request request)
{
    message->length = 0;
    message->at = 0;
    message->fd_count = 0;
    put_number(message, request);
}

uint64_t get_number(struct message *message)
{
    uint64_t number = 0;
    for (unsigned shift = 0; shift < 64 && message->at < message->length; shift += 7) {
        uint8_t byte = message->bytes[message->at++];
        number |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            break;
    }
    return number;
}

bool get_bytes(struct message *message, void *to, size_t count)
{
    if (message->length - message->at < count)
        return false;
    memcpy(to, message->bytes + message->at, count);
    message->at += count;
    return true;
}

void close_fds(struct message *message)
{
    for (int i = 0; i < message->fd_count; i++)
        close(message->fds[i]);
    message->fd_count = 0;
}

int connect_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

bool send_message(int socket, const struct message *message)
{
    char control_buffer[CMSG_SPACE(sizeof message->fds)] = {0};
    struct iovec piece = {(void *)message->bytes, message->length};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
    if (message->fd_count > 0) {
        size_t bytes = sizeof(int) * (size_t)message->fd_count;
        header.msg_control = control_buffer;
        header.msg_controllen = CMSG_SPACE(bytes);
        struct cmsghdr *first = CMSG_FIRSTHDR(&header);
        first->cmsg_level = SOL_SOCKET;
        first->cmsg_type = SCM_RIGHTS;
        first->cmsg_len = CMSG_LEN(bytes);
        memcpy(CMSG_DATA(first), message->fds, bytes);
    }
    return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

bool receive_message(int socket, struct message *message, int limit_ms)
{
    struct pollfd waits = {.fd = socket, .events = POLLIN};
    message->length = message->at = 0;
    message->fd_count = 0;
    if (poll(&waits, 1, limit_ms) <= 0)
        return false;
    char control_buffer[CMSG_SPACE(sizeof message->fds)];
    struct iovec piece = {message->bytes, sizeof message->bytes};
    struct msghdr header = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control_buffer, .msg_controllen = sizeof control_buffer};
    ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got <= 0)
        return false;
    message->length = (size_t)got;
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    if (first != NULL && first->cmsg_type == SCM_RIGHTS) {
        message->fd_count = (int)((first->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(message->fds, CMSG_DATA(first), sizeof(int) * (size_t)message->fd_count);
    }
    return true;
}

bool ask(int socket, struct message *message, int limit_ms)
{
    return socket >= 0 && send_message(socket, message) && receive_message(socket, message, limit_ms);
}

/* Upper limit for one reply of the process on a busy machine. */
#define TIMEOUT_MS 20000

uint64_t ask_handle(int socket, struct message *message)
{
    if (!ask(socket, message, TIMEOUT_MS))
        return 0;
    uint64_t kind = get_number(message);
    return kind == HANDLE || kind == REGION ? get_number(message) : 0;
}

int join(const struct attached *app, const char *path, int limit_ms)
{
    struct message message;
    int socket = connect_socket(path);
    if (socket < 0)
        return -1;
    begin(&message, JOIN);
    put_number(&message, VERSION);
    put_bytes(&message, app->key, sizeof app->key);
    if (ask(socket, &message, limit_ms) && get_number(&message) == DONE)
        return socket;
    close(socket);
    return -1;
}

bool ask_for_rings(int socket, struct message *message, const char *device, int limit_ms)
{
    begin(message, ATTACH);
    put_number(message, VERSION);
    put_number(message, strlen(device));
    put_bytes(message, device, strlen(device));
    if (!ask(socket, message, limit_ms))
        return false;
    if (get_number(message) == RINGS && message->fd_count == 2)
        return true;
    close_fds(message);
    return false;
}

/* Maps the received rings and prepares the message RINGS_MAPPED. */
static bool map_rings(struct attached *app, struct message *message)
{
    struct stat status;
    app->rings_fd = message->fds[0];
    app->waker = message->fds[1];
    if (fstat(app->rings_fd, &status) != 0)
        return false;
    app->rings_bytes = (size_t)status.st_size;
    app->rings =
        mmap(NULL, app->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, app->rings_fd, 0);
    if (app->rings == MAP_FAILED) {
        app->rings = NULL;
        return false;
    }
    uint64_t sizes = ((const volatile uint64_t *)app->rings)[1];
    app->submission_slots = (uint32_t)(sizes >> 32);
    app->completion_slots = (uint32_t)sizes;
    app->inline_buffers = (uint32_t)((const volatile uint64_t *)app->rings)[2];
    begin(message, RINGS_MAPPED);
    return true;
}

/* Parses the reply to RINGS_MAPPED. */
static bool parse_attached(struct attached *app, struct message *message)
{
    uint8_t name[256];
    if (get_number(message) != ATTACHED)
        return false;
    get_bytes(message, app->key, sizeof app->key);
    size_t length = get_number(message);
    return length <= sizeof name && get_bytes(message, name, length) &&
           get_bytes(message, app->host, sizeof app->host);
}

bool attach(struct attached *app, const char *path, const char *device, int limit_ms)
{
    struct message message;
    memset(app, 0, sizeof *app);
    app->calls = app->rings_fd = app->waker = -1;
    app->control = connect_socket(path);
    if (app->control < 0)
        return false;
    if (ask_for_rings(app->control, &message, device, limit_ms) && map_rings(app, &message) &&
        ask(app->control, &message, limit_ms) && parse_attached(app, &message)) {
        app->calls = join(app, path, limit_ms);
        begin(&message, OPEN);
        app->nic = ask_handle(app->calls, &message);
        begin(&message, CREATE_PTAG);
        put_number(&message, app->nic);
        app->ptag = ask_handle(app->calls, &message);
        if (app->nic != 0)
            return true;
    }
    detach(app);
    return false;
}

void detach(struct attached *app)
{
    int fds[] = {app->control, app->calls, app->rings_fd, app->waker};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (app->rings != NULL)
        munmap(app->rings, app->rings_bytes);
    app->control = app->calls = app->rings_fd = app->waker = -1;
    app->rings = NULL;
    app->vi_count = 0;
}

void put_settings(struct message *message, uint64_t ptag)
{
    put_number(message, ptag != 0);
    if (ptag != 0)
        put_number(message, ptag);
    put_number(message, 1);
    put_number(message, 1);
}

uint64_t create_vi(struct attached *app, int socket, unsigned reliability)
{
    struct message message;
    begin(&message, CREATE_VI);
    put_number(&message, app->nic);
    put_number(&message, reliability);
    put_number(&message, 65536);
    put_number(&message, 0);
    put_settings(&message, app->ptag);
    uint64_t vi = ask_handle(socket, &message);
    if (vi != 0 && app->vi_count < MAX_VIS)
        app->vis[app->vi_count++] = vi;
    return vi;
}

uint32_t register_memory(struct attached *app, int socket, uint64_t address, uint64_t length, int fd)
{
    struct message message;
    begin(&message, REGISTER);
    put_number(&message, app->nic);
    put_number(&message, address);
    put_number(&message, length);
    put_settings(&message, app->ptag);
    put_number(&message, 1);
    put_number(&message, fd >= 0);
    if (fd >= 0) {
        put_number(&message, 0);
        message.fds[message.fd_count++] = fd;
    }
    put_number(&message, 0); /* no copy */
    return (uint32_t)ask_handle(socket, &message);
}

void put_address(struct message *message, const uint8_t host[16], const void *name, size_t length)
{
    put_bytes(message, host, 16);
    put_number(message, length);
    put_bytes(message, name, length);
}

void put_limit(struct message *message, unsigned milliseconds)
{
    put_number(message, 1);
    put_number(message, milliseconds / 1000);
    put_number(message, milliseconds % 1000 * 1000000);
}

struct waiter {
    struct attached *app;
    int socket;
    uint64_t vi;
    uint32_t name;
};

static void *wait_and_accept(void *argument)
{
    struct waiter *waiter = argument;
    struct message message;
    begin(&message, CONNECT_WAIT);
    put_number(&message, waiter->app->nic);
    put_address(&message, waiter->app->host, &waiter->name, sizeof waiter->name);
    put_limit(&message, 500);
    if (!ask(waiter->socket, &message, TIMEOUT_MS) || get_number(&message) != REQUEST)
        return NULL;
    uint64_t conn = get_number(&message);
    begin(&message, CONNECT_ACCEPT);
    put_number(&message, conn);
    put_number(&message, waiter->vi);
    ask(waiter->socket, &message, TIMEOUT_MS);
    return NULL;
}

bool connect_pair(struct attached *app, const char *path, uint64_t one, uint64_t two, uint32_t name)
{
    struct waiter waiter = {app, join(app, path, TIMEOUT_MS), two, name};
    struct message message;
    pthread_t thread;
    if (waiter.socket < 0 || pthread_create(&thread, NULL, wait_and_accept, &waiter) != 0)
        return false;
    bool connected = false;
    /* The waiter may not be listening yet. */
    for (unsigned tries = 0; tries < 100 && !connected; tries++) {
        struct timespec moment = {.tv_nsec = 200000};
        begin(&message, CONNECT);
        put_number(&message, one);
        put_address(&message, app->host, &name, 0);
        put_address(&message, app->host, &name, sizeof name);
        put_limit(&message, 500);
        if (!ask(app->calls, &message, TIMEOUT_MS))
            break;
        connected = get_number(&message) == ATTRIBUTES;
        nanosleep(&moment, NULL);
    }
    pthread_join(thread, NULL);
    close(waiter.socket);
    return connected;
}

static uint64_t index_of(uint64_t vi)
{
    return vi & 0xFFFF;
}

static uint64_t generation_of(uint64_t vi)
{
    return vi >> 24 & 0xFFFFFF;
}

/* Wakes the process; errors are ignored. */
static void wake_process(int waker)
{
    uint64_t one = 1;
    if (write(waker, &one, sizeof one) < 0)
        return;
}

void submit(struct attached *app, const struct submission *submission)
{
    uint32_t at = app->next_submission & (app->submission_slots - 1);
    uint64_t lap = app->next_submission / app->submission_slots + 1;
    uint64_t *words = (uint64_t *)(void *)(app->rings + RINGS_HEADER + (size_t)at * SUBMISSION_BYTES);
    __atomic_store_n(words + 1,
                     (uint64_t)submission->control << 48 | (uint64_t)(submission->segments & 0xFFFF) << 32 |
                         submission->length,
                     __ATOMIC_RELAXED);
    __atomic_store_n(words + 2, submission->remote_address, __ATOMIC_RELAXED);
    __atomic_store_n(words + 3, (uint64_t)submission->remote_handle << 32 | submission->immediate,
                     __ATOMIC_RELAXED);
    __atomic_store_n(words + 4, (uint64_t)submission->fault << 32 | generation_of(submission->vi),
                     __ATOMIC_RELAXED);
    __atomic_store_n(words + 5, submission->address, __ATOMIC_RELAXED);
    __atomic_store_n(words + 6, (uint64_t)submission->handle << 32 | submission->segment_length,
                     __ATOMIC_RELAXED);
    __atomic_store_n(words + 7, submission->inline_buffer, __ATOMIC_RELAXED);
    __atomic_store_n(words, lap << 32 | index_of(submission->vi) << 16 | submission->kind, __ATOMIC_RELEASE);
    app->next_submission++;
    uint32_t *sleeps = (uint32_t *)(void *)(app->rings + AT_PROCESS_SLEEPS);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_exchange_n(sleeps, 0, __ATOMIC_RELAXED) != 0)
        wake_process(app->waker);
}

unsigned take_completions(struct attached *app)
{
    unsigned taken = 0;
    const uint8_t *ring = app->rings + RINGS_HEADER + (size_t)app->submission_slots * SUBMISSION_BYTES;
    for (; taken < app->completion_slots; taken++) {
        uint32_t at = app->next_completion & (app->completion_slots - 1);
        const uint64_t *entry = (const void *)(ring + (size_t)at * COMPLETION_BYTES);
        uint64_t lap = app->next_completion / app->completion_slots + 1;
        if (__atomic_load_n(entry, __ATOMIC_ACQUIRE) >> 32 != lap)
            break;
        app->next_completion++;
    }
    uint32_t *taken_count = (uint32_t *)(void *)(app->rings + AT_COMPLETIONS_TAKEN);
    __atomic_store_n(taken_count, app->next_completion, __ATOMIC_RELEASE);
    return taken;
}
