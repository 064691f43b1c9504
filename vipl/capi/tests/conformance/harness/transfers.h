/* What data does at every reliability level; each phase runs these tests at the levels it asks for. */
#ifndef TRANSFERS_H
#define TRANSFERS_H

void messages_of_all_sizes(void);
void many_segments(void);
void fields_that_do_not_matter(void);
void receives_longer_than_the_transfer_size(void);
void in_order(void);
void rdma_writes(void);

#define TRANSFER_TESTS(of)                                                                         \
    TEST(messages_of_all_sizes, .clauses = "5.2 5.4 3.5.1 3.5.4", .level = (of),                   \
         .answers = "VipPostSend SUCCESS; VipPostRecv SUCCESS"),                                   \
    TEST(many_segments, .clauses = "5.4 5.2", .level = (of)),                                      \
    TEST(fields_that_do_not_matter, .clauses = "5.2", .level = (of)),                              \
    TEST(receives_longer_than_the_transfer_size, .clauses = "5.2 5.4", .level = (of)),             \
    TEST(in_order, .clauses = "6.1 5.5", .level = (of),                                            \
         .answers = "VipSendDone SUCCESS; VipRecvDone SUCCESS"),                                   \
    TEST(rdma_writes, .clauses = "5.3 5.2 7.6", .level = (of), .answers = "VipPostSend SUCCESS")

#endif
