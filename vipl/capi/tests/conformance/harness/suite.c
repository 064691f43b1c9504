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
    REQUIRE(seen_count < ROWS_SEEN, "room for the rows of a test");
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
 * Calls `each` for every "first word" of the lists in `text`, which are "first word word; ...".
 */
static void for_each_pair(const char *text, const Test *test,
                          void (*each)(const Test *test, const char *first, const char *word))
{
    char copy[TEXT_BYTES], *rest_of_text, *rest_of_list;

    if (text == NULL)
        return;
    REQUIRE(strlen(text) < sizeof copy, "room for the declarations of a test");
    strcpy(copy, text);
    for (char *list = strtok_r(copy, ";", &rest_of_text); list != NULL;
         list = strtok_r(NULL, ";", &rest_of_text)) {
        const char *first = strtok_r(list, " ", &rest_of_list), *word;
        while ((word = strtok_r(NULL, " ", &rest_of_list)) != NULL)
            each(test, first, word);
    }
}

static void list_answer(const Test *test, const char *call, const char *code)
{
    printf("shows %s %s VIP_%s\n", test->name, call, code);
}

static void list_row(const Test *test, const char *row, const char *side)
{
    printf("row %s %s %s %s\n", test->name, row, level_name(test->level), side);
}

static void check_answer(const Test *test, const char *call, const char *code)
{
    char whole[64];

    snprintf(whole, sizeof whole, "VIP_%s", code);
    CHECK(was_answered(call, whole), "%s: %s answers %s", test->name, call, whole);
}

static void check_row(const Test *test, const char *row, const char *side)
{
    bool found = false;

    for (unsigned n = 0; n < seen_count && !found; n++)
        found = strcmp(seen[n].row, row) == 0 && strcmp(seen[n].side, side) == 0;
    CHECK(found, "%s: the row %s is seen at the %s", test->name, row, side);
}

static void list(const Test *tests, unsigned count)
{
    for (unsigned n = 0; n < count; n++) {
        printf("test %s %s\n", tests[n].name, tests[n].clauses);
        for_each_pair(tests[n].answers, &tests[n], list_answer);
        for_each_pair(tests[n].rows, &tests[n], list_row);
    }
}

static void run(const Test *test)
{
    if (test->needs == TWO_PROCESSES && !far_exists()) {
        printf("elsewhere %s\n", test->name);
        return;
    }
    current = test;
    seen_count = 0;
    printf("run %s\n", test->name);
    fflush(stdout);
    fixture_reset();
    test->run();
    for_each_pair(test->answers, test, check_answer);
    for_each_pair(test->rows, test, check_row);
    records_print(test->name);
}

static bool wanted(const char *name, int count, char **words)
{
    for (int n = 2; n < count; n++) {
        if (strcmp(name, words[n]) == 0)
            return true;
    }
    return count <= 2;
}

int suite_run(int count, char **words, const Test *tests, unsigned test_count)
{
    if (count > 1 && strcmp(words[1], "--far") == 0)
        return far_serve(count, words);
    if (count > 1 && strcmp(words[1], "--list") == 0) {
        list(tests, test_count);
        return EXIT_SUCCESS;
    }
    REQUIRE(count > 1, "usage: %s --list | DIRECTORY [TEST...]", words[0]);
    directory = words[1];
    fixture_open();
    for (unsigned n = 0; n < test_count; n++) {
        if (wanted(tests[n].name, count, words))
            run(&tests[n]);
    }
    fixture_close();
    return check_summary();
}
