/* Data transfer at Reliable Delivery, including RDMA writes. */
#include "suite.h"
#include "transfers.h"

/* A VI of one NIC handle uses memory and tag of another handle of the same NIC. */
static void memory_of_another_nic_handle(void)
{
    const PairOptions options = {0};
    Device second;
    Pair pair;

    device_open(&second);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &options);
    REQUIRE_RETURN(VipCreateVi(second.nic, &attributes, NULL, NULL, &pair.client), VIP_SUCCESS);
    pair.server = server_create(&options);
    pair_connect(&pair);
    pair_works(&pair, "a VI of the second handle, with memory of the first");
    pair_close(&pair);
    device_close(&second);
}

static const Test tests[] = {
    TRANSFER_TESTS(VIP_SERVICE_RELIABLE_DELIVERY),
    TEST(memory_of_another_nic_handle, .clauses = "3.1.1 3.4.3", .returns = "VipOpenNic SUCCESS"),
};

SUITE_MAIN(tests)
