//! `dpdk-testpmd` at the other end of a NIC's memif: it floods the NIC with whatever it can make, beside an honest pair
//! of the same process. Every frame is counted for what it is, memory stays bounded, and the NIC serves the next one that
//! comes as if nothing had been.

use std::path::PathBuf;
use std::time::Instant;

use e2e::datapath::{DatapathProcess, here};
use e2e::installation::Installation;
use e2e::process::{Running, TIMEOUT, program};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::testpmd::Testpmd;
use e2e::usage::Usage;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// Frames of each kind, at least: more than the NIC has buffers.
const EACH: u64 = 20_000;
/// By how much a process may grow that has seen a flood, while it sees others.
const GROWTH_KIB: u64 = 4096;
/// The station of the flooded NIC: its first N_Port_ID is 00.01.01.
const STATION: [u8; 6] = [0x0e, 0xfd, 0, 0, 1, 1];
const INTRUDER: [u8; 6] = [2, 0, 0, 0, 0x66, 0x66];
const FCOE: [u8; 2] = [0x89, 0x06];
/// What the frames of a flood are counted as, all of them.
const COUNTERS: [&str; 9] = [
    "drop_bad_crc",
    "drop_malformed",
    "port_drop_rx_in_pieces",
    "port_drop_rx_other_address",
    "port_drop_rx_other_ethertype",
    "port_drop_rx_runt",
    "port_drop_rx_too_long",
    "port_drop_rx_vlan",
    "port_drop_rx_foreign_buffer",
];
/// How many frames the device had.
const ARRIVED: &str = "port_device_rx_good_packets";

/// Frames of a kind that are replayed, and their counter.
struct Kind {
    name: &'static str,
    frame: Vec<u8>,
    counter: &'static str,
}

fn frame(dst: [u8; 6], rest: &[u8], len_bytes: usize) -> Vec<u8> {
    let mut bytes = [&dst[..], &INTRUDER, rest].concat();
    bytes.resize(len_bytes, 0);
    bytes
}

/// Class 3, with a header and nothing behind it, and a CRC that is not its own.
fn wrong_crc() -> Vec<u8> {
    let mut bytes = frame(STATION, &FCOE, 60);
    bytes[27] = 0x2e;
    bytes[52..57].copy_from_slice(&[1, 2, 3, 4, 0x42]);
    bytes
}

/// Those that memif carries in one piece come first: testpmd loses count of the others, and sends some of them twice.
fn kinds() -> Vec<Kind> {
    let kind = |name, frame, counter| Kind {
        name,
        frame,
        counter,
    };
    let ours = |len_bytes| frame(STATION, &FCOE, len_bytes);
    let vlan = [0x81, 0, 0, 5, 0x89, 0x06];
    vec![
        kind("zeros", ours(60), "drop_malformed"),
        kind("nothing but addresses", ours(14), "drop_malformed"),
        kind("a wrong CRC", wrong_crc(), "drop_bad_crc"),
        kind("a VLAN", frame(STATION, &vlan, 64), "port_drop_rx_vlan"),
        kind("a runt", ours(10), "port_drop_rx_runt"),
        kind(
            "a broadcast",
            frame([0xff; 6], &FCOE, 60),
            "port_drop_rx_other_address",
        ),
        kind("too long", ours(2200), "port_drop_rx_too_long"),
        kind("far too long", ours(3900), "port_drop_rx_in_pieces"),
    ]
}

/// A capture file with one frame in it.
fn capture_of(frame: &[u8]) -> Vec<u8> {
    let mut file: Vec<u8> = Vec::new();
    // The header of a capture file of Ethernet frames, then that of a frame.
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, 1, 0, 0] {
        file.extend(u32::to_ne_bytes(word));
    }
    for _ in 0..2 {
        file.extend((frame.len() as u32).to_ne_bytes());
    }
    file.extend(frame);
    file
}

/// Which end of a memif makes its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

