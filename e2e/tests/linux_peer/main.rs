//! Linux kernels as VN_Ports on one segment. Here they are among themselves, which shows how the kernel does it; in [`ours`]
//! they are beside ports of ours.

mod ours;

use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::linux_peer::{LinuxPeer, Mac, PortView};
use e2e::port_frames::{Kind, PortFrame, is_beacon, judge_ports};
use e2e::process::TIMEOUT;
use e2e::segment::{BRIDGE, Segment};

/// Room for the largest FCoE frame.
const MTU_BYTES: u32 = 2500;
/// A largest FCoE frame with its Ethernet header: a claim response is as long, to show that the segment carries it.
const LARGEST_FRAME_BYTES: usize = 14 + 2158;
/// A port that sends no beacon for 2.5 of its periods of 8 s is lost.
const BEACON_LOSS: Duration = Duration::from_secs(20);
/// The longest that two beacons lie apart.
const BEACON_PERIOD: Duration = Duration::from_millis(8100);
/// An emulated machine on a busy one may be late by this.
const LATENESS: Duration = Duration::from_secs(10);
/// The command code of PLOGI.
const PLOGI: &str = "0x03";

/// Two kernels on one segment.
struct Pair {
    left: LinuxPeer,
    right: LinuxPeer,
}

impl Pair {
    fn boot(segment: &Segment, left: Mac, right: Mac) -> Self {
        let begin = Instant::now();
        let mut this = Self {
            left: LinuxPeer::boot(segment, "left", left),
            right: LinuxPeer::boot(segment, "right", right),
        };
        let uptimes = [&mut this.left, &mut this.right].map(LinuxPeer::wait_until_ready);
        println!(
            "\nnote: two Linux kernels ready after {:.1?}; their uptimes: {uptimes:.1?}",
            begin.elapsed()
        );
        this
    }

    fn start(&mut self) {
        self.left.start();
        self.right.start();
    }

    /// Waits until each sees the other; gives the left port as the right kernel sees it, and the right one.
    fn wait_until_online(&mut self) -> [PortView; 2] {
        let [left, right] = [&self.left, &self.right].map(|peer| peer.mac().port_name());
        [
            self.right.wait_for_remote(left, "Online", TIMEOUT),
            self.left.wait_for_remote(right, "Online", TIMEOUT),
        ]
    }

    fn stop(&mut self) {
        self.left.stop();
        self.right.stop();
    }

    fn power_off(self) {
        self.left.power_off();
        self.right.power_off();
    }
}

#[test]
fn two_kernels_find_and_lose_each_other() {
    let segment = Segment::new(MTU_BYTES);
    let mut capture = Capture::start(segment.namespace(), BRIDGE);
    let [left, right] = [Mac([0x52, 0x54, 0, 0, 0, 1]), Mac([0x52, 0x54, 0, 0, 0, 2])];
    let mut pair = Pair::boot(&segment, left, right);
    let begin = Instant::now();
    pair.start();
    for (view, mac) in pair.wait_until_online().iter().zip([left, right]) {
        assert_eq!(view.port_id, mac.first_port_id(), "{view:?}");
        assert_eq!(view.node_name, mac.node_name(), "{view:?}");
        assert_eq!(view.roles, "FCP Initiator", "{view:?}");
        println!(
            "note: Online {:.1?} after both were started",
            view.at - begin
        );
    }

    // One that stops says so.
    let begin = Instant::now();
    pair.left.stop();
    let blocked = pair
        .right
        .wait_for_remote(left.port_name(), "Blocked", LATENESS);
    println!(
        "note: Blocked {:.1?} after the other was stopped",
        blocked.at - begin
    );

    // One that comes back is found again.
    let begin = Instant::now();
    pair.left.start();
    for view in pair.wait_until_online() {
        println!(
            "note: Online {:.1?} after it was started again",
            view.at - begin
        );
    }

    // One that vanishes is missed, if it was heard since it came.
    pair.right.look_again();
    let back = pair
        .right
        .wait_for_remote(left.port_name(), "Online", TIMEOUT);
    capture.wait_for_frame("a beacon", |frame| is_beacon(frame, back.port_id));
    let death = pair.left.kill();
    let limit = BEACON_LOSS + LATENESS;
    let blocked = pair
        .right
        .wait_for_remote(left.port_name(), "Blocked", limit);
    let missed = blocked.at - death;
    println!("note: Blocked {missed:.1?} after the other had vanished");
    assert!(
        missed >= BEACON_LOSS - BEACON_PERIOD,
        "its beacon was not due yet"
    );
    pair.right.power_off();

    let frames = PortFrame::all_of(capture);
    judge_ports(&frames);
    judge_order(&frames);
}

