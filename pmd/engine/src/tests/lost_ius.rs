//! Effects of lost, repeated and late connection IUs on both sides; writes docs/spec/lost-connection-ius.md.

use std::fmt::Write;

use fcvi_frame::iu::Opcode::{
    self, ConnectRequest as Rqst, ConnectResponse1 as Resp1, ConnectResponse2 as Resp2,
    ConnectResponse3 as Resp3, DisconnectRequest, DisconnectResponse,
};
use vi_types::{AsyncError, CallError, ReliabilityLevel, ViIndex, ViState};

use crate::testkit::document::compare;
use crate::testkit::io::Event;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};
use crate::{Counter, RemoteVi};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
/// The node that originates the connection; of two peers the higher one.
const ORIGINATOR: usize = CLIENT;
const RESPONDER: usize = SERVER;
/// Timeout of the connection calls.
const TIMEOUT: u64 = 30 * S;
/// Delay of a late frame, below the R_A_TOV of 10 s.
const LATE: u64 = 9 * S;
/// Duration of a run, after which all procedures have ended.
const END_MS: u64 = 80_000;

const DOCUMENT: &str = "lost-connection-ius.md";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    ClientServer,
    PeerToPeer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    LostOnce,
    LostAlways,
    /// Each arrives three times: at once, at once again, and after a second.
    Repeated,
    /// All are lost; the last one that was sent arrives after 9 s.
    Late,
}

/// The IU that the fault affects, and the node that sends it.
#[derive(Clone, Copy, Debug)]
struct Subject {
    name: &'static str,
    from: usize,
    opcode: Opcode,
}

const fn subject(name: &'static str, from: usize, opcode: Opcode) -> Subject {
    Subject { name, from, opcode }
}

const CONNECT: [Subject; 4] = [
    subject("RQST", ORIGINATOR, Rqst),
    subject("RESP1", RESPONDER, Resp1),
    subject("RESP2", ORIGINATOR, Resp2),
    subject("RESP3", RESPONDER, Resp3),
];
/// Additional IUs of peers whose requests cross.
const CROSSED: [Subject; 2] = [
    subject("RQST of the lower peer", RESPONDER, Rqst),
    subject("RESP1 of the higher peer", ORIGINATOR, Resp1),
];
const DISCONNECT: [Subject; 2] = [
    subject("DISCONNECT_RQST", ORIGINATOR, DisconnectRequest),
    subject("DISCONNECT_RESP", RESPONDER, DisconnectResponse),
];

/// The events of both sides with their times, and how often the IU was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Observations {
    sides: [Vec<String>; 2],
    sent: usize,
}

struct Run {
    net: Net,
    vis: [ViIndex; 2],
    mode: Mode,
    subject: Subject,
    fault: Fault,
    start_ns: u64,
    listener: Option<u64>,
    seen: usize,
    /// When the last frame of the subject was sent.
    last_sent_ns: u64,
    observed: Observations,
}

fn time(ms: u64) -> String {
    match ms {
        0 => "at once".to_owned(),
        1..1000 => format!("at {ms} ms"),
        _ => format!("at {}.{} s", ms / 1000, ms % 1000 / 100),
    }
}

impl Run {
    fn new(mode: Mode, subject: Subject, fault: Fault) -> Self {
        let mut configs = [CLIENT, SERVER].map(config);
        configs[ORIGINATOR].port_name = configs[RESPONDER].port_name + 1;
        let mut net = Net::new(configs.to_vec(), 21);
        let vis = [ORIGINATOR, RESPONDER].map(|node| net.create(node, params(RD)));
        Self {
            start_ns: net.now_ns,
            net,
            vis,
            mode,
            subject,
            fault,
            listener: None,
            seen: 0,
            last_sent_ns: 0,
            observed: Observations {
                sides: [Vec::new(), Vec::new()],
                sent: 0,
            },
        }
    }

    /// Starts the connection: a client request and a listener, or two peer requests.
    fn connect(&mut self) {
        let [a, b] = self.vis;
        match self.mode {
            Mode::ClientServer => {
                self.listener = Some(self.net.listen(RESPONDER, "x"));
                self.net
                    .request(ORIGINATOR, a, "x", &[RESPONDER], Some(TIMEOUT));
            }
            Mode::PeerToPeer => {
                self.net
                    .peer_request(RESPONDER, b, "x", &[ORIGINATOR], Some(TIMEOUT));
                self.net
                    .peer_request(ORIGINATOR, a, "x", &[RESPONDER], Some(TIMEOUT));
            }
        }
    }

