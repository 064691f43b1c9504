//! A peer that guesses memory handles is limited, and only its own connection breaks (ADR 0041).

use crate::common;
use crate::common::datapath::with_process;
use crate::common::{Endpoint, WRITABLE, connect, counter, open_as, use_tcp, wait_until};
use pmd::config::NicConfig;
use vipl::{ErrorCode, MemoryHandle, Nic, ReliabilityLevel, RemoteBuffer, ViState};

/// Runs a test over shared-memory frames, over the shortcut without frames, and over VI/TCP. Not with direct access: only
/// accesses in frames, by handles that the peer has to know, are guesses.
fn each_transport(test: impl Fn(&dyn Fn(&mut NicConfig))) {
    test(&common::use_frames);
    test(&|config| {
        common::use_frames(config);
        config.fc_vi.shortcut = true;
    });
    test(&|config| use_tcp(config, 0));
}

fn unreliable(nic: Nic) -> Endpoint {
    Endpoint::on(nic, |vi| {
        vi.reliability(ReliabilityLevel::UnreliableDelivery)
            .rdma_write(true)
    })
}

/// Writes a word to remote memory; returns whether the write was posted and completed.
fn write_word(end: &Endpoint, remote: RemoteBuffer) -> bool {
    let posted = end.vi.post_send(end.write_of(&7_u64.to_ne_bytes(), remote));
    posted.is_ok() && end.vi.send_wait(common::WAIT).unwrap().is_some()
}

/// Handles of the same table index with every generation except the valid one.
fn wrong_handles(remote: RemoteBuffer) -> impl Iterator<Item = RemoteBuffer> {
    let (index, valid) = (remote.handle.0 & 0xFFFF, remote.handle.0 >> 16);
    (1..=0xFFFF)
        .filter(move |generation| *generation != valid)
        .map(move |generation| RemoteBuffer {
            handle: MemoryHandle(generation << 16 | index),
            ..remote
        })
}

#[test]
fn guessed_handles_access_nothing_and_break_only_their_connection() {
    each_transport(|change| {
        let open = || open_as(change);
        let (attacker, victim) = (unreliable(open()), unreliable(open()));
        connect(&attacker, &victim);
        let (honest, other) = (unreliable(open()), unreliable(open()));
        connect(&honest, &other);
        let (secret, others) = (victim.region(64, WRITABLE), other.region(64, WRITABLE));
        let nic = victim.nic.handle();
        let config = NicConfig::default();
        let burst = u64::from(config.limits.rdma_miss_burst);
        let limit = u64::from(config.limits.rdma_misses_per_connection);
        let mut guesses = wrong_handles(secret.remote_buffer());
        for remote in guesses.by_ref().take(burst as usize) {
            assert!(write_word(&attacker, remote));
        }
        wait_until("misses are counted", || {
            counter(nic, "rdma_misses") == burst
        });
        assert_eq!(victim.vi.state().unwrap(), ViState::Connected);
        // From here on not even the valid handle is looked up.
        assert!(write_word(&attacker, secret.remote_buffer()));
        wait_until("the write is dropped", || {
            counter(nic, "drop_rdma_limited") == 1
        });
        assert_eq!(secret.load_u64(0), 0);
        let mut tries = burst + 1;
        for remote in guesses {
            if attacker.vi.state().unwrap() != ViState::Connected || !write_word(&attacker, remote)
            {
                break;
            }
            tries += 1;
            // Writes that are sent before the attacker is notified of the break are not counted.
            wait_until("the write is dropped, or the connection is broken", || {
                burst + counter(nic, "drop_rdma_limited") >= tries.min(limit)
            });
        }
        assert!(tries >= limit, "{tries} of {limit}");
        victim.expect_errors(&vec![ErrorCode::RdmawProt; burst as usize + 1]);
        for end in [&victim, &attacker] {
            end.expect_errors(&[ErrorCode::ConnLost]);
            assert_eq!(end.vi.state().unwrap(), ViState::Error);
        }
        assert_eq!(counter(nic, "rdma_misses"), burst);
        assert_eq!(counter(nic, "drop_rdma_limited"), limit - burst);
        assert_eq!(counter(nic, "rdma_miss_breaks"), 1);
        assert_eq!(secret.load_u64(0), 0);
        assert!(write_word(&honest, others.remote_buffer()));
        wait_until("the other connection works", || others.load_u64(0) == 7);
        assert_eq!(other.vi.state().unwrap(), ViState::Connected);
        assert!(other.errors.none());
    });
}

/// At a reliable level each miss breaks its connection: the limit applies to the peer.
#[test]
fn peer_that_reconnects_for_each_guess_is_limited() {
    const BURST: u32 = 3;
    each_transport(|change| {
        let victims = open_as(|config| {
            change(config);
            (
                config.limits.rdma_miss_burst,
                config.limits.rdma_misses_per_hour,
            ) = (BURST, 1);
        });
        // A different NIC of this process: a different N_Port.
        let attackers = open_as(|config| {
            change(config);
            config.limits.max_cq = 7;
        });
        let attempt = |is_valid: bool| {
            let victim = Endpoint::on(victims.clone(), |vi| vi.rdma_write(true));
            let attacker = Endpoint::on(attackers.clone(), |vi| vi);
            connect(&attacker, &victim);
            let secret = victim.region(64, WRITABLE);
            let remote = match is_valid {
                true => secret.remote_buffer(),
                false => wrong_handles(secret.remote_buffer()).next().unwrap(),
            };
            write_word(&attacker, remote);
            wait_until("the connection breaks", || {
                victim.vi.state().unwrap() == ViState::Error
            });
            assert_eq!(secret.load_u64(0), 0);
        };
        for _ in 0..BURST {
            attempt(false);
        }
        assert_eq!(counter(victims.handle(), "rdma_misses"), u64::from(BURST));
        attempt(true);
        attempt(false);
        assert_eq!(counter(victims.handle(), "rdma_misses"), u64::from(BURST));
        assert_eq!(counter(victims.handle(), "drop_rdma_limited"), 2);
    });
}

/// Between two applications of a datapath process, whose poller copies the data.
#[test]
fn guesses_through_a_datapath_process_break_only_their_connection() {
    let name = "guesses_through_a_datapath_process_break_only_their_connection";
    with_process(name, "", |process| {
        let [attacker, victim, honest, other] = [(); 4].map(|()| unreliable(process.attach()));
        connect(&attacker, &victim);
        connect(&honest, &other);
        let (secret, others) = (victim.region(64, WRITABLE), other.region(64, WRITABLE));
        let broken = wrong_handles(secret.remote_buffer()).find(|remote| {
            !write_word(&attacker, *remote) || attacker.vi.state().unwrap() != ViState::Connected
        });
        assert!(broken.is_some(), "all other handles were tried");
        // One error for each look-up, and one for the break.
        let burst = NicConfig::default().limits.rdma_miss_burst as usize;
        victim.expect_errors(&vec![ErrorCode::RdmawProt; burst + 1]);
        for end in [&victim, &attacker] {
            end.expect_errors(&[ErrorCode::ConnLost]);
        }
        assert!(write_word(&honest, others.remote_buffer()));
        wait_until("the other connection works", || others.load_u64(0) == 7);
        assert!(other.errors.none());
    });
}
