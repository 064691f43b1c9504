//! Joining: parameters, files of other users and of crashed processes in the directory, and the lock.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt, symlink};

use pmd_port::Port;
use pmd_port::shm::{ShmConfig, ShmError, ShmPort};

use crate::support::{assert_gone, files, fresh, open};

/// Changes one value of a configuration.
type Change = fn(&mut ShmConfig);

/// Joins with an expected error, and returns it.
fn refused(config: &ShmConfig) -> ShmError {
    ShmPort::open(config.clone()).expect_err("joining must be rejected")
}

fn make_directory(config: &ShmConfig) {
    DirBuilder::new()
        .mode(0o700)
        .create(config.segment_directory())
        .expect("a new directory");
}

#[test]
fn bad_parameters_are_rejected_before_files_are_created() {
    for name in ["", "a/b", "a b", "\u{e9}", &"x".repeat(65)] {
        let error = refused(&ShmConfig::new(name));
        assert!(matches!(error, ShmError::BadName { .. }), "{error}");
    }
    let changes: [Change; 7] = [
        |config| config.slots_per_ring = 0,
        |config| config.slots_per_ring = 4,
        |config| config.slots_per_ring = 100,
        |config| config.slots_per_ring = 1 << 17,
        |config| config.max_stations = 0,
        |config| config.max_stations = 256,
        |config| config.mac_prefix = [0x0f, 0xfd, 0x00],
    ];
    for change in changes {
        let mut config = fresh("parameters");
        change(&mut config);
        let error = refused(&config);
        assert!(matches!(error, ShmError::BadParameter { .. }), "{error}");
        assert_gone(&config);
    }
}

