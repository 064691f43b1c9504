/* Tests of data transfer at every reliability level; each phase runs them at its required
 * levels. */
#ifndef TRANSFERS_H
#define TRANSFERS_H

void messages_of_all_sizes(void);
void many_segments(void);
void ignored_fields(void);
void receives_longer_than_the_transfer_size(void);
void in_order(void);
void rdma_writes(void);

#define TRANSFER_TESTS(of)                                                                         \
    TEST(messages_of_all_sizes, .clauses = "5.2 5.4 3.5.1 3.5.4", .level = (of),                   \
         .returns = "VipPostSend SUCCESS; VipPostRecv SUCCESS"),                                   \
    TEST(many_segments, .clauses = "5.4 5.2", .level = (of)),                                      \
    TEST(ignored_fields, .clauses = "5.2", .level = (of)),                                         \
    TEST(receives_longer_than_the_transfer_size, .clauses = "5.2 5.4", .level = (of)),             \
    TEST(in_order, .clauses = "6.1 5.5", .level = (of),                                            \
         .returns = "VipSendDone SUCCESS; VipRecvDone SUCCESS"),                                   \
    TEST(rdma_writes, .clauses = "5.3 5.2 7.6", .level = (of), .returns = "VipPostSend SUCCESS")

#endif
