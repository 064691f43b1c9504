//! All ports for physical links: the C examples, the conformance suite, and injected faults on each.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use e2e::capture::{Capture, check_frames};
use e2e::confined::Confinement;
use e2e::conformance_suite::{DAMAGED, LOSSY, PHASES, Settings, UnknownHost, fragile, run_phase};
use e2e::datapath::DatapathProcess;
use e2e::echo::{echo, frames_of_sends};
use e2e::faults::{ONE_PERCENT, Pair, Size, recovered, reliable, unreliable};
use e2e::first_request::request_once_each;
use e2e::huge_pages::HugePages;
use e2e::installation::Installation;
use e2e::nics::{End, Faults, NicText};
use e2e::ports::{Port, PortNetwork};
use e2e::process::{Running, TIMEOUT, program};
use e2e::scratch::Scratch;
use e2e::vi_peer;

const ENDS: [End; 2] = [End::Left, End::Right];
/// Clients of a datapath process.
const CLIENTS: usize = 8;
/// The size of runs with breaks: connections break after about 20 frames, and each kind of fault occurs in 1 % of the
/// frames.
const BREAKING: Size = Size {
    messages: 4000,
    rounds: 40,
    round_messages: 400,
};
/// The size of runs with recovery.
const RECOVERED: Size = Size {
    rounds: 5,
    ..BREAKING
};
/// Huge pages of 2 MiB for two processes with three NICs each.
const HUGE_PAGES: u64 = 512;

/// The datapath processes of both ends, or one for both; their poll threads may make only the listed system calls.
struct Served<'a> {
    network: &'a PortNetwork,
    confinement: Confinement,
    left: DatapathProcess,
    right: Option<DatapathProcess>,
    _files: [Scratch; 2],
}

impl<'a> Served<'a> {
    /// Starts the processes with the NICs of each end; the left one first, since it is the memif server.
    fn start(network: &'a PortNetwork, nics: impl Fn(End) -> NicText) -> Self {
        let files = [Scratch::new("left"), Scratch::new("right")];
        let confinement = Confinement::of(&["shm", network.port().kind()]);
        let start = |end: End, files: &Scratch, nics: &NicText| {
            let run = |path: &Path| confinement.confine(network.program(end, path));
            DatapathProcess::start(files, "idle = \"hybrid\"", nics, run)
        };
        let [left, right] = ENDS.map(nics);
        let (left, right) = match network.port().needs_one_process() {
            true => (start(End::Left, &files[0], &left.and(right)), None),
            false => (
                start(End::Left, &files[0], &left),
                Some(start(End::Right, &files[1], &right)),
            ),
        };
        let this = Self {
            network,
            confinement,
            left,
            right,
            _files: files,
        };
        this.wait_for_links();
        this
    }

    /// Waits until all links are up; some ports set theirs up only after both ends are open.
    fn wait_for_links(&self) {
        for process in [Some(&self.left), self.right.as_ref()]
            .into_iter()
            .flatten()
        {
            process.await_stat("links", |stat| {
                let nics = stat["nics"].as_array().expect("a list");
                // A port on shared memory has no link.
                nics.iter().all(|nic| nic["counters"]["port_link_up"] != 0)
            });
        }
    }

    /// Returns the configuration for programs of an end.
    fn config(&self, end: End) -> &Path {
        match (end, &self.right) {
            (End::Right, Some(right)) => right.config(),
            _ => self.left.config(),
        }
    }

    /// Returns the command of a program that attaches at an end.
    fn program(&self, end: End, path: &Path) -> Command {
        let mut command = program(path);
        command.env("VIADUCT_CONFIG", self.config(end));
        command
    }

    /// Like [`Self::program`], for a C example, with the name of its NIC.
    fn example(&self, end: End, path: &Path) -> Command {
        let mut command = self.program(end, path);
        command.args(["-d", self.network.first_nic(end)]);
        command
    }

