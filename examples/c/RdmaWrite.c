/*
 * RdmaWrite: a client writes into the memory of a server.
 *
 * The server registers its receive buffer with RDMA write enabled and sends its address and memory
 * handle to the client. The client fills the first half with an RDMA write, which completes no
 * descriptor at the server, and the second half with an RDMA write with immediate data, which
 * completes a receive. Writes of one VI are performed in order, so both halves are complete then;
 * the server verifies them and sends the result to the client.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vip_helpers.h"

enum {
    TRANSFER_BYTES = 65536,
    HALF_BYTES = TRANSFER_BYTES / 2,
    IMMEDIATE = 0x5EC0AD11,
    SLOTS = 2,
};

/* The server's buffer that the client writes, and the buffer for messages. */
enum { TARGET_SLOT = 0, MESSAGE_SLOT = 1 };

/* The server's message: the target of the writes. Both hosts are little-endian. */
typedef struct {
    VIP_UINT64 address;
    VIP_UINT32 handle;
    VIP_UINT32 bytes;
} WriteTarget;

typedef struct {
    const char *device, *discriminator, *ready_file, *server_name;
    unsigned long timeout_ms;
    bool server;
} Options;

static unsigned char pattern(unsigned half, size_t offset)
{
    return (unsigned char)(half * 101 + offset * 13 + (offset >> 8) + 1);
}

static const EndpointOptions endpoint_options = {
    .max_transfer_bytes = TRANSFER_BYTES,
    .slots = SLOTS,
    .rdma_write = true,
};

/* Sends `bytes` from the message slot and waits for the completion. */
static bool send_message(Endpoint *endpoint, const void *message, size_t bytes,
                         VIP_ULONG timeout_ms)
{
    VIP_DESCRIPTOR *descriptor = send_descriptor(endpoint, MESSAGE_SLOT);
    unsigned char *buffer = send_buffer(endpoint, MESSAGE_SLOT);

    memcpy(buffer, message, bytes);
    describe_send(descriptor, endpoint, buffer, bytes, NULL);
    return post_send(endpoint, descriptor) && wait_send(endpoint, timeout_ms) != NULL;
}

/* --- server ---------------------------------------------------------------------------------- */

static bool verify_target(const Endpoint *endpoint)
{
    const unsigned char *target = recv_buffer(endpoint, TARGET_SLOT);

    for (unsigned half = 0; half < 2; half++) {
        for (size_t i = 0; i < HALF_BYTES; i++) {
            if (target[half * HALF_BYTES + i] != pattern(half, i)) {
                print_error("half %u, byte %zu: unexpected value", half, i);
                return false;
            }
        }
    }
    return true;
}

/* Waits for the write with immediate data and verifies the data of both writes. */
static bool wait_for_writes(Endpoint *endpoint, VIP_ULONG timeout_ms)
{
    VIP_DESCRIPTOR *completed = wait_receive(endpoint, timeout_ms);

    if (completed == NULL)
        return false;
    if ((completed->CS.Status & VIP_STATUS_OP_MASK) != VIP_STATUS_OP_REMOTE_RDMA_WRITE ||
        !(completed->CS.Status & VIP_STATUS_IMMEDIATE) ||
        completed->CS.ImmediateData != IMMEDIATE || completed->CS.Length != HALF_BYTES) {
        print_error("not a completion of the write: status 0x%08X, immediate data 0x%08X",
                    completed->CS.Status, completed->CS.ImmediateData);
        return false;
    }
    return verify_target(endpoint);
}

static bool serve(Endpoint *endpoint, const Options *options)
{
    WriteTarget target = {
        .address = (VIP_UINT64)(uintptr_t)recv_buffer(endpoint, TARGET_SLOT),
        .handle = endpoint->memory_handle,
        .bytes = TRANSFER_BYTES,
    };

    if (!send_message(endpoint, &target, sizeof target, options->timeout_ms))
        return false;
    unsigned char good = wait_for_writes(endpoint, options->timeout_ms);
    return send_message(endpoint, &good, sizeof good, options->timeout_ms) && good;
}

static bool run_server(Device *device, const Options *options)
{
    NetAddress local, remote;
    Endpoint endpoint;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;

    if (!local_address(device, options->discriminator, &local) ||
        !endpoint_create(&endpoint, device, &endpoint_options))
        return false;
    bool good = post_receive(&endpoint, MESSAGE_SLOT) && announce_ready(options->ready_file) &&
                succeeded(VipConnectWait(device->nic, &local.address, VIP_INFINITE, &remote.address,
                                         &attributes, &request),
                          "VipConnectWait") &&
                succeeded(VipConnectAccept(request, endpoint.vi), "VipConnectAccept") &&
                serve(&endpoint, options);
    /* The client disconnects when it has the result, which flushes the last receive. */
    VIP_DESCRIPTOR *last;
    if (good && post_receive(&endpoint, MESSAGE_SLOT))
        VipRecvWait(endpoint.vi, options->timeout_ms, &last);
    endpoint_destroy(&endpoint);
    printf("RdmaWrite server: %s\n", good ? "all bytes correct" : "failed");
    return good;
}

