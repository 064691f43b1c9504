/* VIPL calls as messages: encoding in the local process, execution in the remote process. */
#include "remote_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "errors.h"
#include "remote_process.h"

/* --- local process --------------------------------------------------------------------------- */

/* Returns a static buffer for the address of a remote NIC, one for each name. */
static VIP_UINT8 *address_buffer(const char *name)
{
    enum { NICS = 8 };
    static struct {
        char name[NAME_BYTES];
        VIP_UINT8 address[NIC_ADDRESS_BYTES];
    } nics[NICS];
    unsigned n = 0;

    while (n < NICS && nics[n].name[0] != '\0' && strcmp(nics[n].name, name) != 0)
        n++;
    REQUIRE(n < NICS && strlen(name) < NAME_BYTES, "the table of NIC addresses has room for %s",
            name);
    strcpy(nics[n].name, name);
    return nics[n].address;
}

VIP_RETURN remote_open_nic(const char *name, VIP_NIC_HANDLE *nic, VIP_NIC_ATTRIBUTES *attributes)
{
    VIP_UINT8 *address = address_buffer(name);
    RemoteMessage message = {.call = OPEN_NIC};

    strncpy(message.name, name, sizeof message.name - 1);
    VIP_RETURN result = remote_call(&message);
    *nic = message.out;
    *attributes = message.nic_attributes;
    memcpy(address, message.nic_address, NIC_ADDRESS_BYTES);
    attributes->LocalNicAddress = address;
    return result;
}

VIP_RETURN routed_VipCloseNic(VIP_NIC_HANDLE nic)
{
    RemoteMessage message = {.call = CLOSE_NIC, .handles = {nic}};

    return is_remote_handle(nic) ? remote_call(&message) : VipCloseNic(nic);
}

VIP_RETURN routed_VipCreateVi(VIP_NIC_HANDLE nic, VIP_VI_ATTRIBUTES *attributes,
                              VIP_CQ_HANDLE send_cq, VIP_CQ_HANDLE recv_cq, VIP_VI_HANDLE *vi)
{
    if (!is_remote_handle(nic))
        return VipCreateVi(nic, attributes, send_cq, recv_cq, vi);
    RemoteMessage message = {
        .call = CREATE_VI, .handles = {nic, send_cq, recv_cq}, .vi_attributes = *attributes};
    VIP_RETURN result = remote_call(&message);
    *vi = message.out;
    return result;
}

VIP_RETURN routed_VipDestroyVi(VIP_VI_HANDLE vi)
{
    RemoteMessage message = {.call = DESTROY_VI, .handles = {vi}};

    return is_remote_handle(vi) ? remote_call(&message) : VipDestroyVi(vi);
}

VIP_RETURN routed_VipQueryVi(VIP_VI_HANDLE vi, VIP_VI_STATE *state, VIP_VI_ATTRIBUTES *attributes,
                             VIP_BOOLEAN *send_empty, VIP_BOOLEAN *recv_empty)
{
    RemoteMessage message = {.call = QUERY_VI, .handles = {vi}};

    if (!is_remote_handle(vi))
        return VipQueryVi(vi, state, attributes, send_empty, recv_empty);
    VIP_RETURN result = remote_call(&message);
    *state = message.state;
    *attributes = message.vi_attributes;
    *send_empty = message.flags[0];
    *recv_empty = message.flags[1];
    return result;
}

VIP_RETURN routed_VipSetViAttributes(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
    if (!is_remote_handle(vi))
        return VipSetViAttributes(vi, attributes);
    RemoteMessage message = {
        .call = SET_VI_ATTRIBUTES, .handles = {vi}, .vi_attributes = *attributes};
    return remote_call(&message);
}

VIP_RETURN routed_VipConnectWait(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *local, VIP_ULONG timeout_ms,
                                 VIP_NET_ADDRESS *remote, VIP_VI_ATTRIBUTES *attributes,
                                 VIP_CONN_HANDLE *connection)
{
    RemoteMessage message = {.call = CONNECT_WAIT, .handles = {nic}, .number = timeout_ms};

    if (!is_remote_handle(nic))
        return VipConnectWait(nic, local, timeout_ms, remote, attributes, connection);
    memcpy(&message.local, local, sizeof message.local);
    memcpy(&message.remote, remote, sizeof message.remote);
    VIP_RETURN result = remote_call(&message);
    memcpy(remote, &message.remote, sizeof message.remote);
    *attributes = message.vi_attributes;
    *connection = message.out;
    return result;
}

