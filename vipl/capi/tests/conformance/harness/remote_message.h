/* A VIPL call and its results as a message to the remote process; see remote_process.h. */
#ifndef REMOTE_MESSAGE_H
#define REMOTE_MESSAGE_H

#include <vipl.h>

#include "address.h"

enum { MESSAGE_HANDLES = 3, NIC_ADDRESS_BYTES = 24, NAME_BYTES = 64 };

enum Call {
    OPEN_NIC,
    CLOSE_NIC,
    CREATE_VI,
    DESTROY_VI,
    QUERY_VI,
    SET_VI_ATTRIBUTES,
    CONNECT_WAIT,
    CONNECT_ACCEPT,
    CONNECT_REJECT,
    CONNECT_REQUEST,
    CONNECT_PEER_REQUEST,
    CONNECT_PEER_DONE,
    CONNECT_PEER_WAIT,
    DISCONNECT,
    CREATE_PTAG,
    DESTROY_PTAG,
    REGISTER_MEM,
    DEREGISTER_MEM,
    POST_SEND,
    SEND_DONE,
    SEND_WAIT,
    POST_RECV,
    RECV_DONE,
    RECV_WAIT,
    CQ_DONE,
    CQ_WAIT,
    CREATE_CQ,
    DESTROY_CQ,
    ERRORS_REGISTER,
    ERRORS_CLEAR,
    ERROR_WAIT,
    ERRORS_COUNT
};

typedef struct {
    enum Call call;
    VIP_RETURN result;
    VIP_PVOID handles[MESSAGE_HANDLES]; /* in the order of the call's parameters */
    VIP_PVOID out;                      /* a returned handle */
    VIP_PVOID address;                  /* memory, or a descriptor in and out */
    VIP_ULONG number;                   /* timeout in ms, bytes, entries */
    VIP_MEM_HANDLE memory;
    VIP_BOOLEAN flags[2];
    VIP_VI_STATE state;
    Address local, remote;
    VIP_VI_ATTRIBUTES vi_attributes;
    VIP_MEM_ATTRIBUTES mem_attributes;
    VIP_NIC_ATTRIBUTES nic_attributes;
    VIP_UINT8 nic_address[NIC_ADDRESS_BYTES];
    VIP_CHAR name[NAME_BYTES];
    VIP_ERROR_CODE code;
    VIP_ERROR_DESCRIPTOR error;
} RemoteMessage;

/* Local process: sends the call and waits for its results. */
VIP_RETURN remote_call(RemoteMessage *message);
/* Remote process: executes the call. */
void message_execute(RemoteMessage *message);

#endif
