//! FIP VN2VN: how a port of a link without a switch gets its N_Port_ID, and finds the others.
//!
//! ```text
//!                    ┌─────────────────────────────────────────────────────────────┐
//!                    │ another port has the N_Port_ID, or more right to it:        │
//!                    │ a random one, and at once or, after ten times, in 10 s      │
//!                    v                                                             │
//! Stopped ──────> Start ─────────> Probe1 ─────────> Probe2 ─────────> Claim ─────────> Up
//!         start()        0-100 ms          100 ms            400 ms           400 ms
//!                        probe             probe             claim            beacon,
//!                                                            Claimed          and on
//! ```
//!
//! The rules are those of VN2VN as Linux implements it; `docs/spec/vn2vn.md` has each of them,
//! what we add, and every event in every state. One [`Vn2vn`] is one VN_Port; several of a host
//! can share an interface, and each ignores what does not concern it.
//!
//! Like the engine it has no clock, thread or socket. After construction it allocates nothing.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`config`] | [`Vn2vnConfig`]: identity, timers, limits |
//! | `receive` | frames checked, and what they mean |
//! | `neighbour` | the table of neighbours, and their age |
//! | `path` | how large frames from a neighbour may be |
//! | `outbound` | what is to be sent |
//! | [`counters`] | every frame, with its reason |

pub mod config;
pub mod counters;
mod neighbour;
mod outbound;
mod path;
mod random;
mod receive;

use fcvi_frame::MacAddress;
use fcvi_frame::ethernet;
use fcvi_frame::fc::{FcType, NPortId};
use fcvi_frame::fip::{Claim, Fc4Attributes, Vn2vnFrame, Vn2vnMessage, VnPort, VnPortId};

pub use config::Vn2vnConfig;
pub use counters::{Vn2vnCounter, Vn2vnCounters};
pub use neighbour::{GoneReason, Neighbour};
pub use outbound::Outbound;

use config::{is_vn2vn_id, vn2vn_id};
use neighbour::{Neighbours, News};
use outbound::{Answer, Answers, Broadcasts, Budget};
use random::Random;

/// Where a port is on its way to an N_Port_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vn2vnState {
    /// Its link is down: nothing is sent, nothing taken.
    Stopped,
    /// It waits to probe for its N_Port_ID.
    Start,
    /// It probed once.
    Probe1,
    /// It probed twice.
    Probe2,
    /// Nobody objected: it has the N_Port_ID, and said so.
    Claim,
    /// It sends beacons.
    Up,
}

/// What the owner of a port learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vn2vnEvent {
    /// We have this N_Port_ID, and the MAC address that goes with it.
    Claimed(NPortId),
    /// Nobody objected; neighbours can log in with us.
    Up(NPortId),
    /// We have no N_Port_ID any more, and no neighbours; they are not reported one by one.
    Lost,
    /// A neighbour said who it is.
    NeighbourFound(Neighbour),
    /// Its first beacon came and the size of frames that arrive from it is known: we log in.
    NeighbourHeard(Neighbour),
    /// A neighbour is gone.
    NeighbourGone {
        /// Its Port_Name.
        port_name: u64,
        /// The N_Port_ID that it had.
        id: NPortId,
        /// Why.
        reason: GoneReason,
    },
}

/// What happens to our N_Port_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Start,
    Stop,
    Deadline,
    /// Another port would like to have it.
    Probed {
        enode_mac: MacAddress,
        /// With less right than we.
        yields: bool,
    },
    /// Another port has it, or wants it with more right, and answers our probe.
    Refused,
    /// Another port has it.
    Taken {
        /// With less right than we.
        yields: bool,
    },
}

