//! Tests of sealed rings and files, and of how long files stay mapped.

use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use vi_core::memory::client_mapping::ClientFile;
use vi_core::memory::testkit::{filled_file, map_file, mappings_of, punch};
use vi_core::sys;
use vi_types::{MemAttributes, PtagHandle};

use super::*;
use crate::attach::client_slots::SlotLimits;
use crate::config::Quota;

#[test]
fn rings_are_sealed_before_a_poller_serves_them() {
    let server = server("rings");
    let (attach_socket, rings) = request_rings(&server);
    assert!(punch(&rings, 0, 4096), "not in use yet");
    let device = server.nics[0].device;
    let has_any = || {
        let mut held = device.lock();
        Clients::of_backend(held.as_mut().unwrap()).is_some_and(|clients| clients.has_any())
    };
    assert!(!has_any());
    attach_socket.send(&Request::RingsMapped, &[]).unwrap();
    assert!(matches!(reply(&attach_socket), Reply::Attached { .. }));
    assert!(has_any());
    assert!(!punch(&rings, 0, 4096), "they are sealed");
    drop(attach_socket);
    wait_until_unused(&server);
    let (attach_socket, _rings) = request_rings(&server);
    attach_socket.send(&Request::Open, &[]).unwrap();
    match reply(&attach_socket) {
        Reply::Refused(why) => assert!(why.contains("mapped the rings"), "{why}"),
        other => panic!("{other:?}"),
    }
    server.stop();
}

/// A program that attaches, registers a file and detaches, but does not end.
fn leave_file_behind(server: &Server) -> (Child, OwnedFd) {
    let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let file = filled_file(4096);
    let (socket, _) = Socket::pair().unwrap();
    let peer = Peer {
        pid: child.id().cast_signed(),
        ..socket.peer().unwrap()
    };
    let id = (peer, server.nics[0].device.shared.number);
    let limits = SlotLimits::from(&*server.process());
    let process = sys::pidfd_open(peer.pid).unwrap();
    let files = server.files.attach(id, process, limits);
    let client_file = ClientFile::of(file.try_clone().unwrap()).unwrap();
    let (charged, _) = files.charge(&client_file, &Quota::default(), 0).unwrap();
    charged.map(&client_file, || true).unwrap();
    drop(charged);
    (child, file)
}

#[test]
fn files_are_unmapped_when_their_detached_process_ends() {
    let server = server("left");
    let (mut child, file) = leave_file_behind(&server);
    assert_eq!(mappings_of(&file), 1, "kept while it lives");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("it is mapped still", || mappings_of(&file) == 0);
    server.stop();
}

#[test]
fn files_of_detached_applications_are_unmapped_for_new_applications_of_the_user() {
    let server = server("room");
    server.process().max_applications_per_user = Some(2);
    let mut left = [(); 3].map(|()| leave_file_behind(&server));
    let mapped = |left: &[(Child, OwnedFd); 3]| left.each_ref().map(|(_, file)| mappings_of(file));
    assert_eq!(mapped(&left), [0, 1, 1]);
    let (attach_socket, _) = attach(&server);
    assert_eq!(mapped(&left), [0, 0, 1]);
    for (child, _) in &mut left {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    drop(attach_socket);
    server.stop();
}

#[test]
fn freed_file_is_unmapped_by_a_message_of_the_process_that_registered_it() {
    let server = server("freed");
    let (attach_socket, key) = attach(&server);
    let (call, nic) = open(&server, key);
    let file = filled_file(4096);
    let _at = map_file(&file, 4096, libc::PROT_READ | libc::PROT_WRITE);
    call.send(&Request::CreatePtag { nic }, &[]).unwrap();
    let Reply::Handle(ptag) = reply(&call) else {
        panic!("no tag");
    };
    let register = Request::Register {
        nic,
        address: 0x1000,
        length_bytes: 64,
        settings: MemAttributes {
            ptag: Some(PtagHandle::from_raw(ptag)),
            ..Default::default()
        },
        writable: true,
        shared_at: Some(0),
        is_bounce_buffer: false,
    };
    let fd = file.as_raw_fd();
    call.send(&register, &[fd]).unwrap();
    assert!(matches!(reply(&call), Reply::Region(_)));
    drop((call, attach_socket));
    wait_until_unused(&server);
    assert_eq!(mappings_of(&file), 2, "its own, and the kept one");
    let id = ClientFile::of(file.try_clone().unwrap()).unwrap().id();
    let free = Request::Free {
        version: VERSION,
        device: "VINIC0".to_owned(),
        file: (id.device, id.inode),
    };
    // A thread of the session may use it for a moment longer.
    wait_until("it is mapped still", || {
        let socket = connect(&server);
        socket.send(&free, &[]).unwrap();
        assert!(matches!(reply(&socket), Reply::Done));
        mappings_of(&file) == 1
    });
    server.stop();
}
