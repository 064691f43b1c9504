//! Tests of connections whose close blocks.

use std::net::TcpStream;
use std::os::fd::AsRawFd;

use super::*;
use crate::attach::message::Request;
use vi_core::control_socket::testkit::lingering_connection;

/// Longer than anything takes on a busy machine, and less than a socket lingers.
const LONG: Duration = Duration::from_secs(20);
/// An interval within which no test ends.
const NEVER: Duration = Duration::from_secs(3600);

/// A connection with a descriptor whose close blocks until the returned peer reads.
fn blocking() -> (Socket, TcpStream) {
    let (process, application) = Socket::pair().unwrap();
    let (lingering, peer) = lingering_connection();
    let message = Request::RingsMapped;
    application
        .send(&message, &[lingering.as_raw_fd()])
        .unwrap();
    (process.close_unlocked_on_drop().unwrap(), peer)
}

/// Sends a message of no bytes.
fn send_empty(socket: &Socket) {
    assert_eq!(
        socket2::SockRef::from(&socket.as_fd()).send(&[]).unwrap(),
        0
    );
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn connection_without_descriptors_is_closed_at_once() {
    let releases = Arc::new(Releases::new(INTERVAL));
    for messages in [0, 1, 20] {
        let (process, application) = Socket::pair().unwrap();
        for _ in 0..messages {
            application.send(&Request::RingsMapped, &[]).unwrap();
        }
        releases.close(7, process);
        assert!(application.is_closed());
    }
    assert_eq!(releases.state().threads, 0);
}

#[test]
fn descriptors_behind_other_messages_are_found() {
    for empty in [false, true] {
        let (process, application) = Socket::pair().unwrap();
        let (null, _peer) = Socket::pair().unwrap();
        for _ in 0..3 {
            match empty {
                true => send_empty(&application),
                false => application.send(&Request::RingsMapped, &[]).unwrap(),
            }
        }
        process.shut_down_reading();
        assert!(!process.may_hold_descriptors());
        let (process, application) = Socket::pair().unwrap();
        for _ in 0..3 {
            match empty {
                true => send_empty(&application),
                false => application.send(&Request::RingsMapped, &[]).unwrap(),
            }
        }
        application
            .send(&Request::RingsMapped, &[null.fd()])
            .unwrap();
        process.shut_down_reading();
        assert!(process.may_hold_descriptors());
    }
}

#[test]
fn close_that_waits_is_interrupted() {
    let releases = Arc::new(Releases::new(INTERVAL));
    let begun = Instant::now();
    let mut peers = Vec::new();
    for _ in 0..4 * MAX_OF_USER {
        let (socket, peer) = blocking();
        releases.close(7, socket);
        peers.push(peer);
        assert!(releases.connections() <= MAX_OF_USER);
    }
    wait_until("not closed", || releases.connections() == 0);
    assert!(begun.elapsed() < LONG, "the sockets have lingered");
    releases.stop();
    wait_until("threads are left", || releases.state().threads == 0);
}

/// As if the close of these descriptors could not be interrupted.
#[test]
fn close_of_one_user_that_blocks_delays_no_other_user() {
    let releases = Arc::new(Releases::new(NEVER));
    // In later rounds there are idle threads.
    for _ in 0..20 {
        let mut peers = Vec::new();
        for _ in 0..3 {
            let (socket, peer) = blocking();
            releases.close(7, socket);
            peers.push(peer);
        }
        for uid in 8..12 {
            let (socket, peer) = blocking();
            drop(peer);
            releases.close(uid, socket);
        }
        wait_until("delayed by another user", || releases.connections() == 3);
        assert!(releases.state().threads <= MAX_THREADS);
        // The close ends when the peer has ended.
        drop(peers);
        wait_until("not closed", || releases.connections() == 0);
    }
    releases.stop();
}
