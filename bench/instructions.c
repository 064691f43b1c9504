/* Counts the instructions of each stage of a message, under callgrind: two VIs of one NIC in one thread.
 *
 * Each stage is dumped on its own, once per round, with its name; bench/instructions evaluates the dumps.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>
#include <vipl.h>

enum { BATCH = 16, ROUNDS = 60, WARM_UP = 20, DESCRIPTOR_BYTES = 128, SHORT_BYTES = 64, LONG_BYTES = 65536 };

typedef union {
    VIP_NET_ADDRESS address;
    unsigned char bytes[128];
} address_t;

static VIP_NIC_HANDLE nic;
static VIP_NIC_ATTRIBUTES attributes;
static VIP_MEM_HANDLE memory;
static VIP_VI_HANDLE sender, receiver;
/* Descriptors of both queues, and a buffer for each. */
static unsigned char descriptors[2][BATCH][DESCRIPTOR_BYTES] __attribute__((aligned(4096)));
static unsigned char buffers[2][LONG_BYTES] __attribute__((aligned(4096)));
static VIP_MEM_HANDLE buffer_memory;

static void check(VIP_RETURN result, const char *call) {
    if (result != VIP_SUCCESS) {
        fprintf(stderr, "%s returned %d\n", call, (int)result);
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

static address_t local_address(const char *discriminator) {
    address_t local;
    memset(&local, 0, sizeof local);
    local.address.HostAddressLen = attributes.NicAddressLen;
    local.address.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
    memcpy(local.address.HostAddress, attributes.LocalNicAddress, attributes.NicAddressLen);
    memcpy(local.address.HostAddress + attributes.NicAddressLen, discriminator, strlen(discriminator));
    return local;
}

static void *accept_one(void *unused) {
    address_t local = local_address("receiver"), remote;
    VIP_VI_ATTRIBUTES remote_attributes;
    VIP_CONN_HANDLE connection;
    (void)unused;
    CHECK(VipConnectWait(nic, &local.address, VIP_INFINITE, &remote.address, &remote_attributes, &connection));
    CHECK(VipConnectAccept(connection, receiver));
    return NULL;
}

static VIP_DESCRIPTOR *descriptor_of(int queue, int index, VIP_UINT32 bytes) {
    VIP_DESCRIPTOR *descriptor = (VIP_DESCRIPTOR *)descriptors[queue][index];
    descriptor->CS.SegCount = 1;
    descriptor->CS.Control = 0;
    descriptor->CS.Reserved = 0;
    descriptor->CS.Length = bytes;
    descriptor->CS.Status = 0;
    descriptor->DS[0].Local.Data.Address = buffers[queue];
    descriptor->DS[0].Local.Handle = buffer_memory;
    descriptor->DS[0].Local.Length = bytes;
    return descriptor;
}

static void expect_done(VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **), VIP_VI_HANDLE vi) {
    VIP_DESCRIPTOR *descriptor;
    VIP_RETURN result;
    while ((result = done(vi, &descriptor)) == VIP_NOT_DONE) {
    }
    check(result, "VipSendDone or VipRecvDone");
    if (descriptor->CS.Status & VIP_STATUS_ERROR_MASK) {
        fprintf(stderr, "status %x\n", (unsigned)descriptor->CS.Status);
        exit(1);
    }
}

/* Counts a stage of a round, unless it is one of the first. */
#define STAGE(name, round, count, i, statement) \
    do {                                       \
        CALLGRIND_ZERO_STATS;                  \
        CALLGRIND_TOGGLE_COLLECT;              \
        for (int i = 0; i < (count); i++) {    \
            statement;                         \
        }                                      \
        CALLGRIND_TOGGLE_COLLECT;              \
        if ((round) >= 0) {                    \
            CALLGRIND_DUMP_STATS_AT(name);     \
        }                                      \
    } while (0)

int main(void) {
    VIP_PROTECTION_HANDLE tag;
    CHECK(VipOpenNic("VINIC0", &nic));
    CHECK(VipQueryNic(nic, &attributes));
    CHECK(VipCreatePtag(nic, &tag));
    VIP_VI_ATTRIBUTES vi = {
        .ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY, .MaxTransferSize = LONG_BYTES, .Ptag = tag};
    VIP_MEM_ATTRIBUTES access = {.Ptag = tag};
    CHECK(VipRegisterMem(nic, descriptors, sizeof descriptors, &access, &memory));
    CHECK(VipRegisterMem(nic, buffers, sizeof buffers, &access, &buffer_memory));
    CHECK(VipCreateVi(nic, &vi, NULL, NULL, &receiver));
    CHECK(VipCreateVi(nic, &vi, NULL, NULL, &sender));
    pthread_t acceptor;
    if (pthread_create(&acceptor, NULL, accept_one, NULL) != 0) {
        fprintf(stderr, "pthread_create failed\n");
        return 1;
    }
    address_t local = local_address("sender"), remote = local_address("receiver");
    VIP_VI_ATTRIBUTES remote_attributes;
    VIP_RETURN result;
    do {
        result = VipConnectRequest(sender, &local.address, &remote.address, 1000, &remote_attributes);
    } while (result == VIP_NO_MATCH);
    check(result, "VipConnectRequest");
    pthread_join(acceptor, NULL);

    VIP_DESCRIPTOR *received[BATCH], *sent[BATCH];
    for (int round = -WARM_UP; round < ROUNDS; round++) {
        for (int i = 0; i < BATCH; i++) {
            received[i] = descriptor_of(0, i, SHORT_BYTES);
            sent[i] = descriptor_of(1, i, SHORT_BYTES);
        }
        STAGE("post receive", round, BATCH, i, CHECK(VipPostRecv(receiver, received[i], memory)));
        STAGE("post send", round, BATCH, i, CHECK(VipPostSend(sender, sent[i], memory)));
        STAGE("receive done", round, BATCH, i, expect_done(VipRecvDone, receiver));
        STAGE("send done", round, BATCH, i, expect_done(VipSendDone, sender));
    }
    for (int round = -WARM_UP; round < ROUNDS; round++) {
        CHECK(VipPostRecv(receiver, descriptor_of(0, 0, LONG_BYTES), memory));
        sent[0] = descriptor_of(1, 0, LONG_BYTES);
        /* Together: some frames are sent by the call that receives. */
        STAGE("long message", round, 1, i, CHECK(VipPostSend(sender, sent[i], memory)); expect_done(VipRecvDone, receiver));
        expect_done(VipSendDone, sender);
    }
    CHECK(VipDisconnect(sender));
    CHECK(VipCloseNic(nic));
    return 0;
}
