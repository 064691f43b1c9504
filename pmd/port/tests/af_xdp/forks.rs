//! Children that are forked while ports are open, and outlive them.

use std::io::{PipeReader, PipeWriter, Read, Write};

use super::*;
use pmd_port::af_packet::{AfPacketConfig, AfPacketPort};

/// A forked child of this process that executes no program; ended on drop.
struct ForkedChild {
    pid: libc::pid_t,
    /// The child ends when this is closed.
    keep_running: Option<PipeWriter>,
    /// Readable once the child has acted.
    ready: PipeReader,
}

impl ForkedChild {
    /// Forks; the child calls `act`, reports that it has, and waits until it is to end.
    fn new(act: impl FnOnce()) -> Self {
        let (mut end, keep_running) = std::io::pipe().expect("a pipe");
        let (ready, mut acted) = std::io::pipe().expect("a pipe");
        // SAFETY: the child makes only the calls below, which take no lock that another thread of
        // this process may hold; the C library handles its own locks across a fork.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid > 0 {
            return Self {
                pid,
                keep_running: Some(keep_running),
                ready,
            };
        }
        drop(keep_running);
        act();
        let reported = acted.write_all(b"!").is_ok();
        let ended = end.read(&mut [0]).is_ok();
        // SAFETY: ends the child at once, without exit handlers.
        unsafe { libc::_exit(if reported && ended { 0 } else { 1 }) }
    }

    /// Waits until the child has acted.
    fn wait(&mut self) {
        self.ready
            .read_exact(&mut [0])
            .expect("a byte of the child");
    }

    fn end(&mut self) -> libc::c_int {
        self.keep_running = None;
        let mut status = 0;
        // SAFETY: a child that was not waited for; the status is on this stack frame.
        let ended = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        assert_eq!(ended, self.pid);
        status
    }
}

impl Drop for ForkedChild {
    fn drop(&mut self) {
        if self.keep_running.is_some() {
            self.end();
        }
    }
}

/// With memberships and promiscuous mode, which only the child could keep.
fn config() -> AfXdpConfig {
    AfXdpConfig {
        multicast: vec![ALL_VN2VN],
        promiscuous: Promiscuous::Always,
        ..left_config()
    }
}

#[test]
fn forked_child_keeps_nothing_of_a_port() {
    let wire = wire(1500);
    let left = open(&wire.left, config());
    assert!(has_program(&wire.left) && is_promiscuous(&wire.left));
    let mut child = ForkedChild::new(|| ());
    child.wait();
    drop(left);
    wait_until_detached(&wire.left);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
    assert_eq!(child.end(), 0);
}

#[test]
fn forked_child_keeps_nothing_of_an_af_packet_port() {
    let wire = wire(1500);
    let config = AfPacketConfig {
        promiscuous: Promiscuous::Always,
        ..AfPacketConfig::new("left", LEFT)
    };
    let port = wire
        .left
        .run(|| AfPacketPort::open(config).unwrap_or_else(|error| panic!("{error}")));
    assert!(is_promiscuous(&wire.left));
    let mut child = ForkedChild::new(|| ());
    child.wait();
    drop(port);
    wait_until_detached(&wire.left);
    assert_eq!(child.end(), 0);
}

#[test]
fn drop_of_a_port_in_a_forked_child_does_not_affect_the_parent() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
    let bytes = frame(RIGHT, LEFT, &[FCOE, 7], 60);
    let mut left = Some(left);
    let mut child = ForkedChild::new(|| drop(left.take()));
    child.wait();
    let mut left = left.take().expect("ours");
    for _ in 0..100 {
        send(&mut left, &bytes);
        assert_eq!(receive(&mut right), bytes);
        send(&mut right, &frame(LEFT, RIGHT, &[FCOE, 8], 60));
        receive(&mut left);
    }
    assert_eq!(child.end(), 0);
}
