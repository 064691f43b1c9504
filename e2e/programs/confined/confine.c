/*
 * Preloaded into a datapath process: restricts its poll threads ("core-N") to the system calls whose numbers are in
 * CONFINED_CALLS, separated by commas. Any other call ends the process, with its number and a backtrace on standard
 * error.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "no audit architecture is known for this machine"
#endif

#define MAX_CALLS 200
#define REFUSED_STATUS 159
#define MAX_CALLERS 32

static void fail(const char *what)
{
    perror(what);
    _exit(REFUSED_STATUS);
}

/*
 * malloc of the C library reads this file before it returns memory to the kernel, e.g. when a thread ends. No program
 * can delay that read, but the filter does not see paths: the emulated result is EACCES.
 */
 static int is_malloc_query(const siginfo_t *info, ucontext_t *context)
{
#if defined(__x86_64__)
    const char *path = (const char *)context->uc_mcontext.gregs[REG_RSI];
    greg_t *result = &context->uc_mcontext.gregs[REG_RAX];
#else
    const char *path = (const char *)context->uc_mcontext.regs[1];
    unsigned long long *result = &context->uc_mcontext.regs[0];
#endif

    if (info->si_syscall != SYS_openat || strcmp(path, "/proc/sys/vm/overcommit_memory") != 0) {
        return 0;
    }
    *result = -EACCES;
    return 1;
}

/* Handles SIGSYS, the signal for calls that the filter does not allow. */
static void on_refused(int signal, siginfo_t *info, void *context)
{
    void *callers[MAX_CALLERS];
    char text[64];
    int length;

    (void)signal;
    if (is_malloc_query(info, context)) {
        return;
    }
    length = snprintf(text, sizeof text, "confine: a poll thread made system call %d\n", info->si_syscall);
    if (write(STDERR_FILENO, text, (size_t)length) < 0) {
        _exit(REFUSED_STATUS + 1);
    }
    backtrace_symbols_fd(callers, backtrace(callers, MAX_CALLERS), STDERR_FILENO);
    _exit(REFUSED_STATUS);
}

static void confine(void)
{
    struct sock_filter filter[MAX_CALLS + 8];
    struct sigaction action = {.sa_sigaction = on_refused, .sa_flags = SA_SIGINFO};
    struct sock_fprog program = {.filter = filter};
    const char *calls = getenv("CONFINED_CALLS");
    sigset_t refused;
    void *callers[1];
    unsigned numbers[MAX_CALLS];
    unsigned count = 0;
    unsigned at = 0;

    if (calls == NULL) {
        fputs("confine: CONFINED_CALLS is not set\n", stderr);
        _exit(REFUSED_STATUS);
    }
    while (*calls != '\0' && count < MAX_CALLS) {
        char *end;

        numbers[count++] = (unsigned)strtoul(calls, &end, 10);
        calls = *end == ',' ? end + 1 : end;
    }
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned number = 0; number < count; number++) {
        unsigned char to_allow = (unsigned char)(count - number);

        filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[number], to_allow, 0);
    }
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    program.len = (unsigned short)at;

    /* Poll threads block all signals; a blocked SIGSYS would end the process without a message. */
    sigemptyset(&refused);
    sigaddset(&refused, SIGSYS);
    if (sigaction(SIGSYS, &action, NULL) != 0 || pthread_sigmask(SIG_UNBLOCK, &refused, NULL) != 0) {
        fail("confine: SIGSYS");
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        fail("confine: no_new_privs");
    }
    /* The first call loads a library, which the filter would not allow. */
    (void)backtrace(callers, 1);
    /* One line per poll thread, which tests check. */
    if (fputs("confine: a poll thread is confined\n", stderr) < 0) {
        fail("confine: standard error");
    }
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) {
        fail("confine: seccomp");
    }
}

/* Each thread of the process calls this when it starts. */
int pthread_setname_np(pthread_t thread, const char *name)
{
    int (*next)(pthread_t, const char *) = (int (*)(pthread_t, const char *))dlsym(RTLD_NEXT, "pthread_setname_np");
    int result;

    if (next == NULL) {
        errno = ENOSYS;
        fail("confine: pthread_setname_np");
    }
    result = next(thread, name);
    if (strncmp(name, "core-", 5) == 0) {
        confine();
    }
    return result;
}