    fn stop(self) {
        for process in [Some(self.left), self.right].into_iter().flatten() {
            self.confinement.check(&process.stop());
        }
    }
}

/// Runs a server and a client with their own NICs; checks all frames if the port uses an interface.
fn own_nics(port: &'static Port, installation: &Installation) {
    let network = PortNetwork::new(port, 1);
    let files = Scratch::new("alone");
    let capture = network
        .capture_point()
        .map(|(namespace, interface)| Capture::start(namespace, interface));
    let own = |end: End, name: &str| {
        let nic = network.nic(end, 0, network.first_nic(end));
        let nic = nic.key("network.probe_interval_ms", 100);
        let mut command = network.program(end, &installation.program(name));
        let config = nic.write(&files, &format!("{}.toml", end.interface()));
        command.env("VIADUCT_CONFIG", config);
        command
    };
    let mut server = own(End::Left, "EchoServer");
    let client = || own(End::Right, "EchoClient");
    echo(&mut server, client, 1, End::Left.host(), || ());
    let Some(capture) = capture else { return };
    let frames = capture.finish();
    check_frames(&frames);
    let sends = frames.iter().filter(|frame| frame.is_of_send()).count();
    assert_eq!(sends, frames_of_sends(port.mtu_bytes(), 1), "of sends");
    println!("note: {}: {} frames checked", port.name, frames.len());
}

/// Runs a server and consecutive clients with their own NICs.
fn first_requests(port: &'static Port) {
    const CLIENTS: usize = 5;
    let network = PortNetwork::new(port, 1);
    let files = Scratch::new("openings");
    let peer = |end: End| {
        let nic = network.nic(end, 0, network.first_nic(end));
        let mut command = network.program(end, &vi_peer::path());
        command.env("VIADUCT_CONFIG", nic.write(&files, end.interface()));
        command.args(["--nic", network.first_nic(end)]);
        command
    };
    let host = End::Left.host();
    let clients = (0..CLIENTS).map(|_| peer(End::Right));
    request_once_each(peer(End::Left), clients, host, 1);
}

/// Runs a program with its own NIC and closed standard streams.
fn standard_streams(port: &'static Port, installation: &Installation) {
    let network = PortNetwork::new(port, 1);
    let files = Scratch::new("streams");
    let (end, name) = (End::Left, network.first_nic(End::Left));
    let streams = installation.test_program("vipl/capi/tests/c", "standard_streams");
    let mut command = network.program(end, &streams);
    let nic = network.nic(end, 0, name).long_timeouts();
    command.env("VIADUCT_CONFIG", nic.write(&files, "streams.toml"));
    // Log lines for the closed standard error.
    command.env("VIADUCT_LOG", "debug");
    let output = Running::start("standard_streams", &mut command).succeed(TIMEOUT);
    assert!(output.ends_with(" passed, 0 failed\n"), "{output}");
}

/// Returns the NICs of an end that the conformance suite requires (vipl/capi/tests/common): SMALL and FRAGILE on shared
/// memory, the others on the port.
fn suite_nics(network: &PortNetwork, end: End, segments: &Path) -> NicText {
    let named = |lane, name: &str| {
        let name = format!("{name}{}", network.name_suffix(end));
        network
            .nic(end, lane, &name)
            .key("network.probe_interval_ms", 100)
    };
    let bad = |lane, name, fault| {
        let nic = named(lane, name).short_timeouts().key("recovery", false);
        nic.key("fc_vi.shortcut", false).key("fc_vi.fault", fault)
    };
    let nics = network
        .nic(end, 0, network.first_nic(end))
        .key("network.probe_interval_ms", 100)
        .key("fc_vi.r_a_tov_ms", 1000)
        .key("ulp_timeout_ms", 4000)
        .and(bad(1, "LOSSY", LOSSY))
        .and(bad(2, "DAMAGED", DAMAGED));
    if end == End::Right {
        return nics;
    }
    let small = NicText::shm(segments)
        .key("name", "\"SMALL\"")
        .long_timeouts()
        .small_limits();
    nics.and(small).and(fragile(segments).long_timeouts())
}

