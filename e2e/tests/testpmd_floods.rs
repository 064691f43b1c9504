//! `dpdk-testpmd` floods a NIC over memif with all frames that it can generate, beside an honest pair of programs on
//! the same process. All frames are counted by kind, memory is bounded, and the NIC then serves the next client.

use std::path::PathBuf;
use std::time::Instant;

use e2e::datapath::{DatapathProcess, local_command};
use e2e::echo::listen;
use e2e::installation::Installation;
use e2e::process::{Running, TIMEOUT, program};
use e2e::procfs::ProcessUsage;
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::testpmd::Testpmd;
use e2e::vi_peer;

/// Minimum number of frames of each kind; more than the NIC has buffers.
const EACH: u64 = 20_000;
/// Maximum growth of the resident memory of the process after the first floods.
const GROWTH_KIB: u64 = 4096;
/// The MAC of the flooded NIC, for its first N_Port_ID 00.01.01.
const STATION: [u8; 6] = [0x0e, 0xfd, 0, 0, 1, 1];
const INTRUDER: [u8; 6] = [2, 0, 0, 0, 0x66, 0x66];
const FCOE: [u8; 2] = [0x89, 0x06];
/// The counters of all frames of a flood.
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
/// The device's counter of received frames.
const ARRIVED: &str = "port_device_rx_good_packets";

/// A replayed frame and the counter that must count it.
struct FrameKind {
    name: &'static str,
    frame: Vec<u8>,
    counter: &'static str,
}

fn frame(dst: [u8; 6], rest: &[u8], len_bytes: usize) -> Vec<u8> {
    let mut bytes = [&dst[..], &INTRUDER, rest].concat();
    bytes.resize(len_bytes, 0);
    bytes
}

/// Returns a class 3 frame without payload and with a wrong CRC.
fn wrong_crc() -> Vec<u8> {
    let mut bytes = frame(STATION, &FCOE, 60);
    bytes[27] = 0x2e;
    bytes[52..57].copy_from_slice(&[1, 2, 3, 4, 0x42]);
    bytes
}

