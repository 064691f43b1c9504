//! Two ports that log in, log out and restart, on a network that repeats link services for R_A_TOV. No stale link
//! service ends a login or starts one with a port that is not present. Frames arrive at once and are repeated later; an
//! FLOGI may also be delayed. No request is repeated to a port that has restarted and lost its record of it.

use fcvi_frame::MacAddress;
use fcvi_frame::els::ElsCommand;
use fcvi_frame::fc::{NPortId, RCtl};
use vi_types::HostAddress;

use crate::Neighbour;
use crate::login::{
    Carrier, ElsOut, LoginConfig, LoginCounter, LoginEvent, LoginMachine, PortState,
};
use crate::testkit::FC_VI;
use protocol_testkit::rng::Rng;
use protocol_testkit::time::{MS, S};

const LATENCY_NS: u64 = 10_000;
const R_A_TOV_NS: u64 = 30 * S;
/// Maximum delay of an FLOGI, so that it may arrive after the login.
const DELAY_NS: u64 = 4 * S;
/// Maximum time until a restarted port is logged in: two retries, the delay, and the interval between two verifications.
const ROUND_NS: u64 = 10 * S;

/// One port, as the network and the checks see it.
struct Port {
    machine: LoginMachine,
    number: u8,
    is_up: bool,
    is_closing: bool,
    /// Number of restarts.
    life: u32,
    /// The life of the peer with which it reported a login.
    logged_in_with: Option<u32>,
}

struct Simulation {
    ports: [Port; 2],
    ox_ids: u16,
    now_ns: u64,
    rng: Rng,
    /// Frames sent within R_A_TOV: time, destination, frame.
    past: Vec<(u64, usize, ElsOut)>,
    /// Frames in flight: time of arrival, destination, frame.
    in_flight: Vec<(u64, usize, ElsOut)>,
}

fn neighbour(number: u8) -> Neighbour {
    Neighbour {
        id: NPortId::from_bytes([0, 0, number]),
        port_name: 0x2000_0000_0000_0000 + u64::from(number),
        node_name: 0x1000_0000_0000_0000 + u64::from(number),
        enode_mac: MacAddress([2, 0, 0, 0, 0, number]),
        max_fcoe_bytes: 2158,
        path_fcoe_bytes: None,
        supports_fc4: false,
    }
}

/// Returns the machine of a port. Each life has its own OX_IDs, as if their start were random.
fn machine(number: u8, life: u32, ox_ids: u16) -> LoginMachine {
    let me = neighbour(number);
    let host = HostAddress::from_ipv4([10, 0, 0, number]);
    let config = LoginConfig {
        r_a_tov_ns: R_A_TOV_NS,
        max_neighbours: 1,
        first_ox_id: life as u16 * 0x1000,
        ox_ids,
        ..LoginConfig::new(me.port_name, me.node_name, FC_VI, Some(host))
    };
    LoginMachine::new(config, u64::from(number))
}

/// Runs some rounds; in each a port restarts, with or without a LOGO before. `ox_ids`: number of OX_IDs per port.
pub(super) fn run(seed: u64, ox_ids: u16) -> Result<(), String> {
    let port = |number| Port {
        machine: machine(number, 0, ox_ids),
        number,
        is_up: false,
        is_closing: false,
        life: 0,
        logged_in_with: None,
    };
    let mut simulation = Simulation {
        ports: [port(1), port(2)],
        ox_ids,
        now_ns: S,
        rng: Rng::new(seed),
        past: Vec::new(),
        in_flight: Vec::new(),
    };
    simulation.start(0)?;
    simulation.start(1)?;
    simulation.complete()?;
    for _ in 0..6 {
        let at = simulation.rng.below(2) as usize;
        if simulation.rng.below(3) > 0 {
            let now_ns = simulation.now_ns;
            simulation.ports[at].is_closing = true;
            simulation.ports[at].machine.close(now_ns);
            simulation.run(S)?;
        }
        simulation.stop(at)?;
        simulation.start(at)?;
        simulation.complete()?;
    }
    Ok(())
}

