/*
 * EchoClient: sends messages to an EchoServer and checks every byte that comes back.
 *
 * One thread, one VI, one message at a time; both work queues are waited on directly.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "vip_helpers.h"

enum {
    MAX_SIZES = 32,
    /* What is asked for at least; both ends of a connection must agree on it. */
    MAX_TRANSFER_BYTES = 65536,
};

typedef struct {
    const char *device, *discriminator, *server;
    unsigned long iterations, timeout_ms;
    unsigned long sizes[MAX_SIZES];
    unsigned size_count;
} Options;

typedef struct {
    unsigned long long messages, bytes, errors;
    unsigned long long round_trips_ns;
} Totals;

static unsigned long long now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

/* The byte at `offset` of message number `message`. */
static unsigned char pattern(unsigned long long message, size_t offset)
{
    return (unsigned char)(message * 31 + offset * 7 + (offset >> 8));
}

/* Compares a reply with what was sent; says where they differ first. */
static bool verify(const VIP_DESCRIPTOR *reply, unsigned long long message, size_t bytes)
{
    const unsigned char *data = received_data(reply);

    if (reply->CS.Length != bytes) {
        complain("message %llu: %zu bytes sent, %u came back", message, bytes, reply->CS.Length);
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != pattern(message, i)) {
            complain("message %llu: byte %zu is 0x%02X, must be 0x%02X", message, i, data[i],
                     pattern(message, i));
            return false;
        }
    }
    return true;
}

/* One round trip; false if the connection is of no more use. */
static bool exchange(Endpoint *endpoint, const Options *options, size_t bytes, Totals *totals)
{
    const unsigned long long message = totals->messages;
    VIP_DESCRIPTOR *request = send_descriptor(endpoint, 0);
    unsigned char *data = send_buffer(endpoint, 0);

    for (size_t i = 0; i < bytes; i++)
        data[i] = pattern(message, i);
    memset(recv_buffer(endpoint, 0), 0, bytes);
    describe_send(request, endpoint, data, bytes, NULL);

    /* The receive comes first: the reply must never find the queue empty. */
    const unsigned long long begin_ns = now_ns();
    if (!post_receive(endpoint, 0) || !post_send(endpoint, request))
        return false;
    VIP_DESCRIPTOR *reply = wait_receive(endpoint, options->timeout_ms);
    if (reply == NULL || wait_send(endpoint, options->timeout_ms) == NULL)
        return false;
    totals->round_trips_ns += now_ns() - begin_ns;
    totals->messages++;
    totals->bytes += bytes;
    totals->errors += !verify(reply, message, bytes);
    return true;
}

static bool exchange_all(Endpoint *endpoint, const Options *options, Totals *totals)
{
    for (unsigned s = 0; s < options->size_count; s++) {
        for (unsigned long i = 0; i < options->iterations; i++) {
            if (!exchange(endpoint, options, options->sizes[s], totals))
                return false;
        }
    }
    return true;
}

static bool run(Device *device, const Options *options)
{
    EndpointOptions endpoint_options = {.max_transfer_bytes = MAX_TRANSFER_BYTES, .slots = 1};
    NetAddress local, remote;
    Endpoint endpoint;
    Totals totals = {0};
    char own_discriminator[32];

    for (unsigned s = 0; s < options->size_count; s++) {
        if (options->sizes[s] > endpoint_options.max_transfer_bytes)
            endpoint_options.max_transfer_bytes = options->sizes[s];
    }
    if (endpoint_options.max_transfer_bytes > device->attributes.MaxTransferSize) {
        complain("this device transfers %lu bytes at most", device->attributes.MaxTransferSize);
        return false;
    }
    /* The local discriminator only names this client; the process id makes it its own. */
    snprintf(own_discriminator, sizeof own_discriminator, "client-%ld", (long)getpid());
    if (!local_address(device, own_discriminator, &local) ||
        !remote_address(device, options->server, options->discriminator, &remote) ||
        !endpoint_create(&endpoint, device, &endpoint_options))
        return false;

    bool complete = connect_to_server(&endpoint, &local, &remote, options->timeout_ms) &&
                    exchange_all(&endpoint, options, &totals);
    endpoint_destroy(&endpoint);
    printf("EchoClient: %llu messages, %llu bytes, %llu errors, mean round trip %.1f us%s\n",
           totals.messages, totals.bytes, totals.errors,
           totals.messages ? (double)totals.round_trips_ns / 1e3 / (double)totals.messages : 0.0,
           complete ? "" : ", not complete");
    return complete && totals.errors == 0;
}

static void usage(FILE *stream)
{
    fprintf(stream,
            "usage: EchoClient [-d DEVICE] [-n DISCRIMINATOR] [-i ITERATIONS] [-s SIZES]\n"
            "                  [-t TIMEOUT] SERVERNAME\n"
            "  -d DEVICE         the VI device to open (default VINIC)\n"
            "  -n DISCRIMINATOR  the name the server listens on (default viaduct-echo)\n"
            "  -i ITERATIONS     messages of each size (default 10)\n"
            "  -s SIZES          message sizes in bytes, comma-separated\n"
            "                    (default 0,1,64,4096,65536)\n"
            "  -t TIMEOUT        milliseconds to wait for anything (default 10000)\n"
            "  SERVERNAME        the host the EchoServer runs on\n"
            "The exit code is 0 if every byte of every reply was right.\n");
}

/* Reads a list like "0,64,4096". */
static bool parse_sizes(const char *list, Options *options)
{
    char copy[512];

    if (strlen(list) >= sizeof copy)
        return false;
    strcpy(copy, list);
    options->size_count = 0;
    for (char *rest, *word = strtok_r(copy, ",", &rest); word != NULL;
         word = strtok_r(NULL, ",", &rest)) {
        if (options->size_count == MAX_SIZES ||
            !parse_number(word, 0, UINT32_MAX, &options->sizes[options->size_count++]))
            return false;
    }
    return options->size_count > 0;
}

/* True if the options are good; otherwise usage has been given. */
static bool parse_options(int count, char **words, Options *options)
{
    int letter;

    if (count == 2 && strcmp(words[1], "--help") == 0)
        words[1] = "-h";
    while ((letter = getopt(count, words, "d:n:i:s:t:h")) != -1) {
        bool good = true;

        switch (letter) {
        case 'd': options->device = optarg; break;
        case 'n': options->discriminator = optarg; break;
        case 'i': good = parse_number(optarg, 1, 1000000000, &options->iterations); break;
        case 's': good = parse_sizes(optarg, options); break;
        case 't': good = parse_number(optarg, 1, 86400000, &options->timeout_ms); break;
        case 'h': usage(stdout); exit(exit_code(true));
        default: usage(stderr); return false;
        }
        if (!good) {
            complain("-%c does not take \"%s\"", letter, optarg);
            return false;
        }
    }
    if (optind + 1 != count) {
        usage(stderr);
        return false;
    }
    options->server = words[optind];
    return true;
}

int main(int count, char **words)
{
    Options options = {
        .device = "VINIC",
        .discriminator = "viaduct-echo",
        .iterations = 10,
        .timeout_ms = 10000,
        .sizes = {0, 1, 64, 4096, 65536},
        .size_count = 5,
    };
    Device device;

    program_name = "EchoClient";
    if (!parse_options(count, words, &options))
        return 2;
    if (!device_open(&device, options.device))
        return EXIT_FAILURE;
    bool good = run(&device, &options);
    device_close(&device);
    return exit_code(good);
}
