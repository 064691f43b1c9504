/*
 * VIPL calls under each resource limit of a process, lowered in steps, and with each system call
 * refused, one at a time: a call that cannot succeed returns an error, and the program continues
 * and exits normally. The first argument is the limit, or the errno of refused system calls; the
 * second selects a single step. LIMIT_STRIDE=N in the environment tests every Nth step of limits that
 * have many. "none" makes every call once without a limit, and prints how many failed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <viaduct.h>
#include <vipl.h>

enum { PAGE = 4096, PAGES = 8, TIMEOUT_MS = 60000, SERVER_MS = 2000, MANY = 48,
       LIMITED_USER = 65533 };

typedef union {
    VIP_NET_ADDRESS address;
    unsigned char bytes[128];
} Address;

/* Static, so that the limits affect only allocations of the library. */
static unsigned char memory[PAGES * PAGE] __attribute__((aligned(PAGE)));
static VIP_NIC_ATTRIBUTES attributes;
/* Calls that failed because of the limit. */
static unsigned refused;
/* Whether the limit can break a connection. */
static int breaks_connections;

static void fail(const char *what, int value)
{
    dprintf(STDERR_FILENO, "%s: %d\n", what, value);
    _exit(1);
}

/* Returns true for VIP_SUCCESS, false for VIP_ERROR_RESOURCE; exits for any other code. */
static int created_or_refused(VIP_RETURN code, const char *call)
{
    if (code == VIP_ERROR_RESOURCE)
        refused++;
    else if (code != VIP_SUCCESS)
        fail(call, (int)code);
    return code == VIP_SUCCESS;
}
#define CREATED(call) created_or_refused((call), #call)

static void succeed(VIP_RETURN code, const char *call)
{
    if (code != VIP_SUCCESS)
        fail(call, (int)code);
}
#define SUCCEED(call) succeed((call), #call)

static Address address_of(const char *discriminator)
{
    Address address = {{0}};

    address.address.HostAddressLen = attributes.NicAddressLen;
    address.address.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
    memcpy(address.address.HostAddress, attributes.LocalNicAddress, attributes.NicAddressLen);
    memcpy(address.address.HostAddress + attributes.NicAddressLen, discriminator,
           strlen(discriminator));
    return address;
}

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_RETURN code;
    volatile int is_finished;
} Server;

static void *serve(void *argument)
{
    Server *server = argument;
    Address local = address_of("limits"), remote;
    VIP_VI_ATTRIBUTES theirs;
    VIP_CONN_HANDLE connection;

    server->code = VipConnectWait(server->nic, &local.address, SERVER_MS, &remote.address, &theirs,
                                  &connection);
    if (server->code == VIP_SUCCESS)
        server->code = VipConnectAccept(connection, server->vi);
    server->is_finished = 1;
    return NULL;
}

/* Connects two VIs; false if the limit prevents it. */
static int connect_both(VIP_NIC_HANDLE nic, VIP_VI_HANDLE client, VIP_VI_HANDLE vi)
{
    static Server server;
    static unsigned char stack[64 * PAGE] __attribute__((aligned(PAGE)));
    Address local = address_of("client"), remote = address_of("limits");
    VIP_VI_ATTRIBUTES theirs;
    pthread_attr_t options;
    pthread_t thread;
    VIP_RETURN code;

    server.nic = nic;
    server.vi = vi;
    pthread_attr_init(&options);
    pthread_attr_setstack(&options, stack, sizeof stack);
    if (pthread_create(&thread, &options, serve, &server) != 0)
        return 0; /* The limit also affects the program. */
    do
        code = VipConnectRequest(client, &local.address, &remote.address, 100, &theirs);
    while ((code == VIP_NO_MATCH || code == VIP_TIMEOUT) && !server.is_finished);
    pthread_join(thread, NULL);
    if (code == VIP_ERROR_RESOURCE || server.code == VIP_ERROR_RESOURCE) {
        refused++;
        return 0;
    }
    if (code == VIP_REJECT || code == VIP_NOT_REACHABLE || code == VIP_NO_MATCH ||
        code == VIP_TIMEOUT)
        return 0;
    succeed(code, "VipConnectRequest");
    succeed(server.code, "VipConnectAccept");
    return 1;
}

