//! A simulated link segment with stations, which loses, duplicates, delays and length-limits frames.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fcvi_frame::MacAddress;
use fcvi_frame::fc::{FcType, NPortId};
use fcvi_frame::fip::{Claim, Fc4Attributes, FipView, Vn2vnFrame, Vn2vnMessage, VnPort, VnPortId};

use protocol_testkit::rng::Rng;
pub(super) use protocol_testkit::time::{MS, S};

use crate::Neighbour;
use crate::testkit::FC_VI;
use crate::vn2vn::{Vn2vn, Vn2vnConfig, Vn2vnCounter, Vn2vnEvent, Vn2vnState};

pub(super) const ALL: MacAddress = MacAddress::ALL_VN2VN;

pub(super) fn id(low: u16) -> NPortId {
    let [a, b] = low.to_be_bytes();
    NPortId::from_bytes([0, a, b])
}

/// Returns the MAC address of a station with its own interface.
pub(super) fn enode(number: u8) -> MacAddress {
    MacAddress([0x52, 0x54, 0, 0, 0, number])
}

/// Returns a configuration whose port name ends in these 16 bits and grows with the number.
pub(super) fn config(number: u8, low: u16) -> Vn2vnConfig {
    let port_name = 0x2000_0000_0000_0000 | u64::from(number) << 32 | u64::from(low);
    let node_name = 0x1000 + u64::from(number);
    Vn2vnConfig::new(port_name, node_name, FC_VI, enode(number))
}

/// Returns the port of another implementation, for handmade frames.
pub(super) fn port(number: u8, id: NPortId) -> VnPort {
    let config = config(number, 0);
    VnPort {
        enode_mac: config.enode_mac,
        node_name: config.node_name,
        id: VnPortId {
            mac: MacAddress::vn2vn(id),
            n_port_id: id,
            port_name: config.port_name,
        },
    }
}

/// Returns a claim of FCP with this size.
pub(super) fn claim(max_fcoe_bytes: u16) -> Claim {
    Claim {
        fc4: Fc4Attributes::default().with(FcType::Fcp, 2),
        max_fcoe_bytes,
    }
}

pub(super) fn frame(port: VnPort, message: Vn2vnMessage) -> Vn2vnFrame {
    Vn2vnFrame {
        recorded: false,
        port,
        message,
    }
}

/// Returns the bytes of a frame, padded to `pdu_bytes`.
pub(super) fn bytes(frame: &Vn2vnFrame, dst: MacAddress, pdu_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; frame.bytes().max(14 + pdu_bytes)];
    frame.emit(dst, 14 + pdu_bytes, &mut bytes).expect("room");
    bytes
}

/// Faults per million frames.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) loss: u32,
    pub(super) duplicate: u32,
    /// Delayed by up to a second, so that frames are reordered.
    pub(super) late: u32,
    pub(super) corrupt: u32,
}

pub(super) struct Station {
    pub(super) machine: Vn2vn,
    pub(super) events: Vec<Vn2vnEvent>,
    /// Stations of different partitions do not receive each other's frames.
    pub(super) partition: u8,
    /// Longer frames do not arrive.
    pub(super) mtu_bytes: usize,
}

/// A frame in flight: time of arrival, number, destination station, bytes.
type InFlight = (u64, u64, usize, Vec<u8>);

/// A frame that was sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) at_ns: u64,
    pub(super) from: usize,
    pub(super) dst: MacAddress,
    pub(super) frame: Vn2vnFrame,
    pub(super) frame_bytes: usize,
}

pub(super) struct Segment {
    pub(super) now_ns: u64,
    pub(super) stations: Vec<Station>,
    pub(super) faults: Faults,
    /// Senders receive their own frames.
    pub(super) echoes: bool,
    pub(super) sent: Vec<Sent>,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    count: u64,
    rng: Rng,
}

impl Segment {
    /// Returns stopped stations; the clock does not begin at 0.
    pub(super) fn new(configs: Vec<Vn2vnConfig>, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let station = |config| Station {
            machine: Vn2vn::new(config, rng.next_u64()),
            events: Vec::new(),
            partition: 0,
            mtu_bytes: usize::MAX,
        };
        Self {
            now_ns: 1_000 * S,
            stations: configs.into_iter().map(station).collect(),
            faults: Faults::default(),
            echoes: false,
            sent: Vec::new(),
            in_flight: BinaryHeap::new(),
            count: 0,
            rng: Rng::new(!seed),
        }
    }

    /// Returns stations that are up, with no frames in flight.
    pub(super) fn up(configs: Vec<Vn2vnConfig>, seed: u64) -> Self {
        let mut segment = Self::new(configs, seed);
        for station in 0..segment.stations.len() {
            segment.start(station);
        }
        segment.advance(3 * S);
        for station in 0..segment.stations.len() {
            assert_eq!(segment.state(station), Vn2vnState::Up, "station {station}");
        }
        segment
    }

    pub(super) fn start(&mut self, station: usize) {
        self.stations[station].machine.start(self.now_ns);
        self.drain(station);
    }

    pub(super) fn stop(&mut self, station: usize) {
        self.stations[station].machine.stop(self.now_ns);
        self.drain(station);
    }

