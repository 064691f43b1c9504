/* The calls as messages: how each is packed near, and how it is made far. */
#include "message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "errors.h"
#include "far.h"

/* --- near ------------------------------------------------------------------------------------ */

/* Room for the address of the far NIC of a name; it is the same whenever the NIC is opened. */
static VIP_UINT8 *address_room(const char *name)
{
    enum { NICS = 8 };
    static struct {
        char name[NAME_BYTES];
        VIP_UINT8 address[NIC_ADDRESS_BYTES];
    } nics[NICS];
    unsigned n = 0;

    while (n < NICS && nics[n].name[0] != '\0' && strcmp(nics[n].name, name) != 0)
        n++;
    REQUIRE(n < NICS && strlen(name) < NAME_BYTES, "room for the address of %s", name);
    strcpy(nics[n].name, name);
    return nics[n].address;
}

VIP_RETURN far_open(const char *name, VIP_NIC_HANDLE *nic, VIP_NIC_ATTRIBUTES *attributes)
{
    VIP_UINT8 *address = address_room(name);
    Message message = {.call = OPEN_NIC};

    strncpy(message.name, name, sizeof message.name - 1);
    VIP_RETURN answer = far_ask(&message);
    *nic = message.out;
    *attributes = message.nic_attributes;
    memcpy(address, message.nic_address, NIC_ADDRESS_BYTES);
    attributes->LocalNicAddress = address;
    return answer;
}

VIP_RETURN at_VipCloseNic(VIP_NIC_HANDLE nic)
{
    Message message = {.call = CLOSE_NIC, .handles = {nic}};

    return far_handle(nic) ? far_ask(&message) : VipCloseNic(nic);
}

VIP_RETURN at_VipCreateVi(VIP_NIC_HANDLE nic, VIP_VI_ATTRIBUTES *attributes, VIP_CQ_HANDLE send_cq,
                          VIP_CQ_HANDLE recv_cq, VIP_VI_HANDLE *vi)
{
    if (!far_handle(nic))
        return VipCreateVi(nic, attributes, send_cq, recv_cq, vi);
    Message message = {
        .call = CREATE_VI, .handles = {nic, send_cq, recv_cq}, .vi_attributes = *attributes};
    VIP_RETURN answer = far_ask(&message);
    *vi = message.out;
    return answer;
}

VIP_RETURN at_VipDestroyVi(VIP_VI_HANDLE vi)
{
    Message message = {.call = DESTROY_VI, .handles = {vi}};

    return far_handle(vi) ? far_ask(&message) : VipDestroyVi(vi);
}

VIP_RETURN at_VipQueryVi(VIP_VI_HANDLE vi, VIP_VI_STATE *state, VIP_VI_ATTRIBUTES *attributes,
                         VIP_BOOLEAN *send_empty, VIP_BOOLEAN *recv_empty)
{
    Message message = {.call = QUERY_VI, .handles = {vi}};

    if (!far_handle(vi))
        return VipQueryVi(vi, state, attributes, send_empty, recv_empty);
    VIP_RETURN answer = far_ask(&message);
    *state = message.state;
    *attributes = message.vi_attributes;
    *send_empty = message.flags[0];
    *recv_empty = message.flags[1];
    return answer;
}

VIP_RETURN at_VipSetViAttributes(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
    if (!far_handle(vi))
        return VipSetViAttributes(vi, attributes);
    Message message = {
        .call = SET_VI_ATTRIBUTES, .handles = {vi}, .vi_attributes = *attributes};
    return far_ask(&message);
}

VIP_RETURN at_VipConnectWait(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *local, VIP_ULONG timeout_ms,
                             VIP_NET_ADDRESS *remote, VIP_VI_ATTRIBUTES *attributes,
                             VIP_CONN_HANDLE *connection)
{
    Message message = {.call = CONNECT_WAIT, .handles = {nic}, .number = timeout_ms};

    if (!far_handle(nic))
        return VipConnectWait(nic, local, timeout_ms, remote, attributes, connection);
    memcpy(&message.local, local, sizeof message.local);
    memcpy(&message.remote, remote, sizeof message.remote);
    VIP_RETURN answer = far_ask(&message);
    memcpy(remote, &message.remote, sizeof message.remote);
    *attributes = message.vi_attributes;
    *connection = message.out;
    return answer;
}

VIP_RETURN at_VipConnectAccept(VIP_CONN_HANDLE connection, VIP_VI_HANDLE vi)
{
    Message message = {.call = CONNECT_ACCEPT, .handles = {connection, vi}};

    return far_handle(connection) ? far_ask(&message) : VipConnectAccept(connection, vi);
}

VIP_RETURN at_VipConnectReject(VIP_CONN_HANDLE connection)
{
    Message message = {.call = CONNECT_REJECT, .handles = {connection}};

    return far_handle(connection) ? far_ask(&message) : VipConnectReject(connection);
}

