/* Data at Reliable Delivery, RDMA writes among it. */
#include "suite.h"
#include "transfers.h"

/* Memory and tags of one opening of the NIC are good for the VIs of another. */
static void handles_of_another_opening(void)
{
    const PairOptions options = {0};
    Device second;
    Pair pair;

    device_open(&second);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&here, &options);
    REQUIRE_RETURN(VipCreateVi(second.nic, &attributes, NULL, NULL, &pair.client), VIP_SUCCESS);
    pair.server = server_create(&options);
    pair_connect(&pair);
    pair_works(&pair, "a VI of the second opening, with memory of the first");
    pair_close(&pair);
    device_close(&second);
}

static const Test tests[] = {
    TRANSFER_TESTS(VIP_SERVICE_RELIABLE_DELIVERY),
    TEST(handles_of_another_opening, .clauses = "3.1.1 3.4.3", .answers = "VipOpenNic SUCCESS"),
};

SUITE_MAIN(tests)
