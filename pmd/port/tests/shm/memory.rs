//! A full memory file system, and limits on file sizes: errors and counters, never SIGBUS.

use std::io;
use std::path::PathBuf;

use pmd_port::shm::{ShmConfig, ShmError, ShmPort};
use pmd_port::{MbufBatch, Port};

use crate::support::{Process, counter, fresh, open, receive, role, send, try_send};

/// Moves this process to a new mount namespace.
fn unshare_mount_namespace() {
    // SAFETY: takes nothing, cannot fail.
    let (user, group) = (unsafe { libc::getuid() }, unsafe { libc::getgid() });
    let mut flags = libc::CLONE_NEWNS;
    if user != 0 {
        flags |= libc::CLONE_NEWUSER;
    }
    // A user namespace requires a single-threaded process, and the test harness has a
    // second thread; so this is called in a forked child.
    // SAFETY: takes an integer only and concerns this process only.
    let result = unsafe { libc::unshare(flags) };
    assert_eq!(result, 0, "unshare: {}", io::Error::last_os_error());
    if user != 0 {
        std::fs::write("/proc/self/setgroups", "deny").expect("no setgroups");
        std::fs::write("/proc/self/uid_map", format!("0 {user} 1")).expect("a user map");
        std::fs::write("/proc/self/gid_map", format!("0 {group} 1")).expect("a group map");
    }
}

fn mount(kind: Option<&std::ffi::CStr>, at: &std::ffi::CStr, flags: u64, data: &std::ffi::CStr) {
    let kind = kind.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
    // SAFETY: all strings are NUL-terminated and outlive the call.
    let result = unsafe {
        libc::mount(
            c"none".as_ptr(),
            at.as_ptr(),
            kind,
            flags,
            data.as_ptr().cast(),
        )
    };
    assert_eq!(result, 0, "mount: {}", io::Error::last_os_error());
}

/// Runs in a namespace whose /dev/shm has space for the tables and for less than two rings.
fn with_a_small_tmpfs() {
    unshare_mount_namespace();
    mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE, c"");
    mount(Some(c"tmpfs"), c"/dev/shm", 0, c"size=1000k");
    let mut config = ShmConfig::new("small");
    config.directory = PathBuf::from("/dev/shm");
    let (mut a, mut b, mut c) = (open(&config), open(&config), open(&config));
    let (a_mac, b_mac, c_mac) = (
        a.capabilities().mac,
        b.capabilities().mac,
        c.capabilities().mac,
    );
    // The first ring fits; the second does not.
    send(&mut a, b_mac, 0);
    assert_eq!(receive(&mut b), [(a_mac, 0)]);
    for serial in 0..10 {
        assert!(try_send(&mut a, c_mac, serial));
    }
    assert_eq!(counter(&a, "drop_no_ring"), 10);
    assert_eq!(counter(&a, "ring_failures"), 1);
    assert!(receive(&mut c).is_empty());
    a.upkeep();
    assert!(try_send(&mut a, c_mac, 10));
    assert_eq!(counter(&a, "ring_failures"), 2);
    // Every byte of the ring that has its memory can be written.
    for serial in 0..1_000 {
        let mut mbuf = a.alloc(b_mac).expect("room");
        mbuf.buffer_mut().fill(serial as u8);
        mbuf.set_len(a.capabilities().max_frame_bytes);
        let mut batch = MbufBatch::new();
        batch.push(mbuf).expect("room");
        assert_eq!(a.tx_burst(&mut batch), 1);
        assert_eq!(b.rx_burst(&mut batch, 1), 1);
        b.free(batch.pop().expect("a frame"));
    }
    // Space is free again: b leaves, and the memory of its ring is freed with the mapping.
    drop(b);
    a.upkeep();
    assert_eq!(receive(&mut a), []);
    send(&mut a, c_mac, 11);
    assert_eq!(receive(&mut c), [(a_mac, 11)]);
    drop((a, c));
    // Not enough space for the table.
    let filler = vec![1u8; 996 << 10];
    std::fs::write("/dev/shm/filler", filler).expect("nearly all the room");
    match ShmPort::open(config.clone()).expect_err("no room") {
        ShmError::Io { source, .. } => {
            assert_eq!(source.raw_os_error(), Some(libc::ENOSPC), "{source}");
        }
        error => panic!("{error}"),
    }
    std::fs::remove_file("/dev/shm/filler").expect("room again");
    drop(open(&config));
}

/// Runs `body` in a single-threaded forked child, and expects it to return.
fn in_a_fork(body: fn()) {
    // SAFETY: the child runs the body and ends by _exit; the test harness of
    // this process holds no lock that the body needs, since it runs one test only.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        let result = std::panic::catch_unwind(body);
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call; the child is ours.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    assert_eq!(status, 0, "the child failed (status {status:#x})");
}

#[test]
fn full_file_system_is_an_error_or_a_counted_drop() {
    const TEST: &str = "memory::full_file_system_is_an_error_or_a_counted_drop";
    if role().is_some() {
        return in_a_fork(with_a_small_tmpfs);
    }
    Process::start(TEST, "small", &fresh("small")).assert_success();
}

#[test]
fn file_size_limit_is_reported() {
    const TEST: &str = "memory::file_size_limit_is_reported";
    let Some((_, config)) = role() else {
        let config = fresh("limit");
        Process::start(TEST, "limited", &config).assert_success();
        return crate::support::assert_gone(&config);
    };
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limit = libc::rlimit {
        rlim_cur: 1 << 20,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the limit outlives the call.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
    assert_eq!(result, 0);
    match ShmPort::open(config).expect_err("the station's file is too long") {
        ShmError::Io { source, .. } => assert_eq!(source.raw_os_error(), Some(libc::EFBIG)),
        error => panic!("{error}"),
    }
}
