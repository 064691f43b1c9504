/* Data at Reliable Reception. */
#include "suite.h"
#include "transfers.h"

static const Test tests[] = {TRANSFER_TESTS(VIP_SERVICE_RELIABLE_RECEPTION)};

SUITE_MAIN(tests)