impl Simulation {
    /// Stops a port, which is then absent for a random time.
    fn stop(&mut self, at: usize) -> Result<(), String> {
        let port = &mut self.ports[at];
        port.is_up = false;
        port.is_closing = false;
        port.logged_in_with = None;
        port.life += 1;
        port.machine = machine(port.number, port.life, self.ox_ids);
        let is_request = |to: usize, out: &ElsOut| to == at && out.fc.r_ctl == RCtl::ElsRequest;
        self.past.retain(|(_, to, out)| !is_request(*to, out));
        self.in_flight.retain(|(_, to, out)| !is_request(*to, out));
        let wait_ns = self.rng.below(3 * S);
        self.run(wait_ns)
    }

    fn start(&mut self, at: usize) -> Result<(), String> {
        let (me, peer) = (self.neighbour(at), self.neighbour(1 - at));
        self.ports[at].is_up = true;
        let now_ns = self.now_ns;
        self.ports[at].machine.set_id(now_ns, Some(me.id));
        if !self.ports[1 - at].is_up {
            return Ok(());
        }
        self.ports[at].machine.neighbour_found(now_ns, &peer);
        self.ports[1 - at].machine.neighbour_found(now_ns, &me);
        let wait_ns = self.rng.below(100 * MS);
        self.run(wait_ns)?;
        let now_ns = self.now_ns;
        self.ports[at].machine.neighbour_ready(now_ns, &peer);
        self.ports[1 - at].machine.neighbour_ready(now_ns, &me);
        Ok(())
    }

    fn neighbour(&self, at: usize) -> Neighbour {
        neighbour(self.ports[at].number)
    }

    /// Waits until both are logged in with the current life of each other.
    fn complete(&mut self) -> Result<(), String> {
        self.run(ROUND_NS)?;
        for at in 0..2 {
            // A port without a usable OX_ID waits for one.
            let waits = |port: &Port| port.machine.counters().get(LoginCounter::NoExchange) > 0;
            if !self.ports.iter().any(waits)
                && self.ports[at].logged_in_with != Some(self.ports[1 - at].life)
            {
                return Err(format!("port {at} is not logged in with its peer"));
            }
        }
        Ok(())
    }

    fn run(&mut self, ns: u64) -> Result<(), String> {
        let end_ns = self.now_ns + ns;
        let mut again_ns = self.now_ns;
        loop {
            self.pump()?;
            let frames = self.in_flight.iter().map(|(at_ns, ..)| *at_ns);
            let timers = self.ports.iter().filter(|port| port.is_up);
            let timers = timers.filter_map(|port| port.machine.poll_timeout());
            let next = frames.chain(timers).chain([again_ns]).min();
            let Some(at_ns) = next.filter(|at_ns| *at_ns <= end_ns) else {
                break;
            };
            self.now_ns = at_ns.max(self.now_ns);
            let now_ns = self.now_ns;
            let lives = |(sent_ns, ..): &(u64, usize, ElsOut)| sent_ns + R_A_TOV_NS > now_ns;
            self.past.retain(lives);
            if again_ns <= self.now_ns {
                again_ns = self.now_ns + 400 * MS;
                self.repeat_any()?;
            }
            while let Some(index) = self.in_flight.iter().position(|(at, ..)| *at <= now_ns) {
                let (_, to, out) = self.in_flight.remove(index);
                for stale in self.similar(to, &out) {
                    self.deliver(to, &stale)?;
                }
                self.deliver(to, &out)?;
            }
            for port in self.ports.iter_mut().filter(|port| port.is_up) {
                port.machine.handle_timeout(now_ns);
            }
        }
        self.now_ns = end_ns;
        Ok(())
    }

