/*
 * EchoServer: sends every message back to its client.
 *
 * A listener thread accepts clients. The receive queues of all clients share one completion queue,
 * on which the worker (the main thread) waits; send completions are polled on the client's send
 * queue. A client that disconnects or causes an error loses its connection; other clients are not
 * affected.
 */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vip_helpers.h"

enum {
    MAX_CLIENTS_DEFAULT = 32,
    MAX_CLIENTS_LIMIT = 1024,
    RECEIVES_PER_CLIENT = 4,
    WAIT_TIMEOUT_MS = 250, /* of waiting calls, after which a thread checks for a stop request */
};

typedef struct {
    bool used;
    unsigned long number;
    unsigned long long messages, bytes;
    Endpoint endpoint;
} Client;

typedef struct {
    Device device;
    VIP_CQ_HANDLE cq;
    NetAddress listen_address;
    unsigned long max_clients;
    unsigned long clients_to_serve; /* 0: unlimited */

    pthread_mutex_t lock; /* guards the following fields */
    Client *clients;
    unsigned long accepted, served;
    bool stopping;
} Server;

typedef struct {
    const char *device, *discriminator, *ready_file;
    unsigned long clients_to_serve, max_clients;
} Options;

static bool stopping(Server *server)
{
    pthread_mutex_lock(&server->lock);
    if (stop_requested() ||
        (server->clients_to_serve != 0 && server->served >= server->clients_to_serve))
        server->stopping = true;
    bool stop = server->stopping;
    pthread_mutex_unlock(&server->lock);
    return stop;
}

/* --- worker: functions called with the lock held --------------------------------------------- */

static Client *find_client(Server *server, VIP_VI_HANDLE vi)
{
    for (unsigned long i = 0; i < server->max_clients; i++) {
        if (server->clients[i].used && server->clients[i].endpoint.vi == vi)
            return &server->clients[i];
    }
    return NULL;
}

static void drop_client(Server *server, Client *client)
{
    printf("EchoServer: client %lu left after %llu messages, %llu bytes\n", client->number,
           client->messages, client->bytes);
    flush_output();
    endpoint_destroy(&client->endpoint);
    client->used = false;
    server->served++;
}

/* Sends a received message back and posts its receive again. */
static bool echo(Client *client, const VIP_DESCRIPTOR *received)
{
    Endpoint *endpoint = &client->endpoint;
    unsigned n = (unsigned)(received - recv_descriptor(endpoint, 0));
    VIP_DESCRIPTOR *reply = send_descriptor(endpoint, n);
    const VIP_UINT32 *immediate =
        received->CS.Status & VIP_STATUS_IMMEDIATE ? &received->CS.ImmediateData : NULL;
    VIP_RETURN code;

    describe_send(reply, endpoint, received_data(received), received->CS.Length, immediate);
    client->messages++;
    client->bytes += received->CS.Length;
    if (!post_send(endpoint, reply))
        return false;
    do {
        code = VipSendDone(endpoint->vi, &reply);
    } while (code == VIP_NOT_DONE && !stop_requested());
    if (code == VIP_DESCRIPTOR_ERROR && reply != NULL)
        print_error("client %lu: reply failed: %s", client->number,
                    vip_status_text(reply->CS.Status));
    return code == VIP_SUCCESS && post_receive(endpoint, n);
}

/* Handles one completed receive of a client. */
static void serve(Server *server, Client *client)
{
    VIP_DESCRIPTOR *received = NULL;
    VIP_RETURN code = VipRecvDone(client->endpoint.vi, &received);

    if (code == VIP_SUCCESS) {
        if (!echo(client, received))
            drop_client(server, client);
    } else if (received != NULL) {
        /* Receives are flushed when the client disconnects; other errors are reported. */
        if ((received->CS.Status & VIP_STATUS_ERROR_MASK) != VIP_STATUS_DESC_FLUSHED_ERROR)
            print_error("client %lu: %s", client->number, vip_status_text(received->CS.Status));
        drop_client(server, client);
    }
}

