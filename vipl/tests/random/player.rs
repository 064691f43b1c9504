//! Plays a program: resolves its steps, makes the calls, and shows the oracle what they returned.

mod changing;
mod connecting;
mod control;
mod notices;
mod peering;
mod posting;
mod reaping;
mod settling;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmd::config::NicConfig;
use vipl::{NicHandle, ViState, provider as vip};

use crate::arena::{Arena, Lent};
use crate::common;
use crate::model::{Limits, Place, Tables, Told, Verdict};
use crate::oracle::{Oracle, Violation};
use crate::program::{Pick, Step};
use connecting::Asking;
use notices::Ring;

/// Long enough for any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) type Checked<T = ()> = Result<T, Violation>;

/// Handles that are no good any more.
#[derive(Default)]
struct Stale {
    nics: Vec<u64>,
    tags: Vec<u64>,
    regions: Vec<(u64, u32)>,
    cqs: Vec<u64>,
    vis: Vec<u64>,
    conns: Vec<u64>,
}

/// A program in the middle.
pub(crate) struct Player {
    configs: [NicConfig; 2],
    host: [u8; 16],
    tables: Tables,
    oracle: Oracle,
    arenas: [Arena; 2],
    stale: Stale,
    /// What the handlers of all openings heard since it was last looked at.
    heard: Arc<Mutex<Vec<Told>>>,
    /// What the handlers of queues were called with since it was last looked at.
    rings: Arc<Mutex<Vec<Ring>>>,
    /// The queues of the handlers that were asked for and not called.
    places: BTreeMap<u64, Place>,
    /// Peer requests for each discriminator since the last rest, and those that waited then.
    peers_asked: BTreeMap<u32, u32>,
    /// What each posted descriptor was lent.
    lent: BTreeMap<u64, Vec<(usize, Lent)>>,
    /// Targets of RDMA writes, lent until all writes are over.
    targets: Vec<(usize, Lent)>,
    /// Client threads by the request they wait for.
    asking: BTreeMap<u64, Asking>,
    names: u64,
    trace: Vec<String>,
    tally: Tally,
}

/// How often what happened.
pub(crate) type Tally = BTreeMap<String, u64>;

/// The configurations of the two ends: small limits, so that programs reach them, and no time-out that a slow machine
/// could reach. Nobody takes over polling: the provider works in the calls of the program, or when it wants to.
pub(crate) fn configs() -> [NicConfig; 2] {
    ["a", "b"].map(|name| {
        common::config(|config| {
            *config = NicConfig {
                name: format!("random-{name}"),
                takeover_us: 10_000_000,
                max_vi: 8,
                max_descriptors_per_queue: 4,
                max_cq: 4,
                max_cq_entries: 4096,
                max_regions: 24,
                max_notifies_per_queue: 3,
                max_ptags: 8,
                max_transfer_bytes: 65536,
                // The oracle knows the guide's rules, which have no limit on refused accesses.
                rdma_miss_burst: 1_000_000,
                rdma_misses_per_connection: 1_000_000,
                ..config.clone()
            }
        })
    })
}

impl Player {
    /// Before the first step; nothing is open.
    pub(crate) fn new() -> Self {
        let configs = configs();
        let nic = vip::open_nic_with(&configs[0]).expect("a NIC opens");
        let attributes = vip::query_nic(nic).expect("an open NIC can be queried");
        vip::close_nic(nic).expect("an open NIC closes");
        let limits = Limits::of(&attributes, &configs[0]);
        Self {
            configs,
            host: *attributes.local_nic_address,
            tables: Tables::new(limits),
            oracle: Oracle::new(),
            arenas: [Arena::new(), Arena::new()],
            stale: Stale::default(),
            heard: Arc::default(),
            rings: Arc::default(),
            places: BTreeMap::new(),
            peers_asked: BTreeMap::new(),
            lent: BTreeMap::new(),
            targets: Vec::new(),
            asking: BTreeMap::new(),
            names: 0,
            trace: Vec::new(),
            tally: Tally::new(),
        }
    }

    /// What was done and seen so far.
    pub(crate) fn trace(&self) -> &[String] {
        &self.trace
    }

    /// How often what happened in it.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    fn count(&mut self, what: String) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Plays a whole program and takes everything down, step by step.
    pub(crate) fn play(&mut self, program: &[Step]) -> Checked {
        for (number, step) in program.iter().enumerate() {
            self.step(step).map_err(|Violation(text)| {
                Violation(format!("step {number}, {step:?}:\n{text}"))
            })?;
        }
        self.take_down()
            .map_err(|Violation(text)| Violation(format!("after the last step:\n{text}")))
    }

