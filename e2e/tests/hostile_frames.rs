//! A station on the segment that sends what no port should, beside connections of others: none of them breaks, every frame
//! is counted for what it is, and nobody's view of the neighbours changes.

use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::hosts::{Hosts, address};
use e2e::own_port::OwnPort;
use e2e::process::{PATIENCE, Running};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::segment::BRIDGE;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
const HOSTILE: &str = env!("CARGO_BIN_EXE_vi-hostile");
const MTU_BYTES: u32 = 2500;
/// Frames of each kind.
const EACH: u64 = 400;
/// More than all hostile frames together: none is lost before it is looked at.
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

/// Kinds of hostile frames, and the counters in which the server and the client together have each of them.
const KINDS: &[(&[&str], &[&str])] = &[
    // The kernel's filter keeps them out.
    (&["foreign_protocol"], &[]),
    (&["vlan"], &["port_drop_rx_vlan"]),
    (
        &["cut_short", "flipped_bit"],
        &[
            "drop_malformed",
            "drop_bad_crc",
            "vn_port_drop_malformed",
            "vn_port_drop_bad_crc",
        ],
    ),
    (&["wrong_source", "wrong_d_id"], &["drop_bad_address"]),
    (&["unknown_type"], &["drop_unknown_type"]),
    (&["unknown_opcode"], &["drop_bad_iu"]),
    (&["guessed_handle"], &["drop_unknown_handle"]),
    (&["stranger_message"], &["drop_wrong_peer"]),
    // Without recovery a frame that does not begin a message is judged by the open message first.
    (
        &["far_message", "replayed"],
        &[
            "drop_out_of_window",
            "drop_no_context",
            "drop_other_message",
            "drop_stale_message",
            "stale_acknowledgements",
            "drop_stray_response",
            "known_requests",
            "drop_late_request",
            "unknown_disconnects",
            "drop_stray_connect",
        ],
    ),
    (&["stranger_request"], &["drop_not_logged_in"]),
    // Some are answered as they were the first time.
    (
        &["replayed_els"],
        &[
            "drop_stray_connect",
            "vn_port_answers",
            "vn_port_resolved",
            "vn_port_drop_late_reply",
            "vn_port_drop_stray_reply",
        ],
    ),
    (
        &["malformed_els"],
        &["vn_port_refused_malformed", "vn_port_drop_farp_malformed"],
    ),
    (&["unknown_els"], &["vn_port_refused_command"]),
    (&["wrong_source_els"], &["vn_port_drop_wrong_mac"]),
    (
        &["stranger_els"],
        &[
            "vn_port_refused_stranger",
            "vn_port_drop_not_logged_in",
            "vn_port_drop_limit",
            "vn_port_drop_farp_malformed",
        ],
    ),
    (
        &["malformed_fip"],
        &[
            "vn_port_drop_malformed_fip",
            "vn_port_vn2vn_drop_bad_descriptor",
        ],
    ),
    // Other programs of the host log in and out, too, at the same interface.
    (
        &["unknown_fip", "replayed_fip_els"],
        &[
            "vn_port_drop_other_fip",
            "vn_port_vn2vn_drop_other_operation",
            "vn_port_repeated",
            "vn_port_drop_late_reply",
            "vn_port_drop_stray_reply",
        ],
    ),
    (&["wrong_source_fip"], &["vn_port_vn2vn_drop_bad_address"]),
    (
        &["replayed_fip"],
        &["vn_port_vn2vn_rx", "vn_port_vn2vn_drop_own"],
    ),
];

/// The network and its users while a flood is under way.
struct Scene {
    hosts: Hosts,
    scratch: Scratch,
    server: Running,
    client: Running,
    explorer: Running,
}

