//! A child of this process has a copy of every NIC, and leaves them to its parent.

use std::sync::mpsc::channel;

use super::*;
use crate::config::TransportKind;
use crate::fork::{self, Opening};

/// Runs this in a child that is forked, and ends that. True if what it ran was.
fn in_child(run: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls what is made for that, and ends.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        let good = run();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and an integer of this frame.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// The child has the rings, or what tells of sockets, together with its parent.
#[test]
fn a_child_that_polls_takes_nothing_from_its_parent() {
    for (test, transport) in [
        ("forked-fcvi", TransportKind::FcVi),
        ("forked-tcp", TransportKind::ViTcp),
    ] {
        let (near, far) = pair(test, UNRELIABLE_DELIVERY, |config| {
            config.transport = transport;
            if transport == TransportKind::ViTcp {
                let own = 0x7F30_0000 | std::process::id() & 0xF_FFFF;
                config.host = Some(core::net::Ipv4Addr::from_bits(own).into());
            }
        });
        let cq = nic::create_cq(far.nic, 1).unwrap();
        far.post_recv(0, far.segment(0, 8));
        near.memory.write(PAGE_BYTES, b"12345678");
        near.post_send(0, control::OP_SEND_RECV, &[near.segment(0, 8)]);
        assert_eq!(near.wait_sent(&near), status::DONE | status::OP_SEND);
        let stale = Some(ControlError::InvalidParameter);
        let refused = in_child(|| {
            (0..100).all(|_| {
                work::done(far.vi, Queue::Send).err() == stale
                    && work::done(far.vi, Queue::Receive).err() == stale
                    && work::cq_done(cq).err() == stale
            })
        });
        assert!(refused, "{test}");
        let begun = std::time::Instant::now();
        while let Done::NotDone = work::done(far.vi, Queue::Receive).unwrap() {
            assert!(begun.elapsed() < PATIENCE, "{test}: the message is gone");
        }
        assert_eq!(far.memory.read(PAGE_BYTES, 8), b"12345678");
        near.close();
        far.close();
    }
}

/// Ports and connections are made and ended under the lock of openings: a thread that forks meanwhile waits for that
/// lock before it holds what those need.
#[test]
fn who_opens_a_nic_is_held_up_by_no_fork() {
    fork::watch().unwrap();
    let make = || {
        let make = || std::fs::File::open("/dev/null").map(Into::into);
        pmd_port::fork::Descriptor::make(make).unwrap()
    };
    drop(make());
    let (tell, told) = channel();
    let opening = Opening::begin();
    let forks = std::thread::spawn(move || {
        // SAFETY: gives a number.
        tell.send(unsafe { libc::gettid() }).unwrap();
        in_child(|| true)
    });
    // It waits for the lock that we have.
    let at = format!("/proc/self/task/{}/syscall", told.recv().unwrap());
    let futex = format!("{} ", libc::SYS_futex);
    while !std::fs::read_to_string(&at).unwrap().starts_with(&futex) {
        std::thread::yield_now();
    }
    let (done, is_done) = channel();
    let opens = std::thread::spawn(move || {
        drop(make());
        done.send(()).unwrap();
    });
    let made = is_done.recv_timeout(PATIENCE);
    drop(opening);
    assert!(forks.join().unwrap());
    made.expect("descriptors can be made");
    opens.join().unwrap();
}
