/*
 * A program with an open NIC that leaves a child, which keeps all its descriptors until its input ends.
 */
#define _DEFAULT_SOURCE
#define _XOPEN_SOURCE 600

#include "old.h"

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
