//! Peer-to-peer connections: matching, outcomes and timeouts of peer requests.

mod common;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Endpoint, SecondProcess, TIMEOUT, WAIT, is_child, open_as, retry_no_match, unique_discriminator,
};
use vipl::{HostAddress, NetAddress, Timeout, ViState, VipError};

/// An endpoint on another N_Port of this process.
fn other_port() -> Endpoint {
    Endpoint::on(open_as(|config| config.spin_us += 1), |vi| vi)
}

fn request(end: &Endpoint, name: &[u8], timeout: Timeout) -> Result<(), VipError> {
    let own = end.nic.local_address(b"unused").unwrap();
    let remote = end.nic.local_address(name).unwrap();
    end.vi.connect_peer(&own, &remote, timeout)
}

#[test]
fn simultaneous_peer_requests_connect_repeatedly() {
    let ends = [Endpoint::new(), other_port()];
    let name = unique_discriminator();
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for end in &ends {
            scope.spawn(|| {
                for round in 0..200_u32 {
                    end.vi.post_recv(end.descriptor(4)).unwrap();
                    start.wait();
                    request(end, &name, WAIT).unwrap();
                    end.vi.connect_peer_wait().unwrap();
                    end.send(end.message(&round.to_ne_bytes())).ok().unwrap();
                    let arrived = end.recv().ok().unwrap();
                    assert_eq!(arrived.first_bytes(), round.to_ne_bytes());
                    start.wait();
                    end.vi.disconnect().unwrap();
                }
            });
        }
    });
}

/// Each request is matched with exactly one other, and none with an earlier one.
#[test]
fn requests_with_one_discriminator_are_paired() {
    let first = Endpoint::new();
    let mut ends: Vec<Endpoint> = (1..20)
        .map(|_| Endpoint::on(first.nic.clone(), |vi| vi))
        .collect();
    ends.push(first);
    for round in 0..50_u32 {
        let name = unique_discriminator();
        for end in &ends {
            let own = end.nic.local_address(&name).unwrap();
            end.vi.post_recv(end.descriptor(4)).unwrap();
            end.vi.connect_peer(&own, &own, WAIT).unwrap();
        }
        for end in &ends {
            end.vi.connect_peer_wait().unwrap();
        }
        for (number, end) in ends.iter().enumerate() {
            let number = round * 100 + number as u32;
            end.send(end.message(&number.to_ne_bytes())).ok().unwrap();
        }
        let mut received: Vec<u32> = ends
            .iter()
            .map(|end| {
                u32::from_ne_bytes(end.recv().ok().unwrap().first_bytes().try_into().unwrap())
            })
            .collect();
        received.sort_unstable();
        assert!(
            received
                .iter()
                .enumerate()
                .all(|(n, number)| *number == round * 100 + n as u32),
            "{received:?}"
        );
        for end in &ends {
            end.vi.disconnect().unwrap();
        }
    }
}

/// The NIC responds to the request, even if its program makes no call.
#[test]
fn peer_request_of_an_inactive_program_is_matched() {
    let (inactive, active) = (Endpoint::new(), other_port());
    let name = unique_discriminator();
    request(&inactive, &name, Timeout::Infinite).unwrap();
    request(&active, &name, WAIT).unwrap();
    active.vi.connect_peer_wait().unwrap();
    inactive.vi.connect_peer_wait().unwrap();
    assert_eq!(inactive.vi.state().unwrap(), ViState::Connected);
}

#[test]
fn unmatched_peer_request_times_out() {
    let end = Endpoint::new();
    let begun = Instant::now();
    let limit = Duration::from_millis(150);
    request(&end, &unique_discriminator(), Timeout::After(limit)).unwrap();
    assert_eq!(end.vi.connect_peer_done(), Err(VipError::NotDone));
    assert_eq!(end.vi.connect_peer_wait(), Err(VipError::Timeout));
    assert!(begun.elapsed() >= limit && begun.elapsed() < TIMEOUT / 2);
    assert_eq!(end.vi.state().unwrap(), ViState::Idle);
    assert_eq!(end.vi.connect_peer_done(), Err(VipError::InvalidState));
}

#[test]
fn invalid_peer_request_arguments_are_refused() {
    let end = Endpoint::new();
    let own = end.nic.local_address(b"own").unwrap();
    let elsewhere = NetAddress {
        host: HostAddress([9; 16]),
        ..own
    };
    let request = |local, remote, timeout| end.vi.connect_peer(local, remote, timeout);
    let invalid = Err(VipError::InvalidParameter);
    assert_eq!(request(&own, &own, Timeout::After(Duration::ZERO)), invalid);
    assert_eq!(request(&elsewhere, &own, WAIT), invalid);
    assert_eq!(request(&own, &elsewhere, WAIT), Ok(()));
    assert_eq!(end.vi.connect_peer_wait(), Err(VipError::NotReachable));
    assert_eq!(end.vi.connect_peer_wait(), Err(VipError::InvalidState));
    end.vi.disconnect().unwrap();
    assert_eq!(request(&own, &own, Timeout::Infinite), Ok(()));
    assert_eq!(request(&own, &own, WAIT), Err(VipError::InvalidState));
    end.vi.disconnect().unwrap();
    assert_eq!(end.vi.connect_peer_done(), Err(VipError::InvalidState));
}

/// Another program of the host is killed while requests are pending: they stay pending.
#[test]
fn killed_program_ends_only_its_own_requests() {
    const READY: &[u8] = b"peer-ready";
    if is_child() {
        let (victim, reporter) = (Endpoint::new(), Endpoint::new());
        request(&victim, b"peer-victim", Timeout::Infinite).unwrap();
        let own = reporter.nic.local_address(b"victim").unwrap();
        let ready = reporter.nic.local_address(READY).unwrap();
        retry_no_match(|| reporter.vi.connect(&own, &ready, WAIT)).unwrap();
        loop {
            thread::park();
        }
    }
    let (survivor, observer) = (Endpoint::new(), Endpoint::new());
    let name = unique_discriminator();
    request(&survivor, &name, Timeout::Infinite).unwrap();
    let mut victim = SecondProcess::start("killed_program_ends_only_its_own_requests");
    let ready = observer.nic.local_address(READY).unwrap();
    let mut incoming = observer.nic.connect_wait(&ready, WAIT).unwrap();
    incoming.accept(&observer.vi).unwrap();
    victim.kill();
    observer.errors.next_of(&observer.vi);
    assert_eq!(survivor.vi.connect_peer_done(), Err(VipError::NotDone));
    let next = other_port();
    request(
        &next,
        b"peer-victim",
        Timeout::After(Duration::from_millis(100)),
    )
    .unwrap();
    assert_eq!(next.vi.connect_peer_wait(), Err(VipError::Timeout));
    request(&next, &name, WAIT).unwrap();
    next.vi.connect_peer_wait().unwrap();
    survivor.vi.connect_peer_wait().unwrap();
}

/// A pending request ends when its NIC is closed, and is no longer matched.
#[test]
fn dropped_vi_withdraws_its_peer_request() {
    let name = unique_discriminator();
    let dropped = Endpoint::new();
    request(&dropped, &name, Timeout::Infinite).unwrap();
    drop(dropped);
    let end = other_port();
    request(&end, &name, Timeout::After(Duration::from_millis(100))).unwrap();
    assert_eq!(end.vi.connect_peer_wait(), Err(VipError::Timeout));
}
