//! Runs a program: resolves its steps, makes the calls, and passes their results to the oracle.

mod attributes;
mod connecting;
mod control;
mod notify;
mod peer_requests;
mod posting;
mod quiesce;
mod reaping;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmd::config::{NicConfig, Progress};
use vipl::{NicHandle, ViState, provider as vip};

use crate::arena::{Allocation, Arena};
use crate::common;
use crate::model::{AsyncError, Limits, NotifyQueue, Tables, Verdict};
use crate::oracle::{Oracle, Violation};
use crate::program::{Pick, Step};
use connecting::ClientThread;
use notify::HandlerCall;

/// Long enough for any machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) type Checked<T = ()> = Result<T, Violation>;

/// Stale handles.
#[derive(Default)]
struct Stale {
    nics: Vec<u64>,
    tags: Vec<u64>,
    regions: Vec<(u64, u32)>,
    cqs: Vec<u64>,
    vis: Vec<u64>,
    conns: Vec<u64>,
}

/// A running program.
pub(crate) struct Player {
    configs: [NicConfig; 2],
    host: [u8; 16],
    tables: Tables,
    oracle: Oracle,
    arenas: [Arena; 2],
    stale: Stale,
    /// Errors that error handlers received since the last check.
    received_errors: Arc<Mutex<Vec<AsyncError>>>,
    /// Calls of notify handlers since the last check.
    handler_calls: Arc<Mutex<Vec<HandlerCall>>>,
    /// Queues of the pending notify handlers, by handler number.
    handler_queues: BTreeMap<u64, NotifyQueue>,
    /// Peer requests of each discriminator: those pending at the last quiescent point, and those since then.
    peer_request_counts: BTreeMap<u32, u32>,
    /// Memory of each posted descriptor.
    allocations: BTreeMap<u64, Vec<(usize, Allocation)>>,
    /// Targets of RDMA writes, allocated until the next quiescent point.
    targets: Vec<(usize, Allocation)>,
    /// Client threads by their request.
    client_threads: BTreeMap<u64, ClientThread>,
    /// Last assigned number.
    last_id: u64,
    trace: Vec<String>,
    event_counts: EventCounts,
}

/// The event that an RDMA operation was carried out without frames.
pub(crate) const DIRECT: &str = "RDMA without frames";
/// The event that the peer copied a send from memory.
pub(crate) const RENDEZVOUS: &str = "send copied by the peer";

/// Number of each event.
pub(crate) type EventCounts = BTreeMap<String, u64>;

/// The configurations of the two endpoints: small limits, so that programs reach them, and long timeouts. The poll
/// threads do not take over: the provider polls mainly in calls of the program.
pub(crate) fn configs() -> [NicConfig; 2] {
    ["a", "b"].map(|name| {
        common::config(|config| {
            *config = NicConfig {
                name: format!("random-{name}"),
                progress: Progress::inline(10_000_000),
                limits: pmd::config::Limits {
                    max_vi: 8,
                    max_descriptors_per_queue: 4,
                    max_cq: 4,
                    max_cq_entries: 4096,
                    max_regions: 24,
                    max_notifies_per_queue: 3,
                    max_ptags: 8,
                    max_transfer_bytes: 65536,
                    // The model has no limit on refused accesses.
                    rdma_miss_burst: 1_000_000,
                    rdma_misses_per_connection: 1_000_000,
                    ..pmd::config::Limits::default()
                },
                ..config.clone()
            }
        })
    })
}

