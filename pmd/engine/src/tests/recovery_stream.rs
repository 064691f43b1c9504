//! Random streams over networks that lose, duplicate, delay and reorder frames: with recovery everything arrives
//! once, in order and unchanged, and both sides see only delays.

use vi_types::{ReliabilityLevel, Status, ViIndex, ViState};

use crate::testkit::io::{Event, Send};
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, read};
use crate::testkit::rng::Rng;
use crate::testkit::wire::Faults;
use crate::{Counter, RecoveryConfig};

const LEVELS: [ReliabilityLevel; 2] = [
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];
const TARGET: u32 = 7;
const SOURCE: u32 = 8;
const REGION_BYTES: usize = 200_000;
const LONGEST: u64 = 60_000;

/// Everything that one side posted, in order.
struct Expected {
    /// Bytes, immediate data, whether it was a write.
    messages: Vec<(Vec<u8>, Option<u32>, bool)>,
    /// ID of each read, and its offset in the source.
    reads: Vec<(u64, usize)>,
    sends: u64,
    /// Contents of the peer's target at the end.
    target: Vec<u8>,
    /// Offset of the next write; writes do not overlap.
    next_write: usize,
}

struct Stream {
    net: Net,
    vis: [ViIndex; 2],
    rng: Rng,
    expected: [Expected; 2],
    lossy: bool,
    what: String,
}

impl Stream {
    fn new(seed: u64, level: ReliabilityLevel, faults: Faults) -> Self {
        let mut rng = Rng::new(seed);
        let small = rng.below(3) == 0;
        let configs = [CLIENT, SERVER].map(|node| {
            let mut config = config(node);
            config.max_unanswered = [4, 16, 64][rng.below(3) as usize];
            config.max_reads_accepted = 2;
            config.data_field_bytes = if small { 256 } else { 2112 };
            config.recovery = Some(RecoveryConfig {
                max_received_ranges: [2, 8, 64][rng.below(3) as usize],
                min_window_frames: 4,
                max_window_frames: [8, 64, 512][rng.below(3) as usize],
                tries: 20,
                ..RecoveryConfig::default()
            });
            config
        });
        let mut net = Net::new(configs.to_vec(), seed);
        net.wire.tracing = false;
        net.wire.delay_ns = 20_000;
        let (a, b) = net.join(level);
        net.clear_logs();
        for node in [CLIENT, SERVER] {
            let io = &mut net.nodes[node].io;
            io.register(TARGET, 0, REGION_BYTES);
            io.register(SOURCE, 0, REGION_BYTES);
            let source = io.regions.get_mut(&SOURCE).expect("just registered");
            source.bytes = Rng::new(SOURCE.into()).bytes(REGION_BYTES);
        }
        net.wire.faults = faults;
        let expected = || Expected {
            messages: Vec::new(),
            reads: Vec::new(),
            sends: 0,
            target: vec![0; REGION_BYTES],
            next_write: 0,
        };
        Self {
            net,
            vis: [a, b],
            rng,
            expected: [expected(), expected()],
            lossy: faults.loss > 0,
            what: format!("seed {seed:#x}, {level:?}, {faults:?}"),
        }
    }

    fn length(&mut self) -> usize {
        let longest = [1, 10, 3_000, LONGEST][self.rng.below(4) as usize];
        self.rng.below(longest) as usize
    }

    fn post(&mut self, node: usize) {
        let vi = self.vis[node];
        let length = self.length();
        let data = self.rng.bytes(length);
        let immediate = (self.rng.below(3) == 0).then_some(self.rng.next_u64() as u32);
        let fence = self.rng.below(8) == 0;
        let kind = self.rng.below(8);
        let expected = &mut self.expected[node];
        let id = expected.sends;
        expected.sends += 1;
        let from = expected.next_write;
        let send = match kind {
            0 => {
                let from = self.rng.below((REGION_BYTES - length) as u64);
                expected.reads.push((id, from as usize));
                read((from, SOURCE), length)
            }
            1..3 if from + length <= REGION_BYTES => {
                expected.target[from..from + length].copy_from_slice(&data);
                expected.next_write += length;
                if immediate.is_some() {
                    expected.messages.push((Vec::new(), immediate, true));
                    self.net.post_receive(1 - node, self.vis[1 - node], 0);
                }
                Send {
                    data,
                    immediate,
                    remote: Some((from as u64, TARGET)),
                    ..Send::default()
                }
            }
            _ => {
                expected.messages.push((data.clone(), immediate, false));
                let capacity = (length as u64 + self.rng.below(3)) as u32;
                self.net
                    .post_receive(1 - node, self.vis[1 - node], capacity);
                Send {
                    data,
                    immediate,
                    ..Send::default()
                }
            }
        };
        self.net.post(node, vi, Send { fence, ..send });
    }