    fn begin(&mut self) {
        self.net.clear_logs();
        self.net.wire.trace.clear();
        (self.seen, self.start_ns) = (0, self.net.now_ns);
        self.observed.sides = [Vec::new(), Vec::new()];
        let count = match self.fault {
            Fault::None | Fault::Repeated => 0,
            Fault::LostOnce => 1,
            Fault::LostAlways | Fault::Late => u32::MAX,
        };
        self.net
            .wire
            .lose(self.subject.from, self.subject.opcode, count);
    }

    /// Advances by one millisecond.
    fn tick(&mut self, ms: u64) {
        self.net.advance(MS);
        let found = self
            .listener
            .and_then(|listener| self.net.indication(RESPONDER, listener));
        if let Some(found) = found {
            self.listener = None;
            let accepted = self.net.accept(RESPONDER, found.conn, self.vis[1]);
            accepted.expect("an Idle VI");
        }
        for at in self.seen..self.net.wire.trace.len() {
            self.repeat(at);
        }
        self.seen = self.net.wire.trace.len();
        self.record_events(ms);
    }

    /// Counts frame number `at` of the trace if the fault affects it, and sends its copies.
    fn repeat(&mut self, at: usize) {
        let sent = &self.net.wire.trace[at];
        if sent.from != self.subject.from || sent.opcode != Some(self.subject.opcode) {
            return;
        }
        self.observed.sent += 1;
        self.last_sent_ns = self.net.now_ns;
        if self.fault == Fault::Repeated {
            let (to, bytes, now_ns) = (1 - sent.from, sent.bytes.clone(), self.net.now_ns);
            for later_ns in [0, S] {
                self.net.wire.inject(now_ns + later_ns, to, bytes.clone());
            }
        }
    }

    /// Records the events and outcomes that the consumers have received.
    fn record_events(&mut self, ms: u64) {
        for (side, node) in [ORIGINATOR, RESPONDER].into_iter().enumerate() {
            let vi = self.vis[side];
            let is_peer_request = self.net.nodes[node].engine.peer_request(vi).is_some();
            let outcome = if is_peer_request {
                self.net.peer_outcome(node, vi)
            } else {
                self.net.outcome(node, vi)
            };
            if let Some(outcome) = outcome {
                let entry = format!("{} {}", name(outcome), time(ms));
                self.observed.sides[side].push(entry);
            }
            for event in self.net.log(node, vi) {
                if let Event::Async(AsyncError::ConnectionLost | AsyncError::Disconnected) = event {
                    let entry = format!("CONN_LOST {}", time(ms));
                    self.observed.sides[side].push(entry);
                }
            }
        }
    }

    fn run(&mut self) {
        for ms in 0..END_MS {
            self.tick(ms);
            self.inject_late(ms);
        }
    }

    fn inject_late(&mut self, ms: u64) {
        if self.fault == Fault::Late && self.net.now_ns == self.last_sent_ns + LATE {
            let frames = self.net.frames(self.subject.from, self.subject.opcode);
            let last = frames.last().expect("one was sent").clone();
            self.net.inject(1 - self.subject.from, &last);
            self.record_events(ms);
        }
    }

    fn states(&self) -> [ViState; 2] {
        [
            self.net.state(ORIGINATOR, self.vis[0]),
            self.net.state(RESPONDER, self.vis[1]),
        ]
    }

    /// Asserts that both sides are connected or neither is, once a side that was not notified has sent, and that no
    /// state remains.
    fn finish(&mut self) {
        self.net.wire.clear_losses();
        let connected = self.states().map(|state| state == ViState::Connected);
        if connected[0] != connected[1] {
            let side = usize::from(connected[1]);
            self.net.post_send(side, self.vis[side], b"message");
            self.net.settle();
            self.observed.sides[side].push("CONN_LOST when it sends".to_owned());
            let state = self.states()[side];
            assert_eq!(state, ViState::Error, "{:?}", self.subject);
        }
        self.net.advance(60 * S);
        for node in &self.net.nodes {
            let engine = &node.engine;
            assert_eq!(engine.exchange_usage().0, 0, "{:?}", self.subject);
            assert_eq!(engine.port.timers.len(), 0, "{:?}", self.subject);
            assert!(engine.port.pending_disconnects.iter().all(Option::is_none));
            assert!(engine.port.incoming.iter().all(Option::is_none));
        }
    }
}

/// Runs a connection setup with this fault.
fn connecting(mode: Mode, subject: Subject, fault: Fault) -> Observations {
    let mut run = Run::new(mode, subject, fault);
    run.begin();
    run.connect();
    run.run();
    run.finish();
    run.observed
}