VIP_RETURN routed_VipConnectAccept(VIP_CONN_HANDLE connection, VIP_VI_HANDLE vi)
{
    RemoteMessage message = {.call = CONNECT_ACCEPT, .handles = {connection, vi}};

    return is_remote_handle(connection) ? remote_call(&message) : VipConnectAccept(connection, vi);
}

VIP_RETURN routed_VipConnectReject(VIP_CONN_HANDLE connection)
{
    RemoteMessage message = {.call = CONNECT_REJECT, .handles = {connection}};

    return is_remote_handle(connection) ? remote_call(&message) : VipConnectReject(connection);
}

VIP_RETURN routed_VipConnectRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local,
                                    VIP_NET_ADDRESS *remote,
                                    VIP_ULONG timeout_ms, VIP_VI_ATTRIBUTES *attributes)
{
    RemoteMessage message = {.call = CONNECT_REQUEST, .handles = {vi}, .number = timeout_ms};

    if (!is_remote_handle(vi))
        return VipConnectRequest(vi, local, remote, timeout_ms, attributes);
    memcpy(&message.local, local, sizeof message.local);
    memcpy(&message.remote, remote, sizeof message.remote);
    VIP_RETURN result = remote_call(&message);
    *attributes = message.vi_attributes;
    return result;
}

VIP_RETURN routed_VipConnectPeerRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local,
                                        VIP_NET_ADDRESS *remote, VIP_ULONG timeout_ms)
{
    RemoteMessage message = {.call = CONNECT_PEER_REQUEST, .handles = {vi}, .number = timeout_ms};

    if (!is_remote_handle(vi))
        return VipConnectPeerRequest(vi, local, remote, timeout_ms);
    memcpy(&message.local, local, sizeof message.local);
    memcpy(&message.remote, remote, sizeof message.remote);
    return remote_call(&message);
}

/* VipConnectPeerDone or VipConnectPeerWait. */
static VIP_RETURN peer_outcome(enum Call call, VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
    RemoteMessage message = {.call = call, .handles = {vi}};
    VIP_RETURN result = remote_call(&message);

    *attributes = message.vi_attributes;
    return result;
}

VIP_RETURN routed_VipConnectPeerDone(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
    return is_remote_handle(vi) ? peer_outcome(CONNECT_PEER_DONE, vi, attributes)
                                : VipConnectPeerDone(vi, attributes);
}

VIP_RETURN routed_VipConnectPeerWait(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
    return is_remote_handle(vi) ? peer_outcome(CONNECT_PEER_WAIT, vi, attributes)
                                : VipConnectPeerWait(vi, attributes);
}

VIP_RETURN routed_VipDisconnect(VIP_VI_HANDLE vi)
{
    RemoteMessage message = {.call = DISCONNECT, .handles = {vi}};

    return is_remote_handle(vi) ? remote_call(&message) : VipDisconnect(vi);
}

VIP_RETURN routed_VipCreatePtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE *tag)
{
    RemoteMessage message = {.call = CREATE_PTAG, .handles = {nic}};

    if (!is_remote_handle(nic))
        return VipCreatePtag(nic, tag);
    VIP_RETURN result = remote_call(&message);
    *tag = message.out;
    return result;
}

VIP_RETURN routed_VipDestroyPtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE tag)
{
    RemoteMessage message = {.call = DESTROY_PTAG, .handles = {nic, tag}};

    return is_remote_handle(nic) ? remote_call(&message) : VipDestroyPtag(nic, tag);
}

VIP_RETURN routed_VipRegisterMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_ULONG bytes,
                                 VIP_MEM_ATTRIBUTES *attributes, VIP_MEM_HANDLE *handle)
{
    if (!is_remote_handle(nic))
        return VipRegisterMem(nic, address, bytes, attributes, handle);
    RemoteMessage message = {.call = REGISTER_MEM, .handles = {nic}, .address = address,
                             .number = bytes, .mem_attributes = *attributes};
    VIP_RETURN result = remote_call(&message);
    *handle = message.memory;
    return result;
}

VIP_RETURN routed_VipDeregisterMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_MEM_HANDLE handle)
{
    RemoteMessage message = {
        .call = DEREGISTER_MEM, .handles = {nic}, .address = address, .memory = handle};

    return is_remote_handle(nic) ? remote_call(&message) : VipDeregisterMem(nic, address, handle);
}

VIP_RETURN routed_VipPostSend(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle)
{
    RemoteMessage message = {
        .call = POST_SEND, .handles = {vi}, .address = descriptor, .memory = handle};

    return is_remote_handle(vi) ? remote_call(&message) : VipPostSend(vi, descriptor, handle);
}

