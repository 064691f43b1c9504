//! Memory of a program that is attached to a datapath process, at the limit of file descriptors.
//!
//! One test: it changes the limit of the whole process.

mod common;

use std::fs;
use std::os::fd::AsRawFd;

use common::READ_WRITE;
use common::datapath::{DatapathProcess, with_process};
use vipl::{Nic, Ptag, RdmaRegion};

/// The lowest unused number of a file descriptor.
fn lowest_free_descriptor() -> u64 {
    let file = fs::File::open("/dev/null").unwrap();
    file.as_raw_fd() as u64
}

/// Sets the limit of file descriptors and returns the previous one.
fn limit_descriptors(limit: u64) -> u64 {
    let mut limits = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes a local structure.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits) };
    let before = limits.rlim_cur;
    limits.rlim_cur = limit;
    // SAFETY: reads a local structure.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limits) };
    assert_eq!((got, set), (0, 0));
    before
}

fn region(nic: &Nic, ptag: &Ptag, len_bytes: usize) -> RdmaRegion {
    nic.create_rdma_region(len_bytes, ptag, READ_WRITE).unwrap()
}

/// Returns whether the region is a shared mapping, which the datapath process can map as well.
fn is_shared(region: &RdmaRegion) -> bool {
    let start = format!("{:x}-", region.remote_buffer().address);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .any(|line| line.starts_with(&start) && line.contains(" rw-s ") && line.contains("/memfd:"))
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The process may assign a handle to another thread before the deregistering thread receives the response.
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
fn regions_are_shared_until_file_descriptors_run_out() {
    let test = "regions_are_shared_until_file_descriptors_run_out";
    with_process(test, "", check_regions);
}

fn check_regions(process: &DatapathProcess) {
    let nic = process.attach();
    let ptag = nic.create_ptag().unwrap();

    let first = region(&nic, &ptag, 10_000);
    assert!(is_shared(&first));
    let before = descriptors();
    let buffers = nic.create_buffers(1000, 64, &ptag).unwrap();
    let used = descriptors() - before;
    assert!(used == 1, "one descriptor for each region, not {used}");
    drop(buffers);
    assert_eq!(descriptors(), before);

    register_while_others_deregister(&nic, &ptag);

    // No descriptor is left, then one: enough for the memory, but not to pass it to the process.
    for spare in [0, 1] {
        let limit = limit_descriptors(lowest_free_descriptor() + spare);
        let second = region(&nic, &ptag, 10_000);
        limit_descriptors(limit);
        assert!(!is_shared(&second), "{spare} spare descriptors");
        second.write(9_992, &[7; 8]);
        assert_eq!(second.load_u64(9_992), u64::from_ne_bytes([7; 8]));
    }
    let last = region(&nic, &ptag, 10_000);
    assert!(is_shared(&last), "descriptors are available again");
}
