//! Connections between peers: both ask, and both learn what came of it.

mod common;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use common::{
    End, PATIENCE, SecondProcess, WAIT, is_child, open_as, persist, unique_discriminator,
};
use vipl::{HostAddress, NetAddress, Timeout, ViState, VipError};

/// An end on another N_Port of this process.
fn other_port() -> End {
    End::on(open_as(|config| config.spin_us += 1), |vi| vi)
}

fn ask(end: &End, name: &[u8], timeout: Timeout) -> Result<(), VipError> {
    let own = end.nic.local_address(b"a name, no more").unwrap();
    let meeting = end.nic.local_address(name).unwrap();
    end.vi.connect_peer(&own, &meeting, timeout)
}

#[test]
fn peers_that_ask_at_once_connect_again_and_again() {
    let ends = [End::new(), other_port()];
    let name = unique_discriminator();
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for end in &ends {
            scope.spawn(|| {
                for round in 0..200_u32 {
                    end.vi.post_recv(end.room(4)).unwrap();
                    start.wait();
                    ask(end, &name, WAIT).unwrap();
                    end.vi.connect_peer_wait().unwrap();
                    end.send(end.message(&round.to_ne_bytes())).ok().unwrap();
                    let told = end.recv().ok().unwrap();
                    assert_eq!(told.first_bytes(), round.to_ne_bytes());
                    start.wait();
                    end.vi.disconnect().unwrap();
                }
            });
        }
    });
}

/// Each is connected to one other, and nobody to a request that was given up.
#[test]
fn requests_with_one_name_come_in_pairs() {
    let first = End::new();
    let mut crowd: Vec<End> = (1..20)
        .map(|_| End::on(first.nic.clone(), |vi| vi))
        .collect();
    crowd.push(first);
    for round in 0..50_u32 {
        let name = unique_discriminator();
        for end in &crowd {
            let own = end.nic.local_address(&name).unwrap();
            end.vi.post_recv(end.room(4)).unwrap();
            end.vi.connect_peer(&own, &own, WAIT).unwrap();
        }
        for end in &crowd {
            end.vi.connect_peer_wait().unwrap();
        }
        for (number, end) in crowd.iter().enumerate() {
            let number = round * 100 + number as u32;
            end.send(end.message(&number.to_ne_bytes())).ok().unwrap();
        }
        let mut told: Vec<u32> = crowd
            .iter()
            .map(|end| {
                u32::from_ne_bytes(end.recv().ok().unwrap().first_bytes().try_into().unwrap())
            })
            .collect();
        told.sort_unstable();
        assert!(
            told.iter()
                .enumerate()
                .all(|(n, told)| *told == round * 100 + n as u32),
            "{told:?}"
        );
        for end in &crowd {
            end.vi.disconnect().unwrap();
        }
    }
}

/// The request is answered by the NIC, whether its program calls or not.
#[test]
fn a_program_that_makes_no_call_is_found() {
    let (silent, asking) = (End::new(), other_port());
    let name = unique_discriminator();
    ask(&silent, &name, Timeout::Infinite).unwrap();
    ask(&asking, &name, WAIT).unwrap();
    asking.vi.connect_peer_wait().unwrap();
    silent.vi.connect_peer_wait().unwrap();
    assert_eq!(silent.vi.state().unwrap(), ViState::Connected);
}

#[test]
fn a_request_without_a_match_times_out_and_not_before() {
    let end = End::new();
    let begun = Instant::now();
    let limit = Duration::from_millis(150);
    ask(&end, &unique_discriminator(), Timeout::After(limit)).unwrap();
    assert_eq!(end.vi.connect_peer_done(), Err(VipError::NotDone));
    assert_eq!(end.vi.connect_peer_wait(), Err(VipError::Timeout));
    assert!(begun.elapsed() >= limit && begun.elapsed() < PATIENCE / 2);
    assert_eq!(end.vi.state().unwrap(), ViState::Idle);
    assert_eq!(end.vi.connect_peer_done(), Err(VipError::InvalidState));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let end = End::new();
    let own = end.nic.local_address(b"own").unwrap();
    let elsewhere = NetAddress {
        host: HostAddress([9; 16]),
        ..own
    };
    let ask = |local, remote, timeout| end.vi.connect_peer(local, remote, timeout);
    let invalid = Err(VipError::InvalidParameter);
    assert_eq!(ask(&own, &own, Timeout::After(Duration::ZERO)), invalid);
    assert_eq!(ask(&elsewhere, &own, WAIT), invalid);
    assert_eq!(ask(&own, &elsewhere, WAIT), Ok(()));
    assert_eq!(end.vi.connect_peer_wait(), Err(VipError::NotReachable));
    assert_eq!(end.vi.connect_peer_wait(), Err(VipError::InvalidState));
    end.vi.disconnect().unwrap();
    assert_eq!(ask(&own, &own, Timeout::Infinite), Ok(()));
    assert_eq!(ask(&own, &own, WAIT), Err(VipError::InvalidState));
    end.vi.disconnect().unwrap();
    assert_eq!(end.vi.connect_peer_done(), Err(VipError::InvalidState));
}

/// Another program of the host dies while requests are in the pool: they stay there.
#[test]
fn a_killed_program_ends_no_request_but_its_own() {
    const READY: &[u8] = b"peer-ready";
    if is_child() {
        let (victim, telling) = (End::new(), End::new());
        ask(&victim, b"peer-nobody", Timeout::Infinite).unwrap();
        let own = telling.nic.local_address(b"victim").unwrap();
        let ready = telling.nic.local_address(READY).unwrap();
        persist(|| telling.vi.connect(&own, &ready, WAIT)).unwrap();
        loop {
            thread::park();
        }
    }
    let (survivor, told) = (End::new(), End::new());
    let name = unique_discriminator();
    ask(&survivor, &name, Timeout::Infinite).unwrap();
    let mut victim = SecondProcess::start("a_killed_program_ends_no_request_but_its_own");
    let ready = told.nic.local_address(READY).unwrap();
    let mut request = told.nic.connect_wait(&ready, WAIT).unwrap();
    request.accept(&told.vi).unwrap();
    victim.kill();
    told.errors.next_of(&told.vi);
    assert_eq!(survivor.vi.connect_peer_done(), Err(VipError::NotDone));
    let next = other_port();
    ask(
        &next,
        b"peer-nobody",
        Timeout::After(Duration::from_millis(100)),
    )
    .unwrap();
    assert_eq!(next.vi.connect_peer_wait(), Err(VipError::Timeout));
    ask(&next, &name, WAIT).unwrap();
    next.vi.connect_peer_wait().unwrap();
    survivor.vi.connect_peer_wait().unwrap();
}

/// A request in the pool whose NIC is closed ends with it, and the other side hears nothing of it.
#[test]
fn a_vi_that_is_dropped_takes_its_request_back() {
    let name = unique_discriminator();
    let dropped = End::new();
    ask(&dropped, &name, Timeout::Infinite).unwrap();
    drop(dropped);
    let end = other_port();
    ask(&end, &name, Timeout::After(Duration::from_millis(100))).unwrap();
    assert_eq!(end.vi.connect_peer_wait(), Err(VipError::Timeout));
}
