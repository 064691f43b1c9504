//! Network namespaces and the virtual wires between them, removed with their last descriptor.
//!
//! A namespace here has no name: it is held by a descriptor, so that nothing
//! remains however a test ends.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;

fn check(result: libc::c_int, what: &str) {
    assert_eq!(result, 0, "{what}: {}", io::Error::last_os_error());
}

/// A network namespace.
pub(crate) struct Namespace(File);

impl Namespace {
    pub(crate) fn new() -> Self {
        let make = || {
            // SAFETY: changes the namespace of this thread only, which ends soon.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) }, "unshare");
            File::open("/proc/thread-self/ns/net").expect("procfs")
        };
        Self(std::thread::scope(|scope| {
            scope.spawn(make).join().expect("a new network namespace")
        }))
    }

    /// Calls `f` on a thread inside the namespace.
    pub(crate) fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                // SAFETY: changes the namespace of this thread only.
                check(
                    unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) },
                    "setns",
                );
                f()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` with these arguments inside the namespace; returns its output.
    pub(crate) fn ip(&self, words: &str) -> String {
        let output = self.run(|| {
            command("ip")
                .args(words.split(' '))
                .output()
                .expect("iproute2 is installed")
        });
        assert!(
            output.status.success(),
            "ip {words}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns a path by which `ip` finds the namespace.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// A command with an environment of its own. DPDK's drivers for Mellanox NICs change that of this process while they are
/// loaded, in another test: a process that is started meanwhile may be given one that is freed.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// Two namespaces with a wire between their interfaces `left` and `right`.
pub(crate) struct Wire {
    pub(crate) left: Namespace,
    pub(crate) right: Namespace,
}

impl Wire {
    /// Creates the wire; both interfaces are up, but may need some time until they carry frames.
    pub(crate) fn new(mtu_bytes: u32) -> Self {
        Self::with_queues(mtu_bytes, 1)
    }

    /// Creates a wire whose interfaces have several queues in each direction.
    pub(crate) fn with_queues(mtu_bytes: u32, queues: u32) -> Self {
        let wire = Self {
            left: Namespace::new(),
            right: Namespace::new(),
        };
        let queues = format!("numtxqueues {queues} numrxqueues {queues}");
        wire.left.ip(&format!(
            "link add left {queues} type veth peer name right {queues}"
        ));
        wire.left
            .ip(&format!("link set right netns {}", wire.right.path()));
        wire.left.ip(&format!("link set left mtu {mtu_bytes} up"));
        wire.right.ip(&format!("link set right mtu {mtu_bytes} up"));
        wire
    }
}

/// Drops all capabilities of this thread except these, by their numbers; without any it has the privileges of an
/// ordinary user.
pub(crate) fn keep_capabilities_of_this_thread(kept: &[u32]) {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let all = kept.iter().fold(0u64, |all, number| all | 1 << number);
    let (low, high) = (all as u32, (all >> 32) as u32);
    // Effective, permitted, inheritable; first the lower halves, then the upper ones.
    let sets = [low, low, 0, high, high, 0];
    // SAFETY: both arrays have the size that this version of the call reads.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    check(result as libc::c_int, "capset");
}
