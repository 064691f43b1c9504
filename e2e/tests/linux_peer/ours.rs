//! Linux kernels beside ports of ours: what each side sees of the other.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::linux_peer::{LinuxPeer, Mac};
use e2e::nics::NicText;
use e2e::own_port::{OwnPort, OwnView};
use e2e::port_frames::{Kind, PortFrame, is_beacon, is_probe, judge_ports};
use e2e::process::TIMEOUT;
use e2e::scratch::Scratch;
use e2e::segment::{BRIDGE, Segment};
use e2e::wire::Namespace;

use super::{
    BEACON_LOSS, BEACON_PERIOD, Begin, CONTESTED, LATENESS, MTU_BYTES, PLOGI, larger_keeps_it,
};

/// A port name that is in nobody's way: the N_Port_ID that it begins with is [`OUR_ID`].
const OURS: u64 = 0x2000_5254_0000_0099;
const OUR_ID: u32 = 0x99;
const LINUX_TAP: &str = "linux";
/// Silence for as long shows that a port is kept, beacon after beacon.
const HOLD: Duration = Duration::from_secs(60);

/// A configuration of a port of ours on an interface of this name.
fn ours(scratch: &Scratch, interface: &str, port_name: u64) -> PathBuf {
    let text = |name: u64| format!("\"{name:016x}\"");
    NicText::discovering(interface, "192.0.2.9")
        .key("port_name", text(port_name))
        .key("node_name", text(port_name ^ 3 << 60))
        .write(scratch, &format!("{interface}.toml"))
}

