/*
 * Peers: the parts of a parallel program, each connected with each other one.
 *
 * Nobody is the server. Every part asks for all the others at once and then looks which of its
 * requests have found their match: two parts meet because each names the other's host and both
 * name the same discriminator, here made of their two ranks. They may be started in any order.
 * Then each part sends its rank to all the others and adds up what it gets.
 */
#define _POSIX_C_SOURCE 200809L

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vip_helpers.h"

enum { MOST_PARTS = 64 };

typedef struct {
    const char *device, *group;
    char **hosts;
    unsigned host_count;
    unsigned long rank, parts, timeout_ms;
} Options;

/* The way to another part. */
typedef struct {
    Endpoint endpoint;
    bool exists, connected;
} Peer;

static const EndpointOptions endpoint_options = {.max_transfer_bytes = 4096, .slots = 1};

/* The host that a part runs on. */
static const char *host_of(const Options *options, unsigned long rank)
{
    if (options->host_count == 0)
        return "localhost";
    return options->hosts[options->host_count == 1 ? 0 : rank];
}

/* Asks for a connection with part `other`. The request lasts while this goes on with something else. */
static bool ask_for(Peer *peer, Device *device, const Options *options, unsigned long other)
{
    const unsigned long low = other < options->rank ? other : options->rank,
                        high = other < options->rank ? options->rank : other;
    char meeting[64], own[64];
    NetAddress local, remote;

    snprintf(meeting, sizeof meeting, "%s %lu-%lu", options->group, low, high);
    snprintf(own, sizeof own, "%s %lu", options->group, options->rank);
    if (!local_address(device, own, &local) ||
        !remote_address(device, host_of(options, other), meeting, &remote) ||
        !endpoint_create(&peer->endpoint, device, &endpoint_options))
        return false;
    peer->exists = true;
    return post_receive(&peer->endpoint, 0) &&
           succeeded(VipConnectPeerRequest(peer->endpoint.vi, &local.address, &remote.address,
                                           options->timeout_ms),
                     "VipConnectPeerRequest");
}

/* Looks after all requests until each has found its match. */
static bool connect_all(Peer *peers, const Options *options)
{
    unsigned long missing = options->parts - 1;

    while (missing > 0) {
        for (unsigned long other = 0; other < options->parts; other++) {
            VIP_VI_ATTRIBUTES attributes;

            if (!peers[other].exists || peers[other].connected)
                continue;
            VIP_RETURN code = VipConnectPeerDone(peers[other].endpoint.vi, &attributes);
            if (code == VIP_NOT_DONE)
                continue;
            if (code != VIP_SUCCESS) {
                complain("no connection with part %lu: %s", other, vip_return_name(code));
                return false;
            }
            peers[other].connected = true;
            missing--;
        }
        /* A program would compute here. */
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

/* Takes the message of part `other`, which must be its rank. */
static bool receive_rank(Endpoint *endpoint, VIP_UINT32 other, VIP_ULONG timeout_ms)
{
    VIP_DESCRIPTOR *message = wait_receive(endpoint, timeout_ms);
    VIP_UINT32 told;

    if (message == NULL)
        return false;
    memcpy(&told, received_data(message), sizeof told);
    if (message->CS.Length != sizeof told || told != other) {
        complain("part %u says %u bytes, %u", other, message->CS.Length, told);
        return false;
    }
    return true;
}

static bool run(Device *device, Peer *peers, const Options *options)
{
    unsigned long sum = options->rank;

    for (unsigned long other = 0; other < options->parts; other++)
        if (other != options->rank && !ask_for(&peers[other], device, options, other))
            return false;
    if (!connect_all(peers, options))
        return false;
    for (unsigned long other = 0; other < options->parts; other++)
        if (peers[other].exists && !send_rank(&peers[other].endpoint, (VIP_UINT32)options->rank))
            return false;
    for (unsigned long other = 0; other < options->parts; other++) {
        Endpoint *endpoint = &peers[other].endpoint;

        if (!peers[other].exists)
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
            "  -n PARTS    how many parts the program has, at most 64\n"
            "  -g GROUP    prefix of the discriminators; at most 10 bytes (default peers)\n"
            "  -d DEVICE   the VI device to open (default VINIC)\n"
            "  -t TIMEOUT  milliseconds to wait for anything (default 10000)\n"
            "  HOSTNAME    the hosts of all parts in their order, or the one host of all of them\n"
            "              (default localhost)\n");
}

/* True if the number is good; otherwise that has been said. */
static bool number_option(char letter, unsigned long lowest, unsigned long highest,
                          unsigned long *number)
{
    if (parse_number(optarg, lowest, highest, number))
        return true;
    complain("-%c does not take \"%s\"", letter, optarg);
    return false;
}

/* True if the options are good; otherwise usage has been given. */
static bool parse_options(int count, char **words, Options *options)
{
    int letter;

    if (count == 2 && strcmp(words[1], "--help") == 0)
        words[1] = "-h";
    while ((letter = getopt(count, words, "r:n:g:d:t:h")) != -1) {
        bool good = true;

        switch (letter) {
        case 'r': good = number_option('r', 0, MOST_PARTS - 1, &options->rank); break;
        case 'n': good = number_option('n', 1, MOST_PARTS, &options->parts); break;
        case 't': good = number_option('t', 1, 86400000, &options->timeout_ms); break;
        case 'g': options->group = optarg; break;
        case 'd': options->device = optarg; break;
        case 'h': usage(stdout); exit(exit_code(true));
        default: usage(stderr); return false;
        }
        if (!good)
            return false;
    }
    options->hosts = words + optind;
    options->host_count = (unsigned)(count - optind);
    if (options->rank >= options->parts ||
        (options->host_count > 1 && options->host_count != options->parts)) {
        usage(stderr);
        return false;
    }
    return true;
}

int main(int count, char **words)
{
    static Peer peers[MOST_PARTS];
    Options options = {.device = "VINIC", .group = "peers", .timeout_ms = 10000};
    Device device;

    program_name = "Peers";
    if (!parse_options(count, words, &options))
        return 2;
    if (!device_open(&device, options.device))
        return EXIT_FAILURE;
    bool good = run(&device, peers, &options);
    for (unsigned n = 0; n < MOST_PARTS; n++)
        if (peers[n].exists)
            endpoint_destroy(&peers[n].endpoint);
    device_close(&device);
    return exit_code(good);
}