/// Discovery and N_Port_ID of one VN_Port.
///
/// Verbs: [`Vn2vn::start`] and [`Vn2vn::stop`] with the link, [`Vn2vn::handle_frame`],
/// [`Vn2vn::handle_timeout`]; then [`Vn2vn::poll_outbound`] and [`Vn2vn::poll_event`] until they
/// give nothing more. Times are nanoseconds of the caller's clock, which never goes back.
#[derive(Debug)]
pub struct Vn2vn {
    config: Vn2vnConfig,
    random: Random,
    state: Vn2vnState,
    id: NPortId,
    /// That of the state we are in.
    deadline_ns: Option<u64>,
    /// Counted until the port was up for a while.
    restarts: u32,
    up_ns: u64,
    claimed_ns: u64,
    /// Counts the N_Port_IDs that we had, so that the owner is told of each.
    claims: u64,
    /// The last of them that the owner was told of, and whether it was also told that we are up.
    told: Option<(u64, bool)>,
    broadcasts: Broadcasts,
    answers: Answers,
    defences: Budget,
    neighbours: Neighbours,
    counters: Vn2vnCounters,
    next_ns: Option<u64>,
}

impl Vn2vn {
    /// A stopped port. `seed`: 64 random bits, different for each.
    pub fn new(config: Vn2vnConfig, seed: u64) -> Self {
        let preferred = config.preferred.filter(|id| is_vn2vn_id(*id));
        Self {
            random: Random(seed),
            state: Vn2vnState::Stopped,
            id: preferred.unwrap_or_else(|| vn2vn_id(config.port_name as u16)),
            deadline_ns: None,
            restarts: 0,
            up_ns: 0,
            claimed_ns: 0,
            claims: 0,
            told: None,
            broadcasts: Broadcasts::default(),
            answers: Answers::new(&config),
            defences: Budget::new(config.max_defences_per_s),
            neighbours: Neighbours::new(&config),
            counters: Vn2vnCounters::default(),
            next_ns: None,
            config,
        }
    }

    /// Who this port is, and its limits.
    pub fn config(&self) -> &Vn2vnConfig {
        &self.config
    }

    /// Where it is on its way.
    pub fn state(&self) -> Vn2vnState {
        self.state
    }

    /// Its N_Port_ID, if it has one.
    pub fn id(&self) -> Option<NPortId> {
        self.has_id().then_some(self.id)
    }

    /// What happened so far.
    pub fn counters(&self) -> &Vn2vnCounters {
        &self.counters
    }

    /// The neighbours that there are now, found or heard.
    pub fn neighbours(&self) -> impl Iterator<Item = &Neighbour> {
        self.neighbours.iter().map(|(neighbour, _)| neighbour)
    }

    /// The same, each with the time at which something was heard of it last.
    pub fn neighbours_heard(&self) -> impl Iterator<Item = (&Neighbour, u64)> {
        self.neighbours.iter()
    }

    /// Whether the owner has something with the neighbour that has this N_Port_ID: then it does not make room for others
    /// before it is silent, even if no beacon of it came. It is forgotten with the neighbour.
    pub fn keep(&mut self, id: NPortId, is_kept: bool) {
        self.neighbours.keep(id, is_kept);
    }

    fn has_id(&self) -> bool {
        matches!(self.state, Vn2vnState::Claim | Vn2vnState::Up)
    }

    /// The link is up. The N_Port_ID of an earlier time is tried first.
    pub fn start(&mut self, now_ns: u64) {
        self.step(now_ns, Input::Start);
        self.reschedule();
    }

    /// The link is down, or the port ends. Others notice when it is silent for long.
    pub fn stop(&mut self, now_ns: u64) {
        self.step(now_ns, Input::Stop);
        self.reschedule();
    }

