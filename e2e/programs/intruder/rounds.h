/* What an intruder does in one round. */
#ifndef ROUNDS_H
#define ROUNDS_H

#include "process.h"

/* What all lives did together; shared by them. */
struct tally {
    unsigned long rounds, attached, cut_off, pairs, regions, completions, captures, turned_away;
};

struct intruder {
    struct tally *tally;
    const char *socket, *device;
    struct chance chance;
    struct attached app;
    bool attached;
    /* Distinguishes the addresses of connections. */
    uint32_t name;
};

struct kind {
    const char *name;
    void (*play)(struct intruder *intruder);
};

extern const struct kind MEMORY_ROUNDS[], SOCKET_ROUNDS[];
extern const unsigned MEMORY_ROUND_COUNT, SOCKET_ROUND_COUNT;

/* Attaches unless it is attached and heard; false if it may not. */
bool stand(struct intruder *intruder);
/* Two VIs that are connected with each other, and a registered range of `bytes` that `fd` backs. */
struct pair {
    uint64_t one, two;
    uint8_t *memory;
    size_t bytes;
    int fd;
    uint32_t region;
};

bool make_pair(struct intruder *intruder, struct pair *pair, bool shared);
void end_pair(struct pair *pair);
/* Sealed memory that can be shared, with all of its pages; -1 without. */
int shared_memory(size_t bytes);

#endif
