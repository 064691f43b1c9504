#define _POSIX_C_SOURCE 200809L

#include "vip_helpers.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *program_name = "vipl";

/* --- messages ------------------------------------------------------------------------------- */

const char *vip_return_name(VIP_RETURN code)
{
    switch (code) {
    case VIP_SUCCESS: return "VIP_SUCCESS";
    case VIP_NOT_DONE: return "VIP_NOT_DONE";
    case VIP_INVALID_PARAMETER: return "VIP_INVALID_PARAMETER";
    case VIP_ERROR_RESOURCE: return "VIP_ERROR_RESOURCE";
    case VIP_TIMEOUT: return "VIP_TIMEOUT";
    case VIP_REJECT: return "VIP_REJECT";
    case VIP_INVALID_RELIABILITY_LEVEL: return "VIP_INVALID_RELIABILITY_LEVEL";
    case VIP_INVALID_MTU: return "VIP_INVALID_MTU";
    case VIP_INVALID_QOS: return "VIP_INVALID_QOS";
    case VIP_INVALID_PTAG: return "VIP_INVALID_PTAG";
    case VIP_INVALID_RDMAREAD: return "VIP_INVALID_RDMAREAD";
    case VIP_DESCRIPTOR_ERROR: return "VIP_DESCRIPTOR_ERROR";
    case VIP_INVALID_STATE: return "VIP_INVALID_STATE";
    case VIP_ERROR_NAMESERVICE: return "VIP_ERROR_NAMESERVICE";
    case VIP_NO_MATCH: return "VIP_NO_MATCH";
    case VIP_NOT_REACHABLE: return "VIP_NOT_REACHABLE";
    }
    return "unknown VIP_RETURN";
}

const char *vip_status_text(VIP_UINT32 status)
{
    static const struct {
        VIP_UINT32 bit;
        const char *name;
    } bits[] = {
        {VIP_STATUS_FORMAT_ERROR, "FORMAT_ERROR"},
        {VIP_STATUS_PROTECTION_ERROR, "PROTECTION_ERROR"},
        {VIP_STATUS_LENGTH_ERROR, "LENGTH_ERROR"},
        {VIP_STATUS_PARTIAL_ERROR, "PARTIAL_ERROR"},
        {VIP_STATUS_DESC_FLUSHED_ERROR, "DESC_FLUSHED_ERROR"},
        {VIP_STATUS_TRANSPORT_ERROR, "TRANSPORT_ERROR"},
        {VIP_STATUS_RDMA_PROT_ERROR, "RDMA_PROT_ERROR"},
        {VIP_STATUS_REMOTE_DESC_ERROR, "REMOTE_DESC_ERROR"},
    };
    static __thread char text[160];
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
        if (status & bits[i].bit)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? " " : "",
                                     bits[i].name);
    }
    return used ? text : "no error";
}

void print_error(const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "%s: ", program_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
}

static bool output_failed;

bool flush_output(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    print_error("standard output: %s", strerror(errno));
    clearerr(stdout);
    /* Atomic: several threads print. */
    __atomic_store_n(&output_failed, true, __ATOMIC_RELAXED);
    return false;
}

int exit_code(bool good)
{
    bool written = flush_output() && !__atomic_load_n(&output_failed, __ATOMIC_RELAXED);

    return good && written ? EXIT_SUCCESS : EXIT_FAILURE;
}

bool succeeded(VIP_RETURN code, const char *what)
{
    if (code != VIP_SUCCESS)
        print_error("%s: %s", what, vip_return_name(code));
    return code == VIP_SUCCESS;
}

bool parse_number(const char *text, unsigned long lowest, unsigned long highest,
                  unsigned long *number)
{
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *number = strtoul(text, &end, 10);
    return errno == 0 && *end == '\0' && *number >= lowest && *number <= highest;
}

/* --- device and addresses ------------------------------------------------------------------- */

