/*
 * Exits of threads that the guide does not specify: pthread_exit and C++ exceptions in handlers,
 * pthread_exit in main, and cancellation of waiting threads. The first argument selects the test. C
 * and C++.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vipl.h>

enum { BYTES = 4096 };

static VIP_NIC_HANDLE nic;
static VIP_NIC_ATTRIBUTES attributes;
static VIP_MEM_HANDLE handle;
static VIP_CQ_HANDLE cq;

static void succeed(VIP_RETURN code, const char *call)
{
    if (code == VIP_SUCCESS)
        return;
    fprintf(stderr, "%s: %d\n", call, (int)code);
    exit(1);
}

static VIP_VI_HANDLE new_vi(VIP_PROTECTION_HANDLE ptag, VIP_CQ_HANDLE send_cq)
{
    VIP_VI_ATTRIBUTES wanted;
    VIP_VI_HANDLE vi;

    memset(&wanted, 0, sizeof wanted);
    wanted.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    wanted.MaxTransferSize = BYTES;
    wanted.Ptag = ptag;
    succeed(VipCreateVi(nic, &wanted, send_cq, NULL, &vi), "VipCreateVi");
    return vi;
}

/* --- handlers --------------------------------------------------------------------------------- */

static void exit_handler(void)
{
#ifdef __cplusplus
    throw 1;
#else
    pthread_exit(NULL);
#endif
}

static void on_send(VIP_PVOID context, VIP_NIC_HANDLE nic_, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *done)
{
    (void)context, (void)nic_, (void)vi, (void)done;
    exit_handler();
}

static void on_entry(VIP_PVOID context, VIP_NIC_HANDLE nic_, VIP_VI_HANDLE vi, VIP_BOOLEAN receive)
{
    (void)context, (void)nic_, (void)vi, (void)receive;
    exit_handler();
}

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context, (void)error;
    exit_handler();
}

/* Waits until the process is aborted. */
static void wait_for_abort(void)
{
    for (;;)
        pause();
}

/* --- waiting ---------------------------------------------------------------------------------- */

typedef struct {
    VIP_VI_HANDLE vi;
    VIP_RETURN (*wait)(VIP_VI_HANDLE vi);
    VIP_RETURN code;
} Waiter;

static VIP_RETURN wait_for_receive(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *done;

    return VipRecvWait(vi, VIP_INFINITE, &done);
}

static VIP_RETURN wait_for_entry(VIP_VI_HANDLE vi)
{
    VIP_BOOLEAN is_receive;

    return VipCQWait(cq, VIP_INFINITE, &vi, &is_receive);
}

static VIP_RETURN wait_for_request(VIP_VI_HANDLE vi)
{
    union {
        VIP_NET_ADDRESS address;
        unsigned char bytes[128];
    } local, remote;
    VIP_VI_ATTRIBUTES theirs;
    VIP_CONN_HANDLE connection;

    (void)vi;
    memset(&local, 0, sizeof local);
    local.address.HostAddressLen = attributes.NicAddressLen;
    memcpy(local.address.HostAddress, attributes.LocalNicAddress, attributes.NicAddressLen);
    return VipConnectWait(nic, &local.address, VIP_INFINITE, &remote.address, &theirs, &connection);
}

static void *wait_on_thread(void *argument)
{
    Waiter *waiter = (Waiter *)argument;

    waiter->code = waiter->wait(waiter->vi);
    pthread_testcancel();
    waiter->code = VIP_SUCCESS; /* The thread was not cancelled. */
    return NULL;
}

static int cancel_waiting_threads(VIP_VI_HANDLE vi)
{
    Waiter waiters[] = {{vi, wait_for_receive, VIP_SUCCESS},
                        {vi, wait_for_entry, VIP_SUCCESS},
                        {vi, wait_for_request, VIP_SUCCESS}};
    enum { WAITERS = sizeof waiters / sizeof *waiters };
    pthread_t threads[WAITERS];
    int failures = 0;

    for (int n = 0; n < WAITERS; n++) {
        pthread_create(&threads[n], NULL, wait_on_thread, &waiters[n]);
        pthread_cancel(threads[n]);
    }
    succeed(VipCloseNic(nic), "VipCloseNic");
    for (int n = 0; n < WAITERS; n++) {
        void *result;

        pthread_join(threads[n], &result);
        if (result != PTHREAD_CANCELED || waiters[n].code != VIP_INVALID_PARAMETER) {
            fprintf(stderr, "wait %d: %d\n", n, (int)waiters[n].code);
            failures++;
        }
    }
    puts(failures == 0 ? "cancelled after the calls" : "not cancelled");
    return failures;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    VIP_DESCRIPTOR *descriptor = (VIP_DESCRIPTOR *)aligned_alloc(BYTES, BYTES);
    VIP_MEM_ATTRIBUTES memory;
    VIP_VI_HANDLE vi;

    succeed(VipOpenNic("VINIC0", &nic), "VipOpenNic");
    succeed(VipQueryNic(nic, &attributes), "VipQueryNic");
    memset(&memory, 0, sizeof memory);
    succeed(VipCreatePtag(nic, &memory.Ptag), "VipCreatePtag");
    succeed(VipRegisterMem(nic, descriptor, BYTES, &memory, &handle), "VipRegisterMem");
    succeed(VipCreateCQ(nic, 16, &cq), "VipCreateCQ");
    memset(descriptor, 0, BYTES);
    vi = new_vi(memory.Ptag, strcmp(mode, "VipCQNotify") == 0 ? cq : NULL);
    if (strcmp(mode, "VipErrorCallback") == 0) {
        succeed(VipErrorCallback(nic, NULL, on_error), "VipErrorCallback");
        VipPostSend(vi, descriptor, ~handle);
        wait_for_abort();
    }
    if (strcmp(mode, "VipSendNotify") == 0 || strcmp(mode, "VipCQNotify") == 0) {
        /* The VI is not connected: the send is flushed immediately. */
        succeed(VipPostSend(vi, descriptor, handle), "VipPostSend");
        if (strcmp(mode, "VipCQNotify") == 0)
            succeed(VipCQNotify(cq, NULL, on_entry), "VipCQNotify");
        else
            succeed(VipSendNotify(vi, NULL, on_send), "VipSendNotify");
        wait_for_abort();
    }
    if (strcmp(mode, "cancel") == 0) {
        succeed(VipPostRecv(vi, descriptor, handle), "VipPostRecv");
        return cancel_waiting_threads(vi);
    }
    /* pthread_exit in main, with an open NIC. */
    puts("open");
    fflush(stdout);
    pthread_exit(NULL);
}