static bool work(Server *server)
{
    while (!stopping(server)) {
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN recv_queue;
        VIP_RETURN code = VipCQWait(server->cq, WAIT_TIMEOUT_MS, &vi, &recv_queue);

        if (code == VIP_TIMEOUT)
            continue;
        if (!succeeded(code, "VipCQWait"))
            return false;
        pthread_mutex_lock(&server->lock);
        /* The entry may be of a client that was dropped in the meantime. */
        Client *client = find_client(server, vi);
        if (client != NULL)
            serve(server, client);
        pthread_mutex_unlock(&server->lock);
    }
    return true;
}

/* --- listener -------------------------------------------------------------------------------- */

/* Creates an endpoint with the requested attributes and posts its receives. */
static bool prepare(Server *server, Client *client, const VIP_VI_ATTRIBUTES *requested)
{
    EndpointOptions options = {
        .max_transfer_bytes = requested->MaxTransferSize,
        .slots = RECEIVES_PER_CLIENT,
        .recv_cq = server->cq,
    };

    if (requested->ReliabilityLevel != VIP_SERVICE_RELIABLE_DELIVERY ||
        requested->MaxTransferSize > server->device.attributes.MaxTransferSize ||
        !endpoint_create(&client->endpoint, &server->device, &options))
        return false;
    for (unsigned n = 0; n < RECEIVES_PER_CLIENT; n++) {
        if (!post_receive(&client->endpoint, n)) {
            endpoint_destroy(&client->endpoint);
            return false;
        }
    }
    return true;
}

/* Accepts or rejects a connection request. */
static void accept_client(Server *server, VIP_CONN_HANDLE request,
                          const VIP_VI_ATTRIBUTES *requested)
{
    Client *client = NULL;

    pthread_mutex_lock(&server->lock);
    for (unsigned long i = 0; i < server->max_clients && client == NULL; i++) {
        if (!server->clients[i].used)
            client = &server->clients[i];
    }
    if (client == NULL || !prepare(server, client, requested)) {
        pthread_mutex_unlock(&server->lock);
        print_error("rejected a client: %s",
                    client == NULL ? "too many clients" : "unsupported attributes");
        succeeded(VipConnectReject(request), "VipConnectReject");
        return;
    }
    client->used = true;
    client->number = ++server->accepted;
    client->messages = client->bytes = 0;
    VIP_VI_HANDLE vi = client->endpoint.vi;
    unsigned long number = client->number;
    pthread_mutex_unlock(&server->lock);

    /* The worker may serve the client before this call returns. */
    VIP_RETURN code = VipConnectAccept(request, vi);
    if (code == VIP_SUCCESS) {
        printf("EchoServer: client %lu connected\n", number);
        flush_output();
        return;
    }
    print_error("accepting a client failed: %s", vip_return_name(code));
    pthread_mutex_lock(&server->lock);
    if (client->used && client->endpoint.vi == vi) {
        endpoint_destroy(&client->endpoint);
        client->used = false;
    }
    pthread_mutex_unlock(&server->lock);
    VipConnectReject(request);
}

static void *listen_for_clients(void *argument)
{
    Server *server = argument;

    while (!stopping(server)) {
        NetAddress remote;
        VIP_VI_ATTRIBUTES requested;
        VIP_CONN_HANDLE request;
        VIP_RETURN code = VipConnectWait(server->device.nic, &server->listen_address.address,
                                         WAIT_TIMEOUT_MS, &remote.address, &requested, &request);

        if (code == VIP_SUCCESS) {
            accept_client(server, request, &requested);
        } else if (code != VIP_TIMEOUT) {
            succeeded(code, "VipConnectWait");
            pthread_mutex_lock(&server->lock);
            server->stopping = true;
            pthread_mutex_unlock(&server->lock);
        }
    }
    return NULL;
}

