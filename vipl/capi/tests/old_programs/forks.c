/*
 * A program with an open NIC and a forked child, which keeps all file descriptors open until the
 * end of its standard input.
 */
#define _DEFAULT_SOURCE
#define _XOPEN_SOURCE 600

#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
    Nic nic;
    pid_t child;
    char byte;

    nic_open(&nic);
    child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        while (read(STDIN_FILENO, &byte, 1) > 0)
            continue;
        _exit(EXIT_SUCCESS);
    }
    puts("forked");
    fflush(stdout);
    for (;;)
        pause();
}
