#define _XOPEN_SOURCE 600

#include "common.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HEADER_BYTES offsetof(VIP_NET_ADDRESS, HostAddress)

void fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    exit(1);
}

void expect_ok(const char *file, int line, const char *call, VIP_RETURN result)
{
    if (result != VIP_SUCCESS) {
        fprintf(stderr, "%s:%d: %s returns %d\n", file, line, call, (int)result);
        exit(1);
    }
}

void nic_open(Nic *nic)
{
    EXPECT_OK(VipOpenNic("VINIC0", &nic->nic));
    EXPECT_OK(VipQueryNic(nic->nic, &nic->attributes));
    EXPECT_OK(VipCreatePtag(nic->nic, &nic->ptag));
}

void nic_close(Nic *nic)
{
    EXPECT_OK(VipDestroyPtag(nic->nic, nic->ptag));
    EXPECT_OK(VipCloseNic(nic->nic));
}

void buffer_open(Nic *nic, Buffer *buffer, VIP_ULONG bytes, VIP_BOOLEAN rdma_write)
{
    VIP_MEM_ATTRIBUTES attributes;
    uintptr_t address;

    buffer->memory = (char *)malloc(bytes + VIP_DESCRIPTOR_ALIGNMENT);
    EXPECT(buffer->memory != NULL);
    address = (uintptr_t)buffer->memory + VIP_DESCRIPTOR_ALIGNMENT - 1;
    buffer->base = (char *)(address - address % VIP_DESCRIPTOR_ALIGNMENT);
    buffer->bytes = bytes;
    memset(buffer->base, 0, bytes);
    attributes.Ptag = nic->ptag;
    attributes.EnableRdmaWrite = rdma_write;
    attributes.EnableRdmaRead = VIP_FALSE;
    EXPECT_OK(VipRegisterMem(nic->nic, buffer->base, bytes, &attributes, &buffer->handle));
}

void buffer_close(Nic *nic, Buffer *buffer)
{
    EXPECT_OK(VipDeregisterMem(nic->nic, buffer->base, buffer->handle));
    free(buffer->memory);
}

VIP_NET_ADDRESS *address_alloc(const Nic *nic)
{
    size_t bytes = sizeof(VIP_NET_ADDRESS) + nic->attributes.NicAddressLen +
                   nic->attributes.MaxDiscriminatorLen;
    VIP_NET_ADDRESS *address = (VIP_NET_ADDRESS *)malloc(bytes);

    EXPECT(address != NULL);
    memset(address, 0, bytes);
    return address;
}

VIP_NET_ADDRESS *address_make(const Nic *nic, const char *discriminator)
{
    VIP_NET_ADDRESS *address = address_alloc(nic);
    unsigned char *bytes = (unsigned char *)address + HEADER_BYTES;

    address->HostAddressLen = nic->attributes.NicAddressLen;
    address->DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
    EXPECT(address->DiscriminatorLen <= nic->attributes.MaxDiscriminatorLen);
    memcpy(bytes, nic->attributes.LocalNicAddress, address->HostAddressLen);
    memcpy(bytes + address->HostAddressLen, discriminator, address->DiscriminatorLen);
    return address;
}

VIP_VI_HANDLE vi_make(Nic *nic, VIP_RELIABILITY_LEVEL level, VIP_BOOLEAN rdma_write,
                      VIP_CQ_HANDLE recv_cq)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi;

    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = level;
    attributes.MaxTransferSize = 65536;
    attributes.Ptag = nic->ptag;
    attributes.EnableRdmaWrite = rdma_write;
    EXPECT_OK(VipCreateVi(nic->nic, &attributes, NULL, recv_cq, &vi));
    return vi;
}

void vi_drain(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *descriptor;

    while (VipSendDone(vi, &descriptor) != VIP_NOT_DONE && descriptor != NULL)
        ;
    while (VipRecvDone(vi, &descriptor) != VIP_NOT_DONE && descriptor != NULL)
        ;
}

void vi_close(VIP_VI_HANDLE vi)
{
    EXPECT_OK(VipDisconnect(vi));
    vi_drain(vi);
    EXPECT_OK(VipDestroyVi(vi));
}

void connect_client(Nic *nic, VIP_VI_HANDLE vi, const char *name)
{
    VIP_NET_ADDRESS *local = address_make(nic, "client"), *remote = address_make(nic, name);
    VIP_VI_ATTRIBUTES attributes;
    VIP_RETURN result;

    do {
        result = VipConnectRequest(vi, local, remote, WAIT_MS, &attributes);
    } while (result == VIP_NO_MATCH);
    EXPECT(result == VIP_SUCCESS);
    free(local);
    free(remote);
}

