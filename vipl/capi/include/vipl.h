/*
 * vipl.h - the user interface of the Virtual Interface Provider Library.
 *
 * Names, types, layouts and values are those of appendix A of the VI
 * Architecture Developer's Guide 1.0, with its misprints put right. The header
 * declares the calls that this version of libvipl exports; the types of the
 * remaining calls are complete.
 */
#ifndef _VIPL_
#define _VIPL_ 1

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Direction of a parameter, for the reader only. */
#ifndef IN
#define IN
#endif
#ifndef OUT
#define OUT
#endif

/* ------------------------------------------------------------------------
 * Generic types
 * --------------------------------------------------------------------- */

typedef void *VIP_PVOID;
typedef int VIP_BOOLEAN;
typedef char VIP_CHAR;
typedef unsigned char VIP_UCHAR;
typedef unsigned short VIP_USHORT;
typedef unsigned long VIP_ULONG;

typedef uint64_t VIP_UINT64;
typedef uint32_t VIP_UINT32;
typedef uint16_t VIP_UINT16;
typedef uint8_t VIP_UINT8;

/* Quality of service is left undefined by the guide: pass NULL. */
typedef VIP_PVOID VIP_QOS;

/* A time-out (in milliseconds) that never expires. */
#ifndef VIP_KERNEL
#define VIP_INFINITE (~(VIP_ULONG)0)
#endif

#define VIP_TRUE (1)
#define VIP_FALSE (0)

/* Handles of opaque objects; NULL is never a valid one. */
typedef VIP_PVOID VIP_NIC_HANDLE;
typedef VIP_PVOID VIP_VI_HANDLE;
typedef VIP_PVOID VIP_PROTECTION_HANDLE;
typedef VIP_PVOID VIP_CONN_HANDLE;
typedef VIP_PVOID VIP_CQ_HANDLE;

/* Names a registered region in descriptors; 0 is never a valid one. */
typedef VIP_UINT32 VIP_MEM_HANDLE;

/* Device names are this, or this followed by a number. */
#define VINICBASENAME "VINIC"

/* ------------------------------------------------------------------------
 * Addresses and attributes
 * --------------------------------------------------------------------- */

/*
 * HostAddress holds HostAddressLen bytes of host address, and directly behind
 * them DiscriminatorLen bytes of discriminator: allocate room for both.
 */
typedef struct {
    VIP_UINT16 HostAddressLen;
    VIP_UINT16 DiscriminatorLen;
    VIP_UINT8 HostAddress[1];
} VIP_NET_ADDRESS;

typedef VIP_USHORT VIP_RELIABILITY_LEVEL;

/* Bits of a VIP_RELIABILITY_LEVEL: one in a VI, a set of them in a NIC. A send or RDMA write
 * completes when it is on its way; at Reliable Reception when the peer has placed it, or with
 * what the peer says of it (VIP_STATUS_REMOTE_DESC_ERROR, VIP_STATUS_RDMA_PROT_ERROR). */
#define VIP_SERVICE_UNRELIABLE 0x01
#define VIP_SERVICE_RELIABLE_DELIVERY 0x02
#define VIP_SERVICE_RELIABLE_RECEPTION 0x04

/* What a NIC is and where its limits lie; written by VipQueryNic. */
typedef struct {
    VIP_CHAR Name[64];
    VIP_ULONG HardwareVersion;
    VIP_ULONG ProviderVersion;
    VIP_UINT16 NicAddressLen;
    const VIP_UINT8 *LocalNicAddress; /* NicAddressLen bytes, valid while the NIC is open */
    VIP_BOOLEAN ThreadSafe;
    VIP_UINT16 MaxDiscriminatorLen;
    VIP_ULONG MaxRegisterBytes;
    VIP_ULONG MaxRegisterRegions;
    VIP_ULONG MaxRegisterBlockBytes;
    VIP_ULONG MaxVI;
    VIP_ULONG MaxDescriptorsPerQueue;
    VIP_ULONG MaxSegmentsPerDesc;
    VIP_ULONG MaxCQ;
    VIP_ULONG MaxCQEntries;
    VIP_ULONG MaxTransferSize;
    VIP_ULONG NativeMTU;
    VIP_ULONG MaxPtags;
    VIP_RELIABILITY_LEVEL ReliabilityLevelSupport;
    VIP_RELIABILITY_LEVEL RDMAReadSupport; /* the levels with RDMA reads */
} VIP_NIC_ATTRIBUTES;

