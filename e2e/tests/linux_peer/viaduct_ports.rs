//! Linux kernels and Viaduct ports on one segment: discovery, login, loss and N_Port_ID conflicts as seen by both.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::linux_peer::{LinuxPeer, Mac};
use e2e::nics::NicText;
use e2e::own_port::{OwnPort, OwnView};
use e2e::port_frames::{FrameKind, PortFrame, check_port_frames, is_beacon, is_probe};
use e2e::process::TIMEOUT;
use e2e::scratch::Scratch;
use e2e::segment::{BRIDGE, Segment};
use e2e::wire::Namespace;

use super::{
    BEACON_LOSS, BEACON_PERIOD, CONTESTED, LATENESS, MTU_BYTES, PLOGI, StartOrder, larger_keeps_it,
};

/// The name of the Viaduct port, whose preferred N_Port_ID is [`OUR_ID`], without conflicts.
const OURS: u64 = 0x2000_5254_0000_0099;
const OUR_ID: u32 = 0x99;
const LINUX_TAP: &str = "linux";
/// Time without reported changes that proves that beacons keep a port online.
const QUIET_TIME: Duration = Duration::from_secs(60);

/// Writes the configuration of a Viaduct port on an interface.
fn ours(scratch: &Scratch, interface: &str, port_name: u64) -> PathBuf {
    let text = |name: u64| format!("\"{name:016x}\"");
    NicText::discovering(interface, "192.0.2.9")
        .key("discovery.port_name", text(port_name))
        .key("discovery.node_name", text(port_name ^ 3 << 60))
        .write(scratch, &format!("{interface}.toml"))
}

/// Starts the Linux port, and waits until it and each Viaduct port are online at each other.
fn await_online(linux: &mut LinuxPeer, ports: &mut [(OwnPort, OwnView)]) {
    linux.start();
    let mac = linux.mac();
    for (port, own) in ports {
        let seen = port.wait_for_login(mac.port_name(), "logged in", TIMEOUT);
        assert_eq!(seen.node_name, mac.node_name());
        assert_eq!(seen.mac, mac.to_string());
        assert!(!seen.speaks_fc_vi, "{seen:?}");
        let remote = linux.wait_for_remote(own.port_name, "Online", TIMEOUT);
        assert_eq!(remote.port_id, own.port_id, "{remote:?}");
        assert_eq!(remote.node_name, own.node_name, "{remote:?}");
    }
}

/// Starts a Viaduct port; returns it with its own view.
fn start_ours(host: &Namespace, config: &Path) -> (OwnPort, OwnView) {
    let mut port = OwnPort::start(host, "ours", config);
    let own = port.wait_until_up();
    (port, own)
}

#[test]
fn linux_keeps_viaduct_port_online_until_it_logs_out() {
    let scratch = Scratch::new("linux-peer");
    let segment = Segment::new(MTU_BYTES);
    let host = segment.host("ours");
    let capture = Capture::start(segment.namespace(), BRIDGE);
    let mut linux = LinuxPeer::boot(&segment, "linux", Mac([0x52, 0x54, 0, 0, 0, 0x21]));
    linux.wait_until_ready();
    let mut ports = [start_ours(&host, &ours(&scratch, "ours", OURS))];
    assert_eq!(ports[0].1.port_name, OURS);
    assert_eq!(ports[0].1.port_id, OUR_ID, "the N_Port_ID is in use");
    await_online(&mut linux, &mut ports);

    linux.refresh();
    linux.wait_for_remote(OURS, "Online", LATENESS);
    let [(mut port, _)] = ports;
    port.discard_output();
    linux.expect_silence(QUIET_TIME);
    port.expect_silence(Duration::ZERO);
    println!("\nnote: Linux and Viaduct ports stayed online for {QUIET_TIME:?}");

    let begin = port.stop();
    let blocked = linux.wait_for_remote(OURS, "Blocked", LATENESS);
    println!(
        "note: Blocked {:.1?} after the Viaduct port was stopped",
        blocked.at - begin
    );
    linux.power_off();

    let frames = PortFrame::all_of(capture);
    check_port_frames(&frames);
    let is_ours =
        |frame: &&PortFrame| frame.kind() == FrameKind::Beacon && frame.vn_port_id() == OUR_ID;
    let beacons = frames.iter().filter(is_ours).count();
    assert!(beacons as u128 >= QUIET_TIME.as_millis() / BEACON_PERIOD.as_millis());
}

