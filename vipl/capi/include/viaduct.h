/*
 * viaduct.h - extensions of this provider to vipl.h.
 *
 * All of them are optional: vipl.h declares the whole Virtual Interface Provider
 * Library. This header declares an allocator of memory that a datapath process
 * can map, user IDs of local peers, and connection options of VI/TCP.
 */
#ifndef VIADUCT_H
#define VIADUCT_H 1

#include <stddef.h>

#include "vipl.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Allocates at least `bytes` bytes for VipRegisterMem: zeroed whole pages,
 * aligned to a page. A datapath process maps such memory and copies data
 * directly; it accesses other memory by a system call for each frame. Without a
 * datapath process it has no advantage.
 * The process maps an allocation as a whole, and its size counts toward the
 * program's quota (max_registered_bytes) until it is freed.
 *
 * Returns NULL and sets errno on failure: EINVAL for 0 bytes, ENOMEM, EMFILE
 * (each allocation uses a file descriptor: prefer few large allocations).
 *
 * After fork(2) the memory is shared between parent and child.
 */
extern void *viaduct_alloc(size_t bytes);

/*
 * Frees a whole allocation of viaduct_alloc; NULL is ignored. Deregister it
 * first (VipDeregisterMem, or VipCloseNic). Any other pointer, also one that
 * was freed already, is reported on standard error and ignored. errno is
 * preserved.
 */
extern void viaduct_free(void *memory);

/* --- Users of local peers ----------------------------------------------------
 *
 * The user ID of the remote program, if it is known reliably:
 *
 *   this program                 the remote program               user
 *   attached to a NIC of a       attached to the same NIC of      its user ID, which the
 *   datapath process             the same process                 process has from the kernel
 *   has opened the NIC itself    itself: its own VI               the user ID of this program
 *   either                       any other: another host,         VIADUCT_USER_UNKNOWN
 *                                another NIC, another process
 *
 * Information received from a network is not used. IDs are those of the user
 * namespace of the datapath process: in another user namespace the same user may
 * have another ID, and users that are not mapped have the overflow ID (65534,
 * /proc/sys/kernel/overflowuid).
 *
 * The calls return VIP_INVALID_PARAMETER for NULL and invalid handles, and
 * VIP_ERROR_RESOURCE if the datapath process of the NIC has ended. A call that
 * fails writes nothing.
 */

/* The user ID is not known; no user has this ID. */
#define VIADUCT_USER_UNKNOWN 0xFFFFFFFFu

/*
 * Returns the user ID of the program that made a pending request, returned by
 * VipConnectWait. VIP_TIMEOUT if the client has given up. The request stays
 * pending, as with viaduct_get_request_security.
 */
extern VIP_RETURN viaduct_get_request_user(VIP_CONN_HANDLE conn, VIP_UINT32 *user);

/* Returns the user ID of the program that the VI is connected to, also for a
 * peer-to-peer connection. VIP_INVALID_STATE unless the VI is Connected. */
extern VIP_RETURN viaduct_get_peer_user(VIP_VI_HANDLE vi, VIP_UINT32 *user);

/* --- Connection options of VI/TCP (draft-dicecco-vitcp-00, 2.2.1) -------------
 *
 * For VIs of a NIC with [nic.vi_tcp] in its configuration. For other VIs,
 * NULL and invalid handles the calls return VIP_INVALID_PARAMETER, and
 * VIP_ERROR_RESOURCE if the datapath process of the NIC has ended. A call that
 * fails writes nothing.
 */

/* Maximum length of security information in bytes; 191 on a NIC with key_file. */
#define VIADUCT_MAX_SECURITY_BYTES 256

/* Connection options of a VI. Default: flow_control of the NIC's configuration,
 * no negotiation, no security information. */
typedef struct {
    /* Sends wait until the peer has posted a receive, instead of breaking the
     * connection: they may be posted before the receives. Effective if both
     * VIs request it. */
    VIP_BOOLEAN flow_control;
    /* Negotiates the transfer size: the lesser MaxTransferSize of both VIs is
     * used for the connection, and longer messages complete with
     * VIP_STATUS_LENGTH_ERROR. Effective if both VIs request it, or only the
     * server's, if its own size is the larger. */
    __extension__ union {
        VIP_BOOLEAN negotiate_mtu;
        VIP_BOOLEAN negotiates; /* deprecated */
    };
    /* Used bytes of `security`, which is sent to the peer with the request or its
     * acceptance, unmodified, and is interpreted by the applications. Bytes after
     * them are ignored by viaduct_set_connection_options, and 0 after
     * viaduct_get_connection_options. */
    VIP_ULONG security_bytes;
    VIP_UINT8 security[VIADUCT_MAX_SECURITY_BYTES];
} viaduct_connection_options;

/* Negotiated options of a connection. */
typedef struct {
    /* Flow control is in use: sends wait for receives. */
    VIP_BOOLEAN flow_control;
    /* Maximum message length of the connection in bytes: the lesser
     * MaxTransferSize of the two VIs. They are equal unless it was negotiated. */
    VIP_ULONG max_transfer_bytes;
    /* Used bytes of `security`, received from the peer; the bytes after them
     * are 0. */
    VIP_ULONG security_bytes;
    VIP_UINT8 security[VIADUCT_MAX_SECURITY_BYTES];
} viaduct_negotiated_options;

/* Returns the connection options of a VI. */
extern VIP_RETURN viaduct_get_connection_options(VIP_VI_HANDLE vi,
                                                 viaduct_connection_options *options);

/*
 * Replaces the connection options of a VI, all or none. VIP_INVALID_STATE unless
 * the VI is Idle; VIP_INVALID_PARAMETER also for too much security information.
 */
extern VIP_RETURN viaduct_set_connection_options(VIP_VI_HANDLE vi,
                                                 const viaduct_connection_options *options);

/* Returns the negotiated options of a VI's connection. VIP_INVALID_STATE unless
 * the VI is Connected. */
extern VIP_RETURN viaduct_get_negotiated_options(VIP_VI_HANDLE vi,
                                                 viaduct_negotiated_options *options);

/*
 * Returns the client's security information of a pending request, returned by
 * VipConnectWait. `security` has room for VIADUCT_MAX_SECURITY_BYTES bytes, all of
 * which are written; `security_bytes` is the number received, and the bytes after
 * them are 0. VIP_TIMEOUT if the client has given up.
 *
 * The request stays pending: the caller still has to accept or reject it, also
 * after VIP_TIMEOUT. After that the handle is invalid, except when
 * VipConnectAccept failed with VIP_INVALID_STATE, VIP_INVALID_MTU or
 * VIP_INVALID_RELIABILITY_LEVEL.
 */
extern VIP_RETURN viaduct_get_request_security(VIP_CONN_HANDLE conn, VIP_UINT8 *security,
                                               VIP_ULONG *security_bytes);

/* Former names, until version 0.2. */
typedef viaduct_connection_options viaduct_choices;
typedef viaduct_negotiated_options viaduct_agreement;
extern VIP_RETURN viaduct_get_choices(VIP_VI_HANDLE vi, viaduct_choices *options)
    __attribute__((deprecated));
extern VIP_RETURN viaduct_set_choices(VIP_VI_HANDLE vi, const viaduct_choices *options)
    __attribute__((deprecated));
extern VIP_RETURN viaduct_get_agreement(VIP_VI_HANDLE vi, viaduct_agreement *options)
    __attribute__((deprecated));

#ifdef __cplusplus
}
#endif

#endif /* VIADUCT_H */