/* ------------------------------------------------------------------------
 * Descriptors (little-endian, whatever the host)
 * --------------------------------------------------------------------- */

/* Descriptors begin at a multiple of this many bytes. */
#define VIP_DESCRIPTOR_ALIGNMENT 64

/* An address that takes eight bytes everywhere. */
typedef union {
    VIP_UINT64 AddressBits;
    VIP_PVOID Address;
} VIP_PVOID64;

typedef struct {
    VIP_PVOID64 Next;
    VIP_MEM_HANDLE NextHandle;
    VIP_UINT16 SegCount; /* segments behind this one, the address segment included */
    VIP_UINT16 Control;
    VIP_UINT32 Reserved; /* zero */
    VIP_UINT32 ImmediateData;
    VIP_UINT32 Length; /* bytes, over all data segments */
    VIP_UINT32 Status;
} VIP_CONTROL_SEGMENT;

/* The remote buffer of an RDMA operation. */
typedef struct {
    VIP_PVOID64 Data;
    VIP_MEM_HANDLE Handle;
    VIP_UINT32 Reserved; /* zero */
} VIP_ADDRESS_SEGMENT;

/* One local buffer. */
typedef struct {
    VIP_PVOID64 Data;
    VIP_MEM_HANDLE Handle;
    VIP_UINT32 Length; /* bytes */
} VIP_DATA_SEGMENT;

typedef union {
    VIP_ADDRESS_SEGMENT Remote;
    VIP_DATA_SEGMENT Local;
} VIP_DESCRIPTOR_SEGMENT;

/* The smallest descriptor; longer ones go on behind DS[1]. */
typedef struct _VIP_DESCRIPTOR {
    VIP_CONTROL_SEGMENT CS;
    VIP_DESCRIPTOR_SEGMENT DS[2];
} VIP_DESCRIPTOR;

/* VIP_CONTROL_SEGMENT.Control. The data segments of an RDMA read are where the bytes go: they
 * belong to the library until the descriptor comes back. Immediate data is ignored with a read;
 * VIP_CONTROL_QFENCE holds a descriptor until all earlier reads of its queue are complete. */
#define VIP_CONTROL_OP_SENDRECV 0x0000
#define VIP_CONTROL_OP_RDMAWRITE 0x0001
#define VIP_CONTROL_OP_RDMAREAD 0x0002
#define VIP_CONTROL_OP_RESERVED 0x0003
#define VIP_CONTROL_OP_MASK 0x0003
#define VIP_CONTROL_IMMEDIATE 0x0004
#define VIP_CONTROL_QFENCE 0x0008
#define VIP_CONTROL_RESERVED 0xFFF0

/* VIP_CONTROL_SEGMENT.Status */
#define VIP_STATUS_DONE 0x00000001
#define VIP_STATUS_FORMAT_ERROR 0x00000002
#define VIP_STATUS_PROTECTION_ERROR 0x00000004
#define VIP_STATUS_LENGTH_ERROR 0x00000008
#define VIP_STATUS_PARTIAL_ERROR 0x00000010
#define VIP_STATUS_DESC_FLUSHED_ERROR 0x00000020
#define VIP_STATUS_TRANSPORT_ERROR 0x00000040
#define VIP_STATUS_RDMA_PROT_ERROR 0x00000080
#define VIP_STATUS_REMOTE_DESC_ERROR 0x00000100
#define VIP_STATUS_ERROR_MASK 0x000001FE

