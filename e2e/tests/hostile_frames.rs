//! Hostile frames of another station on the segment: no connection breaks, all frames are counted by kind, and the
//! neighbours of all ports stay the same.

use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::hosts::{Hosts, address};
use e2e::own_port::OwnPort;
use e2e::process::{Running, TIMEOUT};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::segment::BRIDGE;
use e2e::testpmd::Testpmd;
use e2e::vi_peer;
use fcvi_frame::iu::Opcode;

const HOSTILE: &str = env!("CARGO_BIN_EXE_vi-hostile");
const MTU_BYTES: u32 = 2500;
/// Minimum number of frames of each kind.
const EACH: u64 = 400;
/// Receive ring size; more than the hostile frames of all kinds together, so that none is dropped.
const RX_FRAMES: u32 = 16_384;
/// Maximum number of neighbours of a port.
const MAX_NEIGHBOURS: u64 = 256;
/// R_A_TOV; longer than the time until captured frames are replayed.
const R_A_TOV_MS: u32 = 60_000;
/// Time without reported changes that proves stability.
const QUIET_TIME: Duration = Duration::from_secs(1);
/// The hosts of the server, of the clients, and of the intruder.
const SERVER: usize = 0;
const CLIENT: usize = 1;
const INTRUDER: usize = 2;
const CAPTURE: &str = "capture.pcap";
/// Upper limit for the growth of the counters of hostile frames by ordinary traffic.
const MAX_ORDINARY: u64 = EACH / 10;
/// Maximum number of counter reads until all frames of a kind are counted.
const MAX_READS: u32 = 10;

