/*
 * What the old programs share. They are written as programs for VIPL were around 2000: C89 that is C++,
 * too; one process for each rank, forked before the NIC is opened; addresses allocated by their size.
 */
#ifndef OLD_H
#define OLD_H

#include <stddef.h>
#include <sys/types.h>

#include <vipl.h>

#define WAIT_MS 30000

#define EXPECT(holds)                                                                              \
    do {                                                                                           \
        if (!(holds))                                                                              \
            fail(__FILE__, __LINE__, #holds);                                                      \
    } while (0)
#define EXPECT_OK(call) expect_ok(__FILE__, __LINE__, #call, (call))

void fail(const char *file, int line, const char *what);
void expect_ok(const char *file, int line, const char *call, VIP_RETURN answer);

/* An open NIC with a tag. */
typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_PROTECTION_HANDLE ptag;
} Nic;

void nic_open(Nic *nic);
void nic_close(Nic *nic);

/* Memory of malloc, aligned for descriptors, registered. */
typedef struct {
    char *memory; /* what malloc gave */
    char *base;
    VIP_ULONG bytes;
    VIP_MEM_HANDLE handle;
} Buffer;

void buffer_open(Nic *nic, Buffer *buffer, VIP_ULONG bytes, VIP_BOOLEAN rdma_write);
void buffer_close(Nic *nic, Buffer *buffer);

/* The NIC's own host with a discriminator; freed by the caller. */
VIP_NET_ADDRESS *address_make(const Nic *nic, const char *discriminator);
/* Room for any address. */
VIP_NET_ADDRESS *address_room(const Nic *nic);

VIP_VI_HANDLE vi_make(Nic *nic, VIP_RELIABILITY_LEVEL level, VIP_BOOLEAN rdma_write,
                      VIP_CQ_HANDLE recv_cq);
void vi_drop(VIP_VI_HANDLE vi);
void vi_drain(VIP_VI_HANDLE vi);

/* One of two processes connects its VI to the other's; the client asks again while nobody waits. */
void connect_client(Nic *nic, VIP_VI_HANDLE vi, const char *discriminator);
void connect_server(Nic *nic, VIP_VI_HANDLE vi, const char *discriminator);
/* Both in one process: the client asks in a thread. */
void connect_here(Nic *nic, VIP_VI_HANDLE client, VIP_VI_HANDLE server, const char *discriminator);

/* A descriptor with one segment. */
void describe(VIP_DESCRIPTOR *descriptor, const Buffer *buffer, VIP_ULONG offset, VIP_ULONG bytes);
void describe_write(VIP_DESCRIPTOR *descriptor, const Buffer *buffer, VIP_ULONG offset,
                    VIP_ULONG bytes, char *remote, VIP_MEM_HANDLE remote_handle);
/* Waits for a queue's next descriptor. */
VIP_DESCRIPTOR *sent(VIP_VI_HANDLE vi);
VIP_DESCRIPTOR *received(VIP_VI_HANDLE vi);
/* Sends and receives one message in this process. */
void exchange(VIP_VI_HANDLE from, VIP_VI_HANDLE to, Buffer *buffer);

/* Counts errors of a kind that the handler of a NIC was told. */
void errors_count(Nic *nic);
void error_await(VIP_ERROR_CODE code);

/* Forks before anything is opened; gives the child's pid, or 0 in the child. */
pid_t split(void);
/* Waits for a child that must succeed. */
void join(pid_t child);
/* A discriminator that only this run of the program uses. */
const char *discriminator(void);

/* The rules; each answers 0. */
int rule_1_numbers_fit_an_int(void);
int rule_2_the_highest_level_works(void);
int rule_3_one_nic_opened_twice(void);
int rule_4_a_vi_without_a_tag(void);
int rule_5_the_target_makes_no_call(void);
int rule_6_the_last_word_is_last(void);
int rule_7_fields_of_posted_receives(void);
int rule_8_receives_before_connecting(void);
int rule_9_nobody_waits(void);
int rule_10_equal_peer_addresses(void);
int rule_11_no_more_than_the_address(void);
int rule_12_ending_in_order(void);
int rule_13_ending_in_disorder(void);
int rule_14_exit_without_teardown(void);
int rule_15_names_of_devices(void);
int rule_16_registration_is_cheap(void);
int rule_17_waits_sleep(void);
int rule_18_names_of_hosts(void);
int rule_19_memory_that_cannot_be_locked(void);
int rule_20_fork_after_opening(void);

#endif
