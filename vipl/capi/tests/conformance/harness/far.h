/*
 * The far process. A test that connects two VIs has one of them here and the other there: in a second
 * process of this program, on another host if the configuration says so, which makes the calls it is
 * told to. Its handles are pointers into a table of ours, by which each call knows where it belongs;
 * registered memory is shared between the two at one address, so that a descriptor or a buffer over
 * there is written and read like one here.
 *
 * VIPL_TEST_PEER holds the words that the far process is started with, in front of the program's own
 * (`env`, `nsenter ... -- env VIADUCT_CONFIG=...`). Without it there is one process, and "there" is a
 * second opening of the same NIC. Where the two ends are NICs of one configuration, VIPL_TEST_NIC_END in the far process's
 * environment is what the names of its NICs end with.
 */
#ifndef FAR_H
#define FAR_H

#include <stdbool.h>
#include <stddef.h>

#include <vipl.h>

/* True if this run has a far process. */
bool far_exists(void);
/* Starts it; nothing to do in a run of one process. */
void far_start(void);
/* Ends it by closing its doors, as a program ends that returns from main. */
void far_stop(void);
/* Kills it in the middle of whatever it does. */
void far_kill(void);
/* What the far process does instead of any test; gives its exit code. */
int far_serve(int count, char **words);

/* Opens a NIC of the far process by name and tells its attributes. */
VIP_RETURN far_open(const char *name, VIP_NIC_HANDLE *nic, VIP_NIC_ATTRIBUTES *attributes);

/* Memory that both processes see at one address, zeroed; given back in any order. */
void *shared_get(size_t bytes);
void shared_put(void *memory, size_t bytes);

/* Asynchronous errors of the far process's NICs; a handle says whose errors are meant. */
bool far_handle(VIP_PVOID handle);
void far_errors_catch(VIP_NIC_HANDLE nic);
void far_errors_forget(void);
bool far_error_wait(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found);
unsigned far_errors_of(VIP_VI_HANDLE vi, VIP_ERROR_CODE code);

/* The calls, made where their handle belongs. */
VIP_RETURN at_VipCloseNic(VIP_NIC_HANDLE nic);
VIP_RETURN at_VipCreateVi(VIP_NIC_HANDLE nic, VIP_VI_ATTRIBUTES *attributes, VIP_CQ_HANDLE send_cq,
                          VIP_CQ_HANDLE recv_cq, VIP_VI_HANDLE *vi);
VIP_RETURN at_VipDestroyVi(VIP_VI_HANDLE vi);
VIP_RETURN at_VipQueryVi(VIP_VI_HANDLE vi, VIP_VI_STATE *state, VIP_VI_ATTRIBUTES *attributes,
                         VIP_BOOLEAN *send_empty, VIP_BOOLEAN *recv_empty);
VIP_RETURN at_VipSetViAttributes(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes);
VIP_RETURN at_VipConnectWait(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *local, VIP_ULONG timeout_ms,
                             VIP_NET_ADDRESS *remote, VIP_VI_ATTRIBUTES *attributes,
                             VIP_CONN_HANDLE *connection);
VIP_RETURN at_VipConnectAccept(VIP_CONN_HANDLE connection, VIP_VI_HANDLE vi);
VIP_RETURN at_VipConnectReject(VIP_CONN_HANDLE connection);
VIP_RETURN at_VipConnectRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote,
                                VIP_ULONG timeout_ms, VIP_VI_ATTRIBUTES *attributes);
VIP_RETURN at_VipConnectPeerRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local,
                                    VIP_NET_ADDRESS *remote, VIP_ULONG timeout_ms);
VIP_RETURN at_VipConnectPeerDone(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes);
VIP_RETURN at_VipConnectPeerWait(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes);
VIP_RETURN at_VipDisconnect(VIP_VI_HANDLE vi);
VIP_RETURN at_VipCreatePtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE *tag);
VIP_RETURN at_VipDestroyPtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE tag);
VIP_RETURN at_VipRegisterMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_ULONG bytes,
                             VIP_MEM_ATTRIBUTES *attributes, VIP_MEM_HANDLE *handle);
VIP_RETURN at_VipDeregisterMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_MEM_HANDLE handle);
VIP_RETURN at_VipPostSend(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle);
VIP_RETURN at_VipSendDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptor);
VIP_RETURN at_VipSendWait(VIP_VI_HANDLE vi, VIP_ULONG timeout_ms, VIP_DESCRIPTOR **descriptor);
VIP_RETURN at_VipPostRecv(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle);
VIP_RETURN at_VipRecvDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptor);
VIP_RETURN at_VipRecvWait(VIP_VI_HANDLE vi, VIP_ULONG timeout_ms, VIP_DESCRIPTOR **descriptor);
VIP_RETURN at_VipCQDone(VIP_CQ_HANDLE cq, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv_queue);
VIP_RETURN at_VipCQWait(VIP_CQ_HANDLE cq, VIP_ULONG timeout_ms, VIP_VI_HANDLE *vi,
                        VIP_BOOLEAN *recv_queue);
VIP_RETURN at_VipCreateCQ(VIP_NIC_HANDLE nic, VIP_ULONG entries, VIP_CQ_HANDLE *cq);
VIP_RETURN at_VipDestroyCQ(VIP_CQ_HANDLE cq);

#endif
