/* Checks with one output line per failure, and a summary. */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>

/* Counts a check and prints it if it failed; returns `condition`. Thread-safe. */
bool check_at(bool condition, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define CHECK(condition, ...) check_at((condition), __FILE__, __LINE__, __VA_ARGS__)

/* Checks that a call returns `expected`. */
#define CHECK_RETURN(call, expected) check_return((call), (expected), __FILE__, __LINE__, #call)
bool check_return(int returned, int expected, const char *file, int line, const char *call);

/* As CHECK; exits the program if it fails, because later checks depend on it. */
#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!CHECK(condition, __VA_ARGS__))                                                        \
            check_abort();                                                                         \
    } while (0)
#define REQUIRE_RETURN(call, expected)                                                             \
    do {                                                                                           \
        if (!check_return((call), (expected), __FILE__, __LINE__, #call))                          \
            check_abort();                                                                         \
    } while (0)

/* Prints "N passed, N failed"; returns the exit code of the program. */
int check_summary(void);
void check_abort(void) __attribute__((noreturn));

/*
 * Records for the running test that `call` returned `result`; returns `result`. `call` is a string
 * literal. Thread-safe.
 */
int record_return(const char *call, int result);
/* Reports whether `call` has returned `code` in the running test. */
bool was_returned(const char *call, const char *code);
/* Prints and clears the recorded return codes of `test`. */
void records_print(const char *test);

/* Returns the name of a VIP_RETURN. */
const char *return_name(int code);

#endif