#[test]
fn linux_and_viaduct_ports_detect_vanished_ports() {
    let scratch = Scratch::new("linux-peer");
    let segment = Segment::new(MTU_BYTES);
    let mut capture = Capture::start(segment.namespace(), BRIDGE);
    let mut linux = LinuxPeer::boot(&segment, "linux", Mac([0x52, 0x54, 0, 0, 0, 0x31]));
    linux.wait_until_ready();
    // One port name is smaller than that of Linux, the other one is larger, so that it logs in.
    let names = [0x2000_5253_0000_0032, 0x2000_5255_0000_0033];
    let interfaces = ["first", "second"];
    let hosts = interfaces.map(|interface| segment.host(interface));
    let mut ports: Vec<(OwnPort, OwnView)> = (0..2)
        .map(|at| start_ours(&hosts[at], &ours(&scratch, interfaces[at], names[at])))
        .collect();
    await_online(&mut linux, &mut ports);
    let limit = BEACON_LOSS + LATENESS;
    let check_loss = |port: &str, after: Duration| {
        println!("note: {port}: loss detected after {after:.1?}");
        assert!(
            after >= BEACON_LOSS - BEACON_PERIOD,
            "the beacon was not due yet"
        );
    };

    // A vanished Viaduct port is detected by Linux and by the other Viaduct port.
    let (second, gone) = ports.pop().expect("two ports");
    let (mut first, own) = ports.pop().expect("two ports");
    first.wait_for_login(names[1], "logged in", TIMEOUT);
    // Linux detects the loss only after at least one beacon.
    capture.wait_for_frame("a beacon", |frame| is_beacon(frame, gone.port_id));
    let killed_at = second.kill();
    let blocked = linux.wait_for_remote(names[1], "Blocked", limit);
    check_loss("a Viaduct port, by Linux", blocked.at - killed_at);
    check_loss(
        "a Viaduct port, by the other one",
        first.wait_until_gone(names[1], limit) - killed_at,
    );

    // A stopped Linux logs out, and its loss is detected later.
    let begin = Instant::now();
    linux.stop();
    let peer = linux.mac().port_name();
    let left = first.wait_for_login(peer, "logged out", LATENESS);
    println!(
        "note: logged out {:.1?} after Linux was stopped",
        left.at - begin
    );
    check_loss(
        "a stopped Linux",
        first.wait_until_gone(peer, limit) - begin,
    );

    // It is restarted, and vanishes.
    let mut ports = [(first, own)];
    await_online(&mut linux, &mut ports);
    let [(mut first, _)] = ports;
    let killed_at = linux.kill();
    check_loss(
        "a killed Linux",
        first.wait_until_gone(peer, limit) - killed_at,
    );
    first.stop();

    let frames = PortFrame::all_of(capture);
    check_port_frames(&frames);
    for login in frames.iter().filter(|frame| frame.els() == PLOGI) {
        assert_ne!(
            login.s_id(),
            "00.00.32",
            "the larger port name logs in: {login}"
        );
    }
}

/// A Linux port and the configuration of a Viaduct port that prefer the same N_Port_ID.
struct Contest<'a> {
    segment: &'a Segment,
    host: &'a Namespace,
    linux: &'a mut LinuxPeer,
    config: PathBuf,
    is_ours_larger: bool,
}