/* Lost connections are handled where their descriptors complete as flushed. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    if (error->ErrorCode != VIP_ERROR_CONN_LOST)
        print_error("asynchronous error %d", (int)error->ErrorCode);
}

bool device_open(Device *device, const char *name)
{
    memset(device, 0, sizeof *device);
    VIP_RETURN code = VipOpenNic(name, &device->nic);
    if (code != VIP_SUCCESS) {
        print_error("cannot open the device \"%s\": %s", name, vip_return_name(code));
        device->nic = NULL;
        return false;
    }
    if (!succeeded(VipQueryNic(device->nic, &device->attributes), "VipQueryNic") ||
        !succeeded(VipErrorCallback(device->nic, NULL, on_error), "VipErrorCallback") ||
        !succeeded(VipCreatePtag(device->nic, &device->ptag), "VipCreatePtag")) {
        device->ptag = NULL;
        device_close(device);
        return false;
    }
    return true;
}

void device_close(Device *device)
{
    if (device->nic == NULL)
        return;
    if (device->ptag != NULL)
        succeeded(VipDestroyPtag(device->nic, device->ptag), "VipDestroyPtag");
    succeeded(VipCloseNic(device->nic), "VipCloseNic");
    device->nic = NULL;
}

/* Appends the discriminator to an address that has its host part. */
static bool set_discriminator(const Device *device, const char *discriminator, NetAddress *address)
{
    size_t bytes = strlen(discriminator);

    if (bytes > device->attributes.MaxDiscriminatorLen ||
        address->address.HostAddressLen + bytes > ADDRESS_BODY_BYTES) {
        print_error("discriminator \"%s\": longer than the %u bytes of MaxDiscriminatorLen",
                    discriminator, device->attributes.MaxDiscriminatorLen);
        return false;
    }
    address->address.DiscriminatorLen = (VIP_UINT16)bytes;
    memcpy(address->bytes + offsetof(VIP_NET_ADDRESS, HostAddress) +
               address->address.HostAddressLen,
           discriminator, bytes);
    return true;
}

bool local_address(const Device *device, const char *discriminator, NetAddress *address)
{
    memset(address, 0, sizeof *address);
    address->address.HostAddressLen = device->attributes.NicAddressLen;
    memcpy(address->bytes + offsetof(VIP_NET_ADDRESS, HostAddress),
           device->attributes.LocalNicAddress, device->attributes.NicAddressLen);
    return set_discriminator(device, discriminator, address);
}

bool remote_address(const Device *device, const char *host, const char *discriminator,
                    NetAddress *address)
{
    char name[256];

    if (strlen(host) >= sizeof name) {
        print_error("host name: longer than 255 bytes");
        return false;
    }
    strcpy(name, host);
    memset(address, 0, sizeof *address);
    address->address.HostAddressLen = device->attributes.NicAddressLen;
    if (!succeeded(VipNSInit(device->nic, NULL), "VipNSInit"))
        return false;
    VIP_RETURN code = VipNSGetHostByName(device->nic, name, &address->address, 0);
    if (code != VIP_SUCCESS)
        print_error("host \"%s\": not found: %s", host, vip_return_name(code));
    bool shut_down = succeeded(VipNSShutdown(device->nic), "VipNSShutdown");
    return code == VIP_SUCCESS && shut_down && set_discriminator(device, discriminator, address);
}

/* --- endpoints ------------------------------------------------------------------------------ */

static size_t descriptors_bytes(unsigned slots)
{
    return 2 * (size_t)slots * sizeof(VIP_DESCRIPTOR);
}

VIP_DESCRIPTOR *recv_descriptor(const Endpoint *endpoint, unsigned n)
{
    return (VIP_DESCRIPTOR *)(void *)endpoint->memory + n;
}

VIP_DESCRIPTOR *send_descriptor(const Endpoint *endpoint, unsigned n)
{
    return (VIP_DESCRIPTOR *)(void *)endpoint->memory + endpoint->slots + n;
}

unsigned char *recv_buffer(const Endpoint *endpoint, unsigned n)
{
    return endpoint->memory + descriptors_bytes(endpoint->slots) + n * endpoint->stride_bytes;
}

unsigned char *send_buffer(const Endpoint *endpoint, unsigned n)
{
    return recv_buffer(endpoint, endpoint->slots + n);
}

unsigned char *received_data(const VIP_DESCRIPTOR *descriptor)
{
    return descriptor->DS[0].Local.Data.Address;
}