#define VIP_STATUS_OP_SEND 0x00000000
#define VIP_STATUS_OP_RECEIVE 0x00010000
#define VIP_STATUS_OP_RDMA_WRITE 0x00020000
#define VIP_STATUS_OP_REMOTE_RDMA_WRITE 0x00030000
#define VIP_STATUS_OP_RDMA_READ 0x00040000
#define VIP_STATUS_OP_MASK 0x00070000
#define VIP_STATUS_IMMEDIATE 0x00080000
#define VIP_STATUS_RESERVED 0xFFF0FE00

/* ------------------------------------------------------------------------
 * VIs and memory regions
 * --------------------------------------------------------------------- */

typedef enum {
    VIP_STATE_IDLE,
    VIP_STATE_CONNECTED,
    VIP_STATE_CONNECT_PENDING,
    VIP_STATE_ERROR
} VIP_VI_STATE;

typedef struct {
    VIP_RELIABILITY_LEVEL ReliabilityLevel;
    VIP_ULONG MaxTransferSize; /* bytes */
    VIP_QOS QoS;
    VIP_PROTECTION_HANDLE Ptag;
    VIP_BOOLEAN EnableRdmaWrite; /* the peer may write */
    VIP_BOOLEAN EnableRdmaRead;  /* the peer may read; not at VIP_SERVICE_UNRELIABLE */
} VIP_VI_ATTRIBUTES;

typedef struct _VIP_MEM_ATTRIBUTES {
    VIP_PROTECTION_HANDLE Ptag;
    VIP_BOOLEAN EnableRdmaWrite;
    VIP_BOOLEAN EnableRdmaRead;
} VIP_MEM_ATTRIBUTES;

/* ------------------------------------------------------------------------
 * Errors that no descriptor can tell
 * --------------------------------------------------------------------- */

typedef enum _VIP_ERROR_CODE {
    VIP_ERROR_POST_DESC,
    VIP_ERROR_CONN_LOST,
    VIP_ERROR_RECVQ_EMPTY,
    VIP_ERROR_VI_OVERRUN,
    VIP_ERROR_RDMAW_PROT,
    VIP_ERROR_RDMAW_DATA,
    VIP_ERROR_RDMAW_ABORT,
    VIP_ERROR_RDMAR_PROT,
    VIP_ERROR_COMP_PROT,
    VIP_ERROR_RDMA_TRANSPORT,
    VIP_ERROR_CATASTROPHIC
} VIP_ERROR_CODE;

typedef enum _VIP_RESOURCE_CODE {
    VIP_RESOURCE_NIC,
    VIP_RESOURCE_VI,
    VIP_RESOURCE_CQ,
    VIP_RESOURCE_DESCRIPTOR
} VIP_RESOURCE_CODE;

/* Handles and pointers that have no part in the error are NULL. */
typedef struct _VIP_ERROR_DESCRIPTOR {
    VIP_NIC_HANDLE NicHandle;
    VIP_VI_HANDLE ViHandle;
    VIP_CQ_HANDLE CQHandle;
    VIP_DESCRIPTOR *DescriptorPtr;
    VIP_ULONG OpCode; /* one of VIP_STATUS_OP_* */
    VIP_RESOURCE_CODE ResourceCode;
    VIP_ERROR_CODE ErrorCode;
} VIP_ERROR_DESCRIPTOR;

/* ------------------------------------------------------------------------
 * What the calls answer
 * --------------------------------------------------------------------- */

typedef enum {
    VIP_SUCCESS,
    VIP_NOT_DONE,
    VIP_INVALID_PARAMETER,
    VIP_ERROR_RESOURCE,
    VIP_TIMEOUT,
    VIP_REJECT,
    VIP_INVALID_RELIABILITY_LEVEL,
    VIP_INVALID_MTU,
    VIP_INVALID_QOS,
    VIP_INVALID_PTAG,
    VIP_INVALID_RDMAREAD,
    VIP_DESCRIPTOR_ERROR,
    VIP_INVALID_STATE,
    VIP_ERROR_NAMESERVICE,
    VIP_NO_MATCH,
    VIP_NOT_REACHABLE
} VIP_RETURN;

/* ------------------------------------------------------------------------
 * System management
 * --------------------------------------------------------------------- */

