//! Rings and files that nobody punches holes into, and how long files stay mapped.

use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use super::*;
use crate::attach::places::MostAttached;
use crate::config::Quota;
use crate::memory::mapped::ClientFile;
use crate::memory::testkit::{filled_file, map_file, mappings_of, punch};
use crate::nic::MemSettings;
use crate::sys;

#[test]
fn rings_are_sealed_before_a_poller_serves_them() {
    let server = server("rings");
    let (life, rings) = ask_for_rings(&server);
    assert!(punch(&rings, 0, 4096), "nothing depends on them yet");
    let device = server.nics[0].device;
    let serves_any = || {
        let mut held = device.hold();
        let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
        poller.path.clients.serves_any()
    };
    assert!(!serves_any());
    life.send(&Request::RingsMapped, &[]).unwrap();
    assert!(matches!(answer(&life), Reply::Attached { .. }));
    assert!(serves_any());
    assert!(!punch(&rings, 0, 4096), "they are sealed");
    drop(life);
    await_nobody(&server);
    let (life, _rings) = ask_for_rings(&server);
    life.send(&Request::Open, &[]).unwrap();
    match answer(&life) {
        Reply::Refused(why) => assert!(why.contains("mapped the rings"), "{why}"),
        other => panic!("{other:?}"),
    }
    server.stop();
}

/// A program that attaches, registers a file and ends its conversation, but lives on.
fn leave_file_behind(server: &Server) -> (Child, OwnedFd) {
    let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let file = filled_file(4096);
    let (ours, _) = Socket::pair().unwrap();
    let peer = Peer {
        pid: child.id().cast_signed(),
        ..ours.peer().unwrap()
    };
    let id = (peer, server.nics[0].device.number());
    let most = MostAttached::from(&*server.process());
    let process = sys::process(peer.pid).unwrap();
    let files = server.files.attach(id, process, most);
    let offered = ClientFile::of(file.try_clone().unwrap()).unwrap();
    let (charged, _) = files.charge(&offered, &Quota::default(), 0).unwrap();
    charged.map(&offered, || true).unwrap();
    drop(charged);
    (child, file)
}

#[test]
fn files_are_unmapped_when_their_process_ends_and_nothing_else_happens() {
    let server = server("left");
    let (mut child, file) = leave_file_behind(&server);
    assert_eq!(mappings_of(&file), 1, "kept while it lives");
    child.kill().unwrap();
    child.wait().unwrap();
    await_that("it is mapped still", || mappings_of(&file) == 0);
    server.stop();
}

#[test]
fn files_left_behind_make_room_for_applications_of_their_user() {
    let server = server("room");
    server.process().max_applications_per_user = Some(2);
    let mut left = [(); 3].map(|()| leave_file_behind(&server));
    let mapped = |left: &[(Child, OwnedFd); 3]| left.each_ref().map(|(_, file)| mappings_of(file));
    assert_eq!(mapped(&left), [0, 1, 1]);
    let (life, _) = attach(&server);
    assert_eq!(mapped(&left), [0, 0, 1]);
    for (child, _) in &mut left {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    drop(life);
    server.stop();
}

#[test]
fn freed_file_is_unmapped_by_a_message_of_the_process_that_offered_it() {
    let server = server("freed");
    let (life, key) = attach(&server);
    let (call, nic) = open(&server, key);
    let file = filled_file(4096);
    let _at = map_file(&file, 4096, libc::PROT_READ | libc::PROT_WRITE);
    call.send(&Request::CreatePtag { nic }, &[]).unwrap();
    let Reply::Handle(ptag) = answer(&call) else {
        panic!("no tag");
    };
    let register = Request::Register {
        nic,
        address: 0x1000,
        length_bytes: 64,
        settings: MemSettings {
            ptag,
            ..Default::default()
        },
        writable: true,
        shared_at: Some(0),
        is_bounce_buffer: false,
    };
    let fd = file.as_raw_fd();
    call.send(&register, &[fd]).unwrap();
    assert!(matches!(answer(&call), Reply::Region(_)));
    drop((call, life));
    await_nobody(&server);
    assert_eq!(mappings_of(&file), 2, "its own, and the kept one");
    let id = ClientFile::of(file.try_clone().unwrap()).unwrap().id();
    let free = Request::Free {
        version: VERSION,
        device: "VINIC0".to_owned(),
        file: (id.device, id.inode),
    };
    // A thread of the session may have it for a moment still.
    await_that("it is mapped still", || {
        let socket = connect(&server);
        socket.send(&free, &[]).unwrap();
        assert!(matches!(answer(&socket), Reply::Done));
        mappings_of(&file) == 1
    });
    server.stop();
}
