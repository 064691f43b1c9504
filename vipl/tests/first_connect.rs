//! The first connection request of a newly opened NIC to a program that has been waiting for a long time.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use common::open_as;
use vipl::{Nic, ReliabilityLevel, Timeout, Vi, VipError};

const TIMEOUT: Timeout = Timeout::After(Duration::from_secs(60));
const LISTENERS: usize = 16;
const OPENS: usize = 1000;

/// Opens a NIC; a different name is a different NIC.
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
fn first_request_after_open_reaches_a_waiting_server() {
    let server = open("SERVER");
    let is_over = AtomicBool::new(false);
    let waiting = AtomicUsize::new(0);
    let active = AtomicUsize::new(0);
    let listen = || {
        let address = server.local_address(b"server").expect("an address");
        let mut is_active = false;
        while !is_over.load(Ordering::Relaxed) {
            waiting.fetch_add(1, Ordering::Relaxed);
            let request = server.connect_wait(&address, Timeout::Infinite);
            waiting.fetch_sub(1, Ordering::Relaxed);
            request.expect("a request").reject().expect("it waits");
            if !std::mem::replace(&mut is_active, true) {
                active.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        let listeners: Vec<_> = (0..LISTENERS).map(|_| scope.spawn(listen)).collect();
        // The longest waiting call receives a request. Once each has received one, all but the last ones wait.
        let all_wait = || {
            while waiting.load(Ordering::Relaxed) < LISTENERS {
                thread::yield_now();
            }
        };
        let first = open("FIRST");
        while active.load(Ordering::Relaxed) < LISTENERS {
            request(&first);
        }
        let refused: Vec<_> = (0..OPENS)
            .map(|_| {
                all_wait();
                request(&open("CLIENT"))
            })
            .filter(|error| *error != VipError::Reject)
            .collect();
        is_over.store(true, Ordering::Relaxed);
        // Ends the remaining waits.
        while !listeners.iter().all(ScopedJoinHandle::is_finished) {
            request(&first);
        }
        assert!(
            refused.is_empty(),
            "{} of {OPENS}: {refused:?}",
            refused.len()
        );
    });
}

/// Makes a peer request and waits for the connection.
fn connect_peer(nic: &Nic, name: &[u8]) {
    let vi = vi_of(nic);
    let address = |name: &[u8]| nic.local_address(name).expect("an address");
    let (local, remote) = (address(name), address(b"peers"));
    vi.connect_peer(&local, &remote, TIMEOUT)
        .expect("a request");
    vi.connect_peer_wait().expect("a connection");
}

#[test]
fn first_peer_request_after_open_matches_a_pending_one() {
    const ROUNDS: usize = 200;
    let waiting = open("WAITING");
    thread::scope(|scope| {
        scope.spawn(|| (0..ROUNDS).for_each(|_| connect_peer(&waiting, b"waiting")));
        (0..ROUNDS).for_each(|_| connect_peer(&open("REQUESTING"), b"requesting"));
    });
}
