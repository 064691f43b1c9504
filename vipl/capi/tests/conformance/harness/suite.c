#define _POSIX_C_SOURCE 200809L

#include "suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_SEEN = 64, TEXT_BYTES = 2048 };

static const Test *current;
static const char *directory;
static struct {
    const char *row, *side;
} seen[ROWS_SEEN];
static unsigned seen_count;

void row_seen(const char *row, const char *side)
{
    for (unsigned n = 0; n < seen_count; n++) {
        if (strcmp(seen[n].row, row) == 0 && strcmp(seen[n].side, side) == 0)
            return;
    }
    REQUIRE(seen_count < ROWS_SEEN, "the table of rows is not full");
    seen[seen_count].row = row;
    seen[seen_count++].side = side;
}

VIP_RELIABILITY_LEVEL test_level(void)
{
    return current->level != 0 ? current->level : VIP_SERVICE_RELIABLE_DELIVERY;
}

const char *test_directory(void)
{
    return directory;
}

static const char *level_name(VIP_RELIABILITY_LEVEL level)
{
    switch (level) {
    case VIP_SERVICE_UNRELIABLE: return "UD";
    case VIP_SERVICE_RELIABLE_DELIVERY: return "RD";
    case VIP_SERVICE_RELIABLE_RECEPTION: return "RR";
    default: return "-";
    }
}

/*
 * Calls `each` for every pair of the lists in `text`: "first word word; first word; ...".
 */
static void for_each_pair(const char *text, const Test *test,
                          void (*each)(const Test *test, const char *first, const char *word))
{
    char copy[TEXT_BYTES], *text_state, *list_state;

    if (text == NULL)
        return;
    REQUIRE(strlen(text) < sizeof copy, "the declarations of a test fit the buffer");
    strcpy(copy, text);
    for (char *list = strtok_r(copy, ";", &text_state); list != NULL;
         list = strtok_r(NULL, ";", &text_state)) {
        const char *first = strtok_r(list, " ", &list_state), *word;
        while ((word = strtok_r(NULL, " ", &list_state)) != NULL)
            each(test, first, word);
    }
}

static void list_return(const Test *test, const char *call, const char *code)
{
    printf("shows %s %s VIP_%s\n", test->name, call, code);
}

static void list_row(const Test *test, const char *row, const char *side)
{
    printf("row %s %s %s %s\n", test->name, row, level_name(test->level), side);
}

static void check_returned(const Test *test, const char *call, const char *code)
{
    char whole[64];

    snprintf(whole, sizeof whole, "VIP_%s", code);
    CHECK(was_returned(call, whole), "%s: %s returns %s", test->name, call, whole);
}

static void check_row(const Test *test, const char *row, const char *side)
{
    bool found = false;

    for (unsigned n = 0; n < seen_count && !found; n++)
        found = strcmp(seen[n].row, row) == 0 && strcmp(seen[n].side, side) == 0;
    CHECK(found, "%s: row %s is observed at the %s", test->name, row, side);
}

static void list(const Test *tests, unsigned count)
{
    for (unsigned n = 0; n < count; n++) {
        printf("test %s %s\n", tests[n].name, tests[n].clauses);
        for_each_pair(tests[n].returns, &tests[n], list_return);
        for_each_pair(tests[n].rows, &tests[n], list_row);
    }
}

static void run(const Test *test)
{
    if (test->needs == TWO_PROCESSES && !has_remote_process()) {
        printf("skipped %s\n", test->name);
        return;
    }
    current = test;
    seen_count = 0;
    printf("run %s\n", test->name);
    fflush(stdout);
    fixture_reset();
    test->run();
    for_each_pair(test->returns, test, check_returned);
    for_each_pair(test->rows, test, check_row);
    records_print(test->name);
}

static bool wanted(const char *name, int argc, char **argv)
{
    for (int n = 2; n < argc; n++) {
        if (strcmp(name, argv[n]) == 0)
            return true;
    }
    return argc <= 2;
}

int suite_run(int argc, char **argv, const Test *tests, unsigned test_count)
{
    if (argc > 1 && strcmp(argv[1], "--remote-process") == 0)
        return remote_process_serve(argc, argv);
    if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        list(tests, test_count);
        return EXIT_SUCCESS;
    }
    REQUIRE(argc > 1, "usage: %s --list | DIRECTORY [TEST...]", argv[0]);
    directory = argv[1];
    fixture_open();
    for (unsigned n = 0; n < test_count; n++) {
        if (wanted(tests[n].name, argc, argv))
            run(&tests[n]);
    }
    fixture_close();
    return check_summary();
}
