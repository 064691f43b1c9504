/*
 * Common functions of the old programs, which are written like programs for VIPL around 2000: C89
 * that is also C++; one process for each rank, forked before the NIC is opened; addresses allocated
 * by their size.
 */
#ifndef COMMON_H
#define COMMON_H

#include <stddef.h>
#include <sys/types.h>

#include <vipl.h>

#define WAIT_MS 30000

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail(__FILE__, __LINE__, #condition);                                                  \
    } while (0)
#define EXPECT_OK(call) expect_ok(__FILE__, __LINE__, #call, (call))

void fail(const char *file, int line, const char *what);
void expect_ok(const char *file, int line, const char *call, VIP_RETURN result);

/* An open NIC with a protection tag. */
typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_PROTECTION_HANDLE ptag;
} Nic;

void nic_open(Nic *nic);
void nic_close(Nic *nic);

/* Registered memory of malloc, aligned for descriptors. */
typedef struct {
    char *memory; /* returned by malloc */
    char *base;
    VIP_ULONG bytes;
    VIP_MEM_HANDLE handle;
} Buffer;

void buffer_open(Nic *nic, Buffer *buffer, VIP_ULONG bytes, VIP_BOOLEAN rdma_write);
void buffer_close(Nic *nic, Buffer *buffer);

/* Returns the address of the NIC with a discriminator; freed by the caller. */
VIP_NET_ADDRESS *address_make(const Nic *nic, const char *discriminator);
/* Allocates memory for any address. */
VIP_NET_ADDRESS *address_alloc(const Nic *nic);

VIP_VI_HANDLE vi_make(Nic *nic, VIP_RELIABILITY_LEVEL level, VIP_BOOLEAN rdma_write,
                      VIP_CQ_HANDLE recv_cq);
void vi_close(VIP_VI_HANDLE vi);
void vi_drain(VIP_VI_HANDLE vi);

/* Connect the VIs of two processes; the client repeats its request while it is VIP_NO_MATCH. */
void connect_client(Nic *nic, VIP_VI_HANDLE vi, const char *discriminator);
void connect_server(Nic *nic, VIP_VI_HANDLE vi, const char *discriminator);
/* Connects two VIs of one process; the client requests in a thread. */
void connect_here(Nic *nic, VIP_VI_HANDLE client, VIP_VI_HANDLE server, const char *discriminator);

/* Format a descriptor with one data segment. */
void describe(VIP_DESCRIPTOR *descriptor, const Buffer *buffer, VIP_ULONG offset, VIP_ULONG bytes);
void describe_write(VIP_DESCRIPTOR *descriptor, const Buffer *buffer, VIP_ULONG offset,
                    VIP_ULONG bytes, char *remote, VIP_MEM_HANDLE remote_handle);
/* Wait for the next completed descriptor of a queue. */
VIP_DESCRIPTOR *sent(VIP_VI_HANDLE vi);
VIP_DESCRIPTOR *received(VIP_VI_HANDLE vi);
/* Sends and receives one message in this process. */
void exchange(VIP_VI_HANDLE from, VIP_VI_HANDLE to, Buffer *buffer);

/* Registers a handler that counts the errors of a NIC; and waits for an error. */
void errors_count(Nic *nic);
void error_await(VIP_ERROR_CODE code);

/* Forks before a NIC is opened; returns the child's pid, or 0 in the child. */
pid_t fork_child(void);
/* Waits for a child, which must exit with success. */
void wait_for_child(pid_t child);
/* Returns a discriminator that is unique to this run of the program. */
const char *discriminator(void);

/* The tests of the rules; each returns 0. */
int rule_1_numbers_fit_an_int(void);
int rule_2_the_highest_level_works(void);
int rule_3_one_nic_opened_twice(void);
int rule_4_a_vi_without_a_tag(void);
int rule_5_the_target_makes_no_call(void);
int rule_6_last_word_is_visible_last(void);
int rule_7_fields_of_posted_receives(void);
int rule_8_receives_before_connecting(void);
int rule_9_no_listener(void);
int rule_10_equal_peer_addresses(void);
int rule_11_no_write_beyond_the_address(void);
int rule_12_ordered_teardown(void);
int rule_13_unordered_teardown(void);
int rule_14_exit_without_teardown(void);
int rule_15_names_of_devices(void);
int rule_16_registration_is_cheap(void);
int rule_17_waits_sleep(void);
int rule_18_names_of_hosts(void);
int rule_19_memory_that_cannot_be_locked(void);
int rule_20_fork_after_opening(void);

#endif