static void describe(VIP_DESCRIPTOR *descriptor, void *data, VIP_MEM_HANDLE handle)
{
    memset(descriptor, 0, sizeof *descriptor);
    descriptor->CS.SegCount = 1;
    descriptor->CS.Length = PAGE;
    descriptor->DS[0].Local.Data.Address = data;
    descriptor->DS[0].Local.Handle = handle;
    descriptor->DS[0].Local.Length = PAGE;
}

/* A refused system call may break the connection: then the descriptors are flushed. */
static void completed_or_flushed(VIP_RETURN code, const char *call)
{
    if (code == VIP_DESCRIPTOR_ERROR && breaks_connections)
        refused++;
    else
        succeed(code, call);
}
#define COMPLETED(call) completed_or_flushed((call), #call)

static void exchange(VIP_VI_HANDLE client, VIP_VI_HANDLE server, VIP_MEM_HANDLE handle)
{
    VIP_DESCRIPTOR *send = (void *)memory, *receive = (void *)(memory + 256), *done;

    describe(receive, memory + PAGE, handle);
    SUCCEED(VipPostRecv(server, receive, handle));
    describe(send, memory + 2 * PAGE, handle);
    SUCCEED(VipPostSend(client, send, handle));
    COMPLETED(VipRecvWait(server, TIMEOUT_MS, &done));
    COMPLETED(VipSendWait(client, TIMEOUT_MS, &done));
}

static void on_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN receive)
{
    (void)context, (void)nic, (void)vi, (void)receive;
}

static void use_nic(VIP_NIC_HANDLE nic)
{
    VIP_VI_HANDLE vis[MANY];
    VIP_MEM_HANDLE handles[MANY];
    VIP_CQ_HANDLE cqs[MANY];
    VIP_PROTECTION_HANDLE ptag;
    unsigned vi_count = 0, region_count = 0, cq_count = 0;

    SUCCEED(VipQueryNic(nic, &attributes));
    const VIP_RETURN named = VipNSInit(nic, NULL);
    /* An unreadable hosts file is VIP_INVALID_PARAMETER. */
    if (created_or_refused(named == VIP_INVALID_PARAMETER ? VIP_ERROR_RESOURCE : named,
                           "VipNSInit"))
        SUCCEED(VipNSShutdown(nic));
    if (!CREATED(VipCreatePtag(nic, &ptag)))
        return;
    VIP_VI_ATTRIBUTES wanted = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY,
                                .MaxTransferSize = PAGE,
                                .Ptag = ptag};
    VIP_MEM_ATTRIBUTES rights = {.Ptag = ptag};
    while (region_count < MANY &&
           CREATED(VipRegisterMem(nic, memory, sizeof memory, &rights, &handles[region_count])))
        region_count++;
    while (vi_count < MANY && CREATED(VipCreateVi(nic, &wanted, NULL, NULL, &vis[vi_count])))
        vi_count++;
    while (cq_count < MANY && CREATED(VipCreateCQ(nic, 1024, &cqs[cq_count])))
        cq_count++;
    if (cq_count > 0) {
        CREATED(VipResizeCQ(cqs[0], 65536));
        CREATED(VipCQNotify(cqs[0], NULL, on_entry));
    }
    if (vi_count >= 2 && region_count > 0 && connect_both(nic, vis[0], vis[1]))
        exchange(vis[0], vis[1], handles[0]);
    void *shared = viaduct_alloc(PAGE);
    refused += shared == NULL;
    viaduct_free(shared);
    for (unsigned n = 0; n < cq_count; n++)
        SUCCEED(VipDestroyCQ(cqs[n]));
    for (unsigned n = 0; n < vi_count; n++) {
        SUCCEED(VipDisconnect(vis[n]));
        SUCCEED(VipDestroyVi(vis[n]));
    }
    for (unsigned n = 0; n < region_count; n++)
        SUCCEED(VipDeregisterMem(nic, memory, handles[n]));
    SUCCEED(VipDestroyPtag(nic, ptag));
}

/* --- the limits ------------------------------------------------------------------------------- */

static void set_limit(int resource, rlim_t value)
{
    struct rlimit limit = {value, value};

    if (setrlimit(resource, &limit) != 0)
        fail("setrlimit", resource);
}

