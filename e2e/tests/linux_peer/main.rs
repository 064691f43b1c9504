//! Linux kernels as VN_Ports on one segment: with each other as a reference in this file, with Viaduct ports in
//! [`viaduct_ports`].

mod viaduct_ports;

use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::linux_peer::{LinuxPeer, Mac, PortView};
use e2e::port_frames::{FrameKind, PortFrame, check_port_frames, is_beacon};
use e2e::process::TIMEOUT;
use e2e::segment::{BRIDGE, Segment};

/// An MTU for the largest FCoE frame.
const MTU_BYTES: u32 = 2500;
/// The largest FCoE frame with its Ethernet header. A claim response has this length, as a test of the segment's MTU.
const LARGEST_FRAME_BYTES: usize = 14 + 2158;
/// Time without a beacon after which a port is lost: 2.5 periods of 8 s.
const BEACON_LOSS: Duration = Duration::from_secs(20);
/// Maximum time between two beacons.
const BEACON_PERIOD: Duration = Duration::from_millis(8100);
/// Maximum delay of an emulated machine on a busy host.
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

    /// Waits until each port is online at the other kernel; returns the views of the left port and of the right port.
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

    // A stopped port logs out.
    let begin = Instant::now();
    pair.left.stop();
    let blocked = pair
        .right
        .wait_for_remote(left.port_name(), "Blocked", LATENESS);
    println!(
        "note: Blocked {:.1?} after the other was stopped",
        blocked.at - begin
    );

    // A restarted port is found again.
    let begin = Instant::now();
    pair.left.start();
    for view in pair.wait_until_online() {
        println!(
            "note: Online {:.1?} after it was started again",
            view.at - begin
        );
    }

    // A vanished port is detected by its missing beacons, if at least one was received before.
    pair.right.refresh();
    let back = pair
        .right
        .wait_for_remote(left.port_name(), "Online", TIMEOUT);
    capture.wait_for_frame("a beacon", |frame| is_beacon(frame, back.port_id));
    let killed_at = pair.left.kill();
    let limit = BEACON_LOSS + LATENESS;
    let blocked = pair
        .right
        .wait_for_remote(left.port_name(), "Blocked", limit);
    let detected_after = blocked.at - killed_at;
    println!("note: Blocked {detected_after:.1?} after the other had vanished");
    assert!(
        detected_after >= BEACON_LOSS - BEACON_PERIOD,
        "the beacon was not due yet"
    );
    pair.right.power_off();

    let frames = PortFrame::all_of(capture);
    check_port_frames(&frames);
    check_login_order(&frames);
}

/// Checks that the port with the larger name logs in, and that claim responses have maximum length.
fn check_login_order(frames: &[PortFrame]) {
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
        .filter(|f| f.kind() == FrameKind::ClaimResponse)
        .peekable();
    assert!(tests.peek().is_some(), "no claim response");
    for test in tests {
        assert_eq!(test.wire_bytes(), LARGEST_FRAME_BYTES, "{test}");
    }
}

/// The start order of two ports that prefer the same N_Port_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartOrder {
    /// The port with the larger name is up before the other one starts.
    LargerFirst,
    /// The port with the smaller name is up before the other one starts.
    SmallerFirst,
    /// Both start at the same time.
    Together,
    /// Both are up on separate segments, which are then connected.
    Apart,
}

impl StartOrder {
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

/// Starts the pair, of which the left port has the smaller name; returns when each port is online at the other kernel.
fn contest(segment: &Segment, pair: &mut Pair, order: StartOrder) -> [PortView; 2] {
    let is_up = |peer: &mut LinuxPeer| {
        let view = peer.wait_for_own("Online", TIMEOUT);
        assert_eq!(view.port_id, CONTESTED, "the N_Port_ID is in use: {view:?}");
    };
    match order {
        StartOrder::LargerFirst => {
            pair.right.start();
            is_up(&mut pair.right);
            pair.left.start();
        }
        StartOrder::SmallerFirst => {
            pair.left.start();
            is_up(&mut pair.left);
            pair.right.start();
        }
        StartOrder::Together => pair.start(),
        StartOrder::Apart => {
            segment.detach("right");
            pair.start();
            is_up(&mut pair.left);
            is_up(&mut pair.right);
            segment.attach("right");
        }
    }
    pair.wait_until_online()
}

/// Whether the port with the larger name must keep the contested N_Port_ID; if it depends on timing, this is decided by
/// the captured frames. `smaller` and `larger` are the MAC addresses of the ports.
fn larger_keeps_it(order: StartOrder, frames: &[PortFrame], smaller: &str, larger: &str) -> bool {
    let first = |kind: FrameKind, mac: &str| {
        frames.iter().position(|frame| {
            frame.kind() == kind && frame.vn_port_id() == CONTESTED && frame.source() == mac
        })
    };
    match order {
        StartOrder::LargerFirst | StartOrder::Apart => true,
        StartOrder::SmallerFirst => false,
        // A port that receives a probe before it has sent its own chooses another N_Port_ID.
        StartOrder::Together => match (
            first(FrameKind::ProbeRequest, larger),
            first(FrameKind::ClaimNotification, smaller),
        ) {
            (None, _) => false,
            (Some(probe), Some(claim)) => probe < claim,
            (Some(_), None) => true,
        },
    }
}

#[test]
fn n_port_id_conflict_of_two_kernels_is_resolved() {
    let segment = Segment::new(MTU_BYTES);
    let mut pair = Pair::boot(&segment, SMALLER, LARGER);
    for order in StartOrder::ALL {
        let capture = Capture::start(segment.namespace(), BRIDGE);
        let started = Instant::now();
        let [smaller, larger] = contest(&segment, &mut pair, order);
        let took = started.elapsed();
        pair.stop();
        let frames = PortFrame::all_of(capture);
        check_port_frames(&frames);
        let macs = [SMALLER, LARGER].map(|mac| mac.to_string());
        let (winner, other) = if larger_keeps_it(order, &frames, &macs[0], &macs[1]) {
            (larger, smaller)
        } else {
            (smaller, larger)
        };
        println!(
            "note: {order:?}: {:06x} keeps the N_Port_ID, the other port has {:06x}, after {took:.1?}",
            winner.node_name & 0xff_ffff,
            other.port_id
        );
        assert_eq!(winner.port_id, CONTESTED, "{order:?}: {winner:?} {other:?}");
        assert_ne!(other.port_id, CONTESTED, "{order:?}: {winner:?} {other:?}");
        assert!(
            (1..=0xfffe).contains(&other.port_id),
            "{order:?}: {other:?}"
        );
    }
    pair.power_off();
}
