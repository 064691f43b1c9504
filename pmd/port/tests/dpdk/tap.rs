//! Queues of a tap interface that belong to other processes.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::process::Child;

use pmd_port::dpdk::DpdkError;

use super::*;

/// A child process that is killed on drop.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        let mut sleep = command("sleep");
        Self(sleep.arg("600").spawn().expect("coreutils are installed"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Errors mean that it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Attaches a queue to an interface in the namespace of this thread, and creates it if necessary.
fn attach(interface: &str) -> File {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open("/dev/net/tun");
    let file = file.expect("a tap device");
    // SAFETY: all-zero bytes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags =
        (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE) as libc::c_short;
    // SAFETY: the request is valid for the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    file
}

#[test]
fn child_process_keeps_no_queue_of_a_closed_port() {
    let namespace = Namespace::new();
    let port = namespace.run(|| open(config("net_tap20,iface=inherited", LEFT)));
    let _child = Sleeper::start();
    drop(port);
    wait_for("the interface to be gone", || {
        (!namespace.ip("link show").contains("inherited")).then_some(())
    });
}

#[test]
fn interface_with_a_queue_of_another_process_is_refused() {
    let namespace = Namespace::new();
    let open = || namespace.run(|| DpdkPort::open(config("net_tap21,iface=shared", LEFT)));
    let other = namespace.run(|| attach("shared"));
    namespace.ip("link set shared up");
    match open() {
        Err(error @ DpdkError::TapInUse { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains("shared") && text.contains("/proc/PID/fdinfo"),
                "{text}"
            );
        }
        other => panic!("{:?}", other.map(|_| "opened")),
    }
    drop(other);
    open().unwrap_or_else(|error| panic!("{error}"));
}

/// An administrator has created it, and it remains.
#[test]
fn persistent_interface_without_queues_is_opened() {
    let namespace = Namespace::new();
    namespace.ip("tuntap add kept mode tap multi_queue");
    namespace.ip("link set kept up");
    for _ in 0..2 {
        drop(namespace.run(|| open(config("net_tap22,iface=kept", LEFT))));
        assert!(namespace.ip("link show").contains("kept"));
    }
}