/* Allocates and registers the endpoint's memory. */
static bool allocate(Endpoint *endpoint, const EndpointOptions *options)
{
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    VIP_MEM_ATTRIBUTES attributes = {endpoint->device->ptag, options->rdma_write, VIP_FALSE};
    void *memory;

    /* Buffers are aligned to 64 bytes and exist even for messages of length 0. */
    endpoint->slots = options->slots;
    endpoint->message_bytes = options->max_transfer_bytes;
    endpoint->stride_bytes = (options->max_transfer_bytes / 64 + 1) * 64;
    endpoint->memory_bytes =
        descriptors_bytes(options->slots) + 2 * (size_t)options->slots * endpoint->stride_bytes;
    if (posix_memalign(&memory, page_bytes, endpoint->memory_bytes) != 0) {
        print_error("out of memory");
        return false;
    }
    memset(memory, 0, endpoint->memory_bytes);
    endpoint->memory = memory;
    return succeeded(VipRegisterMem(endpoint->device->nic, memory, endpoint->memory_bytes,
                                    &attributes, &endpoint->memory_handle),
                     "VipRegisterMem");
}

bool endpoint_create(Endpoint *endpoint, Device *device, const EndpointOptions *options)
{
    VIP_VI_ATTRIBUTES attributes = {
        .ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY,
        .MaxTransferSize = options->max_transfer_bytes,
        .Ptag = device->ptag,
        .EnableRdmaWrite = options->rdma_write,
    };

    memset(endpoint, 0, sizeof *endpoint);
    endpoint->device = device;
    if (!allocate(endpoint, options)) {
        endpoint_destroy(endpoint);
        return false;
    }
    VIP_RETURN code =
        VipCreateVi(device->nic, &attributes, NULL, options->recv_cq, &endpoint->vi);
    if (!succeeded(code, "VipCreateVi")) {
        endpoint->vi = NULL;
        endpoint_destroy(endpoint);
        return false;
    }
    return true;
}

void endpoint_destroy(Endpoint *endpoint)
{
    VIP_DESCRIPTOR *descriptor;

    if (endpoint->vi != NULL) {
        succeeded(VipDisconnect(endpoint->vi), "VipDisconnect");
        /* All descriptors are completed or flushed: collect them until both queues are empty. */
        do {
            VipSendDone(endpoint->vi, &descriptor);
        } while (descriptor != NULL);
        do {
            VipRecvDone(endpoint->vi, &descriptor);
        } while (descriptor != NULL);
        succeeded(VipDestroyVi(endpoint->vi), "VipDestroyVi");
    }
    if (endpoint->memory_handle != 0)
        succeeded(VipDeregisterMem(endpoint->device->nic, endpoint->memory,
                                   endpoint->memory_handle),
                  "VipDeregisterMem");
    free(endpoint->memory);
    memset(endpoint, 0, sizeof *endpoint);
}

static void describe(VIP_DESCRIPTOR *descriptor, unsigned segments, VIP_UINT16 control,
                     size_t bytes, const VIP_UINT32 *immediate)
{
    memset(descriptor, 0, sizeof *descriptor);
    descriptor->CS.SegCount = (VIP_UINT16)segments;
    descriptor->CS.Control = control;
    descriptor->CS.Length = (VIP_UINT32)bytes;
    if (immediate != NULL) {
        descriptor->CS.Control |= VIP_CONTROL_IMMEDIATE;
        descriptor->CS.ImmediateData = *immediate;
    }
}

static void describe_local(VIP_DESCRIPTOR_SEGMENT *segment, const Endpoint *endpoint,
                           const void *data, size_t bytes)
{
    segment->Local.Data.AddressBits = (VIP_UINT64)(uintptr_t)data;
    segment->Local.Handle = endpoint->memory_handle;
    segment->Local.Length = (VIP_UINT32)bytes;
}

bool post_receive(Endpoint *endpoint, unsigned n)
{
    VIP_DESCRIPTOR *descriptor = recv_descriptor(endpoint, n);

    describe(descriptor, 1, VIP_CONTROL_OP_SENDRECV, endpoint->message_bytes, NULL);
    describe_local(&descriptor->DS[0], endpoint, recv_buffer(endpoint, n), endpoint->message_bytes);
    return succeeded(VipPostRecv(endpoint->vi, descriptor, endpoint->memory_handle), "VipPostRecv");
}

