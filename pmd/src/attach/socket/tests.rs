//! Messages with descriptors, and who may pass them.

use std::process::{Command, Stdio};

use super::*;

/// What is at the other end of a pair: ourselves.
fn ourselves() -> (Socket, Peer) {
    let (near, _far) = Socket::pair().unwrap();
    let peer = near.peer().unwrap();
    (near, peer)
}

#[test]
fn the_process_behind_a_socket_is_found_with_the_kernels_help_and_without() {
    let (near, peer) = ourselves();
    for process in [near.peer_process(), process_of(peer)] {
        assert!(!sys::is_over(&process.unwrap()));
    }
}

#[test]
fn descriptors_are_refused_to_the_sender_until_they_are_wanted() {
    let name = format!("viaduct-unit-{}-passed.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = Listener::bind(&path).unwrap();
    let far = Socket::connect(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let is_known = take_descriptors(&new_socket().unwrap(), false).is_ok();
    let pass = || far.send(&Reply::Done, &[far.fd()]);
    assert_eq!(pass().is_err(), is_known, "before it was accepted");
    let near = listener.accept().unwrap();
    assert_eq!(pass().is_err(), is_known);
    near.take_descriptors();
    pass().unwrap();
}

#[test]
fn a_number_that_is_another_users_or_nobodys_is_not_the_peers() {
    let (_, peer) = ourselves();
    let other = Peer {
        uid: peer.uid + 1,
        ..peer
    };
    assert!(process_of(other).is_err());
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let of_child = Peer {
        pid: child.id().cast_signed(),
        ..peer
    };
    assert!(process_of(of_child).is_ok());
    child.kill().unwrap();
    let ended = process_of(of_child).unwrap_or_else(|_| sys::process(of_child.pid).unwrap());
    sys::await_one(ended.as_raw_fd(), Duration::from_secs(20));
    assert!(process_of(of_child).is_err(), "dead, and not waited for");
    child.wait().unwrap();
    assert!(process_of(of_child).is_err(), "nobody has the number");
}

/// A connection that was accepted, its two ends.
fn connected(name: &str) -> (Socket, Socket) {
    let name = format!("viaduct-unit-{}-{name}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = Listener::bind(&path).unwrap();
    let near = Socket::connect(&path).unwrap();
    fs::remove_file(&path).unwrap();
    (near, listener.accept().unwrap())
}

#[test]
fn first_answer_of_a_connection_closed_before_the_request_is_its_reason() {
    for is_sent_before in [false, true] {
        let (near, far) = connected("closed");
        let mut sent = Ok(());
        if is_sent_before {
            sent = near.send(&Reply::Done, &[]);
        }
        far.send(&Reply::Refused("full".into()), &[]).unwrap();
        drop(far);
        if !is_sent_before {
            sent = near.send(&Reply::Done, &[]);
        }
        let answer = near.first_answer::<Reply>(sent);
        let Ok(Some((Reply::Refused(why), _))) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(why, "full");
    }
}

#[test]
fn first_answer_of_a_connection_closed_without_a_reason_is_the_error() {
    let (near, far) = connected("silent");
    near.send(&Reply::Done, &[]).unwrap();
    drop(far);
    let error = near.first_answer::<Reply>(Ok(())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}
