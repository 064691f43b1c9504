/* Tests of rules in one process; see docs/spec/vipl-rules.md. */
#define _XOPEN_SOURCE 600

#include "common.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

int rule_1_numbers_fit_an_int(void)
{
    unsigned char address[24];
    Nic nic;
    int max_vi, max_transfer;

    nic_open(&nic);
    max_vi = (int)nic.attributes.MaxVI;
    max_transfer = (int)nic.attributes.MaxTransferSize;
    EXPECT(max_vi > 0 && max_transfer >= 131072);
    EXPECT((int)nic.attributes.MaxRegisterBytes > 0 && (int)nic.attributes.MaxRegisterRegions > 0);
    EXPECT((int)nic.attributes.MaxRegisterBlockBytes > 0);
    EXPECT((int)nic.attributes.MaxDescriptorsPerQueue > 0);
    EXPECT((int)nic.attributes.MaxSegmentsPerDesc > 0 && (int)nic.attributes.MaxPtags > 0);
    EXPECT((int)nic.attributes.MaxCQ > 0 && (int)nic.attributes.MaxCQEntries > 0);
    EXPECT((int)nic.attributes.NativeMTU > 0);
    EXPECT(nic.attributes.MaxRegisterBytes <= INT_MAX && nic.attributes.MaxVI <= INT_MAX);
    EXPECT(nic.attributes.NicAddressLen <= sizeof address);
    memcpy(address, nic.attributes.LocalNicAddress, nic.attributes.NicAddressLen);
    vi_close(vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL));
    EXPECT(memcmp(address, nic.attributes.LocalNicAddress, nic.attributes.NicAddressLen) == 0);
    nic_close(&nic);
    return 0;
}