VIP_RETURN routed_VipPostRecv(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle)
{
    RemoteMessage message = {
        .call = POST_RECV, .handles = {vi}, .address = descriptor, .memory = handle};

    return is_remote_handle(vi) ? remote_call(&message) : VipPostRecv(vi, descriptor, handle);
}

/* A Done or Wait call of a work queue. */
static VIP_RETURN collect(enum Call call, VIP_VI_HANDLE vi, VIP_ULONG timeout_ms,
                          VIP_DESCRIPTOR **descriptor)
{
    RemoteMessage message = {.call = call, .handles = {vi}, .number = timeout_ms};
    VIP_RETURN result = remote_call(&message);

    *descriptor = message.address;
    return result;
}

VIP_RETURN routed_VipSendDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptor)
{
    return is_remote_handle(vi) ? collect(SEND_DONE, vi, 0, descriptor) : VipSendDone(vi,
                                                                                      descriptor);
}

VIP_RETURN routed_VipSendWait(VIP_VI_HANDLE vi, VIP_ULONG timeout_ms, VIP_DESCRIPTOR **descriptor)
{
    return is_remote_handle(vi) ? collect(SEND_WAIT, vi, timeout_ms, descriptor)
                                : VipSendWait(vi, timeout_ms, descriptor);
}

VIP_RETURN routed_VipRecvDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptor)
{
    return is_remote_handle(vi) ? collect(RECV_DONE, vi, 0, descriptor) : VipRecvDone(vi,
                                                                                      descriptor);
}

VIP_RETURN routed_VipRecvWait(VIP_VI_HANDLE vi, VIP_ULONG timeout_ms, VIP_DESCRIPTOR **descriptor)
{
    return is_remote_handle(vi) ? collect(RECV_WAIT, vi, timeout_ms, descriptor)
                                : VipRecvWait(vi, timeout_ms, descriptor);
}

/* A Done or Wait call of a completion queue. */
static VIP_RETURN take_entry(enum Call call, VIP_CQ_HANDLE cq, VIP_ULONG timeout_ms,
                             VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv_queue)
{
    RemoteMessage message = {.call = call, .handles = {cq}, .number = timeout_ms};
    VIP_RETURN result = remote_call(&message);

    *vi = message.out;
    *recv_queue = message.flags[0];
    return result;
}

VIP_RETURN routed_VipCQDone(VIP_CQ_HANDLE cq, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv_queue)
{
    return is_remote_handle(cq) ? take_entry(CQ_DONE, cq, 0, vi, recv_queue)
                                : VipCQDone(cq, vi, recv_queue);
}

VIP_RETURN routed_VipCQWait(VIP_CQ_HANDLE cq, VIP_ULONG timeout_ms, VIP_VI_HANDLE *vi,
                            VIP_BOOLEAN *recv_queue)
{
    return is_remote_handle(cq) ? take_entry(CQ_WAIT, cq, timeout_ms, vi, recv_queue)
                                : VipCQWait(cq, timeout_ms, vi, recv_queue);
}

VIP_RETURN routed_VipCreateCQ(VIP_NIC_HANDLE nic, VIP_ULONG entries, VIP_CQ_HANDLE *cq)
{
    RemoteMessage message = {.call = CREATE_CQ, .handles = {nic}, .number = entries};

    if (!is_remote_handle(nic))
        return VipCreateCQ(nic, entries, cq);
    VIP_RETURN result = remote_call(&message);
    *cq = message.out;
    return result;
}

VIP_RETURN routed_VipDestroyCQ(VIP_CQ_HANDLE cq)
{
    RemoteMessage message = {.call = DESTROY_CQ, .handles = {cq}};

    return is_remote_handle(cq) ? remote_call(&message) : VipDestroyCQ(cq);
}

/* --- remote process -------------------------------------------------------------------------- */

static VIP_RETURN open_nic(RemoteMessage *m)
{
    const char *end = getenv("VIPL_TEST_NIC_END");
    char name[2 * NAME_BYTES];

    snprintf(name, sizeof name, "%s%s", m->name, end == NULL ? "" : end);
    VIP_RETURN result = VipOpenNic(name, &m->out);

    if (result == VIP_SUCCESS)
        result = VipQueryNic(m->out, &m->nic_attributes);
    if (result == VIP_SUCCESS)
        memcpy(m->nic_address, m->nic_attributes.LocalNicAddress, m->nic_attributes.NicAddressLen);
    return result;
}

