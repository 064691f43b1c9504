//! FIP VN2VN: N_Port_ID and neighbour discovery on a link without a switch.
//!
//! ```text
//!                    ┌─────────────────────────────────────────────────────────────┐
//!                    │ another port has the N_Port_ID, or precedence for it:       │
//!                    │ a random one, at once or, after ten times, in 10 s          │
//!                    v                                                             │
//! Stopped ──────> Start ─────────> Probe1 ─────────> Probe2 ─────────> Claim ─────────> Up
//!         start()        0-100 ms          100 ms            400 ms           400 ms
//!                        probe             probe             claim            beacon,
//!                                                            Claimed          repeated
//! ```
//!
//! The rules are those of VN2VN as Linux implements it; `docs/spec/vn2vn.md` has each of them, our
//! additions, and every event in every state. One [`Vn2vn`] is one VN_Port; several of a host can
//! share an interface, and each ignores frames for the others.
//!
//! It has no clock, thread or socket, and allocates at construction only.
//!
//! | module | contents |
//! | --- | --- |
//! | [`config`] | [`Vn2vnConfig`]: identity, timers, limits |
//! | `receive` | frames checked, and their effect |
//! | `neighbour` | the table of neighbours |
//! | `path` | the maximum size of frames from a neighbour |
//! | `outbound` | frames to send |
//! | [`counters`] | counters of every frame, by reason |

pub mod config;
pub mod counters;
mod neighbour;
mod outbound;
mod path;
mod receive;
#[cfg(test)]
mod tests;

use fcvi_frame::MacAddress;
use fcvi_frame::ethernet;
use fcvi_frame::fc::NPortId;
use fcvi_frame::fip::{Claim, Fc4Attributes, Vn2vnFrame, Vn2vnMessage, VnPort, VnPortId};

pub use config::Vn2vnConfig;
pub use counters::{Vn2vnCounter, Vn2vnCounters};
pub use neighbour::GoneReason;
pub use outbound::Outbound;

use crate::random::Random;
use crate::rate_limiter::RateLimiter;
use crate::{Fc4, Neighbour};
use config::{is_vn2vn_id, vn2vn_id};
use neighbour::{NeighbourChange, Neighbours};
use outbound::{Answer, Answers, Broadcasts, Sender};

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vn2vnState {
    /// The link is down: frames are neither sent nor accepted.
    Stopped,
    /// Waits before the first probe for its N_Port_ID.
    Start,
    /// One probe was sent.
    Probe1,
    /// Two probes were sent.
    Probe2,
    /// No port objected: the N_Port_ID is claimed.
    Claim,
    /// Beacons are sent.
    Up,
}

/// An event for the owner of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vn2vnEvent {
    /// This N_Port_ID, and the MAC address that belongs to it, are ours.
    Claimed(NPortId),
    /// No port objected; neighbours can log in with us.
    Up(NPortId),
    /// The N_Port_ID and all neighbours are lost; these are not reported one by one.
    Lost,
    /// A neighbour was found.
    NeighbourFound(Neighbour),
    /// Its first beacon arrived and the size of frames that arrive from it is known: a login can
    /// start.
    NeighbourReady(Neighbour),
    /// A claim contradicts this pinned neighbour. Its login is to be verified: then
    /// [`Vn2vn::neighbour_denied`] is called if it ended.
    NeighbourDoubted {
        /// Its Port_Name.
        port_name: u64,
    },
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

/// An event that concerns our N_Port_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Start,
    Stop,
    Deadline,
    /// Another port probes for it.
    Probed {
        enode_mac: MacAddress,
        /// The port has lower precedence.
        yields: bool,
    },
    /// Another port that has it, or has precedence for it, replied to our probe.
    Refused,
    /// Another port has it.
    Taken {
        /// The port has lower precedence.
        yields: bool,
        port_name: u64,
    },
}

/// Discovery and N_Port_ID of one VN_Port.
///
/// Verbs: [`Vn2vn::start`] and [`Vn2vn::stop`] with the link, [`Vn2vn::handle_frame`],
/// [`Vn2vn::handle_timeout`]; then [`Vn2vn::poll_outbound`] and [`Vn2vn::poll_event`] until both
/// return `None`. Times are nanoseconds of the caller's monotonic clock.
#[derive(Debug)]
pub struct Vn2vn {
    config: Vn2vnConfig,
    random: Random,
    state: Vn2vnState,
    id: NPortId,
    /// Deadline of the current state.
    deadline_ns: Option<u64>,
    /// Reset after the port was up for a while.
    restarts: u32,
    up_ns: u64,
    claimed_ns: u64,
    /// Number of N_Port_IDs claimed so far, so that each is reported to the owner.
    claims: u64,
    /// The last of them that was reported, and whether `Up` was reported too.
    reported: Option<(u64, bool)>,
    broadcasts: Broadcasts,
    answers: Answers,
    defences: RateLimiter,
    /// The last port with lower precedence that had our N_Port_ID, and when its first frame arrived.
    contender: Option<(u64, u64)>,
    neighbours: Neighbours,
    counters: Vn2vnCounters,
    next_ns: Option<u64>,
}

