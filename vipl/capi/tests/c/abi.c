/*
 * The ABI of the guide's appendix: the size of every type, the offset of every member, the value of
 * every constant and the prototype of every call, compared with vipl.h. Compiled in every language
 * that the header supports. abi.rs checks that no name of the header is missing here.
 *
 * Sizes are those of LP64: VIP_ULONG is the guide's `unsigned long`.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <vipl.h>

static unsigned passed, failed;

static void same(const char *what, unsigned long found, unsigned long wanted)
{
    if (found == wanted) {
        passed++;
        printf("ok      %s is 0x%lX\n", what, found);
    } else {
        failed++;
        printf("FAILED  %s is 0x%lX, must be 0x%lX\n", what, found, wanted);
    }
}

#define SIZE(type, bytes) same("sizeof " #type, sizeof(type), bytes)
#define OFFSET(type, member, bytes) same(#type "." #member, offsetof(type, member), bytes)
#define VALUE(name, value) same(#name, (unsigned long)(name), value)

static void generic_types(void)
{
    SIZE(VIP_PVOID, 8);
    SIZE(VIP_BOOLEAN, 4);
    SIZE(VIP_CHAR, 1);
    SIZE(VIP_UCHAR, 1);
    SIZE(VIP_USHORT, 2);
    SIZE(VIP_ULONG, 8);
    SIZE(VIP_UINT64, 8);
    SIZE(VIP_UINT32, 4);
    SIZE(VIP_UINT16, 2);
    SIZE(VIP_UINT8, 1);
    SIZE(VIP_QOS, 8);
    SIZE(VIP_NIC_HANDLE, 8);
    SIZE(VIP_VI_HANDLE, 8);
    SIZE(VIP_PROTECTION_HANDLE, 8);
    SIZE(VIP_CONN_HANDLE, 8);
    SIZE(VIP_CQ_HANDLE, 8);
    SIZE(VIP_MEM_HANDLE, 4);
    SIZE(VIP_RELIABILITY_LEVEL, 2);
    SIZE(VIP_VI_STATE, 4);
    SIZE(VIP_ERROR_CODE, 4);
    SIZE(VIP_RESOURCE_CODE, 4);
    SIZE(VIP_RETURN, 4);
    VALUE(VIP_INFINITE, ~0UL);
    VALUE(VIP_TRUE, 1);
    VALUE(VIP_FALSE, 0);
    VALUE(VIP_DESCRIPTOR_ALIGNMENT, 64);
    same("VINICBASENAME", (unsigned long)strcmp(VINICBASENAME, "VINIC"), 0);
}

static void nic_attributes(void)
{
    SIZE(VIP_NIC_ATTRIBUTES, 200);
    OFFSET(VIP_NIC_ATTRIBUTES, Name, 0);
    OFFSET(VIP_NIC_ATTRIBUTES, HardwareVersion, 64);
    OFFSET(VIP_NIC_ATTRIBUTES, ProviderVersion, 72);
    OFFSET(VIP_NIC_ATTRIBUTES, NicAddressLen, 80);
    OFFSET(VIP_NIC_ATTRIBUTES, LocalNicAddress, 88);
    OFFSET(VIP_NIC_ATTRIBUTES, ThreadSafe, 96);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxDiscriminatorLen, 100);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxRegisterBytes, 104);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxRegisterRegions, 112);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxRegisterBlockBytes, 120);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxVI, 128);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxDescriptorsPerQueue, 136);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxSegmentsPerDesc, 144);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxCQ, 152);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxCQEntries, 160);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxTransferSize, 168);
    OFFSET(VIP_NIC_ATTRIBUTES, NativeMTU, 176);
    OFFSET(VIP_NIC_ATTRIBUTES, MaxPtags, 184);
    OFFSET(VIP_NIC_ATTRIBUTES, ReliabilityLevelSupport, 192);
    OFFSET(VIP_NIC_ATTRIBUTES, RDMAReadSupport, 194);
}

static void other_structures(void)
{
    SIZE(VIP_NET_ADDRESS, 6);
    OFFSET(VIP_NET_ADDRESS, HostAddressLen, 0);
    OFFSET(VIP_NET_ADDRESS, DiscriminatorLen, 2);
    OFFSET(VIP_NET_ADDRESS, HostAddress, 4);

    SIZE(VIP_VI_ATTRIBUTES, 40);
    OFFSET(VIP_VI_ATTRIBUTES, ReliabilityLevel, 0);
    OFFSET(VIP_VI_ATTRIBUTES, MaxTransferSize, 8);
    OFFSET(VIP_VI_ATTRIBUTES, QoS, 16);
    OFFSET(VIP_VI_ATTRIBUTES, Ptag, 24);
    OFFSET(VIP_VI_ATTRIBUTES, EnableRdmaWrite, 32);
    OFFSET(VIP_VI_ATTRIBUTES, EnableRdmaRead, 36);

    SIZE(VIP_MEM_ATTRIBUTES, 16);
    OFFSET(VIP_MEM_ATTRIBUTES, Ptag, 0);
    OFFSET(VIP_MEM_ATTRIBUTES, EnableRdmaWrite, 8);
    OFFSET(VIP_MEM_ATTRIBUTES, EnableRdmaRead, 12);

    SIZE(VIP_ERROR_DESCRIPTOR, 48);
    OFFSET(VIP_ERROR_DESCRIPTOR, NicHandle, 0);
    OFFSET(VIP_ERROR_DESCRIPTOR, ViHandle, 8);
    OFFSET(VIP_ERROR_DESCRIPTOR, CQHandle, 16);
    OFFSET(VIP_ERROR_DESCRIPTOR, DescriptorPtr, 24);
    OFFSET(VIP_ERROR_DESCRIPTOR, OpCode, 32);
    OFFSET(VIP_ERROR_DESCRIPTOR, ResourceCode, 40);
    OFFSET(VIP_ERROR_DESCRIPTOR, ErrorCode, 44);

    SIZE(VIP_AUTODISCOVERY_LIST, 24);
    OFFSET(VIP_AUTODISCOVERY_LIST, NumberOfHops, 0);
    OFFSET(VIP_AUTODISCOVERY_LIST, ADAddrArray, 8);
    OFFSET(VIP_AUTODISCOVERY_LIST, NumAdAddrs, 16);
}

static void descriptors(void)
{
    SIZE(VIP_PVOID64, 8);
    OFFSET(VIP_PVOID64, AddressBits, 0);
    OFFSET(VIP_PVOID64, Address, 0);
    SIZE(VIP_CONTROL_SEGMENT, 32);
    OFFSET(VIP_CONTROL_SEGMENT, Next, 0);
    OFFSET(VIP_CONTROL_SEGMENT, NextHandle, 8);
    OFFSET(VIP_CONTROL_SEGMENT, SegCount, 12);
    OFFSET(VIP_CONTROL_SEGMENT, Control, 14);
    OFFSET(VIP_CONTROL_SEGMENT, Reserved, 16);
    OFFSET(VIP_CONTROL_SEGMENT, ImmediateData, 20);
    OFFSET(VIP_CONTROL_SEGMENT, Length, 24);
    OFFSET(VIP_CONTROL_SEGMENT, Status, 28);
    SIZE(VIP_ADDRESS_SEGMENT, 16);
    OFFSET(VIP_ADDRESS_SEGMENT, Data, 0);
    OFFSET(VIP_ADDRESS_SEGMENT, Handle, 8);
    OFFSET(VIP_ADDRESS_SEGMENT, Reserved, 12);
    SIZE(VIP_DATA_SEGMENT, 16);
    OFFSET(VIP_DATA_SEGMENT, Data, 0);
    OFFSET(VIP_DATA_SEGMENT, Handle, 8);
    OFFSET(VIP_DATA_SEGMENT, Length, 12);
    SIZE(VIP_DESCRIPTOR_SEGMENT, 16);
    OFFSET(VIP_DESCRIPTOR_SEGMENT, Remote, 0);
    OFFSET(VIP_DESCRIPTOR_SEGMENT, Local, 0);
    SIZE(VIP_DESCRIPTOR, 64);
    OFFSET(VIP_DESCRIPTOR, CS, 0);
    OFFSET(VIP_DESCRIPTOR, DS, 32);
}

static void bits(void)
{
    VALUE(VIP_SERVICE_UNRELIABLE, 0x01);
    VALUE(VIP_SERVICE_RELIABLE_DELIVERY, 0x02);
    VALUE(VIP_SERVICE_RELIABLE_RECEPTION, 0x04);

    VALUE(VIP_CONTROL_OP_SENDRECV, 0x0000);
    VALUE(VIP_CONTROL_OP_RDMAWRITE, 0x0001);
    VALUE(VIP_CONTROL_OP_RDMAREAD, 0x0002);
    VALUE(VIP_CONTROL_OP_RESERVED, 0x0003);
    VALUE(VIP_CONTROL_OP_MASK, 0x0003);
    VALUE(VIP_CONTROL_IMMEDIATE, 0x0004);
    VALUE(VIP_CONTROL_QFENCE, 0x0008);
    VALUE(VIP_CONTROL_RESERVED, 0xFFF0);

    VALUE(VIP_STATUS_DONE, 0x00000001);
    VALUE(VIP_STATUS_FORMAT_ERROR, 0x00000002);
    VALUE(VIP_STATUS_PROTECTION_ERROR, 0x00000004);
    VALUE(VIP_STATUS_LENGTH_ERROR, 0x00000008);
    VALUE(VIP_STATUS_PARTIAL_ERROR, 0x00000010);
    VALUE(VIP_STATUS_DESC_FLUSHED_ERROR, 0x00000020);
    VALUE(VIP_STATUS_TRANSPORT_ERROR, 0x00000040);
    VALUE(VIP_STATUS_RDMA_PROT_ERROR, 0x00000080);
    VALUE(VIP_STATUS_REMOTE_DESC_ERROR, 0x00000100);
    VALUE(VIP_STATUS_ERROR_MASK, 0x000001FE);
    VALUE(VIP_STATUS_OP_SEND, 0x00000000);
    VALUE(VIP_STATUS_OP_RECEIVE, 0x00010000);
    VALUE(VIP_STATUS_OP_RDMA_WRITE, 0x00020000);
    VALUE(VIP_STATUS_OP_REMOTE_RDMA_WRITE, 0x00030000);
    VALUE(VIP_STATUS_OP_RDMA_READ, 0x00040000);
    VALUE(VIP_STATUS_OP_MASK, 0x00070000);
    VALUE(VIP_STATUS_IMMEDIATE, 0x00080000);
    VALUE(VIP_STATUS_RESERVED, 0xFFF0FE00);
    same("all status bits", VIP_STATUS_DONE | VIP_STATUS_ERROR_MASK | VIP_STATUS_OP_MASK |
         VIP_STATUS_IMMEDIATE | VIP_STATUS_RESERVED, 0xFFFFFFFF);
}

static void enumerations(void)
{
    VALUE(VIP_STATE_IDLE, 0);
    VALUE(VIP_STATE_CONNECTED, 1);
    VALUE(VIP_STATE_CONNECT_PENDING, 2);
    VALUE(VIP_STATE_ERROR, 3);

    VALUE(VIP_ERROR_POST_DESC, 0);
    VALUE(VIP_ERROR_CONN_LOST, 1);
    VALUE(VIP_ERROR_RECVQ_EMPTY, 2);
    VALUE(VIP_ERROR_VI_OVERRUN, 3);
    VALUE(VIP_ERROR_RDMAW_PROT, 4);
    VALUE(VIP_ERROR_RDMAW_DATA, 5);
    VALUE(VIP_ERROR_RDMAW_ABORT, 6);
    VALUE(VIP_ERROR_RDMAR_PROT, 7);
    VALUE(VIP_ERROR_COMP_PROT, 8);
    VALUE(VIP_ERROR_RDMA_TRANSPORT, 9);
    VALUE(VIP_ERROR_CATASTROPHIC, 10);

    VALUE(VIP_RESOURCE_NIC, 0);
    VALUE(VIP_RESOURCE_VI, 1);
    VALUE(VIP_RESOURCE_CQ, 2);
    VALUE(VIP_RESOURCE_DESCRIPTOR, 3);

    VALUE(VIP_SUCCESS, 0);
    VALUE(VIP_NOT_DONE, 1);
    VALUE(VIP_INVALID_PARAMETER, 2);
    VALUE(VIP_ERROR_RESOURCE, 3);
    VALUE(VIP_TIMEOUT, 4);
    VALUE(VIP_REJECT, 5);
    VALUE(VIP_INVALID_RELIABILITY_LEVEL, 6);
    VALUE(VIP_INVALID_MTU, 7);
    VALUE(VIP_INVALID_QOS, 8);
    VALUE(VIP_INVALID_PTAG, 9);
    VALUE(VIP_INVALID_RDMAREAD, 10);
    VALUE(VIP_DESCRIPTOR_ERROR, 11);
    VALUE(VIP_INVALID_STATE, 12);
    VALUE(VIP_ERROR_NAMESERVICE, 13);
    VALUE(VIP_NO_MATCH, 14);
    VALUE(VIP_NOT_REACHABLE, 15);

    VALUE(VIP_SMI_AUTODISCOVERY, 1);
    SIZE(VIP_SMI_AUTODISCOVERY, sizeof(VIP_ULONG));
}

/* Unsigned integers, except booleans and enumerations; pointers to bytes. */
static void signedness(void)
{
    static const VIP_UINT8 bytes[1] = {7};
    VIP_NIC_ATTRIBUTES attributes;
    VIP_AUTODISCOVERY_LIST list;
    VIP_NET_ADDRESS *addresses[1];

    same("VIP_ULONG is unsigned", (VIP_ULONG)-1 > 0, 1);
    same("VIP_USHORT is unsigned", (VIP_USHORT)-1 > 0, 1);
    same("VIP_UCHAR is unsigned", (VIP_UCHAR)-1 > 0, 1);
    same("VIP_UINT64 is unsigned", (VIP_UINT64)-1 > 0, 1);
    same("VIP_UINT32 is unsigned", (VIP_UINT32)-1 > 0, 1);
    same("VIP_UINT16 is unsigned", (VIP_UINT16)-1 > 0, 1);
    same("VIP_UINT8 is unsigned", (VIP_UINT8)-1 > 0, 1);
    same("VIP_BOOLEAN is signed", (VIP_BOOLEAN)-1 < 0, 1);
    same("a name has 64 bytes", sizeof attributes.Name, 64);
    attributes.LocalNicAddress = bytes;
    same("an address is bytes", *attributes.LocalNicAddress, 7);
    list.ADAddrArray = addresses;
    same("an array of pointers to addresses", sizeof *list.ADAddrArray, sizeof(void *));
}

