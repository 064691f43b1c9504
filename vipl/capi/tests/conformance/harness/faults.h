/* Faults injected into descriptors, and the consequences of errors at each reliability level. */
#ifndef FAULTS_H
#define FAULTS_H

#include "fixture.h"

typedef struct {
    const char *what;
    VIP_UINT32 expected; /* the error bit of its status */
    void (*inject)(VIP_DESCRIPTOR *descriptor, const Arena *foreign);
} Fault;

extern const Fault send_faults[], recv_faults[];
extern const unsigned send_fault_count, recv_fault_count;

/* Reports whether an error breaks the connection at the level of the running test. */
bool errors_break_connection(void);
/* Reports whether a sender gets errors of the remote end at that level. */
bool senders_get_remote_errors(void);

/* Checks that a connection breaks: CONN_LOST and the Error state at both ends. */
void expect_broken(const Pair *pair, const char *what);
/* Checks after an error that the pair is broken, or works, according to the level; destroys both
 * VIs. */
void check_pair_after_error(Pair *pair, const char *what);
/* Checks the status of a send after an error at the remote end. */
void check_sender(VIP_UINT32 status, VIP_UINT32 at_reliable_reception, const char *what);
/*
 * The same if the remote end refuses a whole message. If VIPL_TEST_RECOVERY is set, VINIC0 has
 * message recovery: then a send at Reliable Delivery waits for the remote end, and is flushed.
 */
void check_refused_sender(VIP_UINT32 status, VIP_UINT32 at_reliable_reception, const char *what);

#endif
