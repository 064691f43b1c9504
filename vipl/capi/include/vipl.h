/*
 * vipl.h - the C interface of the Virtual Interface Provider Library (VIPL).
 *
 * Names, types, layouts and values are those of appendix A of the VI
 * Architecture Developer's Guide 1.0, with its misprints corrected. The header
 * declares all calls that this version of libvipl exports. Numbers in brackets
 * are clauses of the guide.
 *
 * Any call may be made from any thread. Calls return VIP_INVALID_PARAMETER for
 * an invalid handle, and for NULL unless a comment permits it. Timeouts are in
 * milliseconds; VIP_INFINITE waits without a limit.
 */
#ifndef _VIPL_
#define _VIPL_ 1

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Direction of a parameter; documentation only. */
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

/* Quality of service, not defined by the guide: pass NULL. */
typedef VIP_PVOID VIP_QOS;

/* A timeout that never expires. */
#ifndef VIP_KERNEL
#define VIP_INFINITE (~(VIP_ULONG)0)
#endif

#define VIP_TRUE (1)
#define VIP_FALSE (0)

/* Handles of objects; NULL is never valid. */
typedef VIP_PVOID VIP_NIC_HANDLE;
typedef VIP_PVOID VIP_VI_HANDLE;
typedef VIP_PVOID VIP_PROTECTION_HANDLE;
typedef VIP_PVOID VIP_CONN_HANDLE;
typedef VIP_PVOID VIP_CQ_HANDLE;

/* Handle of a registered memory region; 0 is never valid. */
typedef VIP_UINT32 VIP_MEM_HANDLE;

/* Device names are this string, or this string followed by a number. */
#define VINICBASENAME "VINIC"

/* ------------------------------------------------------------------------
 * Addresses and attributes
 * --------------------------------------------------------------------- */

/*
 * HostAddress holds HostAddressLen bytes of host address, directly followed by
 * DiscriminatorLen bytes of discriminator: allocate memory for both.
 */
typedef struct {
    VIP_UINT16 HostAddressLen;
    VIP_UINT16 DiscriminatorLen;
    VIP_UINT8 HostAddress[1];
} VIP_NET_ADDRESS;

typedef VIP_USHORT VIP_RELIABILITY_LEVEL;

/* Bits of a VIP_RELIABILITY_LEVEL: one bit for a VI, a set of bits for a NIC. A send or RDMA write
 * completes when it has been sent; at Reliable Reception when the peer has placed its data, or with
 * the error that the peer reports (VIP_STATUS_REMOTE_DESC_ERROR, VIP_STATUS_RDMA_PROT_ERROR). */
#define VIP_SERVICE_UNRELIABLE 0x01
#define VIP_SERVICE_RELIABLE_DELIVERY 0x02
#define VIP_SERVICE_RELIABLE_RECEPTION 0x04

/* Attributes and limits of a NIC; returned by VipQueryNic. */
typedef struct {
    VIP_CHAR Name[64];
    VIP_ULONG HardwareVersion;
    VIP_ULONG ProviderVersion;
    VIP_UINT16 NicAddressLen;
    const VIP_UINT8 *LocalNicAddress; /* NicAddressLen bytes, valid while the NIC is open */
    VIP_BOOLEAN ThreadSafe;
    VIP_UINT16 MaxDiscriminatorLen; /* bytes */
    VIP_ULONG MaxRegisterBytes;     /* total of all regions */
    VIP_ULONG MaxRegisterRegions;
    VIP_ULONG MaxRegisterBlockBytes; /* of one region */
    VIP_ULONG MaxVI;
    VIP_ULONG MaxDescriptorsPerQueue;
    VIP_ULONG MaxSegmentsPerDesc; /* including the address segment */
    VIP_ULONG MaxCQ;
    VIP_ULONG MaxCQEntries;
    VIP_ULONG MaxTransferSize; /* bytes of a message */
    VIP_ULONG NativeMTU;       /* bytes of payload in a frame */
    VIP_ULONG MaxPtags;
    VIP_RELIABILITY_LEVEL ReliabilityLevelSupport;
    VIP_RELIABILITY_LEVEL RDMAReadSupport; /* the levels with RDMA reads */
} VIP_NIC_ATTRIBUTES;

