//! Runs random programs of two VIs of one engine over frames and over the shortcut, and compares their events.
//!
//! All pending work completes between two steps, so that both runs start each step in the same state. Differences are
//! permitted where the reliability level leaves the result of a broken connection open: at Reliable Delivery a send or
//! write may complete without error or be flushed, and at both reliable levels a read that was posted before the failed
//! message may complete or be flushed. A program has faults at one side of a message only: with faults at both sides
//! either may be detected. Memory of reads does not become invalid: over frames that is detected when the read is
//! answered, and messages behind it may have been placed or have failed before.

use super::*;
use crate::testkit::net::read;
use crate::testkit::rng::Rng;
use crate::testkit::{expected_events::without_partial_data, io::Receive};

const PROGRAMS: u64 = 400;
const STEPS: usize = 40;
/// Start address of all regions; their handles follow.
const BASE: u64 = 0x1000;
const WRITTEN: u32 = 7;
const WRITTEN_GONE: u32 = 8;
const READ: u32 = 9;
const UNKNOWN: u32 = 11;
const REGION_BYTES: usize = 8192;

enum Step {
    Receives(usize, Vec<Receive>),
    Sends(usize, Vec<Send>),
    Disconnect(usize),
    Fail(usize),
    Connect,
}

impl Step {
    /// Formats the step without the contents of messages.
    fn describe(&self) -> String {
        let send = |send: &Send| {
            let operation = if send.read { "read" } else { "send" };
            let (remote, immediate) = (send.remote, send.immediate);
            let faults = (send.fault, send.gone_from);
            let len = send.data.len();
            format!("{operation} {len} {remote:?} {immediate:?} {faults:?}")
        };
        match self {
            Self::Receives(side, receives) => format!("{side} receives {receives:?}"),
            Self::Sends(side, sends) => {
                let sends: Vec<_> = sends.iter().map(send).collect();
                format!("{side} sends {sends:#?}")
            }
            Self::Disconnect(side) => format!("{side} disconnects"),
            Self::Fail(side) => format!("{side} fails"),
            Self::Connect => "connect".into(),
        }
    }
}

/// Location of the faults of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faults {
    /// In send descriptors.
    Sender,
    /// In receive descriptors, and in memory that the peer addresses.
    Receiver,
}

struct Generator {
    rng: Rng,
    faults: Faults,
}

impl Generator {
    fn one_in(&mut self, n: u64) -> bool {
        self.rng.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.below(of.len() as u64) as usize]
    }

    fn receive(&mut self) -> Receive {
        let mut receive = Receive {
            capacity_bytes: 9000,
            ..Receive::default()
        };
        if self.faults == Faults::Receiver {
            receive.capacity_bytes = self.pick(&[0, 64, 3000, 9000, 9000, 9000]);
            if self.one_in(12) {
                receive.fault = self.pick(&[Status::FORMAT, Status::PROTECTION]);
            } else if receive.capacity_bytes == 9000 && self.one_in(8) {
                receive.gone_from = Some(self.pick(&[0, 3000]));
            }
        }
        receive
    }

    fn send(&mut self) -> Send {
        let len = self.pick(&[0, 1, 64, 65, 2000, 3000, 6000]);
        let handles = match self.faults {
            Faults::Sender => [(WRITTEN, READ); 6],
            Faults::Receiver => [
                (WRITTEN, READ),
                (WRITTEN, READ),
                (WRITTEN, READ),
                (WRITTEN, READ),
                (WRITTEN_GONE, READ),
                (UNKNOWN, UNKNOWN),
            ],
        };
        let (written, source) = self.pick(&handles);
        let offset = self.rng.below(100);
        let mut send = match self.rng.below(4) {
            0 => read((BASE + offset, source), len),
            1 => Send {
                remote: Some((BASE + offset, written)),
                ..Send::default()
            },
            _ => Send::default(),
        };
        if !send.read {
            send.data = self.rng.bytes(len);
            send.immediate = self.one_in(3).then_some(len as u32);
        }
        send.fence = self.one_in(4);
        if self.faults == Faults::Sender {
            if self.one_in(12) {
                send.fault = self.pick(&[Status::FORMAT, Status::LENGTH, Status::PROTECTION]);
            } else if !send.read && self.one_in(6) {
                send.gone_from = Some(3000);
            }
        }
        send
    }

    fn step(&mut self) -> Vec<Step> {
        let side = self.rng.below(2) as usize;
        match self.rng.below(20) {
            0 => vec![Step::Disconnect(side)],
            1 => vec![Step::Fail(side)],
            2..7 => vec![Step::Connect],
            7..10 => {
                let receives = (0..=self.rng.below(3)).map(|_| self.receive()).collect();
                vec![Step::Receives(side, receives)]
            }
            _ => {
                let sends: Vec<_> = (0..=self.rng.below(4)).map(|_| self.send()).collect();
                let mut steps = Vec::new();
                if self.faults == Faults::Sender || !self.one_in(3) {
                    let receives = sends.iter().map(|_| self.receive()).collect();
                    steps.push(Step::Receives(1 - side, receives));
                }
                steps.push(Step::Sends(side, sends));
                steps
            }
        }
    }
}

