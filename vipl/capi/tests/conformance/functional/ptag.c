/* Protection tags. What they protect is in the error table: memory of another tag. */
#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};
enum { MOST = 64 }; /* more than the small NIC has of anything */

static void making_and_destroying(void)
{
    static unsigned char region[64];
    VIP_PROTECTION_HANDLE tag = NULL;
    VIP_MEM_HANDLE handle;
    VIP_VI_HANDLE vi;

    CHECK_RETURN(VipCreatePtag(here.nic, NULL), INVALID);
    CHECK_RETURN(VipCreatePtag(NULL, &tag), INVALID);
    CHECK_RETURN(VipCreatePtag(here.nic, &tag), VIP_SUCCESS);
    CHECK(tag != NULL, "a tag is not NULL");
    VIP_MEM_ATTRIBUTES memory = {tag, VIP_FALSE, VIP_FALSE};
    CHECK_RETURN(VipRegisterMem(here.nic, region, sizeof region, &memory, &handle), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(here.nic, tag), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDeregisterMem(here.nic, region, handle), VIP_SUCCESS);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&here, &plain);
    attributes.Ptag = tag;
    CHECK_RETURN(VipCreateVi(here.nic, &attributes, NULL, NULL, &vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(here.nic, tag), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(here.nic, tag), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(here.nic, tag), INVALID);
    CHECK_RETURN(VipCreateVi(here.nic, &attributes, NULL, NULL, &vi), VIP_INVALID_PTAG);
    CHECK_RETURN(VipRegisterMem(here.nic, region, sizeof region, &memory, &handle),
                 VIP_INVALID_PTAG);
}

static void as_many_as_the_nic_has(void)
{
    VIP_PROTECTION_HANDLE tags[MOST];
    VIP_ULONG count = 0;
    VIP_RETURN answer;
    Device small;

    device_open_named(&small, "SMALL");
    while ((answer = VipCreatePtag(small.nic, &tags[count])) == VIP_SUCCESS)
        count++;
    CHECK(answer == VIP_ERROR_RESOURCE && count + 1 == small.attributes.MaxPtags,
          "%lu tags beside the test's own, then %s", count, return_name((int)answer));
    while (count > 0)
        CHECK_RETURN(VipDestroyPtag(small.nic, tags[--count]), VIP_SUCCESS);
    device_close(&small);
}

static const Test tests[] = {
    TEST(making_and_destroying, .clauses = "3.4.1 3.4.2 3.2.1 3.4.3",
         .answers = "VipCreatePtag SUCCESS INVALID_PARAMETER;"
                    "VipDestroyPtag SUCCESS ERROR_RESOURCE INVALID_PARAMETER;"
                    "VipCreateVi INVALID_PTAG; VipRegisterMem INVALID_PTAG"),
    TEST(as_many_as_the_nic_has, .clauses = "3.4.1 3.7.1",
         .answers = "VipCreatePtag SUCCESS ERROR_RESOURCE"),
};

SUITE_MAIN(tests)