    fn run(&mut self, posts: u64) {
        for _ in 0..posts {
            match self.rng.below(6) {
                0 => self.net.advance(MS / 4),
                // With a full port a peer is silent and gets probed.
                1 if self.lossy && self.rng.below(4) == 0 => {
                    let node = self.rng.below(2) as usize;
                    self.net.nodes[node].io.room = self.rng.below(40) as usize;
                }
                1 => self
                    .net
                    .nodes
                    .iter_mut()
                    .for_each(|n| n.io.room = usize::MAX),
                _ => {
                    let node = self.rng.below(2) as usize;
                    self.post(node);
                }
            }
        }
        self.net
            .nodes
            .iter_mut()
            .for_each(|n| n.io.room = usize::MAX);
        self.net.advance(10 * S);
    }

    fn check(&mut self) {
        for node in [CLIENT, SERVER] {
            let (vi, peer) = (self.vis[node], 1 - node);
            let what = format!("{}, node {node}", self.what);
            assert_eq!(self.net.state(node, vi), ViState::Connected, "{what}");
            let log = self.net.log(node, vi);
            let mut sent = 0;
            let mut got = Vec::new();
            for event in log {
                match event {
                    Event::Sent(id, status, _) => {
                        assert_eq!((id, status), (sent, Status::OK), "{what}");
                        sent += 1;
                    }
                    Event::Received(received) => {
                        assert_eq!(received.status, Status::OK, "{what}");
                        got.push((received.data, received.immediate, received.remote_write));
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
            assert_eq!(sent, self.expected[node].sends, "{what}: sends");
            let expected = &self.expected[peer].messages;
            assert_eq!(got.len(), expected.len(), "{what}: messages");
            for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
                assert!(got == expected, "{what}: message {at}");
            }
            let target = &self.net.nodes[node].io.regions[&TARGET].bytes;
            assert!(*target == self.expected[peer].target, "{what}: writes");
            let source = Rng::new(SOURCE.into()).bytes(REGION_BYTES);
            let reads = self.net.read_data(node, vi);
            assert_eq!(
                reads.len(),
                self.expected[node].reads.len(),
                "{what}: reads"
            );
            for ((id, data), (expected, from)) in reads.iter().zip(&self.expected[node].reads) {
                assert_eq!(id, expected, "{what}");
                assert!(*data == source[*from..*from + data.len()], "{what}: read");
            }
            let open = self.net.nodes[node].engine.exchange_usage();
            assert_eq!(open.0, 0, "{what}: open exchanges");
        }
    }
}

fn stream(seeds: core::ops::Range<u64>, faults: Faults) -> [u64; 3] {
    let mut counts = [0; 3];
    for seed in seeds {
        for level in LEVELS {
            let mut stream = Stream::new(0xF10D_0000 + seed, level, faults);
            stream.run(150);
            stream.check();
            for node in [CLIENT, SERVER] {
                for (count, counter) in counts.iter_mut().zip([
                    Counter::FramesResent,
                    Counter::AheadPlaced,
                    Counter::RecoveryTimeouts,
                ]) {
                    *count += stream.net.count(node, counter);
                }
            }
        }
    }
    println!("{faults:?}: resent, ahead, time-outs: {counts:?}");
    counts
}

#[test]
fn reliable_network_causes_no_retransmission() {
    let counts = stream(0..30, Faults::default());
    assert_eq!(counts, [0; 3]);
}

#[test]
fn lost_frames_are_recovered() {
    for loss in [1_000, 10_000, 50_000, 200_000] {
        let faults = Faults {
            loss,
            ..Faults::default()
        };
        let [resent, ahead, _] = stream(0..20, faults);
        assert!(resent > 0 && ahead > 0);
    }
}

#[test]
fn duplicated_frames_are_placed_once() {
    let faults = Faults {
        duplicate: 200_000,
        ..Faults::default()
    };
    stream(0..20, faults);
}

#[test]
fn reordered_frames_are_placed() {
    let faults = Faults {
        late: 100_000,
        late_ns: MS,
        ..Faults::default()
    };
    let [_, ahead, _] = stream(0..20, faults);
    assert!(ahead > 0);
}

#[test]
fn combined_faults_are_recovered() {
    let faults = Faults {
        loss: 50_000,
        duplicate: 50_000,
        corrupt: 20_000,
        late: 50_000,
        late_ns: 2 * MS,
    };
    stream(0..30, faults);
}
