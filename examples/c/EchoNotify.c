/*
 * EchoNotify: an echo server without a loop that waits for messages.
 *
 * The library calls a function for each message and another one for each reply that is gone, on
 * threads of its own; the main thread only accepts clients. A message is copied into a reply that
 * is free, its receive is posted again, and only then the reply is sent: a client that waits for
 * its echo always finds a receive. When a connection ends, everything posted comes back with an
 * error, and the main thread takes the client away.
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
    REPLIES = RECEIVES_PER_CLIENT, /* that are under way to one client */
    LOOK_UP_MS = 100, /* how often the main thread looks who has left */
};

typedef struct {
    bool used; /* the main thread's */
    unsigned long number;
    Endpoint endpoint;

    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t changed; /* alive or reply_busy */
    unsigned alive;         /* receives and replies that a handler is called for */
    bool reply_busy[REPLIES];
    bool ending; /* nothing is posted any more */
    unsigned long long messages, bytes;
} Client;

typedef struct {
    const char *device, *discriminator, *ready_file;
    unsigned long clients_to_serve; /* 0: no end */
} Options;

/* --- handlers, on threads of the library ----------------------------------------------------- */

/* As many are asked for as descriptors are posted, so that none is called with NULL. */

static void on_message(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                       VIP_DESCRIPTOR *descriptor);

/* No handler is called any more for one receive or reply of the client. */
static void give_up(Client *client)
{
    pthread_mutex_lock(&client->lock);
    client->alive--;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

/* Posts the n-th receive and has on_message called for the next message. */
static bool expect_message(Client *client, unsigned n)
{
    pthread_mutex_lock(&client->lock);
    /* With the lock held: what is posted after the disconnect would never come back. */
    bool posted = !client->ending && post_receive(&client->endpoint, n);
    pthread_mutex_unlock(&client->lock);
    return posted && succeeded(VipRecvNotify(client->endpoint.vi, client, on_message),
                               "VipRecvNotify");
}

/* Waits for a reply that is free and takes it. */
static unsigned take_reply(Client *client)
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
    client->alive++;
    pthread_mutex_unlock(&client->lock);
    return n;
}

static void give_reply_back(Client *client, unsigned n)
{
    pthread_mutex_lock(&client->lock);
    client->reply_busy[n] = false;
    pthread_mutex_unlock(&client->lock);
    give_up(client);
}

/* A reply is gone, or came back with the end of the connection. */
static void on_reply(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                     VIP_DESCRIPTOR *descriptor)
{
    Client *client = context;

    (void)nic;
    (void)vi;
    give_reply_back(client, (unsigned)(descriptor - send_descriptor(&client->endpoint, 0)));
}

/* A message is there, or its receive came back with the end of the connection. */
static void on_message(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                       VIP_DESCRIPTOR *descriptor)
{
    Client *client = context;
    Endpoint *endpoint = &client->endpoint;

    (void)nic;
    if ((descriptor->CS.Status & VIP_STATUS_ERROR_MASK) != 0) {
        give_up(client);
        return;
    }
    const VIP_UINT32 bytes = descriptor->CS.Length, immediate = descriptor->CS.ImmediateData;
    const bool has_immediate = (descriptor->CS.Status & VIP_STATUS_IMMEDIATE) != 0;
    unsigned n = take_reply(client);
    memcpy(send_buffer(endpoint, n), received_data(descriptor), bytes);
    if (!expect_message(client, (unsigned)(descriptor - recv_descriptor(endpoint, 0))))
        give_up(client);
    pthread_mutex_lock(&client->lock);
    client->messages++;
    client->bytes += bytes;
    pthread_mutex_unlock(&client->lock);
    VIP_DESCRIPTOR *reply = send_descriptor(endpoint, n);
    describe_send(reply, endpoint, send_buffer(endpoint, n), bytes,
                  has_immediate ? &immediate : NULL);
    if (!post_send(endpoint, reply) ||
        !succeeded(VipSendNotify(vi, client, on_reply), "VipSendNotify"))
        give_reply_back(client, n);
}