#define VIP_SMI_AUTODISCOVERY ((VIP_ULONG)1)

/*
 * The caller allocates NumAdAddrs addresses, says in the HostAddressLen of each how much room it
 * has (NicAddressLen or more), and an array of pointers to them. NumAdAddrs becomes the number of
 * addresses there are; when it was less, none is written and the answer is VIP_ERROR_RESOURCE.
 */
typedef struct {
    VIP_ULONG NumberOfHops; /* 1: nodes connected directly */
    VIP_NET_ADDRESS **ADAddrArray;
    VIP_ULONG NumAdAddrs;
} VIP_AUTODISCOVERY_LIST;

/* ------------------------------------------------------------------------
 * NIC
 * --------------------------------------------------------------------- */

extern VIP_RETURN VipOpenNic(IN const VIP_CHAR *DeviceName,
                             OUT VIP_NIC_HANDLE *NicHandle);

extern VIP_RETURN VipCloseNic(IN VIP_NIC_HANDLE NicHandle);

extern VIP_RETURN VipQueryNic(IN VIP_NIC_HANDLE NicHandle,
                              OUT VIP_NIC_ATTRIBUTES *NicAttribs);

/* For VIP_SMI_AUTODISCOVERY, SysManInfo points to a VIP_AUTODISCOVERY_LIST. */
extern VIP_RETURN VipQuerySystemManagementInfo(IN VIP_NIC_HANDLE NicHandle,
                                               IN VIP_ULONG InfoType,
                                               IN OUT VIP_PVOID SysManInfo);

/* Handler must return: one that is left by an exception or by pthread_exit ends the program. */
extern VIP_RETURN VipErrorCallback(IN VIP_NIC_HANDLE NicHandle,
                                   IN VIP_PVOID Context,
                                   IN void (*Handler)(IN VIP_PVOID Context,
                                                      IN VIP_ERROR_DESCRIPTOR *ErrorDesc));

/* ------------------------------------------------------------------------
 * Virtual Interfaces
 * --------------------------------------------------------------------- */

extern VIP_RETURN VipCreateVi(IN VIP_NIC_HANDLE NicHandle,
                              IN VIP_VI_ATTRIBUTES *ViAttribs,
                              IN VIP_CQ_HANDLE SendCQHandle,
                              IN VIP_CQ_HANDLE RecvCQHandle,
                              OUT VIP_VI_HANDLE *ViHandle);

extern VIP_RETURN VipDestroyVi(IN VIP_VI_HANDLE ViHandle);

extern VIP_RETURN VipQueryVi(IN VIP_VI_HANDLE ViHandle,
                             OUT VIP_VI_STATE *State,
                             OUT VIP_VI_ATTRIBUTES *ViAttribs,
                             OUT VIP_BOOLEAN *ViSendQEmpty,
                             OUT VIP_BOOLEAN *ViRecvQEmpty);

/* Of an Idle VI; when one attribute is refused, none changes. */
extern VIP_RETURN VipSetViAttributes(IN VIP_VI_HANDLE ViHandle,
                                     IN VIP_VI_ATTRIBUTES *ViAttribs);

/* ------------------------------------------------------------------------
 * Connections, client and server
 * --------------------------------------------------------------------- */

extern VIP_RETURN VipConnectWait(IN VIP_NIC_HANDLE NicHandle,
                                 IN VIP_NET_ADDRESS *LocalAddr,
                                 IN VIP_ULONG Timeout,
                                 OUT VIP_NET_ADDRESS *RemoteAddr,
                                 OUT VIP_VI_ATTRIBUTES *RemoteViAttribs,
                                 OUT VIP_CONN_HANDLE *ConnHandle);

extern VIP_RETURN VipConnectAccept(IN VIP_CONN_HANDLE ConnHandle,
                                   IN VIP_VI_HANDLE ViHandle);

extern VIP_RETURN VipConnectReject(IN VIP_CONN_HANDLE ConnHandle);