/* ------------------------------------------------------------------------
 * Descriptors (little-endian on every host)
 * --------------------------------------------------------------------- */

/* Alignment of descriptors in bytes. */
#define VIP_DESCRIPTOR_ALIGNMENT 64

/* An address in eight bytes on every host. */
typedef union {
    VIP_UINT64 AddressBits;
    VIP_PVOID Address;
} VIP_PVOID64;

typedef struct {
    VIP_PVOID64 Next;
    VIP_MEM_HANDLE NextHandle;
    VIP_UINT16 SegCount; /* segments after this one, including the address segment */
    VIP_UINT16 Control;
    VIP_UINT32 Reserved; /* zero */
    VIP_UINT32 ImmediateData;
    VIP_UINT32 Length; /* bytes, total of all data segments */
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

/* The smallest descriptor; further segments follow DS[1]. */
typedef struct _VIP_DESCRIPTOR {
    VIP_CONTROL_SEGMENT CS;
    VIP_DESCRIPTOR_SEGMENT DS[2];
} VIP_DESCRIPTOR;

/* VIP_CONTROL_SEGMENT.Control. The data segments of an RDMA read are its destination: they belong
 * to the library until the descriptor completes. A read ignores immediate data; VIP_CONTROL_QFENCE
 * delays a descriptor until all earlier reads of its queue are complete. */
#define VIP_CONTROL_OP_SENDRECV 0x0000
#define VIP_CONTROL_OP_RDMAWRITE 0x0001
#define VIP_CONTROL_OP_RDMAREAD 0x0002
#define VIP_CONTROL_OP_RESERVED 0x0003
#define VIP_CONTROL_OP_MASK 0x0003
#define VIP_CONTROL_IMMEDIATE 0x0004
#define VIP_CONTROL_QFENCE 0x0008
#define VIP_CONTROL_RESERVED 0xFFF0

/* VIP_CONTROL_SEGMENT.Status, written on completion */
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
    VIP_BOOLEAN EnableRdmaRead;  /* the peer may read; invalid at VIP_SERVICE_UNRELIABLE */
} VIP_VI_ATTRIBUTES;

typedef struct _VIP_MEM_ATTRIBUTES {
    VIP_PROTECTION_HANDLE Ptag;
    VIP_BOOLEAN EnableRdmaWrite;
    VIP_BOOLEAN EnableRdmaRead;
} VIP_MEM_ATTRIBUTES;

/* ------------------------------------------------------------------------
 * Asynchronous errors, which no descriptor reports
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

/* Handles and pointers that the error does not concern are NULL. */
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
 * Return codes [4.2]
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
 * List for VIP_SMI_AUTODISCOVERY. On entry ADAddrArray has NumAdAddrs pointers to addresses, and
 * the HostAddressLen of each is its capacity in bytes (NicAddressLen or more). On return NumAdAddrs
 * is the number of nodes. If the array has fewer entries, none is written and the call returns
 * VIP_ERROR_RESOURCE.
 */
typedef struct {
    VIP_ULONG NumberOfHops; /* maximum distance; 1: directly connected nodes */
    VIP_NET_ADDRESS **ADAddrArray;
    VIP_ULONG NumAdAddrs;
} VIP_AUTODISCOVERY_LIST;

/* ------------------------------------------------------------------------
 * NIC
 * --------------------------------------------------------------------- */

/* Opens a NIC by device name or alias [3.1.1]. VIP_ERROR_RESOURCE if it cannot be opened; the
 * reason is logged. */
extern VIP_RETURN VipOpenNic(IN const VIP_CHAR *DeviceName,
                             OUT VIP_NIC_HANDLE *NicHandle);

/* Closes a NIC handle and releases everything that it owns [3.1.2]. */
extern VIP_RETURN VipCloseNic(IN VIP_NIC_HANDLE NicHandle);

