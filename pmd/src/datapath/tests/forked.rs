//! A forked child has a copy of every NIC and must not use them: they belong to its parent.

use std::sync::mpsc::channel;

use vi_core::fork::OpenCloseLock;

use super::*;
use crate::config::{Network, ViTcp};

/// Runs `run` in a forked child, which then exits. Returns its result.
fn in_child(run: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs only `run`, which is safe after fork, and exits.
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

/// The child shares the rings, or the epoll set, with its parent.
#[test]
fn forked_child_polls_nothing_of_parent() {
    for (test, is_vi_tcp) in [("forked-fcvi", false), ("forked-tcp", true)] {
        let (near, far) = pair(test, UNRELIABLE_DELIVERY, |config| {
            if is_vi_tcp {
                config.network = Network::ViTcp(ViTcp::default());
                let own = 0x7F30_0000 | std::process::id() & 0xF_FFFF;
                config.host = Some(core::net::Ipv4Addr::from_bits(own).into());
            }
        });
        let cq = nic::create_cq(far.nic, 1).unwrap();
        far.post_recv(0, far.segment(0, 8));
        near.memory.write(PAGE_BYTES, b"12345678");
        near.post_send(0, control::OP_SEND_RECV, &[near.segment(0, 8)]);
        assert_eq!(near.wait_sent(&near), status::DONE | status::OP_SEND);
        let stale = Some(CallError::InvalidParameter);
        let refused = in_child(|| {
            (0..100).all(|_| {
                queue_calls::done(far.vi, QueueKind::Send).err() == stale
                    && queue_calls::done(far.vi, QueueKind::Receive).err() == stale
                    && queue_calls::cq_done(cq).err() == stale
            })
        });
        assert!(refused, "{test}");
        let begun = std::time::Instant::now();
        while let Done::NotDone = queue_calls::done(far.vi, QueueKind::Receive).unwrap() {
            assert!(begun.elapsed() < TIMEOUT, "{test}: the message is lost");
        }
        assert_eq!(far.memory.read(PAGE_BYTES, 8), b"12345678");
        near.close();
        far.close();
    }
}

/// Ports and connections are made and closed under the lock of NIC handles: a thread that forks meanwhile waits for
/// that lock before it takes the locks that those need.
#[test]
fn fork_does_not_block_thread_that_opens_nic() {
    crate::open::prepare_process().unwrap();
    let make = || {
        let make = || std::fs::File::open("/dev/null").map(Into::into);
        pmd_port::fork::Descriptor::make(make).unwrap()
    };
    drop(make());
    let (send_tid, tid) = channel();
    let opening = OpenCloseLock::acquire();
    let forks = std::thread::spawn(move || {
        // SAFETY: takes and touches nothing.
        send_tid.send(unsafe { libc::gettid() }).unwrap();
        in_child(|| true)
    });
    // Wait until it blocks on the lock that this thread holds.
    let at = format!("/proc/self/task/{}/syscall", tid.recv().unwrap());
    let futex = format!("{} ", libc::SYS_futex);
    while !std::fs::read_to_string(&at).unwrap().starts_with(&futex) {
        std::thread::yield_now();
    }
    let (done, is_done) = channel();
    let opens = std::thread::spawn(move || {
        drop(make());
        done.send(()).unwrap();
    });
    let made = is_done.recv_timeout(TIMEOUT);
    drop(opening);
    assert!(forks.join().unwrap());
    made.expect("descriptors can be made");
    opens.join().unwrap();
}