/// The larger port name logs in, and what the segment carries is tried out.
fn judge_order(frames: &[PortFrame]) {
    let mut logins = frames
        .iter()
        .filter(|frame| frame.els() == PLOGI)
        .peekable();
    assert!(logins.peek().is_some(), "no PLOGI");
    for login in logins {
        assert_eq!(
            login.s_id(),
            "00.00.02",
            "the larger port name logs in: {login}"
        );
    }
    let mut tests = frames
        .iter()
        .filter(|f| f.kind() == Kind::ClaimResponse)
        .peekable();
    assert!(tests.peek().is_some(), "no claim response");
    for test in tests {
        assert_eq!(test.wire_bytes(), LARGEST_FRAME_BYTES, "{test}");
    }
}

/// How two ports that want the same N_Port_ID begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    /// The one with the larger port name is up before the other one starts.
    LargerFirst,
    /// The one with the smaller port name is.
    SmallerFirst,
    /// Both start at the same time.
    Together,
    /// Both are up on segments of their own, which are then joined.
    Apart,
}

impl Begin {
    const ALL: [Self; 4] = [
        Self::LargerFirst,
        Self::SmallerFirst,
        Self::Together,
        Self::Apart,
    ];
}

const CONTESTED: u32 = 5;
const SMALLER: Mac = Mac([0x52, 0x54, 0, 0, 0, 5]);
const LARGER: Mac = Mac([0x52, 0x54, 0, 1, 0, 5]);

/// Starts the pair, left the smaller one; returns when each sees the other.
fn contest(segment: &Segment, pair: &mut Pair, begin: Begin) -> [PortView; 2] {
    let is_up = |peer: &mut LinuxPeer| {
        let view = peer.wait_for_own("Online", TIMEOUT);
        assert_eq!(view.port_id, CONTESTED, "nobody else has it: {view:?}");
    };
    match begin {
        Begin::LargerFirst => {
            pair.right.start();
            is_up(&mut pair.right);
            pair.left.start();
        }
        Begin::SmallerFirst => {
            pair.left.start();
            is_up(&mut pair.left);
            pair.right.start();
        }
        Begin::Together => pair.start(),
        Begin::Apart => {
            segment.part("right");
            pair.start();
            is_up(&mut pair.left);
            is_up(&mut pair.right);
            segment.join("right");
        }
    }
    pair.wait_until_online()
}

/// Whether the port with the larger name must have the contested N_Port_ID, by the frames when it depends on chance;
/// `smaller` and `larger` are the addresses of their interfaces.
fn larger_keeps_it(begin: Begin, frames: &[PortFrame], smaller: &str, larger: &str) -> bool {
    let first = |kind: Kind, mac: &str| {
        frames.iter().position(|frame| {
            frame.kind() == kind && frame.vn_port_id() == CONTESTED && frame.source() == mac
        })
    };
    match begin {
        Begin::LargerFirst | Begin::Apart => true,
        Begin::SmallerFirst => false,
        // One that hears a probe before it has sent its own tries another identifier.
        Begin::Together => match (
            first(Kind::ProbeRequest, larger),
            first(Kind::ClaimNotification, smaller),
        ) {
            (None, _) => false,
            (Some(probe), Some(claim)) => probe < claim,
            (Some(_), None) => true,
        },
    }
}

#[test]
fn equal_low_bits_of_the_port_names_resolve() {
    let segment = Segment::new(MTU_BYTES);
    let mut pair = Pair::boot(&segment, SMALLER, LARGER);
    for begin in Begin::ALL {
        let capture = Capture::start(segment.namespace(), BRIDGE);
        let started = Instant::now();
        let [smaller, larger] = contest(&segment, &mut pair, begin);
        let took = started.elapsed();
        pair.stop();
        let frames = PortFrame::all_of(capture);
        judge_ports(&frames);
        let macs = [SMALLER, LARGER].map(|mac| mac.to_string());
        let (keeper, other) = if larger_keeps_it(begin, &frames, &macs[0], &macs[1]) {
            (larger, smaller)
        } else {
            (smaller, larger)
        };
        println!(
            "note: {begin:?}: {:06x} has it, the other {:06x}, after {took:.1?}",
            keeper.node_name & 0xff_ffff,
            other.port_id
        );
        assert_eq!(keeper.port_id, CONTESTED, "{begin:?}: {keeper:?} {other:?}");
        assert_ne!(other.port_id, CONTESTED, "{begin:?}: {keeper:?} {other:?}");
        assert!(
            (1..=0xfffe).contains(&other.port_id),
            "{begin:?}: {other:?}"
        );
    }
    pair.power_off();
}
