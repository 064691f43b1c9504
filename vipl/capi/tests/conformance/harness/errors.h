/* The asynchronous errors of this process's NICs. */
#ifndef ERRORS_H
#define ERRORS_H

#include <stdbool.h>

#include <vipl.h>

/* Catches the errors of a NIC from now on. */
VIP_RETURN errors_register(VIP_NIC_HANDLE nic);
void errors_drop(void);
/* Waits for an error of this kind at this VI, and copies it if `found` is not NULL. */
bool error_wait(VIP_VI_HANDLE vi, VIP_ERROR_CODE code, VIP_ERROR_DESCRIPTOR *found);
unsigned errors_counted(VIP_VI_HANDLE vi, VIP_ERROR_CODE code);

#endif
