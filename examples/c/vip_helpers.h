/*
 * What every VIPL program needs: opening a NIC, network addresses, endpoints with registered
 * memory, descriptors, and readable messages.
 */
#ifndef VIP_HELPERS_H
#define VIP_HELPERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vipl.h>

/* Room for a host address and a discriminator; VIPL wants at least 16 bytes of the latter. */
#define ADDRESS_BODY_BYTES 256

/* A VIP_NET_ADDRESS with the room it needs behind it. */
typedef union {
    VIP_NET_ADDRESS address;
    unsigned char room[offsetof(VIP_NET_ADDRESS, HostAddress) + ADDRESS_BODY_BYTES];
} NetAddress;

/* An open NIC, what it can do, and the protection tag that this program uses on it. */
typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_PROTECTION_HANDLE ptag;
} Device;

/*
 * A VI with one block of registered memory: the descriptors first, the message buffers behind
 * them. `slots` messages can be in flight in either direction.
 */
typedef struct {
    Device *device;
    VIP_VI_HANDLE vi;
    unsigned char *memory;
    size_t memory_bytes;
    VIP_MEM_HANDLE memory_handle;
    unsigned slots;
    size_t message_bytes; /* of the longest message */
    size_t stride_bytes;  /* from one buffer to the next */
} Endpoint;

/* What an endpoint shall be like. */
typedef struct {
    VIP_ULONG max_transfer_bytes;
    unsigned slots;
    VIP_CQ_HANDLE recv_cq; /* NULL: receives are collected from the receive queue itself */
    bool rdma_write;       /* the peer may write into this endpoint's buffers */
} EndpointOptions;

/* --- messages ------------------------------------------------------------------------------- */

/* The name that all messages begin with. */
extern const char *program_name;

/* The name of a return code, and the names of a status's error bits (in a static buffer per thread). */
const char *vip_return_name(VIP_RETURN code);
const char *vip_status_text(VIP_UINT32 status);

/* Prints "program: text" to standard error. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Writes what was printed to standard output; false, with a message, if that fails. */
bool flush_output(void);

/* EXIT_SUCCESS if the program was `good` and all its output was written. */
int exit_code(bool good);

/* True for VIP_SUCCESS; otherwise says what failed, and how. */
bool succeeded(VIP_RETURN code, const char *what);

/* Reads a decimal number between `lowest` and `highest`, the whole of `text`. */
bool parse_number(const char *text, unsigned long lowest, unsigned long highest,
                  unsigned long *number);

/* --- device and addresses ------------------------------------------------------------------- */

/* Asynchronous errors of the device are told, but for lost connections. */
bool device_open(Device *device, const char *name);
void device_close(Device *device);

/* The address of this host with a discriminator. */
bool local_address(const Device *device, const char *discriminator, NetAddress *address);

/* The address of a named host with a discriminator; starts and ends the name service for it. */
bool remote_address(const Device *device, const char *host, const char *discriminator,
                    NetAddress *address);

/* --- endpoints ------------------------------------------------------------------------------ */

bool endpoint_create(Endpoint *endpoint, Device *device, const EndpointOptions *options);

/* Disconnects, collects every descriptor, and gives everything back. */
void endpoint_destroy(Endpoint *endpoint);

/* The n-th buffer and descriptor of each direction; n is below `slots`. */
unsigned char *recv_buffer(const Endpoint *endpoint, unsigned n);
unsigned char *send_buffer(const Endpoint *endpoint, unsigned n);
VIP_DESCRIPTOR *recv_descriptor(const Endpoint *endpoint, unsigned n);
VIP_DESCRIPTOR *send_descriptor(const Endpoint *endpoint, unsigned n);

/* The buffer that a completed receive descriptor has filled. */
unsigned char *received_data(const VIP_DESCRIPTOR *descriptor);

/* Posts the n-th receive buffer. */
bool post_receive(Endpoint *endpoint, unsigned n);

/* Fills in a descriptor that sends `bytes` from `data`, with immediate data if it is not NULL. */
void describe_send(VIP_DESCRIPTOR *descriptor, const Endpoint *endpoint, const void *data,
                   size_t bytes, const VIP_UINT32 *immediate);

/* The same for a write into the peer's memory. */
void describe_rdma_write(VIP_DESCRIPTOR *descriptor, const Endpoint *endpoint, const void *data,
                         size_t bytes, VIP_UINT64 remote_address, VIP_MEM_HANDLE remote_handle,
                         const VIP_UINT32 *immediate);

/* Posts a send-queue descriptor. */
bool post_send(Endpoint *endpoint, VIP_DESCRIPTOR *descriptor);

/* Wait for the next descriptor of a queue; NULL after a failure, which is told. */
VIP_DESCRIPTOR *wait_receive(Endpoint *endpoint, VIP_ULONG timeout_ms);
VIP_DESCRIPTOR *wait_send(Endpoint *endpoint, VIP_ULONG timeout_ms);

/*
 * Asks for a connection until it stands or the time is up. A server that is between two
 * VipConnectWait calls answers VIP_NO_MATCH: then the request is repeated.
 */
bool connect_to_server(Endpoint *endpoint, NetAddress *local, NetAddress *remote,
                       VIP_ULONG timeout_ms);

/* --- servers -------------------------------------------------------------------------------- */

/* Creates `path` (and says nothing if it is NULL) to tell scripts that the server listens. */
bool announce_ready(const char *path);

/* SIGINT and SIGTERM set a flag that this returns. */
void catch_stop_signals(void);
bool stop_requested(void);

#endif
