//! Scenarios for the model: legal traffic on a network that delays and repeats frames, with identifiers that wrap soon:
//! few OX_IDs, small frames, few random bits.

use core::ops::Range;

use vi_types::ReliabilityLevel;

use super::model::Model;
use super::setup::Setup;
use super::{probes, requests};
use crate::testkit::net::{CLIENT, SERVER};

const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;
const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;
/// A node that is neither the client nor the server.
const THIRD: usize = 2;

/// A scenario. Those with a level run once at each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    /// One connection; all frames arrive, and some are repeated.
    Repeated(ReliabilityLevel),
    /// The same with recovery, and frames are withheld.
    Recovering(ReliabilityLevel),
    /// Successive connections of two VIs; frames are withheld, so that reliable ones break.
    Lossy(ReliabilityLevel),
    /// 270 messages of 256 frames each on one OX_ID: after 256 of them OX_ID, SEQ_ID and SEQ_CNT
    /// are the same as before.
    SameIdentity,
    /// Reliable Reception with three OX_IDs: each response is similar to many.
    FewExchanges,
    /// Successive connections of the same VIs; first message IDs have 16 bits.
    Successive,
    /// The same, and handles have three bits, message IDs 20.
    SimilarHandles,
    /// The same, and message IDs are far from each other.
    SimilarHandlesFarMessages,
    /// The same with Reliable Delivery and recovery.
    SimilarHandlesRecovering,
    /// A VI connects to one port, then to another one; few random bits.
    OtherPeer,
    /// One port is connected with two, each of which receives all frames and has a similar handle.
    Flooded,
    /// Connections are requested, made, cancelled and ended, on a network that loses disconnects.
    Requests,
    /// The same with two clients that use the same connection IDs.
    SimilarRequests,
    /// A port is lost, and its earlier responses to ADISC are repeated.
    Probes,
}

impl Scenario {
    pub(super) const ALL: [Scenario; 19] = [
        Scenario::Repeated(UD),
        Scenario::Repeated(RD),
        Scenario::Repeated(RR),
        Scenario::Recovering(RD),
        Scenario::Recovering(RR),
        Scenario::Lossy(UD),
        Scenario::Lossy(RD),
        Scenario::Lossy(RR),
        Scenario::SameIdentity,
        Scenario::FewExchanges,
        Scenario::Successive,
        Scenario::SimilarHandles,
        Scenario::SimilarHandlesFarMessages,
        Scenario::SimilarHandlesRecovering,
        Scenario::OtherPeer,
        Scenario::Flooded,
        Scenario::Requests,
        Scenario::SimilarRequests,
        Scenario::Probes,
    ];
}

impl Scenario {
    /// Returns the seeds to run; without a check that the scenario is for, one of them fails.
    pub(super) fn seeds(self) -> Range<u64> {
        match self {
            Scenario::SameIdentity => 0..1,
            Scenario::Successive
            | Scenario::SimilarHandles
            | Scenario::SimilarHandlesFarMessages => 0..8,
            Scenario::SimilarHandlesRecovering | Scenario::OtherPeer => 0..8,
            Scenario::Flooded => 0..24,
            _ => 0..4,
        }
    }

    /// Runs it. An error is the effect of a stale frame that was accepted.
    pub(super) fn run(self, seed: u64) -> Result<(), String> {
        let seed = 0x57A1_E000 + seed;
        match self {
            Scenario::Repeated(level) => one_connection(Setup::new(seed, level), 150),
            Scenario::Recovering(level) => one_connection(
                Setup {
                    recovery: true,
                    withheld: 30_000,
                    ..Setup::new(seed, level)
                },
                150,
            ),
            Scenario::Lossy(level) => connections(
                Setup {
                    withheld: 10_000,
                    ..Setup::new(seed, level)
                },
                10,
            ),
            Scenario::SameIdentity => one_connection(
                Setup {
                    lengths: &[256 * 240],
                    ..small_frames(seed)
                },
                270,
            ),
            Scenario::FewExchanges => one_connection(
                Setup {
                    ox_ids: Some(3),
                    rdma: false,
                    ..Setup::new(seed, RR)
                },
                150,
            ),
            Scenario::Successive => connections(
                Setup {
                    random_mask: 0xFFFF,
                    ..Setup::new(seed, RD)
                },
                6,
            ),
            Scenario::SimilarHandles => connections(few_handles(seed, 0x000F_0007), 4),
            Scenario::SimilarHandlesFarMessages => connections(few_handles(seed, 0xFF00_0007), 4),
            Scenario::SimilarHandlesRecovering => connections(
                Setup {
                    level: RD,
                    recovery: true,
                    ..few_handles(seed, 0xFF00_0007)
                },
                4,
            ),
            Scenario::OtherPeer => other_peer(few_handles(seed, 0x0003)),
            Scenario::Flooded => flooded(Setup {
                nodes: 3,
                ..few_handles(seed, 0x0003)
            }),
            Scenario::Requests => requests::run(seed, false),
            Scenario::SimilarRequests => requests::run(seed, true),
            Scenario::Probes => probes::run(seed),
        }
    }
}

/// Returns the setup for sends in one direction, with frames of 240 bytes, on one OX_ID.
fn small_frames(seed: u64) -> Setup {
    Setup {
        rdma: false,
        both_ways: false,
        ox_ids: Some(1),
        data_field_bytes: 256,
        ..Setup::new(seed, RD)
    }
}

fn few_handles(seed: u64, random_mask: u32) -> Setup {
    Setup {
        random_mask,
        ..Setup::new(seed, UD)
    }
}

fn one_connection(setup: Setup, messages: usize) -> Result<(), String> {
    let mut model = Model::new(setup);
    let (a, b) = (model.create(CLIENT), model.create(SERVER));
    let pair = model.pair((CLIENT, a), (SERVER, b));
    model.connect(pair)?;
    model.traffic(pair, messages)?;
    model.disconnect(pair)
}

fn connections(setup: Setup, count: usize) -> Result<(), String> {
    let mut model = Model::new(setup);
    let (a, b) = (model.create(CLIENT), model.create(SERVER));
    let pair = model.pair((CLIENT, a), (SERVER, b));
    for _ in 0..count {
        model.connect(pair)?;
        model.traffic(pair, 20)?;
        model.disconnect(pair)?;
    }
    Ok(())
}

/// Connects two ports, one after the other, to the same VI of a third one.
fn other_peer(setup: Setup) -> Result<(), String> {
    let mut model = Model::new(Setup { nodes: 3, ..setup });
    let (a, b, c) = (
        model.create(CLIENT),
        model.create(SERVER),
        model.create(THIRD),
    );
    let first = model.pair((CLIENT, a), (SERVER, b));
    let second = model.pair((THIRD, c), (SERVER, b));
    for pair in [first, second] {
        model.connect(pair)?;
        model.traffic(pair, 30)?;
        model.disconnect(pair)?;
    }
    Ok(())
}

/// Runs two connections of one port at the same time, to ports that receive each other's frames.
fn flooded(setup: Setup) -> Result<(), String> {
    let mut model = Model::new(setup);
    let (b, c) = (model.create(SERVER), model.create(THIRD));
    let mut pairs = [(SERVER, b), (THIRD, c)].map(|server| {
        let a = model.create(CLIENT);
        model.pair((CLIENT, a), server)
    });
    for pair in pairs {
        model.connect(pair)?;
    }
    model.flooded = true;
    for messages in [10, 20, 30] {
        pairs.reverse();
        for pair in pairs {
            model.traffic(pair, messages)?;
        }
    }
    Ok(())
}
