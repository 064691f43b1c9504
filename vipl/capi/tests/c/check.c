#include "check.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned passed, failed;
static bool quiet;

enum { RECORDS = 2048 };

static struct {
    const char *function, *call;
    int answer;
} records[RECORDS];
static unsigned record_count;

bool check_at(bool holds, const char *file, int line, const char *format, ...)
{
    va_list arguments;

    pthread_mutex_lock(&lock);
    passed += holds;
    failed += !holds;
    if (!holds || !quiet) {
        if (holds)
            printf("ok      ");
        else
            printf("FAILED  %s:%d: ", file, line);
        va_start(arguments, format);
        vprintf(format, arguments);
        va_end(arguments);
        printf("\n");
        fflush(stdout);
    }
    pthread_mutex_unlock(&lock);
    return holds;
}

bool check_return(int answered, int expected, const char *file, int line, const char *call)
{
    return check_at(answered == expected, file, line, "%s: %s, expected %s", call,
                    return_name(answered), return_name(expected));
}

int record_answer(const char *function, const char *call, int answer)
{
    unsigned n = 0;

    pthread_mutex_lock(&lock);
    while (n < record_count && (records[n].function != function || records[n].call != call ||
                                records[n].answer != answer))
        n++;
    if (n == record_count && n < RECORDS) {
        records[n].function = function;
        records[n].call = call;
        records[n].answer = answer;
        record_count++;
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

void check_quietly(void)
{
    quiet = true;
}

int check_summary(void)
{
    if (quiet)
        return failed == 0 && passed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    if (record_count == RECORDS)
        CHECK(false, "there is room for all records");
    for (unsigned n = 0; n < record_count; n++)
        printf("answer  %s %s %s\n", records[n].function, records[n].call,
               return_name(records[n].answer));
    printf("%u passed, %u failed\n", passed, failed);
    return failed == 0 && passed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

void check_abort(void)
{
    printf("cannot go on\n");
    check_summary();
    exit(EXIT_FAILURE);
}

const char *return_name(int code)
{
    static const char *const names[] = {
        "VIP_SUCCESS", "VIP_NOT_DONE", "VIP_INVALID_PARAMETER", "VIP_ERROR_RESOURCE",
        "VIP_TIMEOUT", "VIP_REJECT", "VIP_INVALID_RELIABILITY_LEVEL", "VIP_INVALID_MTU",
        "VIP_INVALID_QOS", "VIP_INVALID_PTAG", "VIP_INVALID_RDMAREAD", "VIP_DESCRIPTOR_ERROR",
        "VIP_INVALID_STATE", "VIP_ERROR_NAMESERVICE", "VIP_NO_MATCH", "VIP_NOT_REACHABLE",
    };

    return code >= 0 && code < (int)(sizeof names / sizeof names[0]) ? names[code] : "no VIP_RETURN";
}
