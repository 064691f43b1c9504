//! Children that are forked while there are ports, and outlive them.

use std::io::{PipeReader, PipeWriter, Read, Write};

use super::*;
use pmd_port::af_packet::{AfPacketConfig, AfPacketPort};

/// A child of this process that executes nothing; over when this is dropped.
struct Fork {
    pid: libc::pid_t,
    /// It lives until this is closed.
    life: Option<PipeWriter>,
    /// What it says.
    word: PipeReader,
}

impl Fork {
    /// Forks; the child does this, says so, and then nothing until it is over.
    fn new(act: impl FnOnce()) -> Self {
        let (mut end, life) = std::io::pipe().expect("a pipe");
        let (word, mut said) = std::io::pipe().expect("a pipe");
        // SAFETY: the child makes the calls below only, which take no lock that another thread of
        // this process may have; of those that the C library has itself it takes care.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid > 0 {
            let life = Some(life);
            return Self { pid, life, word };
        }
        drop(life);
        act();
        let told = said.write_all(b"!").is_ok();
        let over = end.read(&mut [0]).is_ok();
        // SAFETY: ends the child at once, without what was registered for its end.
        unsafe { libc::_exit(if told && over { 0 } else { 1 }) }
    }

    /// Waits until it has done what it was to do.
    fn wait(&mut self) {
        self.word.read_exact(&mut [0]).expect("the child's word");
    }

    fn end(&mut self) -> libc::c_int {
        self.life = None;
        let mut status = 0;
        // SAFETY: a child of ours that was not waited for; the status is of this frame.
        let ended = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        assert_eq!(ended, self.pid);
        status
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        if self.life.is_some() {
            self.end();
        }
    }
}

/// So that nothing but the child can hold the port's things.
fn config() -> AfXdpConfig {
    AfXdpConfig {
        multicast: vec![ALL_VN2VN],
        promiscuous: Promiscuous::Always,
        ..left_config()
    }
}

#[test]
fn nothing_of_a_port_stays_with_a_child() {
    let wire = wire(1500);
    let left = open(&wire.left, config());
    assert!(has_program(&wire.left) && is_promiscuous(&wire.left));
    let mut child = Fork::new(|| ());
    child.wait();
    drop(left);
    wait_until_plain(&wire.left);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    settle(&mut left, &mut right);
    assert_eq!(child.end(), 0);
}

#[test]
fn nothing_of_the_other_driver_stays_with_a_child() {
    let wire = wire(1500);
    let config = AfPacketConfig {
        promiscuous: Promiscuous::Always,
        ..AfPacketConfig::new("left", LEFT)
    };
    let port = wire
        .left
        .run(|| AfPacketPort::open(config).unwrap_or_else(|error| panic!("{error}")));
    assert!(is_promiscuous(&wire.left));
    let mut child = Fork::new(|| ());
    child.wait();
    drop(port);
    wait_until_plain(&wire.left);
    assert_eq!(child.end(), 0);
}

#[test]
fn a_child_that_drops_its_copy_harms_nobody() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    settle(&mut left, &mut right);
    let bytes = frame(RIGHT, LEFT, &[FCOE, 7], 60);
    let mut left = Some(left);
    let mut child = Fork::new(|| drop(left.take()));
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
