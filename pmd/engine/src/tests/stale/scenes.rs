//! What is played in the model. Each scene is legal traffic on a network that delays and repeats,
//! with identifiers that come round soon: few OX_IDs, small frames, few random bits.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::model::{Model, Setup};
use super::{logins, probes, requests};
use crate::Level;
use crate::synonym::Check;
use crate::testkit::net::{CLIENT, SERVER};
use crate::testkit::without::without;

const UD: Level = Level::UnreliableDelivery;
const RD: Level = Level::ReliableDelivery;
const RR: Level = Level::ReliableReception;
/// A node that is neither the client nor the server.
const THIRD: usize = 2;

/// A scene. Those with a level are played once at each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scene {
    /// One connection; everything arrives, and some of it again.
    Repeated(Level),
    /// The same with recovery, and frames are held.
    Recovering(Level),
    /// Connections of two VIs, one after the other; frames are held, so that reliable ones break.
    Lossy(Level),
    /// 270 messages of 256 frames each on one OX_ID: after 256 of them OX_ID, SEQ_ID and SEQ_CNT
    /// are the same as before.
    SameIdentity,
    /// Reliable Reception with three OX_IDs: each response resembles many.
    FewExchanges,
    /// Connections of the same VIs, one after the other; first message IDs have 16 bits.
    Successive,
    /// The same, and handles have three bits, message IDs 20.
    AlikeHandles,
    /// The same, and message IDs are far from each other.
    AlikeHandlesFarMessages,
    /// The same with Reliable Delivery and recovery.
    AlikeHandlesRecovering,
    /// A VI is connected with one port, then with another one; few random bits.
    OtherPeer,
    /// One port is connected with two; each of those hears all frames, and has a like handle.
    Flooded,
    /// Connections asked for, made, taken back and ended, on a network that loses disconnects.
    Requests,
    /// The same of two clients that draw the same connection IDs.
    AlikeRequests,
    /// A port goes, and its earlier answers to ADISC come again.
    Probes,
    /// Ports log in, log out and start anew.
    Logins,
    /// The same, and each port has few OX_IDs.
    FewLoginExchanges,
}

impl Scene {
    pub(super) const ALL: [Scene; 21] = [
        Scene::Repeated(UD),
        Scene::Repeated(RD),
        Scene::Repeated(RR),
        Scene::Recovering(RD),
        Scene::Recovering(RR),
        Scene::Lossy(UD),
        Scene::Lossy(RD),
        Scene::Lossy(RR),
        Scene::SameIdentity,
        Scene::FewExchanges,
        Scene::Successive,
        Scene::AlikeHandles,
        Scene::AlikeHandlesFarMessages,
        Scene::AlikeHandlesRecovering,
        Scene::OtherPeer,
        Scene::Flooded,
        Scene::Requests,
        Scene::AlikeRequests,
        Scene::Probes,
        Scene::Logins,
        Scene::FewLoginExchanges,
    ];

    /// Seeds that it is played with: one of them at least must find what is to be found.
    pub(super) fn seeds(self) -> core::ops::Range<u64> {
        match self {
            Scene::SameIdentity => 0..1,
            Scene::Successive | Scene::AlikeHandles | Scene::AlikeHandlesFarMessages => 0..8,
            Scene::AlikeHandlesRecovering | Scene::OtherPeer => 0..8,
            Scene::Flooded | Scene::Logins | Scene::FewLoginExchanges => 0..24,
            _ => 0..4,
        }
    }

    fn play(self, seed: u64) -> Result<(), String> {
        let seed = 0x57A1_E000 + seed;
        match self {
            Scene::Repeated(level) => one_connection(Setup::new(seed, level), 150),
            Scene::Recovering(level) => one_connection(
                Setup {
                    recovery: true,
                    held: 30_000,
                    ..Setup::new(seed, level)
                },
                150,
            ),
            Scene::Lossy(level) => connections(
                Setup {
                    held: 10_000,
                    ..Setup::new(seed, level)
                },
                10,
            ),
            Scene::SameIdentity => one_connection(
                Setup {
                    lengths: &[256 * 240],
                    ..small_frames(seed)
                },
                270,
            ),
            Scene::FewExchanges => one_connection(
                Setup {
                    ox_ids: Some(3),
                    rdma: false,
                    ..Setup::new(seed, RR)
                },
                150,
            ),
            Scene::Successive => connections(
                Setup {
                    random_mask: 0xFFFF,
                    ..Setup::new(seed, RD)
                },
                6,
            ),
            Scene::AlikeHandles => connections(few_handles(seed, 0x000F_0007), 4),
            Scene::AlikeHandlesFarMessages => connections(few_handles(seed, 0xFF00_0007), 4),
            Scene::AlikeHandlesRecovering => connections(
                Setup {
                    level: RD,
                    recovery: true,
                    ..few_handles(seed, 0xFF00_0007)
                },
                4,
            ),
            Scene::OtherPeer => other_peer(few_handles(seed, 0x0003)),
            Scene::Flooded => flooded(Setup {
                nodes: 3,
                ..few_handles(seed, 0x0003)
            }),
            Scene::Requests => requests::play(seed, false),
            Scene::AlikeRequests => requests::play(seed, true),
            Scene::Probes => probes::play(seed),
            Scene::Logins => logins::play(seed, 1024),
            Scene::FewLoginExchanges => logins::play(seed, 20),
        }
    }
}

/// Frames of 240 bytes of sends one way, on one OX_ID.
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

/// Two ports, one after the other, with the same VI of a third one.
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

/// Two connections of one port at a time, with ports that hear each other's frames.
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

/// Plays a scene without these checks; what stale frame was taken, or `None`. What the hosts
/// assert of what is asked of them counts as well.
pub(super) fn taken(scene: Scene, seed: u64, checks: &[Check]) -> Option<String> {
    let played = catch_unwind(AssertUnwindSafe(|| without(checks, || scene.play(seed))));
    match played {
        Ok(verdict) => verdict.err(),
        Err(_) => Some("a host was asked for what cannot be".to_owned()),
    }
}