extern VIP_RETURN VipConnectRequest(IN VIP_VI_HANDLE ViHandle,
                                    IN VIP_NET_ADDRESS *LocalAddr,
                                    IN VIP_NET_ADDRESS *RemoteAddr,
                                    IN VIP_ULONG Timeout,
                                    OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);

extern VIP_RETURN VipDisconnect(IN VIP_VI_HANDLE ViHandle);

/* ------------------------------------------------------------------------
 * Connections between peers: both ask for the other's host and for the same
 * discriminator in RemoteAddr; LocalAddr gives the VI its name, no more.
 * A request waits for its match until its Timeout, which is not 0. What came
 * of it is told once, by Done or Wait; until then VIP_NOT_DONE, and
 * VIP_INVALID_STATE where there is nothing to tell.
 * --------------------------------------------------------------------- */

extern VIP_RETURN VipConnectPeerRequest(IN VIP_VI_HANDLE ViHandle,
                                        IN VIP_NET_ADDRESS *LocalAddr,
                                        IN VIP_NET_ADDRESS *RemoteAddr,
                                        IN VIP_ULONG Timeout);

extern VIP_RETURN VipConnectPeerDone(IN VIP_VI_HANDLE ViHandle,
                                     OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);

extern VIP_RETURN VipConnectPeerWait(IN VIP_VI_HANDLE ViHandle,
                                     OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);

/* ------------------------------------------------------------------------
 * Memory protection and registration
 * --------------------------------------------------------------------- */

extern VIP_RETURN VipCreatePtag(IN VIP_NIC_HANDLE NicHandle,
                                OUT VIP_PROTECTION_HANDLE *Ptag);

extern VIP_RETURN VipDestroyPtag(IN VIP_NIC_HANDLE NicHandle,
                                 IN VIP_PROTECTION_HANDLE Ptag);

extern VIP_RETURN VipRegisterMem(IN VIP_NIC_HANDLE NicHandle,
                                 IN VIP_PVOID VirtualAddress,
                                 IN VIP_ULONG Length,
                                 IN VIP_MEM_ATTRIBUTES *MemAttribs,
                                 OUT VIP_MEM_HANDLE *MemoryHandle);

extern VIP_RETURN VipDeregisterMem(IN VIP_NIC_HANDLE NicHandle,
                                   IN VIP_PVOID VirtualAddress,
                                   IN VIP_MEM_HANDLE MemoryHandle);

extern VIP_RETURN VipQueryMem(IN VIP_NIC_HANDLE NicHandle,
                              IN VIP_PVOID Address,
                              IN VIP_MEM_HANDLE MemHandle,
                              OUT VIP_MEM_ATTRIBUTES *MemAttribs);

/* When one attribute is refused, none changes. */
extern VIP_RETURN VipSetMemAttributes(IN VIP_NIC_HANDLE NicHandle,
                                      IN VIP_PVOID Address,
                                      IN VIP_MEM_HANDLE MemHandle,
                                      IN VIP_MEM_ATTRIBUTES *MemAttribs);

/* ------------------------------------------------------------------------
 * Data transfer and completion
 * --------------------------------------------------------------------- */

extern VIP_RETURN VipPostSend(IN VIP_VI_HANDLE ViHandle,
                              IN VIP_DESCRIPTOR *DescriptorPtr,
                              IN VIP_MEM_HANDLE MemoryHandle);

extern VIP_RETURN VipSendDone(IN VIP_VI_HANDLE ViHandle,
                              OUT VIP_DESCRIPTOR **DescriptorPtr);

extern VIP_RETURN VipSendWait(IN VIP_VI_HANDLE ViHandle,
                              IN VIP_ULONG Timeout,
                              OUT VIP_DESCRIPTOR **DescriptorPtr);

extern VIP_RETURN VipPostRecv(IN VIP_VI_HANDLE ViHandle,
                              IN VIP_DESCRIPTOR *DescriptorPtr,
                              IN VIP_MEM_HANDLE MemoryHandle);

extern VIP_RETURN VipRecvDone(IN VIP_VI_HANDLE ViHandle,
                              OUT VIP_DESCRIPTOR **DescriptorPtr);

