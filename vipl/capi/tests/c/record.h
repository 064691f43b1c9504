/*
 * Has every call of the library noted with its answer and the function that made it, so that the
 * table of return codes can be checked against what the tests have really seen. A macro is not
 * expanded inside itself: the name within is the library's.
 */
#ifndef RECORD_H
#define RECORD_H

#include <vipl.h>

#include "check.h"

#define RECORDED(call, answer) ((VIP_RETURN)record_answer(__func__, #call, (int)(answer)))

#define VipOpenNic(...) RECORDED(VipOpenNic, VipOpenNic(__VA_ARGS__))
#define VipCloseNic(...) RECORDED(VipCloseNic, VipCloseNic(__VA_ARGS__))
#define VipQueryNic(...) RECORDED(VipQueryNic, VipQueryNic(__VA_ARGS__))
#define VipErrorCallback(...) RECORDED(VipErrorCallback, VipErrorCallback(__VA_ARGS__))
#define VipCreateVi(...) RECORDED(VipCreateVi, VipCreateVi(__VA_ARGS__))
#define VipDestroyVi(...) RECORDED(VipDestroyVi, VipDestroyVi(__VA_ARGS__))
#define VipQueryVi(...) RECORDED(VipQueryVi, VipQueryVi(__VA_ARGS__))
#define VipConnectWait(...) RECORDED(VipConnectWait, VipConnectWait(__VA_ARGS__))
#define VipConnectAccept(...) RECORDED(VipConnectAccept, VipConnectAccept(__VA_ARGS__))
#define VipConnectReject(...) RECORDED(VipConnectReject, VipConnectReject(__VA_ARGS__))
#define VipConnectRequest(...) RECORDED(VipConnectRequest, VipConnectRequest(__VA_ARGS__))
#define VipDisconnect(...) RECORDED(VipDisconnect, VipDisconnect(__VA_ARGS__))
#define VipCreatePtag(...) RECORDED(VipCreatePtag, VipCreatePtag(__VA_ARGS__))
#define VipDestroyPtag(...) RECORDED(VipDestroyPtag, VipDestroyPtag(__VA_ARGS__))
#define VipRegisterMem(...) RECORDED(VipRegisterMem, VipRegisterMem(__VA_ARGS__))
#define VipDeregisterMem(...) RECORDED(VipDeregisterMem, VipDeregisterMem(__VA_ARGS__))
#define VipQueryMem(...) RECORDED(VipQueryMem, VipQueryMem(__VA_ARGS__))
#define VipPostSend(...) RECORDED(VipPostSend, VipPostSend(__VA_ARGS__))
#define VipSendDone(...) RECORDED(VipSendDone, VipSendDone(__VA_ARGS__))
#define VipSendWait(...) RECORDED(VipSendWait, VipSendWait(__VA_ARGS__))
#define VipPostRecv(...) RECORDED(VipPostRecv, VipPostRecv(__VA_ARGS__))
#define VipRecvDone(...) RECORDED(VipRecvDone, VipRecvDone(__VA_ARGS__))
#define VipRecvWait(...) RECORDED(VipRecvWait, VipRecvWait(__VA_ARGS__))
#define VipCQDone(...) RECORDED(VipCQDone, VipCQDone(__VA_ARGS__))
#define VipCQWait(...) RECORDED(VipCQWait, VipCQWait(__VA_ARGS__))
#define VipCreateCQ(...) RECORDED(VipCreateCQ, VipCreateCQ(__VA_ARGS__))
#define VipDestroyCQ(...) RECORDED(VipDestroyCQ, VipDestroyCQ(__VA_ARGS__))
#define VipSetViAttributes(...) RECORDED(VipSetViAttributes, VipSetViAttributes(__VA_ARGS__))
#define VipSetMemAttributes(...) RECORDED(VipSetMemAttributes, VipSetMemAttributes(__VA_ARGS__))
#define VipQuerySystemManagementInfo(...) \
    RECORDED(VipQuerySystemManagementInfo, VipQuerySystemManagementInfo(__VA_ARGS__))
#define VipNSInit(...) RECORDED(VipNSInit, VipNSInit(__VA_ARGS__))
#define VipNSGetHostByName(...) RECORDED(VipNSGetHostByName, VipNSGetHostByName(__VA_ARGS__))
#define VipNSGetHostByAddr(...) RECORDED(VipNSGetHostByAddr, VipNSGetHostByAddr(__VA_ARGS__))
#define VipNSShutdown(...) RECORDED(VipNSShutdown, VipNSShutdown(__VA_ARGS__))

#endif
