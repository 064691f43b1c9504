//! A station on the segment that sends what no port should, beside connections of others: none of them breaks, every frame
//! is counted for what it is, and nobody's view of the neighbours changes.

use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::hosts::{Hosts, address};
use e2e::own_port::OwnPort;
use e2e::process::{Running, TIMEOUT};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::segment::BRIDGE;
use e2e::testpmd::Testpmd;
use fcvi_frame::profile;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
const HOSTILE: &str = env!("CARGO_BIN_EXE_vi-hostile");
const MTU_BYTES: u32 = 2500;
/// Frames of each kind.
const EACH: u64 = 400;
/// More than the hostile frames of all kinds together: none is lost before it is looked at.
const RX_FRAMES: u32 = 16_384;
/// Neighbours for which a port has room.
const ROOM: u64 = 256;
/// Long enough that what was seen is replayed within it.
const R_A_TOV_MS: u32 = 60_000;
/// Silence for as long shows that nothing has changed.
const HOLD: Duration = Duration::from_secs(1);
/// The host of the server, that of the clients, and that of the intruder.
const SERVER: usize = 0;
const CLIENT: usize = 1;
const INTRUDER: usize = 2;
const SEEN: &str = "seen.pcap";
/// Ordinary traffic adds less to the counters of hostile frames while those of a kind are sent.
const FEW: u64 = EACH / 10;
/// A kernel that is late with frames gets so many chances.
const LOOKS: u32 = 10;

/// A kind of hostile frames, and counters in which the server and the client together have each frame of it that reaches
/// one of them.
type Kind = (&'static str, &'static [&'static str]);

/// First those that are made of what is remembered for R_A_TOV.
const KINDS: &[Kind] = &[
    (
        "replayed",
        &[
            "drop_stale_message",
            "drop_no_context",
            "drop_other_message",
            "drop_stray_connect",
            "known_requests",
            "drop_late_request",
            "unknown_disconnects",
        ],
    ),
    ("replayed_els_request", &["vn_port_answers"]),
    ("replayed_farp_reply", &["vn_port_resolved"]),
    (
        "replayed_els_reply",
        &[
            "drop_stray_connect",
            "vn_port_drop_late_reply",
            "vn_port_drop_stray_reply",
        ],
    ),
    // Other programs of the host are at the same interface, and some of this is for them.
    (
        "replayed_fip_reply",
        &[
            "vn_port_drop_late_reply",
            "vn_port_drop_stray_reply",
            "vn_port_drop_other_fip",
        ],
    ),
    (
        "replayed_fip",
        &["vn_port_vn2vn_rx", "vn_port_vn2vn_drop_own"],
    ),
    // The answers to some count, too.
    (
        "replayed_fip_question",
        &["vn_port_vn2vn_rx", "vn_port_vn2vn_drop_own"],
    ),
    ("vlan", &["port_drop_rx_vlan"]),
    ("cut_short", &["drop_malformed", "drop_bad_crc"]),
    ("flipped_bit", &["drop_bad_crc"]),
    ("wrong_source", &["drop_bad_address"]),
    ("wrong_d_id", &["drop_bad_address"]),
    ("unknown_type", &["drop_unknown_type"]),
    ("unknown_opcode", &["drop_bad_iu"]),
    ("guessed_handle", &["drop_unknown_handle"]),
    ("stranger_message", &["drop_wrong_peer"]),
    // Without recovery a frame that does not begin a message is judged by the open message first.
    (
        "far_message",
        &[
            "drop_out_of_window",
            "drop_no_context",
            "drop_other_message",
        ],
    ),
    ("stranger_request", &["drop_not_logged_in"]),
    (
        "malformed_els",
        &["vn_port_refused_malformed", "vn_port_drop_farp_malformed"],
    ),
    ("unknown_els", &["vn_port_refused_command"]),
    ("wrong_source_els", &["vn_port_drop_wrong_mac"]),
    (
        "stranger_els",
        &[
            "vn_port_refused_stranger",
            "vn_port_logos_to_strangers",
            "vn_port_drop_limit",
            "vn_port_drop_farp_malformed",
        ],
    ),
    (
        "malformed_fip",
        &[
            "vn_port_drop_malformed_fip",
            "vn_port_vn2vn_drop_bad_descriptor",
        ],
    ),
    (
        "unknown_fip",
        &[
            "vn_port_drop_other_fip",
            "vn_port_vn2vn_drop_other_operation",
        ],
    ),
    ("wrong_source_fip", &["vn_port_vn2vn_drop_bad_address"]),
];
/// Only with recovery there are any.
const ACKNOWLEDGED: Kind = ("replayed_acknowledgement", &["stale_acknowledgements"]);
/// While the two ask whether a port has logged in anew, its further requests count nowhere.
const DOUBTED: Kind = ("replayed_fip_request", &["vn_port_doubts"]);
/// The kernel's filter keeps them out.
const FOREIGN: &str = "foreign_protocol";

/// The network and its users while a flood is under way.
struct Scene {
    hosts: Hosts,
    scratch: Scratch,
    /// What joins the server to the network, if it is not there itself.
    switch: Option<Testpmd>,
    server: Running,
    client: Running,
    explorer: Running,
}

/// Where the server's NIC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the network.
    Interface,
    /// Behind a program of DPDK's that forwards between the host's interface and a memif; of this the server has the end
    /// with this role.
    #[cfg_attr(
        not(feature = "dpdk"),
        expect(dead_code, reason = "no such NIC can be opened")
    )]
    Memif(&'static str),
}

