/* Rounds that attack by messages: their bytes, their order, their descriptors and their number. */
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

#define PATIENCE_MS 20000

/* A handle of one's own, one near it, of another kind, or any. */
static uint64_t some_handle(struct intruder *in)
{
    struct chance *chance = &in->chance;
    uint64_t own[] = {in->app.nic, in->app.ptag,
                      in->app.vi_count > 0 ? in->app.vis[chance_below(chance, in->app.vi_count)]
                                           : in->app.nic};
    uint64_t handle = own[chance_below(chance, 3)];
    switch (chance_below(chance, 6)) {
    case 0:
        return handle;
    case 1: /* Of its neighbour: another index. */
        return handle + chance_below(chance, 9) - 4;
    case 2: /* Another generation: of who came before or after. */
        return handle + ((chance_below(chance, 9) - 4) << 24);
    case 3: /* Another kind of thing. */
        return (handle & UINT64_MAX >> 4) | chance_below(chance, 16) << 60;
    case 4: /* On another NIC. */
        return handle + ((chance_below(chance, 5) - 2) << 48);
    default:
        return chance_odd(chance, handle);
    }
}

static void put_some_address(struct intruder *in, struct message *message)
{
    uint8_t name[300];
    size_t length = chance_below(&in->chance, chance_below(&in->chance, 4) == 0 ? 300 : 16);
    memset(name, (int)chance_below(&in->chance, 256), length);
    put_address(message, in->app.host, name, length);
}

/* What to capture: filters that are right, almost right, deep and long. The buffer is a small one:
 * only the process's own user may capture, and what a large one costs is that user's affair. */
static void put_capture(struct intruder *in, struct message *message)
{
    static const char *const PIECES[] = {"vi",     "(",  ")",   "not ", " and ", " or ",
                                         "s_id",   "==", " != ", "0x1",  "00.01.02",
                                         "handle", "in", "9999999999999999999999"};
    struct chance *chance = &in->chance;
    char filter[2048] = "";
    size_t length = 0;
    size_t pieces = chance_below(chance, chance_below(chance, 8) == 0 ? 200 : 4);
    while (pieces-- > 0) {
        const char *piece = PIECES[chance_below(chance, sizeof PIECES / sizeof *PIECES)];
        memcpy(filter + length, piece, strlen(piece));
        length += strlen(piece);
        if (chance_below(chance, 64) == 0)
            filter[length++] = (char)chance_below(chance, 256);
    }
    put_number(message, VERSION);
    put_number(message, strlen(in->device));
    put_bytes(message, in->device, strlen(in->device));
    put_number(message, length);
    put_bytes(message, filter, length);
    put_number(message, chance_odd(chance, 64) & UINT32_MAX);
    put_number(message, chance_below(chance, 1 << 20));
    put_number(message, chance_odd(chance, 1));
}

/* The fields of a request as they should be, of some value. */
static void fill(struct intruder *in, struct message *message, enum request request)
{
    struct chance *chance = &in->chance;
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
    case LOOK:
        put_number(message, VERSION);
        break;
    case CAPTURE:
        put_capture(in, message);
        break;
    case OPEN:
        break;
    case REGISTER:
        put_number(message, in->app.nic);
        put_number(message, chance_odd(chance, (uint64_t)(uintptr_t)message));
        put_number(message, chance_odd(chance, 4096));
        put_settings(message, some_handle(in));
        put_number(message, chance_below(chance, 2));
        put_number(message, chance_below(chance, 2));
        if (message->bytes[message->length - 1] != 0)
            put_number(message, chance_odd(chance, 4096));
        put_number(message, chance_below(chance, 2));
        break;
    case SET_REGION:
    case DEREGISTER:
        put_number(message, in->app.nic);
        put_number(message, chance_odd(chance, 4096));
        put_number(message, chance_odd(chance, 1) & UINT32_MAX);
        if (request == SET_REGION)
            put_settings(message, some_handle(in));
        break;
    case SET_VI:
    case CREATE_VI:
        put_number(message, request == SET_VI ? some_handle(in) : in->app.nic);
        put_number(message, chance_odd(chance, 2) & UINT16_MAX);
        put_number(message, chance_odd(chance, 65536));
        put_number(message, chance_odd(chance, 0));
        put_settings(message, some_handle(in));
        break;
    case CONNECT_WAIT:
    case CONNECT:
    case CONNECT_PEER:
        put_number(message, some_handle(in));
        put_some_address(in, message);
        if (request != CONNECT_WAIT)
            put_some_address(in, message);
        put_limit(message, (unsigned)chance_below(chance, 3));
        break;
    case DESTROY_PTAG:
    case CONNECT_ACCEPT:
        put_number(message, some_handle(in));
        put_number(message, some_handle(in));
        break;
    default:
        put_number(message, some_handle(in));
    }
}

