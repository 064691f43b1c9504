//! The first connection request after a NIC was opened, at a program that has waited for long.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::open_as;
use vipl::{Nic, ReliabilityLevel, Timeout, Vi, VipError};

const TIMEOUT: Timeout = Timeout::After(Duration::from_secs(60));
/// A listener that has answered waits again before this many others were asked.
const LISTENERS: usize = 16;
const OPENINGS: usize = 1000;

/// Another name is another NIC.
fn open(name: &str) -> Nic {
    open_as(|config| config.name = name.to_owned())
}

fn vi_of(nic: &Nic) -> Vi {
    let ptag = nic.create_ptag().expect("a tag");
    let vi = nic.vi(&ptag);
    let vi = vi.reliability(ReliabilityLevel::ReliableDelivery).build();
    vi.expect("a VI")
}

/// Requests a connection once.
fn request(nic: &Nic) -> VipError {
    let vi = vi_of(nic);
    let address = |name: &[u8]| nic.local_address(name).expect("an address");
    let refused = vi.connect(&address(b"client"), &address(b"server"), TIMEOUT);
    refused.map(drop).expect_err("the server rejects all")
}

#[test]
fn first_request_after_opening_reaches_a_waiting_server() {
    let server = open("SERVER");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..LISTENERS {
            scope.spawn(|| {
                let address = server.local_address(b"server").expect("an address");
                while !is_over.load(Ordering::Relaxed) {
                    match server.connect_wait(&address, Timeout::After(Duration::from_millis(100)))
                    {
                        Ok(request) => request.reject().expect("a request that waits"),
                        Err(VipError::Timeout) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        // All of them wait.
        let first = open("FIRST");
        while request(&first) == VipError::NoMatch {}
        let refused: Vec<_> = (0..OPENINGS)
            .map(|_| request(&open("CLIENT")))
            .filter(|error| *error != VipError::Reject)
            .collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(
            refused.is_empty(),
            "{} of {OPENINGS}: {refused:?}",
            refused.len()
        );
    });
}

/// Asks for a connection with a peer, and waits for it.
fn meet(nic: &Nic, name: &[u8]) {
    let vi = vi_of(nic);
    let address = |name: &[u8]| nic.local_address(name).expect("an address");
    let (local, remote) = (address(name), address(b"meeting"));
    vi.connect_peer(&local, &remote, TIMEOUT)
        .expect("a request");
    vi.connect_peer_wait().expect("a connection");
}

#[test]
fn first_peer_request_after_opening_meets_one_that_waits() {
    const MEETINGS: usize = 200;
    let waiting = open("WAITING");
    thread::scope(|scope| {
        scope.spawn(|| (0..MEETINGS).for_each(|_| meet(&waiting, b"waiting")));
        (0..MEETINGS).for_each(|_| meet(&open("ASKING"), b"asking"));
    });
}