struct World {
    net: Net,
    vis: [ViIndex; 2],
}

impl World {
    fn new(topology: Topology, level: ReliabilityLevel, seed: u64) -> Self {
        with_topology(topology, || {
            let mut net = Net::pair_with(seed, |_| {});
            let mut rng = Rng::new(seed);
            for handle in [WRITTEN, WRITTEN_GONE, READ] {
                let io = &mut net.nodes[CLIENT].io;
                io.register(handle, BASE, REGION_BYTES);
                let region = io.regions.get_mut(&handle).unwrap();
                region.bytes = rng.bytes(REGION_BYTES);
                if handle == WRITTEN_GONE {
                    region.gone_from = 0;
                }
            }
            let (a, b) = net.join(level);
            net.clear_logs();
            Self { net, vis: [a, b] }
        })
    }

    fn run(&mut self, step: &Step) {
        let Self { net, vis } = self;
        match step {
            Step::Receives(side, receives) => {
                for receive in receives {
                    net.nodes[*side]
                        .io
                        .post_receive(vis[*side], receive.clone());
                }
            }
            Step::Sends(side, sends) => {
                for send in sends {
                    net.nodes[*side].io.post_send(vis[*side], send.clone());
                }
                net.pump(*side);
            }
            Step::Disconnect(side) => net.disconnect(*side, vis[*side]),
            Step::Fail(side) => {
                let (now_ns, vi) = (net.now_ns, vis[*side]);
                net.act(*side, |engine, io| engine.fail_vi(now_ns, vi, io));
            }
            Step::Connect => {
                let connected = |vi: &ViIndex| net.state(CLIENT, *vi) == ViState::Connected;
                if !vis.iter().all(connected) {
                    for (side, vi) in vis.iter().enumerate() {
                        net.disconnect(side, *vi);
                    }
                    net.advance(S);
                    net.connect(vis[0], vis[1]);
                }
            }
        }
        // Longer than E_D_TOV: incomplete messages have failed by then.
        net.advance(3 * S);
    }

    fn states(&self) -> [ViState; 2] {
        self.vis.map(|vi| self.net.state(CLIENT, vi))
    }

    fn written(&self) -> &[u8] {
        &self.net.nodes[CLIENT].io.regions[&WRITTEN].bytes
    }
}

/// The events of a log by kind, in order within each kind.
struct Seen {
    sends: Vec<(u64, Status, u32)>,
    reads: Vec<(u64, Vec<u8>)>,
    others: [Vec<Event>; 3],
}

impl Seen {
    fn of(world: &mut World, side: usize) -> Self {
        let vi = world.vis[side];
        let mut seen = Self {
            sends: Vec::new(),
            reads: world.net.read_data(side, vi),
            others: [Vec::new(), Vec::new(), Vec::new()],
        };
        for event in without_partial_data(world.net.log(side, vi)) {
            match event {
                Event::Sent(id, status, length_bytes) => {
                    seen.sends.push((id, status, length_bytes));
                }
                Event::Received(_) => seen.others[0].push(event),
                Event::State(_) => seen.others[1].push(event),
                Event::Async(_) => seen.others[2].push(event),
            }
        }
        seen
    }

