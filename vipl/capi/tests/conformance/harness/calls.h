/*
 * Every call that a test makes passes through here: its answer is noted, so that the coverage can be
 * held against what was really seen, and a handle of the far process (far.h) is served there. A macro
 * is not expanded inside itself: the name within is the function's.
 */
#ifndef CALLS_H
#define CALLS_H

#include <vipl.h>

#include "check.h"
#include "far.h"

#define RECORDED(call, answer) ((VIP_RETURN)record_answer(#call, (int)(answer)))

#define VipOpenNic(...) RECORDED(VipOpenNic, VipOpenNic(__VA_ARGS__))
#define VipCloseNic(...) RECORDED(VipCloseNic, at_VipCloseNic(__VA_ARGS__))
#define VipQueryNic(...) RECORDED(VipQueryNic, VipQueryNic(__VA_ARGS__))
#define VipErrorCallback(...) RECORDED(VipErrorCallback, VipErrorCallback(__VA_ARGS__))
#define VipCreateVi(...) RECORDED(VipCreateVi, at_VipCreateVi(__VA_ARGS__))
#define VipDestroyVi(...) RECORDED(VipDestroyVi, at_VipDestroyVi(__VA_ARGS__))
#define VipSetViAttributes(...) RECORDED(VipSetViAttributes, at_VipSetViAttributes(__VA_ARGS__))
#define VipQueryVi(...) RECORDED(VipQueryVi, at_VipQueryVi(__VA_ARGS__))
#define VipConnectWait(...) RECORDED(VipConnectWait, at_VipConnectWait(__VA_ARGS__))
#define VipConnectAccept(...) RECORDED(VipConnectAccept, at_VipConnectAccept(__VA_ARGS__))
#define VipConnectReject(...) RECORDED(VipConnectReject, at_VipConnectReject(__VA_ARGS__))
#define VipConnectRequest(...) RECORDED(VipConnectRequest, at_VipConnectRequest(__VA_ARGS__))
#define VipConnectPeerRequest(...)                                                                 \
    RECORDED(VipConnectPeerRequest, at_VipConnectPeerRequest(__VA_ARGS__))
#define VipConnectPeerDone(...) RECORDED(VipConnectPeerDone, at_VipConnectPeerDone(__VA_ARGS__))
#define VipConnectPeerWait(...) RECORDED(VipConnectPeerWait, at_VipConnectPeerWait(__VA_ARGS__))
#define VipDisconnect(...) RECORDED(VipDisconnect, at_VipDisconnect(__VA_ARGS__))
#define VipCreatePtag(...) RECORDED(VipCreatePtag, at_VipCreatePtag(__VA_ARGS__))
#define VipDestroyPtag(...) RECORDED(VipDestroyPtag, at_VipDestroyPtag(__VA_ARGS__))
#define VipRegisterMem(...) RECORDED(VipRegisterMem, at_VipRegisterMem(__VA_ARGS__))
#define VipDeregisterMem(...) RECORDED(VipDeregisterMem, at_VipDeregisterMem(__VA_ARGS__))
#define VipSetMemAttributes(...) RECORDED(VipSetMemAttributes, VipSetMemAttributes(__VA_ARGS__))
#define VipQueryMem(...) RECORDED(VipQueryMem, VipQueryMem(__VA_ARGS__))
#define VipPostSend(...) RECORDED(VipPostSend, at_VipPostSend(__VA_ARGS__))
#define VipSendDone(...) RECORDED(VipSendDone, at_VipSendDone(__VA_ARGS__))
#define VipSendWait(...) RECORDED(VipSendWait, at_VipSendWait(__VA_ARGS__))
#define VipPostRecv(...) RECORDED(VipPostRecv, at_VipPostRecv(__VA_ARGS__))
#define VipRecvDone(...) RECORDED(VipRecvDone, at_VipRecvDone(__VA_ARGS__))
#define VipRecvWait(...) RECORDED(VipRecvWait, at_VipRecvWait(__VA_ARGS__))
#define VipSendNotify(...) RECORDED(VipSendNotify, VipSendNotify(__VA_ARGS__))
#define VipRecvNotify(...) RECORDED(VipRecvNotify, VipRecvNotify(__VA_ARGS__))
#define VipCQNotify(...) RECORDED(VipCQNotify, VipCQNotify(__VA_ARGS__))
#define VipCQDone(...) RECORDED(VipCQDone, at_VipCQDone(__VA_ARGS__))
#define VipCQWait(...) RECORDED(VipCQWait, at_VipCQWait(__VA_ARGS__))
#define VipCreateCQ(...) RECORDED(VipCreateCQ, at_VipCreateCQ(__VA_ARGS__))
#define VipDestroyCQ(...) RECORDED(VipDestroyCQ, at_VipDestroyCQ(__VA_ARGS__))
#define VipResizeCQ(...) RECORDED(VipResizeCQ, VipResizeCQ(__VA_ARGS__))
#define VipQuerySystemManagementInfo(...)                                                          \
    RECORDED(VipQuerySystemManagementInfo, VipQuerySystemManagementInfo(__VA_ARGS__))
#define VipNSInit(...) RECORDED(VipNSInit, VipNSInit(__VA_ARGS__))
#define VipNSGetHostByName(...) RECORDED(VipNSGetHostByName, VipNSGetHostByName(__VA_ARGS__))
#define VipNSGetHostByAddr(...) RECORDED(VipNSGetHostByAddr, VipNSGetHostByAddr(__VA_ARGS__))
#define VipNSShutdown(...) RECORDED(VipNSShutdown, VipNSShutdown(__VA_ARGS__))

#endif