static rlim_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (file == NULL || fscanf(file, "%lu", &pages) != 1)
        fail("/proc/self/statm", 0);
    fclose(file);
    return (rlim_t)pages * PAGE;
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;

    for (int number = 0; number < 1024; number++)
        count += fcntl(number, F_GETFD) >= 0;
    return count;
}

static unsigned mappings(void)
{
    unsigned count = 0;
    FILE *file = fopen("/proc/self/maps", "r");

    for (int c; file != NULL && (c = getc(file)) != EOF;)
        count += c == '\n';
    fclose(file);
    return count;
}

/* Uses up the mappings that a process may have, except `left`. */
static void take_mappings(unsigned left)
{
    unsigned most = 0;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");

    if (file == NULL || fscanf(file, "%u", &most) != 1)
        fail("/proc/sys/vm/max_map_count", 0);
    fclose(file);
    unsigned wanted = most - left - mappings();
    char *pages = mmap(NULL, (size_t)wanted * PAGE, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        fail("mmap", 0);
    for (unsigned n = 1; n < wanted; n += 2)
        if (mprotect(pages + (size_t)n * PAGE, PAGE, PROT_READ) != 0)
            break;
}

/*
 * Drops root, which has no limit of processes. The limit counts all processes of a user: it is one
 * that no other program has.
 */
static void leave_root(void)
{
    if (geteuid() == 0 && (setgid(LIMITED_USER) != 0 || setuid(LIMITED_USER) != 0))
        fail("setuid", LIMITED_USER);
}

static void limit_address_space(unsigned step)
{
    set_limit(RLIMIT_AS, address_space() + (rlim_t)step * 512 * 1024);
}

static void limit_file_size(unsigned step)
{
    set_limit(RLIMIT_FSIZE, (rlim_t)step * 64 * 1024);
}

static void limit_descriptors(unsigned step)
{
    set_limit(RLIMIT_NOFILE, open_descriptors() + step);
}

static void limit_processes(unsigned step)
{
    set_limit(RLIMIT_NPROC, step);
}

static void limit_locked_memory(unsigned step)
{
    /* CAP_IPC_LOCK overrides the limit. */
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (syscall(SYS_capget, &header, data) != 0)
        fail("capget", 0);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, data) != 0)
        fail("capset", 0);
    set_limit(RLIMIT_MEMLOCK, (rlim_t)step * PAGE);
}

static void limit_mappings(unsigned step)
{
    take_mappings(2 * step);
}

/*
 * Not included: system calls without which glibc fails (brk, futex, rseq), those that release
 * resources (close, munmap), those by which programs exit, and two of docs/guides/c.md: membarrier,
 * without which a library that has registered it aborts the program, and shutdown, by which an
 * attached program detaches from its datapath process.
 */
static const int system_calls[] = {
    SYS_accept4, SYS_bind, SYS_clock_nanosleep, SYS_clone3,
    SYS_close_range, SYS_connect, SYS_dup, SYS_dup3, SYS_epoll_create1, SYS_epoll_ctl,
    SYS_epoll_pwait, SYS_eventfd2, SYS_faccessat2, SYS_fadvise64, SYS_fallocate, SYS_fchmod,
    SYS_fchown, SYS_fcntl, SYS_flock, SYS_fstat, SYS_fstatfs, SYS_ftruncate, SYS_getcwd,
    SYS_getdents64, SYS_getegid, SYS_geteuid, SYS_getgid, SYS_getpeername, SYS_getpid,
    SYS_getrandom, SYS_getsockname, SYS_getsockopt, SYS_gettid, SYS_getuid, SYS_ioctl, SYS_kill,
    SYS_listen, SYS_lseek, SYS_madvise, SYS_memfd_create, SYS_mincore, SYS_mkdirat,
    SYS_mlock, SYS_mlock2, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munlock,
    SYS_newfstatat, SYS_openat, SYS_pidfd_open, SYS_ppoll, SYS_prctl, SYS_pread64, SYS_prlimit64,
    SYS_pwrite64, SYS_read, SYS_readlinkat, SYS_readv, SYS_recvfrom, SYS_recvmsg, SYS_renameat2,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_sched_getaffinity, SYS_sched_setaffinity,
    SYS_sched_yield, SYS_sendmsg, SYS_sendto, SYS_set_robust_list, SYS_setsockopt,
    SYS_sigaltstack, SYS_socket, SYS_socketpair, SYS_statfs, SYS_statx, SYS_sysinfo,
    SYS_timerfd_create, SYS_timerfd_settime, SYS_tgkill, SYS_uname, SYS_unlinkat, SYS_write,
    SYS_writev,
#ifdef __x86_64__
    SYS_access, SYS_epoll_wait, SYS_lstat, SYS_mkdir, SYS_open, SYS_poll, SYS_readlink, SYS_rename,
    SYS_stat, SYS_unlink,
#endif
};
enum { SYSTEM_CALLS = sizeof system_calls / sizeof *system_calls };