/* --- the main thread ------------------------------------------------------------------------- */

/* Ends the connection if it has not ended, waits until nothing is under way, and says good-bye. */
static void drop_client(Client *client)
{
    pthread_mutex_lock(&client->lock);
    client->ending = true;
    pthread_mutex_unlock(&client->lock);
    /* Now everything posted comes back to its handler. */
    succeeded(VipDisconnect(client->endpoint.vi), "VipDisconnect");
    pthread_mutex_lock(&client->lock);
    while (client->alive > 0)
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

static bool has_left(Client *client)
{
    pthread_mutex_lock(&client->lock);
    bool left = client->alive == 0;
    pthread_mutex_unlock(&client->lock);
    return left;
}

/* Makes an endpoint that fits the client's wishes and expects messages. */
static bool prepare(Client *client, Device *device, const VIP_VI_ATTRIBUTES *wanted)
{
    EndpointOptions options = {
        .max_transfer_bytes = wanted->MaxTransferSize,
        .slots = RECEIVES_PER_CLIENT,
    };

    if (wanted->ReliabilityLevel != VIP_SERVICE_RELIABLE_DELIVERY ||
        wanted->MaxTransferSize > device->attributes.MaxTransferSize ||
        !endpoint_create(&client->endpoint, device, &options))
        return false;
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->changed, NULL);
    memset(client->reply_busy, 0, sizeof client->reply_busy);
    client->used = true;
    client->ending = false;
    client->messages = client->bytes = 0;
    for (unsigned n = 0; n < RECEIVES_PER_CLIENT; n++) {
        client->alive = n + 1; /* nobody is connected: no handler is called yet */
        if (!expect_message(client, n)) {
            give_up(client);
            drop_client(client);
            return false;
        }
    }
    return true;
}

static bool admit(Client *client, Device *device, VIP_CONN_HANDLE request,
                  const VIP_VI_ATTRIBUTES *wanted)
{
    if (client == NULL || !prepare(client, device, wanted)) {
        complain("a client was rejected");
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
        VIP_VI_ATTRIBUTES wanted;
        VIP_CONN_HANDLE request;
        Client *vacant = NULL;
        VIP_RETURN code = VipConnectWait(device->nic, &listen_address->address, LOOK_UP_MS,
                                         &remote.address, &wanted, &request);

        for (unsigned i = 0; i < MAX_CLIENTS; i++) {
            if (clients[i].used && has_left(&clients[i])) {
                drop_client(&clients[i]);
                served++;
            }
            if (!clients[i].used)
                vacant = &clients[i];
        }
        if (code == VIP_SUCCESS) {
            if (vacant != NULL)
                vacant->number = accepted + 1;
            accepted += admit(vacant, device, request, &wanted);
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
                    "  -n DISCRIMINATOR  the name clients ask for (default viaduct-echo)\n"
                    "  -c CLIENTS        exit after serving this many clients (default: run on)\n"
                    "  -r FILE           create FILE when listening\n");
}

/* True if the options are good; otherwise usage has been given. */
static bool parse_options(int count, char **words, Options *options)
{
    int letter;

    if (count == 2 && strcmp(words[1], "--help") == 0)
        words[1] = "-h";
    while ((letter = getopt(count, words, "d:n:c:r:h")) != -1) {
        switch (letter) {
        case 'd': options->device = optarg; break;
        case 'n': options->discriminator = optarg; break;
        case 'c':
            if (parse_number(optarg, 1, 1000000, &options->clients_to_serve))
                break;
            complain("-c does not take \"%s\"", optarg);
            return false;
        case 'r': options->ready_file = optarg; break;
        case 'h': usage(stdout); exit(exit_code(true));
        default: usage(stderr); return false;
        }
    }
    if (optind != count)
        usage(stderr);
    return optind == count;
}

int main(int count, char **words)
{
    Options options = {.device = "VINIC", .discriminator = "viaduct-echo"};

    program_name = "EchoNotify";
    if (!parse_options(count, words, &options))
        return 2;
    catch_stop_signals();
    return exit_code(run(&options));
}
