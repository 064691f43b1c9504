//! The whole suite over every port of a wire: the C examples, the conformance suite, and faults.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use e2e::capture::{Capture, judge};
use e2e::confined::Confinement;
use e2e::datapath::DatapathProcess;
use e2e::echo::{echo, frames_of_sends};
use e2e::faults::{ONE_PERCENT, Pair, Size, recovered, reliable, unreliable};
use e2e::first_request::request_once_each;
use e2e::huge_pages::HugePages;
use e2e::installation::Installation;
use e2e::nics::{End, Faults, NicText};
use e2e::ports::{Ground, Port};
use e2e::process::{Running, TIMEOUT, program};
use e2e::scratch::Scratch;
use e2e::suite::{DAMAGED, LOSSY, PHASES, Settings, UnknownHost, conforms, fragile};

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
const ENDS: [End; 2] = [End::Left, End::Right];
/// Clients of a datapath process.
const CLIENTS: usize = 8;
/// Of a run whose connections break: after some 20 frames each, and every fault is to happen in one of a hundred.
const BREAKING: Size = Size {
    messages: 4000,
    rounds: 40,
    round_messages: 400,
};
/// Of a run whose connections do not.
const RECOVERED: Size = Size {
    rounds: 5,
    ..BREAKING
};
/// Huge pages of 2 MiB for two processes with three NICs each.
const HUGE_PAGES: u64 = 512;

/// The datapath processes of the two ends, or that of both; their poll threads make only the listed system calls.
struct Served<'a> {
    ground: &'a Ground,
    confinement: Confinement,
    left: DatapathProcess,
    right: Option<DatapathProcess>,
    _files: [Scratch; 2],
}

impl<'a> Served<'a> {
    /// Starts them with NICs for each end; the left one first, which is the server where there is one.
    fn start(ground: &'a Ground, nics: impl Fn(End) -> NicText) -> Self {
        let files = [Scratch::new("left"), Scratch::new("right")];
        let confinement = Confinement::of(&["shm", ground.port().kind()]);
        let start = |end: End, files: &Scratch, nics: &NicText| {
            let run = |path: &Path| confinement.confine(ground.program(end, path));
            DatapathProcess::start(files, "idle = \"hybrid\"", nics, run)
        };
        let [left, right] = ENDS.map(nics);
        let (left, right) = match ground.port().is_of_one_process() {
            true => (start(End::Left, &files[0], &left.and(right)), None),
            false => (
                start(End::Left, &files[0], &left),
                Some(start(End::Right, &files[1], &right)),
            ),
        };
        let this = Self {
            ground,
            confinement,
            left,
            right,
            _files: files,
        };
        this.wait_for_links();
        this
    }

    /// Waits until every port carries frames, which some do only when both ends have been there for a while.
    fn wait_for_links(&self) {
        let deadline = Instant::now() + TIMEOUT;
        for process in [Some(&self.left), self.right.as_ref()]
            .into_iter()
            .flatten()
        {
            loop {
                let stat = process.stat();
                let nics = stat["nics"].as_array().expect("a list");
                // A port on shared memory has no link.
                if nics.iter().all(|nic| nic["counters"]["port_link_up"] != 0) {
                    break;
                }
                assert!(Instant::now() < deadline, "a link stays down: {stat}");
            }
        }
    }

    /// By which programs of an end find its process.
    fn config(&self, end: End) -> &Path {
        match (end, &self.right) {
            (End::Right, Some(right)) => right.config(),
            _ => self.left.config(),
        }
    }

    /// A program that attaches at an end.
    fn program(&self, end: End, path: &Path) -> Command {
        let mut command = program(path);
        command.env("VIADUCT_CONFIG", self.config(end));
        command
    }

    /// The same for one that is told the name of its NIC.
    fn example(&self, end: End, path: &Path) -> Command {
        let mut command = self.program(end, path);
        command.args(["-d", self.ground.first_nic(end)]);
        command
    }

    fn stop(self) {
        for process in [Some(self.left), self.right].into_iter().flatten() {
            self.confinement.judge(&process.stop());
        }
    }
}

