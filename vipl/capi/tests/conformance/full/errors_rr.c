/* The error table at Reliable Reception. */
#include "reads.h"
#include "rows.h"
#include "suite.h"

static const Test tests[] = {ROW_TESTS(VIP_SERVICE_RELIABLE_RECEPTION),
                             READ_ROW_TESTS(VIP_SERVICE_RELIABLE_RECEPTION)};

SUITE_MAIN(tests)