/// Runs eight clients and the conformance suite through datapath processes.
fn served(port: &'static Port, installation: &Installation) {
    let network = PortNetwork::new(port, 3);
    let segments = Scratch::in_memory("ports");
    let files = Scratch::new("ports");
    let served = Served::start(&network, |end| suite_nics(&network, end, segments.path()));
    if port.is_native() {
        for end in ENDS {
            let details = network.interface_details(end);
            assert!(details.contains(" prog/xdp "), "{details}");
            assert!(!details.contains("xdpgeneric"), "{details}");
        }
    }
    let example = |end, name: &str| served.example(end, &installation.program(name));
    let mut server = example(End::Left, "EchoServer");
    let client = || example(End::Right, "EchoClient");
    echo(&mut server, client, CLIENTS, End::Left.host(), || ());
    let remote_command = format!(
        "env VIADUCT_CONFIG={} VIPL_TEST_NIC_END={}",
        served.config(End::Right).display(),
        network.name_suffix(End::Right)
    );
    let settings = Settings {
        config: served.config(End::Left),
        files: files.path(),
        segments: segments.path(),
        remote_command: &remote_command,
        has_recovery: true,
        unknown_host: UnknownHost::Unreachable,
    };
    for phase in PHASES {
        let start = Instant::now();
        let tests = run_phase(installation, phase, &settings, |path| program(path));
        println!(
            "note: {}: {phase}: {tests} tests in {:?}",
            port.name,
            start.elapsed()
        );
    }
    served.stop();
}

/// Runs a check with a pair of `vi-peer`s: with their own NICs, or attached if one process must have both ends.
fn with_faults(
    port: &'static Port,
    seed: u64,
    set: impl Fn(NicText) -> NicText,
    check: impl FnOnce(Pair),
) {
    let network = PortNetwork::new(port, 1);
    let files = Scratch::new("faults");
    let nic = |end: End| {
        let seed = seed + u64::from(end == End::Right);
        let ppm = ONE_PERCENT;
        let nic = set(network.nic(end, 0, network.first_nic(end)));
        nic.key("fc_vi.shortcut", false)
            .faults(Faults { seed, ppm })
    };
    let served = port
        .needs_one_process()
        .then(|| Served::start(&network, nic));
    let peer = |end: End| {
        let peer = vi_peer::path();
        let mut command = match &served {
            Some(served) => served.program(end, &peer),
            None => {
                let config: PathBuf = nic(end).write(&files, end.interface());
                let mut command = network.program(end, &peer);
                command.env("VIADUCT_CONFIG", config);
                command
            }
        };
        command.args(["--nic", network.first_nic(end)]);
        command
    };
    check(Pair {
        sink: peer(End::Left),
        source: peer(End::Right),
        host: End::Left.host(),
    });
    if let Some(served) = served {
        served.stop();
    }
}

/// Runs all tests over one port.
fn suite(name: &str) {
    let port = Port::named(name);
    let _pages = port.huge_pages.then(|| HugePages::reserve(HUGE_PAGES));
    let installation = Installation::new();
    let start = Instant::now();
    let report = |what: &str| println!("note: {name}: {what} after {:?}", start.elapsed());
    println!();
    if !port.needs_one_process() {
        own_nics(port, &installation);
        report("two programs");
        first_requests(port);
        report("first requests");
        standard_streams(port, &installation);
        report("standard streams");
    }
    served(port, &installation);
    report("served");
    with_faults(port, 31, NicText::short_timeouts, |pair| {
        unreliable(pair, BREAKING, name)
    });
    report("unreliable");
    let breaking = |nic: NicText| nic.short_timeouts().key("recovery", false);
    with_faults(port, 41, breaking, |pair| reliable(pair, BREAKING, name));
    report("breaks");
    with_faults(port, 51, NicText::long_timeouts, |pair| {
        recovered(pair, RECOVERED)
    });
    report("everything");
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