/// A server and a client that own their ports; where frames pass an interface, tshark judges them.
fn alone(port: &'static Port, installation: &Installation) {
    let ground = Ground::new(port, 1);
    let files = Scratch::new("alone");
    let capture = ground
        .watch()
        .map(|(namespace, interface)| Capture::start(namespace, interface));
    let own = |end: End, name: &str| {
        let nic = ground.nic(end, 0, ground.first_nic(end));
        let nic = nic.key("probe_interval_ms", 100);
        let mut command = ground.program(end, &installation.program(name));
        let config = nic.write(&files, &format!("{}.toml", end.interface()));
        command.env("VIADUCT_CONFIG", config);
        command
    };
    let mut server = own(End::Left, "EchoServer");
    let client = || own(End::Right, "EchoClient");
    echo(&mut server, client, 1, End::Left.host(), || ());
    let Some(capture) = capture else { return };
    let frames = capture.finish();
    judge(&frames);
    let sends = frames.iter().filter(|frame| frame.is_of_send()).count();
    assert_eq!(sends, frames_of_sends(port.mtu_bytes(), 1), "of sends");
    println!("note: {}: {} frames judged", port.name, frames.len());
}

/// A server and one client after the other that own their ports.
fn first_requests(port: &'static Port) {
    const CLIENTS: usize = 5;
    let ground = Ground::new(port, 1);
    let files = Scratch::new("openings");
    let peer = |end: End| {
        let nic = ground.nic(end, 0, ground.first_nic(end));
        let mut command = ground.program(end, Path::new(PEER));
        command.env("VIADUCT_CONFIG", nic.write(&files, end.interface()));
        command.args(["--nic", ground.first_nic(end)]);
        command
    };
    let host = End::Left.host();
    let clients = (0..CLIENTS).map(|_| peer(End::Right));
    request_once_each(peer(End::Left), clients, host, 1);
}

/// A program with standard streams closed whose port is its own.
fn standard_streams(port: &'static Port, installation: &Installation) {
    let ground = Ground::new(port, 1);
    let files = Scratch::new("streams");
    let (end, name) = (End::Left, ground.first_nic(End::Left));
    let streams = installation.test_program("vipl/capi/tests/c", "standard_streams");
    let mut command = ground.program(end, &streams);
    let nic = ground.nic(end, 0, name).steady();
    command.env("VIADUCT_CONFIG", nic.write(&files, "streams.toml"));
    // Log lines are written to a standard error that is closed, too.
    command.env("VIADUCT_LOG", "debug");
    let said = Running::start("standard_streams", &mut command).succeed(TIMEOUT);
    assert!(said.ends_with(" passed, 0 failed\n"), "{said}");
}

/// The NICs of an end that the conformance suite wants (vipl/capi/tests/common): on the port all but those that are of
/// one host.
fn suite_nics(ground: &Ground, end: End, segments: &Path) -> NicText {
    let named = |lane, name: &str| {
        let name = format!("{name}{}", ground.name_end(end));
        ground.nic(end, lane, &name).key("probe_interval_ms", 100)
    };
    let bad = |lane, name, fault| {
        let nic = named(lane, name).quick().key("recovery", false);
        nic.key("shortcut", false).key("fault", fault)
    };
    let nics = ground
        .nic(end, 0, ground.first_nic(end))
        .key("probe_interval_ms", 100)
        .key("r_a_tov_ms", 1000)
        .key("ulp_timeout_ms", 4000)
        .and(bad(1, "LOSSY", LOSSY))
        .and(bad(2, "DAMAGED", DAMAGED));
    if end == End::Right {
        return nics;
    }
    let small = NicText::shm(segments)
        .key("name", "\"SMALL\"")
        .steady()
        .with_little();
    nics.and(small).and(fragile(segments).steady())
}

