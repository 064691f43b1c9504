/* Protection tags. Their effect is in the error table: memory of another tag. */
#include "suite.h"

#define INVALID VIP_INVALID_PARAMETER

static const PairOptions plain = {0};
enum { MAX_OBJECTS = 64 }; /* above every limit of the small NIC */

static void creating_and_destroying(void)
{
    static unsigned char region[64];
    VIP_PROTECTION_HANDLE tag = NULL;
    VIP_MEM_HANDLE handle;
    VIP_VI_HANDLE vi;

    CHECK_RETURN(VipCreatePtag(local_device.nic, NULL), INVALID);
    CHECK_RETURN(VipCreatePtag(NULL, &tag), INVALID);
    CHECK_RETURN(VipCreatePtag(local_device.nic, &tag), VIP_SUCCESS);
    CHECK(tag != NULL, "a tag is not NULL");
    VIP_MEM_ATTRIBUTES memory = {tag, VIP_FALSE, VIP_FALSE};
    CHECK_RETURN(VipRegisterMem(local_device.nic, region, sizeof region, &memory, &handle),
                 VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(local_device.nic, tag), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDeregisterMem(local_device.nic, region, handle), VIP_SUCCESS);
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &plain);
    attributes.Ptag = tag;
    CHECK_RETURN(VipCreateVi(local_device.nic, &attributes, NULL, NULL, &vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(local_device.nic, tag), VIP_ERROR_RESOURCE);
    CHECK_RETURN(VipDestroyVi(vi), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(local_device.nic, tag), VIP_SUCCESS);
    CHECK_RETURN(VipDestroyPtag(local_device.nic, tag), INVALID);
    CHECK_RETURN(VipCreateVi(local_device.nic, &attributes, NULL, NULL, &vi), VIP_INVALID_PTAG);
    CHECK_RETURN(VipRegisterMem(local_device.nic, region, sizeof region, &memory, &handle),
                 VIP_INVALID_PTAG);
}

static void ptag_limit(void)
{
    VIP_PROTECTION_HANDLE tags[MAX_OBJECTS];
    VIP_ULONG count = 0;
    VIP_RETURN result;
    Device small;

    device_open_named(&small, "SMALL");
    for (unsigned round = 0; round < 2; round++) {
        while ((result = VipCreatePtag(small.nic, &tags[count])) == VIP_SUCCESS)
            count++;
        CHECK(result == VIP_ERROR_RESOURCE && count + 1 == small.attributes.MaxPtags,
              "%lu tags besides the tag of the device, then %s", count, return_name((int)result));
        while (count > 0)
            CHECK_RETURN(VipDestroyPtag(small.nic, tags[--count]), VIP_SUCCESS);
    }
    device_close(&small);
}

static const Test tests[] = {
    TEST(creating_and_destroying, .clauses = "3.4.1 3.4.2 3.2.1 3.4.3",
         .returns = "VipCreatePtag SUCCESS INVALID_PARAMETER;"
                    "VipDestroyPtag SUCCESS ERROR_RESOURCE INVALID_PARAMETER;"
                    "VipCreateVi INVALID_PTAG; VipRegisterMem INVALID_PTAG"),
    TEST(ptag_limit, .clauses = "3.4.1 3.7.1",
         .returns = "VipCreatePtag SUCCESS ERROR_RESOURCE"),
};

SUITE_MAIN(tests)