/// The server's own configuration behind a switch.
fn on_memif(role: &str, recovery: bool) -> String {
    format!(
        "[[nic]]\nport = \"dpdk\"\ndevice = \"net_memif0,role={role},id=0,rsize=13,socket=hostile\"\n\
         host = \"{}\"\nhuge_pages = false\nmemory_mb = 256\nrx_frames = {RX_FRAMES}\n\
         r_a_tov_ms = {R_A_TOV_MS}\nrecovery = {recovery}\n",
        address(SERVER)
    )
}

/// Joins the server's end of a memif to its host's interface.
fn switch(hosts: &Hosts, role: &str) -> Testpmd {
    let other = match role {
        "server" => "client",
        _ => "server",
    };
    // Frames of ours fit into one slot, of the one as of the other.
    let devices = [
        format!("net_memif0,role={other},id=0,rsize=13,bsize=2560,socket=hostile"),
        "net_af_packet0,iface=eth0,framesz=2560,blocksz=20480,framecnt=8192".to_owned(),
    ];
    let mut switch = Testpmd::start(|name| hosts.namespace(SERVER).program(name), &devices);
    switch.forward("io", &[]);
    switch
}

impl Scene {
    /// A client whose traffic is verified, and one that was connected before; all that was said is in a file.
    fn new(recovery: bool) -> Self {
        Self::with_server(Place::Interface, recovery)
    }

    fn with_server(place: Place, recovery: bool) -> Self {
        let hosts = Hosts::on_bridge(3, MTU_BYTES, |_, nic| {
            let nic = nic
                .key("rx_frames", RX_FRAMES)
                .key("r_a_tov_ms", R_A_TOV_MS)
                .key("recovery", recovery);
            match recovery {
                // Some acknowledgements travel alone, to be replayed. Nothing is lost here: what is sent again all the
                // same is as stale as a replayed frame.
                true => nic
                    .key("recovery_ack_us", 1)
                    .key("recovery_timeout_us", 1_000_000),
                false => nic,
            }
        });
        // It speaks in the name of others.
        hosts.segment().distrust("eth2-near");
        hosts.segment().without_firewall();
        let scratch = Scratch::new("hostile");
        let mut capture = Capture::start(hosts.segment().namespace(), BRIDGE);
        let mut server = hosts.program(SERVER, PEER);
        if let Place::Memif(role) = place {
            let config = scratch.write("memif.toml", &on_memif(role, recovery));
            server.env("VIADUCT_CONFIG", config);
        }
        // Whose socket it is comes first.
        let mut joined = None;
        if let Place::Memif(role @ "client") = place {
            joined = Some(switch(&hosts, role));
        }
        let mut server = Running::start("server", server.args(["serve", "here"]));
        server.wait_for("listening", TIMEOUT);
        if let Place::Memif(role @ "server") = place {
            joined = Some(switch(&hosts, role));
        }
        let mut explorer = start(&hosts, CLIENT, "explorer", &["explore"], "ready");
        let address = address(SERVER);
        explorer.tell(&format!("connect {address} here"));
        explorer.wait_for(&format!("asked {address} connected"), TIMEOUT);
        let ping = ["ping", &address, "here", "--own", "client"];
        let client = start(&hosts, CLIENT, "client", &ping, "connected");
        capture.wait_for_frame("a message of the client", is_message);
        capture.wait_for_frame("another message", is_message);
        if recovery {
            capture.wait_for_frame("an acknowledgement", is_acknowledgement);
        }
        std::fs::write(scratch.file(SEEN), capture.so_far()).expect("room for a capture");
        drop(capture);
        Self {
            hosts,
            scratch,
            switch: joined,
            server,
            client,
            explorer,
        }
    }