/// Eight clients and the conformance suite through datapath processes.
fn served(port: &'static Port, installation: &Installation) {
    let ground = Ground::new(port, 3);
    let segments = Scratch::in_memory("ports");
    let files = Scratch::new("ports");
    let served = Served::start(&ground, |end| suite_nics(&ground, end, segments.path()));
    if port.is_native() {
        for end in ENDS {
            let details = ground.interface_details(end);
            assert!(details.contains(" prog/xdp "), "{details}");
            assert!(!details.contains("xdpgeneric"), "{details}");
        }
    }
    let example = |end, name: &str| served.example(end, &installation.program(name));
    let mut server = example(End::Left, "EchoServer");
    let client = || example(End::Right, "EchoClient");
    echo(&mut server, client, CLIENTS, End::Left.host(), || ());
    let far = format!(
        "env VIADUCT_CONFIG={} VIPL_TEST_NIC_END={}",
        served.config(End::Right).display(),
        ground.name_end(End::Right)
    );
    let settings = Settings {
        config: served.config(End::Left),
        files: files.path(),
        segments: segments.path(),
        far: &far,
        recovers: true,
        unknown_host: UnknownHost::Unreachable,
    };
    for phase in PHASES {
        let start = Instant::now();
        let tests = conforms(installation, phase, &settings, |path| program(path));
        println!(
            "note: {}: {phase}: {tests} tests in {:?}",
            port.name,
            start.elapsed()
        );
    }
    served.stop();
}

/// Has a pair of `vi-peer`s over the port be judged: with NICs of their own, or where one process has both ends,
/// attached to that.
fn with_faults(
    port: &'static Port,
    seed: u64,
    set: impl Fn(NicText) -> NicText,
    judged: impl FnOnce(Pair),
) {
    let ground = Ground::new(port, 1);
    let files = Scratch::new("faults");
    let nic = |end: End| {
        let seed = seed + u64::from(end == End::Right);
        let ppm = ONE_PERCENT;
        let nic = set(ground.nic(end, 0, ground.first_nic(end)));
        nic.key("shortcut", false).faults(Faults { seed, ppm })
    };
    let served = port
        .is_of_one_process()
        .then(|| Served::start(&ground, nic));
    let peer = |end: End| {
        let peer = Path::new(PEER);
        let mut command = match &served {
            Some(served) => served.program(end, peer),
            None => {
                let config: PathBuf = nic(end).write(&files, end.interface());
                let mut command = ground.program(end, peer);
                command.env("VIADUCT_CONFIG", config);
                command
            }
        };
        command.args(["--nic", ground.first_nic(end)]);
        command
    };
    judged(Pair {
        sink: peer(End::Left),
        source: peer(End::Right),
        host: End::Left.host(),
    });
    if let Some(served) = served {
        served.stop();
    }
}

/// Everything over one port.
fn suite(name: &str) {
    let port = Port::named(name);
    let _pages = port.huge_pages.then(|| HugePages::reserve(HUGE_PAGES));
    let installation = Installation::new();
    let start = Instant::now();
    let tell = |what: &str| println!("note: {name}: {what} after {:?}", start.elapsed());
    println!();
    if !port.is_of_one_process() {
        alone(port, &installation);
        tell("two programs");
        first_requests(port);
        tell("first requests");
        standard_streams(port, &installation);
        tell("standard streams");
    }
    served(port, &installation);
    tell("served");
    with_faults(port, 31, NicText::quick, |pair| {
        unreliable(pair, BREAKING, name)
    });
    tell("unreliable");
    let breaking = |nic: NicText| nic.quick().key("recovery", false);
    with_faults(port, 41, breaking, |pair| reliable(pair, BREAKING, name));
    tell("breaks");
    with_faults(port, 51, NicText::steady, |pair| recovered(pair, RECOVERED));
    tell("everything");
}

#[test]
fn af_xdp() {
    suite("af_xdp");
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use super::suite;

    #[test]
    fn net_memif() {
        suite("net_memif");
    }

    #[test]
    fn net_memif_in_huge_pages() {
        suite("net_memif, huge pages");
    }

    #[test]
    fn net_af_packet() {
        suite("net_af_packet");
    }

    #[test]
    fn net_af_xdp() {
        suite("net_af_xdp");
    }

    #[test]
    fn net_tap() {
        suite("net_tap");
    }

    #[test]
    fn ring() {
        suite("ring");
    }

    #[test]
    fn ring_in_huge_pages() {
        suite("ring, huge pages");
    }
}