    fn broke(&self) -> bool {
        self.others[1].contains(&Event::State(ViState::Error))
    }
}

fn compare(level: ReliabilityLevel, step: &Step, by_frames: &Seen, shortcut: &Seen, what: &str) {
    assert_eq!(by_frames.others, shortcut.others, "{what}");
    assert_eq!(by_frames.sends.len(), shortcut.sends.len(), "{what}");
    let first_id = by_frames.sends.first().map_or(0, |send| send.0);
    let is_read = |id: u64| match step {
        Step::Sends(_, sends) => sends.get((id - first_id) as usize).is_some_and(|s| s.read),
        _ => false,
    };
    for (one, other) in by_frames.sends.iter().zip(&shortcut.sends) {
        let either = [Status::OK, Status::FLUSHED];
        let permitted = by_frames.broke()
            && (level == RD || (level == RR && is_read(one.0)))
            && one.0 == other.0
            && either.contains(&one.1)
            && either.contains(&other.1);
        let sends = (&by_frames.sends, &shortcut.sends);
        assert!(one == other || permitted, "{what}: {sends:?}");
    }
    for (id, bytes) in &by_frames.reads {
        if let Some(other) = shortcut.reads.iter().find(|read| read.0 == *id) {
            assert_eq!(*bytes, other.1, "{what}");
        }
    }
}

#[test]
fn random_programs_see_the_same_events_over_frames_and_the_shortcut() {
    const COMPARED: [Counter; 6] = [
        Counter::RxMessages,
        Counter::DropNoDescriptor,
        Counter::DropRdmaProtection,
        Counter::IncompleteMessages,
        Counter::Connects,
        Counter::Breaks,
    ];
    let (mut messages, mut breaks) = (0, 0);
    for seed in 0..PROGRAMS {
        for level in LEVELS {
            let faults = if seed % 2 == 0 {
                Faults::Sender
            } else {
                Faults::Receiver
            };
            let mut generator = Generator {
                rng: Rng::new(seed),
                faults,
            };
            let mut worlds = [Topology::Port, Topology::Shortcut]
                .map(|topology| World::new(topology, level, seed));
            let steps: Vec<_> = (0..STEPS).flat_map(|_| generator.step()).collect();
            for (at, step) in steps.iter().enumerate() {
                let what = format!("seed {seed}, {level:?}, step {at}: {}", step.describe());
                for world in &mut worlds {
                    world.run(step);
                }
                let [frames, shortcut] = &mut worlds;
                for side in [CLIENT, SERVER] {
                    let seen = [Seen::of(frames, side), Seen::of(shortcut, side)];
                    compare(
                        level,
                        step,
                        &seen[0],
                        &seen[1],
                        &format!("{what}, side {side}"),
                    );
                }
                assert_eq!(frames.states(), shortcut.states(), "{what}");
                if faults == Faults::Receiver {
                    assert_eq!(frames.written(), shortcut.written(), "{what}");
                }
            }
            let [frames, shortcut] = &mut worlds;
            for counter in COMPARED {
                let counts = [&*frames, &*shortcut].map(|world| world.net.total(counter));
                assert_eq!(counts[0], counts[1], "seed {seed}, {level:?}: {counter:?}");
            }
            assert_eq!(shortcut.net.total(Counter::TxFrames), 0);
            messages += shortcut.net.total(Counter::ShortcutMessages);
            breaks += shortcut.net.total(Counter::Breaks);
            for side in [CLIENT, SERVER] {
                shortcut.net.disconnect(side, shortcut.vis[side]);
            }
            shortcut.net.advance(60 * S);
            let engine = &shortcut.net.nodes[CLIENT].engine;
            assert_eq!(
                (engine.exchange_usage().0, engine.port.timers.len()),
                (0, 0)
            );
        }
    }
    assert!(messages > 10 * PROGRAMS, "{messages} messages");
    assert!(breaks > 2 * PROGRAMS, "{breaks} breaks");
}