/* Handles that are not ours are refused; ours are served. */
static void handles(struct intruder *in)
{
    for (unsigned i = 0; i < 12; i++) {
        struct message message;
        enum request request = OPEN + 1 + (unsigned)chance_below(&in->chance, REQUESTS - OPEN - 1);
        /* Waits until a peer comes: for ever, here. */
        if (request == CONNECT_PEER_WAIT)
            continue;
        fill(in, &message, request);
        if (!ask(in->app.calls, &message, PATIENCE_MS))
            return;
        close_fds(&message);
    }
}

/* Bytes that are no message, or not all of one. */
static void bytes(struct intruder *in)
{
    struct chance *chance = &in->chance;
    struct message message;
    int socket = chance_below(chance, 2) == 0 ? reach(in->socket) : in->app.calls;
    if (socket < 0)
        return;
    fill(in, &message, (enum request)chance_below(chance, REQUESTS));
    switch (chance_below(chance, 5)) {
    case 0:
        message.length = chance_below(chance, message.length + 1);
        break;
    case 1:
        message.length += 1 + chance_below(chance, 64);
        break;
    case 2:
        message.bytes[chance_below(chance, message.length)] ^=
            (uint8_t)(1u << chance_below(chance, 8));
        break;
    case 3:
        message.length = chance_below(chance, sizeof message.bytes);
        for (size_t at = 0; at < message.length; at++)
            message.bytes[at] = (uint8_t)chance_next(chance);
        break;
    default: /* A number without an end. */
        memset(message.bytes + 1, 0xFF, 64);
        message.length = 65;
    }
    say(socket, &message);
    hear(socket, &message, (int)chance_below(chance, 3));
    close_fds(&message);
    if (socket != in->app.calls)
        close(socket);
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

/* Something that is no memory, or none that can be trusted. */
/* A TCP socket whose close lasts as long as SO_LINGER says, since its peer reads nothing; -1 without. */
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

    /* One at a time: what the process closes ends when the next one is made, at the latest. */
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

static int some_fd(struct chance *chance)
{
    int ends[2];
    int fd;
    if (chance_below(chance, 40) == 0)
        return lingering_socket();
    switch (chance_below(chance, 12)) {
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
    case 6: /* It could be cut short. */
        fd = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        return ftruncate(fd, 65536) == 0 ? fd : (close(fd), -1);
    case 7:
        fd = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB);
        return fd;
    case 8: /* It may not be written. */
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
    struct chance *chance = &in->chance;
    struct message message;
    enum request request = REGISTER;
    if (chance_below(chance, 4) == 0)
        request = (enum request)chance_below(chance, REQUESTS);
    bool first = request < OPENINGS;
    int socket = first ? reach(in->socket) : in->app.calls;
    fill(in, &message, request);
    if (request == REGISTER && chance_below(chance, 2) == 0) {
        begin(&message, REGISTER);
        put_number(&message, in->app.nic);
        put_number(&message, 0x10000000 + chance_below(chance, 16) * 256);
        put_number(&message, chance_below(chance, 80000));
        put_settings(&message, in->app.ptag);
        put_number(&message, 1);
        put_number(&message, chance_below(chance, 4) == 0 ? chance_odd(chance, 4096) : 0);
        put_number(&message, chance_below(chance, 2));
    }
    int count = (int)chance_below(chance, MESSAGE_FDS + 1);
    if (chance_below(chance, 3) != 0)
        count = 1;
    int fds[MESSAGE_FDS];
    for (int i = 0; i < count; i++) {
        fds[message.fd_count] = some_fd(chance);
        if (fds[message.fd_count] >= 0) {
            message.fds[message.fd_count] = fds[message.fd_count];
            message.fd_count++;
        }
    }
    count = message.fd_count;
    if (request != CONNECT_PEER_WAIT && say(socket, &message) && socket >= 0) {
        hear(socket, &message, first ? 1 : PATIENCE_MS);
        close_fds(&message);
    }
    for (int i = 0; i < count; i++) {
        if (chance_below(chance, 2) == 0 && ftruncate(fds[i], 0) == 0)
            continue;
        close(fds[i]);
    }
    if (first && socket >= 0)
        close(socket);
}

/* Ranges of the kernel, without end, without memory; and one's own, with and without an alias. */
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
        uint64_t address = PLACES[chance_below(&in->chance, 9)];
        uint64_t length = chance_odd(&in->chance, UINT64_MAX - address);
        int fd = chance_below(&in->chance, 2) == 0 ? shared_memory(65536) : -1;
        /* No page of the kernel is ever the program's: the process must not take one for it. */
        if (register_memory(&in->app, in->app.calls, address, length, fd) != 0 && fd < 0 &&
            address >= 0x800000000000)
            _exit(3);
        if (fd >= 0)
            close(fd);
    }
}