extern VIP_RETURN VipRecvWait(IN VIP_VI_HANDLE ViHandle,
                              IN VIP_ULONG Timeout,
                              OUT VIP_DESCRIPTOR **DescriptorPtr);

extern VIP_RETURN VipCQDone(IN VIP_CQ_HANDLE CQHandle,
                            OUT VIP_VI_HANDLE *ViHandle,
                            OUT VIP_BOOLEAN *RecvQueue);

extern VIP_RETURN VipCQWait(IN VIP_CQ_HANDLE CQHandle,
                            IN VIP_ULONG Timeout,
                            OUT VIP_VI_HANDLE *ViHandle,
                            OUT VIP_BOOLEAN *RecvQueue);

/*
 * The Notify calls have Handler called once, with the next descriptor or entry that nobody asked
 * for before, on a thread of the queue's own. DescriptorPtr is NULL when the queue became empty.
 * Handler may make any call, and must return: one that is left by an exception or by pthread_exit
 * ends the program. VipDestroyVi, VipDestroyCQ and VipCloseNic cancel what was not called yet and
 * wait for a Handler that is running, unless they are called from one.
 */
extern VIP_RETURN VipSendNotify(IN VIP_VI_HANDLE ViHandle,
                                IN VIP_PVOID Context,
                                IN void (*Handler)(IN VIP_PVOID Context,
                                                   IN VIP_NIC_HANDLE NicHandle,
                                                   IN VIP_VI_HANDLE ViHandle,
                                                   IN VIP_DESCRIPTOR *DescriptorPtr));

extern VIP_RETURN VipRecvNotify(IN VIP_VI_HANDLE ViHandle,
                                IN VIP_PVOID Context,
                                IN void (*Handler)(IN VIP_PVOID Context,
                                                   IN VIP_NIC_HANDLE NicHandle,
                                                   IN VIP_VI_HANDLE ViHandle,
                                                   IN VIP_DESCRIPTOR *DescriptorPtr));

extern VIP_RETURN VipCQNotify(IN VIP_CQ_HANDLE CQHandle,
                              IN VIP_PVOID Context,
                              IN void (*Handler)(IN VIP_PVOID Context,
                                                 IN VIP_NIC_HANDLE NicHandle,
                                                 IN VIP_VI_HANDLE ViHandle,
                                                 IN VIP_BOOLEAN RecvQueue));

extern VIP_RETURN VipCreateCQ(IN VIP_NIC_HANDLE NicHandle,
                              IN VIP_ULONG EntryCount,
                              OUT VIP_CQ_HANDLE *CQHandle);

extern VIP_RETURN VipDestroyCQ(IN VIP_CQ_HANDLE CQHandle);

/* What is in the queue stays, and it always holds what the VIs attached to it can complete. */
extern VIP_RETURN VipResizeCQ(IN VIP_CQ_HANDLE CQHandle,
                              IN VIP_ULONG EntryCount);

/* ------------------------------------------------------------------------
 * Name service
 * --------------------------------------------------------------------- */

/* NSInitInfo: NULL, or the name of a hosts file as a string. */
extern VIP_RETURN VipNSInit(IN VIP_NIC_HANDLE NicHandle,
                            IN VIP_PVOID NSInitInfo);

extern VIP_RETURN VipNSGetHostByName(IN VIP_NIC_HANDLE NicHandle,
                                     IN VIP_CHAR *Name,
                                     OUT VIP_NET_ADDRESS *Address,
                                     IN VIP_ULONG NameIndex);

extern VIP_RETURN VipNSGetHostByAddr(IN VIP_NIC_HANDLE NicHandle,
                                     IN VIP_NET_ADDRESS *Address,
                                     OUT VIP_CHAR *Name,
                                     IN OUT VIP_ULONG *NameLen);

extern VIP_RETURN VipNSShutdown(IN VIP_NIC_HANDLE NicHandle);

#ifdef __cplusplus
}
#endif

#endif /* _VIPL_ */
