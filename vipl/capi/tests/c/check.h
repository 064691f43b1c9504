/* One line per check and a summary: all that these tests need of a framework. */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>

/* Prints and counts one check; gives `holds` back. Any thread may call it. */
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

/* Prints from now on only what fails: for a second process, whose output is the first one's. */
void check_quietly(void);

/* Prints what was recorded, then "N passed, N failed"; the exit code of the program. */
int check_summary(void);
void check_abort(void) __attribute__((noreturn));

/*
 * Remembers that `call`, made in the test function `function`, answered `answer`, and gives the
 * answer back. Both texts are literals. Any thread may call it.
 */
int record_answer(const char *function, const char *call, int answer);

/* The name of a VIP_RETURN. */
const char *return_name(int code);

#endif