    /// The intruder sends frames of these kinds; the client's traffic goes on while they come, and afterwards. Gives how
    /// many were sent of each.
    fn flood(&mut self, kinds: &[&str]) -> Report {
        let seed = u64::from(std::process::id());
        println!("seed {seed}: {}", kinds.join(" "));
        let mut hostile = self.hosts.namespace(INTRUDER).program(HOSTILE);
        hostile.args(["--interface", "eth2", "--seed", &seed.to_string()]);
        hostile.args(["--each", &EACH.to_string(), "--seen"]);
        hostile.arg(self.scratch.file(SEEN)).args(kinds);
        let begin = Instant::now();
        let hostile = Running::start("vi-hostile", &mut hostile);
        self.go_on();
        let said = hostile.succeed(TIMEOUT);
        let took = begin.elapsed();
        let sent = Report::read(&said);
        for kind in kinds {
            assert!(sent.get(kind) >= EACH, "{kind}: {said}");
        }
        self.go_on();
        let all: u64 = kinds.iter().map(|kind| sent.get(kind)).sum();
        println!("{all} hostile frames in {took:.2?}");
        sent
    }

    /// What the server and the client have counted so far.
    fn counters(&mut self) -> [Report; 2] {
        [&mut self.server, &mut self.client].map(|program| {
            program.tell("counters");
            Report::of_line(&program.wait_for("counters ", TIMEOUT).text)
        })
    }

    /// By how much the counters of the two have grown.
    fn grown_since(&mut self, before: &[Report; 2]) -> [Report; 2] {
        let [server, client] = self.counters();
        [server.since(&before[0]), client.since(&before[1])]
    }

    /// The client says some more words, of round trips that begin now: what came before is behind the two.
    fn go_on(&mut self) {
        self.counters();
        self.client.skip();
        for _ in 0..3 {
            self.client.wait_for("alive", TIMEOUT);
        }
    }

    /// For a while there are no hostile frames, and the counters of each kind hardly grow.
    fn assert_ordinary_traffic_is_not_counted(&mut self, kinds: &[Kind], watcher: &mut OwnPort) {
        let before = self.counters();
        watcher.stay_silent(HOLD);
        let grown = self.grown_since(&before);
        for (kind, counters) in kinds {
            let counted = sum(&grown, counters);
            assert!(
                counted < FEW,
                "{kind}: {counted} in {counters:?}: {grown:?}"
            );
        }
    }

    /// Frames of one kind alone are all in its counters.
    fn assert_counted(&mut self, (kind, counters): &Kind) {
        let before = self.counters();
        let sent = self.flood(&[kind]);
        let heard = sent.get(kind) + sent.get(&format!("{kind}_to_all"));
        for look in 1.. {
            let grown = self.grown_since(&before);
            let counted = sum(&grown, counters);
            if counted >= heard {
                return;
            }
            assert!(
                look < LOOKS,
                "{kind}: {counted} of {heard} in {counters:?}: {grown:?}"
            );
            self.go_on();
        }
    }

    /// Some frames of a kind alone are in its counters.
    fn assert_noticed(&mut self, (kind, counters): &Kind) {
        let before = self.counters();
        self.flood(&[kind]);
        let grown = self.grown_since(&before);
        assert!(sum(&grown, counters) > 0, "{kind}: {counters:?}: {grown:?}");
    }

    /// Frames of other protocols arrive at the hosts, and no program hears of them.
    fn assert_kept_out(&mut self) {
        let hosts = [(SERVER, "eth0"), (CLIENT, "eth1")];
        for (host, interface) in hosts {
            self.hosts.namespace(host).count_others(interface);
        }
        let before = self.counters();
        let sent = self.flood(&[FOREIGN]).get(FOREIGN);
        let others = hosts.map(|(host, _)| self.hosts.namespace(host).others());
        let arrived: u64 = others.iter().sum();
        assert!(arrived >= sent, "{arrived} of {sent}");
        let grown = self.grown_since(&before);
        let refusals = grown
            .iter()
            .flat_map(Report::numbers)
            .filter(|(name, _)| name.contains("drop_") || name.contains("refused_"));
        let refused: u64 = refusals.map(|(_, number)| number).sum();
        assert!(refused < FEW, "{refused} of {sent}: {grown:?}");
    }