void connect_server(Nic *nic, VIP_VI_HANDLE vi, const char *name)
{
    VIP_NET_ADDRESS *local = address_make(nic, name), *remote = address_alloc(nic);
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection;

    EXPECT_OK(VipConnectWait(nic->nic, local, WAIT_MS, remote, &attributes, &connection));
    EXPECT_OK(VipConnectAccept(connection, vi));
    free(local);
    free(remote);
}

typedef struct {
    Nic *nic;
    VIP_VI_HANDLE vi;
    const char *name;
} Client;

static void *run_client(void *argument)
{
    Client *client = (Client *)argument;

    connect_client(client->nic, client->vi, client->name);
    return NULL;
}

void connect_here(Nic *nic, VIP_VI_HANDLE client, VIP_VI_HANDLE server, const char *name)
{
    Client request;
    pthread_t thread;

    request.nic = nic;
    request.vi = client;
    request.name = name;
    EXPECT(pthread_create(&thread, NULL, run_client, &request) == 0);
    connect_server(nic, server, name);
    pthread_join(thread, NULL);
}

void describe(VIP_DESCRIPTOR *descriptor, const Buffer *buffer, VIP_ULONG offset, VIP_ULONG bytes)
{
    memset(descriptor, 0, sizeof *descriptor);
    descriptor->CS.SegCount = 1;
    descriptor->CS.Control = VIP_CONTROL_OP_SENDRECV;
    descriptor->CS.Length = (VIP_UINT32)bytes;
    descriptor->DS[0].Local.Data.Address = buffer->base + offset;
    descriptor->DS[0].Local.Handle = buffer->handle;
    descriptor->DS[0].Local.Length = (VIP_UINT32)bytes;
}

void describe_write(VIP_DESCRIPTOR *descriptor, const Buffer *buffer, VIP_ULONG offset,
                    VIP_ULONG bytes, char *remote, VIP_MEM_HANDLE remote_handle)
{
    describe(descriptor, buffer, offset, bytes);
    descriptor->CS.SegCount = 2;
    descriptor->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
    descriptor->DS[1] = descriptor->DS[0];
    descriptor->DS[0].Remote.Data.Address = remote;
    descriptor->DS[0].Remote.Handle = remote_handle;
    descriptor->DS[0].Remote.Reserved = 0;
}

VIP_DESCRIPTOR *sent(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *descriptor;

    EXPECT_OK(VipSendWait(vi, WAIT_MS, &descriptor));
    return descriptor;
}

VIP_DESCRIPTOR *received(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *descriptor;

    EXPECT_OK(VipRecvWait(vi, WAIT_MS, &descriptor));
    return descriptor;
}

void exchange(VIP_VI_HANDLE from, VIP_VI_HANDLE to, Buffer *buffer)
{
    VIP_DESCRIPTOR *send = (VIP_DESCRIPTOR *)(void *)buffer->base;
    VIP_DESCRIPTOR *recv = send + 1;

    strcpy(buffer->base + 256, "a message");
    memset(buffer->base + 512, 0, 64);
    describe(send, buffer, 256, 64);
    describe(recv, buffer, 512, 64);
    EXPECT_OK(VipPostRecv(to, recv, buffer->handle));
    EXPECT_OK(VipPostSend(from, send, buffer->handle));
    EXPECT(sent(from) == send);
    EXPECT(received(to) == recv);
    EXPECT(recv->CS.Length == 64 && strcmp(buffer->base + 512, "a message") == 0);
}

#define ERROR_CODES 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t reported = PTHREAD_COND_INITIALIZER;
static unsigned errors[ERROR_CODES];

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    pthread_mutex_lock(&lock);
    if ((unsigned)error->ErrorCode < ERROR_CODES)
        errors[error->ErrorCode]++;
    pthread_cond_broadcast(&reported);
    pthread_mutex_unlock(&lock);
}

void errors_count(Nic *nic)
{
    EXPECT_OK(VipErrorCallback(nic->nic, NULL, on_error));
}

/* Without a limit: the test harness ends a program that waits too long. */
void error_await(VIP_ERROR_CODE code)
{
    pthread_mutex_lock(&lock);
    while (errors[code] == 0)
        pthread_cond_wait(&reported, &lock);
    errors[code]--;
    pthread_mutex_unlock(&lock);
}

pid_t fork_child(void)
{
    pid_t child;

    discriminator(); /* created before the fork, for both processes */
    fflush(NULL);
    child = fork();
    EXPECT(child >= 0);
    return child;
}

void wait_for_child(pid_t child)
{
    int status;

    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

const char *discriminator(void)
{
    static char text[32];

    if (text[0] == '\0')
        sprintf(text, "old-%ld", (long)getpid());
    return text;
}
