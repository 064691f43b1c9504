/* The error table at Unreliable Delivery. */
#include <string.h>

#include "rows.h"
#include "suite.h"

/* RDMA reads are not supported at this level: VipCreateVi fails, and a posted read is a
 * FORMAT_ERROR. */
static void rdma_read_is_not_supported(void)
{
    const PairOptions options = {.reliability = VIP_SERVICE_UNRELIABLE};
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&local_device, &options);
    VIP_DESCRIPTOR *read = arena_descriptor(&local_arena, 2), *next;
    unsigned char *target = arena_bytes(&local_arena, 64);
    unsigned written = 0;
    VIP_VI_HANDLE vi;
    Pair pair;

    attributes.EnableRdmaRead = VIP_TRUE;
    CHECK_RETURN(VipCreateVi(local_device.nic, &attributes, NULL, NULL, &vi), VIP_INVALID_RDMAREAD);
    pair_open(&pair, &options);
    memset(target, 0xEE, 64);
    describe_read(read, target, local_arena.handle, 64, exposed.base, exposed.handle);
    CHECK_RETURN(VipPostSend(pair.client, read, local_arena.handle), VIP_SUCCESS);
    CHECK((sent(pair.client, read) & VIP_STATUS_ERROR_MASK) == VIP_STATUS_FORMAT_ERROR,
          "a read is a FORMAT_ERROR");
    for (size_t i = 0; i < 64; i++)
        written += target[i] != 0xEE;
    CHECK(written == 0, "%u bytes are read", written);
    row_seen("read_refused", "sender");
    CHECK_RETURN(VipRecvDone(pair.server, &next), VIP_DESCRIPTOR_ERROR);
    CHECK(next == NULL && errors_count(pair.server, VIP_ERROR_RDMAR_PROT) == 0,
          "nothing arrives at the target");
    pair_works(&pair, "after the read");
    row_seen("read_refused", "receiver");
    pair_close(&pair);
}

static const Test tests[] = {
    ROW_TESTS(VIP_SERVICE_UNRELIABLE),
    TEST(rdma_read_is_not_supported, .clauses = "5.3", .level = VIP_SERVICE_UNRELIABLE,
         .rows = "read_refused sender receiver", .returns = "VipCreateVi INVALID_RDMAREAD"),
};

SUITE_MAIN(tests)
