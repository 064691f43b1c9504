/* Rounds that attack through messages: content, order, descriptors and number. */
#define _GNU_SOURCE
#include "rounds.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define TIMEOUT_MS 20000

/* Returns an own handle, a similar one, one of another kind, or any number. */
static uint64_t random_handle(struct intruder *in)
{
    struct rng *rng = &in->rng;
    uint64_t own[] = {in->app.nic, in->app.ptag,
                      in->app.vi_count > 0 ? in->app.vis[rng_below(rng, in->app.vi_count)]
                                           : in->app.nic};
    uint64_t handle = own[rng_below(rng, 3)];
    switch (rng_below(rng, 6)) {
    case 0:
        return handle;
    case 1: /* Another index. */
        return handle + rng_below(rng, 9) - 4;
    case 2: /* Another generation. */
        return handle + ((rng_below(rng, 9) - 4) << 24);
    case 3: /* Another kind of object. */
        return (handle & UINT64_MAX >> 4) | rng_below(rng, 16) << 60;
    case 4: /* On another NIC. */
        return handle + ((rng_below(rng, 5) - 2) << 48);
    default:
        return rng_edge(rng, handle);
    }
}

/* Appends an address; a discriminator of more than 44 bytes makes the message malformed, which ends the connection. */
static void put_random_address(struct intruder *in, struct message *message)
{
    uint8_t name[300];
    static const uint64_t LIMITS[] = {16, 16, 16, 45, 45, 45, 45, 300};
    size_t length = rng_below(&in->rng, LIMITS[rng_below(&in->rng, 8)]);
    memset(name, (int)rng_below(&in->rng, 256), length);
    put_address(message, in->app.host, name, length);
}

/* Appends a capture request for all frames or one N_Port_ID, and a small buffer: only the user of the process may
 * capture, so that large buffers are no attack. */
static void put_capture(struct intruder *in, struct message *message)
{
    struct rng *rng = &in->rng;
    const uint8_t n_port_id[3] = {0, (uint8_t)rng_below(rng, 4), (uint8_t)rng_below(rng, 256)};
    uint64_t has_n_port_id = rng_below(rng, 8) == 0 ? rng_edge(rng, 1) : rng_below(rng, 2);
    put_number(message, VERSION);
    put_number(message, strlen(in->device));
    put_bytes(message, in->device, strlen(in->device));
    put_number(message, has_n_port_id);
    if (has_n_port_id != 0)
        put_bytes(message, n_port_id, sizeof n_port_id);
    put_number(message, rng_edge(rng, 64) & UINT32_MAX);
    put_number(message, rng_below(rng, 1 << 20));
    put_number(message, rng_edge(rng, 1));
}

/* Makes a well-formed request with random values. */
static void build_request(struct intruder *in, struct message *message, enum request request)
{
    struct rng *rng = &in->rng;
    begin(message, request);
    switch (request) {
    case ATTACH:
        put_number(message, VERSION);
        put_number(message, strlen(in->device));
        put_bytes(message, in->device, strlen(in->device));
        break;
    case JOIN:
        put_number(message, VERSION);
        put_bytes(message, in->app.key, sizeof in->app.key);
        break;
    case STATUS_QUERY:
        put_number(message, VERSION);
        break;
    case CAPTURE:
        put_capture(in, message);
        break;
    case OPEN:
        break;
    case REGISTER:
        put_number(message, in->app.nic);
        put_number(message, rng_edge(rng, (uint64_t)(uintptr_t)message));
        put_number(message, rng_edge(rng, 4096));
        put_settings(message, random_handle(in));
        put_number(message, rng_below(rng, 2));
        put_number(message, rng_below(rng, 2));
        if (message->bytes[message->length - 1] != 0)
            put_number(message, rng_edge(rng, 4096));
        put_number(message, rng_below(rng, 2));
        break;
    case SET_REGION:
    case DEREGISTER:
        put_number(message, in->app.nic);
        put_number(message, rng_edge(rng, 4096));
        put_number(message, rng_edge(rng, 1) & UINT32_MAX);
        if (request == SET_REGION)
            put_settings(message, random_handle(in));
        break;
    case SET_VI:
    case CREATE_VI:
        put_number(message, request == SET_VI ? random_handle(in) : in->app.nic);
        put_number(message, rng_edge(rng, 2) & UINT16_MAX);
        put_number(message, rng_edge(rng, 65536));
        put_number(message, rng_edge(rng, 0));
        put_settings(message, random_handle(in));
        break;
    case CONNECT_WAIT:
    case CONNECT:
    case CONNECT_PEER:
        put_number(message, random_handle(in));
        put_random_address(in, message);
        if (request != CONNECT_WAIT)
            put_random_address(in, message);
        put_limit(message, (unsigned)rng_below(rng, 3));
        break;
    case DESTROY_PTAG:
    case CONNECT_ACCEPT:
        put_number(message, random_handle(in));
        put_number(message, random_handle(in));
        break;
    default:
        put_number(message, random_handle(in));
    }
}