/* Returns the attributes of a NIC [3.7.1]. */
extern VIP_RETURN VipQueryNic(IN VIP_NIC_HANDLE NicHandle,
                              OUT VIP_NIC_ATTRIBUTES *NicAttribs);

/* Returns management information [3.7.6]. InfoType is VIP_SMI_AUTODISCOVERY, and SysManInfo points
 * to a VIP_AUTODISCOVERY_LIST. */
extern VIP_RETURN VipQuerySystemManagementInfo(IN VIP_NIC_HANDLE NicHandle,
                                               IN VIP_ULONG InfoType,
                                               IN OUT VIP_PVOID SysManInfo);

/* Registers the handler of asynchronous errors [3.8.1]; NULL restores the default, which logs them.
 * Context is passed to Handler. Handler must return: if it exits by an exception or pthread_exit,
 * the program is aborted. */
extern VIP_RETURN VipErrorCallback(IN VIP_NIC_HANDLE NicHandle,
                                   IN VIP_PVOID Context,
                                   IN void (*Handler)(IN VIP_PVOID Context,
                                                      IN VIP_ERROR_DESCRIPTOR *ErrorDesc));

/* ------------------------------------------------------------------------
 * Virtual Interfaces
 * --------------------------------------------------------------------- */

/* Creates an Idle VI [3.2.1]. The completion queues are optional: NULL for none. */
extern VIP_RETURN VipCreateVi(IN VIP_NIC_HANDLE NicHandle,
                              IN VIP_VI_ATTRIBUTES *ViAttribs,
                              IN VIP_CQ_HANDLE SendCQHandle,
                              IN VIP_CQ_HANDLE RecvCQHandle,
                              OUT VIP_VI_HANDLE *ViHandle);

/* Destroys an Idle VI whose queues are empty [3.2.2]; otherwise VIP_INVALID_STATE. */
extern VIP_RETURN VipDestroyVi(IN VIP_VI_HANDLE ViHandle);

/* Returns state and attributes of a VI [3.7.3]. */
extern VIP_RETURN VipQueryVi(IN VIP_VI_HANDLE ViHandle,
                             OUT VIP_VI_STATE *State,
                             OUT VIP_VI_ATTRIBUTES *ViAttribs,
                             OUT VIP_BOOLEAN *ViSendQEmpty,
                             OUT VIP_BOOLEAN *ViRecvQEmpty);

/* Changes the attributes of an Idle VI, all or none [3.7.2]. */
extern VIP_RETURN VipSetViAttributes(IN VIP_VI_HANDLE ViHandle,
                                     IN VIP_VI_ATTRIBUTES *ViAttribs);

/* ------------------------------------------------------------------------
 * Connections, client and server
 * --------------------------------------------------------------------- */

/* Waits for a connection request to LocalAddr [3.3.1]. RemoteAddr has room for the longest
 * address. */
extern VIP_RETURN VipConnectWait(IN VIP_NIC_HANDLE NicHandle,
                                 IN VIP_NET_ADDRESS *LocalAddr,
                                 IN VIP_ULONG Timeout,
                                 OUT VIP_NET_ADDRESS *RemoteAddr,
                                 OUT VIP_VI_ATTRIBUTES *RemoteViAttribs,
                                 OUT VIP_CONN_HANDLE *ConnHandle);

/* Accepts a request with an Idle VI [3.3.2]. After VIP_INVALID_STATE, VIP_INVALID_MTU or
 * VIP_INVALID_RELIABILITY_LEVEL the request is still pending. VIP_TIMEOUT if the client gave up. */
extern VIP_RETURN VipConnectAccept(IN VIP_CONN_HANDLE ConnHandle,
                                   IN VIP_VI_HANDLE ViHandle);

/* Rejects a request [3.3.3]. */
extern VIP_RETURN VipConnectReject(IN VIP_CONN_HANDLE ConnHandle);

/* Requests a connection to RemoteAddr [3.3.4]; Timeout is not 0. VIP_NO_MATCH immediately if the
 * host has no listener for the discriminator: repeat the call. VIP_REJECT if the server rejects. */
