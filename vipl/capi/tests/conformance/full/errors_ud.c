/* The error table at Unreliable Delivery. */
#include "rows.h"
#include "suite.h"

/* There are no reads at this level: no VI is made that allows them, and one that is posted has no format. */
static void reading_is_not_offered(void)
{
    const PairOptions options = {.reliability = VIP_SERVICE_UNRELIABLE};
    VIP_VI_ATTRIBUTES attributes = vi_attributes(&here, &options);
    VIP_DESCRIPTOR *read = arena_descriptor(&mine, 2), *next;
    VIP_VI_HANDLE vi;
    Pair pair;

    attributes.EnableRdmaRead = VIP_TRUE;
    CHECK_RETURN(VipCreateVi(here.nic, &attributes, NULL, NULL, &vi), VIP_INVALID_RDMAREAD);
    pair_open(&pair, &options);
    describe_read(read, mine.base + 4096, mine.handle, 64, exposed.base, exposed.handle);
    CHECK_RETURN(VipPostSend(pair.client, read, mine.handle), VIP_SUCCESS);
    CHECK((sent(pair.client, read) & VIP_STATUS_ERROR_MASK) == VIP_STATUS_FORMAT_ERROR,
          "a read is a FORMAT_ERROR");
    row_seen("read_refused", "sender");
    CHECK_RETURN(VipRecvDone(pair.server, &next), VIP_DESCRIPTOR_ERROR);
    CHECK(next == NULL && errors_of(pair.server, VIP_ERROR_RDMAR_PROT) == 0,
          "nothing comes to the other end");
    pair_works(&pair, "after the read");
    row_seen("read_refused", "receiver");
    pair_close(&pair);
}

static const Test tests[] = {
    ROW_TESTS(VIP_SERVICE_UNRELIABLE),
    TEST(reading_is_not_offered, .clauses = "5.3", .level = VIP_SERVICE_UNRELIABLE,
         .rows = "read_refused sender receiver", .answers = "VipCreateVi INVALID_RDMAREAD"),
};

SUITE_MAIN(tests)
