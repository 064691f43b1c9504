//! A peer that guesses memory handles is limited, and only its own connection breaks (ADR 0041).

mod common;

use std::time::Instant;

use common::datapath::{DatapathProcess, has_served};
use common::{End, PATIENCE, connect, open_as, own_host};
use pmd::config::{NicConfig, TransportKind};
use vipl::{
    ErrorCode, MemoryHandle, Nic, Operation, RdmaAccess, RdmaRegion, ReliabilityLevel,
    RemoteBuffer, ViState, provider,
};

const WRITABLE: RdmaAccess = RdmaAccess {
    write: true,
    read: false,
};

/// What the tests of this file run over: frames of shared memory, the way without frames, VI/TCP.
fn each_transport(test: impl Fn(&dyn Fn(&mut NicConfig))) {
    test(&|_| ());
    test(&|config| config.shortcut = true);
    test(&|config| {
        config.transport = TransportKind::ViTcp;
        config.host = Some(own_host().into());
    });
}

fn counter(nic: &Nic, name: &str) -> u64 {
    let counters = provider::counters(nic.handle()).unwrap();
    let found = counters.into_iter().find(|(known, _)| known == name);
    found.expect("a counter of this name").1
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

fn unreliable(nic: Nic) -> End {
    End::on(nic, |vi| {
        vi.reliability(ReliabilityLevel::Unreliable)
            .rdma_write(true)
    })
}

fn region(end: &End) -> RdmaRegion {
    let region = end.nic.create_rdma_region(64, &end.ptag, WRITABLE);
    region.unwrap()
}

/// Writes a word there; true if it could be posted and left.
fn write_word(end: &End, remote: RemoteBuffer) -> bool {
    let mut descriptor = end.message(&7_u64.to_ne_bytes());
    descriptor.set_operation(Operation::RdmaWrite(remote));
    let posted = end.vi.post_send(descriptor);
    posted.is_ok() && end.vi.send_wait(common::WAIT).unwrap().is_some()
}

/// The same place in the table, and every generation but the right one.
fn wrong_handles(remote: RemoteBuffer) -> impl Iterator<Item = RemoteBuffer> {
    let (index, right) = (remote.handle.0 & 0xFFFF, remote.handle.0 >> 16);
    (1..=0xFFFF)
        .filter(move |generation| *generation != right)
        .map(move |generation| RemoteBuffer {
            handle: MemoryHandle(generation << 16 | index),
            ..remote
        })
}

#[test]
fn guesses_at_line_rate_reach_nothing_and_break_their_connection_alone() {
    each_transport(|change| {
        let open = || open_as(change);
        let (attacker, victim) = (unreliable(open()), unreliable(open()));
        connect(&attacker, &victim);
        let (honest, other) = (unreliable(open()), unreliable(open()));
        connect(&honest, &other);
        let (secret, others) = (region(&victim), region(&other));
        let nic = &victim.nic;
        let config = NicConfig::default();
        let burst = u64::from(config.rdma_miss_burst);
        let most = u64::from(config.rdma_misses_per_connection);
        let mut guesses = wrong_handles(secret.remote_buffer());
        for remote in guesses.by_ref().take(burst as usize) {
            assert!(write_word(&attacker, remote));
        }
        wait_for("misses are counted", || {
            counter(nic, "rdma_misses") == burst
        });
        assert_eq!(victim.vi.state().unwrap(), ViState::Connected);
        // From here on not even the right one is looked up.
        assert!(write_word(&attacker, secret.remote_buffer()));
        wait_for("it is dropped", || counter(nic, "drop_rdma_limited") == 1);
        assert_eq!(secret.load_u64(0), 0);
        let mut tries = burst + 1;
        for remote in guesses {
            if attacker.vi.state().unwrap() != ViState::Connected || !write_word(&attacker, remote)
            {
                break;
            }
            tries += 1;
            // What was sent before the peer hears of the end is not counted.
            wait_for("it is dropped, or the connection is over", || {
                burst + counter(nic, "drop_rdma_limited") >= tries.min(most)
            });
        }
        assert!(tries >= most, "{tries} of {most}");
        for _ in 0..=burst {
            assert_eq!(victim.errors.next_of(&victim.vi), ErrorCode::RdmawProt);
        }
        for end in [&victim, &attacker] {
            assert_eq!(end.errors.next_of(&end.vi), ErrorCode::ConnLost);
            assert_eq!(end.vi.state().unwrap(), ViState::Error);
        }
        assert_eq!(counter(nic, "rdma_misses"), burst);
        assert_eq!(counter(nic, "drop_rdma_limited"), most - burst);
        assert_eq!(counter(nic, "rdma_miss_breaks"), 1);
        assert_eq!(secret.load_u64(0), 0);
        assert!(write_word(&honest, others.remote_buffer()));
        wait_for("the other connection goes on", || others.load_u64(0) == 7);
        assert_eq!(other.vi.state().unwrap(), ViState::Connected);
        assert!(other.errors.none());
    });
}

/// At a reliable level each miss ends its connection: the peer is remembered.
#[test]
fn peer_that_connects_again_for_each_guess_is_limited() {
    const BURST: u32 = 3;
    each_transport(|change| {
        let victims = open_as(|config| {
            change(config);
            (config.rdma_miss_burst, config.rdma_misses_per_hour) = (BURST, 1);
        });
        // Another NIC of this process: another N_Port.
        let attackers = open_as(|config| {
            change(config);
            config.max_cq = 7;
        });
        let attempt = |right: bool| {
            let victim = End::on(victims.clone(), |vi| vi.rdma_write(true));
            let attacker = End::on(attackers.clone(), |vi| vi);
            connect(&attacker, &victim);
            let secret = region(&victim);
            let remote = match right {
                true => secret.remote_buffer(),
                false => wrong_handles(secret.remote_buffer()).next().unwrap(),
            };
            write_word(&attacker, remote);
            wait_for("the connection breaks", || {
                victim.vi.state().unwrap() == ViState::Error
            });
            assert_eq!(secret.load_u64(0), 0);
        };
        for _ in 0..BURST {
            attempt(false);
        }
        assert_eq!(counter(&victims, "rdma_misses"), u64::from(BURST));
        attempt(true);
        attempt(false);
        assert_eq!(counter(&victims, "rdma_misses"), u64::from(BURST));
        assert_eq!(counter(&victims, "drop_rdma_limited"), 2);
    });
}

/// Between two programs of a datapath process, whose poller moves the bytes from one to the other.
#[test]
fn guesses_through_a_datapath_process_break_their_connection_alone() {
    if has_served() {
        return;
    }
    let name = "guesses_through_a_datapath_process_break_their_connection_alone";
    let process = DatapathProcess::start(name, "");
    let attach = || Nic::attach(&process.socket(), "VINIC0").unwrap();
    let [attacker, victim, honest, other] = [(); 4].map(|()| unreliable(attach()));
    connect(&attacker, &victim);
    connect(&honest, &other);
    let (secret, others) = (region(&victim), region(&other));
    let broken = wrong_handles(secret.remote_buffer()).find(|remote| {
        !write_word(&attacker, *remote) || attacker.vi.state().unwrap() != ViState::Connected
    });
    assert!(broken.is_some(), "all handles but one were tried");
    // One for each look-up, and one for the break.
    for _ in 0..=NicConfig::default().rdma_miss_burst {
        assert_eq!(victim.errors.next_of(&victim.vi), ErrorCode::RdmawProt);
    }
    for end in [&victim, &attacker] {
        assert_eq!(end.errors.next_of(&end.vi), ErrorCode::ConnLost);
    }
    assert!(write_word(&honest, others.remote_buffer()));
    wait_for("the other connection goes on", || others.load_u64(0) == 7);
    assert!(other.errors.none());
    drop((secret, others));
    drop((attacker, victim, honest, other));
    process.stop();
}
