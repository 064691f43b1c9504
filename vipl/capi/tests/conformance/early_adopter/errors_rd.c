/* The error table at Reliable Delivery. */
#include "rows.h"
#include "suite.h"

static const Test tests[] = {ROW_TESTS(VIP_SERVICE_RELIABLE_DELIVERY)};

SUITE_MAIN(tests)