impl Role {
    fn other(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// A datapath process with two NICs, of which an honest pair has the one, and whoever likes the other.
struct Scene {
    scratch: Scratch,
    installation: Installation,
    process: DatapathProcess,
    /// Of the flooded NIC.
    role: Role,
    server: Running,
    client: Running,
}

/// Tells memifs of this test apart; one socket is one side's.
fn device(number: u32, role: Role, link: &str) -> String {
    let process = std::process::id();
    format!(
        "net_memif{number},role={},id=0,socket=viaduct-{process}-{link}",
        role.name()
    )
}

/// A NIC whose host and N_Port_IDs are those of this number, and whose only neighbour is the other one.
fn nic(name: &str, device: &str, own: u8, other: u8) -> String {
    let ids = |host: u8| format!("00.{host:02x}.01-00.{host:02x}.10");
    format!(
        "[[nic]]\nname = \"{name}\"\nport = \"dpdk\"\ndevice = \"{device}\"\nhost = \"192.0.2.{own}\"\n\
         n_port_ids = \"{}\"\nneighbour = [{{ host = \"192.0.2.{other}\", n_port_ids = \"{}\" }}]\n\
         huge_pages = false\nmemory_mb = 256\nrx_frames = 4096\ntx_frames = 1024\nr_a_tov_ms = 1000\n",
        ids(own),
        ids(other)
    )
}

impl Scene {
    fn new(role: Role) -> Self {
        let scratch = Scratch::new("strangers");
        let link = format!("flooded-{}", role.name());
        let honest = format!("honest-{}", role.name());
        let socket = scratch.file("pmd.sock");
        let text = format!("[process]\nsocket = {socket:?}\nidle = \"hybrid\"\n")
            + &nic("VINIC0", &device(0, Role::Server, &honest), 3, 4)
            + &nic("FLOODED", &device(1, role, &link), 1, 2);
        let config = scratch.write("pmd.toml", &text);
        let process = DatapathProcess::start_from(&config, here);
        let mut server = program(PEER);
        server.env("VIADUCT_CONFIG", &config);
        let mut server = Running::start("server", server.args(["serve", "here"]));
        server.wait_for("listening", TIMEOUT);
        let own = nic("VINIC0", &device(0, Role::Client, &honest), 4, 3);
        let mut client = program(PEER);
        client.env("VIADUCT_CONFIG", scratch.write("honest.toml", &own));
        client.args(["ping", "192.0.2.3", "here", "--own", "client"]);
        client.args(["--per-second", "500"]);
        let mut client = Running::start("client", &mut client);
        client.wait_for("connected", TIMEOUT);
        Self {
            scratch,
            installation: Installation::new(),
            process,
            role,
            server,
            client,
        }
    }

    fn link(&self) -> String {
        format!("flooded-{}", self.role.name())
    }

    /// What the flooded NIC has counted so far.
    fn counters(&self) -> Report {
        let stat = self.process.stat();
        let nics = stat["nics"].as_array().expect("NICs");
        let flooded = nics.iter().find(|nic| nic["name"] == "FLOODED");
        let counters = flooded.expect("the flooded NIC")["counters"].as_object();
        let counters = counters.expect("counters").iter();
        let line: Vec<String> = counters
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        Report::of_line(&line.join(" "))
    }

    /// Looks until the counters, as they have grown since then, are as they should be.
    fn wait_for_counters(&self, before: &Report, what: &str, fit: impl Fn(&Report) -> bool) {
        let begin = Instant::now();
        loop {
            let grown = self.counters().since(before);
            if fit(&grown) {
                return;
            }
            assert!(begin.elapsed() < TIMEOUT, "{what}: {grown:?}");
        }
    }

    /// Frames flow while a stranger does this; then it stops. Many of them were counted by this counter, and every one
    /// that arrived by some.
    fn flood(&mut self, stranger: &mut Testpmd, mode: &str, words: &[&str], kind: (&str, &str)) {
        let (name, counter) = kind;
        let before = self.counters();
        let begin = Instant::now();
        stranger.forward(mode, words);
        self.wait_for_counters(&before, name, |grown| grown.get(counter) >= EACH);
        self.honest_pair_goes_on();
        stranger.stop();
        let counted = |grown: &Report| COUNTERS.iter().map(|name| grown.get(name)).sum::<u64>();
        let all = |grown: &Report| counted(grown) == optional(grown, ARRIVED);
        self.wait_for_counters(&before, name, all);
        let frames = counted(&self.counters().since(&before));
        println!("{name}: {frames} frames in {:.2?}", begin.elapsed());
    }

    /// The client says some more words, of round trips that begin now.
    fn honest_pair_goes_on(&mut self) {
        self.client.skip();
        for _ in 0..2 {
            self.client.wait_for("alive", TIMEOUT);
        }
    }

    fn resident_kib(&self) -> u64 {
        let usage = Usage::of(self.process.id());
        usage.expect("a process that runs").resident_kib
    }

    /// An honest pair at the flooded NIC.
    fn serve_at_the_flooded_nic(&self) {
        let mut server = program(self.installation.program("EchoServer"));
        server.env("VIADUCT_CONFIG", self.process.config());
        server.args(["-d", "FLOODED", "-c", "1"]);
        let mut server = Running::start("EchoServer", &mut server);
        server.wait_for("EchoServer: listening", TIMEOUT);
        let own = nic("VINIC0", &device(0, self.role.other(), &self.link()), 2, 1);
        let mut client = program(self.installation.program("EchoClient"));
        client.env("VIADUCT_CONFIG", self.scratch.write("next.toml", &own));
        client.args(["-t", "20000", "-i", "10", "192.0.2.1"]);
        let said = Running::start("EchoClient", &mut client).succeed(TIMEOUT);
        assert!(
            said.contains("50 messages, 696970 bytes, 0 errors"),
            "{said}"
        );
        server.succeed(TIMEOUT);
    }

    /// The honest pair ends well, and the process.
    fn end(self) {
        let client = Report::read(&self.client.succeed(TIMEOUT));
        let server = Report::read(&self.server.succeed(TIMEOUT));
        assert_eq!(client.get("events"), 0, "{client:?}");
        assert_eq!(server.get("events"), 1, "a good-bye: {server:?}");
        let ended = self.process.stop();
        assert!(ended.status.success(), "{}", ended.text);
    }
}

/// A counter of the device's, which is there once it is not 0.
fn optional(report: &Report, name: &str) -> u64 {
    let mut numbers = report.numbers();
    numbers
        .find(|(known, _)| *known == name)
        .map_or(0, |(_, number)| number)
}

fn floods(role: Role) {
    let mut scene = Scene::new(role);
    let kinds = kinds();
    // A device that replays each kind, and the link behind them.
    let replay = |(number, kind): (usize, &Kind)| {
        let file: PathBuf = scene.scratch.file(&format!("{number}.pcap"));
        std::fs::write(&file, capture_of(&kind.frame)).expect("room for a capture");
        format!("net_pcap{number},rx_pcap={},infinite_rx=1", file.display())
    };
    let mut devices: Vec<String> = kinds.iter().enumerate().map(replay).collect();
    devices.push(device(0, role.other(), &scene.link()));
    let link = kinds.len();
    let mut stranger = Testpmd::start(|name| program(name), &devices);
    scene.wait_for_counters(&Report::default(), "the link", |now| {
        now.get("port_link_up") == 1
    });

    // What it makes by itself is IPv4.
    let alone = format!("set portlist {link}");
    let address = |bytes: [u8; 6]| {
        let words: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("set eth-peer {link} {}", words.join(":"))
    };
    let (ours, others) = (address(STATION), address([2, 0, 0, 0, 0, 0x99]));
    let foreign = "port_drop_rx_other_ethertype";
    for (name, words, counter) in [
        ("64 bytes", [&ours, "set txpkts 64"], foreign),
        ("1500 bytes", [&ours, "set txpkts 1500"], foreign),
        (
            "64 bytes to another",
            [&others, "set txpkts 64"],
            "port_drop_rx_other_address",
        ),
    ] {
        let words = [&[alone.as_str()][..], &words].concat();
        scene.flood(&mut stranger, "txonly", &words, (name, counter));
    }
    let warm_kib = scene.resident_kib();
    for (number, kind) in kinds.iter().enumerate() {
        let pair = format!("set portlist {number},{link}");
        scene.flood(&mut stranger, "io", &[&pair], (kind.name, kind.counter));
    }
    for (name, pieces, counter) in [
        ("in three pieces", "60,60,64", foreign),
        ("in two long pieces", "2000,2000", "port_drop_rx_in_pieces"),
    ] {
        let pieces = format!("set txpkts {pieces}");
        let words = [&alone, &ours, pieces.as_str()];
        scene.flood(&mut stranger, "txonly", &words, (name, counter));
    }
    let now_kib = scene.resident_kib();
    assert!(
        now_kib < warm_kib + GROWTH_KIB,
        "{warm_kib} to {now_kib} KiB"
    );
    println!(
        "\nnote: {role:?}: resident {warm_kib} KiB after the first floods, {now_kib} after the last"
    );
    stranger.quit();
    scene.serve_at_the_flooded_nic();
    scene.honest_pair_goes_on();
    scene.end();
}

#[test]
fn floods_at_a_server_are_counted() {
    floods(Role::Server);
}

#[test]
fn floods_at_a_client_are_counted() {
    floods(Role::Client);
}

/// A stranger that is killed in the middle of its flood, and the next one at once, again and again.
#[test]
fn strangers_that_are_killed_in_a_flood_are_survived() {
    const KILLS: u32 = 5;
    let mut scene = Scene::new(Role::Server);
    let ours = "set eth-peer 0 0e:fd:00:00:01:01";
    for kill in 0..KILLS {
        let before = scene.counters();
        let link = [device(0, Role::Client, &scene.link())];
        let mut stranger = Testpmd::start(|name| program(name), &link);
        stranger.forward("txonly", &[ours, "set txpkts 64"]);
        // Its frames change while it sends them.
        for length in ["1400", "2000,2000", "43,50", "64"] {
            stranger.tell(&format!("set txpkts {length}"));
        }
        let counter = "port_drop_rx_other_ethertype";
        let what = format!("frames of stranger {kill}");
        scene.wait_for_counters(&before, &what, |grown| grown.get(counter) >= EACH);
        drop(stranger);
        scene.wait_for_counters(&Report::default(), "the link to go", |now| {
            now.get("port_link_up") == 0
        });
    }
    scene.serve_at_the_flooded_nic();
    scene.honest_pair_goes_on();
    scene.end();
}