/* All that one may have, and more. */
static void greed(struct intruder *in)
{
    static uint8_t page[8192] __attribute__((aligned(4096)));
    struct message message;
    switch (chance_below(&in->chance, 4)) {
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

/* Calls whose answers nobody reads. */
static void unread(struct intruder *in)
{
    int socket = join(&in->app, in->socket, PATIENCE_MS);
    if (socket < 0)
        return;
    struct message message;
    for (unsigned i = 0; i < 400; i++) {
        fill(in, &message, chance_below(&in->chance, 2) == 0 ? COUNTERS : QUERY_VI);
        if (!say(socket, &message))
            break;
    }
    /* Those that it got are carried out, or end with it. */
    close(socket);
}

/* Conversations that never begin, or begin wrongly. */
static void doors(struct intruder *in)
{
    int sockets[48];
    unsigned count = 1 + (unsigned)chance_below(&in->chance, 48);
    struct message message;
    for (unsigned i = 0; i < count; i++) {
        sockets[i] = reach(in->socket);
        if (sockets[i] < 0 || chance_below(&in->chance, 2) == 0)
            continue;
        fill(in, &message, (enum request)chance_below(&in->chance, OPENINGS));
        if (chance_below(&in->chance, 2) == 0)
            message.bytes[1 + chance_below(&in->chance, message.length - 1)] ^= 1;
        say(sockets[i], &message);
    }
    for (unsigned i = 0; i < count; i++)
        if (sockets[i] >= 0)
            close(sockets[i]);
}

/* Captures that nobody reads, that end at once, or in the middle. */
static void captures(struct intruder *in)
{
    struct message message;
    int sockets[6];
    unsigned count = 1 + (unsigned)chance_below(&in->chance, 6);
    for (unsigned i = 0; i < count; i++) {
        sockets[i] = reach(in->socket);
        fill(in, &message, CAPTURE);
        if (!ask(sockets[i], &message, PATIENCE_MS))
            continue;
        if (get_number(&message) == CAPTURING && message.fd_count == 1) {
            in->tally->captures++;
            if (chance_below(&in->chance, 2) == 0)
                shutdown(message.fds[0], SHUT_RDWR);
            if (chance_below(&in->chance, 2) == 0)
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
        ask(closer->socket, &message, PATIENCE_MS);
        begin(&message, OPEN);
        uint64_t nic = ask_handle(closer->socket, &message);
        if (nic != 0)
            __atomic_store_n(&closer->in->app.nic, nic, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* The NIC is closed while VIs and regions are made on it. */
static void races(struct intruder *in)
{
    struct closer closer = {in, join(&in->app, in->socket, PATIENCE_MS)};
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

/* Many connections that are asked for and not accepted. */
static void knocks(struct intruder *in)
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
        if (!ask(in->app.calls, &message, PATIENCE_MS))
            return;
    }
}

/* Listens on many discriminators, that of the honest pair among them: no connection request may arrive. */
static void names(struct intruder *in)
{
    static const char honest[] = "honest";
    struct message message;
    for (unsigned i = 0; i < 40; i++) {
        in->name++;
        bool is_honest = chance_below(&in->chance, 2) == 0;
        begin(&message, CONNECT_WAIT);
        put_number(&message, in->app.nic);
        if (is_honest)
            put_address(&message, in->app.host, honest, sizeof honest - 1);
        else
            put_address(&message, in->app.host, &in->name, sizeof in->name);
        put_limit(&message, 0);
        if (!ask(in->app.calls, &message, PATIENCE_MS))
            return;
        if (get_number(&message) == REQUEST)
            _exit(3);
    }
}

const struct kind SOCKET_ROUNDS[] = {
    {"handles", handles}, {"bytes", bytes},   {"descriptors", descriptors}, {"ranges", ranges},
    {"greed", greed},     {"unread", unread}, {"doors", doors},             {"races", races},
    {"knocks", knocks},   {"captures", captures},
    {"names", names},
};
const unsigned SOCKET_ROUND_COUNT = sizeof SOCKET_ROUNDS / sizeof *SOCKET_ROUNDS;