int rule_3_one_nic_opened_twice(void)
{
    Nic first, second;
    Buffer buffer;
    VIP_VI_HANDLE client, server;
    VIP_PROTECTION_HANDLE own;

    nic_open(&first);
    nic_open(&second);
    EXPECT(first.nic != second.nic);
    buffer_open(&first, &buffer, 4096, VIP_FALSE);
    EXPECT(buffer.handle != 0 && first.ptag != NULL);
    /* VIs of the second NIC handle, with the tag and the memory of the first. */
    own = second.ptag;
    second.ptag = first.ptag;
    client = vi_make(&second, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    server = vi_make(&second, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    connect_here(&second, client, server, discriminator());
    exchange(client, server, &buffer);
    vi_close(client);
    vi_close(server);
    second.ptag = own;
    nic_close(&second);
    buffer_close(&first, &buffer);
    nic_close(&first);
    return 0;
}

static void without_tag(int lenient)
{
    static char page[4096];
    VIP_MEM_ATTRIBUTES found;
    VIP_MEM_HANDLE handle;
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE client, server;
    VIP_PROTECTION_HANDLE tag;
    Buffer buffer;
    Nic nic;

    nic_open(&nic);
    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = 65536;
    if (!lenient) {
        EXPECT(VipCreateVi(nic.nic, &attributes, NULL, NULL, &client) == VIP_INVALID_PTAG);
        EXPECT(VipRegisterMem(nic.nic, page, sizeof page, NULL, &handle) == VIP_INVALID_PARAMETER);
        nic_close(&nic);
        return;
    }
    EXPECT_OK(VipRegisterMem(nic.nic, page, sizeof page, NULL, &handle));
    EXPECT_OK(VipQueryMem(nic.nic, page, handle, &found));
    EXPECT(found.Ptag == NULL && !found.EnableRdmaWrite && !found.EnableRdmaRead);
    EXPECT_OK(VipDeregisterMem(nic.nic, page, handle));
    buffer_open(&nic, &buffer, 4096, VIP_FALSE);
    tag = nic.ptag;
    nic.ptag = NULL;
    client = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    server = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    connect_here(&nic, client, server, discriminator());
    exchange(client, server, &buffer);
    vi_close(client);
    vi_close(server);
    nic.ptag = tag;
    buffer_close(&nic, &buffer);
    nic_close(&nic);
}

int rule_4_a_vi_without_a_tag(void)
{
    pid_t child = fork_child();

    if (child == 0) {
        EXPECT(setenv("VIPL_PROTECTION", "lenient", 1) == 0);
        without_tag(1);
        _exit(0);
    }
    without_tag(0);
    wait_for_child(child);
    return 0;
}

int rule_11_no_write_beyond_the_address(void)
{
    VIP_CHAR name[] = "localhost";
    VIP_NET_ADDRESS *address;
    unsigned char *bytes;
    size_t host, i, room;
    Nic nic;

    nic_open(&nic);
    host = nic.attributes.NicAddressLen;
    room = offsetof(VIP_NET_ADDRESS, HostAddress) + host;
    /* As large as the host part, followed by guard bytes. */
    bytes = (unsigned char *)malloc(room + 16);
    EXPECT(bytes != NULL);
    memset(bytes, 0xEE, room + 16);
    address = (VIP_NET_ADDRESS *)(void *)bytes;
    address->HostAddressLen = 0;
    EXPECT_OK(VipNSInit(nic.nic, NULL));
    EXPECT_OK(VipNSGetHostByName(nic.nic, name, address, 0));
    EXPECT_OK(VipNSShutdown(nic.nic));
    EXPECT(address->HostAddressLen == host && address->DiscriminatorLen == 0xEEEE);
    for (i = 0; i < 16; i++)
        EXPECT(bytes[room + i] == 0xEE);
    EXPECT(memcmp(address->HostAddress, nic.attributes.LocalNicAddress, host) == 0);
    free(bytes);
    nic_close(&nic);
    return 0;
}

int rule_12_ordered_teardown(void)
{
    VIP_DESCRIPTOR *descriptor;
    VIP_VI_HANDLE client, server;
    VIP_CQ_HANDLE cq;
    Buffer buffer;
    Nic nic;

    nic_open(&nic);
    buffer_open(&nic, &buffer, 4096, VIP_FALSE);
    EXPECT_OK(VipCreateCQ(nic.nic, 16, &cq));
    client = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    server = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, cq);
    connect_here(&nic, client, server, discriminator());
    descriptor = (VIP_DESCRIPTOR *)(void *)buffer.base;
    EXPECT(VipSendDone(client, &descriptor) == VIP_DESCRIPTOR_ERROR && descriptor == NULL);
    descriptor = (VIP_DESCRIPTOR *)(void *)buffer.base;
    EXPECT(VipRecvDone(server, &descriptor) == VIP_DESCRIPTOR_ERROR && descriptor == NULL);
    descriptor = (VIP_DESCRIPTOR *)(void *)buffer.base;
    describe(descriptor, &buffer, 256, 64);
    EXPECT_OK(VipPostRecv(server, descriptor, buffer.handle));
    vi_close(server);
    vi_close(client);
    EXPECT_OK(VipDestroyCQ(cq));
    buffer_close(&nic, &buffer);
    nic_close(&nic);
    return 0;
}

int rule_13_unordered_teardown(void)
{
    VIP_VI_HANDLE client, server;
    VIP_DESCRIPTOR *descriptor;
    Buffer buffer, freed;
    Nic nic, other;
    VIP_ULONG i;

    nic_open(&nic);
    buffer_open(&nic, &buffer, 4096, VIP_FALSE);
    buffer_open(&nic, &freed, 4096, VIP_FALSE);
    client = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    server = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    connect_here(&nic, client, server, discriminator());
    descriptor = (VIP_DESCRIPTOR *)(void *)freed.base;
    describe(descriptor, &freed, 256, 64);
    EXPECT_OK(VipPostRecv(server, descriptor, freed.handle));
    EXPECT(VipDestroyVi(server) == VIP_INVALID_STATE);
    EXPECT_OK(VipDisconnect(server));
    EXPECT_OK(VipDisconnect(server));
    EXPECT(VipDestroyVi(server) == VIP_INVALID_STATE);
    vi_drain(server);
    /* Owned by the program again: it must not be modified. */
    memset(freed.base, 0x5A, freed.bytes);
    EXPECT_OK(VipDisconnect(client));
    EXPECT_OK(VipDisconnect(client));
    connect_here(&nic, client, server, discriminator());
    exchange(client, server, &buffer);
    for (i = 0; i < freed.bytes; i++)
        EXPECT(freed.base[i] == 0x5A);
    buffer_close(&nic, &freed);
    vi_close(client);
    vi_close(server);
    buffer_close(&nic, &buffer);
    /* A NIC that is closed with all its objects, repeatedly. */
    for (i = 0; i < 20; i++) {
        nic_open(&other);
        buffer_open(&other, &buffer, 4096, VIP_FALSE);
        client = vi_make(&other, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
        EXPECT_OK(VipCloseNic(other.nic));
        EXPECT(VipDestroyVi(client) == VIP_INVALID_PARAMETER);
        free(buffer.memory);
    }
    nic_close(&nic);
    return 0;
}

int rule_15_names_of_devices(void)
{
    VIP_NIC_HANDLE nic;
    char name[32];
    int found = 0;

    /* As programs search for NICs: until a name is unknown. */
    for (;;) {
        sprintf(name, "%s%d", VINICBASENAME, found);
        if (VipOpenNic(name, &nic) != VIP_SUCCESS)
            break;
        EXPECT_OK(VipCloseNic(nic));
        found++;
        EXPECT(found < 1000);
    }
    EXPECT(found > 0);
    EXPECT(VipOpenNic("/dev/via_nothing", &nic) != VIP_SUCCESS);
    EXPECT_OK(VipOpenNic(VINICBASENAME, &nic));
    EXPECT_OK(VipCloseNic(nic));
    /* An alias of the configuration. */
    EXPECT_OK(VipOpenNic("/dev/old0", &nic));
    EXPECT_OK(VipCloseNic(nic));
    return 0;
}

int rule_16_registration_is_cheap(void)
{
    static char block[65536];
    VIP_MEM_ATTRIBUTES attributes;
    VIP_MEM_HANDLE outer, inner;
    time_t begun;
    VIP_ULONG i;
    Nic nic;

    nic_open(&nic);
    attributes.Ptag = nic.ptag;
    attributes.EnableRdmaWrite = attributes.EnableRdmaRead = VIP_FALSE;
    EXPECT_OK(VipRegisterMem(nic.nic, block, sizeof block, &attributes, &outer));
    begun = time(NULL);
    for (i = 0; i < 5000; i++) {
        char *start = block + i * 13 % 60000;
        EXPECT_OK(VipRegisterMem(nic.nic, start, 1 + i % 5000, &attributes, &inner));
        EXPECT(inner != 0 && inner != outer);
        EXPECT_OK(VipDeregisterMem(nic.nic, start, inner));
    }
    EXPECT(time(NULL) - begun <= 5);
    EXPECT_OK(VipQueryMem(nic.nic, block, outer, &attributes));
    EXPECT_OK(VipDeregisterMem(nic.nic, block, outer));
    nic_close(&nic);
    return 0;
}

int rule_18_names_of_hosts(void)
{
    VIP_CHAR path[64], name[] = "only-in-this-file";
    VIP_NET_ADDRESS *address;
    VIP_VI_HANDLE client, server;
    Buffer buffer;
    FILE *file;
    Nic nic;

    sprintf(path, "%s/old-hosts-%ld", P_tmpdir, (long)getpid());
    file = fopen(path, "w");
    EXPECT(file != NULL && fprintf(file, "192.0.2.77 %s\n", name) > 0 && fclose(file) == 0);
    nic_open(&nic);
    address = address_alloc(&nic);
    EXPECT_OK(VipNSInit(nic.nic, path));
    EXPECT_OK(VipNSGetHostByName(nic.nic, name, address, 0));
    client = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    server = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    connect_here(&nic, client, server, discriminator());
    EXPECT_OK(VipNSShutdown(nic.nic));
    remove(path);
    free(address);
    buffer_open(&nic, &buffer, 4096, VIP_FALSE);
    exchange(client, server, &buffer);
    vi_close(client);
    vi_close(server);
    buffer_close(&nic, &buffer);
    nic_close(&nic);
    return 0;
}

int rule_19_memory_that_cannot_be_locked(void)
{
    struct rlimit none = {0, 0};
    Buffer buffer;
    Nic nic;

    EXPECT(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
    nic_open(&nic);
    buffer_open(&nic, &buffer, 1 << 20, VIP_FALSE);
    buffer_close(&nic, &buffer);
    nic_close(&nic);
    return 0;
}

int rule_20_fork_after_opening(void)
{
    VIP_VI_HANDLE client, server;
    Buffer buffer;
    pid_t child;
    int execs;
    Nic nic;

    nic_open(&nic);
    buffer_open(&nic, &buffer, 4096, VIP_FALSE);
    client = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    server = vi_make(&nic, VIP_SERVICE_RELIABLE_DELIVERY, VIP_FALSE, NULL);
    connect_here(&nic, client, server, discriminator());
    for (execs = 0; execs < 2; execs++) {
        child = fork_child();
        if (child == 0 && execs) {
            execlp("true", "true", (char *)NULL);
            _exit(1);
        }
        if (child == 0)
            exit(0);
        exchange(client, server, &buffer);
        wait_for_child(child);
        exchange(server, client, &buffer);
    }
    vi_close(client);
    vi_close(server);
    buffer_close(&nic, &buffer);
    nic_close(&nic);
    return 0;
}
