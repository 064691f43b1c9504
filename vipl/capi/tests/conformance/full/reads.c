/* RDMA reads at Reliable Delivery, which no phase of the guide requires. */
#include "reads.h"

#include "suite.h"

static const Test tests[] = {READ_TESTS(VIP_SERVICE_RELIABLE_DELIVERY),
                             READ_ROW_TESTS(VIP_SERVICE_RELIABLE_DELIVERY)};

SUITE_MAIN(tests)
