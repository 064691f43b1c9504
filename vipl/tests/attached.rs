//! Memory of a program that is attached to a datapath process, which is a child of this one.
//!
//! One test: it changes what the whole program may have.

mod common;

use std::fs;
use std::os::fd::AsRawFd;

use common::datapath::{DatapathProcess, has_served};
use vipl::{Nic, Ptag, RdmaAccess, RdmaRegion};

/// The lowest number that no descriptor has.
fn lowest_free_descriptor() -> u64 {
    let file = fs::File::open("/dev/null").unwrap();
    file.as_raw_fd() as u64
}

/// From now on there are fewer than so many descriptors; gives the limit that was.
fn limit_descriptors(limit: u64) -> u64 {
    let mut limits = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes a structure of this frame.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits) };
    let before = limits.rlim_cur;
    limits.rlim_cur = limit;
    // SAFETY: reads a structure of this frame.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limits) };
    assert_eq!((got, set), (0, 0));
    before
}

fn region(nic: &Nic, ptag: &Ptag, len_bytes: usize) -> RdmaRegion {
    let access = RdmaAccess {
        write: true,
        read: true,
    };
    nic.create_rdma_region(len_bytes, ptag, access).unwrap()
}

/// Whether the region is a shared mapping of its own, as the process can have it too.
fn is_shared(region: &RdmaRegion) -> bool {
    let start = format!("{:x}-", region.remote_buffer().address);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .any(|line| line.starts_with(&start) && line.contains(" rw-s ") && line.contains("/memfd:"))
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What one thread gives back the process may give another before the first one has heard of it.
fn register_while_others_deregister(nic: &Nic, ptag: &Ptag) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    drop(region(nic, ptag, 4096));
                }
            });
        }
    });
}

#[test]
fn regions_can_be_mapped_by_the_process_while_descriptors_last() {
    if has_served() {
        return;
    }
    let process = DatapathProcess::start(
        "regions_can_be_mapped_by_the_process_while_descriptors_last",
        "",
    );
    let nic = Nic::attach(&process.socket(), "VINIC0").unwrap();
    let ptag = nic.create_ptag().unwrap();

    let first = region(&nic, &ptag, 10_000);
    assert!(is_shared(&first));
    let before = descriptors();
    let buffers = nic.create_buffers(1000, 64, &ptag).unwrap();
    let used = descriptors() - before;
    assert!(used == 1, "one for each region, not {used}");
    drop(buffers);
    assert_eq!(descriptors(), before);

    register_while_others_deregister(&nic, &ptag);

    // None is left, then one: for the memory, but not for its way to the process.
    for spare in [0, 1] {
        let limit = limit_descriptors(lowest_free_descriptor() + spare);
        let second = region(&nic, &ptag, 10_000);
        limit_descriptors(limit);
        assert!(!is_shared(&second), "{spare} to spare");
        second.write(9_992, &[7; 8]);
        assert_eq!(second.load_u64(9_992), u64::from_ne_bytes([7; 8]));
    }
    assert!(is_shared(&region(&nic, &ptag, 10_000)), "there are again");

    drop((first, ptag, nic));
    process.stop();
}
