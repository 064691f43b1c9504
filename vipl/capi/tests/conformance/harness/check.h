/* One line per check and a summary: all that these tests need of a framework. */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>

/* Prints a check that failed, counts every one; gives `holds` back. Any thread may call it. */
bool check_at(bool holds, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define CHECK(holds, ...) check_at((holds), __FILE__, __LINE__, __VA_ARGS__)

/* Checks that a call answers `expected`. */
#define CHECK_RETURN(call, expected) check_return((call), (expected), __FILE__, __LINE__, #call)
bool check_return(int answered, int expected, const char *file, int line, const char *call);

/* Ends the program when what everything else stands on is missing. */
#define REQUIRE(holds, ...)                                                                        \
    do {                                                                                           \
        if (!CHECK(holds, __VA_ARGS__))                                                            \
            check_abort();                                                                         \
    } while (0)
#define REQUIRE_RETURN(call, expected)                                                             \
    do {                                                                                           \
        if (!check_return((call), (expected), __FILE__, __LINE__, #call))                          \
            check_abort();                                                                         \
    } while (0)

/* Prints "N passed, N failed"; the exit code of the program. */
int check_summary(void);
void check_abort(void) __attribute__((noreturn));

/*
 * Remembers for the test that runs that `call` answered `answer`, and gives the answer back. The text
 * is a literal. Any thread may call it.
 */
int record_answer(const char *call, int answer);
/* Has `call` answered `code` since the records were last forgotten? */
bool was_answered(const char *call, const char *code);
/* Prints what was recorded as answers of `test`, and forgets it. */
void records_print(const char *test);

/* The name of a VIP_RETURN. */
const char *return_name(int code);

#endif