    /// Each host still lists the others; then all end well. Gives what the server and the client counted.
    fn end(mut self) -> [Report; 2] {
        let hosts = [SERVER, CLIENT].map(address).join(" ");
        self.explorer.tell(&format!("see {hosts}"));
        self.explorer.wait_for(&format!("sees {hosts}"), TIMEOUT);
        let client = Report::read(&self.client.succeed(TIMEOUT));
        assert_eq!(client.get("events"), 0, "{client:?}");
        self.server.wait_for("left client", TIMEOUT);
        self.explorer.succeed(TIMEOUT);
        let server = Report::read(&self.server.succeed(TIMEOUT));
        if let Some(switch) = self.switch {
            switch.quit();
        }
        assert_eq!(server.get("events"), 2, "two good-byes: {server:?}");
        for report in [&server, &client] {
            // Not every port has a ring of its own.
            let lost = report.numbers();
            let mut lost = lost.filter(|(name, _)| *name == "port_drop_rx_ring_full");
            assert!(lost.all(|(_, frames)| frames == 0), "{report:?}");
            assert_eq!(report.get("exchanges_open"), 0, "{report:?}");
        }
        [server, client]
    }
}

/// What these counters of the two come to together.
fn sum(reports: &[Report; 2], counters: &[&str]) -> u64 {
    let counts = counters
        .iter()
        .flat_map(|name| reports.iter().map(|report| report.get(name)));
    counts.sum()
}

/// TYPE of FC-VI, and this opcode.
fn is_iu(frame: &[u8], opcode: u8) -> bool {
    frame.get(36) == Some(&0x58) && frame.get(56) == Some(&opcode)
}

fn is_message(frame: &[u8]) -> bool {
    is_iu(frame, profile::OPCODE_SEND_REQUEST)
}

fn is_acknowledgement(frame: &[u8]) -> bool {
    is_iu(frame, profile::OPCODE_SEND_RESPONSE)
}

fn start(hosts: &Hosts, at: usize, name: &str, words: &[&str], begun: &str) -> Running {
    let mut program = Running::start(name, hosts.program(at, PEER).args(words));
    program.wait_for(begun, TIMEOUT);
    program
}

fn all_kinds(recovery: bool) {
    let mut scene = Scene::new(recovery);
    let (namespace, config) = (scene.hosts.namespace(SERVER), scene.hosts.config(SERVER));
    let mut watcher = OwnPort::start(namespace, "watcher", config);
    watcher.wait_until_up();
    // The server, the explorer and the client.
    watcher.wait_for_hosts(3);
    watcher.skip();
    let mut kinds = KINDS.to_vec();
    if recovery {
        kinds.insert(0, ACKNOWLEDGED);
    }
    scene.assert_ordinary_traffic_is_not_counted(&kinds, &mut watcher);
    let mut names: Vec<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
    names.extend([DOUBTED.0, FOREIGN]);
    scene.flood(&names);
    scene.assert_noticed(&DOUBTED);
    for kind in &kinds {
        scene.assert_counted(kind);
    }
    scene.assert_kept_out();
    println!(
        "\nnote: {} kinds of hostile frames break nothing, each alone and all together",
        names.len()
    );
    // No neighbour came, none went, none logged in anew.
    watcher.stay_silent(HOLD);
    watcher.leave();
    scene.end();
}

#[test]
fn hostile_frames_break_no_connection() {
    all_kinds(true);
}

#[test]
fn hostile_frames_break_no_connection_without_recovery() {
    all_kinds(false);
}

/// A program of DPDK's is the switch between two kinds of links: the server's NIC is behind its memif.
#[cfg(feature = "dpdk")]
fn behind_a_switch(role: &'static str) {
    let mut scene = Scene::with_server(Place::Memif(role), true);
    let names: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
    scene.flood(&names);
    for kind in KINDS {
        scene.assert_counted(kind);
    }
    // Those of them that are for the server are its port's to drop.
    let before = scene.counters();
    scene.flood(&[FOREIGN]);
    let [server, _] = scene.grown_since(&before);
    let dropped = server.get("port_drop_rx_other_ethertype");
    assert!(dropped > FEW, "{server:?}");
    println!(
        "\nnote: {} kinds of hostile frames break nothing behind dpdk-testpmd",
        names.len() + 1
    );
    scene.end();
}

#[cfg(feature = "dpdk")]
#[test]
fn hostile_frames_break_no_connection_behind_a_switch() {
    behind_a_switch("server");
}

#[cfg(feature = "dpdk")]
#[test]
fn hostile_frames_break_no_connection_of_a_client_of_a_switch() {
    behind_a_switch("client");
}

/// More made-up neighbours than there is room for push none out that is logged in, though no beacon of it came yet.
#[test]
fn made_up_neighbours_push_none_out() {
    let mut scene = Scene::new(true);
    scene.flood(&["made_up_claim"]);
    let reports = scene.end();
    for report in &reports {
        assert!(report.get("vn_port_vn2vn_found") > ROOM, "{report:?}");
    }
    let logouts = reports.map(|report| report.get("vn_port_logouts"));
    assert_eq!(logouts, [2, 0], "those of the two clients that left");
}