/// Verifies that the error includes where else the segment can be.
fn assert_names_remedy(error: &ShmError) {
    let text = error.to_string();
    for part in ["directory in [nic.shm]", "XDG_RUNTIME_DIR"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn directory_accessible_to_others_is_rejected() {
    let config = fresh("mode");
    make_directory(&config);
    let directory = config.segment_directory();
    for mode in [0o755, 0o770, 0o500] {
        fs::set_permissions(&directory, Permissions::from_mode(mode)).expect("chmod");
        let error = refused(&config);
        assert!(
            matches!(error, ShmError::WrongMode { mode: found, .. } if found == mode),
            "{error}"
        );
        assert_names_remedy(&error);
    }
    fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("chmod");
    drop(open(&config));
    assert_gone(&config);
}

#[test]
fn symlink_or_file_instead_of_the_directory_is_rejected() {
    let config = fresh("link");
    let directory = config.segment_directory();
    let elsewhere = fresh("elsewhere");
    make_directory(&elsewhere);
    symlink(elsewhere.segment_directory(), &directory).expect("a link");
    let error = refused(&config);
    assert!(matches!(error, ShmError::NotADirectory { .. }), "{error}");
    assert_names_remedy(&error);
    assert!(files(&elsewhere).is_empty(), "the link was followed");
    fs::remove_file(&directory).expect("remove the link");
    fs::remove_dir(elsewhere.segment_directory()).expect("an empty directory");
    File::create(&directory).expect("a file");
    let error = refused(&config);
    assert!(matches!(error, ShmError::NotADirectory { .. }), "{error}");
    fs::remove_file(&directory).expect("remove the file");
}

#[test]
fn symlinks_inside_the_directory_are_not_followed() {
    let config = fresh("inner-link");
    make_directory(&config);
    let directory = config.segment_directory();
    let target = directory.join("target");
    fs::write(&target, b"precious").expect("a file");
    for name in ["lock", "segment"] {
        symlink(&target, directory.join(name)).expect("a link");
        let error = refused(&config);
        assert!(matches!(error, ShmError::Io { .. }), "{error}");
        fs::remove_file(directory.join(name)).expect("remove the link");
    }
    assert_eq!(fs::read(&target).expect("still there"), b"precious");
    fs::remove_file(&target).expect("remove the target");
    drop(open(&config));
    assert_gone(&config);
}

#[test]
fn missing_parent_directory_is_named_in_the_error() {
    let mut config = fresh("parent");
    config.directory = config.directory.join("there-is-no-such-directory");
    let error = refused(&config);
    assert!(matches!(error, ShmError::Io { .. }));
    assert!(error.to_string().contains("there-is-no-such-directory"));
}

#[test]
fn live_segment_with_other_parameters_is_unchanged() {
    let config = fresh("mismatch");
    let port = open(&config);
    let changes: [(&str, Change); 4] = [
        ("slots_per_ring", |config| config.slots_per_ring = 128),
        ("max_stations", |config| config.max_stations = 8),
        ("mac_prefix", |config| config.mac_prefix = [0x02, 0, 0]),
        ("ring stride", |config| config.hugepages = true),
    ];
    for (name, change) in changes {
        let mut other = config.clone();
        change(&mut other);
        match refused(&other) {
            ShmError::Mismatch { parameter, .. } => assert_eq!(parameter, name),
            error => panic!("{error}"),
        }
    }
    let segment = config.segment_directory().join("segment");
    let file = OpenOptions::new()
        .write(true)
        .open(segment)
        .expect("the segment's file");
    for (offset, name) in [(8, "layout version"), (0, "magic")] {
        file.write_all_at(&[99], offset).expect("a changed byte");
        match refused(&config) {
            ShmError::Mismatch { parameter, .. } => assert_eq!(parameter, name),
            error => panic!("{error}"),
        }
    }
    drop(port);
    assert_gone(&config);
}

#[test]
fn incomplete_segment_is_recreated() {
    let whole_bytes = {
        let config = fresh("whole");
        let _port = open(&config);
        let segment = config.segment_directory().join("segment");
        fs::metadata(segment).expect("a file").len() as usize
    };
    let leftovers: [Vec<u8>; 5] = [
        Vec::new(),
        vec![0; 5],
        vec![0; 100],
        vec![0; whole_bytes],
        vec![0xff; whole_bytes],
    ];
    for leftover in leftovers {
        let config = fresh("half");
        make_directory(&config);
        let directory = config.segment_directory();
        fs::write(directory.join("segment"), leftover).expect("a file");
        fs::write(directory.join("station-0.1"), b"old").expect("a file");
        fs::write(directory.join("station-9.77"), b"old").expect("a file");
        let port = open(&config);
        assert_eq!(files(&config), ["lock", "segment", "station-0.1"]);
        drop(port);
        assert_gone(&config);
    }
}

#[test]
fn unused_segment_with_other_parameters_is_recreated() {
    let config = fresh("leftover");
    let port = open(&config);
    let segment = config.segment_directory().join("segment");
    let image = fs::read(&segment).expect("the segment's file");
    drop(port);
    make_directory(&config);
    // The image has station 0 as live, but no process holds its lock.
    fs::write(&segment, &image).expect("a file");
    fs::write(segment.with_file_name("station-0.1"), b"old").expect("a file");
    let mut other = config.clone();
    other.slots_per_ring = 64;
    drop(open(&other));
    assert_gone(&config);
    make_directory(&config);
    fs::write(&segment, &image).expect("a file");
    fs::write(segment.with_file_name("station-0.1"), b"old").expect("a file");
    let port = open(&config);
    assert_eq!(port.capabilities().mac[4], 2, "the next generation");
    assert_eq!(files(&config), ["lock", "segment", "station-0.2"]);
    drop(port);
    assert_gone(&config);
}

#[test]
fn last_station_keeps_foreign_files() {
    let config = fresh("foreign");
    let port = open(&config);
    let note = config.segment_directory().join("note");
    fs::write(&note, b"not ours").expect("a file");
    drop(port);
    assert_eq!(files(&config), ["note"]);
    fs::remove_file(note).expect("remove the file");
    fs::remove_dir(config.segment_directory()).expect("an empty directory");
}

#[test]
fn full_segment_rejects_joins_until_a_station_leaves() {
    let mut config = fresh("full");
    config.max_stations = 2;
    let first = open(&config);
    let second = open(&config);
    let error = refused(&config);
    assert!(
        matches!(error, ShmError::Full { max_stations: 2 }),
        "{error}"
    );
    drop(first);
    let third = open(&config);
    drop((second, third));
    assert_gone(&config);
}

/// Takes the lock of the directory, as a joining process does.
fn hold_lock(config: &ShmConfig) -> File {
    make_directory(config);
    let file = File::create(config.segment_directory().join("lock")).expect("a lock file");
    // SAFETY: takes integers only; the descriptor is open.
    let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(result, 0);
    file
}

#[test]
fn joining_waits_until_the_lock_is_released() {
    let config = fresh("lock");
    let lock = hold_lock(&config);
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| open(&config));
        drop(lock);
        drop(joining.join().expect("a port"));
    });
    assert_gone(&config);
}

#[test]
fn joining_times_out_if_the_lock_is_held() {
    let config = fresh("stuck");
    let lock = hold_lock(&config);
    let error = refused(&config);
    assert!(matches!(error, ShmError::Busy { .. }), "{error}");
    drop(lock);
    drop(open(&config));
    assert_gone(&config);
}

#[test]
fn concurrent_joins_and_leaves_recreate_the_directory() {
    let config = fresh("churn");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    drop(open(&config));
                }
            });
        }
    });
    assert_gone(&config);
}