/* Sends requests with random handles. */
static void handles(struct intruder *in)
{
    for (unsigned i = 0; i < 12; i++) {
        struct message message;
        enum request request = OPEN + 1 + (unsigned)rng_below(&in->rng, REQUESTS - OPEN - 1);
        /* It would block indefinitely. */
        if (request == CONNECT_PEER_WAIT)
            continue;
        build_request(in, &message, request);
        if (!ask(in->app.calls, &message, TIMEOUT_MS))
            return;
        close_fds(&message);
    }
}

/* Sends malformed and truncated messages. */
static void bytes(struct intruder *in)
{
    struct rng *rng = &in->rng;
    struct message message;
    int socket = rng_below(rng, 2) == 0 ? connect_socket(in->socket) : in->app.calls;
    if (socket < 0)
        return;
    build_request(in, &message, (enum request)rng_below(rng, REQUESTS));
    switch (rng_below(rng, 5)) {
    case 0:
        message.length = rng_below(rng, message.length + 1);
        break;
    case 1:
        message.length += 1 + rng_below(rng, 64);
        break;
    case 2:
        message.bytes[rng_below(rng, message.length)] ^=
            (uint8_t)(1u << rng_below(rng, 8));
        break;
    case 3:
        message.length = rng_below(rng, sizeof message.bytes);
        for (size_t at = 0; at < message.length; at++)
            message.bytes[at] = (uint8_t)rng_next(rng);
        break;
    default: /* An unterminated number. */
        memset(message.bytes + 1, 0xFF, 64);
        message.length = 65;
    }
    send_message(socket, &message);
    bool has_reply = receive_message(socket, &message, (int)rng_below(rng, 3));
    close_fds(&message);
    if (socket != in->app.calls)
        close(socket);
    else if (!has_reply)
        shutdown(socket, SHUT_RDWR); /* The next round would take a late reply for its own. */
}

