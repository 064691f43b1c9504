/*
 * The test fixture: a NIC at each end, registered memory, connected pairs of VIs, and asynchronous
 * errors. The client of a pair is local; its server is remote, possibly in another process
 * (remote_process.h).
 */
#ifndef FIXTURE_H
#define FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vipl.h>

#include "address.h"
#include "calls.h"
#include "check.h"
#include "timeout.h"

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_PROTECTION_HANDLE ptag;
} Device;

/* The NICs of the two ends. */
extern Device local_device, remote_device;

/* Registered memory from which descriptors and buffers are allocated sequentially. */
typedef struct {
    Device *device;
    unsigned char *base;
    size_t bytes, used;
    VIP_MEM_HANDLE handle;
} Arena;

/* For sends and receives at each end, and for RDMA writes at the remote end. Empty at the start of
 * a test. */
extern Arena local_arena, remote_arena, exposed;

/* A local and a remote VI, connected to each other. */
typedef struct {
    VIP_VI_HANDLE client, server;
} Pair;

typedef struct {
    VIP_RELIABILITY_LEVEL reliability; /* 0: Reliable Delivery */
    VIP_ULONG max_transfer_bytes;      /* 0: 65536 */
    VIP_BOOLEAN server_rdma_write, server_rdma_read;
    VIP_CQ_HANDLE server_send_cq, server_recv_cq;
} PairOptions;

/* --- set-up ---------------------------------------------------------------------------------- */

/* Reports whether the environment requests small iteration counts (under valgrind). */
bool small_counts(void);
unsigned long long now_ms(void);

/* Open both ends and their arenas; close them; free all allocations of the arenas. */
void fixture_open(void);
void fixture_close(void);
void fixture_reset(void);
/* Switch both ends to the NIC of another name, and back. Not nested. */
void fixture_use(const char *name);
void fixture_use_end(void);
/* As fixture_use, with both ends in this process, for NICs that exist on one host only. */
void fixture_use_one_process(const char *name);
/* Restarts the remote process and opens the remote end, after a test has ended the process. */
void fixture_reopen_remote(void);

/* Open VINIC, or the NIC with this name, in this process. */
void device_open(Device *device);
void device_open_named(Device *device, const char *name);
/* The same at the remote end. */
void device_open_remote(Device *device, const char *name);
void device_close(Device *device);

void arena_open(Arena *arena, Device *device, size_t bytes, VIP_PROTECTION_HANDLE ptag,
                VIP_BOOLEAN rdma_write);
void arena_close(Arena *arena);
/* As arena_close, for an arena whose NIC was closed. */
void arena_forget(Arena *arena);
unsigned char *arena_bytes(Arena *arena, size_t bytes);
/* Allocates a zeroed descriptor for `segments` segments. */
VIP_DESCRIPTOR *arena_descriptor(Arena *arena, unsigned segments);

/* Sets the address of a NIC with a discriminator; and creates a unique discriminator. */
void address_of(const Device *device, const char *discriminator, Address *address);
void fresh_discriminator(char *text, size_t bytes);

VIP_VI_ATTRIBUTES vi_attributes(const Device *device, const PairOptions *options);
/* Create the local VI of a client, or the remote VI of a server. */
VIP_VI_HANDLE client_create(const PairOptions *options);
VIP_VI_HANDLE server_create(const PairOptions *options);

/* --- connections ----------------------------------------------------------------------------- */

/* A VipConnectRequest in a thread, repeated while it returns VIP_NO_MATCH. */
typedef struct Request Request;
Request *request_start(VIP_VI_HANDLE vi, const char *discriminator, VIP_ULONG timeout_ms);
/* The same between any two devices. */
Request *request_between(const Device *from, const Device *to, VIP_VI_HANDLE vi,
                         const char *discriminator, VIP_ULONG timeout_ms);
VIP_RETURN request_finish(Request *request, VIP_VI_ATTRIBUTES *remote);

/* Timeout of a request to an unknown host. */
enum { UNKNOWN_HOST_MS = 300 };
/* Checks the result of such a request, a client's or a peer's, and the state of its VI. */
void check_unknown_host_result(VIP_VI_HANDLE vi, VIP_RETURN result, bool is_peer);

/* Creates two VIs and connects them. */
void pair_open(Pair *pair, const PairOptions *options);
void pair_connect(Pair *pair);
/* Disconnects, drains and destroys both VIs. */
void pair_close(Pair *pair);
void vi_close(VIP_VI_HANDLE vi);
unsigned vi_drain(VIP_VI_HANDLE vi);

VIP_VI_STATE vi_state(VIP_VI_HANDLE vi);
/* Waits until the VI has this state; fails after WAIT_MS. */
bool vi_reaches(VIP_VI_HANDLE vi, VIP_VI_STATE state);

/* --- descriptors ----------------------------------------------------------------------------- */

void describe_segment(VIP_DESCRIPTOR *descriptor, unsigned n, const void *data,
                      VIP_MEM_HANDLE handle, size_t bytes);
/* Formats a send or receive with one segment; CS.Length is `bytes`. */
void describe(VIP_DESCRIPTOR *descriptor, const void *data, VIP_MEM_HANDLE handle, size_t bytes);
void describe_write(VIP_DESCRIPTOR *descriptor, const void *data, VIP_MEM_HANDLE handle,
                    size_t bytes, const void *remote, VIP_MEM_HANDLE remote_handle);
/* An RDMA read of the peer's memory into one local segment. */
void describe_read(VIP_DESCRIPTOR *descriptor, const void *data, VIP_MEM_HANDLE handle,
                   size_t bytes, const void *remote, VIP_MEM_HANDLE remote_handle);
void with_immediate(VIP_DESCRIPTOR *descriptor, VIP_UINT32 immediate);

/* Wait for a completion on a queue without a CQ, check that it is `expected`, return its status. */
VIP_UINT32 sent(VIP_VI_HANDLE vi, const VIP_DESCRIPTOR *expected);
VIP_UINT32 received(VIP_VI_HANDLE vi, const VIP_DESCRIPTOR *expected);

/* Sends and checks a message in both directions. */
void pair_works(const Pair *pair, const char *what);

/* Fill and check data with a pattern of the message number. */
void fill(unsigned char *data, size_t bytes, unsigned message);
bool filled(const unsigned char *data, size_t bytes, unsigned message);

/* --- asynchronous errors, at either end ------------------------------------------------------ */

void errors_register(const Device *device);
void errors_clear(void);
/* Waits for an error with this code on this VI, checks that it is reported, and copies it if
 * `found` is not NULL. */
bool expect_error(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found);
unsigned errors_count(VIP_VI_HANDLE vi, VIP_ERROR_CODE code);

#endif