/// Runs a disconnect of the originator with this fault.
fn disconnecting(mode: Mode, subject: Subject, fault: Fault) -> Observations {
    let mut run = Run::new(mode, subject, Fault::None);
    run.connect();
    for ms in 0..100 {
        run.tick(ms);
    }
    assert_eq!(run.states(), [ViState::Connected; 2]);
    run.fault = fault;
    run.begin();
    run.net.disconnect(ORIGINATOR, run.vis[0]);
    run.observed.sides[0].push("Idle at once".to_owned());
    let mut pending = true;
    for ms in 0..END_MS {
        run.tick(ms);
        let closing = &run.net.nodes[ORIGINATOR].engine.port.pending_disconnects;
        if pending && closing.iter().all(Option::is_none) {
            pending = false;
            let timed_out = run.net.count(ORIGINATOR, Counter::CloseTimeouts) > 0;
            let event = if timed_out { "timeout" } else { "response" };
            run.observed.sides[0].push(format!("{event} {}", time(ms)));
        }
        run.inject_late(ms);
    }
    run.finish();
    run.observed
}

fn name(outcome: Result<RemoteVi, CallError>) -> String {
    match outcome {
        Ok(_) => "Connected".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}

const HEAD: &str = "# Connection IUs that are lost, repeated or late

Made by `pmd/engine/src/tests/lost_ius.rs`: `VIPL_WRITE_DOCUMENTS=1 cargo test -p vi-engine lost_ius`.

Events at both sides when one kind of connection IU is lost once, lost always, arrives three times each (twice at once,
and a second later), or is lost always and its last one arrives 9 s after it was sent. FCVI_ULP_TIMEOUT is 20 s, R_A_TOV
10 s, E_D_TOV 2 s, so that RESP2 times out after 8 s; the timeout of the originator's call and of both peers' calls is
30 s; a listening server accepts at once. Of two peers the originator is the higher one (docs/spec/crossed-requests.md);
both send their requests at the same time.
*sent*: how often the originator or responder sent the IU. Times are those at which a consumer gets the event.

In the end both sides are Connected, or neither is; a side that could not be notified gets CONN_LOST when it sends. No
exchange, timer or table entry remains. Repeated and late IUs have no effect: their rows are compared with those of no
fault, and of the same IU lost.
";

fn row(table: &mut String, name: &str, fault: &str, observed: &Observations) {
    let cell = |events: &[String]| match events {
        [] => "no event".to_owned(),
        events => events.join(", "),
    };
    let [originator, responder] = &observed.sides;
    writeln!(
        table,
        "| {name} | {fault} | {} | {} | {} |",
        observed.sent,
        cell(originator),
        cell(responder)
    )
    .expect("a string");
}

/// Writes the rows of one IU and compares them with each other.
fn rows(table: &mut String, subject: Subject, run: &dyn Fn(Fault) -> Observations) {
    let good = run(Fault::None);
    let once = run(Fault::LostOnce);
    let always = run(Fault::LostAlways);
    let repeated = run(Fault::Repeated);
    let late = run(Fault::Late);
    let what = subject.name;
    assert_eq!(repeated.sides, good.sides, "{what} repeated");
    let disconnects = subject.opcode == DisconnectRequest;
    if !disconnects {
        assert_eq!(late, always, "{what} late");
    }
    row(table, what, "no fault", &good);
    row(table, what, "lost once", &once);
    row(table, what, "lost always", &always);
    row(table, what, "repeated", &repeated);
    row(table, what, "late", &late);
}

fn document() -> String {
    let mut document = HEAD.to_owned();
    for (mode, title) in [
        (Mode::ClientServer, "Client and server"),
        (Mode::PeerToPeer, "Peers"),
    ] {
        write!(
            document,
            "\n## {title}\n\n| IU | fault | sent | originator | responder |\n| --- | --- | --- | --- | --- |\n"
        )
        .expect("a string");
        for subject in CONNECT {
            rows(&mut document, subject, &|fault| {
                connecting(mode, subject, fault)
            });
        }
        let crossed = CROSSED.into_iter().filter(|_| mode == Mode::PeerToPeer);
        for subject in crossed {
            rows(&mut document, subject, &|fault| {
                connecting(mode, subject, fault)
            });
        }
        for subject in DISCONNECT {
            rows(&mut document, subject, &|fault| {
                disconnecting(mode, subject, fault)
            });
        }
    }
    document
}

#[test]
fn each_connection_iu_lost_repeated_and_late() {
    compare(DOCUMENT, "vi-engine lost_ius", &document());
}
