/* Creating, querying and destroying VIs. */
#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};
enum { MAX_OBJECTS = 64 }; /* above every limit of the small NIC */

/* All reliability levels, and RDMA reads at the levels that the NIC supports. */
static void levels(VIP_VI_ATTRIBUTES wrong)
{
    const VIP_RELIABILITY_LEVEL unsupported[] = {0, 3, 8, 0xFFFF};
    VIP_VI_HANDLE vi;

    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
        wrong.ReliabilityLevel = unsupported[i];
        CHECK_RETURN(VipCreateVi(local_device.nic, &wrong, NULL, NULL, &vi),
                     VIP_INVALID_RELIABILITY_LEVEL);
    }
    for (VIP_RELIABILITY_LEVEL level = 1; level <= 4; level = (VIP_RELIABILITY_LEVEL)(level * 2)) {
        const bool reads = local_device.attributes.RDMAReadSupport & level;
        wrong.ReliabilityLevel = level;
        CHECK_RETURN(VipCreateVi(local_device.nic, &wrong, NULL, NULL, &vi), VIP_SUCCESS);
        CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
        wrong.EnableRdmaRead = VIP_TRUE;
        CHECK_RETURN(VipCreateVi(local_device.nic, &wrong, NULL, NULL, &vi),
                     reads ? VIP_SUCCESS : VIP_INVALID_RDMAREAD);
        if (reads)
            CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
        wrong.EnableRdmaRead = VIP_FALSE;
    }
}

static void creating(void)
{
    const VIP_VI_ATTRIBUTES good = vi_attributes(&local_device, &plain);
    VIP_VI_ATTRIBUTES wrong = good;
    VIP_VI_HANDLE vi;

    CHECK_RETURN(VipCreateVi(local_device.nic, NULL, NULL, NULL, &vi), INVALID);
    CHECK_RETURN(VipCreateVi(local_device.nic, &wrong, NULL, NULL, NULL), INVALID);
    CHECK_RETURN(VipCreateVi(local_device.nic, &wrong, local_device.nic, NULL, &vi), INVALID);
    CHECK_RETURN(VipCreateVi(local_device.nic, &wrong, NULL, (VIP_CQ_HANDLE)99, &vi), INVALID);
    levels(good);
    wrong = good;
    wrong.MaxTransferSize = local_device.attributes.MaxTransferSize + 1;
    CHECK_RETURN(VipCreateVi(local_device.nic, &wrong, NULL, NULL, &vi), VIP_INVALID_MTU);
    wrong = good;
    wrong.QoS = &wrong;
    CHECK_RETURN(VipCreateVi(local_device.nic, &wrong, NULL, NULL, &vi), VIP_INVALID_QOS);
    wrong = good;
    wrong.Ptag = (VIP_PROTECTION_HANDLE)5;
    CHECK_RETURN(VipCreateVi(local_device.nic, &wrong, NULL, NULL, &vi), VIP_INVALID_PTAG);
    wrong.Ptag = NULL;
    CHECK_RETURN(VipCreateVi(local_device.nic, &wrong, NULL, NULL, &vi), VIP_INVALID_PTAG);
    CHECK_RETURN(VipDestroyVi(NULL), INVALID);
}

static void querying(void)
{
    VIP_VI_HANDLE vi = client_create(&plain);
    VIP_VI_STATE state = VIP_STATE_ERROR;
    VIP_VI_ATTRIBUTES attributes;
    VIP_BOOLEAN send_empty = 7, recv_empty = 7;

    CHECK_RETURN(VipQueryVi(vi, NULL, &attributes, &send_empty, &recv_empty), INVALID);
    CHECK_RETURN(VipQueryVi(vi, &state, NULL, &send_empty, &recv_empty), INVALID);
    CHECK_RETURN(VipQueryVi(vi, &state, &attributes, NULL, &recv_empty), INVALID);
    CHECK_RETURN(VipQueryVi(vi, &state, &attributes, &send_empty, NULL), INVALID);
    CHECK_RETURN(VipQueryVi(vi, &state, &attributes, &send_empty, &recv_empty), VIP_SUCCESS);
    CHECK(state == VIP_STATE_IDLE && send_empty == VIP_TRUE && recv_empty == VIP_TRUE,
          "a new VI is Idle and empty");
    CHECK(attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY &&
              attributes.MaxTransferSize == 65536 && attributes.QoS == NULL &&
              attributes.Ptag == local_device.ptag && attributes.EnableRdmaWrite == VIP_FALSE &&
              attributes.EnableRdmaRead == VIP_FALSE,
          "the attributes are returned as they were set");
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipQueryVi(vi, &state, &attributes, &send_empty, &recv_empty), INVALID);
}

static void vi_limit(void)
{
    Device small;
    VIP_VI_HANDLE vis[MAX_OBJECTS];
    VIP_ULONG count = 0;
    VIP_RETURN result;

    device_open_named(&small, "SMALL");
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&small, &plain);
    while ((result = VipCreateVi(small.nic, &attributes, NULL, NULL, &vis[count])) == VIP_SUCCESS)
        count++;
    CHECK(result == VIP_ERROR_RESOURCE && count == small.attributes.MaxVI, "%lu VIs, then %s",
          count, return_name((int)result));
    CHECK_RETURN(VipDestroyVi(vis[0]), VIP_SUCCESS);
    CHECK_RETURN(VipCreateVi(small.nic, &attributes, NULL, NULL, &vis[0]), VIP_SUCCESS);
    while (count > 0)
        CHECK_RETURN(VipDestroyVi(vis[--count]), VIP_SUCCESS);
    device_close(&small);
}

static const Test tests[] = {
    TEST(creating, .clauses = "3.2.1 3.2.2 4.5",
         .returns = "VipCreateVi SUCCESS INVALID_PARAMETER INVALID_RELIABILITY_LEVEL INVALID_MTU "
                    "INVALID_QOS INVALID_PTAG INVALID_RDMAREAD;"
                    "VipDestroyVi SUCCESS INVALID_PARAMETER"),
    TEST(querying, .clauses = "3.7.3", .returns = "VipQueryVi SUCCESS INVALID_PARAMETER"),
    TEST(vi_limit, .clauses = "3.2.1 3.7.1",
         .returns = "VipCreateVi SUCCESS ERROR_RESOURCE; VipDestroyVi SUCCESS"),
};

SUITE_MAIN(tests)
