#define _POSIX_C_SOURCE 200809L

#include "errors.h"

#include <pthread.h>
#include <time.h>

#include "timeout.h"

enum { ERRORS_KEPT = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static VIP_ERROR_DESCRIPTOR errors[ERRORS_KEPT];
static unsigned count;

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    pthread_mutex_lock(&lock);
    if (context == errors && count < ERRORS_KEPT)
        errors[count++] = *error;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

VIP_RETURN local_errors_register(VIP_NIC_HANDLE nic)
{
    return VipErrorCallback(nic, errors, on_error);
}

void local_errors_clear(void)
{
    pthread_mutex_lock(&lock);
    count = 0;
    pthread_mutex_unlock(&lock);
}

/* Finds the first error with this code on this VI; the caller holds the lock. */
static const VIP_ERROR_DESCRIPTOR *find(VIP_VI_HANDLE vi, VIP_ERROR_CODE code)
{
    for (unsigned i = 0; i < count; i++) {
        if (errors[i].ViHandle == vi && errors[i].ErrorCode == code)
            return &errors[i];
    }
    return NULL;
}

bool local_error_wait(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found)
{
    const VIP_ERROR_DESCRIPTOR *error;
    struct timespec deadline;
    int waited = 0;

    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(&lock);
    while ((error = find(vi, code)) == NULL && waited == 0)
        waited = pthread_cond_timedwait(&changed, &lock, &deadline);
    if (error != NULL && found != NULL)
        *found = *error;
    pthread_mutex_unlock(&lock);
    return error != NULL;
}

unsigned local_errors_count(VIP_VI_HANDLE vi, VIP_ERROR_CODE code)
{
    unsigned found = 0;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++)
        found += errors[i].ViHandle == vi && errors[i].ErrorCode == code;
    pthread_mutex_unlock(&lock);
    return found;
}
