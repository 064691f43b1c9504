/* A second implementation of the attach protocol: messages and shared memory between a datapath process
 * and an attached application. */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- Random numbers from a seed. */

struct rng {
    uint64_t state;
};

uint64_t rng_next(struct rng *rng);
/* Returns a number below `limit`, which must not be 0. */
uint64_t rng_below(struct rng *rng, uint64_t limit);
/* Returns an edge case: a limit, a power of two, a number near `near`, or any number. */
uint64_t rng_edge(struct rng *rng, uint64_t near);

/* --- Messages. */

enum request {
    ATTACH,
    JOIN,
    STATUS_QUERY,
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
#define VERSION 9
/* Requests below this number may be the first one of a connection. */
#define FIRST_REQUESTS (CAPTURE + 1)

struct message {
    uint8_t bytes[2 * MESSAGE_BYTES];
    size_t length;
    int fds[MESSAGE_FDS];
    int fd_count;
    /* The read position. */
    size_t at;
};

void put_number(struct message *message, uint64_t number);
void put_bytes(struct message *message, const void *bytes, size_t count);
/* Starts a request without fields. */
void begin(struct message *message, enum request request);
uint64_t get_number(struct message *message);
bool get_bytes(struct message *message, void *to, size_t count);
void close_fds(struct message *message);

/* Connects to a socket; -1 on error. */
int connect_socket(const char *path);
/* Sends a message without blocking; false on error. */
bool send_message(int socket, const struct message *message);
/* Waits up to `limit_ms` for a message; false after the limit or if the connection is closed. */
bool receive_message(int socket, struct message *message, int limit_ms);

/* --- The shared memory. */

#define RINGS_HEADER 4096
#define AT_PROCESS_SLEEPS 64
#define AT_APPLICATION_SLEEPS 128
#define AT_SUBMISSIONS_TAKEN 192
#define AT_COMPLETIONS_TAKEN 256
#define SUBMISSION_BYTES 64
#define COMPLETION_BYTES 32
#define INLINE_BYTES 4096

/* --- An application. */

#define MAX_VIS 16

struct attached {
    /* The control connection, and a connection for calls; -1 without. */
    int control, calls;
    int rings_fd, waker;
    uint8_t *rings;
    size_t rings_bytes;
    uint32_t submission_slots, completion_slots;
    /* Inline buffers of sends; as many of receives are behind them. */
    uint32_t inline_buffers;
    /* The next submission and completion. */
    uint32_t next_submission, next_completion;
    uint8_t key[16], host[16];
    uint64_t nic, ptag;
    uint64_t vis[MAX_VIS];
    unsigned vi_count;
};

/* Sends ATTACH; the reply RINGS has the descriptors of the rings and of the eventfd that wakes the process. */
bool ask_for_rings(int socket, struct message *message, const char *device, int limit_ms);
/* Attaches, joins and opens the NIC; false, with all descriptors closed, if that is rejected. */
bool attach(struct attached *app, const char *path, const char *device, int limit_ms);
/* Opens another connection for calls; -1 if it is rejected. */
int join(const struct attached *app, const char *path, int limit_ms);
/* Closes all descriptors without a message to the process. */
void detach(struct attached *app);
/* Sends a request and receives its reply; false if the connection is closed. */
bool ask(int socket, struct message *message, int limit_ms);
/* Sends a request that returns a handle; 0 if it is rejected. */
uint64_t ask_handle(int socket, struct message *message);
/* Creates a VI with a reliability level (1, 2 or 4); 0 if it is rejected. */
uint64_t create_vi(struct attached *app, int socket, unsigned reliability);
/* Registers `length` bytes; 0 if it is rejected. `fd` is -1 for private memory. */
uint32_t register_memory(struct attached *app, int socket, uint64_t address, uint64_t length, int fd);
void put_settings(struct message *message, uint64_t ptag);
void put_address(struct message *message, const uint8_t host[16], const void *name, size_t length);
void put_limit(struct message *message, unsigned milliseconds);
/* Connects two VIs of the application with each other. */
bool connect_pair(struct attached *app, const char *path, uint64_t one, uint64_t two, uint32_t name);

struct submission {
    uint64_t vi;
    unsigned kind, control, segments;
    uint32_t length, remote_handle, immediate, fault;
    uint64_t remote_address, address;
    uint32_t handle, segment_length;
    /* The number of the inline buffer that has the data; 0 without one. */
    uint32_t inline_buffer;
};

/* Posts a submission like the library. */
void submit(struct attached *app, const struct submission *submission);
/* Takes all available completions; returns their number. */
unsigned take_completions(struct attached *app);

#endif
