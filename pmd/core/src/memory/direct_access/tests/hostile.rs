//! Tables and files of another process that does not keep the rules.

use std::fs::{self, File};
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;

use super::*;

/// Files that another process could name; opening a pipe could block.
#[test]
fn file_that_is_no_sealed_memory_is_not_mapped() {
    let (owner, user) = stations("kinds");
    let memory = SharedMemory::allocate(4096).unwrap();
    let handle = owner.register(&memory, all_rights());
    let exported = owner.exported();
    let region = exported.table_for_tests().region(handle).unwrap();
    let remote = (address(&memory), handle);
    let mut peer = user.open(&owner);
    let mut reaches = |fd: u32, inode: u64| {
        region.fd.store(fd, Ordering::Relaxed);
        region.inode.store(inode, Ordering::Relaxed);
        let reaches = peer
            .access(user.peer_vi(), remote, 8, (0, 8), Access::RemoteRead)
            .is_some();
        peer.take_unused(Instant::now(), &mut Vec::new());
        reaches
    };
    let (fd, inode) = (
        region.fd.load(Ordering::Relaxed),
        region.inode.load(Ordering::Relaxed),
    );
    let (pipe, _writer) = std::io::pipe().unwrap();
    let on_disk = File::open(std::env::current_exe().unwrap()).unwrap();
    let unsealed = memfd_create(c"unsealed", MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(&unsealed, 4096).unwrap();
    let others = [
        pipe.as_raw_fd(),
        on_disk.as_raw_fd(),
        unsealed.as_raw_fd(),
        RawFd::MAX,
    ];
    for other in others {
        let inode = fstat_inode(other).unwrap_or(inode);
        assert!(!reaches(other as u32, inode), "{other}");
    }
    assert!(!reaches(fd, inode + 1), "another file");
    assert!(reaches(fd, inode));
}

/// Returns the inode of a file descriptor, if it is open.
fn fstat_inode(fd: RawFd) -> Option<u64> {
    let file = fs::metadata(format!("/proc/self/fd/{fd}")).ok()?;
    Some(file.ino())
}

proptest! {
    /// Whatever another process writes into its table, an access is inside the mapped files.
    #[test]
    fn hostile_table_leads_to_no_address_outside_of_its_files(
        words in proptest::collection::vec(
            prop_oneof![any::<u64>(), 0..0x10_0000u64, Just(u64::MAX)], 4..5),
        offset in 0..0x4000u32,
        message_bytes in 1..0x1_0000u32,
        relative in prop_oneof![any::<u64>(), 0..0x4000u64],
    ) {
        let (owner, user) = stations("hostile");
        let memory = SharedMemory::allocate(2 * 4096).unwrap();
        let handle = owner.register(&memory, all_rights());
        let mut peer = user.open(&owner);
        let exported = owner.exported();
        let table = exported.table_for_tests();
        let region = table.region(handle).unwrap();
        let grant = u64::from(TAG) << 32 | 0xFF;
        let base = words[0];
        region.entry.publish(handle, grant, (base, base.wrapping_add(words[1])));
        region.offset_bytes.store(words[2], Ordering::Relaxed);
        table.vi(VI).unwrap().grant.store(grant, Ordering::Relaxed);
        table.vi(VI).unwrap().max_transfer_bytes.store(u32::MAX, Ordering::Relaxed);
        let remote = (base.wrapping_add(relative), handle);
        let part = (offset.min(message_bytes - 1), 1);
        let begun = peer.access(user.peer_vi(), remote, message_bytes, part, Access::RemoteRead);
        if let Some(begun) = begun {
            let (start, end) = begun.mapped_range();
            prop_assert!((start..end).contains(&begun.address()));
            byte_at(begun.address());
        }
    }
}
