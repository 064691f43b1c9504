/* Asynchronous errors of the NICs of this process. */
#ifndef ERRORS_H
#define ERRORS_H

#include <stdbool.h>

#include <vipl.h>

/* Registers a handler that stores the errors of a NIC. */
VIP_RETURN local_errors_register(VIP_NIC_HANDLE nic);
void local_errors_clear(void);
/* Waits for an error with this code on this VI, and copies it if `found` is not NULL; false after
 * WAIT_MS. */
bool local_error_wait(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found);
unsigned local_errors_count(VIP_VI_HANDLE vi, VIP_ERROR_CODE code);

#endif