extern VIP_RETURN VipConnectRequest(IN VIP_VI_HANDLE ViHandle,
                                    IN VIP_NET_ADDRESS *LocalAddr,
                                    IN VIP_NET_ADDRESS *RemoteAddr,
                                    IN VIP_ULONG Timeout,
                                    OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);

/* Disconnects a VI in any state and flushes its queues [3.3.5]; the VI is Idle. */
extern VIP_RETURN VipDisconnect(IN VIP_VI_HANDLE ViHandle);

/* ------------------------------------------------------------------------
 * Peer-to-peer connections. Two requests match if RemoteAddr of each has the
 * other's host and both have the same discriminator; LocalAddr only names the
 * VI. A request is pending until it matches or its Timeout, which is not 0,
 * expires. Done or Wait return its result once: Done returns VIP_NOT_DONE while
 * it is pending, and both return VIP_INVALID_STATE if there is no result.
 * --------------------------------------------------------------------- */

/* Makes a request and returns immediately [3.3.6]. */
extern VIP_RETURN VipConnectPeerRequest(IN VIP_VI_HANDLE ViHandle,
                                        IN VIP_NET_ADDRESS *LocalAddr,
                                        IN VIP_NET_ADDRESS *RemoteAddr,
                                        IN VIP_ULONG Timeout);

/* Returns the result of a request, without waiting [3.3.7]. */
extern VIP_RETURN VipConnectPeerDone(IN VIP_VI_HANDLE ViHandle,
                                     OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);

/* Waits for the result of a request and returns it [3.3.8]. */
extern VIP_RETURN VipConnectPeerWait(IN VIP_VI_HANDLE ViHandle,
                                     OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);

/* ------------------------------------------------------------------------
 * Memory protection and registration
 * --------------------------------------------------------------------- */

/* Creates a protection tag [3.4.1]: a VI can use only memory with its own tag. */
extern VIP_RETURN VipCreatePtag(IN VIP_NIC_HANDLE NicHandle,
                                OUT VIP_PROTECTION_HANDLE *Ptag);

/* Destroys a protection tag [3.4.2]; VIP_ERROR_RESOURCE while a VI or a region uses it. */
extern VIP_RETURN VipDestroyPtag(IN VIP_NIC_HANDLE NicHandle,
                                 IN VIP_PROTECTION_HANDLE Ptag);

/* Registers Length bytes of memory [3.4.3]. They must stay mapped until they are deregistered.
 * MemAttribs may be NULL if the protection of the NIC is lenient: no tag, no RDMA. */
extern VIP_RETURN VipRegisterMem(IN VIP_NIC_HANDLE NicHandle,
                                 IN VIP_PVOID VirtualAddress,
                                 IN VIP_ULONG Length,
                                 IN VIP_MEM_ATTRIBUTES *MemAttribs,
                                 OUT VIP_MEM_HANDLE *MemoryHandle);

/* Deregisters memory [3.4.4]. After VIP_SUCCESS it is no longer accessed. */
extern VIP_RETURN VipDeregisterMem(IN VIP_NIC_HANDLE NicHandle,
                                   IN VIP_PVOID VirtualAddress,
                                   IN VIP_MEM_HANDLE MemoryHandle);

/* Returns the attributes of a registered region [3.7.5]. */
extern VIP_RETURN VipQueryMem(IN VIP_NIC_HANDLE NicHandle,
                              IN VIP_PVOID Address,
                              IN VIP_MEM_HANDLE MemHandle,
                              OUT VIP_MEM_ATTRIBUTES *MemAttribs);

/* Changes the attributes of a registered region, all or none [3.7.4]. */
extern VIP_RETURN VipSetMemAttributes(IN VIP_NIC_HANDLE NicHandle,
                                      IN VIP_PVOID Address,
                                      IN VIP_MEM_HANDLE MemHandle,
                                      IN VIP_MEM_ATTRIBUTES *MemAttribs);

/* ------------------------------------------------------------------------
 * Data transfer and completion
 * --------------------------------------------------------------------- */