static VIP_RETURN wait_for_error(RemoteMessage *m)
{
    return local_error_wait(m->handles[0], m->code, &m->error) ? VIP_SUCCESS : VIP_TIMEOUT;
}

static VIP_RETURN count_errors(RemoteMessage *m)
{
    m->number = local_errors_count(m->handles[0], m->code);
    return VIP_SUCCESS;
}

static VIP_RETURN clear_errors(void)
{
    local_errors_clear();
    return VIP_SUCCESS;
}

static VIP_RETURN make_connection_call(RemoteMessage *m)
{
    switch (m->call) {
    case CONNECT_WAIT:
        return VipConnectWait(m->handles[0], &m->local.address, m->number, &m->remote.address,
                              &m->vi_attributes, &m->out);
    case CONNECT_ACCEPT: return VipConnectAccept(m->handles[0], m->handles[1]);
    case CONNECT_REJECT: return VipConnectReject(m->handles[0]);
    case CONNECT_REQUEST:
        return VipConnectRequest(m->handles[0], &m->local.address, &m->remote.address, m->number,
                                 &m->vi_attributes);
    case CONNECT_PEER_REQUEST:
        return VipConnectPeerRequest(m->handles[0], &m->local.address, &m->remote.address,
                                     m->number);
    case CONNECT_PEER_DONE: return VipConnectPeerDone(m->handles[0], &m->vi_attributes);
    case CONNECT_PEER_WAIT: return VipConnectPeerWait(m->handles[0], &m->vi_attributes);
    default: return VipDisconnect(m->handles[0]);
    }
}

static VIP_RETURN make_queue_call(RemoteMessage *m)
{
    VIP_DESCRIPTOR *descriptor = NULL;
    VIP_RETURN result = VIP_INVALID_PARAMETER;

    switch (m->call) {
    case POST_SEND: return VipPostSend(m->handles[0], m->address, m->memory);
    case POST_RECV: return VipPostRecv(m->handles[0], m->address, m->memory);
    case CQ_DONE: return VipCQDone(m->handles[0], &m->out, &m->flags[0]);
    case CQ_WAIT: return VipCQWait(m->handles[0], m->number, &m->out, &m->flags[0]);
    case SEND_DONE: result = VipSendDone(m->handles[0], &descriptor); break;
    case SEND_WAIT: result = VipSendWait(m->handles[0], m->number, &descriptor); break;
    case RECV_DONE: result = VipRecvDone(m->handles[0], &descriptor); break;
    default: result = VipRecvWait(m->handles[0], m->number, &descriptor); break;
    }
    m->address = descriptor;
    return result;
}

static VIP_RETURN make_call(RemoteMessage *m)
{
    switch (m->call) {
    case OPEN_NIC: return open_nic(m);
    case CLOSE_NIC: return VipCloseNic(m->handles[0]);
    case CREATE_VI:
        return VipCreateVi(m->handles[0], &m->vi_attributes, m->handles[1], m->handles[2], &m->out);
    case DESTROY_VI: return VipDestroyVi(m->handles[0]);
    case QUERY_VI:
        return VipQueryVi(m->handles[0], &m->state, &m->vi_attributes, &m->flags[0], &m->flags[1]);
    case SET_VI_ATTRIBUTES: return VipSetViAttributes(m->handles[0], &m->vi_attributes);
    case CREATE_PTAG: return VipCreatePtag(m->handles[0], &m->out);
    case DESTROY_PTAG: return VipDestroyPtag(m->handles[0], m->handles[1]);
    case REGISTER_MEM:
        return VipRegisterMem(m->handles[0], m->address, m->number, &m->mem_attributes, &m->memory);
    case DEREGISTER_MEM: return VipDeregisterMem(m->handles[0], m->address, m->memory);
    case CREATE_CQ: return VipCreateCQ(m->handles[0], m->number, &m->out);
    case DESTROY_CQ: return VipDestroyCQ(m->handles[0]);
    case ERRORS_REGISTER: return local_errors_register(m->handles[0]);
    case ERRORS_CLEAR: return clear_errors();
    case ERROR_WAIT: return wait_for_error(m);
    case ERRORS_COUNT: return count_errors(m);
    case CONNECT_WAIT:
    case CONNECT_ACCEPT:
    case CONNECT_REJECT:
    case CONNECT_REQUEST:
    case CONNECT_PEER_REQUEST:
    case CONNECT_PEER_DONE:
    case CONNECT_PEER_WAIT:
    case DISCONNECT: return make_connection_call(m);
    default: return make_queue_call(m);
    }
}

void message_execute(RemoteMessage *message)
{
    message->result = make_call(message);
}
