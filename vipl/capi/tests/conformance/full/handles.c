/* Every call with handles that are NULL, invalid, stale, or of another type. */
#include <stdint.h>

#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};
enum { INVALID_HANDLES = 7 };

/* Returns an invalid handle: NULL, a small number, an address, all ones, or one bit changed. */
static VIP_PVOID invalid_handle(unsigned n)
{
    static int variable;
    const uintptr_t live = (uintptr_t)local_device.nic;
    const VIP_PVOID values[INVALID_HANDLES] = {
        NULL, (VIP_PVOID)1, &variable, (VIP_PVOID)UINTPTR_MAX, (VIP_PVOID)(live + 1),
        (VIP_PVOID)(live ^ (1ull << 63)), (VIP_PVOID)(live ^ (1ull << 32))};

    return values[n];
}

/* Every call with a NIC handle, with an invalid one. */
static void nic_calls(VIP_NIC_HANDLE bad)
{
    VIP_NIC_ATTRIBUTES nic_attributes;
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &plain);
    VIP_MEM_ATTRIBUTES memory = {local_device.ptag, VIP_FALSE, VIP_FALSE};
    VIP_MEM_HANDLE handle = 7;
    VIP_PVOID out;
    Address address, remote;
    VIP_CHAR name[64] = "localhost";
    VIP_ULONG length = sizeof name;
    VIP_AUTODISCOVERY_LIST list = {1, NULL, 0};

    address_of(&local_device, "no-client", &address);
    CHECK_RETURN(VipQueryNic(bad, &nic_attributes), INVALID);
    CHECK_RETURN(VipErrorCallback(bad, NULL, NULL), INVALID);
    CHECK_RETURN(VipCreatePtag(bad, &out), INVALID);
    CHECK_RETURN(VipDestroyPtag(bad, local_device.ptag), INVALID);
    CHECK_RETURN(VipRegisterMem(bad, name, sizeof name, &memory, &handle), INVALID);
    CHECK(handle == 0, "a failed registration gives memory handle 0");
    CHECK_RETURN(VipDeregisterMem(bad, name, 1), INVALID);
    CHECK_RETURN(VipQueryMem(bad, name, 1, &memory), INVALID);
    CHECK_RETURN(VipSetMemAttributes(bad, name, 1, &memory), INVALID);
    CHECK_RETURN(VipQuerySystemManagementInfo(bad, VIP_SMI_AUTODISCOVERY, &list), INVALID);
    CHECK_RETURN(VipCreateVi(bad, &attributes, NULL, NULL, &out), INVALID);
    CHECK_RETURN(VipCreateCQ(bad, 16, &out), INVALID);
    CHECK_RETURN(VipConnectWait(bad, &address.address, 0, &remote.address, &attributes, &out),
                 INVALID);
    CHECK_RETURN(VipNSInit(bad, NULL), INVALID);
    CHECK_RETURN(VipNSGetHostByName(bad, name, &address.address, 0), INVALID);
    CHECK_RETURN(VipNSGetHostByAddr(bad, &address.address, name, &length), INVALID);
    CHECK_RETURN(VipNSShutdown(bad), INVALID);
    CHECK_RETURN(VipCloseNic(bad), INVALID);
}

static void on_queue(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                     VIP_DESCRIPTOR *descriptor)
{
    (void)context;
    (void)nic;
    (void)vi;
    (void)descriptor;
}

static void on_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi,
                     VIP_BOOLEAN recv_queue)
{
    (void)context;
    (void)nic;
    (void)vi;
    (void)recv_queue;
}