/// Starts Linux, and waits until it and each of ours know each other.
fn meet(linux: &mut LinuxPeer, ports: &mut [(OwnPort, OwnView)]) {
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

/// Starts a port of ours; gives it with what it says of itself.
fn start_ours(host: &Namespace, config: &Path) -> (OwnPort, OwnView) {
    let mut port = OwnPort::start(host, "ours", config);
    let own = port.wait_until_up();
    (port, own)
}

#[test]
fn linux_keeps_our_port_until_it_leaves() {
    let scratch = Scratch::new("linux-peer");
    let segment = Segment::new(MTU_BYTES);
    let host = segment.host("ours");
    let capture = Capture::start(segment.namespace(), BRIDGE);
    let mut linux = LinuxPeer::boot(&segment, "linux", Mac([0x52, 0x54, 0, 0, 0, 0x21]));
    linux.wait_until_ready();
    let mut ports = [start_ours(&host, &ours(&scratch, "ours", OURS))];
    assert_eq!(ports[0].1.port_name, OURS);
    assert_eq!(ports[0].1.port_id, OUR_ID, "nobody else has it");
    meet(&mut linux, &mut ports);

    linux.look_again();
    linux.wait_for_remote(OURS, "Online", LATENESS);
    let [(mut port, _)] = ports;
    port.skip();
    linux.stay_silent(HOLD);
    port.stay_silent(Duration::ZERO);
    println!("\nnote: Linux and we kept each other for {HOLD:?}");

    let begin = port.leave();
    let blocked = linux.wait_for_remote(OURS, "Blocked", LATENESS);
    println!("note: Blocked {:.1?} after ours left", blocked.at - begin);
    linux.power_off();

    let frames = PortFrame::all_of(capture);
    judge_ports(&frames);
    let is_ours = |frame: &&PortFrame| frame.kind() == Kind::Beacon && frame.vn_port_id() == OUR_ID;
    let beacons = frames.iter().filter(is_ours).count();
    assert!(beacons as u128 >= HOLD.as_millis() / BEACON_PERIOD.as_millis());
}

#[test]
fn linux_and_we_miss_each_other() {
    let scratch = Scratch::new("linux-peer");
    let segment = Segment::new(MTU_BYTES);
    let mut capture = Capture::start(segment.namespace(), BRIDGE);
    let mut linux = LinuxPeer::boot(&segment, "linux", Mac([0x52, 0x54, 0, 0, 0, 0x31]));
    linux.wait_until_ready();
    // One with a smaller port name than Linux, and one with a larger one, which logs in.
    let names = [0x2000_5253_0000_0032, 0x2000_5255_0000_0033];
    let interfaces = ["first", "second"];
    let hosts = interfaces.map(|interface| segment.host(interface));
    let mut ports: Vec<(OwnPort, OwnView)> = (0..2)
        .map(|at| start_ours(&hosts[at], &ours(&scratch, interfaces[at], names[at])))
        .collect();
    meet(&mut linux, &mut ports);
    let limit = BEACON_LOSS + LATENESS;
    let judge_missed = |who: &str, missed: Duration| {
        println!("note: {who} was missed after {missed:.1?}");
        assert!(
            missed >= BEACON_LOSS - BEACON_PERIOD,
            "its beacon was not due yet"
        );
    };

    // A port of ours that vanishes is missed, by Linux and by the other one.
    let (second, gone) = ports.pop().expect("two ports");
    let (mut first, own) = ports.pop().expect("two ports");
    first.wait_for_login(names[1], "logged in", TIMEOUT);
    // Linux does not miss whom it never heard a beacon of.
    capture.wait_for_frame("a beacon", |frame| is_beacon(frame, gone.port_id));
    let death = second.kill();
    let blocked = linux.wait_for_remote(names[1], "Blocked", limit);
    judge_missed("ours by Linux", blocked.at - death);
    judge_missed(
        "ours by ours",
        first.wait_until_gone(names[1], limit) - death,
    );

    // Linux says that it stops, and is missed later.
    let begin = Instant::now();
    linux.stop();
    let peer = linux.mac().port_name();
    let left = first.wait_for_login(peer, "logged out", LATENESS);
    println!(
        "note: logged out {:.1?} after Linux was stopped",
        left.at - begin
    );
    judge_missed(
        "a stopped Linux",
        first.wait_until_gone(peer, limit) - begin,
    );

    // It comes back, and vanishes.
    let mut ports = [(first, own)];
    meet(&mut linux, &mut ports);
    let [(mut first, _)] = ports;
    let death = linux.kill();
    judge_missed("a killed Linux", first.wait_until_gone(peer, limit) - death);
    first.leave();

    let frames = PortFrame::all_of(capture);
    judge_ports(&frames);
    for login in frames.iter().filter(|frame| frame.els() == PLOGI) {
        assert_ne!(
            login.s_id(),
            "00.00.32",
            "the larger port name logs in: {login}"
        );
    }
}

/// Linux and the configuration of a port of ours that wants the same N_Port_ID.
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
        assert_eq!(view.port_id, CONTESTED, "nobody else has it: {view:?}");
    }

    fn start_ours(&self) -> OwnPort {
        let (port, own) = start_ours(self.host, &self.config);
        assert_eq!(own.port_id, CONTESTED, "nobody else has it: {own:?}");
        port
    }

    /// Has both begin; gives our port when it has an N_Port_ID.
    fn begin(&mut self, begin: Begin, capture: &mut Capture<'_>) -> OwnPort {
        let is_ours_first = match begin {
            Begin::LargerFirst => self.is_ours_larger,
            Begin::SmallerFirst => !self.is_ours_larger,
            Begin::Together => {
                // Linux takes its time before it asks for the first time.
                self.linux.start();
                capture.wait_for_frame("a probe", |frame| is_probe(frame, CONTESTED));
                return start_ours(self.host, &self.config).0;
            }
            Begin::Apart => {
                self.segment.part(LINUX_TAP);
                self.start_linux();
                let port = self.start_ours();
                self.segment.join(LINUX_TAP);
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

/// Whichever has the larger port name, and whichever is up first.
#[test]
fn linux_and_we_contest_an_n_port_id() {
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
    for ((is_ours_larger, name), begin) in names
        .into_iter()
        .flat_map(|name| Begin::ALL.map(|begin| (name, begin)))
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
        let mut port = contest.begin(begin, &mut capture);
        let theirs = port.wait_for_login(mac.port_name(), "logged in", TIMEOUT);
        let ours = linux.wait_for_remote(name, "Online", TIMEOUT);
        let took = started.elapsed();
        port.leave();
        linux.wait_for_remote(name, "Blocked", LATENESS);
        linux.stop();
        let frames = PortFrame::all_of(capture);
        judge_ports(&frames);

        let own_mac = host.link("ours")["address"]
            .as_str()
            .expect("an address")
            .to_owned();
        let mut macs = [own_mac, mac.to_string()];
        if is_ours_larger {
            macs.reverse();
        }
        let larger_keeps_it = larger_keeps_it(begin, &frames, &macs[0], &macs[1]);
        let what = format!("{begin:?}, ours larger: {is_ours_larger}");
        let (keeper, other) = if larger_keeps_it == is_ours_larger {
            (ours.port_id, theirs.port_id)
        } else {
            (theirs.port_id, ours.port_id)
        };
        println!(
            "\nnote: {what}: ours is {:06x}, Linux {:06x}, after {took:.1?}",
            ours.port_id, theirs.port_id
        );
        assert_eq!(keeper, CONTESTED, "{what}");
        assert!(
            (1..=0xfffe).contains(&other) && other != CONTESTED,
            "{what}"
        );
    }
    linux.power_off();
}