    /// When [`Vn2vn::handle_timeout`] wants to be called.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.next_ns
    }

    /// Does what time wants done.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.deadline_ns.is_some_and(|at| at <= now_ns) {
            self.step(now_ns, Input::Deadline);
        }
        self.neighbours
            .handle_timeout(now_ns, &self.config, &mut self.counters);
        self.reschedule();
    }

    fn reschedule(&mut self) {
        let neighbours = self.neighbours.next_timeout(&self.config);
        self.next_ns = [self.deadline_ns, neighbours].into_iter().flatten().min();
    }

    /// What happens to our N_Port_ID, in every state.
    fn step(&mut self, now_ns: u64, input: Input) {
        use Vn2vnState::{Claim, Probe1, Probe2, Start, Stopped, Up};
        match (self.state, input) {
            (Stopped, Input::Start) => {
                self.restarts = 0;
                self.wait_to_probe(now_ns);
            }
            (Stopped, _) | (_, Input::Start) => {}
            (_, Input::Stop) => {
                self.give_up_id();
                self.enter(Stopped, None);
            }
            (Start, Input::Deadline) => self.probe(now_ns, Probe1, self.config.probe_wait_ns),
            (Probe1, Input::Deadline) => self.probe(now_ns, Probe2, self.config.announce_wait_ns),
            (Probe2, Input::Deadline) => {
                self.claims = self.claims.wrapping_add(1);
                self.claim(now_ns);
                self.enter(
                    Claim,
                    Some(now_ns.saturating_add(self.config.announce_wait_ns)),
                );
            }
            (Claim, Input::Deadline) => {
                self.up_ns = now_ns;
                self.broadcasts.beacon = true;
                self.enter(
                    Up,
                    Some(now_ns.saturating_add(self.config.announce_wait_ns)),
                );
            }
            (Up, Input::Deadline) => {
                let fuzz_ns = self.random.below(self.config.beacon_fuzz_ns);
                let wait_ns = self.config.beacon_interval_ns.saturating_add(fuzz_ns);
                self.broadcasts.beacon = true;
                self.deadline_ns = Some(now_ns.saturating_add(wait_ns));
            }
            (
                Probe1 | Probe2,
                Input::Probed {
                    enode_mac,
                    yields: true,
                },
            )
            | (Claim | Up, Input::Probed { enode_mac, .. }) => {
                let answer = Answer::Probe(enode_mac);
                self.answers.push(now_ns, answer, &mut self.counters);
            }
            (Up, Input::Refused) | (Claim | Up, Input::Taken { yields: true }) => {
                let limited = Vn2vnCounter::DefencesLimited;
                if self.defences.allow(now_ns, &mut self.counters, limited) {
                    self.counters.count(Vn2vnCounter::Defended);
                    self.claim(now_ns);
                }
            }
            (Start | Probe1 | Probe2, Input::Probed { .. })
            | (Start | Probe1 | Probe2 | Claim, Input::Refused)
            | (Start | Probe1 | Probe2 | Claim | Up, Input::Taken { .. }) => self.restart(now_ns),
        }
    }

    fn enter(&mut self, state: Vn2vnState, deadline_ns: Option<u64>) {
        self.state = state;
        self.deadline_ns = deadline_ns;
    }

    fn probe(&mut self, now_ns: u64, next: Vn2vnState, wait_ns: u64) {
        self.broadcasts.probe = true;
        self.enter(next, Some(now_ns.saturating_add(wait_ns)));
    }

    fn claim(&mut self, now_ns: u64) {
        self.broadcasts.claim = true;
        self.claimed_ns = now_ns;
    }

    /// Another N_Port_ID.
    fn restart(&mut self, now_ns: u64) {
        self.counters.count(Vn2vnCounter::Restarts);
        let up_for_ns = now_ns.saturating_sub(self.up_ns);
        if self.state == Vn2vnState::Up && up_for_ns >= self.config.restart_pause_ns {
            self.restarts = 0;
        }
        self.give_up_id();
        self.id = vn2vn_id(self.random.next() as u16);
        self.restarts = self.restarts.saturating_add(1);
        self.wait_to_probe(now_ns);
    }

    fn wait_to_probe(&mut self, now_ns: u64) {
        let wait_ns = if self.restarts > self.config.quick_restarts {
            self.config.restart_pause_ns
        } else {
            self.random.below(self.config.start_wait_ns)
        };
        self.enter(Vn2vnState::Start, Some(now_ns.saturating_add(wait_ns)));
    }

    /// Whatever was said or would be under this N_Port_ID is void.
    fn give_up_id(&mut self) {
        self.broadcasts = Broadcasts::default();
        self.answers.clear();
        self.neighbours.clear();
    }

    /// The next frame to send. It counts as sent.
    pub fn poll_outbound(&mut self) -> Option<Outbound> {
        let all = MacAddress::ALL_VN2VN;
        let own_fcoe_bytes = self.config.fcoe_bytes();
        let (counter, dst, message, pdu_bytes) = if core::mem::take(&mut self.broadcasts.probe) {
            (
                Vn2vnCounter::TxProbeRequests,
                all,
                Vn2vnMessage::ProbeRequest,
                0,
            )
        } else if core::mem::take(&mut self.broadcasts.claim) {
            let message = Vn2vnMessage::ClaimNotification(claim_of(own_fcoe_bytes));
            (Vn2vnCounter::TxClaims, all, message, 0)
        } else if core::mem::take(&mut self.broadcasts.beacon) {
            (Vn2vnCounter::TxBeacons, all, Vn2vnMessage::Beacon, 0)
        } else if let Some(answer) = self.answers.pop() {
            match answer {
                Answer::Probe(dst) => (
                    Vn2vnCounter::TxProbeReplies,
                    dst,
                    Vn2vnMessage::ProbeReply,
                    0,
                ),
                Answer::Claim(dst, pdu_bytes) => {
                    let message = Vn2vnMessage::ClaimResponse(claim_of(own_fcoe_bytes));
                    (Vn2vnCounter::TxClaimResponses, dst, message, pdu_bytes)
                }
            }
        } else {
            // The size that is claimed is that of the padded response.
            let (dst, size_bytes) = self.neighbours.poll_path_test()?;
            let message = Vn2vnMessage::ClaimNotification(claim_of(size_bytes));
            (Vn2vnCounter::TxClaims, dst, message, 0)
        };
        self.counters.count(counter);
        let frame = Vn2vnFrame {
            recorded: false,
            port: self.port(),
            message,
        };
        let padded_bytes = ethernet::HEADER_BYTES + usize::from(pdu_bytes);
        Some(Outbound {
            dst,
            frame,
            frame_bytes: frame.bytes().max(padded_bytes),
        })
    }

    fn port(&self) -> VnPort {
        VnPort {
            enode_mac: self.config.enode_mac,
            node_name: self.config.node_name,
            id: VnPortId {
                mac: MacAddress::vn2vn(self.id),
                n_port_id: self.id,
                port_name: self.config.port_name,
            },
        }
    }

    /// The next thing to know.
    pub fn poll_event(&mut self) -> Option<Vn2vnEvent> {
        let claim = self.has_id().then_some(self.claims);
        match self.told {
            Some((told, _)) if claim != Some(told) => {
                self.told = None;
                return Some(Vn2vnEvent::Lost);
            }
            None => {
                self.told = Some((claim?, false));
                return Some(Vn2vnEvent::Claimed(self.id));
            }
            Some((told, false)) if self.state == Vn2vnState::Up => {
                self.told = Some((told, true));
                return Some(Vn2vnEvent::Up(self.id));
            }
            Some(_) => {}
        }
        // Whoever is logged in with must find us up.
        let is_up = self.state == Vn2vnState::Up;
        Some(match self.neighbours.poll_news(is_up)? {
            News::Found(neighbour) => Vn2vnEvent::NeighbourFound(neighbour),
            News::Heard(neighbour) => Vn2vnEvent::NeighbourHeard(neighbour),
            News::Gone(neighbour, reason) => Vn2vnEvent::NeighbourGone {
                port_name: neighbour.port_name,
                id: neighbour.id,
                reason,
            },
        })
    }
}

#[cfg(test)]
impl Vn2vn {
    /// Room for neighbours and for answers, taken at construction.
    pub(crate) fn places(&self) -> (usize, usize) {
        (self.neighbours.places(), self.answers.places())
    }
}

/// What our claims say: FC-VI, and this size.
fn claim_of(max_fcoe_bytes: u16) -> Claim {
    Claim {
        fc4: Fc4Attributes::default().with(FcType::Vi, 0),
        max_fcoe_bytes,
    }
}
