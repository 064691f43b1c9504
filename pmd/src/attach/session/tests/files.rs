//! Tests of files of shared memory that an application registers.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use vi_core::memory::client_mapping::ClientFile;
use vi_core::memory::testkit::{
    locked_mappings_of, mappings_of, memory_file, punch, sealed_file, unlockable_memory,
};
use vi_types::{LockPolicy, PtagHandle};

use super::super::regions::lock_pages;
use super::*;

/// An application with a NIC handle and a protection tag, which registers memory.
struct Registrar {
    application: Arc<Session>,
    nic: u64,
    ptag: u64,
}

impl Registrar {
    fn new(application: Arc<Session>) -> Self {
        let nic = handle(application.execute(Request::Open, Vec::new()));
        let ptag = handle(application.execute(Request::CreatePtag { nic }, Vec::new()));
        Self {
            application,
            nic,
            ptag,
        }
    }

    fn register(&self, fd: &OwnedFd, page: u64, pages: u64) -> Reply {
        let request = Request::Register {
            nic: self.nic,
            address: 0x1000_0000 + page * PAGE_BYTES,
            length_bytes: pages * PAGE_BYTES,
            settings: MemAttributes {
                ptag: Some(PtagHandle::from_raw(self.ptag)),
                ..MemAttributes::default()
            },
            writable: true,
            shared_at: Some(page * PAGE_BYTES),
            is_bounce_buffer: false,
        };
        let answer = self
            .application
            .execute(request, vec![fd.try_clone().unwrap()]);
        answer.unwrap_or_else(Reply::Failed)
    }

    fn registered(&self, fd: &OwnedFd, page: u64, pages: u64) -> u32 {
        match self.register(fd, page, pages) {
            Reply::Region(region) => region,
            other => panic!("not registered: {other:?}"),
        }
    }

