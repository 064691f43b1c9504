/*
 * Peers: the parts of a parallel program, each connected to each other one.
 *
 * There is no server. Each part requests a connection to every other part and then polls its
 * requests: two requests match if each has the host of the other and both have the same
 * discriminator, here built from the two ranks. The parts may be started in any order. Then each
 * part sends its rank to all others and sums up the ranks that it receives.
 */
#define _POSIX_C_SOURCE 200809L

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vip_helpers.h"

enum { MAX_PARTS = 64 };

typedef struct {
    const char *device, *group;
    char **hosts;
    unsigned host_count;
    unsigned long rank, parts, timeout_ms;
} Options;

/* The connection to another part. */
typedef struct {
    Endpoint endpoint;
    bool created, connected;
} Peer;

static const EndpointOptions endpoint_options = {.max_transfer_bytes = 4096, .slots = 1};

/* Returns the host of a part. */
static const char *host_of(const Options *options, unsigned long rank)
{
    if (options->host_count == 0)
        return "localhost";
    return options->hosts[options->host_count == 1 ? 0 : rank];
}

/* Requests a connection to part `other`; the request is matched in the background. */
static bool request_connection(Peer *peer, Device *device, const Options *options,
                               unsigned long other)
{
    const unsigned long low = other < options->rank ? other : options->rank,
                        high = other < options->rank ? options->rank : other;
    char discriminator[64], own[64];
    NetAddress local, remote;

    snprintf(discriminator, sizeof discriminator, "%s %lu-%lu", options->group, low, high);
    snprintf(own, sizeof own, "%s %lu", options->group, options->rank);
    if (!local_address(device, own, &local) ||
        !remote_address(device, host_of(options, other), discriminator, &remote) ||
        !endpoint_create(&peer->endpoint, device, &endpoint_options))
        return false;
    peer->created = true;
    return post_receive(&peer->endpoint, 0) &&
           succeeded(VipConnectPeerRequest(peer->endpoint.vi, &local.address, &remote.address,
                                           options->timeout_ms),
                     "VipConnectPeerRequest");
}

/* Polls all requests until each is connected. */
static bool connect_all(Peer *peers, const Options *options)
{
    unsigned long pending = options->parts - 1;

    while (pending > 0) {
        for (unsigned long other = 0; other < options->parts; other++) {
            VIP_VI_ATTRIBUTES attributes;

            if (!peers[other].created || peers[other].connected)
                continue;
            VIP_RETURN code = VipConnectPeerDone(peers[other].endpoint.vi, &attributes);
            if (code == VIP_NOT_DONE)
                continue;
            if (code != VIP_SUCCESS) {
                print_error("no connection with part %lu: %s", other, vip_return_name(code));
                return false;
            }
            peers[other].connected = true;
            pending--;
        }
        /* An application would compute here. */
        sched_yield();
    }
    return true;
}

static bool send_rank(Endpoint *endpoint, VIP_UINT32 rank)
{
    VIP_DESCRIPTOR *descriptor = send_descriptor(endpoint, 0);
    unsigned char *buffer = send_buffer(endpoint, 0);

    memcpy(buffer, &rank, sizeof rank);
    describe_send(descriptor, endpoint, buffer, sizeof rank, NULL);
    return post_send(endpoint, descriptor);
}

/* Receives the message of part `other`, which must be its rank. */
static bool receive_rank(Endpoint *endpoint, VIP_UINT32 other, VIP_ULONG timeout_ms)
{
    VIP_DESCRIPTOR *message = wait_receive(endpoint, timeout_ms);
    VIP_UINT32 rank;

    if (message == NULL)
        return false;
    memcpy(&rank, received_data(message), sizeof rank);
    if (message->CS.Length != sizeof rank || rank != other) {
        print_error("part %u: received %u bytes, rank %u", other, message->CS.Length, rank);
        return false;
    }
    return true;
}

static bool run(Device *device, Peer *peers, const Options *options)
{
    unsigned long sum = options->rank;

    for (unsigned long other = 0; other < options->parts; other++)
        if (other != options->rank && !request_connection(&peers[other], device, options, other))
            return false;
    if (!connect_all(peers, options))
        return false;
    for (unsigned long other = 0; other < options->parts; other++)
        if (peers[other].created && !send_rank(&peers[other].endpoint, (VIP_UINT32)options->rank))
            return false;
    for (unsigned long other = 0; other < options->parts; other++) {
        Endpoint *endpoint = &peers[other].endpoint;

        if (!peers[other].created)
            continue;
        if (!receive_rank(endpoint, (VIP_UINT32)other, options->timeout_ms) ||
            wait_send(endpoint, options->timeout_ms) == NULL)
            return false;
        sum += other;
    }
    printf("Peers: part %lu of %lu: the sum is %lu\n", options->rank, options->parts, sum);
    return true;
}

/* --- command line ---------------------------------------------------------------------------- */

static void usage(FILE *stream)
{
    fprintf(stream,
            "usage: Peers -r RANK -n PARTS [-g GROUP] [-d DEVICE] [-t TIMEOUT] [HOSTNAME...]\n"
            "  -r RANK     the number of this part, from 0\n"
            "  -n PARTS    the number of parts, at most 64\n"
            "  -g GROUP    prefix of the discriminators; at most 10 bytes (default peers)\n"
            "  -d DEVICE   the VI device to open (default VINIC)\n"
            "  -t TIMEOUT  timeout of each wait in milliseconds (default 10000)\n"
            "  HOSTNAME    the hosts of all parts in rank order, or one host for all\n"
            "              (default localhost)\n");
}

/* Parses a number; prints the error and returns false if it is invalid. */
static bool number_option(char letter, unsigned long lowest, unsigned long highest,
                          unsigned long *number)
{
    if (parse_number(optarg, lowest, highest, number))
        return true;
    print_error("-%c: invalid value \"%s\"", letter, optarg);
    return false;
}

/* Parses the command line; prints the error and returns false if it is invalid. */
static bool parse_options(int argc, char **argv, Options *options)
{
    int letter;

    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        argv[1] = "-h";
    while ((letter = getopt(argc, argv, "r:n:g:d:t:h")) != -1) {
        bool good = true;

        switch (letter) {
        case 'r': good = number_option('r', 0, MAX_PARTS - 1, &options->rank); break;
        case 'n': good = number_option('n', 1, MAX_PARTS, &options->parts); break;
        case 't': good = number_option('t', 1, 86400000, &options->timeout_ms); break;
        case 'g': options->group = optarg; break;
        case 'd': options->device = optarg; break;
        case 'h': usage(stdout); exit(exit_code(true));
        default: usage(stderr); return false;
        }
        if (!good)
            return false;
    }
    options->hosts = argv + optind;
    options->host_count = (unsigned)(argc - optind);
    if (options->rank >= options->parts ||
        (options->host_count > 1 && options->host_count != options->parts)) {
        usage(stderr);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static Peer peers[MAX_PARTS];
    Options options = {.device = "VINIC", .group = "peers", .timeout_ms = 10000};
    Device device;

    program_name = "Peers";
    if (!parse_options(argc, argv, &options))
        return 2;
    if (!device_open(&device, options.device))
        return EXIT_FAILURE;
    bool good = run(&device, peers, &options);
    for (unsigned n = 0; n < MAX_PARTS; n++)
        if (peers[n].created)
            endpoint_destroy(&peers[n].endpoint);
    device_close(&device);
    return exit_code(good);
}
