/*
 * The remote process: a second process of the test program, possibly on another host, which
 * executes the calls on the remote VI of a connection. Its handles are represented by pointers into
 * a local table, by which calls are routed; registered memory is shared between the two processes
 * at the same address, so that descriptors and buffers of both are accessed alike.
 *
 * VIPL_TEST_PEER is the command prefix of the remote process (`env`, `nsenter ... -- env
 * VIADUCT_CONFIG=...`). Without it the suite runs in one process, and the remote end is a second
 * handle of the same NIC. If both ends are NICs of one configuration, VIPL_TEST_NIC_END in the
 * environment of the remote process is the suffix of its NIC names.
 */
#ifndef REMOTE_PROCESS_H
#define REMOTE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

#include <vipl.h>

/* Reports whether this run has a remote process. */
bool has_remote_process(void);
/* Starts the remote process; no effect in a run of one process. */
void remote_process_start(void);
/* Closes its stop pipe: it ends by returning from main. */
void remote_process_stop(void);
/* Kills it with SIGKILL. */
void remote_process_kill(void);
/* Main function of the remote process; returns its exit code. */
int remote_process_serve(int argc, char **argv);

/* Opens a NIC in the remote process by name and returns its attributes. */
VIP_RETURN remote_open_nic(const char *name, VIP_NIC_HANDLE *nic, VIP_NIC_ATTRIBUTES *attributes);

/* Allocate and free zeroed memory that both processes map at the same address. */
void *shared_alloc(size_t bytes);
void shared_free(void *memory, size_t bytes);

/* Reports whether a handle is of the remote process; and asynchronous errors of its NICs. */
bool is_remote_handle(VIP_PVOID handle);
void remote_errors_register(VIP_NIC_HANDLE nic);
void remote_errors_clear(void);
bool remote_error_wait(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found);
unsigned remote_errors_count(VIP_VI_HANDLE vi, VIP_ERROR_CODE code);

/* The VIPL calls, executed in the process of their handle. */
VIP_RETURN routed_VipCloseNic(VIP_NIC_HANDLE nic);
VIP_RETURN routed_VipCreateVi(VIP_NIC_HANDLE nic, VIP_VI_ATTRIBUTES *attributes,
                              VIP_CQ_HANDLE send_cq, VIP_CQ_HANDLE recv_cq, VIP_VI_HANDLE *vi);
VIP_RETURN routed_VipDestroyVi(VIP_VI_HANDLE vi);
VIP_RETURN routed_VipQueryVi(VIP_VI_HANDLE vi, VIP_VI_STATE *state, VIP_VI_ATTRIBUTES *attributes,
                             VIP_BOOLEAN *send_empty, VIP_BOOLEAN *recv_empty);
VIP_RETURN routed_VipSetViAttributes(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes);
VIP_RETURN routed_VipConnectWait(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *local, VIP_ULONG timeout_ms,
                                 VIP_NET_ADDRESS *remote, VIP_VI_ATTRIBUTES *attributes,
                                 VIP_CONN_HANDLE *connection);
VIP_RETURN routed_VipConnectAccept(VIP_CONN_HANDLE connection, VIP_VI_HANDLE vi);
VIP_RETURN routed_VipConnectReject(VIP_CONN_HANDLE connection);
VIP_RETURN routed_VipConnectRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local,
                                    VIP_NET_ADDRESS *remote,
                                    VIP_ULONG timeout_ms, VIP_VI_ATTRIBUTES *attributes);
VIP_RETURN routed_VipConnectPeerRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local,
                                        VIP_NET_ADDRESS *remote, VIP_ULONG timeout_ms);
VIP_RETURN routed_VipConnectPeerDone(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes);
VIP_RETURN routed_VipConnectPeerWait(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes);
VIP_RETURN routed_VipDisconnect(VIP_VI_HANDLE vi);
VIP_RETURN routed_VipCreatePtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE *tag);
VIP_RETURN routed_VipDestroyPtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE tag);
VIP_RETURN routed_VipRegisterMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_ULONG bytes,
                                 VIP_MEM_ATTRIBUTES *attributes, VIP_MEM_HANDLE *handle);
VIP_RETURN routed_VipDeregisterMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_MEM_HANDLE handle);
VIP_RETURN routed_VipPostSend(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle);
VIP_RETURN routed_VipSendDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptor);
VIP_RETURN routed_VipSendWait(VIP_VI_HANDLE vi, VIP_ULONG timeout_ms, VIP_DESCRIPTOR **descriptor);
VIP_RETURN routed_VipPostRecv(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle);
VIP_RETURN routed_VipRecvDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptor);
VIP_RETURN routed_VipRecvWait(VIP_VI_HANDLE vi, VIP_ULONG timeout_ms, VIP_DESCRIPTOR **descriptor);
VIP_RETURN routed_VipCQDone(VIP_CQ_HANDLE cq, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv_queue);
VIP_RETURN routed_VipCQWait(VIP_CQ_HANDLE cq, VIP_ULONG timeout_ms, VIP_VI_HANDLE *vi,
                            VIP_BOOLEAN *recv_queue);
VIP_RETURN routed_VipCreateCQ(VIP_NIC_HANDLE nic, VIP_ULONG entries, VIP_CQ_HANDLE *cq);
VIP_RETURN routed_VipDestroyCQ(VIP_CQ_HANDLE cq);

#endif
