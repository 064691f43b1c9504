/*
 * Macros that wrap every VIPL call of the tests: they record the return code, to check the declared
 * coverage, and forward a call on a handle of the remote process (remote_process.h). A macro is not
 * expanded inside itself, so the inner name is the function.
 */
#ifndef CALLS_H
#define CALLS_H

#include <vipl.h>

#include "check.h"
#include "remote_process.h"

#define RECORDED(call, result) ((VIP_RETURN)record_return(#call, (int)(result)))

#define VipOpenNic(...) RECORDED(VipOpenNic, VipOpenNic(__VA_ARGS__))
#define VipCloseNic(...) RECORDED(VipCloseNic, routed_VipCloseNic(__VA_ARGS__))
#define VipQueryNic(...) RECORDED(VipQueryNic, VipQueryNic(__VA_ARGS__))
#define VipErrorCallback(...) RECORDED(VipErrorCallback, VipErrorCallback(__VA_ARGS__))
#define VipCreateVi(...) RECORDED(VipCreateVi, routed_VipCreateVi(__VA_ARGS__))
#define VipDestroyVi(...) RECORDED(VipDestroyVi, routed_VipDestroyVi(__VA_ARGS__))
#define VipSetViAttributes(...) RECORDED(VipSetViAttributes, routed_VipSetViAttributes(__VA_ARGS__))
#define VipQueryVi(...) RECORDED(VipQueryVi, routed_VipQueryVi(__VA_ARGS__))
#define VipConnectWait(...) RECORDED(VipConnectWait, routed_VipConnectWait(__VA_ARGS__))
#define VipConnectAccept(...) RECORDED(VipConnectAccept, routed_VipConnectAccept(__VA_ARGS__))
#define VipConnectReject(...) RECORDED(VipConnectReject, routed_VipConnectReject(__VA_ARGS__))
#define VipConnectRequest(...) RECORDED(VipConnectRequest, routed_VipConnectRequest(__VA_ARGS__))
#define VipConnectPeerRequest(...)                                                                 \
    RECORDED(VipConnectPeerRequest, routed_VipConnectPeerRequest(__VA_ARGS__))
#define VipConnectPeerDone(...) RECORDED(VipConnectPeerDone, routed_VipConnectPeerDone(__VA_ARGS__))
#define VipConnectPeerWait(...) RECORDED(VipConnectPeerWait, routed_VipConnectPeerWait(__VA_ARGS__))
#define VipDisconnect(...) RECORDED(VipDisconnect, routed_VipDisconnect(__VA_ARGS__))
#define VipCreatePtag(...) RECORDED(VipCreatePtag, routed_VipCreatePtag(__VA_ARGS__))
#define VipDestroyPtag(...) RECORDED(VipDestroyPtag, routed_VipDestroyPtag(__VA_ARGS__))
#define VipRegisterMem(...) RECORDED(VipRegisterMem, routed_VipRegisterMem(__VA_ARGS__))
#define VipDeregisterMem(...) RECORDED(VipDeregisterMem, routed_VipDeregisterMem(__VA_ARGS__))
#define VipSetMemAttributes(...) RECORDED(VipSetMemAttributes, VipSetMemAttributes(__VA_ARGS__))
#define VipQueryMem(...) RECORDED(VipQueryMem, VipQueryMem(__VA_ARGS__))
#define VipPostSend(...) RECORDED(VipPostSend, routed_VipPostSend(__VA_ARGS__))
#define VipSendDone(...) RECORDED(VipSendDone, routed_VipSendDone(__VA_ARGS__))
#define VipSendWait(...) RECORDED(VipSendWait, routed_VipSendWait(__VA_ARGS__))
#define VipPostRecv(...) RECORDED(VipPostRecv, routed_VipPostRecv(__VA_ARGS__))
#define VipRecvDone(...) RECORDED(VipRecvDone, routed_VipRecvDone(__VA_ARGS__))
#define VipRecvWait(...) RECORDED(VipRecvWait, routed_VipRecvWait(__VA_ARGS__))
#define VipSendNotify(...) RECORDED(VipSendNotify, VipSendNotify(__VA_ARGS__))
#define VipRecvNotify(...) RECORDED(VipRecvNotify, VipRecvNotify(__VA_ARGS__))
#define VipCQNotify(...) RECORDED(VipCQNotify, VipCQNotify(__VA_ARGS__))
#define VipCQDone(...) RECORDED(VipCQDone, routed_VipCQDone(__VA_ARGS__))
#define VipCQWait(...) RECORDED(VipCQWait, routed_VipCQWait(__VA_ARGS__))
#define VipCreateCQ(...) RECORDED(VipCreateCQ, routed_VipCreateCQ(__VA_ARGS__))
#define VipDestroyCQ(...) RECORDED(VipDestroyCQ, routed_VipDestroyCQ(__VA_ARGS__))
#define VipResizeCQ(...) RECORDED(VipResizeCQ, VipResizeCQ(__VA_ARGS__))
#define VipQuerySystemManagementInfo(...)                                                          \
    RECORDED(VipQuerySystemManagementInfo, VipQuerySystemManagementInfo(__VA_ARGS__))
#define VipNSInit(...) RECORDED(VipNSInit, VipNSInit(__VA_ARGS__))
#define VipNSGetHostByName(...) RECORDED(VipNSGetHostByName, VipNSGetHostByName(__VA_ARGS__))
#define VipNSGetHostByAddr(...) RECORDED(VipNSGetHostByAddr, VipNSGetHostByAddr(__VA_ARGS__))
#define VipNSShutdown(...) RECORDED(VipNSShutdown, VipNSShutdown(__VA_ARGS__))

#endif