impl Vn2vn {
    /// Creates a stopped port. `seed`: 64 random bits, different for each port.
    pub fn new(config: Vn2vnConfig, seed: u64) -> Self {
        let preferred = config.preferred.filter(|id| is_vn2vn_id(*id));
        let mut random = Random::new(seed);
        Self {
            neighbours: Neighbours::new(&config, random.next()),
            random,
            state: Vn2vnState::Stopped,
            id: preferred.unwrap_or_else(|| vn2vn_id(config.port_name as u16)),
            deadline_ns: None,
            restarts: 0,
            up_ns: 0,
            claimed_ns: 0,
            claims: 0,
            reported: None,
            broadcasts: Broadcasts::default(),
            answers: Answers::new(&config),
            defences: RateLimiter::default(),
            contender: None,
            counters: Vn2vnCounters::default(),
            next_ns: None,
            config,
        }
    }

    /// Returns the identity and limits of this port.
    pub fn config(&self) -> &Vn2vnConfig {
        &self.config
    }

    /// Returns the state.
    pub fn state(&self) -> Vn2vnState {
        self.state
    }

    /// Returns the N_Port_ID, if one is claimed.
    pub fn id(&self) -> Option<NPortId> {
        self.has_id().then_some(self.id)
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Vn2vnCounters {
        &self.counters
    }

    /// Returns the current neighbours.
    pub fn neighbours(&self) -> impl Iterator<Item = &Neighbour> {
        self.neighbours.iter().map(|(neighbour, _)| neighbour)
    }

    /// Returns the current neighbours, each with the time at which its last frame was received.
    pub fn neighbours_with_last_rx(&self) -> impl Iterator<Item = (&Neighbour, u64)> {
        self.neighbours.iter()
    }

    /// Pins the neighbour with this N_Port_ID, or unpins it: while it is pinned, because it is logged
    /// in, it is neither evicted nor replaced, and we keep our N_Port_ID. It is removed if it stays
    /// silent.
    pub fn set_pinned(&mut self, id: NPortId, is_pinned: bool) {
        self.neighbours.set_pinned(id, is_pinned);
    }

    /// Removes the neighbour with this N_Port_ID, which did not confirm its login after
    /// [`Vn2vnEvent::NeighbourDoubted`], and finds the port that contradicted it.
    pub fn neighbour_denied(&mut self, now_ns: u64, id: NPortId) {
        self.neighbours.end_denied(id, &mut self.counters);
        self.find_again(now_ns);
        self.reschedule();
    }

    /// Requests the claims of all ports; a beacon lets them log in with us at once.
    fn find_again(&mut self, now_ns: u64) {
        if self.request_claims(now_ns) {
            self.broadcasts.beacon = true;
        }
    }

    fn has_id(&self) -> bool {
        matches!(self.state, Vn2vnState::Claim | Vn2vnState::Up)
    }

    /// Starts discovery: the link is up. The N_Port_ID of an earlier run is tried first.
    pub fn start(&mut self, now_ns: u64) {
        self.step(now_ns, Input::Start);
        self.reschedule();
    }

    /// Stops discovery: the link is down, or the port closes. Other ports notice by its silence.
    pub fn stop(&mut self, now_ns: u64) {
        self.step(now_ns, Input::Stop);
        self.reschedule();
    }

    /// Returns the time at which [`Vn2vn::handle_timeout`] is to be called.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.next_ns
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.deadline_ns.is_some_and(|at| at <= now_ns) {
            self.step(now_ns, Input::Deadline);
        }
        let (config, counters) = (&self.config, &mut self.counters);
        if self.neighbours.handle_timeout(now_ns, config, counters) {
            self.find_again(now_ns);
        }
        self.reschedule();
    }

    fn reschedule(&mut self) {
        let neighbours = self.neighbours.next_timeout(&self.config);
        self.next_ns = [self.deadline_ns, neighbours].into_iter().flatten().min();
    }