    fn step(&mut self, step: &Step) -> Checked {
        self.listen()?;
        match step {
            Step::OpenNic { end } => self.open_nic(*end),
            Step::CloseNic { end, nic } => self.close_nic(*end, *nic),
            Step::QueryNic { end, nic } => self.query_nic(*end, *nic),
            Step::CreateTag { end, nic } => self.create_tag(*end, *nic),
            Step::DestroyTag { end, nic, tag } => self.destroy_tag(*end, *nic, *tag),
            Step::Register { end, nic, shape } => self.register(*end, *nic, shape),
            Step::Deregister {
                end,
                nic,
                region,
                mistake,
            } => self.deregister(*end, *nic, *region, *mistake),
            Step::QueryMem {
                end,
                nic,
                region,
                mistake,
            } => self.query_mem(*end, *nic, *region, *mistake),
            Step::CreateCq { end, nic, entries } => self.create_cq(*end, *nic, *entries),
            Step::DestroyCq { cq } => self.destroy_cq(*cq),
            Step::CreateVi { end, nic, shape } => self.create_vi(*end, *nic, shape),
            Step::DestroyVi { vi } => self.destroy_vi(*vi),
            Step::QueryVi { vi } => self.query_vi(*vi),
            Step::Post { vi, side, shape } => self.post(*vi, *side, shape),
            Step::Done { vi, side } => self.done(*vi, *side, false),
            Step::Wait { vi, side } => self.done(*vi, *side, true),
            Step::CqDone { cq } => self.cq_done(*cq, false),
            Step::CqWait { cq } => self.cq_done(*cq, true),
            Step::ConnectWait { end, nic, mistake } => self.wait_for_nobody(*end, *nic, *mistake),
            Step::Request {
                vi,
                end,
                nic,
                mistake,
            } => self.request(*vi, *end, *nic, *mistake),
            Step::Accept { request, vi } => self.accept(*request, *vi),
            Step::Reject { request } => self.reject(*request),
            Step::Disconnect { vi } => self.disconnect(*vi),
            Step::ResizeCq { cq, entries } => self.resize_cq(*cq, *entries),
            Step::SetVi { vi, shape } => self.set_vi(*vi, shape),
            Step::SetMem {
                end,
                nic,
                region,
                shape,
            } => self.set_mem(*end, *nic, *region, shape),
            Step::Discover { end, nic, hops } => self.discover(*end, *nic, *hops),
            Step::PeerRequest { vi, shape } => self.peer_request(*vi, shape),
            Step::PeerDone { vi } => self.peer_done(*vi),
            Step::PeerWait { vi } => self.peer_wait(*vi),
            Step::Notify { vi, side, times } => self.notify(*vi, *side, *times),
            Step::CqNotify { cq } => self.cq_notify(*cq),
            Step::Settle => self.settle(),
        }
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        self.trace.push(text());
    }

    /// A call that depends on nothing uncertain.
    fn certain<T: core::fmt::Debug>(
        &mut self,
        call: impl FnOnce() -> String,
        outcome: &vipl::Result<T>,
        verdict: &Verdict,
    ) -> Checked {
        let text = format!("{} -> {outcome:?}", call());
        let fits = verdict.fits(outcome);
        self.trace.push(text.clone());
        if fits {
            Ok(())
        } else {
            Err(Violation(format!("{text}\nmust return {verdict}")))
        }
    }

    /// An opening of this end, or a handle that is none of it; and the end that the handle is of.
    fn pick_nic(&self, end: usize, pick: Pick) -> (usize, NicHandle) {
        let own = &self.tables.ends[end].nics;
        let foreign = &self.tables.ends[1 - end].nics;
        let nic = if pick.wrong || own.is_empty() {
            choose(pick, &[&self.stale.nics, foreign]).unwrap_or(0x1FFF_0000_0000_0000)
        } else {
            own[pick.number as usize % own.len()]
        };
        let end = self.tables.end_of_nic(nic).unwrap_or(end);
        (end, NicHandle::from_raw(nic))
    }

    /// A VI, often one that is connected; or a handle that is none.
    fn pick_vi(&self, pick: Pick) -> u64 {
        if pick.wrong || self.tables.vis.is_empty() {
            let cqs: Vec<u64> = self.tables.cqs.keys().copied().collect();
            return choose(pick, &[&self.stale.vis, &cqs]).unwrap_or(0x2FFF_0000_0100_0000);
        }
        let connected: Vec<u64> = self
            .oracle
            .any()
            .vis
            .iter()
            .filter(|(_, vi)| vi.state == ViState::Connected)
            .map(|(handle, _)| *handle)
            .collect();
        if !connected.is_empty() && pick.number & 0x300 != 0 {
            return connected[pick.number as usize % connected.len()];
        }
        let place = pick.number as usize % self.tables.vis.len();
        *self.tables.vis.keys().nth(place).expect("there is one")
    }

    fn pick_cq(&self, pick: Pick) -> u64 {
        if pick.wrong || self.tables.cqs.is_empty() {
            let vis: Vec<u64> = self.tables.vis.keys().copied().collect();
            return choose(pick, &[&self.stale.cqs, &vis]).unwrap_or(0x3FFF_0000_0100_0000);
        }
        let place = pick.number as usize % self.tables.cqs.len();
        *self.tables.cqs.keys().nth(place).expect("there is one")
    }
}

/// One of several lists of handles.
fn choose(pick: Pick, lists: &[&Vec<u64>]) -> Option<u64> {
    let all: Vec<u64> = lists.iter().flat_map(|list| list.iter().copied()).collect();
    all.get((pick.number as usize).checked_rem(all.len())?)
        .copied()
}