/// Kinds of frames. Those that fit into one memif slot come first: testpmd miscounts the others, and duplicates some.
fn kinds() -> Vec<FrameKind> {
    let kind = |name, frame, counter| FrameKind {
        name,
        frame,
        counter,
    };
    let ours = |len_bytes| frame(STATION, &FCOE, len_bytes);
    let vlan = [0x81, 0, 0, 5, 0x89, 0x06];
    vec![
        kind("zeros", ours(60), "drop_malformed"),
        kind("MAC addresses only", ours(14), "drop_malformed"),
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

/// Returns a pcap file with one frame.
fn capture_of(frame: &[u8]) -> Vec<u8> {
    let mut file: Vec<u8> = Vec::new();
    // The header of a pcap file of Ethernet frames, then a record header.
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, 1, 0, 0] {
        file.extend(u32::to_ne_bytes(word));
    }
    for _ in 0..2 {
        file.extend((frame.len() as u32).to_ne_bytes());
    }
    file.extend(frame);
    file
}

/// The role of one end of a memif; the server creates the socket.
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

/// A datapath process with two NICs: one for an honest pair of programs, one that is flooded.
struct Scene {
    scratch: Scratch,
    installation: Installation,
    process: DatapathProcess,
    /// The role of the flooded NIC.
    role: Role,
    server: Running,
    client: Running,
}

/// Returns the device arguments of a memif, with a socket name that is unique to this test.
fn device(number: u32, role: Role, link: &str) -> String {
    let process = std::process::id();
    format!(
        "net_memif{number},role={},id=0,socket=viaduct-{process}-{link}",
        role.name()
    )
}

/// Returns a NIC with host and N_Port_IDs of number `own`, whose only neighbour is number `other`.
fn nic(name: &str, device: &str, own: u8, other: u8) -> String {
    let ids = |host: u8| format!("00.{host:02x}.01-00.{host:02x}.10");
    format!(
        "[[nic]]\nname = \"{name}\"\ndpdk.device = \"{device}\"\nhost = \"192.0.2.{own}\"\n\
         static.n_port_ids = \"{}\"\nstatic.neighbour = [{{ host = \"192.0.2.{other}\", n_port_ids = \"{}\" }}]\n\
         dpdk.huge_pages = false\ndpdk.memory_mb = 256\ndpdk.rx_frames = 4096\ndpdk.tx_frames = 1024\nfc_vi.r_a_tov_ms = 1000\n",
        ids(own),
        ids(other)
    )
}

impl Scene {
    fn new(role: Role) -> Self {
        let scratch = Scratch::new("floods");
        let link = format!("flooded-{}", role.name());
        let honest = format!("honest-{}", role.name());
        let socket = scratch.file("pmd.sock");
        let text = format!("[process]\nsocket = {socket:?}\nidle = \"hybrid\"\n")
            + &nic("VINIC0", &device(0, Role::Server, &honest), 3, 4)
            + &nic("FLOODED", &device(1, role, &link), 1, 2);
        let config = scratch.write("pmd.toml", &text);
        let process = DatapathProcess::start_from(&config, local_command);
        let server = vi_peer::serve(vi_peer::local(&config), "echo");
        let own = nic("VINIC0", &device(0, Role::Client, &honest), 4, 3);
        let own = vi_peer::local(&scratch.write("honest.toml", &own));
        let rate = ["--per-second", "500"];
        let client = vi_peer::ping_with(own, "192.0.2.3", "echo", "client", &rate);
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

    /// Returns the current counters of the flooded NIC.
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

    /// Waits until `fit` returns true for the increases of the counters since `before`.
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

    /// Has testpmd send frames until at least [`EACH`] are in the counter of this kind, then checks that all received
    /// frames were counted.
    fn flood(&mut self, testpmd: &mut Testpmd, mode: &str, words: &[&str], kind: (&str, &str)) {
        let (name, counter) = kind;
        let before = self.counters();
        let begin = Instant::now();
        testpmd.forward(mode, words);
        self.wait_for_counters(&before, name, |grown| grown.get(counter) >= EACH);
        self.await_honest_progress();
        testpmd.stop();
        let counted = |grown: &Report| COUNTERS.iter().map(|name| grown.get(name)).sum::<u64>();
        let all = |grown: &Report| counted(grown) == optional(grown, ARRIVED);
        self.wait_for_counters(&before, name, all);
        let frames = counted(&self.counters().since(&before));
        println!("{name}: {frames} frames in {:.2?}", begin.elapsed());
    }

    /// Waits for further round trips of the honest pair.
    fn await_honest_progress(&mut self) {
        self.client.discard_output();
        for _ in 0..2 {
            self.client.wait_for("alive", TIMEOUT);
        }
    }

    fn resident_kib(&self) -> u64 {
        let usage = ProcessUsage::of(self.process.id());
        usage.expect("a running process").resident_kib
    }

    /// Runs an honest server and client on the flooded NIC.
    fn serve_on_flooded_nic(&self) {
        let mut server = program(self.installation.program("EchoServer"));
        server.env("VIADUCT_CONFIG", self.process.config());
        server.args(["-d", "FLOODED", "-c", "1"]);
        let server = listen(&mut server);
        let own = nic("VINIC0", &device(0, self.role.other(), &self.link()), 2, 1);
        let mut client = program(self.installation.program("EchoClient"));
        client.env("VIADUCT_CONFIG", self.scratch.write("next.toml", &own));
        client.args(["-t", "20000", "-i", "10", "192.0.2.1"]);
        let output = Running::start("EchoClient", &mut client).succeed(TIMEOUT);
        assert!(
            output.contains("50 messages, 696970 bytes, 0 errors"),
            "{output}"
        );
        server.succeed(TIMEOUT);
    }

    /// Stops all programs and checks their results.
    fn end(mut self) {
        let client = Report::read(&self.client.succeed(TIMEOUT));
        vi_peer::await_disconnect(&mut self.server, "client");
        let server = Report::read(&self.server.succeed(TIMEOUT));
        assert_eq!(client.get("events"), 0, "{client:?}");
        assert_eq!(
            server.get("events"),
            1,
            "the client's disconnect: {server:?}"
        );
        self.process.stop_and_check();
    }
}

/// Returns a counter of the device, which is listed only if it is not 0.
fn optional(report: &Report, name: &str) -> u64 {
    let mut numbers = report.numbers();
    numbers
        .find(|(known, _)| *known == name)
        .map_or(0, |(_, number)| number)
}

fn run_floods(role: Role) {
    let mut scene = Scene::new(role);
    let kinds = kinds();
    // One device per kind that replays its frame, and the link after them.
    let replay = |(number, kind): (usize, &FrameKind)| {
        let file: PathBuf = scene.scratch.file(&format!("{number}.pcap"));
        std::fs::write(&file, capture_of(&kind.frame)).expect("the capture is written");
        format!("net_pcap{number},rx_pcap={},infinite_rx=1", file.display())
    };
    let mut devices: Vec<String> = kinds.iter().enumerate().map(replay).collect();
    devices.push(device(0, role.other(), &scene.link()));
    let link = kinds.len();
    let mut testpmd = Testpmd::start(|name| program(name), &devices);
    scene.wait_for_counters(&Report::default(), "the link", |now| {
        now.get("port_link_up") == 1
    });

    // testpmd generates IPv4 frames.
    let link_only = format!("set portlist {link}");
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
        let words = [&[link_only.as_str()][..], &words].concat();
        scene.flood(&mut testpmd, "txonly", &words, (name, counter));
    }
    let first_kib = scene.resident_kib();
    for (number, kind) in kinds.iter().enumerate() {
        let pair = format!("set portlist {number},{link}");
        scene.flood(&mut testpmd, "io", &[&pair], (kind.name, kind.counter));
    }
    for (name, pieces, counter) in [
        ("in three pieces", "60,60,64", foreign),
        ("in two long pieces", "2000,2000", "port_drop_rx_in_pieces"),
    ] {
        let pieces = format!("set txpkts {pieces}");
        let words = [&link_only, &ours, pieces.as_str()];
        scene.flood(&mut testpmd, "txonly", &words, (name, counter));
    }
    let now_kib = scene.resident_kib();
    assert!(
        now_kib < first_kib + GROWTH_KIB,
        "{first_kib} to {now_kib} KiB"
    );
    println!(
        "\nnote: {role:?}: resident {first_kib} KiB after the first floods, {now_kib} after the last"
    );
    testpmd.quit();
    scene.serve_on_flooded_nic();
    scene.await_honest_progress();
    scene.end();
}

#[test]
fn floods_of_a_memif_server_are_counted() {
    run_floods(Role::Server);
}

#[test]
fn floods_of_a_memif_client_are_counted() {
    run_floods(Role::Client);
}

/// testpmd is killed and restarted repeatedly during floods.
#[test]
fn nic_survives_peers_that_are_killed_in_a_flood() {
    const KILLS: u32 = 5;
    let mut scene = Scene::new(Role::Server);
    let ours = "set eth-peer 0 0e:fd:00:00:01:01";
    for kill in 0..KILLS {
        let before = scene.counters();
        let link = [device(0, Role::Client, &scene.link())];
        let mut testpmd = Testpmd::start(|name| program(name), &link);
        testpmd.forward("txonly", &[ours, "set txpkts 64"]);
        // The frames change during the flood.
        for length in ["1400", "2000,2000", "43,50", "64"] {
            testpmd.send_line(&format!("set txpkts {length}"));
        }
        let counter = "port_drop_rx_other_ethertype";
        let what = format!("frames of testpmd {kill}");
        scene.wait_for_counters(&before, &what, |grown| grown.get(counter) >= EACH);
        drop(testpmd);
        scene.wait_for_counters(&Report::default(), "the link to go down", |now| {
            now.get("port_link_up") == 0
        });
    }
    scene.serve_on_flooded_nic();
    scene.await_honest_progress();
    scene.end();
}