/* --- client ---------------------------------------------------------------------------------- */

static bool write_half(Endpoint *endpoint, const WriteTarget *target, unsigned half,
                       const VIP_UINT32 *immediate, VIP_ULONG timeout_ms)
{
    unsigned char *data = send_buffer(endpoint, half);
    VIP_DESCRIPTOR *descriptor = send_descriptor(endpoint, half);

    for (size_t i = 0; i < HALF_BYTES; i++)
        data[i] = pattern(half, i);
    describe_rdma_write(descriptor, endpoint, data, HALF_BYTES,
                        target->address + half * HALF_BYTES, target->handle, immediate);
    return post_send(endpoint, descriptor) && wait_send(endpoint, timeout_ms) != NULL;
}

static bool write_and_get_result(Endpoint *endpoint, const Options *options)
{
    const VIP_UINT32 immediate = IMMEDIATE;
    WriteTarget target;
    VIP_DESCRIPTOR *message = wait_receive(endpoint, options->timeout_ms);

    if (message == NULL)
        return false;
    if (message->CS.Length != sizeof target) {
        print_error("the server's first message has %u bytes", message->CS.Length);
        return false;
    }
    memcpy(&target, received_data(message), sizeof target);
    if (target.bytes != TRANSFER_BYTES) {
        print_error("the server's buffer has %u bytes, expected %u", target.bytes,
                    (unsigned)TRANSFER_BYTES);
        return false;
    }
    if (!write_half(endpoint, &target, 0, NULL, options->timeout_ms) ||
        !write_half(endpoint, &target, 1, &immediate, options->timeout_ms))
        return false;
    message = wait_receive(endpoint, options->timeout_ms);
    return message != NULL && message->CS.Length == 1 && received_data(message)[0] == 1;
}

static bool run_client(Device *device, const Options *options)
{
    NetAddress local, remote;
    Endpoint endpoint;
    char own_discriminator[32];

    snprintf(own_discriminator, sizeof own_discriminator, "writer-%ld", (long)getpid());
    if (!local_address(device, own_discriminator, &local) ||
        !remote_address(device, options->server_name, options->discriminator, &remote) ||
        !endpoint_create(&endpoint, device, &endpoint_options))
        return false;
    bool good = post_receive(&endpoint, 0) && post_receive(&endpoint, 1) &&
                connect_to_server(&endpoint, &local, &remote, options->timeout_ms) &&
                write_and_get_result(&endpoint, options);
    endpoint_destroy(&endpoint);
    printf("RdmaWrite client: %s\n", good ? "the server verified all bytes" : "failed");
    return good;
}

/* --- command line ---------------------------------------------------------------------------- */

static void usage(FILE *stream)
{
    fprintf(stream,
            "usage: RdmaWrite -S [-d DEVICE] [-n DISCRIMINATOR] [-t TIMEOUT] [-r FILE]\n"
            "       RdmaWrite [-d DEVICE] [-n DISCRIMINATOR] [-t TIMEOUT] SERVERNAME\n"
            "  -S                server mode: accepts one client, verifies its writes and exits\n"
            "  -d DEVICE         the VI device to open (default VINIC)\n"
            "  -n DISCRIMINATOR  the name the server listens on (default viaduct-rdma)\n"
            "  -t TIMEOUT        timeout of each wait in milliseconds (default 10000)\n"
            "  -r FILE           create FILE when listening\n");
}

/* Parses the command line; prints the error and returns false if it is invalid. */
static bool parse_options(int argc, char **argv, Options *options)
{
    int letter;

    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        argv[1] = "-h";
    while ((letter = getopt(argc, argv, "Sd:n:t:r:h")) != -1) {
        switch (letter) {
        case 'S': options->server = true; break;
        case 'd': options->device = optarg; break;
        case 'n': options->discriminator = optarg; break;
        case 'r': options->ready_file = optarg; break;
        case 't':
            if (!parse_number(optarg, 1, 86400000, &options->timeout_ms)) {
                print_error("-t: invalid value \"%s\"", optarg);
                return false;
            }
            break;
        case 'h': usage(stdout); exit(exit_code(true));
        default: usage(stderr); return false;
        }
    }
    if (argc - optind != (options->server ? 0 : 1)) {
        usage(stderr);
        return false;
    }
    options->server_name = argv[optind];
    return true;
}

int main(int argc, char **argv)
{
    Options options = {.device = "VINIC", .discriminator = "viaduct-rdma", .timeout_ms = 10000};
    Device device;

    program_name = "RdmaWrite";
    if (!parse_options(argc, argv, &options))
        return 2;
    if (!device_open(&device, options.device))
        return EXIT_FAILURE;
    bool good = options.server ? run_server(&device, &options) : run_client(&device, &options);
    device_close(&device);
    return exit_code(good);
}