/* Every call with a VI handle, with an invalid one. */
static void vi_calls(VIP_VI_HANDLE bad)
{
    VIP_DESCRIPTOR *descriptor = (VIP_DESCRIPTOR *)(void *)local_arena.base, *out = descriptor;
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &plain), found;
    VIP_VI_STATE state;
    VIP_BOOLEAN flag;
    Address address;

    address_of(&local_device, "no-client", &address);
    CHECK_RETURN(VipQueryVi(bad, &state, &found, &flag, &flag), INVALID);
    CHECK_RETURN(VipSetViAttributes(bad, &attributes), INVALID);
    CHECK_RETURN(VipPostSend(bad, descriptor, local_arena.handle), INVALID);
    CHECK_RETURN(VipPostRecv(bad, descriptor, local_arena.handle), INVALID);
    CHECK_RETURN(VipSendDone(bad, &out), INVALID);
    CHECK(out == NULL, "a failed call returns no descriptor");
    CHECK_RETURN(VipRecvDone(bad, &out), INVALID);
    CHECK_RETURN(VipSendWait(bad, 0, &out), INVALID);
    CHECK_RETURN(VipRecvWait(bad, 0, &out), INVALID);
    CHECK_RETURN(VipSendNotify(bad, NULL, on_queue), INVALID);
    CHECK_RETURN(VipRecvNotify(bad, NULL, on_queue), INVALID);
    CHECK_RETURN(VipConnectRequest(bad, &address.address, &address.address, 10, &attributes),
                 INVALID);
    CHECK_RETURN(VipConnectPeerRequest(bad, &address.address, &address.address, 10), INVALID);
    CHECK_RETURN(VipConnectPeerDone(bad, &found), INVALID);
    CHECK_RETURN(VipConnectPeerWait(bad, &found), INVALID);
    CHECK_RETURN(VipDisconnect(bad), INVALID);
    CHECK_RETURN(VipDestroyVi(bad), INVALID);
}

static void other_calls(VIP_PVOID bad, VIP_VI_HANDLE vi)
{
    VIP_VI_HANDLE out;
    VIP_BOOLEAN flag;

    CHECK_RETURN(VipCQDone(bad, &out, &flag), INVALID);
    CHECK_RETURN(VipCQWait(bad, 0, &out, &flag), INVALID);
    CHECK_RETURN(VipCQNotify(bad, NULL, on_entry), INVALID);
    CHECK_RETURN(VipResizeCQ(bad, 8), INVALID);
    CHECK_RETURN(VipDestroyCQ(bad), INVALID);
    CHECK_RETURN(VipConnectAccept(bad, vi), INVALID);
    CHECK_RETURN(VipConnectReject(bad), INVALID);
    CHECK_RETURN(VipDestroyPtag(local_device.nic, bad), INVALID);
}

static void invalid_handles(void)
{
    VIP_VI_HANDLE vi = client_create(&plain);

    for (unsigned n = 0; n < INVALID_HANDLES; n++) {
        nic_calls(invalid_handle(n));
        vi_calls(invalid_handle(n));
        other_calls(invalid_handle(n), vi);
    }
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
}

static void handles_of_another_type(void)
{
    VIP_VI_HANDLE vi = client_create(&plain);
    VIP_CQ_HANDLE cq;

    REQUIRE_RETURN(VipCreateCQ(local_device.nic, 4, &cq), VIP_SUCCESS);
    nic_calls(vi);
    nic_calls(cq);
    vi_calls(local_device.nic);
    vi_calls(cq);
    vi_calls(local_device.ptag);
    other_calls(local_device.nic, vi);
    other_calls(vi, vi);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
}

static void stale_handles(void)
{
    VIP_VI_HANDLE vi = client_create(&plain), other = client_create(&plain);
    VIP_CQ_HANDLE cq;
    Device closed;

    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    vi_calls(vi);
    REQUIRE_RETURN(VipCreateCQ(local_device.nic, 4, &cq), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyCQ(cq), VIP_SUCCESS);
    other_calls(cq, other);
    device_open(&closed);
    device_close(&closed);
    nic_calls(closed.nic);
    CHECK_RETURN(VipDestroyVi(other), VIP_SUCCESS);
}

static const Test tests[] = {
    TEST(invalid_handles, .clauses = "3.1.2 3.2.2", .returns = "VipCloseNic INVALID_PARAMETER"),
    TEST(handles_of_another_type, .clauses = "3.1.2 3.2.2",
         .returns = "VipDestroyVi INVALID_PARAMETER"),
    TEST(stale_handles, .clauses = "3.1.2 3.2.2", .returns = "VipPostSend INVALID_PARAMETER"),
};

SUITE_MAIN(tests)
