/* A stream of messages over UCX between two processes, whose sender writes every byte of a message before it sends it, and whose
 * receiver reads every byte, as `vibench bandwidth --touch` does. `ucx_perftest` does neither: its receiver copies lines that are
 * in its cache already.
 * usage: ucx-stream PORT SIZE MESSAGES [HOST]    without HOST it waits for a client; the client prints bytes per second
 */
#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

/* Bytes of the buffers of vibench, and of its messages in flight. */
#define BUFFERS_BYTES (512 << 10)
#define IN_FLIGHT_BYTES (2 << 20)
#define MAX_WINDOW 32
#define MIN_WINDOW 4
#define TAG 1

static void fail(const char *what)
{
    fprintf(stderr, "ucx-stream: %s\n", what);
    exit(1);
}

static void check(ucs_status_t status, const char *what)
{
    if (status != UCS_OK) {
        fprintf(stderr, "ucx-stream: %s: %s\n", what, ucs_status_string(status));
        exit(1);
    }
}

static void write_all(int socket, const void *bytes, size_t length)
{
    const char *at = bytes;
    while (length > 0) {
        ssize_t written = write(socket, at, length);
        if (written <= 0)
            fail("the other process has ended");
        at += written;
        length -= (size_t)written;
    }
}

static void read_all(int socket, void *bytes, size_t length)
{
    char *at = bytes;
    while (length > 0) {
        ssize_t got = read(socket, at, length);
        if (got <= 0)
            fail("the other process has ended");
        at += got;
        length -= (size_t)got;
    }
}

/* Connects to a host, or waits for one connection. */
static int open_socket(uint16_t port, const char *host)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0), accepted;
    if (listener < 0 || inet_pton(AF_INET, host ? host : "127.0.0.1", &address.sin_addr) != 1)
        fail("socket");
    if (host) {
        if (connect(listener, (struct sockaddr *)&address, sizeof address) != 0)
            fail("cannot connect");
        return listener;
    }
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0)
        fail("cannot listen");
    accepted = accept(listener, NULL, NULL);
    if (accepted < 0)
        fail("accept");
    close(listener);
    return accepted;
}

static ucp_context_h context;
static ucp_worker_h worker;

/* Exchanges worker addresses, and returns an endpoint to the other process. */
static ucp_ep_h connect_workers(int socket)
{
    ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
    ucp_worker_params_t worker_params = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
    ucp_ep_params_t ep_params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
    ucp_address_t *own;
    ucp_ep_h ep;
    size_t own_bytes;
    uint64_t bytes;
    void *other;
    check(ucp_init(&params, NULL, &context), "ucp_init");
    check(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
    check(ucp_worker_get_address(worker, &own, &own_bytes), "ucp_worker_get_address");
    bytes = own_bytes;
    write_all(socket, &bytes, sizeof bytes);
    write_all(socket, own, own_bytes);
    read_all(socket, &bytes, sizeof bytes);
    other = malloc(bytes);
    if (!other)
        fail("out of memory");
    read_all(socket, other, bytes);
    ep_params.address = other;
    check(ucp_ep_create(worker, &ep_params, &ep), "ucp_ep_create");
    ucp_worker_release_address(worker, own);
    free(other);
    return ep;
}

/* Waits for a request, and frees it. */
static void complete(ucs_status_ptr_t request, const char *what)
{
    if (request == NULL)
        return;
    if (UCS_PTR_IS_ERR(request))
        check(UCS_PTR_STATUS(request), what);
    while (ucp_request_check_status(request) == UCS_INPROGRESS)
        ucp_worker_progress(worker);
    check(ucp_request_check_status(request), what);
    ucp_request_free(request);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct stream {
    char *memory;
    size_t size;
    uint64_t messages, window, buffers;
};

static char *buffer_of(const struct stream *stream, uint64_t message)
{
    return stream->memory + message % stream->buffers * stream->size;
}

static void send_stream(const struct stream *stream, ucp_ep_h ep)
{
    ucp_request_param_t param = { 0 };
    ucs_status_ptr_t requests[MAX_WINDOW] = { NULL };
    for (uint64_t message = 0; message < stream->messages + stream->window; message++) {
        ucs_status_ptr_t *request = &requests[message % stream->window];
        complete(*request, "send");
        *request = NULL;
        if (message < stream->messages) {
            char *buffer = buffer_of(stream, message);
            memset(buffer, (int)(message & 0xFF), stream->size);
            *request = ucp_tag_send_nbx(ep, buffer, stream->size, TAG, &param);
        }
    }
}

/* Receives the stream, and returns the time from its first tenth to its end. */
static uint64_t receive_stream(const struct stream *stream)
{
    ucp_request_param_t param = { 0 };
    ucs_status_ptr_t requests[MAX_WINDOW] = { NULL };
    uint64_t begin = 0, posted = 0;
    volatile uint8_t sums = 0;
    for (uint64_t message = 0; message < stream->messages; message++) {
        uint8_t sum = 0;
        for (; posted < message + stream->window && posted < stream->messages; posted++)
            requests[posted % stream->window] =
                ucp_tag_recv_nbx(worker, buffer_of(stream, posted), stream->size, TAG, UINT64_MAX, &param);
        if (message == stream->messages / 10)
            begin = now_ns();
        complete(requests[message % stream->window], "receive");
        for (size_t at = 0; at < stream->size; at++)
            sum += (uint8_t)buffer_of(stream, message)[at];
        sums = sums + sum;
    }
    return now_ns() - begin;
}

int main(int argc, char **argv)
{
    struct stream stream;
    uint64_t ns;
    int socket;
    ucp_ep_h ep;
    if (argc != 4 && argc != 5)
        fail("usage: ucx-stream PORT SIZE MESSAGES [HOST]");
    stream.size = strtoull(argv[2], NULL, 10);
    stream.messages = strtoull(argv[3], NULL, 10);
    if (stream.size == 0 || stream.size > IN_FLIGHT_BYTES || stream.messages < 10)
        fail("SIZE must be between 1 and 2097152, MESSAGES at least 10");
    stream.window = IN_FLIGHT_BYTES / stream.size;
    if (stream.window > MAX_WINDOW)
        stream.window = MAX_WINDOW;
    if (stream.window < MIN_WINDOW)
        stream.window = MIN_WINDOW;
    stream.buffers = BUFFERS_BYTES / stream.size;
    if (stream.buffers < 1)
        stream.buffers = 1;
    if (stream.buffers < stream.window)
        stream.window = stream.buffers;
    stream.memory = aligned_alloc(4096, (stream.buffers * stream.size + 4095) / 4096 * 4096);
    if (!stream.memory)
        fail("out of memory");
    memset(stream.memory, 0, stream.buffers * stream.size);
    socket = open_socket((uint16_t)atoi(argv[1]), argc == 5 ? argv[4] : NULL);
    ep = connect_workers(socket);
    if (argc == 5) {
        send_stream(&stream, ep);
        read_all(socket, &ns, sizeof ns);
        printf("%.0f\n", (double)(stream.messages - stream.messages / 10) * (double)stream.size * 1e9 / (double)ns);
    } else {
        ns = receive_stream(&stream);
        write_all(socket, &ns, sizeof ns);
    }
    return 0;
}
