/*
 * The library in programs with standard input, output or error closed, in all combinations: no file
 * descriptor of the library has one of these numbers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <viaduct.h>
#include <vipl.h>

enum { STREAMS = 3, BYTES = 4096, TIMEOUT_MS = 60000 };

/* A duplicate of the parent's standard output, in every child. */
static int report;

static void fail(const char *what, int value)
{
    dprintf(report, "%s: %d\n", what, value);
    _exit(1);
}

#define SUCCEED(call)                                                                              \
    do {                                                                                           \
        VIP_RETURN code_ = (call);                                                                 \
        if (code_ != VIP_SUCCESS)                                                                  \
            fail(#call, code_);                                                                    \
    } while (0)

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_VI_HANDLE client, server;
} Program;

typedef union {
    VIP_NET_ADDRESS address;
    unsigned char bytes[4 + 64];
} Address;

static Address address_of(const Program *program, const char *discriminator)
{
    Address address = {{0}};

    address.address.HostAddressLen = program->attributes.NicAddressLen;
    address.address.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
    memcpy(address.address.HostAddress, program->attributes.LocalNicAddress,
           program->attributes.NicAddressLen);
    memcpy(address.address.HostAddress + program->attributes.NicAddressLen, discriminator,
           strlen(discriminator));
    return address;
}

static void *serve(void *argument)
{
    Program *program = argument;
    Address local = address_of(program, "streams"), remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;

    SUCCEED(VipConnectWait(program->nic, &local.address, TIMEOUT_MS, &remote.address, &attributes,
                           &connection));
    SUCCEED(VipConnectAccept(connection, program->server));
    return NULL;
}

static void connect_both(Program *program)
{
    Address local = address_of(program, "client"), remote = address_of(program, "streams");
    VIP_VI_ATTRIBUTES attributes;
    pthread_t server;
    VIP_RETURN code;

    if (pthread_create(&server, NULL, serve, program) != 0)
        fail("pthread_create", errno);
    do
        code = VipConnectRequest(program->client, &local.address, &remote.address, TIMEOUT_MS,
                                 &attributes);
    while (code == VIP_NO_MATCH);
    SUCCEED(code);
    pthread_join(server, NULL);
}

static void describe(VIP_DESCRIPTOR *descriptor, void *data, VIP_MEM_HANDLE handle)
{
    memset(descriptor, 0, sizeof *descriptor);
    descriptor->CS.SegCount = 1;
    descriptor->CS.Length = BYTES;
    descriptor->DS[0].Local.Data.Address = data;
    descriptor->DS[0].Local.Handle = handle;
    descriptor->DS[0].Local.Length = BYTES;
}

static void exchange(const Program *program, unsigned char *memory, VIP_MEM_HANDLE handle)
{
    VIP_DESCRIPTOR *send = (void *)memory, *receive = (void *)(memory + 256), *done;
    unsigned char *from = memory + BYTES, *to = memory + 2 * BYTES;

    memset(from, 7, BYTES);
    describe(receive, to, handle);
    SUCCEED(VipPostRecv(program->server, receive, handle));
    describe(send, from, handle);
    SUCCEED(VipPostSend(program->client, send, handle));
    SUCCEED(VipRecvWait(program->server, TIMEOUT_MS, &done));
    SUCCEED(VipSendWait(program->client, TIMEOUT_MS, &done));
    if (memcmp(from, to, BYTES) != 0)
        fail("the message is damaged", 0);
}

static void check_closed(unsigned closed, const char *when)
{
    for (int number = 0; number < STREAMS; number++)
        if ((closed >> number & 1) && fcntl(number, F_GETFD) >= 0)
            fail(when, number);
}

static void use_library(unsigned closed)
{
    Program program;
    VIP_PROTECTION_HANDLE ptag;
    VIP_CQ_HANDLE cq;
    VIP_MEM_HANDLE handle;
    unsigned char *memory = viaduct_alloc(3 * BYTES);

    if (memory == NULL)
        fail("viaduct_alloc", errno);
    SUCCEED(VipOpenNic("VINIC", &program.nic));
    SUCCEED(VipQueryNic(program.nic, &program.attributes));
    SUCCEED(VipNSInit(program.nic, NULL));
    SUCCEED(VipCreatePtag(program.nic, &ptag));
    VIP_VI_ATTRIBUTES vi = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY,
                            .MaxTransferSize = BYTES,
                            .Ptag = ptag};
    SUCCEED(VipCreateCQ(program.nic, 16, &cq));
    SUCCEED(VipCreateVi(program.nic, &vi, NULL, NULL, &program.client));
    SUCCEED(VipCreateVi(program.nic, &vi, NULL, NULL, &program.server));
    VIP_MEM_ATTRIBUTES rights = {.Ptag = ptag};
    SUCCEED(VipRegisterMem(program.nic, memory, 3 * BYTES, &rights, &handle));
    connect_both(&program);
    exchange(&program, memory, handle);
    check_closed(closed, "the library uses the file descriptor of a standard stream");
    SUCCEED(VipDisconnect(program.client));
    SUCCEED(VipCloseNic(program.nic));
    viaduct_free(memory);
    check_closed(closed, "a leaked file descriptor has the number of a standard stream");
}

int main(void)
{
    unsigned failed = 0;

    report = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
    if (report < 0)
        return 2;
    for (unsigned closed = 0; closed < 1u << STREAMS; closed++) {
        pid_t child = fork();
        int status;

        if (child == 0) {
            for (int number = 0; number < STREAMS; number++)
                if (closed >> number & 1)
                    close(number);
            use_library(closed);
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child)
            return 2;
        if (status != 0) {
            dprintf(report, "closed %#x: status %#x\n", closed, (unsigned)status);
            failed++;
        }
    }
    dprintf(report, "%u passed, %u failed\n", (1u << STREAMS) - failed, failed);
    return failed != 0;
}
