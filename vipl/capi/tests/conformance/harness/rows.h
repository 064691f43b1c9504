/*
 * The rows of the error table (docs/spec/vipl-coverage.md), each provoked by a real cause and
 * observed at both ends, at every reliability level.
 */
#ifndef ROWS_H
#define ROWS_H

/* rows_local.c: errors of the local consumer, and posting in each state. */
void local_errors(void);
void posting_outside_connected(void);
void posting_in_the_error_state(void);
void overrun(void);
void overrun_by_each_operation(void);
void memory_of_a_posted_descriptor_deregistered(void);

/* rows_remote.c: errors caused by the remote side. */
void no_receive_posted(void);
void receive_too_small(void);
void receive_malformed(void);
void write_refused(void);
void write_with_immediate_refused(void);
void peer_disconnects(void);
void peer_closes(void);
void peer_dies(void);

/* rows_wire.c: lost and damaged frames. */
void frame_missing(void);
void frame_damaged(void);
void frame_of_a_write_missing(void);
void frame_of_a_write_damaged(void);
void message_lost(void);

#define ROW_TESTS(of)                                                                              \
    TEST(local_errors, .clauses = "5.2 5.3 5.4 6.2", .level = (of),                                \
         .rows = "local_error sender receiver", .returns = "VipSendWait DESCRIPTOR_ERROR"),        \
    TEST(posting_outside_connected, .clauses = "3.5.1 3.5.4 3.3.5 3.2.2", .level = (of),           \
         .rows = "send_posted_unconnected consumer; receive_posted_unconnected consumer;"          \
                 "disconnect_in_any_state consumer; destroy_requires_idle consumer",               \
         .returns = "VipSendDone DESCRIPTOR_ERROR; VipDestroyVi INVALID_STATE"),                   \
    TEST(posting_in_the_error_state, .clauses = "2.4 6.2", .level = (of),                          \
         .rows = "send_posted_in_error consumer; receive_posted_in_error consumer;"                \
                 "destroy_requires_idle consumer",                                                 \
         .returns = "VipSendDone DESCRIPTOR_ERROR; VipRecvDone DESCRIPTOR_ERROR;"                  \
                    "VipDestroyVi INVALID_STATE"),                                                 \
    TEST(overrun, .clauses = "3.8.1 6.3", .level = (of), .rows = "overrun consumer peer"),         \
    TEST(overrun_by_each_operation, .clauses = "3.8.1 4.4", .level = (of)),                        \
    TEST(memory_of_a_posted_descriptor_deregistered, .clauses = "3.4.4 3.8.1", .level = (of),      \
         .rows = "memory_deregistered consumer peer"),                                             \
    TEST(no_receive_posted, .clauses = "3.8.1 2.4", .level = (of),                                 \
         .rows = "no_receive sender receiver"),                                                    \
    TEST(receive_too_small, .clauses = "5.2 2.4", .level = (of),                                   \
         .rows = "receive_too_small sender receiver"),                                             \
    TEST(receive_malformed, .clauses = "5.2 5.4 2.4", .level = (of),                               \
         .rows = "receive_malformed sender receiver"),                                             \
    TEST(write_refused, .clauses = "5.3 3.8.1 7.6", .level = (of),                                 \
         .rows = "write_refused sender receiver"),                                                 \
    TEST(write_with_immediate_refused, .clauses = "5.3 7.6", .level = (of),                        \
         .rows = "write_with_immediate_refused sender receiver"),                                  \
    TEST(peer_disconnects, .clauses = "3.3.5 6.2", .level = (of),                                  \
         .rows = "peer_disconnects consumer peer"),                                                \
    TEST(peer_closes, .clauses = "3.1.2 6.2", .level = (of),                                       \
         .rows = "peer_closes consumer peer", .needs = TWO_PROCESSES),                             \
    TEST(peer_dies, .clauses = "6.2", .level = (of),                                               \
         .rows = "peer_dies consumer peer", .needs = TWO_PROCESSES),                               \
    TEST(frame_missing, .clauses = "2.4 5.2", .level = (of),                                       \
         .rows = "frame_missing sender receiver"),                                                 \
    TEST(frame_damaged, .clauses = "2.4 5.2", .level = (of),                                       \
         .rows = "frame_missing sender receiver"),                                                 \
    TEST(frame_of_a_write_missing, .clauses = "7.6 3.8.1", .level = (of),                          \
         .rows = "frame_of_a_write_missing sender receiver"),                                      \
    TEST(frame_of_a_write_damaged, .clauses = "7.6 3.8.1", .level = (of),                          \
         .rows = "frame_of_a_write_damaged sender receiver"),                                      \
    TEST(message_lost, .clauses = "2.4", .level = (of), .rows = "message_lost sender receiver")

#endif
