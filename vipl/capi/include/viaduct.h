/*
 * viaduct.h - what this provider has beside the calls of the guide.
 *
 * A program needs none of it: vipl.h is the whole Virtual Interface Provider
 * Library. Here are memory that makes programs faster that attach to a datapath
 * process, the users of local peers, and what VI/TCP offers beyond the guide.
 */
#ifndef VIADUCT_H
#define VIADUCT_H 1

#include <stddef.h>

#include "vipl.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Allocates at least so many bytes for VipRegisterMem: whole pages of zeros,
 * beginning with a page. A datapath process maps such memory and copies into
 * it and out of it; other memory it reaches by a system call for each frame.
 * In a program that polls for itself it is as good as any other.
 * The process maps an allocation as a whole, and all of it counts for the
 * program's quota (max_registered_bytes) until it is freed.
 *
 * NULL on failure, and errno says why: EINVAL for no bytes, ENOMEM, EMFILE
 * (each allocation holds a file descriptor: allocate much at a time).
 *
 * After fork(2) parent and child see the same bytes: the memory is shared, and
 * what one writes the other reads.
 */
extern void *viaduct_alloc(size_t bytes);

/*
 * Frees what viaduct_alloc gave, whole; NULL is ignored. Deregister it first
 * (VipDeregisterMem, or VipCloseNic). A pointer that viaduct_alloc did not
 * give, or that was freed before, is told on standard error and left alone.
 * errno stays as it was.
 */
extern void viaduct_free(void *memory);

/* --- Users of local peers ----------------------------------------------------
 *
 * The user ID of the program at the other end, where it is known beyond doubt:
 *
 *   this program                 the other program                user
 *   attached to a NIC of a       attached to the same NIC of      its own, which the kernel
 *   datapath process             the same process                 has told the process
 *   has opened the NIC itself    itself: its own VI               this program's
 *   either                       any other: another host,         VIADUCT_USER_UNKNOWN
 *                                another NIC, another process
 *
 * Nothing that comes by a network counts. IDs are as the datapath process sees
 * them: a program in another user namespace may have another number for the same
 * user, and users that the process's namespace does not map all have the overflow
 * ID (65534, /proc/sys/kernel/overflowuid).
 *
 * The calls answer VIP_INVALID_PARAMETER for NULL and for handles of nothing;
 * where a datapath process serves the NIC and is gone, VIP_ERROR_RESOURCE. A
 * call that fails writes nothing.
 */

/* No user has this ID. */
#define VIADUCT_USER_UNKNOWN 0xFFFFFFFFu

/*
 * The user whose program makes a request that VipConnectWait gave and that is not
 * answered yet: a reason to accept or to reject it. VIP_TIMEOUT if the client has
 * gone. The handle stays the caller's, as with viaduct_get_request_security.
 */
extern VIP_RETURN viaduct_get_request_user(VIP_CONN_HANDLE conn, VIP_UINT32 *user);

/* The user whose program the VI is connected to, also peer to peer.
 * VIP_INVALID_STATE unless the VI is Connected. */
extern VIP_RETURN viaduct_get_peer_user(VIP_VI_HANDLE vi, VIP_UINT32 *user);

/* --- VI/TCP beyond the guide (draft-dicecco-vitcp-00, 2.2.1) ------------------
 *
 * For VIs of a NIC whose configuration says transport = "vi-tcp". For any other
 * VI, for NULL and for handles of nothing the calls answer
 * VIP_INVALID_PARAMETER; where a datapath process serves the NIC and is gone,
 * VIP_ERROR_RESOURCE. A call that fails writes nothing.
 */

/* Bytes of security information, at most; 191 on a NIC with key_file. */
#define VIADUCT_MAX_SECURITY_BYTES 256

/* What a VI wants of its connections. A new one: flow control as the NIC's
 * configuration says (flow_control), nothing else. */
typedef struct {
    /* Sends wait until the peer has posted a receive, instead of breaking the
     * connection: they may be posted before the receives. In force if both
     * ends want it. */
    VIP_BOOLEAN flow_control;
    /* A peer with another MaxTransferSize is no conflict: the lesser of both
     * counts for the connection, and longer messages complete with
     * VIP_STATUS_LENGTH_ERROR. In force if both ends want it, or the server
     * alone if its own is the larger. */
    VIP_BOOLEAN negotiates;
    /* What the peer is told with the request, or with its acceptance: so many
     * bytes of `security`. Those behind them are not looked at when they are set,
     * and 0 when they are got. What it means is the programs' own; it travels as
     * it is. */
    VIP_ULONG security_bytes;
    VIP_UINT8 security[VIADUCT_MAX_SECURITY_BYTES];
} viaduct_choices;

/* What two VIs have agreed on for their connection. */
typedef struct {
    /* Both ends want it: sends wait for receives. */
    VIP_BOOLEAN flow_control;
    /* The longest message of this connection: the lesser MaxTransferSize of the
     * two VIs. They are the same unless it was negotiated. */
    VIP_ULONG max_transfer_bytes;
    /* What the peer told: so many bytes of `security`, 0 behind them. */
    VIP_ULONG security_bytes;
    VIP_UINT8 security[VIADUCT_MAX_SECURITY_BYTES];
} viaduct_agreement;

/* What the VI wants. */
extern VIP_RETURN viaduct_get_choices(VIP_VI_HANDLE vi, viaduct_choices *choices);

/*
 * Changes what the VI wants, all of it or nothing. VIP_INVALID_STATE unless the
 * VI is Idle; VIP_INVALID_PARAMETER also for more security information than
 * there may be.
 */
extern VIP_RETURN viaduct_set_choices(VIP_VI_HANDLE vi, const viaduct_choices *choices);

/* What the VI and its peer have agreed on. VIP_INVALID_STATE unless the VI is
 * Connected. */
extern VIP_RETURN viaduct_get_agreement(VIP_VI_HANDLE vi, viaduct_agreement *agreement);

/*
 * What the client told with a request that VipConnectWait gave and that is not
 * answered yet: a reason to accept or to reject it. `security` has room for
 * VIADUCT_MAX_SECURITY_BYTES, and all of it is written; `security_bytes` says how
 * many came, behind which it is 0. VIP_TIMEOUT if the client has gone.
 *
 * The handle stays the caller's, who still has to accept or reject the request,
 * also after VIP_TIMEOUT. Behind an answer it is a handle of nothing; an
 * acceptance that failed with VIP_INVALID_STATE, VIP_INVALID_MTU or
 * VIP_INVALID_RELIABILITY_LEVEL was none.
 */
extern VIP_RETURN viaduct_get_request_security(VIP_CONN_HANDLE conn, VIP_UINT8 *security,
                                               VIP_ULONG *security_bytes);

#ifdef __cplusplus
}
#endif

#endif /* VIADUCT_H */
