/* Data transfer at Reliable Delivery, including RDMA writes. */
#include "suite.h"
#include "transfers.h"

/* A VI of one NIC handle uses memory and tag of another handle of the same NIC; and calls with one
 * handle accept regions and tags of another. */
static void memory_of_another_nic_handle(void)
{
    static unsigned char region[4096];
    const PairOptions options = {0};
    VIP_MEM_ATTRIBUTES memory = {local_device.ptag, VIP_FALSE, VIP_FALSE};
    VIP_MEM_HANDLE handle;
    Device second;
    Pair pair;

    device_open(&second);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &options);
    REQUIRE_RETURN(VipCreateVi(second.nic, &attributes, NULL, NULL, &pair.client), VIP_SUCCESS);
    pair.server = server_create(&options);
    pair_connect(&pair);
    pair_works(&pair, "a VI of the second handle, with memory of the first");
    pair_close(&pair);
    CHECK_RETURN(VipRegisterMem(second.nic, region, sizeof region, &memory, &handle), VIP_SUCCESS);
    CHECK_RETURN(VipQueryMem(local_device.nic, region, handle, &memory), VIP_SUCCESS);
    CHECK(memory.Ptag == local_device.ptag, "the region has the tag of the first handle");
    CHECK_RETURN(VipDeregisterMem(local_device.nic, region, handle), VIP_SUCCESS);
    device_close(&second);
}

static const Test tests[] = {
    TRANSFER_TESTS(VIP_SERVICE_RELIABLE_DELIVERY),
    TEST(memory_of_another_nic_handle, .clauses = "3.1.1 3.4.3", .returns = "VipOpenNic SUCCESS"),
};

SUITE_MAIN(tests)
