/* What the tests share: an open NIC, registered memory, connected pairs of VIs, caught errors. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vipl.h>

#include "check.h"
#include "record.h"

enum { WAIT_MS = 20000 }; /* long: only a failing test waits for it */

typedef union {
    VIP_NET_ADDRESS address;
    unsigned char room[256];
} Address;

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_PROTECTION_HANDLE ptag;
} Device;

/* Registered memory that descriptors and buffers are cut from, one behind the other. */
typedef struct {
    Device *device;
    unsigned char *base;
    size_t bytes, used;
    VIP_MEM_HANDLE handle;
} Arena;

/* A client and a server VI, connected to each other. */
typedef struct {
    VIP_VI_HANDLE client, server;
} Pair;

typedef struct {
    VIP_RELIABILITY_LEVEL reliability; /* 0: Reliable Delivery */
    VIP_ULONG max_transfer_bytes;      /* 0: 65536 */
    VIP_BOOLEAN server_rdma_write;
    VIP_CQ_HANDLE server_send_cq, server_recv_cq;
} PairOptions;

/* --- set-up ---------------------------------------------------------------------------------- */

/* True when the environment asks for small counts (under valgrind). */
bool small_counts(void);
unsigned long long now_ms(void);

/* Opens VINIC, or the NIC of a name. */
void device_open(Device *device);
void device_open_named(Device *device, const char *name);
void device_close(Device *device);

void arena_open(Arena *arena, Device *device, size_t bytes, VIP_PROTECTION_HANDLE ptag,
                VIP_BOOLEAN rdma_write);
void arena_close(Arena *arena);
unsigned char *arena_bytes(Arena *arena, size_t bytes);
/* A zeroed descriptor with room for `segments`. */
VIP_DESCRIPTOR *arena_descriptor(Arena *arena, unsigned segments);

/* The NIC's own address with a discriminator; one that no call has given before. */
void address_of(const Device *device, const char *discriminator, Address *address);
void fresh_discriminator(char *text, size_t bytes);

VIP_VI_ATTRIBUTES vi_attributes(const Device *device, const PairOptions *options);
VIP_VI_HANDLE vi_create(const Device *device, const PairOptions *options, bool server);

/* --- connections ----------------------------------------------------------------------------- */

/* A VipConnectRequest on its way in a thread of its own; repeated while it is VIP_NO_MATCH. */
typedef struct Request Request;
Request *request_start(const Device *device, VIP_VI_HANDLE vi, const char *discriminator,
                       VIP_ULONG timeout_ms);
VIP_RETURN request_finish(Request *request, VIP_VI_ATTRIBUTES *remote);

/* Creates two VIs and connects them. */
void pair_open(Pair *pair, const Device *device, const PairOptions *options);
void pair_connect(Pair *pair, const Device *device);
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
void with_immediate(VIP_DESCRIPTOR *descriptor, VIP_UINT32 immediate);

/* Wait for a queue that is on no CQ; checks that `expected` comes back and gives its status. */
VIP_UINT32 sent(VIP_VI_HANDLE vi, const VIP_DESCRIPTOR *expected);
VIP_UINT32 received(VIP_VI_HANDLE vi, const VIP_DESCRIPTOR *expected);

/* Sends a message both ways and checks it: the pair works. */
void pair_works(const Pair *pair, Arena *arena, const char *who);

/* --- asynchronous errors --------------------------------------------------------------------- */

/* Catches the errors of a NIC from now on. */
void errors_catch(const Device *device);
void errors_forget(void);
/* Waits for an error of this kind at this VI; checks that it comes and copies it if `found` is not NULL. */
bool error_expected(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found);
unsigned errors_of(VIP_VI_HANDLE vi, VIP_ERROR_CODE code);

#endif