    /// Delivers a frame to one station, whatever its destination.
    pub(super) fn inject(&mut self, station: usize, bytes: &[u8]) {
        let now_ns = self.now_ns;
        self.stations[station].machine.handle_frame(now_ns, bytes);
        self.drain(station);
    }

    /// Advances the time.
    pub(super) fn advance(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        loop {
            let timeouts = self.stations.iter().enumerate();
            let timeouts = timeouts.filter_map(|(at, s)| Some((s.machine.poll_timeout()?, at)));
            let timeout = timeouts.min().filter(|(at_ns, _)| *at_ns <= end_ns);
            let arrival = self.in_flight.peek().map(|Reverse((at_ns, ..))| *at_ns);
            let arrival = arrival.filter(|at_ns| *at_ns <= end_ns);
            match (arrival, timeout) {
                (Some(at_ns), timeout) if timeout.is_none_or(|(due_ns, _)| at_ns <= due_ns) => {
                    let Some(Reverse((_, _, to, bytes))) = self.in_flight.pop() else {
                        unreachable!("just seen");
                    };
                    self.now_ns = at_ns.max(self.now_ns);
                    self.inject(to, &bytes);
                }
                (_, Some((due_ns, station))) => {
                    self.now_ns = due_ns.max(self.now_ns);
                    let machine = &mut self.stations[station].machine;
                    machine.handle_timeout(self.now_ns);
                    let next = machine.poll_timeout();
                    assert!(
                        next.is_none_or(|ns| ns > self.now_ns),
                        "the timeout is still due"
                    );
                    self.drain(station);
                }
                _ => break,
            }
        }
        self.now_ns = end_ns;
    }

    /// Transmits the queued frames of a station and takes its events.
    fn drain(&mut self, from: usize) {
        while let Some(outbound) = self.stations[from].machine.poll_outbound() {
            let mut bytes = vec![0xEE; outbound.frame_bytes];
            let written = outbound.emit(&mut bytes);
            assert_eq!(written, Ok(outbound.frame_bytes));
            let parsed = FipView::parse(&bytes).and_then(|view| view.vn2vn());
            assert_eq!(parsed, Ok(outbound.frame));
            self.sent.push(Sent {
                at_ns: self.now_ns,
                from,
                dst: outbound.dst,
                frame: outbound.frame,
                frame_bytes: outbound.frame_bytes,
            });
            self.transmit(from, outbound.dst, &bytes);
        }
        while let Some(event) = self.stations[from].machine.poll_event() {
            self.stations[from].events.push(event);
        }
    }

    fn transmit(&mut self, from: usize, dst: MacAddress, bytes: &[u8]) {
        for to in 0..self.stations.len() {
            let is_for_it = dst == ALL || dst == self.stations[to].machine.config().enode_mac;
            let is_received = (to != from || self.echoes)
                && self.stations[to].partition == self.stations[from].partition
                && bytes.len() <= self.stations[to].mtu_bytes.saturating_add(14);
            if is_for_it && is_received {
                self.enqueue(to, bytes.to_vec());
            }
        }
    }

    fn enqueue(&mut self, to: usize, mut bytes: Vec<u8>) {
        if self.rng.chance(self.faults.loss) {
            return;
        }
        if self.rng.chance(self.faults.corrupt) {
            let at = self.rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.rng.below(8);
        }
        let copies = if self.rng.chance(self.faults.duplicate) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let mut at_ns = self.now_ns + 5_000;
            if self.rng.chance(self.faults.late) {
                at_ns += self.rng.below(S);
            }
            self.count += 1;
            self.in_flight
                .push(Reverse((at_ns, self.count, to, bytes.clone())));
        }
    }

    pub(super) fn state(&self, station: usize) -> Vn2vnState {
        self.stations[station].machine.state()
    }

    pub(super) fn id(&self, station: usize) -> NPortId {
        self.stations[station].machine.id().expect("an N_Port_ID")
    }

    pub(super) fn count(&self, station: usize, counter: Vn2vnCounter) -> u64 {
        self.stations[station].machine.counters().get(counter)
    }

    pub(super) fn events(&mut self, station: usize) -> Vec<Vn2vnEvent> {
        core::mem::take(&mut self.stations[station].events)
    }

    pub(super) fn neighbours(&self, station: usize) -> Vec<Neighbour> {
        let mut neighbours: Vec<_> = self.stations[station]
            .machine
            .neighbours()
            .copied()
            .collect();
        neighbours.sort_by_key(|neighbour| neighbour.port_name);
        neighbours
    }

    /// Takes the frames sent since the last call, formatted for comparison.
    pub(super) fn take_sent(&mut self) -> Vec<String> {
        let sent = core::mem::take(&mut self.sent);
        sent.iter().map(describe).collect()
    }
}

/// Formats station, kind and destination of a frame.
fn describe(sent: &Sent) -> String {
    let kind = match sent.frame.message {
        Vn2vnMessage::ProbeRequest => "probe",
        Vn2vnMessage::ProbeReply => "probe reply",
        Vn2vnMessage::ClaimNotification(_) => "claim",
        Vn2vnMessage::ClaimResponse(_) => "claim response",
        Vn2vnMessage::Beacon => "beacon",
    };
    let to = if sent.dst == ALL {
        "all".to_string()
    } else {
        sent.dst.to_string()
    };
    format!("{} {kind} to {to}", sent.from)
}
