/* Tests of RDMA reads, and of refused reads, at both reliable levels. */
#ifndef READS_H
#define READS_H

void rdma_reads(void);
void reads_of_many_segments(void);
void reads_complete_in_order(void);
void fenced_behind_reads(void);
void read_refused(void);

#define READ_TESTS(of)                                                                             \
    TEST(rdma_reads, .clauses = "5.2 5.3", .level = (of), .returns = "VipPostSend SUCCESS"),       \
    TEST(reads_of_many_segments, .clauses = "5.4 5.3", .level = (of)),                             \
    TEST(reads_complete_in_order, .clauses = "6.1 5.3", .level = (of),                             \
         .returns = "VipCQWait SUCCESS; VipSendDone SUCCESS"),                                     \
    TEST(fenced_behind_reads, .clauses = "5.2", .level = (of))

#define READ_ROW_TESTS(of)                                                                         \
    TEST(read_refused, .clauses = "5.3 3.8.1 2.4", .level = (of),                                  \
         .rows = "read_refused sender receiver", .returns = "VipSendWait DESCRIPTOR_ERROR")

#endif
