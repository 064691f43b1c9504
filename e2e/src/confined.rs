//! A seccomp filter for the poll threads of a datapath process: it allows the calls that `docs/poll-threads.md` lists.

use std::path::PathBuf;
use std::process::Command;

use crate::installation::workspace;
use crate::preload;
use crate::process::Ended;
use crate::scratch::Scratch;

/// Line that the preloaded library prints for each poll thread.
const CONFINED: &str = "confine: a poll thread is confined";

/// Numbers of the system calls that the page may list.
const NUMBERS: &[(&str, libc::c_long)] = &[
    ("accept4", libc::SYS_accept4),
    ("bind", libc::SYS_bind),
    ("bpf", libc::SYS_bpf),
    ("brk", libc::SYS_brk),
    ("clock_gettime", libc::SYS_clock_gettime),
    ("close", libc::SYS_close),
    ("connect", libc::SYS_connect),
    ("epoll_ctl", libc::SYS_epoll_ctl),
    ("epoll_wait", libc::SYS_epoll_wait),
    ("exit", libc::SYS_exit),
    ("fallocate", libc::SYS_fallocate),
    ("fcntl", libc::SYS_fcntl),
    ("flock", libc::SYS_flock),
    ("futex", libc::SYS_futex),
    ("getdents64", libc::SYS_getdents64),
    ("geteuid", libc::SYS_geteuid),
    ("getpeername", libc::SYS_getpeername),
    ("getrandom", libc::SYS_getrandom),
    ("getsockname", libc::SYS_getsockname),
    ("getsockopt", libc::SYS_getsockopt),
    ("gettid", libc::SYS_gettid),
    ("ioctl", libc::SYS_ioctl),
    ("listen", libc::SYS_listen),
    ("madvise", libc::SYS_madvise),
    ("membarrier", libc::SYS_membarrier),
    ("mkdir", libc::SYS_mkdir),
    ("mmap", libc::SYS_mmap),
    ("mprotect", libc::SYS_mprotect),
    ("mremap", libc::SYS_mremap),
    ("munmap", libc::SYS_munmap),
    ("newfstatat", libc::SYS_newfstatat),
    ("openat", libc::SYS_openat),
    ("poll", libc::SYS_poll),
    ("ppoll", libc::SYS_ppoll),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("read", libc::SYS_read),
    ("readv", libc::SYS_readv),
    ("recvfrom", libc::SYS_recvfrom),
    ("recvmsg", libc::SYS_recvmsg),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    ("rt_sigreturn", libc::SYS_rt_sigreturn),
    ("sched_getaffinity", libc::SYS_sched_getaffinity),
    ("sched_setaffinity", libc::SYS_sched_setaffinity),
    ("sched_yield", libc::SYS_sched_yield),
    ("sendmsg", libc::SYS_sendmsg),
    ("sendto", libc::SYS_sendto),
    ("setsockopt", libc::SYS_setsockopt),
    ("shutdown", libc::SYS_shutdown),
    ("sigaltstack", libc::SYS_sigaltstack),
    ("socket", libc::SYS_socket),
    ("statfs", libc::SYS_statfs),
    ("statx", libc::SYS_statx),
    ("unlinkat", libc::SYS_unlinkat),
    ("write", libc::SYS_write),
    ("writev", libc::SYS_writev),
];

/// A filter for the poll threads of processes that are started with it.
#[derive(Debug)]
pub struct Confinement {
    library: PathBuf,
    /// Numbers of the allowed calls, separated by commas.
    calls: String,
    // The library's directory.
    _scratch: Scratch,
}

impl Confinement {
    /// Allows the calls of NICs of these kinds: `shm`, `af_packet`, `af_xdp`, `dpdk`, `vi-tcp`.
    ///
    /// # Panics
    /// The page lists no call or one missing in `NUMBERS`, or the library does not build.
    pub fn of(kinds: &[&str]) -> Self {
        let scratch = Scratch::new("confined");
        let library = preload::build(&scratch, "confined/confine.c");
        let page = workspace().join("docs/poll-threads.md");
        let page = std::fs::read_to_string(page).expect("docs/poll-threads.md");
        let calls: Vec<_> = page
            .lines()
            .filter_map(|line| allowed(line, kinds))
            .collect();
        assert!(!calls.is_empty(), "docs/poll-threads.md lists no call");
        Self {
            library,
            calls: calls.join(","),
            _scratch: scratch,
        }
    }

    /// Adds the filter to a command that starts a datapath process.
    #[must_use]
    pub fn confine(&self, mut command: Command) -> Command {
        command.env("LD_PRELOAD", &self.library);
        command.env("CONFINED_CALLS", &self.calls);
        command
    }

    /// Checks that the process succeeded and that its poll threads were confined.
    ///
    /// # Panics
    /// If not.
    pub fn check(&self, ended: &Ended) {
        assert!(ended.status.success(), "{}", ended.text);
        assert!(
            ended.text.contains(CONFINED),
            "not confined: {}",
            ended.text
        );
    }
}

/// Returns the number of the call that a row of the page's table allows for NICs of these kinds.
fn allowed(line: &str, kinds: &[&str]) -> Option<String> {
    let mut cells = line.strip_prefix("| `")?.split(" | ");
    let call = cells.next()?.strip_suffix('`')?;
    let nics = cells.next()?;
    let is_wanted = nics == "all"
        || nics
            .split(", ")
            .any(|nic| kinds.contains(&nic.trim_matches('`')));
    if !is_wanted {
        return None;
    }
    let number = NUMBERS.iter().find(|(name, _)| *name == call);
    let (_, number) =
        number.unwrap_or_else(|| panic!("docs/poll-threads.md: {call}: add its number to NUMBERS"));
    Some(number.to_string())
}