    /// Handles an event that concerns our N_Port_ID, in every state.
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
                self.answers
                    .push(now_ns, answer, Sender::Other, &mut self.counters);
            }
            // It is in use, whatever the names are: a frame is easily forged.
            (Up, Input::Taken { yields: false, .. }) if self.neighbours.has_pinned() => {
                self.counters.count(Vn2vnCounter::Kept);
                self.defend(now_ns);
            }
            (
                Claim | Up,
                Input::Taken {
                    yields: true,
                    port_name,
                },
            ) if self.is_unheeded(now_ns, port_name) => {
                self.restart(now_ns);
            }
            (Up, Input::Refused) | (Claim | Up, Input::Taken { yields: true, .. }) => {
                self.defend(now_ns);
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

    fn defend(&mut self, now_ns: u64) {
        if self.defences.take(now_ns, self.config.max_defences_per_s) {
            self.counters.count(Vn2vnCounter::Defended);
            self.claim(now_ns);
        } else {
            self.counters.count(Vn2vnCounter::DefencesLimited);
        }
    }

    /// Notes that a port with lower precedence has our N_Port_ID. Reports whether it kept it although
    /// we claimed it: its neighbours are logged in then, and ours are not.
    fn is_unheeded(&mut self, now_ns: u64, port_name: u64) -> bool {
        let since_ns = match self.contender {
            Some((known, first_ns)) if known == port_name => now_ns.saturating_sub(first_ns),
            _ => u64::MAX,
        };
        let (min_ns, max_ns) = (
            self.config.announce_wait_ns,
            self.config.neighbour_lifetime_ns,
        );
        if since_ns > max_ns {
            self.contender = Some((port_name, now_ns));
        }
        (min_ns..=max_ns).contains(&since_ns) && !self.neighbours.has_pinned()
    }

    /// Chooses another N_Port_ID.
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

    /// Discards everything sent or queued under this N_Port_ID.
    fn give_up_id(&mut self) {
        self.contender = None;
        self.broadcasts = Broadcasts::default();
        self.answers.clear();
        self.neighbours.clear();
    }

    /// Returns the next frame to send. It counts as sent.
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
            let message = Vn2vnMessage::ClaimNotification(self.claim_of(own_fcoe_bytes));
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
                    let message = Vn2vnMessage::ClaimResponse(self.claim_of(own_fcoe_bytes));
                    (Vn2vnCounter::TxClaimResponses, dst, message, pdu_bytes)
                }
            }
        } else {
            // The claimed size is that of the padded response.
            let (dst, size_bytes) = self.neighbours.poll_path_test()?;
            let message = Vn2vnMessage::ClaimNotification(self.claim_of(size_bytes));
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

    /// Returns our claim with this size.
    fn claim_of(&self, max_fcoe_bytes: u16) -> Claim {
        let Fc4 {
            fc_type, features, ..
        } = self.config.fc4;
        Claim {
            fc4: Fc4Attributes::default().with(fc_type, features),
            max_fcoe_bytes,
        }
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

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Vn2vnEvent> {
        let claim = self.has_id().then_some(self.claims);
        match self.reported {
            Some((reported, _)) if claim != Some(reported) => {
                self.reported = None;
                return Some(Vn2vnEvent::Lost);
            }
            None => {
                self.reported = Some((claim?, false));
                return Some(Vn2vnEvent::Claimed(self.id));
            }
            Some((reported, false)) if self.state == Vn2vnState::Up => {
                self.reported = Some((reported, true));
                return Some(Vn2vnEvent::Up(self.id));
            }
            Some(_) => {}
        }
        // `Ready` is reported only after `Up`.
        let is_up = self.state == Vn2vnState::Up;
        Some(match self.neighbours.poll_change(is_up)? {
            NeighbourChange::Found(neighbour) => Vn2vnEvent::NeighbourFound(neighbour),
            NeighbourChange::Ready(neighbour) => Vn2vnEvent::NeighbourReady(neighbour),
            NeighbourChange::Doubted(neighbour) => {
                self.counters.count(Vn2vnCounter::Doubted);
                Vn2vnEvent::NeighbourDoubted {
                    port_name: neighbour.port_name,
                }
            }
            NeighbourChange::Gone(neighbour, reason) => Vn2vnEvent::NeighbourGone {
                port_name: neighbour.port_name,
                id: neighbour.id,
                reason,
            },
        })
    }
}

#[cfg(test)]
impl Vn2vn {
    /// Returns the capacities for neighbours and for answers, allocated at construction.
    pub(crate) fn capacities(&self) -> (usize, usize) {
        (self.neighbours.capacity(), self.answers.capacity())
    }
}