/* Makes one system call fail with this errno from now on. */
static void refuse(unsigned step, int error)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)system_calls[step], 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};

    breaks_connections = 1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0)
        fail("seccomp", errno);
}

static void refuse_with_eperm(unsigned step)
{
    refuse(step, EPERM);
}

static void refuse_with_enosys(unsigned step)
{
    refuse(step, ENOSYS);
}

/* Limits with fewer steps are always tested in all of them. */
#define MANY_STEPS 20

static const struct {
    const char *name;
    void (*set)(unsigned step);
    unsigned steps;
    /* Not as root, which has no such limit. */
    int as_user;
} limits[] = {
    {"AS", limit_address_space, 60, 0},     {"FSIZE", limit_file_size, 20, 0},
    {"NOFILE", limit_descriptors, 30, 0},   {"NPROC", limit_processes, 8, 1},
    {"MEMLOCK", limit_locked_memory, 12, 0}, {"max_map_count", limit_mappings, 30, 0},
    {"EPERM", refuse_with_eperm, SYSTEM_CALLS, 0}, {"ENOSYS", refuse_with_enosys, SYSTEM_CALLS, 0},
};

/* Opens the NIC under the limit. */
static void use_library(void (*set)(unsigned), unsigned step)
{
    VIP_NIC_HANDLE nic;

    set(step);
    if (!CREATED(VipOpenNic("VINIC0", &nic)))
        return;
    use_nic(nic);
    SUCCEED(VipCloseNic(nic));
}

/* Opens the NIC before the limit is set, so that it affects the other calls. */
static void use_open_nic(void (*set)(unsigned), unsigned step)
{
    VIP_NIC_HANDLE nic;

    SUCCEED(VipOpenNic("VINIC0", &nic));
    set(step);
    use_nic(nic);
    SUCCEED(VipCloseNic(nic));
}

static int run(void (*use)(void (*)(unsigned), unsigned), void (*set)(unsigned), unsigned step)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        use(set, step);
        _exit(refused > 0 ? 2 : 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        fail("fork", child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 1) {
        dprintf(STDERR_FILENO, "step %u, %s: status %#x\n", step,
                use == use_library ? "before opening" : "with an open NIC", (unsigned)status);
        return -1;
    }
    return WEXITSTATUS(status) == 2;
}

static void limit_nothing(unsigned step)
{
    (void)step;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "none") == 0) {
        use_library(limit_nothing, 0);
        printf("none: %u calls failed\n", refused);
        return 0;
    }
    const char *text = getenv("LIMIT_STRIDE");
    const unsigned wanted_stride = text == NULL ? 1 : (unsigned)atoi(text);

    if (wanted_stride == 0)
        fail("LIMIT_STRIDE", 0);
    for (unsigned n = 0; n < sizeof limits / sizeof *limits; n++) {
        unsigned failed = 0, limited = 0, runs = 0, steps = limits[n].steps;
        const unsigned stride = steps < MANY_STEPS ? 1 : wanted_stride;

        if (argc < 2 || strcmp(argv[1], limits[n].name) != 0)
            continue;
        if (limits[n].as_user)
            leave_root();
        for (unsigned step = 0; step < steps; step += stride) {
            if (argc > 2 && step != (unsigned)atoi(argv[2]))
                continue;
            int before = run(use_library, limits[n].set, step);
            int open = run(use_open_nic, limits[n].set, step);

            runs += 2;
            failed += (before < 0) + (open < 0);
            limited += (before > 0) + (open > 0);
        }
        printf("%s: %u of %u runs reached the limit\n", limits[n].name, limited, runs);
        return failed != 0 || limited == 0 || limited == runs;
    }
    return 2;
}