    fn refusal(&self, fd: &OwnedFd, page: u64, pages: u64) -> String {
        match self.register(fd, page, pages) {
            Reply::Refused(why) | Reply::MemoryUnreachable(why) => why,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn deregister(&self, page: u64, region: u32) {
        let address = 0x1000_0000 + page * PAGE_BYTES;
        self.application
            .deregister(self.nic, address, region)
            .unwrap();
    }

    fn charged_bytes(&self) -> u64 {
        self.application.status().registered_bytes
    }
}

#[test]
fn memory_that_cannot_be_locked_is_refused_only_if_that_is_required() {
    let memory = unlockable_memory(&sealed_file(2 * PAGE_BYTES));
    for policy in [LockPolicy::Never, LockPolicy::BestEffort] {
        lock_pages(&memory, policy).unwrap();
    }
    let refused = lock_pages(&memory, LockPolicy::Required).unwrap_err();
    assert!(refused.to_string().contains("LimitMEMLOCK"), "{refused}");
}

fn small_quota() -> Quota {
    Quota {
        max_registered_bytes: 8 * PAGE_BYTES,
        ..Quota::default()
    }
}

#[test]
fn file_is_mapped_and_charged_once_for_all_its_regions_and_nic_handles() {
    let process = Process::new("file-once");
    let one = Registrar::new(process.application_with(0, small_quota()));
    let file = filled_file(4 * PAGE_BYTES);
    let regions = [(0, 1), (1, 3), (0, 4)].map(|(at, n)| (at, one.registered(&file, at, n)));
    assert_eq!(
        (mappings_of(&file), one.charged_bytes()),
        (1, 4 * PAGE_BYTES)
    );
    assert_eq!(
        locked_mappings_of(&file),
        1,
        "its pages are not swapped out"
    );
    assert!(!punch(&file, 0, PAGE_BYTES), "the file is sealed");
    let other_handle = Registrar::new(Arc::clone(&one.application));
    let region = other_handle.registered(&file, 0, 4);
    other_handle.deregister(0, region);
    for (page, region) in regions {
        one.deregister(page, region);
    }
    // It is kept: it cannot be mapped again.
    assert_eq!(
        (mappings_of(&file), one.charged_bytes()),
        (1, 4 * PAGE_BYTES)
    );
    one.registered(&file, 2, 2);
    assert!(one.refusal(&file, 2, 3).contains("the range ends at"));
    one.application.end();
    // After another attach the application still has its file.
    drop((one, other_handle));
    assert_eq!(mappings_of(&file), 1);
    let again = Registrar::new(process.application_with(1, small_quota()));
    assert_eq!(again.charged_bytes(), 4 * PAGE_BYTES);
    again.registered(&file, 0, 4);
    again.application.end();
}

/// Its regions together exceed the bytes of the NIC, the file does not exceed the quota.
#[test]
fn file_registered_often_leaves_the_bytes_of_the_nic_to_other_applications() {
    let process = Process::with("file-often", |config| {
        config.limits.max_registered_bytes = 16 * PAGE_BYTES;
    });
    let often = Registrar::new(process.application_with(0, small_quota()));
    let file = filled_file(8 * PAGE_BYTES);
    let regions = [(); 64].map(|()| often.registered(&file, 0, 8));
    let usage = || process.device.shared.regions.usage();
    assert_eq!((usage().regions, usage().bytes), (64, 8 * PAGE_BYTES));
    // Of another process: its files are charged to that.
    let init = process.init(1);
    let of_other = Peer {
        pid: init.peer.pid + 1,
        ..init.peer
    };
    let init = SessionInit {
        quota: small_quota(),
        files: process.files.attach(
            (of_other, process.device.shared.number),
            init.pidfd.try_clone().unwrap(),
            SlotLimits::from(&ProcessConfig::default()),
        ),
        ..init
    };
    let other = Registrar::new(Session::new(process.device, init));
    let file_of_other = filled_file(8 * PAGE_BYTES);
    let region = other.registered(&file_of_other, 0, 8);
    assert_eq!(usage().bytes, 16 * PAGE_BYTES);
    other.deregister(0, region);
    for region in &regions[1..] {
        often.deregister(0, *region);
    }
    assert_eq!(usage().bytes, 8 * PAGE_BYTES, "one region is left");
    often.application.end();
    assert_eq!(usage().bytes, 0, "its last region ended with the session");
    other.application.end();
}

#[test]
fn bounce_buffers_with_rdma_rights_do_not_use_up_the_quota_of_regions() {
    let process = Process::new("bounce-rdma");
    let quota = Quota {
        max_regions: 1,
        ..Quota::default()
    };
    let application = Registrar::new(process.application_with(0, quota));
    let file = filled_file(PAGE_BYTES);
    for _ in 0..2 {
        let request = Request::Register {
            nic: application.nic,
            address: 0x1000_0000,
            length_bytes: PAGE_BYTES,
            settings: MemAttributes {
                ptag: Some(PtagHandle::from_raw(application.ptag)),
                rdma_write: true,
                ..MemAttributes::default()
            },
            writable: true,
            shared_at: Some(0),
            is_bounce_buffer: true,
        };
        let answer = (application.application).execute(request, vec![file.try_clone().unwrap()]);
        assert!(
            matches!(answer, Err(CallError::InvalidParameter)),
            "{answer:?}"
        );
    }
    application.registered(&file, 0, 1);
    application.application.end();
}

#[test]
fn freed_file_is_unmapped_with_its_last_region() {
    let process = Process::new("file-freed");
    let application = Registrar::new(process.application_with(0, small_quota()));
    let file = filled_file(4 * PAGE_BYTES);
    let id = ClientFile::of(file.try_clone().unwrap()).unwrap().id();
    let free = || {
        let peer = application.application.peer;
        process.files.free((peer, process.device.shared.number), id);
    };
    let region = application.registered(&file, 0, 4);
    free();
    assert_eq!(mappings_of(&file), 1, "a region is registered");
    application.deregister(0, region);
    assert_eq!((mappings_of(&file), application.charged_bytes()), (0, 0));
    free();
    let why = application.refusal(&file, 0, 1);
    assert!(why.contains("allocate new memory"), "{why}");
    application.application.end();
}

#[test]
fn file_without_regions_is_unmapped_when_its_bytes_are_needed() {
    let process = Process::new("file-evicted");
    let application = Registrar::new(process.application_with(0, small_quota()));
    let [first, second, third] = [4, 4, 8].map(|pages| filled_file(pages * PAGE_BYTES));
    let region = application.registered(&first, 0, 1);
    application.deregister(0, region);
    let region = application.registered(&second, 0, 1);
    // The second is in use, and the first is too short: neither is unmapped.
    let why = application.refusal(&third, 0, 1);
    assert!(why.contains("max_registered_bytes = 32768"), "{why}");
    assert!(
        why.contains("32768 bytes") && why.contains("16384 are left"),
        "{why}"
    );
    assert_eq!([&first, &second].map(mappings_of), [1, 1]);
    application.deregister(0, region);
    application.registered(&third, 7, 1);
    assert_eq!([&first, &second, &third].map(mappings_of), [0, 0, 1]);
    assert_eq!(application.charged_bytes(), 8 * PAGE_BYTES);
    application.application.end();
}

#[test]
fn unsuitable_file_is_refused_before_it_is_mapped() {
    let process = Process::new("file-refused");
    let application = Registrar::new(process.application_with(0, small_quota()));
    let long = filled_file(9 * PAGE_BYTES);
    let sparse = sealed_file(4 * PAGE_BYTES);
    let punched = filled_file(4 * PAGE_BYTES);
    assert!(punch(&punched, 2 * PAGE_BYTES, PAGE_BYTES));
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    let unsealable = memory_file(libc::MFD_ALLOW_SEALING, PAGE_BYTES, seals);
    let reader = format!("/proc/self/fd/{}", punched.as_raw_fd());
    let reader = OwnedFd::from(File::open(reader).unwrap());
    for (file, remedy) in [
        (&long, "raise that in [process.quota]"),
        (&sparse, "write each page"),
        (&punched, "write each page"),
        (&unsealable, "set no F_SEAL_SEAL"),
        (&reader, "pass one that is"),
    ] {
        let why = application.refusal(file, 0, 1);
        assert!(why.contains(remedy), "{why}");
        assert_eq!((mappings_of(file), application.charged_bytes()), (0, 0));
    }
    // The refused file was not sealed: filled, it is registered.
    let filled = File::from(punched);
    filled.write_all_at(&[1; 4096], 2 * PAGE_BYTES).unwrap();
    application.registered(&filled.into(), 0, 4);
    application.application.end();
}

#[test]
fn file_sealed_by_another_process_is_accessed_by_system_calls_if_permitted() {
    let process = Process::new("file-sealed");
    drop_cap_sys_ptrace().unwrap();
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE;
    let file = memory_file(libc::MFD_ALLOW_SEALING, 2 * PAGE_BYTES, seals);
    let without = Registrar::new(process.application(0));
    let why = without.refusal(&file, 0, 1);
    assert!(
        why.contains("allocate new memory") && why.contains("foreign_memory"),
        "{why}"
    );
    without.application.end();
    let init = SessionInit {
        foreign_memory: true,
        ..process.init(1)
    };
    let with = Registrar::new(Session::new(process.device, init));
    // The address is that of real memory of this process.
    let pages = vec![0u8; 2 * PAGE_BYTES as usize];
    let request = |address| Request::Register {
        nic: with.nic,
        address,
        length_bytes: 64,
        settings: MemAttributes {
            ptag: Some(PtagHandle::from_raw(with.ptag)),
            ..MemAttributes::default()
        },
        writable: true,
        shared_at: Some(0),
        is_bounce_buffer: false,
    };
    let register = request(pages.as_ptr() as u64);
    let registered = with.application.execute(register, vec![file]);
    assert!(matches!(registered, Ok(Reply::Region(_))), "{registered:?}");
    assert!(with.charged_bytes() > 0, "counted as private memory");
    with.application.end();
}
