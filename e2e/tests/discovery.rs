//! Hosts that know nothing of each other: ports get their N_Port_IDs and find each other by FIP VN2VN, log in, and learn
//! by FARP which hosts they are.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::installation::Installation;
use e2e::nics::NicText;
use e2e::port_frames::{PortFrame, judge_ports};
use e2e::process::{PATIENCE, Running};
use e2e::scratch::Scratch;
use e2e::segment::{BRIDGE, Segment};
use e2e::wire::Namespace;

/// From the start of a client until it has all its answers.
const FOUND_WITHIN: Duration = Duration::from_secs(3);
const MTU_BYTES: u32 = 1500;

/// Hosts on one segment, whose names only the hosts files know.
struct Hosts {
    hosts: Vec<(Namespace, PathBuf)>,
    segment: Segment,
    installation: Installation,
    _scratch: Scratch,
}

fn address(at: usize) -> String {
    format!("192.0.2.{}", at + 1)
}

fn name(at: usize) -> String {
    format!("host-{at}.example")
}

impl Hosts {
    /// `more` adds to the configuration of a host.
    fn new(count: usize, more: impl Fn(usize, NicText) -> NicText) -> Self {
        let segment = Segment::new(MTU_BYTES);
        let scratch = Scratch::new("discovery");
        let names: Vec<String> = (0..count)
            .map(|at| format!("{} {}\n", address(at), name(at)))
            .collect();
        let names = scratch.write("hosts", &names.concat());
        let hosts = (0..count).map(|at| {
            let interface = format!("eth{at}");
            let nic = NicText::discovering(&interface, &address(at))
                .key("hosts_file", format!("{names:?}"));
            let config = more(at, nic).write(&scratch, &format!("{at}.toml"));
            (segment.host(&interface), config)
        });
        Self {
            hosts: hosts.collect(),
            segment,
            installation: Installation::new(),
            _scratch: scratch,
        }
    }

    fn plain(count: usize) -> Self {
        Self::new(count, |_, nic| nic)
    }

    /// One of the examples, on this host.
    fn program(&self, at: usize, name: &str) -> Command {
        let (namespace, config) = &self.hosts[at];
        let mut command = namespace.program(self.installation.program(name));
        command.env("VIADUCT_CONFIG", config);
        command
    }

    fn server(&self, at: usize, clients: usize) -> Running {
        let mut server = self.program(at, "EchoServer");
        server.args(["-c", &clients.to_string()]);
        let mut server = Running::start("EchoServer", &mut server);
        server.wait_for("EchoServer: listening", PATIENCE);
        server
    }

    fn client(&self, at: usize, server: usize) -> Running {
        let mut client = self.program(at, "EchoClient");
        client.args(["-t", "50000", &name(server)]);
        Running::start("EchoClient", &mut client)
    }
}

fn all_well(said: &str) {
    assert!(said.contains(" 0 errors"), "{said}");
}

#[test]
fn a_client_finds_its_server_by_name() {
    let hosts = Hosts::plain(2);
    let server = hosts.server(0, 1);
    let start = Instant::now();
    all_well(&hosts.client(1, 0).succeed(PATIENCE));
    let took = start.elapsed();
    assert!(took < FOUND_WITHIN, "{took:?}");
    println!("\nnote: found, and served, after {took:.2?}");
    server.succeed(PATIENCE);
}

/// All start at once, the server among them; what they say to find each other is judged.
#[test]
fn four_hosts_find_the_fifth() {
    const HOSTS: usize = 5;
    let hosts = Hosts::plain(HOSTS);
    let capture = Capture::start(hosts.segment.namespace(), BRIDGE);
    let server = hosts.server(0, HOSTS - 1);
    let start = Instant::now();
    let clients: Vec<Running> = (1..HOSTS).map(|at| hosts.client(at, 0)).collect();
    for client in clients {
        all_well(&client.succeed(PATIENCE));
    }
    println!("\nnote: all four served after {:.2?}", start.elapsed());
    server.succeed(PATIENCE);
    judge_ports(&PortFrame::all_of(capture));
}

/// Two parts of a parallel program on each of two hosts, each connected with each other one.
#[test]
fn peers_of_two_hosts_find_each_other() {
    let hosts = Hosts::plain(2);
    let places = [0, 1, 0, 1];
    let running: Vec<Running> = places
        .iter()
        .enumerate()
        .map(|(rank, at)| {
            let mut part = hosts.program(*at, "Peers");
            part.args(["-r", &rank.to_string(), "-n", "4", "-t", "50000"])
                .args(places.map(name));
            Running::start("Peers", &mut part)
        })
        .collect();
    for (rank, part) in running.into_iter().enumerate() {
        let said = part.succeed(PATIENCE);
        let expected = format!("Peers: part {rank} of 4: the sum is 6");
        assert!(said.contains(&expected), "{expected:?} is not in {said:?}");
    }
}

/// Both would like the same N_Port_ID, and neither is given up for it.
#[test]
fn ports_with_the_same_low_bits_find_each_other() {
    let hosts = Hosts::new(2, |at, nic| {
        nic.key("port_name", format!("\"20:00:52:54:00:0{at}:12:34\""))
    });
    let capture = Capture::start(hosts.segment.namespace(), BRIDGE);
    let server = hosts.server(0, 1);
    all_well(&hosts.client(1, 0).succeed(PATIENCE));
    server.succeed(PATIENCE);
    let frames = PortFrame::all_of(capture);
    judge_ports(&frames);
    let wanted = |frame: &&PortFrame| frame.source() == "0e:fd:00:00:12:34";
    let beacons = frames.iter().filter(wanted).count();
    assert!(beacons > 0, "one of them has it");
}

/// Nobody has the address: that is known as soon as nobody answers, not when the client's patience is over.
#[test]
fn a_host_that_is_not_there_is_not_reachable() {
    let hosts = Hosts::plain(2);
    let start = Instant::now();
    let ended = hosts.client(1, 0).finish(PATIENCE);
    let took = start.elapsed();
    assert!(!ended.status.success());
    assert!(ended.text.contains("VIP_NOT_REACHABLE"), "{}", ended.text);
    assert!(took < Duration::from_secs(10), "{took:?}");
}