/*
 * Post calls add a descriptor to a work queue; it belongs to the library until a Done, Wait or
 * Notify call returns it. Errors in it are reported by its status; one that cannot be read, also
 * NULL, by the asynchronous error VIP_ERROR_POST_DESC. Done and Wait calls take the descriptor at
 * the head of the queue: VIP_DESCRIPTOR_ERROR if it completed with an error, or, with NULL, if the
 * queue is empty; VIP_NOT_DONE or VIP_TIMEOUT, with NULL, if it has not completed.
 */
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

/* Take the oldest entry of a completion queue: the VI, and whether its receive queue completed a
 * descriptor or its send queue [3.5.7, 3.5.8]. */
extern VIP_RETURN VipCQDone(IN VIP_CQ_HANDLE CQHandle,
                            OUT VIP_VI_HANDLE *ViHandle,
                            OUT VIP_BOOLEAN *RecvQueue);

extern VIP_RETURN VipCQWait(IN VIP_CQ_HANDLE CQHandle,
                            IN VIP_ULONG Timeout,
                            OUT VIP_VI_HANDLE *ViHandle,
                            OUT VIP_BOOLEAN *RecvQueue);

/*
 * Notify calls register Handler to be called once with Context and the next completed descriptor or
 * entry, on a thread of the queue, in the order of registration. DescriptorPtr is NULL if the queue
 * became empty. Handler may make any call, and must return: if it exits by an exception or
 * pthread_exit, the program is aborted. VipDestroyVi, VipDestroyCQ and VipCloseNic cancel handlers
 * that were not called and wait for a running one, unless they are called from a handler.
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

/* Creates a completion queue of at least EntryCount entries [3.6.1]. */
extern VIP_RETURN VipCreateCQ(IN VIP_NIC_HANDLE NicHandle,
                              IN VIP_ULONG EntryCount,
                              OUT VIP_CQ_HANDLE *CQHandle);

/* Destroys a completion queue [3.6.2]; VIP_ERROR_RESOURCE while a VI uses it. */
extern VIP_RETURN VipDestroyCQ(IN VIP_CQ_HANDLE CQHandle);

/* Changes the minimum capacity of a completion queue [3.6.3]. Its entries stay, and it always has
 * room for the completions of all VIs that use it. */
extern VIP_RETURN VipResizeCQ(IN VIP_CQ_HANDLE CQHandle,
                              IN VIP_ULONG EntryCount);

/* ------------------------------------------------------------------------
 * Name service
 * --------------------------------------------------------------------- */

/* Starts the name service [3.9.1]. NSInitInfo is the name of a hosts file, or NULL for the
 * default. */
extern VIP_RETURN VipNSInit(IN VIP_NIC_HANDLE NicHandle,
                            IN VIP_PVOID NSInitInfo);

/* Returns the address of a host with number NameIndex, from 0 [3.9.2]. Only the host part is
 * written; HostAddressLen on entry is its capacity in bytes, 0 for NicAddressLen. */
extern VIP_RETURN VipNSGetHostByName(IN VIP_NIC_HANDLE NicHandle,
                                     IN VIP_CHAR *Name,
                                     OUT VIP_NET_ADDRESS *Address,
                                     IN VIP_ULONG NameIndex);

/* Returns the name of a host address [3.9.3]. NameLen is the capacity of Name in bytes on entry,
 * and the length of the name on return; if it is too small, VIP_INVALID_PARAMETER with the capacity
 * needed. */
extern VIP_RETURN VipNSGetHostByAddr(IN VIP_NIC_HANDLE NicHandle,
                                     IN VIP_NET_ADDRESS *Address,
                                     OUT VIP_CHAR *Name,
                                     IN OUT VIP_ULONG *NameLen);

/* Stops the name service; the NIC stays open [3.9.4]. */
extern VIP_RETURN VipNSShutdown(IN VIP_NIC_HANDLE NicHandle);

#ifdef __cplusplus
}
#endif

#endif /* _VIPL_ */
