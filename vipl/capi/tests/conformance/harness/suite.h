/*
 * A program of the suite: a table of tests, each with the clauses of the guide that it is about, the
 * answers that it shows and the rows of the error table that it shows, and `main` as SUITE_MAIN.
 * What a test declares is held against what it did: a declaration that does not come true fails.
 */
#ifndef SUITE_H
#define SUITE_H

#include "fixture.h"

/* Where the far end of a test must be. */
enum Needs {
    ANY_PROCESS,  /* in this process or in another */
    TWO_PROCESSES /* in a process of its own, which the test ends */
};

typedef struct {
    const char *name;
    void (*run)(void);
    const char *clauses; /* of the guide: "3.1.1 6.5" */
    const char *answers; /* "VipOpenNic SUCCESS INVALID_PARAMETER; VipCloseNic SUCCESS" */
    const char *rows;    /* of the error table: "no_receive sender receiver" */
    VIP_RELIABILITY_LEVEL level; /* of the rows, or of the VIs that the test makes; 0: any */
    enum Needs needs;
} Test;

#define TEST(function, ...) {.name = #function, .run = function, __VA_ARGS__}

/* Says that the row of the error table was seen at this side, at the level of the test that runs. */
void row_seen(const char *row, const char *side);
/* The level of the test that runs. */
VIP_RELIABILITY_LEVEL test_level(void);

/* The directory that the test may write to. */
const char *test_directory(void);

int suite_run(int count, char **words, const Test *tests, unsigned test_count);

#define SUITE_MAIN(tests)                                                                          \
    int main(int count, char **words)                                                              \
    {                                                                                              \
        return suite_run(count, words, tests, sizeof tests / sizeof tests[0]);                     \
    }

#endif