impl Contest<'_> {
    fn start_linux(&mut self) {
        self.linux.start();
        let view = self.linux.wait_for_own("Online", TIMEOUT);
        assert_eq!(view.port_id, CONTESTED, "the N_Port_ID is in use: {view:?}");
    }

    fn start_ours(&self) -> OwnPort {
        let (port, own) = start_ours(self.host, &self.config);
        assert_eq!(own.port_id, CONTESTED, "the N_Port_ID is in use: {own:?}");
        port
    }

    /// Starts both ports in this order; returns the Viaduct port once it has an N_Port_ID.
    fn start(&mut self, order: StartOrder, capture: &mut Capture<'_>) -> OwnPort {
        let is_ours_first = match order {
            StartOrder::LargerFirst => self.is_ours_larger,
            StartOrder::SmallerFirst => !self.is_ours_larger,
            StartOrder::Together => {
                // Linux delays its first probe.
                self.linux.start();
                capture.wait_for_frame("a probe", |frame| is_probe(frame, CONTESTED));
                return start_ours(self.host, &self.config).0;
            }
            StartOrder::Apart => {
                self.segment.detach(LINUX_TAP);
                self.start_linux();
                let port = self.start_ours();
                self.segment.attach(LINUX_TAP);
                return port;
            }
        };
        if is_ours_first {
            let port = self.start_ours();
            self.linux.start();
            port
        } else {
            self.start_linux();
            start_ours(self.host, &self.config).0
        }
    }
}

/// For both orders of the port names, and for all start orders.
#[test]
fn n_port_id_conflict_with_linux_is_resolved() {
    let scratch = Scratch::new("linux-peer");
    let segment = Segment::new(MTU_BYTES);
    let host = segment.host("ours");
    let mac = Mac([0x52, 0x54, 0, 1, 0, 5]);
    let mut linux = LinuxPeer::boot(&segment, LINUX_TAP, mac);
    linux.wait_until_ready();
    let low = u64::from(CONTESTED);
    let names = [
        (false, 0x2000_5253_0000_0000),
        (true, 0x2000_5255_0000_0000),
    ];
    for ((is_ours_larger, name), order) in names
        .into_iter()
        .flat_map(|name| StartOrder::ALL.map(|order| (name, order)))
    {
        let name = name | low;
        let mut capture = Capture::start(segment.namespace(), BRIDGE);
        let started = Instant::now();
        let mut contest = Contest {
            segment: &segment,
            host: &host,
            linux: &mut linux,
            config: ours(&scratch, "ours", name),
            is_ours_larger,
        };
        let mut port = contest.start(order, &mut capture);
        let theirs = port.wait_for_login(mac.port_name(), "logged in", TIMEOUT);
        let ours = linux.wait_for_remote(name, "Online", TIMEOUT);
        let took = started.elapsed();
        port.stop();
        linux.wait_for_remote(name, "Blocked", LATENESS);
        linux.stop();
        let frames = PortFrame::all_of(capture);
        check_port_frames(&frames);

        let own_mac = host.link("ours")["address"]
            .as_str()
            .expect("an address")
            .to_owned();
        let mut macs = [own_mac, mac.to_string()];
        if is_ours_larger {
            macs.reverse();
        }
        let larger_keeps_it = larger_keeps_it(order, &frames, &macs[0], &macs[1]);
        let what = format!("{order:?}, Viaduct port name larger: {is_ours_larger}");
        let (winner, other) = if larger_keeps_it == is_ours_larger {
            (ours.port_id, theirs.port_id)
        } else {
            (theirs.port_id, ours.port_id)
        };
        println!(
            "\nnote: {what}: N_Port_ID of Viaduct {:06x}, of Linux {:06x}, after {took:.1?}",
            ours.port_id, theirs.port_id
        );
        assert_eq!(winner, CONTESTED, "{what}");
        assert!(
            (1..=0xfffe).contains(&other) && other != CONTESTED,
            "{what}"
        );
    }
    linux.power_off();
}
