/* Making, looking at and destroying VIs. */
#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};
enum { MOST = 64 }; /* more than the small NIC has of anything */

/* Every level is there, and reads where the NIC says so. */
static void levels(VIP_VI_ATTRIBUTES wrong)
{
    const VIP_RELIABILITY_LEVEL none[] = {0, 3, 8, 0xFFFF};
    VIP_VI_HANDLE vi;

    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        wrong.ReliabilityLevel = none[i];
        CHECK_RETURN(VipCreateVi(here.nic, &wrong, NULL, NULL, &vi), VIP_INVALID_RELIABILITY_LEVEL);
    }
    for (VIP_RELIABILITY_LEVEL level = 1; level <= 4; level = (VIP_RELIABILITY_LEVEL)(level * 2)) {
        const bool reads = here.attributes.RDMAReadSupport & level;
        wrong.ReliabilityLevel = level;
        CHECK_RETURN(VipCreateVi(here.nic, &wrong, NULL, NULL, &vi), VIP_SUCCESS);
        CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
        wrong.EnableRdmaRead = VIP_TRUE;
        CHECK_RETURN(VipCreateVi(here.nic, &wrong, NULL, NULL, &vi),
                     reads ? VIP_SUCCESS : VIP_INVALID_RDMAREAD);
        if (reads)
            CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
        wrong.EnableRdmaRead = VIP_FALSE;
    }
}

static void creating(void)
{
    const VIP_VI_ATTRIBUTES good = vi_attributes(&here, &plain);
    VIP_VI_ATTRIBUTES wrong = good;
    VIP_VI_HANDLE vi;

    CHECK_RETURN(VipCreateVi(here.nic, NULL, NULL, NULL, &vi), INVALID);
    CHECK_RETURN(VipCreateVi(here.nic, &wrong, NULL, NULL, NULL), INVALID);
    CHECK_RETURN(VipCreateVi(here.nic, &wrong, here.nic, NULL, &vi), INVALID);
    CHECK_RETURN(VipCreateVi(here.nic, &wrong, NULL, (VIP_CQ_HANDLE)99, &vi), INVALID);
    levels(good);
    wrong = good;
    wrong.MaxTransferSize = here.attributes.MaxTransferSize + 1;
    CHECK_RETURN(VipCreateVi(here.nic, &wrong, NULL, NULL, &vi), VIP_INVALID_MTU);
    wrong = good;
    wrong.QoS = &wrong;
    CHECK_RETURN(VipCreateVi(here.nic, &wrong, NULL, NULL, &vi), VIP_INVALID_QOS);
    wrong = good;
    wrong.Ptag = (VIP_PROTECTION_HANDLE)5;
    CHECK_RETURN(VipCreateVi(here.nic, &wrong, NULL, NULL, &vi), VIP_INVALID_PTAG);
    wrong.Ptag = NULL;
    CHECK_RETURN(VipCreateVi(here.nic, &wrong, NULL, NULL, &vi), VIP_INVALID_PTAG);
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
              attributes.Ptag == here.ptag && attributes.EnableRdmaWrite == VIP_FALSE &&
              attributes.EnableRdmaRead == VIP_FALSE,
          "the attributes come back as they were set");
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipQueryVi(vi, &state, &attributes, &send_empty, &recv_empty), INVALID);
}

static void as_many_as_the_nic_has(void)
{
    Device small;
    VIP_VI_HANDLE vis[MOST];
    VIP_ULONG count = 0;
    VIP_RETURN answer;

    device_open_named(&small, "SMALL");
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&small, &plain);
    while ((answer = VipCreateVi(small.nic, &attributes, NULL, NULL, &vis[count])) == VIP_SUCCESS)
        count++;
    CHECK(answer == VIP_ERROR_RESOURCE && count == small.attributes.MaxVI, "%lu VIs, then %s",
          count, return_name((int)answer));
    CHECK_RETURN(VipDestroyVi(vis[0]), VIP_SUCCESS);
    CHECK_RETURN(VipCreateVi(small.nic, &attributes, NULL, NULL, &vis[0]), VIP_SUCCESS);
    while (count > 0)
        CHECK_RETURN(VipDestroyVi(vis[--count]), VIP_SUCCESS);
    device_close(&small);
}

static const Test tests[] = {
    TEST(creating, .clauses = "3.2.1 3.2.2 4.5",
         .answers = "VipCreateVi SUCCESS INVALID_PARAMETER INVALID_RELIABILITY_LEVEL INVALID_MTU "
                    "INVALID_QOS INVALID_PTAG INVALID_RDMAREAD;"
                    "VipDestroyVi SUCCESS INVALID_PARAMETER"),
    TEST(querying, .clauses = "3.7.3", .answers = "VipQueryVi SUCCESS INVALID_PARAMETER"),
    TEST(as_many_as_the_nic_has, .clauses = "3.2.1 3.7.1",
         .answers = "VipCreateVi SUCCESS ERROR_RESOURCE; VipDestroyVi SUCCESS"),
};

SUITE_MAIN(tests)
