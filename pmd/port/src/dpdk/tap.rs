//! Queues of net_tap's network interfaces.
//!
//! A tap interface has a queue for every descriptor that is attached to it, and the kernel distributes frames over all of
//! them. DPDK opens descriptors without close-on-exec, so a child process keeps a queue that it never reads, also after
//! the port was closed: then the interface remains, and the next port on it would receive only a part of its frames.

use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::config::DpdkError;
use crate::af_packet::open_socket;

const DRIVER: &str = "net_tap";
const DEVICE_FILE: &str = "/dev/net/tun";
/// Timeout and poll interval for queues of child processes that have not executed their program yet.
const TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Returns the interface that a device names; `None` if it is no net_tap, or DPDK chooses the name.
fn interface_of(device: &str) -> Option<&str> {
    let mut keys = device.strip_prefix(DRIVER)?.split(',').skip(1);
    let name = keys.find_map(|key| key.strip_prefix("iface="))?;
    // DPDK or the kernel replaces `%d` by a number that is free.
    (!name.contains('%')).then_some(name)
}

/// Waits until no queue is attached to the interface of a net_tap that is to be added.
///
/// # Errors
/// [`DpdkError::TapInUse`] after the timeout.
pub(super) fn await_no_other_queue(device: &str) -> Result<(), DpdkError> {
    let Some(interface) = interface_of(device) else {
        return Ok(());
    };
    let socket = open_socket()?;
    // An interface without queues, which an administrator has created, has no carrier.
    let has_queue = || {
        let found = socket.interface(interface);
        let link = found.and_then(|found| socket.link_state(found.index));
        link.is_ok_and(|link| link.running)
    };
    let start = Instant::now();
    while has_queue() {
        if start.elapsed() >= TIMEOUT {
            return Err(DpdkError::TapInUse {
                device: device.to_owned(),
                interface: interface.to_owned(),
            });
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
    Ok(())
}

/// Sets close-on-exec on the descriptors of an interface, if the device is a net_tap. The caller holds
/// [`Eal::control`](super::eal::Eal::control).
pub(super) fn close_on_exec(device: &str, interface: &str) -> io::Result<()> {
    if !device.starts_with(DRIVER) {
        return Ok(());
    }
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(fd) = name.to_str().and_then(|name| name.parse::<RawFd>().ok()) else {
            continue;
        };
        if is_queue_of(fd, interface) {
            // SAFETY: a number and flags, no memory. The descriptor is DPDK's, which closes it under the control lock
            // only, and our caller holds that.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Whether a descriptor of this process is a queue of an interface.
fn is_queue_of(fd: RawFd, interface: &str) -> bool {
    let file = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    if !file.is_ok_and(|file| file == Path::new(DEVICE_FILE)) {
        return false;
    }
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
    let names_it = |line: &str| line.strip_prefix("iff:").map(str::trim) == Some(interface);
    info.is_ok_and(|info| info.lines().any(names_it))
}

#[cfg(test)]
mod tests {
    use super::interface_of;

    #[test]
    fn interface_is_that_of_the_key() {
        let cases = [
            ("net_tap0,iface=left", Some("left")),
            ("net_tap12,mac=fixed,iface=a0,remote=eth0", Some("a0")),
            ("net_tap0", None),
            ("net_tap0,iface=tap%d", None),
            ("net_af_packet0,iface=left", None),
        ];
        for (device, interface) in cases {
            assert_eq!(interface_of(device), interface, "{device}");
        }
    }
}