/* Descriptors are little-endian: a length of 1 is in the first byte. */
static void byte_order(void)
{
    VIP_DESCRIPTOR descriptor;
    unsigned char bytes[sizeof descriptor];

    memset(&descriptor, 0, sizeof descriptor);
    descriptor.CS.Length = 1;
    memcpy(bytes, &descriptor, sizeof bytes);
    same("first byte of Length", bytes[24], 1);
}

/* Checks the prototype of a call by assigning it to a pointer of that type. */
#define PROTOTYPE(call, parameters)                                                                \
    do {                                                                                           \
        VIP_RETURN(*pointer) parameters = call;                                                    \
        same(#call, pointer != NULL, 1);                                                           \
    } while (0)

static void prototypes_of_nics_and_vis(void)
{
    PROTOTYPE(VipOpenNic, (const VIP_CHAR *, VIP_NIC_HANDLE *));
    PROTOTYPE(VipCloseNic, (VIP_NIC_HANDLE));
    PROTOTYPE(VipQueryNic, (VIP_NIC_HANDLE, VIP_NIC_ATTRIBUTES *));
    PROTOTYPE(VipErrorCallback,
              (VIP_NIC_HANDLE, VIP_PVOID, void (*)(VIP_PVOID, VIP_ERROR_DESCRIPTOR *)));
    PROTOTYPE(VipCreateVi, (VIP_NIC_HANDLE, VIP_VI_ATTRIBUTES *, VIP_CQ_HANDLE, VIP_CQ_HANDLE,
                            VIP_VI_HANDLE *));
    PROTOTYPE(VipDestroyVi, (VIP_VI_HANDLE));
    PROTOTYPE(VipQueryVi, (VIP_VI_HANDLE, VIP_VI_STATE *, VIP_VI_ATTRIBUTES *, VIP_BOOLEAN *,
                           VIP_BOOLEAN *));
    PROTOTYPE(VipSetViAttributes, (VIP_VI_HANDLE, VIP_VI_ATTRIBUTES *));
    PROTOTYPE(VipQuerySystemManagementInfo, (VIP_NIC_HANDLE, VIP_ULONG, VIP_PVOID));
    PROTOTYPE(VipConnectWait, (VIP_NIC_HANDLE, VIP_NET_ADDRESS *, VIP_ULONG, VIP_NET_ADDRESS *,
                               VIP_VI_ATTRIBUTES *, VIP_CONN_HANDLE *));
    PROTOTYPE(VipConnectAccept, (VIP_CONN_HANDLE, VIP_VI_HANDLE));
    PROTOTYPE(VipConnectReject, (VIP_CONN_HANDLE));
    PROTOTYPE(VipConnectRequest, (VIP_VI_HANDLE, VIP_NET_ADDRESS *, VIP_NET_ADDRESS *, VIP_ULONG,
                                  VIP_VI_ATTRIBUTES *));
    PROTOTYPE(VipDisconnect, (VIP_VI_HANDLE));
    PROTOTYPE(VipConnectPeerRequest,
              (VIP_VI_HANDLE, VIP_NET_ADDRESS *, VIP_NET_ADDRESS *, VIP_ULONG));
    PROTOTYPE(VipConnectPeerDone, (VIP_VI_HANDLE, VIP_VI_ATTRIBUTES *));
    PROTOTYPE(VipConnectPeerWait, (VIP_VI_HANDLE, VIP_VI_ATTRIBUTES *));
}

static void prototypes_of_memory_and_queues(void)
{
    PROTOTYPE(VipCreatePtag, (VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE *));
    PROTOTYPE(VipDestroyPtag, (VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE));
    PROTOTYPE(VipRegisterMem, (VIP_NIC_HANDLE, VIP_PVOID, VIP_ULONG, VIP_MEM_ATTRIBUTES *,
                               VIP_MEM_HANDLE *));
    PROTOTYPE(VipDeregisterMem, (VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE));
    PROTOTYPE(VipQueryMem, (VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE, VIP_MEM_ATTRIBUTES *));
    PROTOTYPE(VipSetMemAttributes,
              (VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE, VIP_MEM_ATTRIBUTES *));
    PROTOTYPE(VipPostSend, (VIP_VI_HANDLE, VIP_DESCRIPTOR *, VIP_MEM_HANDLE));
    PROTOTYPE(VipSendDone, (VIP_VI_HANDLE, VIP_DESCRIPTOR **));
    PROTOTYPE(VipSendWait, (VIP_VI_HANDLE, VIP_ULONG, VIP_DESCRIPTOR **));
    PROTOTYPE(VipPostRecv, (VIP_VI_HANDLE, VIP_DESCRIPTOR *, VIP_MEM_HANDLE));
    PROTOTYPE(VipRecvDone, (VIP_VI_HANDLE, VIP_DESCRIPTOR **));
    PROTOTYPE(VipRecvWait, (VIP_VI_HANDLE, VIP_ULONG, VIP_DESCRIPTOR **));
    PROTOTYPE(VipSendNotify, (VIP_VI_HANDLE, VIP_PVOID, void (*)(VIP_PVOID, VIP_NIC_HANDLE,
                                                                 VIP_VI_HANDLE, VIP_DESCRIPTOR *)));
    PROTOTYPE(VipRecvNotify, (VIP_VI_HANDLE, VIP_PVOID, void (*)(VIP_PVOID, VIP_NIC_HANDLE,
                                                                 VIP_VI_HANDLE, VIP_DESCRIPTOR *)));
    PROTOTYPE(VipCQDone, (VIP_CQ_HANDLE, VIP_VI_HANDLE *, VIP_BOOLEAN *));
    PROTOTYPE(VipCQWait, (VIP_CQ_HANDLE, VIP_ULONG, VIP_VI_HANDLE *, VIP_BOOLEAN *));
    PROTOTYPE(VipCQNotify, (VIP_CQ_HANDLE, VIP_PVOID, void (*)(VIP_PVOID, VIP_NIC_HANDLE,
                                                               VIP_VI_HANDLE, VIP_BOOLEAN)));
    PROTOTYPE(VipCreateCQ, (VIP_NIC_HANDLE, VIP_ULONG, VIP_CQ_HANDLE *));
    PROTOTYPE(VipDestroyCQ, (VIP_CQ_HANDLE));
    PROTOTYPE(VipResizeCQ, (VIP_CQ_HANDLE, VIP_ULONG));
    PROTOTYPE(VipNSInit, (VIP_NIC_HANDLE, VIP_PVOID));
    PROTOTYPE(VipNSGetHostByName, (VIP_NIC_HANDLE, VIP_CHAR *, VIP_NET_ADDRESS *, VIP_ULONG));
    PROTOTYPE(VipNSGetHostByAddr, (VIP_NIC_HANDLE, VIP_NET_ADDRESS *, VIP_CHAR *, VIP_ULONG *));
    PROTOTYPE(VipNSShutdown, (VIP_NIC_HANDLE));
}

int main(void)
{
    generic_types();
    nic_attributes();
    other_structures();
    descriptors();
    bits();
    enumerations();
    signedness();
    byte_order();
    prototypes_of_nics_and_vis();
    prototypes_of_memory_and_queues();
    printf("%u passed, %u failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
