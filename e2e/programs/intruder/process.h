/* The datapath process as its attackers see it: the messages and the shared memory of an attached
 * application, read from their description and written down once more. */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- Chance: the same for the same seed. */

struct chance {
    uint64_t state;
};

uint64_t chance_next(struct chance *chance);
/* Below `limit`, which is not 0. */
uint64_t chance_below(struct chance *chance, uint64_t limit);
/* A number that programs trip over: a border, a power of two, something near `near`, or any. */
uint64_t chance_odd(struct chance *chance, uint64_t near);

/* --- Messages. */

enum request {
    ATTACH,
    JOIN,
    LOOK,
    CAPTURE,
    OPEN,
    CLOSE,
    CREATE_PTAG,
    DESTROY_PTAG,
    REGISTER,
    DEREGISTER,
    SET_REGION,
    CREATE_VI,
    DESTROY_VI,
    QUERY_VI,
    SET_VI,
    DISCOVERED_HOSTS,
    COUNTERS,
    CONNECT_WAIT,
    CONNECT_ACCEPT,
    CONNECT_REJECT,
    CONNECT,
    CONNECT_PEER,
    CONNECT_PEER_DONE,
    CONNECT_PEER_WAIT,
    DISCONNECT,
    REQUESTS,
    RINGS_MAPPED = 31,
    FREE
};

enum reply { ATTACHED, REFUSED, UNKNOWN_NIC, DONE, HANDLE, REGION, VI, REQUEST, ATTRIBUTES, CAPTURING = 11,
             RINGS = 17 };

#define MESSAGE_BYTES 8192
#define MESSAGE_FDS 3
#define VERSION 4
/* With these a conversation begins. */
#define OPENINGS (CAPTURE + 1)

struct message {
    uint8_t bytes[2 * MESSAGE_BYTES];
    size_t length;
    int fds[MESSAGE_FDS];
    int fd_count;
    /* How far it was read. */
    size_t at;
};

void put_number(struct message *message, uint64_t number);
void put_bytes(struct message *message, const void *bytes, size_t count);
/* A request without its fields. */
void begin(struct message *message, enum request request);
uint64_t get_number(struct message *message);
bool get_bytes(struct message *message, void *to, size_t count);
void close_fds(struct message *message);

/* Connects to a socket; -1 if that is not possible. */
int reach(const char *path);
/* False if it could not be sent. Never waits for long. */
bool say(int socket, const struct message *message);
/* Waits up to `limit_ms` for a message; false if none came or the conversation is over. */
bool hear(int socket, struct message *message, int limit_ms);

/* --- The shared memory. */

#define ARENA_HEADER 4096
#define AT_PROCESS_SLEEPS 64
#define AT_APPLICATION_SLEEPS 128
#define AT_SUBMISSIONS_TAKEN 192
#define AT_COMPLETIONS_TAKEN 256
#define LINE_BYTES 64
#define ENTRY_BYTES 32

/* --- An application. */

#define MAX_VIS 16

struct attached {
    /* The conversation it lives by, and one for its calls; -1 without. */
    int life, calls;
    int arena_fd, waker;
    uint8_t *arena;
    size_t arena_bytes;
    uint32_t lines, entries;
    /* The next line, if nobody scribbled. */
    uint32_t next_line, next_entry;
    uint8_t key[16], host[16];
    uint64_t nic, ptag;
    uint64_t vis[MAX_VIS];
    unsigned vi_count;
};

/* Asks to attach; the rings and the eventfd that wakes the process came with the answer if it is RINGS. */
bool ask_for_rings(int socket, struct message *message, const char *device, int limit_ms);
/* Attaches, joins and opens the NIC; false, with everything closed again, if it is refused. */
bool attach(struct attached *app, const char *path, const char *device, int limit_ms);
/* Another conversation for calls; -1 if it is refused. */
int join(const struct attached *app, const char *path, int limit_ms);
/* Lets everything go, without a good-bye. */
void let_go(struct attached *app);
/* Sends a request and hears its answer. False if the conversation is over. */
bool ask(int socket, struct message *message, int limit_ms);
/* Asks for something that answers a handle; 0 if it does not. */
uint64_t ask_handle(int socket, struct message *message);
/* A VI of a reliability level (1, 2 or 4); 0 if it is refused. */
uint64_t create_vi(struct attached *app, int socket, unsigned reliability);
/* Registers `length` bytes; 0 if it is refused. `fd` is -1 for memory that is not shared. */
uint32_t register_memory(struct attached *app, int socket, uint64_t address, uint64_t length, int fd);
void put_settings(struct message *message, uint64_t ptag);
void put_address(struct message *message, const uint8_t host[16], const void *name, size_t length);
void put_limit(struct message *message, unsigned milliseconds);
/* Connects two VIs of the application with each other. */
bool connect_pair(struct attached *app, const char *path, uint64_t one, uint64_t two, uint32_t name);

struct line {
    uint64_t vi;
    unsigned kind, control, segments;
    uint32_t length, remote_handle, immediate, fault;
    uint64_t remote_address, address;
    uint32_t handle, segment_length;
};

/* Submits a line as the library would. */
void submit(struct attached *app, const struct line *line);
/* Says that all completions were taken that are there; how many these were. */
unsigned take_completions(struct attached *app);

#endif