impl Player {
    /// Creates a player without open NICs.
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
            received_errors: Arc::default(),
            handler_calls: Arc::default(),
            handler_queues: BTreeMap::new(),
            peer_request_counts: BTreeMap::new(),
            allocations: BTreeMap::new(),
            targets: Vec::new(),
            client_threads: BTreeMap::new(),
            last_id: 0,
            trace: Vec::new(),
            event_counts: EventCounts::new(),
        }
    }

    /// Calls and results so far.
    pub(crate) fn trace(&self) -> &[String] {
        &self.trace
    }

    /// Number of each event so far.
    pub(crate) fn event_counts(&self) -> &EventCounts {
        &self.event_counts
    }

    fn count(&mut self, what: String) {
        *self.event_counts.entry(what).or_default() += 1;
    }

    /// Runs all steps of a program, then the teardown.
    pub(crate) fn play(&mut self, program: &[Step]) -> Checked {
        for (number, step) in program.iter().enumerate() {
            self.step(step).map_err(|Violation(text)| {
                Violation(format!("step {number}, {step:?}:\n{text}"))
            })?;
        }
        self.tear_down()
            .map_err(|Violation(text)| Violation(format!("after the last step:\n{text}")))
    }

    fn step(&mut self, step: &Step) -> Checked {
        self.check_handler_calls()?;
        match step {
            Step::OpenNic { end } => self.open_nic(*end),
            Step::CloseNic { end, nic } => self.close_nic(*end, *nic),
            Step::QueryNic { end, nic } => self.query_nic(*end, *nic),
            Step::CreateTag { end, nic } => self.create_tag(*end, *nic),
            Step::DestroyTag { end, nic, tag } => self.destroy_tag(*end, *nic, *tag),
            Step::Register { end, nic, spec } => self.register(*end, *nic, spec),
            Step::Deregister {
                end,
                nic,
                region,
                fault,
            } => self.deregister(*end, *nic, *region, *fault),
            Step::QueryMem {
                end,
                nic,
                region,
                fault,
            } => self.query_mem(*end, *nic, *region, *fault),
            Step::CreateCq { end, nic, entries } => self.create_cq(*end, *nic, *entries),
            Step::DestroyCq { cq } => self.destroy_cq(*cq),
            Step::CreateVi { end, nic, spec } => self.create_vi(*end, *nic, spec),
            Step::DestroyVi { vi } => self.destroy_vi(*vi),
            Step::QueryVi { vi } => self.query_vi(*vi),
            Step::Post { vi, kind, spec } => self.post(*vi, *kind, spec),
            Step::Done { vi, kind } => self.done(*vi, *kind, false),
            Step::Wait { vi, kind } => self.done(*vi, *kind, true),
            Step::CqDone { cq } => self.cq_done(*cq, false),
            Step::CqWait { cq } => self.cq_done(*cq, true),
            Step::ConnectWait { end, nic, fault } => {
                self.connect_wait_without_request(*end, *nic, *fault)
            }
            Step::Request {
                vi,
                end,
                nic,
                fault,
            } => self.request(*vi, *end, *nic, *fault),
            Step::Accept { request, vi } => self.accept(*request, *vi),
            Step::Reject { request } => self.reject(*request),
            Step::Disconnect { vi } => self.disconnect(*vi),
            Step::ResizeCq { cq, entries } => self.resize_cq(*cq, *entries),
            Step::SetVi { vi, spec } => self.set_vi(*vi, spec),
            Step::SetMem {
                end,
                nic,
                region,
                spec,
            } => self.set_mem(*end, *nic, *region, spec),
            Step::Discover { end, nic, hops } => self.discover(*end, *nic, *hops),
            Step::PeerRequest { vi, spec } => self.peer_request(*vi, spec),
            Step::PeerDone { vi } => self.peer_done(*vi),
            Step::PeerWait { vi } => self.peer_wait(*vi),
            Step::Notify { vi, kind, times } => self.notify(*vi, *kind, *times),
            Step::CqNotify { cq } => self.cq_notify(*cq),
            Step::Quiesce => self.quiesce(),
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        self.trace.push(text());
    }

    /// Checks the result of a call that does not depend on uncertain state.
    fn check_result<T: core::fmt::Debug>(
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

    /// Selects a NIC handle of this endpoint, or an invalid one; returns also the endpoint of the handle.
    fn pick_nic(&self, end: usize, pick: Pick) -> (usize, NicHandle) {
        let own = &self.tables.ends[end].nics;
        let foreign = &self.tables.ends[1 - end].nics;
        let nic = if pick.invalid || own.is_empty() {
            choose(pick, &[&self.stale.nics, foreign]).unwrap_or(0x1FFF_0000_0000_0000)
        } else {
            own[pick.number as usize % own.len()]
        };
        let end = self.tables.end_of_nic(nic).unwrap_or(end);
        (end, NicHandle::from_raw(nic))
    }

    /// Selects a VI, often a connected one, or an invalid handle.
    fn pick_vi(&self, pick: Pick) -> u64 {
        if pick.invalid || self.tables.vis.is_empty() {
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
        let index = pick.number as usize % self.tables.vis.len();
        *self.tables.vis.keys().nth(index).expect("a valid index")
    }

    fn pick_cq(&self, pick: Pick) -> u64 {
        if pick.invalid || self.tables.cqs.is_empty() {
            let vis: Vec<u64> = self.tables.vis.keys().copied().collect();
            return choose(pick, &[&self.stale.cqs, &vis]).unwrap_or(0x3FFF_0000_0100_0000);
        }
        let index = pick.number as usize % self.tables.cqs.len();
        *self.tables.cqs.keys().nth(index).expect("a valid index")
    }
}

/// Selects a handle from several lists.
fn choose(pick: Pick, lists: &[&Vec<u64>]) -> Option<u64> {
    let all: Vec<u64> = lists.iter().flat_map(|list| list.iter().copied()).collect();
    all.get((pick.number as usize).checked_rem(all.len())?)
        .copied()
}
