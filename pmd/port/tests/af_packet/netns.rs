//! Network namespaces and the wires between them, gone with their last holder.
//!
//! A namespace here has no name: it is kept by a descriptor, so that nothing
//! is left behind however a test ends.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;

/// Runs a test body as root; without root, the test once more as the root of
/// a user namespace of its own.
pub(crate) fn as_root(test: &str, body: impl FnOnce()) {
    // SAFETY: takes nothing and always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        return body();
    }
    let program = std::env::current_exe().expect("the path of this program");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--"])
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .output()
        .expect("these tests need root, or `unshare` to become root of a user namespace");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "these tests need root or unprivileged user namespaces:\n{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

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

    /// Calls `f` in a thread inside the namespace.
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

    /// Runs `ip` with these words inside the namespace; returns what it printed.
    pub(crate) fn ip(&self, words: &str) -> String {
        let output = self.run(|| {
            Command::new("ip")
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

    /// A path by which `ip` finds the namespace.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Two namespaces with a wire between their interfaces `left` and `right`.
pub(crate) struct Wire {
    pub(crate) left: Namespace,
    pub(crate) right: Namespace,
}

impl Wire {
    /// Makes the wire; both ends are up, but may need a moment until they carry frames.
    pub(crate) fn new(mtu_bytes: u32) -> Self {
        let wire = Self {
            left: Namespace::new(),
            right: Namespace::new(),
        };
        wire.left.ip("link add left type veth peer name right");
        wire.left
            .ip(&format!("link set right netns {}", wire.right.path()));
        wire.left.ip(&format!("link set left mtu {mtu_bytes} up"));
        wire.right.ip(&format!("link set right mtu {mtu_bytes} up"));
        wire
    }
}

/// A thread's wish to be without any capability, as an ordinary user's program is.
pub(crate) fn drop_capabilities_of_this_thread() {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let no_capabilities = [0u32; 6];
    // SAFETY: both arrays have the size that this version of the call reads.
    let result =
        unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), no_capabilities.as_ptr()) };
    check(result as libc::c_int, "capset");
}