int shared_memory(size_t length)
{
    static const uint8_t ZEROS[65536];
    int fd = memfd_create("intruder", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool filled = fd >= 0;
    for (size_t at = 0; filled && at < length; at += sizeof ZEROS)
        filled = pwrite(fd, ZEROS, sizeof ZEROS, (off_t)at) == sizeof ZEROS;
    if (fd >= 0 && (!filled || ftruncate(fd, (off_t)length) != 0 ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Creates a TCP socket whose close blocks for the time of SO_LINGER, since its peer reads nothing; -1 on error. */
static int lingering_socket(void)
{
    static int peer = -1;
    static const char some[65536];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct linger linger = {.l_onoff = 1, .l_linger = 1};
    int small = 4096;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected;

    /* At most one: closing the old peer ends a blocking close in the process. */
    if (peer >= 0)
        close(peer);
    peer = -1;
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    connected = bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0 &&
                getsockname(listener, (struct sockaddr *)&address, &length) == 0 &&
                connect(fd, (struct sockaddr *)&address, length) == 0;
    if (connected)
        peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    close(listener);
    if (peer < 0) {
        close(fd);
        return -1;
    }
    while (send(fd, some, sizeof some, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    return fd;
}

/* Returns a descriptor that is not valid memory, or that can lose pages. */
static int random_fd(struct rng *rng)
{
    int ends[2];
    int fd;
    if (rng_below(rng, 40) == 0)
        return lingering_socket();
    switch (rng_below(rng, 12)) {
    case 0:
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    case 1:
        return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    case 2:
        return open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    case 3:
        return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    case 4:
        return pipe2(ends, O_CLOEXEC) == 0 ? (close(ends[1]), ends[0]) : -1;
    case 5:
        return eventfd(0, EFD_CLOEXEC);
    case 6: /* Can be truncated. */
        fd = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        return ftruncate(fd, 65536) == 0 ? fd : (close(fd), -1);
    case 7:
        fd = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB);
        return fd;
    case 8: /* Read-only. */
        fd = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (ftruncate(fd, 65536) == 0)
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE);
        return fd;
    case 9:
        return open("/dev/null", O_PATH | O_CLOEXEC);
    case 10: /* Shorter than its range. */
        return shared_memory(100);
    default:
        return shared_memory(65536);
    }
}

static void descriptors(struct intruder *in)
{
    struct rng *rng = &in->rng;
    struct message message;
    enum request request = REGISTER;
    if (rng_below(rng, 4) == 0)
        request = (enum request)rng_below(rng, REQUESTS);
    bool first = request < FIRST_REQUESTS;
    int socket = first ? connect_socket(in->socket) : in->app.calls;
    build_request(in, &message, request);
    if (request == REGISTER && rng_below(rng, 2) == 0) {
        begin(&message, REGISTER);
        put_number(&message, in->app.nic);
        put_number(&message, 0x10000000 + rng_below(rng, 16) * 256);
        put_number(&message, rng_below(rng, 80000));
        put_settings(&message, in->app.ptag);
        put_number(&message, 1);
        put_number(&message, rng_below(rng, 4) == 0 ? rng_edge(rng, 4096) : 0);
        put_number(&message, rng_below(rng, 2));
    }
    int count = (int)rng_below(rng, MESSAGE_FDS + 1);
    if (rng_below(rng, 3) != 0)
        count = 1;
    int fds[MESSAGE_FDS];
    for (int i = 0; i < count; i++) {
        fds[message.fd_count] = random_fd(rng);
        if (fds[message.fd_count] >= 0) {
            message.fds[message.fd_count] = fds[message.fd_count];
            message.fd_count++;
        }
    }
    count = message.fd_count;
    if (request != CONNECT_PEER_WAIT && send_message(socket, &message) && socket >= 0) {
        receive_message(socket, &message, first ? 1 : TIMEOUT_MS);
        close_fds(&message);
    }
    for (int i = 0; i < count; i++) {
        if (rng_below(rng, 2) == 0 && ftruncate(fds[i], 0) == 0)
            continue;
        close(fds[i]);
    }
    if (first && socket >= 0)
        close(socket);
}

/* Registers kernel addresses, overflowing ranges and unmapped ranges, with and without a file. */
static void ranges(struct intruder *in)
{
    static const uint64_t PLACES[] = {0,
                                      1,
                                      4095,
                                      0x7FFFFFFFF000,
                                      0x800000000000,
                                      0xFFFF800000000000,
                                      0xFFFFFFFF81000000,
                                      UINT64_MAX - 4096,
                                      UINT64_MAX};
    for (unsigned i = 0; i < 6; i++) {
        uint64_t address = PLACES[rng_below(&in->rng, 9)];
        uint64_t length = rng_edge(&in->rng, UINT64_MAX - address);
        int fd = rng_below(&in->rng, 2) == 0 ? shared_memory(65536) : -1;
        /* A kernel address is never a valid region. */
        if (register_memory(&in->app, in->app.calls, address, length, fd) != 0 && fd < 0 &&
            address >= 0x800000000000)
            _exit(3);
        if (fd >= 0)
            close(fd);
    }
}

/* Allocates objects up to the quota. */
static void quota(struct intruder *in)
{
    static uint8_t page[8192] __attribute__((aligned(4096)));
    struct message message;
    switch (rng_below(&in->rng, 4)) {
    case 0:
        for (unsigned i = 0; i < 300 && create_vi(&in->app, in->app.calls, 1) != 0; i++)
            ;
        break;
    case 1:
        for (unsigned i = 0; i < 300; i++)
            if (register_memory(&in->app, in->app.calls, (uint64_t)(uintptr_t)page, 4096, -1) == 0)
                break;
        break;
    case 2:
        for (unsigned i = 0; i < 300; i++) {
            begin(&message, i % 3 == 0 ? OPEN : CREATE_PTAG);
            if (i % 3 != 0)
                put_number(&message, in->app.nic);
            if (ask_handle(in->app.calls, &message) == 0)
                break;
        }
        break;
    default:
        for (unsigned i = 0; i < 40; i++) {
            int fd = shared_memory(65536);
            register_memory(&in->app, in->app.calls, 0x20000000 + i * 65536, 65536, fd);
            close(fd);
        }
    }
}

/* Sends requests without reading the replies. */
static void unread_replies(struct intruder *in)
{
    int socket = join(&in->app, in->socket, TIMEOUT_MS);
    if (socket < 0)
        return;
    struct message message;
    for (unsigned i = 0; i < 400; i++) {
        build_request(in, &message, rng_below(&in->rng, 2) == 0 ? COUNTERS : QUERY_VI);
        if (!send_message(socket, &message))
            break;
    }
    /* Requests in the socket are processed or discarded. */
    close(socket);
}

/* Opens connections without a first request, or with a malformed one. */
static void first_requests(struct intruder *in)
{
    int sockets[48];
    unsigned count = 1 + (unsigned)rng_below(&in->rng, 48);
    struct message message;
    for (unsigned i = 0; i < count; i++) {
        sockets[i] = connect_socket(in->socket);
        if (sockets[i] < 0 || rng_below(&in->rng, 2) == 0)
            continue;
        build_request(in, &message, (enum request)rng_below(&in->rng, FIRST_REQUESTS));
        if (rng_below(&in->rng, 2) == 0)
            message.bytes[1 + rng_below(&in->rng, message.length - 1)] ^= 1;
        send_message(sockets[i], &message);
    }
    for (unsigned i = 0; i < count; i++)
        if (sockets[i] >= 0)
            close(sockets[i]);
}

/* Starts captures without reading them, and ends them in different ways. */
static void captures(struct intruder *in)
{
    struct message message;
    int sockets[6];
    unsigned count = 1 + (unsigned)rng_below(&in->rng, 6);
    for (unsigned i = 0; i < count; i++) {
        sockets[i] = connect_socket(in->socket);
        build_request(in, &message, CAPTURE);
        if (!ask(sockets[i], &message, TIMEOUT_MS))
            continue;
        if (get_number(&message) == CAPTURING && message.fd_count == 1) {
            in->totals->captures++;
            if (rng_below(&in->rng, 2) == 0)
                shutdown(message.fds[0], SHUT_RDWR);
            if (rng_below(&in->rng, 2) == 0)
                shutdown(sockets[i], SHUT_WR);
        }
        close_fds(&message);
    }
    for (unsigned i = 0; i < count; i++)
        if (sockets[i] >= 0)
            close(sockets[i]);
}

struct closer {
    struct intruder *in;
    int socket;
};

static void *open_and_close(void *argument)
{
    struct closer *closer = argument;
    struct message message;
    for (unsigned i = 0; i < 6; i++) {
        begin(&message, CLOSE);
        put_number(&message, __atomic_load_n(&closer->in->app.nic, __ATOMIC_RELAXED));
        ask(closer->socket, &message, TIMEOUT_MS);
        begin(&message, OPEN);
        uint64_t nic = ask_handle(closer->socket, &message);
        if (nic != 0)
            __atomic_store_n(&closer->in->app.nic, nic, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Closes the NIC while VIs and regions are created on it. */
static void races(struct intruder *in)
{
    struct closer closer = {in, join(&in->app, in->socket, TIMEOUT_MS)};
    pthread_t thread;
    static uint8_t page[4096] __attribute__((aligned(4096)));
    if (closer.socket < 0 || pthread_create(&thread, NULL, open_and_close, &closer) != 0)
        return;
    for (unsigned i = 0; i < 20; i++) {
        in->app.vi_count = 0;
        create_vi(&in->app, in->app.calls, 2);
        register_memory(&in->app, in->app.calls, (uint64_t)(uintptr_t)page, 4096, -1);
    }
    pthread_join(thread, NULL);
    close(closer.socket);
}

/* Requests connections that no program accepts. */
static void connect_requests(struct intruder *in)
{
    struct message message;
    uint64_t vi = create_vi(&in->app, in->app.calls, 2);
    for (unsigned i = 0; i < 4 && vi != 0; i++) {
        in->name++;
        begin(&message, i % 2 == 0 ? CONNECT : CONNECT_PEER);
        put_number(&message, vi);
        put_address(&message, in->app.host, &in->name, 0);
        put_address(&message, in->app.host, &in->name, sizeof in->name);
        put_limit(&message, 1);
        if (!ask(in->app.calls, &message, TIMEOUT_MS))
            return;
    }
}

/* Listens on many discriminators, including that of the honest pair: no connection request may arrive. */
static void discriminators(struct intruder *in)
{
    static const char honest[] = "honest";
    struct message message;
    for (unsigned i = 0; i < 40; i++) {
        in->name++;
        bool is_honest = rng_below(&in->rng, 2) == 0;
        begin(&message, CONNECT_WAIT);
        put_number(&message, in->app.nic);
        if (is_honest)
            put_address(&message, in->app.host, honest, sizeof honest - 1);
        else
            put_address(&message, in->app.host, &in->name, sizeof in->name);
        put_limit(&message, 0);
        if (!ask(in->app.calls, &message, TIMEOUT_MS))
            return;
        if (get_number(&message) == REQUEST)
            _exit(3);
    }
}

const struct round SOCKET_ROUNDS[] = {
    {"handles", handles},
    {"bytes", bytes},
    {"descriptors", descriptors},
    {"ranges", ranges},
    {"quota", quota},
    {"unread replies", unread_replies},
    {"first requests", first_requests},
    {"races", races},
    {"connect requests", connect_requests},
    {"captures", captures},
    {"discriminators", discriminators},
};
const unsigned SOCKET_ROUND_COUNT = sizeof SOCKET_ROUNDS / sizeof *SOCKET_ROUNDS;
