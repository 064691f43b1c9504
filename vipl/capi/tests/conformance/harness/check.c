#include "check.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned passed, failed;

enum { RECORDS = 512 };

static struct {
    const char *call;
    int result;
} records[RECORDS];
static unsigned record_count;

bool check_at(bool condition, const char *file, int line, const char *format, ...)
{
    va_list arguments;

    pthread_mutex_lock(&lock);
    if (condition) {
        passed++;
    } else {
        failed++;
        printf("FAILED  %s:%d: ", file, line);
        va_start(arguments, format);
        vprintf(format, arguments);
        va_end(arguments);
        printf("\n");
        fflush(stdout);
    }
    pthread_mutex_unlock(&lock);
    return condition;
}

bool check_return(int returned, int expected, const char *file, int line, const char *call)
{
    return check_at(returned == expected, file, line, "%s: %s, expected %s", call,
                    return_name(returned), return_name(expected));
}

int record_return(const char *call, int result)
{
    unsigned n = 0;

    pthread_mutex_lock(&lock);
    while (n < record_count &&
           (strcmp(records[n].call, call) != 0 || records[n].result != result))
        n++;
    if (n == record_count && n < RECORDS) {
        records[n].call = call;
        records[n].result = result;
        record_count++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

bool was_returned(const char *call, const char *code)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (unsigned n = 0; n < record_count && !found; n++)
        found = strcmp(records[n].call, call) == 0 &&
                strcmp(return_name(records[n].result), code) == 0;
    pthread_mutex_unlock(&lock);
    return found;
}

void records_print(const char *test)
{
    CHECK(record_count < RECORDS, "the table of records is not full");
    pthread_mutex_lock(&lock);
    for (unsigned n = 0; n < record_count; n++)
        printf("returned %s %s %s\n", test, records[n].call, return_name(records[n].result));
    record_count = 0;
    pthread_mutex_unlock(&lock);
}

int check_summary(void)
{
    printf("%u passed, %u failed\n", passed, failed);
    return failed == 0 && passed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

void check_abort(void)
{
    printf("aborted: a required check failed\n");
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

    return code >= 0 && code < (int)(sizeof names / sizeof names[0]) ? names[code]
                                                                     : "no VIP_RETURN";
}
