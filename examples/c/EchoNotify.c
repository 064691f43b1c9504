/*
 * EchoNotify: an echo server that receives and sends in completion handlers.
 *
 * The library calls one handler for each received message and one for each completed reply, on its
 * own threads; the main thread only accepts clients. A message is copied into a free reply buffer,
 * its receive is posted again, and then the reply is sent: a client that waits for each reply
 * always has a receive to send to. When a connection ends, all posted descriptors complete with an
 * error, and the main thread releases the client.
 */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vip_helpers.h"

enum {
    MAX_CLIENTS = 32,
    RECEIVES_PER_CLIENT = 4,
    REPLIES = RECEIVES_PER_CLIENT, /* in flight to one client */
    WAIT_TIMEOUT_MS = 100, /* of waiting for a client, after which ended connections are released */
};

typedef struct {
    bool used; /* accessed by the main thread only */
    unsigned long number;
    Endpoint endpoint;

    pthread_mutex_t lock;   /* guards the following fields */
    pthread_cond_t changed; /* signals a change of pending or reply_busy */
    unsigned pending;       /* receives and replies whose handler is still to be called */
    bool reply_busy[REPLIES];
    bool disconnecting; /* no more receives are posted */
    unsigned long long messages, bytes;
} Client;

typedef struct {
    const char *device, *discriminator, *ready_file;
    unsigned long clients_to_serve; /* 0: unlimited */
} Options;

/* --- handlers, called on threads of the library ---------------------------------------------- */

/* One handler is requested for each posted descriptor, so that none is called with NULL. */

static void on_message(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                       VIP_DESCRIPTOR *descriptor);

/* Records that one receive or reply of the client has no pending handler any longer. */
static void release_pending(Client *client)
{
    pthread_mutex_lock(&client->lock);
    client->pending--;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

/* Posts the n-th receive and requests on_message for the next message. */
static bool post_and_notify(Client *client, unsigned n)
{
    pthread_mutex_lock(&client->lock);
    /* With the lock held: a receive that is posted after the disconnect would never complete. */
    bool posted = !client->disconnecting && post_receive(&client->endpoint, n);
    pthread_mutex_unlock(&client->lock);
    return posted && succeeded(VipRecvNotify(client->endpoint.vi, client, on_message),
                               "VipRecvNotify");
}

/* Waits for a free reply buffer and allocates it. */
static unsigned allocate_reply(Client *client)
{
    unsigned n = 0;

    pthread_mutex_lock(&client->lock);
    while (client->reply_busy[n]) {
        if (++n == REPLIES) {
            pthread_cond_wait(&client->changed, &client->lock);
            n = 0;
        }
    }
    client->reply_busy[n] = true;
    client->pending++;
    pthread_mutex_unlock(&client->lock);
    return n;
}

static void release_reply(Client *client, unsigned n)
{
    pthread_mutex_lock(&client->lock);
    client->reply_busy[n] = false;
    pthread_mutex_unlock(&client->lock);
    release_pending(client);
}

/* Called when a reply was sent, or was flushed because the connection ended. */
static void on_reply(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                     VIP_DESCRIPTOR *descriptor)
{
    Client *client = context;

    (void)nic;
    (void)vi;
    release_reply(client, (unsigned)(descriptor - send_descriptor(&client->endpoint, 0)));
}

/* Called when a message was received, or its receive was flushed because the connection ended. */
static void on_message(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                       VIP_DESCRIPTOR *descriptor)
{
    Client *client = context;
    Endpoint *endpoint = &client->endpoint;

    (void)nic;
    if ((descriptor->CS.Status & VIP_STATUS_ERROR_MASK) != 0) {
        release_pending(client);
        return;
    }
    const VIP_UINT32 bytes = descriptor->CS.Length, immediate = descriptor->CS.ImmediateData;
    const bool has_immediate = (descriptor->CS.Status & VIP_STATUS_IMMEDIATE) != 0;
    unsigned n = allocate_reply(client);
    memcpy(send_buffer(endpoint, n), received_data(descriptor), bytes);
    if (!post_and_notify(client, (unsigned)(descriptor - recv_descriptor(endpoint, 0))))
        release_pending(client);
    pthread_mutex_lock(&client->lock);
    client->messages++;
    client->bytes += bytes;
    pthread_mutex_unlock(&client->lock);
    VIP_DESCRIPTOR *reply = send_descriptor(endpoint, n);
    describe_send(reply, endpoint, send_buffer(endpoint, n), bytes,
                  has_immediate ? &immediate : NULL);
    if (!post_send(endpoint, reply) ||
        !succeeded(VipSendNotify(vi, client, on_reply), "VipSendNotify"))
        release_reply(client, n);
}

/* --- main thread ----------------------------------------------------------------------------- */

/* Disconnects, waits until no handler is pending, and destroys the endpoint. */
static void drop_client(Client *client)
{
    pthread_mutex_lock(&client->lock);
    client->disconnecting = true;
    pthread_mutex_unlock(&client->lock);
    /* All posted descriptors are flushed, and their handlers are called. */
    succeeded(VipDisconnect(client->endpoint.vi), "VipDisconnect");
    pthread_mutex_lock(&client->lock);
    while (client->pending > 0)
        pthread_cond_wait(&client->changed, &client->lock);
    pthread_mutex_unlock(&client->lock);
    /* Destroying the VI also waits for handlers that have not returned yet. */
    endpoint_destroy(&client->endpoint);
    printf("EchoNotify: client %lu left after %llu messages, %llu bytes\n", client->number,
           client->messages, client->bytes);
    flush_output();
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->lock);
    client->used = false;
}

