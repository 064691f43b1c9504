/* Data transfer at Reliable Reception, including RDMA reads. */
#include "reads.h"
#include "suite.h"
#include "transfers.h"

static const Test tests[] = {TRANSFER_TESTS(VIP_SERVICE_RELIABLE_RECEPTION),
                             READ_TESTS(VIP_SERVICE_RELIABLE_RECEPTION)};

SUITE_MAIN(tests)
