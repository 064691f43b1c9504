//! Tests of messages, of passed descriptors and of peer credentials.

use std::process::{Command, Stdio};

use super::*;

const MESSAGE: u8 = 7;

/// A socket whose peer is this process.
fn own_pair() -> (Socket, Peer) {
    let (local, _remote) = Socket::pair().unwrap();
    let peer = local.peer().unwrap();
    (local, peer)
}

#[test]
fn peer_process_is_found_by_socket_option_and_by_process_id() {
    let (local, peer) = own_pair();
    for process in [local.peer_process(), process_of(peer)] {
        assert!(!sys::has_exited(&process.unwrap()));
    }
}

#[test]
fn send_with_descriptors_fails_until_the_receiver_takes_them() {
    let name = format!("viaduct-unit-{}-passed.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = Listener::bind(&path).unwrap();
    let sender = Socket::connect(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let is_supported = take_descriptors(&new_socket().unwrap(), false).is_ok();
    let pass = || sender.send(&MESSAGE, &[sender.fd()]);
    assert_eq!(pass().is_err(), is_supported, "before it was accepted");
    let receiver = listener.accept().unwrap();
    assert_eq!(pass().is_err(), is_supported);
    receiver.take_descriptors();
    pass().unwrap();
}

#[test]
fn process_of_refuses_another_user_and_an_ended_process() {
    let (_, peer) = own_pair();
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
    let ended = process_of(of_child).unwrap_or_else(|_| sys::pidfd_open(of_child.pid).unwrap());
    sys::await_one(ended.as_fd(), Duration::from_secs(20));
    assert!(process_of(of_child).is_err(), "dead, and not waited for");
    child.wait().unwrap();
    assert!(process_of(of_child).is_err(), "no process has the ID");
}

/// Both ends of an accepted connection.
fn connected(name: &str) -> (Socket, Socket) {
    let name = format!("viaduct-unit-{}-{name}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = Listener::bind(&path).unwrap();
    let client = Socket::connect(&path).unwrap();
    fs::remove_file(&path).unwrap();
    (client, listener.accept().unwrap())
}

#[test]
fn first_reply_on_a_connection_closed_without_reading_is_the_reason() {
    for is_sent_before in [false, true] {
        let (client, process) = connected("closed");
        let mut sent = Ok(());
        if is_sent_before {
            sent = client.send(&MESSAGE, &[]);
        }
        process.send(&"full", &[]).unwrap();
        drop(process);
        if !is_sent_before {
            sent = client.send(&MESSAGE, &[]);
        }
        let reply = client.first_reply::<String>(sent);
        let Ok(Some((why, _))) = reply else {
            panic!("{reply:?}");
        };
        assert_eq!(why, "full");
    }
}

#[test]
fn first_reply_on_a_connection_closed_without_a_reason_is_the_error() {
    let (client, process) = connected("silent");
    client.send(&MESSAGE, &[]).unwrap();
    drop(process);
    let error = client.first_reply::<String>(Ok(())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}