VIP_RETURN at_VipConnectRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote,
                                VIP_ULONG timeout_ms, VIP_VI_ATTRIBUTES *attributes)
{
    Message message = {.call = CONNECT_REQUEST, .handles = {vi}, .number = timeout_ms};

    if (!far_handle(vi))
        return VipConnectRequest(vi, local, remote, timeout_ms, attributes);
    memcpy(&message.local, local, sizeof message.local);
    memcpy(&message.remote, remote, sizeof message.remote);
    VIP_RETURN answer = far_ask(&message);
    *attributes = message.vi_attributes;
    return answer;
}

VIP_RETURN at_VipConnectPeerRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local,
                                    VIP_NET_ADDRESS *remote, VIP_ULONG timeout_ms)
{
    Message message = {.call = CONNECT_PEER_REQUEST, .handles = {vi}, .number = timeout_ms};

    if (!far_handle(vi))
        return VipConnectPeerRequest(vi, local, remote, timeout_ms);
    memcpy(&message.local, local, sizeof message.local);
    memcpy(&message.remote, remote, sizeof message.remote);
    return far_ask(&message);
}

/* A call that tells what came of a peer request. */
static VIP_RETURN peer_outcome(enum Call call, VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
    Message message = {.call = call, .handles = {vi}};
    VIP_RETURN answer = far_ask(&message);

    *attributes = message.vi_attributes;
    return answer;
}

VIP_RETURN at_VipConnectPeerDone(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
    return far_handle(vi) ? peer_outcome(CONNECT_PEER_DONE, vi, attributes)
                          : VipConnectPeerDone(vi, attributes);
}

VIP_RETURN at_VipConnectPeerWait(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attributes)
{
    return far_handle(vi) ? peer_outcome(CONNECT_PEER_WAIT, vi, attributes)
                          : VipConnectPeerWait(vi, attributes);
}

VIP_RETURN at_VipDisconnect(VIP_VI_HANDLE vi)
{
    Message message = {.call = DISCONNECT, .handles = {vi}};

    return far_handle(vi) ? far_ask(&message) : VipDisconnect(vi);
}

VIP_RETURN at_VipCreatePtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE *tag)
{
    Message message = {.call = CREATE_PTAG, .handles = {nic}};

    if (!far_handle(nic))
        return VipCreatePtag(nic, tag);
    VIP_RETURN answer = far_ask(&message);
    *tag = message.out;
    return answer;
}

VIP_RETURN at_VipDestroyPtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE tag)
{
    Message message = {.call = DESTROY_PTAG, .handles = {nic, tag}};

    return far_handle(nic) ? far_ask(&message) : VipDestroyPtag(nic, tag);
}

VIP_RETURN at_VipRegisterMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_ULONG bytes,
                             VIP_MEM_ATTRIBUTES *attributes, VIP_MEM_HANDLE *handle)
{
    if (!far_handle(nic))
        return VipRegisterMem(nic, address, bytes, attributes, handle);
    Message message = {.call = REGISTER_MEM, .handles = {nic}, .address = address, .number = bytes,
                       .mem_attributes = *attributes};
    VIP_RETURN answer = far_ask(&message);
    *handle = message.memory;
    return answer;
}

VIP_RETURN at_VipDeregisterMem(VIP_NIC_HANDLE nic, VIP_PVOID address, VIP_MEM_HANDLE handle)
{
    Message message = {
        .call = DEREGISTER_MEM, .handles = {nic}, .address = address, .memory = handle};

    return far_handle(nic) ? far_ask(&message) : VipDeregisterMem(nic, address, handle);
}

VIP_RETURN at_VipPostSend(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle)
{
    Message message = {
        .call = POST_SEND, .handles = {vi}, .address = descriptor, .memory = handle};

    return far_handle(vi) ? far_ask(&message) : VipPostSend(vi, descriptor, handle);
}

VIP_RETURN at_VipPostRecv(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, VIP_MEM_HANDLE handle)
{
    Message message = {
        .call = POST_RECV, .handles = {vi}, .address = descriptor, .memory = handle};

    return far_handle(vi) ? far_ask(&message) : VipPostRecv(vi, descriptor, handle);
}

/* A call that collects a descriptor. */
static VIP_RETURN collect(enum Call call, VIP_VI_HANDLE vi, VIP_ULONG timeout_ms,
                          VIP_DESCRIPTOR **descriptor)
{
    Message message = {.call = call, .handles = {vi}, .number = timeout_ms};
    VIP_RETURN answer = far_ask(&message);

    *descriptor = message.address;
    return answer;
}

VIP_RETURN at_VipSendDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptor)
{
    return far_handle(vi) ? collect(SEND_DONE, vi, 0, descriptor) : VipSendDone(vi, descriptor);
}

VIP_RETURN at_VipSendWait(VIP_VI_HANDLE vi, VIP_ULONG timeout_ms, VIP_DESCRIPTOR **descriptor)
{
    return far_handle(vi) ? collect(SEND_WAIT, vi, timeout_ms, descriptor)
                          : VipSendWait(vi, timeout_ms, descriptor);
}

