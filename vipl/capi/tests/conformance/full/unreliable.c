/* Data transfer at Unreliable Delivery, without losses. */
#include "suite.h"
#include "transfers.h"

static const Test tests[] = {TRANSFER_TESTS(VIP_SERVICE_UNRELIABLE)};

SUITE_MAIN(tests)
