/*
 * What the tests share: a NIC at each end, registered memory there, connected pairs of VIs, caught
 * errors. A pair's client is here; its server is there, which may be another process (far.h).
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
#include "patience.h"

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_PROTECTION_HANDLE ptag;
} Device;

/* The two ends of every test. */
extern Device here, there;

/* Registered memory that descriptors and buffers are cut from, one behind the other. */
typedef struct {
    Device *device;
    unsigned char *base;
    size_t bytes, used;
    VIP_MEM_HANDLE handle;
} Arena;

/* At each end, for sends and receives; and there, for RDMA writes. Empty at the begin of a test. */
extern Arena mine, theirs, exposed;

/* A VI here and one there, connected to each other. */
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

/* True when the environment asks for small counts (under valgrind). */
bool small_counts(void);
unsigned long long now_ms(void);

/* Opens both ends and their arenas; closes all that; takes back what a test has cut from them. */
void fixture_open(void);
void fixture_close(void);
void fixture_reset(void);
/* Has both ends be on the NIC of another name; and puts things back. Not twice at a time. */
void fixture_use(const char *name);
void fixture_use_end(void);
/* The same with both ends in this process, for NICs that are of one host. */
void fixture_use_here(const char *name);
/* Opens the far end anew, when a test has ended its process. */
void fixture_reopen_far(void);

/* Opens VINIC in this process, or the NIC of a name. */
void device_open(Device *device);
void device_open_named(Device *device, const char *name);
/* The same at the far end. */
void device_open_far(Device *device, const char *name);
void device_close(Device *device);

void arena_open(Arena *arena, Device *device, size_t bytes, VIP_PROTECTION_HANDLE ptag,
                VIP_BOOLEAN rdma_write);
void arena_close(Arena *arena);
/* The same for one whose registration went with its NIC. */
void arena_forget(Arena *arena);
unsigned char *arena_bytes(Arena *arena, size_t bytes);
/* A zeroed descriptor with room for `segments`. */
VIP_DESCRIPTOR *arena_descriptor(Arena *arena, unsigned segments);

/* A NIC's own address with a discriminator; one that no call has given before. */
void address_of(const Device *device, const char *discriminator, Address *address);
void fresh_discriminator(char *text, size_t bytes);

VIP_VI_ATTRIBUTES vi_attributes(const Device *device, const PairOptions *options);
/* A VI here as a client makes it, or there as a server makes it. */
VIP_VI_HANDLE client_create(const PairOptions *options);
VIP_VI_HANDLE server_create(const PairOptions *options);

/* --- connections ----------------------------------------------------------------------------- */

/* A VipConnectRequest on its way in a thread of its own; repeated while it is VIP_NO_MATCH. */
typedef struct Request Request;
Request *request_start(VIP_VI_HANDLE vi, const char *discriminator, VIP_ULONG timeout_ms);
/* From one device to another, whichever they are. */
Request *request_between(const Device *from, const Device *to, VIP_VI_HANDLE vi,
                         const char *discriminator, VIP_ULONG timeout_ms);
VIP_RETURN request_finish(Request *request, VIP_VI_ATTRIBUTES *remote);

/* Time-out for a request to a host that nobody has. */
enum { UNKNOWN_HOST_MS = 300 };
/* Checks the outcome of such a request, a client's or a peer's, and the state of its VI. */
void unknown_host_answered(VIP_VI_HANDLE vi, VIP_RETURN answer, bool is_peer);

/* Creates two VIs and connects them. */
void pair_open(Pair *pair, const PairOptions *options);
void pair_connect(Pair *pair);
/* Disconnects, drains and destroys both. */
void pair_close(Pair *pair);
void vi_close(VIP_VI_HANDLE vi);
unsigned vi_drain(VIP_VI_HANDLE vi);

VIP_VI_STATE vi_state(VIP_VI_HANDLE vi);
/* Waits until the VI has this state. */
bool vi_reaches(VIP_VI_HANDLE vi, VIP_VI_STATE state);

/* --- descriptors ----------------------------------------------------------------------------- */

void describe_segment(VIP_DESCRIPTOR *descriptor, unsigned n, const void *data,
                      VIP_MEM_HANDLE handle, size_t bytes);
/* One segment; CS.Length is `bytes`. */
void describe(VIP_DESCRIPTOR *descriptor, const void *data, VIP_MEM_HANDLE handle, size_t bytes);
void describe_write(VIP_DESCRIPTOR *descriptor, const void *data, VIP_MEM_HANDLE handle,
                    size_t bytes, const void *remote, VIP_MEM_HANDLE remote_handle);
/* A read of the peer's memory into one segment of ours. */
void describe_read(VIP_DESCRIPTOR *descriptor, const void *data, VIP_MEM_HANDLE handle,
                   size_t bytes, const void *remote, VIP_MEM_HANDLE remote_handle);
void with_immediate(VIP_DESCRIPTOR *descriptor, VIP_UINT32 immediate);

/* Wait for a queue that is on no CQ; checks that `expected` comes back and gives its status. */
VIP_UINT32 sent(VIP_VI_HANDLE vi, const VIP_DESCRIPTOR *expected);
VIP_UINT32 received(VIP_VI_HANDLE vi, const VIP_DESCRIPTOR *expected);

/* Sends a message both ways and checks it: the pair works. */
void pair_works(const Pair *pair, const char *who);

/* Bytes that tell which message they are of. */
void fill(unsigned char *data, size_t bytes, unsigned message);
bool filled(const unsigned char *data, size_t bytes, unsigned message);

/* --- asynchronous errors, at either end ------------------------------------------------------ */

void errors_catch(const Device *device);
void errors_forget(void);
/* Waits for an error of this kind at this VI; checks that it comes and copies it if `found` is not NULL. */
bool error_expected(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found);
unsigned errors_of(VIP_VI_HANDLE vi, VIP_ERROR_CODE code);

#endif
