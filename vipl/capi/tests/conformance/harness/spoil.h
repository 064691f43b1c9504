/* Descriptors with something wrong in them, and what follows from an error at each level. */
#ifndef SPOIL_H
#define SPOIL_H

#include "fixture.h"

typedef struct {
    const char *what;
    VIP_UINT32 expected; /* the error bit of its status */
    void (*spoil)(VIP_DESCRIPTOR *descriptor, const Arena *foreign);
} Fault;

extern const Fault send_faults[], recv_faults[];
extern const unsigned send_fault_count, recv_fault_count;

/* True if an error breaks the connection at the level of the test that runs. */
bool errors_break(void);
/* True if a sender is told at that level what happened at the other end. */
bool senders_are_told(void);

/* The break of a connection: CONN_LOST and the Error state at both ends. */
void broken(const Pair *pair, const char *what);
/* After an error: broken, or working, as the level says; then both VIs are destroyed. */
void pair_after_error(Pair *pair, const char *what);
/* The status that a sender has from an error at the other end. */
void check_sender(VIP_UINT32 status, VIP_UINT32 at_reliable_reception, const char *what);
/*
 * The same where the other end refuses a whole message. VIPL_TEST_RECOVERY is set where VINIC0 recovers messages: there a
 * send of Reliable Delivery waits for the other end, and is flushed.
 */
void check_refused_sender(VIP_UINT32 status, VIP_UINT32 at_reliable_reception, const char *what);

#endif
