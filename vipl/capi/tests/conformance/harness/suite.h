/*
 * A program of the suite: a table of tests, each with the clauses of the guide, the return codes
 * and the rows of the error table that it covers, and `main` by SUITE_MAIN. A declared return code
 * or row that does not occur is a failure.
 */
#ifndef SUITE_H
#define SUITE_H

#include "fixture.h"

/* The process of the remote end of a test. */
enum Needs {
    ANY_PROCESS,  /* this process or another */
    TWO_PROCESSES /* another process, which the test ends */
};

typedef struct {
    const char *name;
    void (*run)(void);
    const char *clauses; /* of the guide: "3.1.1 6.5" */
    const char *returns; /* "VipOpenNic SUCCESS INVALID_PARAMETER; VipCloseNic SUCCESS" */
    const char *rows;    /* of the error table: "no_receive sender receiver" */
    VIP_RELIABILITY_LEVEL level; /* of the rows, or of the VIs that the test makes; 0: any */
    enum Needs needs;
} Test;

#define TEST(function, ...) {.name = #function, .run = function, __VA_ARGS__}

/* Records that the row of the error table was observed at this side, at the level of the running
 * test. */
void row_seen(const char *row, const char *side);
/* Returns the level of the running test. */
VIP_RELIABILITY_LEVEL test_level(void);

/* Returns the directory for files of the test. */
const char *test_directory(void);

int suite_run(int argc, char **argv, const Test *tests, unsigned test_count);

#define SUITE_MAIN(tests)                                                                          \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return suite_run(argc, argv, tests, sizeof tests / sizeof tests[0]);                       \
    }

#endif