    /// Delivers a random frame of the last R_A_TOV again.
    fn repeat_any(&mut self) -> Result<(), String> {
        if self.past.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.past.len() as u64) as usize;
        let (_, to, out) = self.past[at];
        self.deliver(to, &out)
    }

    /// Delivers the response to an older request on this exchange before that to the new one.
    fn repeat_older_response(&mut self, at: usize, ox_id: u16) {
        let mut past = self.past.iter();
        let is_it = |(_, to, out): &&(u64, usize, ElsOut)| {
            *to == at && out.fc.ox_id == ox_id && out.fc.r_ctl == RCtl::ElsReply
        };
        if let Some((.., stale)) = past.find(is_it) {
            self.in_flight.push((self.now_ns, at, *stale));
        }
    }

    /// Returns an older frame of the same exchange and kind, and one of the same command.
    fn similar(&mut self, to: usize, out: &ElsOut) -> Vec<ElsOut> {
        let command = |out: &ElsOut| ElsCommand::parse(out.payload());
        let older = self.past.iter().filter(|(_, whose, _)| *whose == to);
        let older: Vec<ElsOut> = older.map(|(.., old)| *old).collect();
        let same_exchange =
            |old: &&ElsOut| old.fc.ox_id == out.fc.ox_id && old.fc.r_ctl == out.fc.r_ctl;
        let same_command = |old: &&ElsOut| command(old) == command(out);
        let exchange = older.iter().find(same_exchange).copied();
        let some = self.rng.below(3) == 0;
        let command = older.iter().find(same_command).copied().filter(|_| some);
        let mut similar: Vec<ElsOut> = exchange.into_iter().chain(command).collect();
        similar.retain(|old| old != out);
        similar
    }

    fn deliver(&mut self, to: usize, out: &ElsOut) -> Result<(), String> {
        if !self.ports[to].is_up {
            return Ok(());
        }
        let source = match out.carrier {
            Carrier::Fip(_) => self.neighbour(1 - to).enode_mac,
            Carrier::Fcoe => MacAddress::vn2vn(out.fc.s_id),
        };
        let now_ns = self.now_ns;
        let machine = &mut self.ports[to].machine;
        machine.handle_els(now_ns, out.carrier, source, &out.fc, out.payload());
        self.check(to)
    }

    fn pump(&mut self) -> Result<(), String> {
        for at in 0..2 {
            self.check(at)?;
            while self.ports[at].is_up
                && let Some(out) = self.ports[at].machine.poll_outbound()
            {
                let request = out.fc.r_ctl == RCtl::ElsRequest;
                let flogi = ElsCommand::parse(out.payload()) == Ok(ElsCommand::Flogi);
                let delayed = request && flogi && self.rng.below(4) == 0;
                let delay_ns = if delayed { self.rng.below(DELAY_NS) } else { 0 };
                let arrives_ns = self.now_ns + LATENCY_NS + delay_ns;
                self.in_flight.push((arrives_ns, 1 - at, out));
                if request {
                    self.repeat_older_response(at, out.fc.ox_id);
                }
                if flogi || self.ports[1 - at].is_up {
                    self.past.push((self.now_ns, 1 - at, out));
                }
            }
        }
        Ok(())
    }

    /// Checks the events that a port reports.
    fn check(&mut self, at: usize) -> Result<(), String> {
        while let Some(event) = self.ports[at].machine.poll_event() {
            let now_ns = self.now_ns;
            let (own, other) = (&self.ports[at], &self.ports[1 - at]);
            match event {
                LoginEvent::LoggedIn(_) => {
                    let asks = |state| matches!(state, PortState::PlogiSent | PortState::LoggedIn);
                    // The port with the larger name sends PLOGI; the other one accepts first.
                    let agrees = other.machine.ports().any(|port| {
                        port.login.is_some() || (own.number < other.number && asks(port.state))
                    });
                    let life = other.life;
                    if !other.is_up || !agrees {
                        return Err(format!(
                            "{now_ns}: port {at} reports a login without its peer"
                        ));
                    }
                    self.ports[at].logged_in_with = Some(life);
                }
                LoginEvent::LoggedOut { reason, .. } => {
                    let is_over = own.is_closing
                        || other.is_closing
                        || own.logged_in_with != Some(other.life);
                    if !is_over && other.is_up {
                        return Err(format!(
                            "{now_ns}: port {at} ends a valid login: {reason:?}"
                        ));
                    }
                    self.ports[at].logged_in_with = None;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