VIP_RETURN at_VipRecvDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptor)
{
    return far_handle(vi) ? collect(RECV_DONE, vi, 0, descriptor) : VipRecvDone(vi, descriptor);
}

VIP_RETURN at_VipRecvWait(VIP_VI_HANDLE vi, VIP_ULONG timeout_ms, VIP_DESCRIPTOR **descriptor)
{
    return far_handle(vi) ? collect(RECV_WAIT, vi, timeout_ms, descriptor)
                          : VipRecvWait(vi, timeout_ms, descriptor);
}

/* A call that takes an entry from a completion queue. */
static VIP_RETURN take_entry(enum Call call, VIP_CQ_HANDLE cq, VIP_ULONG timeout_ms,
                             VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv_queue)
{
    Message message = {.call = call, .handles = {cq}, .number = timeout_ms};
    VIP_RETURN answer = far_ask(&message);

    *vi = message.out;
    *recv_queue = message.flags[0];
    return answer;
}

VIP_RETURN at_VipCQDone(VIP_CQ_HANDLE cq, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv_queue)
{
    return far_handle(cq) ? take_entry(CQ_DONE, cq, 0, vi, recv_queue)
                          : VipCQDone(cq, vi, recv_queue);
}

VIP_RETURN at_VipCQWait(VIP_CQ_HANDLE cq, VIP_ULONG timeout_ms, VIP_VI_HANDLE *vi,
                        VIP_BOOLEAN *recv_queue)
{
    return far_handle(cq) ? take_entry(CQ_WAIT, cq, timeout_ms, vi, recv_queue)
                          : VipCQWait(cq, timeout_ms, vi, recv_queue);
}

VIP_RETURN at_VipCreateCQ(VIP_NIC_HANDLE nic, VIP_ULONG entries, VIP_CQ_HANDLE *cq)
{
    Message message = {.call = CREATE_CQ, .handles = {nic}, .number = entries};

    if (!far_handle(nic))
        return VipCreateCQ(nic, entries, cq);
    VIP_RETURN answer = far_ask(&message);
    *cq = message.out;
    return answer;
}

VIP_RETURN at_VipDestroyCQ(VIP_CQ_HANDLE cq)
{
    Message message = {.call = DESTROY_CQ, .handles = {cq}};

    return far_handle(cq) ? far_ask(&message) : VipDestroyCQ(cq);
}

/* --- far ------------------------------------------------------------------------------------- */

static VIP_RETURN open_nic(Message *m)
{
    const char *end = getenv("VIPL_TEST_NIC_END");
    char name[2 * NAME_BYTES];

    snprintf(name, sizeof name, "%s%s", m->name, end == NULL ? "" : end);
    VIP_RETURN answer = VipOpenNic(name, &m->out);

    if (answer == VIP_SUCCESS)
        answer = VipQueryNic(m->out, &m->nic_attributes);
    if (answer == VIP_SUCCESS)
        memcpy(m->nic_address, m->nic_attributes.LocalNicAddress, m->nic_attributes.NicAddressLen);
    return answer;
}

static VIP_RETURN wait_for_error(Message *m)
{
    return error_wait(m->handles[0], m->code, &m->error) ? VIP_SUCCESS : VIP_TIMEOUT;
}

static VIP_RETURN tell_errors(Message *m)
{
    m->number = errors_counted(m->handles[0], m->code);
    return VIP_SUCCESS;
}

static VIP_RETURN forget_errors(void)
{
    errors_drop();
    return VIP_SUCCESS;
}

static VIP_RETURN make_connection_call(Message *m)
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

static VIP_RETURN make_queue_call(Message *m)
{
    VIP_DESCRIPTOR *descriptor = NULL;
    VIP_RETURN answer = VIP_INVALID_PARAMETER;

    switch (m->call) {
    case POST_SEND: return VipPostSend(m->handles[0], m->address, m->memory);
    case POST_RECV: return VipPostRecv(m->handles[0], m->address, m->memory);
    case CQ_DONE: return VipCQDone(m->handles[0], &m->out, &m->flags[0]);
    case CQ_WAIT: return VipCQWait(m->handles[0], m->number, &m->out, &m->flags[0]);
    case SEND_DONE: answer = VipSendDone(m->handles[0], &descriptor); break;
    case SEND_WAIT: answer = VipSendWait(m->handles[0], m->number, &descriptor); break;
    case RECV_DONE: answer = VipRecvDone(m->handles[0], &descriptor); break;
    default: answer = VipRecvWait(m->handles[0], m->number, &descriptor); break;
    }
    m->address = descriptor;
    return answer;
}

static VIP_RETURN make_call(Message *m)
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
    case ERRORS_CATCH: return errors_register(m->handles[0]);
    case ERRORS_FORGET: return forget_errors();
    case ERROR_WAIT: return wait_for_error(m);
    case ERRORS_OF: return tell_errors(m);
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

void message_answer(Message *message)
{
    message->answer = make_call(message);
}
