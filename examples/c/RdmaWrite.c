/*
 * RdmaWrite: one program writes into the memory of another.
 *
 * The server registers its receive buffer with RDMA write enabled and sends the client its address
 * and memory handle. The client fills the first half of it with a plain RDMA write, of which the
 * server's program sees nothing, and the second half with one that carries immediate data, which
 * completes a receive there. Writes of one VI are done in order, so that then both halves are in
 * place; the server checks them and sends its verdict back.
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

/* Which buffer of the server is written to, and which takes messages. */
enum { TARGET_SLOT = 0, MESSAGE_SLOT = 1 };

/* The server's message: where the client may write. Both ends are little-endian, as descriptors are. */
typedef struct {
    VIP_UINT64 address;
    VIP_UINT32 handle;
    VIP_UINT32 bytes;
} Invitation;

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

/* Sends `bytes` from the message slot and waits until they are gone. */
static bool send_message(Endpoint *endpoint, const void *message, size_t bytes, VIP_ULONG timeout_ms)
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
                complain("half %u, byte %zu is wrong", half, i);
                return false;
            }
        }
    }
    return true;
}

/* Waits for the write with immediate data and checks what both writes have left. */
static bool await_writes(Endpoint *endpoint, VIP_ULONG timeout_ms)
{
    VIP_DESCRIPTOR *arrival = wait_receive(endpoint, timeout_ms);

    if (arrival == NULL)
        return false;
    if ((arrival->CS.Status & VIP_STATUS_OP_MASK) != VIP_STATUS_OP_REMOTE_RDMA_WRITE ||
        !(arrival->CS.Status & VIP_STATUS_IMMEDIATE) || arrival->CS.ImmediateData != IMMEDIATE ||
        arrival->CS.Length != HALF_BYTES) {
        complain("the completion is not that of the write: status 0x%08X, immediate data 0x%08X",
                 arrival->CS.Status, arrival->CS.ImmediateData);
        return false;
    }
    return verify_target(endpoint);
}

static bool serve(Endpoint *endpoint, const Options *options)
{
    Invitation invitation = {
        .address = (VIP_UINT64)(uintptr_t)recv_buffer(endpoint, TARGET_SLOT),
        .handle = endpoint->memory_handle,
        .bytes = TRANSFER_BYTES,
    };

    if (!send_message(endpoint, &invitation, sizeof invitation, options->timeout_ms))
        return false;
    unsigned char verdict = await_writes(endpoint, options->timeout_ms);
    return send_message(endpoint, &verdict, sizeof verdict, options->timeout_ms) && verdict;
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
    /* The client disconnects when it has the verdict: the last receive comes back flushed. */
    VIP_DESCRIPTOR *last;
    if (good && post_receive(&endpoint, MESSAGE_SLOT))
        VipRecvWait(endpoint.vi, options->timeout_ms, &last);
    endpoint_destroy(&endpoint);
    printf("RdmaWrite server: %s\n", good ? "every byte was right" : "failed");
    return good;
}

/* --- client ---------------------------------------------------------------------------------- */

static bool write_half(Endpoint *endpoint, const Invitation *invitation, unsigned half,
                       const VIP_UINT32 *immediate, VIP_ULONG timeout_ms)
{
    unsigned char *data = send_buffer(endpoint, half);
    VIP_DESCRIPTOR *descriptor = send_descriptor(endpoint, half);

    for (size_t i = 0; i < HALF_BYTES; i++)
        data[i] = pattern(half, i);
    describe_rdma_write(descriptor, endpoint, data, HALF_BYTES,
                        invitation->address + half * HALF_BYTES, invitation->handle, immediate);
    return post_send(endpoint, descriptor) && wait_send(endpoint, timeout_ms) != NULL;
}

static bool write_and_ask(Endpoint *endpoint, const Options *options)
{
    const VIP_UINT32 immediate = IMMEDIATE;
    Invitation invitation;
    VIP_DESCRIPTOR *message = wait_receive(endpoint, options->timeout_ms);

    if (message == NULL)
        return false;
    if (message->CS.Length != sizeof invitation) {
        complain("the server's first message has %u bytes", message->CS.Length);
        return false;
    }
    memcpy(&invitation, received_data(message), sizeof invitation);
    if (invitation.bytes != TRANSFER_BYTES) {
        complain("the server offers %u bytes", invitation.bytes);
        return false;
    }
    if (!write_half(endpoint, &invitation, 0, NULL, options->timeout_ms) ||
        !write_half(endpoint, &invitation, 1, &immediate, options->timeout_ms))
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
                write_and_ask(&endpoint, options);
    endpoint_destroy(&endpoint);
    printf("RdmaWrite client: %s\n", good ? "the server found every byte right" : "failed");
    return good;
}

/* --- command line ---------------------------------------------------------------------------- */

static void usage(FILE *stream)
{
    fprintf(stream,
            "usage: RdmaWrite -S [-d DEVICE] [-n DISCRIMINATOR] [-t TIMEOUT] [-r FILE]\n"
            "       RdmaWrite [-d DEVICE] [-n DISCRIMINATOR] [-t TIMEOUT] SERVERNAME\n"
            "  -S                be the server: let one client write, check, exit\n"
            "  -d DEVICE         the VI device to open (default VINIC)\n"
            "  -n DISCRIMINATOR  the name the server listens on (default viaduct-rdma)\n"
            "  -t TIMEOUT        milliseconds to wait for anything (default 10000)\n"
            "  -r FILE           create FILE when listening\n");
}

/* True if the options are good; otherwise usage has been given. */
static bool parse_options(int count, char **words, Options *options)
{
    int letter;

    if (count == 2 && strcmp(words[1], "--help") == 0)
        words[1] = "-h";
    while ((letter = getopt(count, words, "Sd:n:t:r:h")) != -1) {
        switch (letter) {
        case 'S': options->server = true; break;
        case 'd': options->device = optarg; break;
        case 'n': options->discriminator = optarg; break;
        case 'r': options->ready_file = optarg; break;
        case 't':
            if (!parse_number(optarg, 1, 86400000, &options->timeout_ms)) {
                complain("-t does not take \"%s\"", optarg);
                return false;
            }
            break;
        case 'h': usage(stdout); exit(exit_code(true));
        default: usage(stderr); return false;
        }
    }
    if (count - optind != (options->server ? 0 : 1)) {
        usage(stderr);
        return false;
    }
    options->server_name = words[optind];
    return true;
}

int main(int count, char **words)
{
    Options options = {.device = "VINIC", .discriminator = "viaduct-rdma", .timeout_ms = 10000};
    Device device;

    program_name = "RdmaWrite";
    if (!parse_options(count, words, &options))
        return 2;
    if (!device_open(&device, options.device))
        return EXIT_FAILURE;
    bool good = options.server ? run_server(&device, &options) : run_client(&device, &options);
    device_close(&device);
    return exit_code(good);
}