void describe_send(VIP_DESCRIPTOR *descriptor, const Endpoint *endpoint, const void *data,
                   size_t bytes, const VIP_UINT32 *immediate)
{
    describe(descriptor, 1, VIP_CONTROL_OP_SENDRECV, bytes, immediate);
    describe_local(&descriptor->DS[0], endpoint, data, bytes);
}

void describe_rdma_write(VIP_DESCRIPTOR *descriptor, const Endpoint *endpoint, const void *data,
                         size_t bytes, VIP_UINT64 remote_address, VIP_MEM_HANDLE remote_handle,
                         const VIP_UINT32 *immediate)
{
    describe(descriptor, 2, VIP_CONTROL_OP_RDMAWRITE, bytes, immediate);
    descriptor->DS[0].Remote.Data.AddressBits = remote_address;
    descriptor->DS[0].Remote.Handle = remote_handle;
    describe_local(&descriptor->DS[1], endpoint, data, bytes);
}

bool post_send(Endpoint *endpoint, VIP_DESCRIPTOR *descriptor)
{
    return succeeded(VipPostSend(endpoint->vi, descriptor, endpoint->memory_handle), "VipPostSend");
}

/* Returns the descriptor of a successful Wait call; otherwise prints the error. */
static VIP_DESCRIPTOR *check_wait(VIP_RETURN code, VIP_DESCRIPTOR *descriptor, const char *call)
{
    if (code == VIP_SUCCESS)
        return descriptor;
    if (code == VIP_DESCRIPTOR_ERROR && descriptor != NULL)
        print_error("%s: %s", call, vip_status_text(descriptor->CS.Status));
    else
        print_error("%s: %s", call, vip_return_name(code));
    return NULL;
}

VIP_DESCRIPTOR *wait_receive(Endpoint *endpoint, VIP_ULONG timeout_ms)
{
    VIP_DESCRIPTOR *descriptor = NULL;
    VIP_RETURN code = VipRecvWait(endpoint->vi, timeout_ms, &descriptor);

    return check_wait(code, descriptor, "VipRecvWait");
}

VIP_DESCRIPTOR *wait_send(Endpoint *endpoint, VIP_ULONG timeout_ms)
{
    VIP_DESCRIPTOR *descriptor = NULL;
    VIP_RETURN code = VipSendWait(endpoint->vi, timeout_ms, &descriptor);

    return check_wait(code, descriptor, "VipSendWait");
}

static VIP_ULONG now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (VIP_ULONG)now.tv_sec * 1000 + (VIP_ULONG)now.tv_nsec / 1000000;
}

bool connect_to_server(Endpoint *endpoint, NetAddress *local, NetAddress *remote,
                       VIP_ULONG timeout_ms)
{
    /* There is no notification that a server listens, hence a short pause between attempts. */
    const struct timespec pause = {0, 1000000};
    const VIP_ULONG deadline_ms = now_ms() + timeout_ms;
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN code = VIP_TIMEOUT;

    for (VIP_ULONG now = now_ms(); now < deadline_ms; now = now_ms()) {
        code = VipConnectRequest(endpoint->vi, &local->address, &remote->address,
                                 deadline_ms - now, &attributes);
        if (code != VIP_NO_MATCH)
            break;
        nanosleep(&pause, NULL);
    }
    return succeeded(code, "cannot connect");
}

/* --- servers -------------------------------------------------------------------------------- */

bool announce_ready(const char *path)
{
    if (path == NULL)
        return true;
    FILE *file = fopen(path, "w");
    if (file == NULL || fclose(file) != 0) {
        print_error("cannot write %s: %s", path, strerror(errno));
        return false;
    }
    return true;
}

static volatile sig_atomic_t stop_signal;

static void on_stop_signal(int number)
{
    stop_signal = number;
}

void catch_stop_signals(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_stop_signal;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool stop_requested(void)
{
    return stop_signal != 0;
}
