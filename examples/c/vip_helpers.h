/*
 * Common functions of the examples: opening a NIC, network addresses, endpoints with registered
 * memory, descriptors, and error messages.
 */
#ifndef VIP_HELPERS_H
#define VIP_HELPERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vipl.h>

/* Maximum length of a host address plus a discriminator; VIPL requires 16 bytes for the latter. */
#define ADDRESS_BODY_BYTES 256

/* A VIP_NET_ADDRESS followed by the space for host address and discriminator. */
typedef union {
    VIP_NET_ADDRESS address;
    unsigned char bytes[offsetof(VIP_NET_ADDRESS, HostAddress) + ADDRESS_BODY_BYTES];
} NetAddress;

/* An open NIC, its attributes, and the protection tag of this program. */
typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_PROTECTION_HANDLE ptag;
} Device;

/*
 * A VI with one block of registered memory: the descriptors, followed by the message buffers.
 * Up to `slots` messages can be in flight in each direction.
 */
typedef struct {
    Device *device;
    VIP_VI_HANDLE vi;
    unsigned char *memory;
    size_t memory_bytes;
    VIP_MEM_HANDLE memory_handle;
    unsigned slots;
    size_t message_bytes; /* maximum message length */
    size_t stride_bytes;  /* distance between buffers */
} Endpoint;

/* Options of an endpoint. */
typedef struct {
    VIP_ULONG max_transfer_bytes;
    unsigned slots;
    VIP_CQ_HANDLE recv_cq; /* completion queue of the receive queue, or NULL */
    bool rdma_write;       /* enables RDMA writes of the peer into this endpoint's buffers */
} EndpointOptions;

/* --- messages ------------------------------------------------------------------------------- */

/* Prefix of all error messages. */
extern const char *program_name;

/* Returns the name of a return code. */
const char *vip_return_name(VIP_RETURN code);

/* Returns the names of the error bits of a status, in a thread-local buffer. */
const char *vip_status_text(VIP_UINT32 status);

/* Prints "program: text" to standard error. */
void print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Flushes standard output; prints the error and returns false on failure. */
bool flush_output(void);

/* Returns EXIT_SUCCESS if `good` and all output was written. */
int exit_code(bool good);

/* Returns true for VIP_SUCCESS; otherwise prints `what` and the return code. */
bool succeeded(VIP_RETURN code, const char *what);

/* Parses the whole of `text` as a decimal number between `lowest` and `highest`. */
bool parse_number(const char *text, unsigned long lowest, unsigned long highest,
                  unsigned long *number);

/* --- device and addresses ------------------------------------------------------------------- */

/* Opens a NIC; its asynchronous errors other than lost connections are printed. */
bool device_open(Device *device, const char *name);
void device_close(Device *device);

/* Returns the address of this host with a discriminator. */
bool local_address(const Device *device, const char *discriminator, NetAddress *address);

/* Returns the address of a named host with a discriminator; initializes and shuts down the name
 * service. */
bool remote_address(const Device *device, const char *host, const char *discriminator,
                    NetAddress *address);

/* --- endpoints ------------------------------------------------------------------------------ */

bool endpoint_create(Endpoint *endpoint, Device *device, const EndpointOptions *options);

/* Disconnects, collects all descriptors, and releases all resources. */
void endpoint_destroy(Endpoint *endpoint);

/* Return the n-th buffer or descriptor of a direction; n < slots. */
unsigned char *recv_buffer(const Endpoint *endpoint, unsigned n);
unsigned char *send_buffer(const Endpoint *endpoint, unsigned n);
VIP_DESCRIPTOR *recv_descriptor(const Endpoint *endpoint, unsigned n);
VIP_DESCRIPTOR *send_descriptor(const Endpoint *endpoint, unsigned n);

/* Returns the buffer of a completed receive descriptor. */
unsigned char *received_data(const VIP_DESCRIPTOR *descriptor);

/* Posts the n-th receive buffer. */
bool post_receive(Endpoint *endpoint, unsigned n);

/* Fills in a descriptor that sends `bytes` from `data`, with immediate data if it is not NULL. */
void describe_send(VIP_DESCRIPTOR *descriptor, const Endpoint *endpoint, const void *data,
                   size_t bytes, const VIP_UINT32 *immediate);

/* Like describe_send, for an RDMA write into the peer's memory. */
void describe_rdma_write(VIP_DESCRIPTOR *descriptor, const Endpoint *endpoint, const void *data,
                         size_t bytes, VIP_UINT64 remote_address, VIP_MEM_HANDLE remote_handle,
                         const VIP_UINT32 *immediate);

/* Posts a send-queue descriptor. */
bool post_send(Endpoint *endpoint, VIP_DESCRIPTOR *descriptor);

/* Wait for the next completion of a queue; print the error and return NULL on failure. */
VIP_DESCRIPTOR *wait_receive(Endpoint *endpoint, VIP_ULONG timeout_ms);
VIP_DESCRIPTOR *wait_send(Endpoint *endpoint, VIP_ULONG timeout_ms);

/*
 * Connects within the timeout. While the server is not in VipConnectWait the request returns
 * VIP_NO_MATCH and is repeated.
 */
bool connect_to_server(Endpoint *endpoint, NetAddress *local, NetAddress *remote,
                       VIP_ULONG timeout_ms);

/* --- servers -------------------------------------------------------------------------------- */

/* Creates the file `path`, unless it is NULL, to signal to scripts that the server listens. */
bool announce_ready(const char *path);

/* Installs handlers of SIGINT and SIGTERM that request a stop. */
void catch_stop_signals(void);
bool stop_requested(void);

#endif