static bool is_disconnected(Client *client)
{
    pthread_mutex_lock(&client->lock);
    bool disconnected = client->pending == 0;
    pthread_mutex_unlock(&client->lock);
    return disconnected;
}

/* Creates an endpoint with the requested attributes and posts its receives. */
static bool prepare(Client *client, Device *device, const VIP_VI_ATTRIBUTES *requested)
{
    EndpointOptions options = {
        .max_transfer_bytes = requested->MaxTransferSize,
        .slots = RECEIVES_PER_CLIENT,
    };

    if (requested->ReliabilityLevel != VIP_SERVICE_RELIABLE_DELIVERY ||
        requested->MaxTransferSize > device->attributes.MaxTransferSize ||
        !endpoint_create(&client->endpoint, device, &options))
        return false;
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->changed, NULL);
    memset(client->reply_busy, 0, sizeof client->reply_busy);
    client->used = true;
    client->disconnecting = false;
    client->messages = client->bytes = 0;
    for (unsigned n = 0; n < RECEIVES_PER_CLIENT; n++) {
        client->pending = n + 1; /* not connected: no handler is called yet */
        if (!post_and_notify(client, n)) {
            release_pending(client);
            drop_client(client);
            return false;
        }
    }
    return true;
}

static bool accept_client(Client *client, Device *device, VIP_CONN_HANDLE request,
                          const VIP_VI_ATTRIBUTES *requested)
{
    if (client == NULL || !prepare(client, device, requested)) {
        print_error("rejected a client");
        succeeded(VipConnectReject(request), "VipConnectReject");
        return false;
    }
    if (succeeded(VipConnectAccept(request, client->endpoint.vi), "VipConnectAccept"))
        return true;
    drop_client(client);
    VipConnectReject(request);
    return false;
}

static bool serve(Device *device, NetAddress *listen_address, unsigned long clients_to_serve)
{
    static Client clients[MAX_CLIENTS];
    unsigned long accepted = 0, served = 0;
    bool good = true;

    while (good && !stop_requested() && (clients_to_serve == 0 || served < clients_to_serve)) {
        NetAddress remote;
        VIP_VI_ATTRIBUTES requested;
        VIP_CONN_HANDLE request;
        Client *unused = NULL;
        VIP_RETURN code = VipConnectWait(device->nic, &listen_address->address, WAIT_TIMEOUT_MS,
                                         &remote.address, &requested, &request);

        for (unsigned i = 0; i < MAX_CLIENTS; i++) {
            if (clients[i].used && is_disconnected(&clients[i])) {
                drop_client(&clients[i]);
                served++;
            }
            if (!clients[i].used)
                unused = &clients[i];
        }
        if (code == VIP_SUCCESS) {
            if (unused != NULL)
                unused->number = accepted + 1;
            accepted += accept_client(unused, device, request, &requested);
        } else {
            good = code == VIP_TIMEOUT || succeeded(code, "VipConnectWait");
        }
    }
    for (unsigned i = 0; i < MAX_CLIENTS; i++) {
        if (clients[i].used)
            drop_client(&clients[i]);
    }
    return good;
}

static bool run(const Options *options)
{
    Device device;
    NetAddress listen_address;

    if (!device_open(&device, options->device))
        return false;
    bool good = local_address(&device, options->discriminator, &listen_address) &&
                announce_ready(options->ready_file);
    if (good) {
        printf("EchoNotify: listening as \"%s\" on %s\n", options->discriminator,
               device.attributes.Name);
        good = flush_output() && serve(&device, &listen_address, options->clients_to_serve);
    }
    device_close(&device);
    return good;
}

static void usage(FILE *stream)
{
    fprintf(stream, "usage: EchoNotify [-d DEVICE] [-n DISCRIMINATOR] [-c CLIENTS] [-r FILE]\n"
                    "  -d DEVICE         the VI device to open (default VINIC)\n"
                    "  -n DISCRIMINATOR  the name to listen on (default viaduct-echo)\n"
                    "  -c CLIENTS        exit after this many clients (default: unlimited)\n"
                    "  -r FILE           create FILE when listening\n");
}

/* Parses the command line; prints the error and returns false if it is invalid. */
static bool parse_options(int argc, char **argv, Options *options)
{
    int letter;

    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        argv[1] = "-h";
    while ((letter = getopt(argc, argv, "d:n:c:r:h")) != -1) {
        switch (letter) {
        case 'd': options->device = optarg; break;
        case 'n': options->discriminator = optarg; break;
        case 'c':
            if (parse_number(optarg, 1, 1000000, &options->clients_to_serve))
                break;
            print_error("-c: invalid value \"%s\"", optarg);
            return false;
        case 'r': options->ready_file = optarg; break;
        case 'h': usage(stdout); exit(exit_code(true));
        default: usage(stderr); return false;
        }
    }
    if (optind != argc)
        usage(stderr);
    return optind == argc;
}

int main(int argc, char **argv)
{
    Options options = {.device = "VINIC", .discriminator = "viaduct-echo"};

    program_name = "EchoNotify";
    if (!parse_options(argc, argv, &options))
        return 2;
    catch_stop_signals();
    return exit_code(run(&options));
}