/* --- startup and shutdown -------------------------------------------------------------------- */

static bool run(Server *server, const Options *options)
{
    pthread_t listener;

    if (!announce_ready(options->ready_file))
        return false;
    if (pthread_create(&listener, NULL, listen_for_clients, server) != 0) {
        print_error("cannot create a thread");
        return false;
    }
    printf("EchoServer: listening as \"%s\" on %s\n", options->discriminator,
           server->device.attributes.Name);
    bool good = flush_output() && work(server);
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    pthread_mutex_unlock(&server->lock);
    pthread_join(listener, NULL);
    for (unsigned long i = 0; i < server->max_clients; i++) {
        if (server->clients[i].used)
            drop_client(server, &server->clients[i]);
    }
    return good;
}

static bool start(Server *server, const Options *options)
{
    /* Twice the receives: entries of dropped clients may still be queued when new ones connect. */
    VIP_ULONG entries = 2 * RECEIVES_PER_CLIENT * options->max_clients;
    bool good = false;

    server->max_clients = options->max_clients;
    server->clients_to_serve = options->clients_to_serve;
    server->clients = calloc(options->max_clients, sizeof *server->clients);
    if (server->clients == NULL) {
        print_error("out of memory");
        return false;
    }
    if (device_open(&server->device, options->device)) {
        if (local_address(&server->device, options->discriminator, &server->listen_address) &&
            succeeded(VipCreateCQ(server->device.nic, entries, &server->cq), "VipCreateCQ")) {
            good = run(server, options);
            good &= succeeded(VipDestroyCQ(server->cq), "VipDestroyCQ");
        }
        device_close(&server->device);
    }
    free(server->clients);
    return good;
}

static void usage(FILE *stream)
{
    fprintf(stream,
            "usage: EchoServer [-d DEVICE] [-n DISCRIMINATOR] [-c CLIENTS] [-m MAX] [-r FILE]\n"
            "  -d DEVICE         the VI device to open (default VINIC)\n"
            "  -n DISCRIMINATOR  the name to listen on (default viaduct-echo)\n"
            "  -c CLIENTS        exit after this many clients (default: unlimited)\n"
            "  -m MAX            maximum number of connected clients (default %d)\n"
            "  -r FILE           create FILE when listening (also --ready-fd FILE)\n",
            MAX_CLIENTS_DEFAULT);
}

/* Parses the command line; prints the error and returns false if it is invalid. */
static bool parse_options(int argc, char **argv, Options *options)
{
    int letter;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--ready-fd") == 0)
            argv[i] = "-r";
        if (strcmp(argv[i], "--help") == 0)
            argv[i] = "-h";
    }
    while ((letter = getopt(argc, argv, "d:n:c:m:r:h")) != -1) {
        bool good = true;

        switch (letter) {
        case 'd': options->device = optarg; break;
        case 'n': options->discriminator = optarg; break;
        case 'c': good = parse_number(optarg, 1, 1000000, &options->clients_to_serve); break;
        case 'm': good = parse_number(optarg, 1, MAX_CLIENTS_LIMIT, &options->max_clients); break;
        case 'r': options->ready_file = optarg; break;
        case 'h': usage(stdout); exit(exit_code(true));
        default: usage(stderr); return false;
        }
        if (!good) {
            print_error("-%c: invalid value \"%s\"", letter, optarg);
            return false;
        }
    }
    if (optind != argc) {
        usage(stderr);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static Server server = {.lock = PTHREAD_MUTEX_INITIALIZER};
    Options options = {
        .device = "VINIC",
        .discriminator = "viaduct-echo",
        .max_clients = MAX_CLIENTS_DEFAULT,
    };

    program_name = "EchoServer";
    if (!parse_options(argc, argv, &options))
        return 2;
    catch_stop_signals();
    return exit_code(start(&server, &options));
}
