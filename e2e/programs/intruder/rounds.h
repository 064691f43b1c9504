/* Rounds of attacks. */
#ifndef ROUNDS_H
#define ROUNDS_H

#include "process.h"

/* Counters of all sessions, in shared memory. */
struct totals {
    unsigned long rounds, attached, connections_closed, pairs, regions, completions, captures, rejected;
};

struct intruder {
    struct totals *totals;
    const char *socket, *device;
    struct rng rng;
    struct attached app;
    bool attached;
    /* A unique discriminator. */
    uint32_t name;
};

struct round {
    const char *name;
    void (*run)(struct intruder *intruder);
};

extern const struct round MEMORY_ROUNDS[], SOCKET_ROUNDS[];
extern const unsigned MEMORY_ROUND_COUNT, SOCKET_ROUND_COUNT;

/* Attaches again if the connection is closed; false if that is rejected. */
bool ensure_attached(struct intruder *intruder);
/* Two connected VIs, and registered memory of `bytes`, of the file `fd` if it is shared. */
struct pair {
    uint64_t one, two;
    uint8_t *memory;
    size_t bytes;
    int fd;
    uint32_t region;
};

bool make_pair(struct intruder *intruder, struct pair *pair, bool shared);
void end_pair(struct pair *pair);
/* Creates a sealed memfd without holes; -1 on error. */
int shared_memory(size_t bytes);

#endif
