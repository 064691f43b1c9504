/* Data at Unreliable Delivery, on a wire that loses nothing. */
#include "suite.h"
#include "transfers.h"

static const Test tests[] = {TRANSFER_TESTS(VIP_SERVICE_UNRELIABLE)};

SUITE_MAIN(tests)
