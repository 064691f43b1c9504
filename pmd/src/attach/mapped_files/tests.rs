//! Tests of charges and mappings by several users and threads.

use std::sync::Barrier;
use std::thread;

use vi_core::memory::pages::PAGE_BYTES;
use vi_core::memory::testkit::filled_file;

use super::*;

const LIMITS: SlotLimits = SlotLimits {
    per_process: 8,
    per_user: 8,
};

/// The application of this user; the process ID differs for each user, too.
fn application(uid: libc::uid_t) -> ApplicationId {
    let pid = uid as libc::pid_t;
    (Peer { pid, uid, gid: 0 }, 0)
}

/// Attaches an application whose process lives as long as the test.
fn attach(files: &Arc<MappedFiles>, uid: libc::uid_t) -> ApplicationFiles {
    let pidfd = sys::pidfd_open(std::process::id() as libc::pid_t).unwrap();
    files.attach(application(uid), pidfd, LIMITS)
}

fn client_file(fd: &OwnedFd) -> ClientFile {
    ClientFile::of(fd.try_clone().unwrap()).unwrap()
}

#[test]
fn mapped_file_of_another_user_is_refused_until_it_is_freed() {
    let files = Arc::new(MappedFiles::new().unwrap());
    let (owner, other) = (attach(&files, 1), attach(&files, 2));
    let fd = filled_file(PAGE_BYTES);
    let (file, quota) = (client_file(&fd), Quota::default());
    let (region, _) = owner.charge(&file, &quota, 0).unwrap();
    region.map(&file, || true).unwrap();
    let refused = other.charge(&file, &quota, 0).map(drop).unwrap_err();
    assert!(matches!(refused, MapError::SealedBefore), "{refused}");
    drop(region);
    let refused = other.charge(&file, &quota, 0).map(drop).unwrap_err();
    assert!(matches!(refused, MapError::SealedBefore), "still mapped");
    files.free(application(1), file.id());
    assert_eq!((owner.bytes(), other.bytes()), (0, 0));
    assert!(other.charge(&file, &quota, 0).is_ok());
}

#[test]
fn file_mapped_by_concurrent_threads_is_mapped_once() {
    const THREADS: usize = 4;
    let files = Arc::new(MappedFiles::new().unwrap());
    let owner = attach(&files, 1);
    for _ in 0..50 {
        let fd = filled_file(PAGE_BYTES);
        let (file, quota) = (client_file(&fd), Quota::default());
        let barrier = Barrier::new(THREADS);
        let map = |of: &ApplicationFiles| {
            let (region, _) = of.charge(&file, &quota, 0).unwrap();
            barrier.wait();
            let memory = region.map(&file, || true).unwrap();
            (memory.range(0, PAGE_BYTES).unwrap().address(), region)
        };
        let map = &map;
        let mapped = thread::scope(|scope| {
            let threads = [&owner; THREADS].map(|of| scope.spawn(move || map(of)));
            threads.map(|thread| thread.join().unwrap())
        });
        let first = mapped[0].0;
        assert!(mapped.iter().all(|(address, _)| *address == first));
        assert_eq!(owner.bytes(), PAGE_BYTES, "it counts once");
        drop(mapped);
        files.free(application(1), file.id());
        assert_eq!(owner.bytes(), 0);
    }
}

#[test]
fn next_thread_after_an_interrupted_mapping_finds_the_file_sealed() {
    let files = Arc::new(MappedFiles::new().unwrap());
    let owner = attach(&files, 1);
    let fd = filled_file(PAGE_BYTES);
    let (file, quota) = (client_file(&fd), Quota::default());
    let [first, second] = [(); 2].map(|()| owner.charge(&file, &quota, 0).unwrap().0);
    let refused = first.map(&file, || false).map(drop).unwrap_err();
    assert!(matches!(refused, MapError::Interrupted), "{refused}");
    let refused = second.map(&file, || true).map(drop).unwrap_err();
    assert!(matches!(refused, MapError::SealedBefore), "{refused}");
}