/// A kind of hostile frames, and the counters in which server and client together count each frame that reaches one of
/// them.
type Kind = (&'static str, &'static [&'static str]);

/// Kinds of hostile frames; first those that replay state which ports keep for R_A_TOV.
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
    // Some frames are for ports of other programs at the same interface.
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
    // Replies to some of them are counted as well.
    (
        "replayed_fip_query",
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
    ("unknown_port_message", &["drop_wrong_peer"]),
    // Without recovery, a frame other than the first of a message is checked against the open message first.
    (
        "out_of_window_message",
        &[
            "drop_out_of_window",
            "drop_no_context",
            "drop_other_message",
        ],
    ),
    ("unknown_port_request", &["drop_not_logged_in"]),
    (
        "malformed_els",
        &["vn_port_refused_malformed", "vn_port_drop_farp_malformed"],
    ),
    ("unknown_els", &["vn_port_refused_command"]),
    ("wrong_source_els", &["vn_port_drop_wrong_mac"]),
    (
        "unknown_port_els",
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
/// Sent with recovery only.
const ACKNOWLEDGED: Kind = ("replayed_acknowledgement", &["stale_acknowledgements"]);
/// While a port verifies a repeated login, it does not count further requests of that port.
const DOUBTED: Kind = ("replayed_fip_request", &["vn_port_doubts"]);
/// Dropped by the packet filter in the kernel.
const FOREIGN: &str = "foreign_protocol";

/// The network and the programs on it during a flood.
struct Scene {
    hosts: Hosts,
    scratch: Scratch,
    /// The program between the network and a server on a memif.
    switch: Option<Testpmd>,
    server: Running,
    client: Running,
    explorer: Running,
    /// N_Port_IDs of ports that were started after the capture; the intruder must not forge theirs, which are logged
    /// in.
    later_ids: Vec<u32>,
}

/// The location of the server's NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    /// On the network.
    Interface,
    /// Behind testpmd, which forwards between the host's interface and a memif; the server has this role on the memif.
    #[cfg_attr(
        not(feature = "dpdk"),
        expect(dead_code, reason = "requires a build with DPDK")
    )]
    Memif(&'static str),
}

/// Returns the configuration of the server on a memif.
fn on_memif(role: &str, recovery: bool) -> String {
    format!(
        "[[nic]]\ndpdk.device = \"net_memif0,role={role},id=0,rsize=13,socket=hostile\"\n\
         host = \"{}\"\ndpdk.huge_pages = false\ndpdk.memory_mb = 256\ndpdk.rx_frames = {RX_FRAMES}\n\
         fc_vi.r_a_tov_ms = {R_A_TOV_MS}\nrecovery = {recovery}\n",
        address(SERVER)
    )
}

/// Starts testpmd between the memif of the server and its host's interface.
fn switch(hosts: &Hosts, role: &str) -> Testpmd {
    let other = match role {
        "server" => "client",
        _ => "server",
    };
    // Frames of maximum length fit into one slot of both devices.
    let devices = [
        format!("net_memif0,role={other},id=0,rsize=13,bsize=2560,socket=hostile"),
        "net_af_packet0,iface=eth0,framesz=2560,blocksz=20480,framecnt=8192".to_owned(),
    ];
    let mut switch = Testpmd::start(|name| hosts.namespace(SERVER).program(name), &devices);
    switch.forward("io", &[]);
    switch
}

impl Scene {
    /// Starts a server, a client with checked traffic, and an explorer that was connected before; captures their
    /// frames.
    fn new(recovery: bool) -> Self {
        Self::with_server(Location::Interface, recovery)
    }

    fn with_server(location: Location, recovery: bool) -> Self {
        let hosts = Hosts::on_bridge(3, MTU_BYTES, |_, nic| {
            let nic = nic
                .key("network.rx_frames", RX_FRAMES)
                .key("fc_vi.r_a_tov_ms", R_A_TOV_MS);
            match recovery {
                // Short, so that some acknowledgements are sent without data. No frame is lost here; spurious
                // retransmissions would be counted like replayed frames.
                true => nic
                    .key("recovery.ack_us", 1)
                    .key("recovery.timeout_us", 1_000_000),
                false => nic.key("recovery", false),
            }
        });
        // The intruder forges source addresses.
        hosts.segment().disable_learning("eth2-bridge");
        hosts.segment().disable_netfilter();
        let scratch = Scratch::new("hostile");
        let mut capture = Capture::start(hosts.segment().namespace(), BRIDGE);
        let mut server = hosts.program(SERVER, vi_peer::path());
        if let Location::Memif(role) = location {
            let config = scratch.write("memif.toml", &on_memif(role, recovery));
            server.env("VIADUCT_CONFIG", config);
        }
        // The memif server must be started first.
        let mut forwarder = None;
        if let Location::Memif(role @ "client") = location {
            forwarder = Some(switch(&hosts, role));
        }
        let server = vi_peer::serve(server, "echo");
        if let Location::Memif(role @ "server") = location {
            forwarder = Some(switch(&hosts, role));
        }
        let client_host = || hosts.program(CLIENT, vi_peer::path());
        let mut explorer = vi_peer::explore(client_host());
        let address = address(SERVER);
        explorer.send_line(&format!("connect {address} echo"));
        explorer.wait_for(&format!("result {address} connected"), TIMEOUT);
        let client = vi_peer::ping(client_host(), &address, "echo", "client");
        capture.wait_for_frame("a message of the client", is_message);
        capture.wait_for_frame("another message", is_message);
        if recovery {
            capture.wait_for_frame("an acknowledgement", is_acknowledgement);
        }
        std::fs::write(scratch.file(CAPTURE), capture.so_far()).expect("the capture is written");
        drop(capture);
        Self {
            hosts,
            scratch,
            switch: forwarder,
            server,
            client,
            explorer,
            later_ids: Vec::new(),
        }
    }

    /// Sends frames of these kinds while and until the client has made progress. Returns the number of frames per kind.
    fn flood(&mut self, kinds: &[&str]) -> Report {
        let seed = u64::from(std::process::id());
        println!("seed {seed}: {}", kinds.join(" "));
        let mut hostile = self.hosts.namespace(INTRUDER).program(HOSTILE);
        hostile.args(["--interface", "eth2", "--seed", &seed.to_string()]);
        for id in &self.later_ids {
            hostile.args(["--used-id", &id.to_string()]);
        }
        hostile.args(["--each", &EACH.to_string(), "--capture"]);
        hostile.arg(self.scratch.file(CAPTURE)).args(kinds);
        let begin = Instant::now();
        let hostile = Running::start("vi-hostile", &mut hostile);
        self.await_progress();
        let output = hostile.succeed(TIMEOUT);
        let took = begin.elapsed();
        let sent = Report::read(&output);
        for kind in kinds {
            assert!(sent.get(kind) >= EACH, "{kind}: {output}");
        }
        self.await_progress();
        let all: u64 = kinds.iter().map(|kind| sent.get(kind)).sum();
        println!("{all} hostile frames in {took:.2?}");
        sent
    }

    /// Returns the current counters of server and client.
    fn counters(&mut self) -> [Report; 2] {
        [&mut self.server, &mut self.client].map(|program| {
            program.send_line("counters");
            Report::of_line(&program.wait_for("counters ", TIMEOUT).text)
        })
    }

    /// Returns the increases of the counters of server and client.
    fn grown_since(&mut self, before: &[Report; 2]) -> [Report; 2] {
        let [server, client] = self.counters();
        [server.since(&before[0]), client.since(&before[1])]
    }

    /// Waits for further round trips, so that server and client have processed all earlier frames.
    fn await_progress(&mut self) {
        self.counters();
        self.client.discard_output();
        for _ in 0..3 {
            self.client.wait_for("alive", TIMEOUT);
        }
    }

    /// Checks that the counters of each kind hardly grow without hostile frames.
    fn assert_ordinary_traffic_is_not_counted(&mut self, kinds: &[Kind], watcher: &mut OwnPort) {
        let before = self.counters();
        watcher.expect_silence(QUIET_TIME);
        let grown = self.grown_since(&before);
        for (kind, counters) in kinds {
            let counted = sum(&grown, counters);
            assert!(
                counted < MAX_ORDINARY,
                "{kind}: {counted} in {counters:?}: {grown:?}"
            );
        }
    }

    /// Sends frames of one kind and checks that all of them are counted.
    fn assert_counted(&mut self, (kind, counters): &Kind) {
        let before = self.counters();
        let sent = self.flood(&[kind]);
        let received = sent.get(kind) + sent.get(&format!("{kind}_multicast"));
        for read in 1.. {
            let grown = self.grown_since(&before);
            let counted = sum(&grown, counters);
            if counted >= received {
                return;
            }
            assert!(
                read < MAX_READS,
                "{kind}: {counted} of {received} in {counters:?}: {grown:?}"
            );
            self.await_progress();
        }
    }

    /// Sends frames of one kind until some of them are counted: a verification in progress answers all that arrive
    /// meanwhile.
    fn assert_some_counted(&mut self, (kind, counters): &Kind) {
        let before = self.counters();
        for flood in 1.. {
            self.flood(&[kind]);
            let grown = self.grown_since(&before);
            if sum(&grown, counters) > 0 {
                return;
            }
            assert!(flood < MAX_READS, "{kind}: {counters:?}: {grown:?}");
        }
    }

    /// Sends frames of other protocols and checks that they arrive at the hosts, but not at the programs.
    fn assert_filtered(&mut self) {
        let hosts = [(SERVER, "eth0"), (CLIENT, "eth1")];
        for (host, interface) in hosts {
            self.hosts.namespace(host).count_other_protocols(interface);
        }
        let before = self.counters();
        let sent = self.flood(&[FOREIGN]).get(FOREIGN);
        let others = hosts.map(|(host, _)| self.hosts.namespace(host).other_protocol_frames());
        let arrived: u64 = others.iter().sum();
        assert!(arrived >= sent, "{arrived} of {sent}");
        let grown = self.grown_since(&before);
        let refusals = grown
            .iter()
            .flat_map(Report::numbers)
            .filter(|(name, _)| name.contains("drop_") || name.contains("refused_"));
        let refused: u64 = refusals.map(|(_, number)| number).sum();
        assert!(refused < MAX_ORDINARY, "{refused} of {sent}: {grown:?}");
    }

    /// Checks autodiscovery and stops all programs. Returns the counters of server and client.
    fn end(mut self) -> [Report; 2] {
        let hosts = [SERVER, CLIENT].map(address).join(" ");
        self.explorer.send_line(&format!("discover {hosts}"));
        self.explorer
            .wait_for(&format!("discovered {hosts}"), TIMEOUT);
        let client = Report::read(&self.client.succeed(TIMEOUT));
        assert_eq!(client.get("events"), 0, "{client:?}");
        vi_peer::await_disconnect(&mut self.server, "client");
        self.explorer.succeed(TIMEOUT);
        let server = Report::read(&self.server.succeed(TIMEOUT));
        if let Some(switch) = self.switch {
            switch.quit();
        }
        assert_eq!(server.get("events"), 2, "two disconnects: {server:?}");
        for report in [&server, &client] {
            // Not all ports have this counter.
            let lost = report.numbers();
            let mut lost = lost.filter(|(name, _)| *name == "port_drop_rx_ring_full");
            assert!(lost.all(|(_, frames)| frames == 0), "{report:?}");
            assert_eq!(report.get("exchanges_open"), 0, "{report:?}");
        }
        [server, client]
    }
}

/// Returns the sum of these counters of both programs.
fn sum(reports: &[Report; 2], counters: &[&str]) -> u64 {
    let counts = counters
        .iter()
        .flat_map(|name| reports.iter().map(|report| report.get(name)));
    counts.sum()
}

/// Whether a frame is an FC-VI information unit with this opcode.
fn is_iu(frame: &[u8], opcode: Opcode) -> bool {
    frame.get(36) == Some(&0x58) && frame.get(56) == Some(&opcode.raw())
}

fn is_message(frame: &[u8]) -> bool {
    is_iu(frame, Opcode::SendRequest)
}

fn is_acknowledgement(frame: &[u8]) -> bool {
    is_iu(frame, Opcode::SendResponse)
}

fn all_kinds(recovery: bool) {
    let mut scene = Scene::new(recovery);
    let (namespace, config) = (scene.hosts.namespace(SERVER), scene.hosts.config(SERVER));
    let mut watcher = OwnPort::start(namespace, "watcher", config);
    scene.later_ids.push(watcher.wait_until_up().port_id);
    // The server, the explorer and the client.
    watcher.wait_for_hosts(3);
    watcher.discard_output();
    let mut kinds = KINDS.to_vec();
    if recovery {
        kinds.insert(0, ACKNOWLEDGED);
    }
    scene.assert_ordinary_traffic_is_not_counted(&kinds, &mut watcher);
    let mut names: Vec<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
    names.extend([DOUBTED.0, FOREIGN]);
    scene.flood(&names);
    scene.assert_some_counted(&DOUBTED);
    for kind in &kinds {
        scene.assert_counted(kind);
    }
    scene.assert_filtered();
    println!(
        "\nnote: {} kinds of hostile frames break no connection, separately and together",
        names.len()
    );
    // No neighbour was found, lost, or logged in again.
    watcher.expect_silence(QUIET_TIME);
    watcher.stop();
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

/// The server's NIC is on a memif behind testpmd.
#[cfg(feature = "dpdk")]
fn behind_a_switch(role: &'static str) {
    let mut scene = Scene::with_server(Location::Memif(role), true);
    let names: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
    scene.flood(&names);
    for kind in KINDS {
        scene.assert_counted(kind);
    }
    // The server's port drops those that are addressed to it.
    let before = scene.counters();
    scene.flood(&[FOREIGN]);
    let [server, _] = scene.grown_since(&before);
    let dropped = server.get("port_drop_rx_other_ethertype");
    assert!(dropped > MAX_ORDINARY, "{server:?}");
    println!(
        "\nnote: {} kinds of hostile frames break no connection behind dpdk-testpmd",
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

/// More forged neighbours than the limit evict no neighbour that is logged in, even before its first beacon.
#[test]
fn forged_neighbours_evict_no_logged_in_neighbour() {
    let mut scene = Scene::new(true);
    scene.flood(&["forged_claim"]);
    let reports = scene.end();
    for report in &reports {
        assert!(
            report.get("vn_port_vn2vn_found") > MAX_NEIGHBOURS,
            "{report:?}"
        );
    }
    let logouts = reports.map(|report| report.get("vn_port_logouts"));
    assert_eq!(logouts, [2, 0], "the logouts of the two clients");
}