impl Scene {
    /// A client whose traffic is verified, and one that was connected before; all that was said is in a file.
    fn new(recovery: bool) -> Self {
        let hosts = Hosts::on_bridge(3, MTU_BYTES, |_, nic| {
            nic.key("rx_frames", RX_FRAMES)
                .key("r_a_tov_ms", R_A_TOV_MS)
                .key("recovery", recovery)
        });
        // It speaks in the name of others.
        hosts.segment().distrust("eth2-near");
        let scratch = Scratch::new("hostile");
        let mut capture = Capture::start(hosts.segment().namespace(), BRIDGE);
        let server = start(&hosts, SERVER, "server", &["serve", "here"], "listening");
        let mut explorer = start(&hosts, CLIENT, "explorer", &["explore"], "ready");
        let address = address(SERVER);
        explorer.tell(&format!("ask {address} here"));
        explorer.wait_for(&format!("asked {address} connected"), PATIENCE);
        let ping = ["ping", &address, "here", "--own", "client"];
        let client = start(&hosts, CLIENT, "client", &ping, "connected");
        capture.wait_for_frame("a message of the client", is_message);
        capture.wait_for_frame("another message", is_message);
        std::fs::write(scratch.file(SEEN), capture.so_far()).expect("room for a capture");
        drop(capture);
        Self {
            hosts,
            scratch,
            server,
            client,
            explorer,
        }
    }

    /// The intruder sends frames of these kinds; the client's traffic goes on while they come, and afterwards.
    fn flood(&mut self, kinds: &[&str]) {
        let seed = u64::from(std::process::id());
        println!("seed {seed}");
        let mut hostile = self.hosts.namespace(INTRUDER).program(HOSTILE);
        hostile.args(["--interface", "eth2", "--seed", &seed.to_string()]);
        hostile.args(["--each", &EACH.to_string(), "--seen"]);
        hostile.arg(self.scratch.file(SEEN)).args(kinds);
        let begin = Instant::now();
        let hostile = Running::start("vi-hostile", &mut hostile);
        self.go_on();
        let said = hostile.succeed(PATIENCE);
        let took = begin.elapsed();
        let sent = Report::read(&said);
        for kind in kinds {
            assert!(sent.get(kind) >= EACH, "{kind}: {said}");
        }
        self.go_on();
        let all: u64 = kinds.iter().map(|kind| sent.get(kind)).sum();
        println!("\nnote: {all} hostile frames in {took:.2?}");
    }

    /// The client says some more words.
    fn go_on(&mut self) {
        self.client.skip();
        for _ in 0..3 {
            self.client.wait_for("alive", PATIENCE);
        }
    }

    /// Each host still lists the others; then all end well. Gives what the server and the client counted.
    fn end(mut self) -> [Report; 2] {
        let hosts = [SERVER, CLIENT].map(address).join(" ");
        self.explorer.tell(&format!("see {hosts}"));
        self.explorer.wait_for(&format!("sees {hosts}"), PATIENCE);
        let client = Report::read(&self.client.succeed(PATIENCE));
        assert_eq!(client.get("events"), 0, "{client:?}");
        self.server.wait_for("left client", PATIENCE);
        self.explorer.succeed(PATIENCE);
        let server = Report::read(&self.server.succeed(PATIENCE));
        assert_eq!(server.get("events"), 2, "two good-byes: {server:?}");
        for report in [&server, &client] {
            assert_eq!(report.get("port_drop_rx_ring_full"), 0, "{report:?}");
            assert_eq!(report.get("exchanges_open"), 0, "{report:?}");
        }
        [server, client]
    }
}

fn is_message(frame: &[u8]) -> bool {
    // TYPE of FC-VI, and the opcode of a send.
    frame.get(36) == Some(&0x58) && frame.get(56) == Some(&0x01)
}

fn start(hosts: &Hosts, at: usize, name: &str, words: &[&str], begun: &str) -> Running {
    let mut program = Running::start(name, hosts.program(at, PEER).args(words));
    program.wait_for(begun, PATIENCE);
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
    let kinds: Vec<&str> = KINDS
        .iter()
        .flat_map(|(kinds, _)| *kinds)
        .copied()
        .collect();
    scene.flood(&kinds);
    // No neighbour came, none went, none logged in anew.
    watcher.stay_silent(HOLD);
    watcher.leave();
    let reports = scene.end();
    for (kinds, counters) in KINDS.iter().filter(|(_, counters)| !counters.is_empty()) {
        let counts = counters
            .iter()
            .flat_map(|name| reports.iter().map(|report| report.get(name)));
        let counted: u64 = counts.sum();
        let sent = kinds.len() as u64 * EACH;
        assert!(
            counted >= sent,
            "{kinds:?}: {counted} of {sent} in {counters:?}: {reports:?}"
        );
    }
}

#[test]
fn hostile_frames_break_no_connection() {
    all_kinds(true);
}

#[test]
fn hostile_frames_break_no_connection_without_recovery() {
    all_kinds(false);
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
