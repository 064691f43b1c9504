/*
 * EchoClient: sends messages to an EchoServer and verifies the replies.
 *
 * One thread, one VI, one message in flight; waits on both work queues directly.
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
    /* Minimum MaxTransferSize of the VI; both VIs of a connection must have the same value. */
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

/* Returns the byte at `offset` of message number `message`. */
static unsigned char pattern(unsigned long long message, size_t offset)
{
    return (unsigned char)(message * 31 + offset * 7 + (offset >> 8));
}

/* Compares a reply with its message; prints the first difference. */
static bool verify(const VIP_DESCRIPTOR *reply, unsigned long long message, size_t bytes)
{
    const unsigned char *data = received_data(reply);

    if (reply->CS.Length != bytes) {
        print_error("message %llu: sent %zu bytes, received %u", message, bytes, reply->CS.Length);
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != pattern(message, i)) {
            print_error("message %llu: byte %zu is 0x%02X, expected 0x%02X", message, i, data[i],
                        pattern(message, i));
            return false;
        }
    }
    return true;
}

/* Performs one round trip; returns false if the connection failed. */
static bool exchange(Endpoint *endpoint, const Options *options, size_t bytes, Totals *totals)
{
    const unsigned long long message = totals->messages;
    VIP_DESCRIPTOR *request = send_descriptor(endpoint, 0);
    unsigned char *data = send_buffer(endpoint, 0);

    for (size_t i = 0; i < bytes; i++)
        data[i] = pattern(message, i);
    memset(recv_buffer(endpoint, 0), 0, bytes);
    describe_send(request, endpoint, data, bytes, NULL);

    /* The receive is posted first: the reply must not arrive at an empty queue. */
    const unsigned long long start_ns = now_ns();
    if (!post_receive(endpoint, 0) || !post_send(endpoint, request))
        return false;
    VIP_DESCRIPTOR *reply = wait_receive(endpoint, options->timeout_ms);
    if (reply == NULL || wait_send(endpoint, options->timeout_ms) == NULL)
        return false;
    totals->round_trips_ns += now_ns() - start_ns;
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
        print_error("a message of %lu bytes exceeds MaxTransferSize %lu of the device",
                    endpoint_options.max_transfer_bytes, device->attributes.MaxTransferSize);
        return false;
    }
    /* The local discriminator only identifies this client; the process ID makes it unique. */
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
            "  -t TIMEOUT        timeout of each wait in milliseconds (default 10000)\n"
            "  SERVERNAME        the host of the EchoServer\n"
            "Exits with 0 if every reply equals its message.\n");
}

/* Parses a list like "0,64,4096". */
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

/* Parses the command line; prints the error and returns false if it is invalid. */
static bool parse_options(int argc, char **argv, Options *options)
{
    int letter;

    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        argv[1] = "-h";
    while ((letter = getopt(argc, argv, "d:n:i:s:t:h")) != -1) {
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
            print_error("-%c: invalid value \"%s\"", letter, optarg);
            return false;
        }
    }
    if (optind + 1 != argc) {
        usage(stderr);
        return false;
    }
    options->server = argv[optind];
    return true;
}

int main(int argc, char **argv)
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
    if (!parse_options(argc, argv, &options))
        return 2;
    if (!device_open(&device, options.device))
        return EXIT_FAILURE;
    bool good = run(&device, &options);
    device_close(&device);
    return exit_code(good);
}
