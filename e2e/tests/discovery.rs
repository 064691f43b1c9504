//! Hosts that know nothing of each other: ports get their N_Port_IDs and find each other by FIP VN2VN, log in, and learn
//! by FARP which hosts they are.

use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::hosts::{self, name};
use e2e::installation::Installation;
use e2e::port_frames::{PortFrame, judge_ports};
use e2e::process::{Running, TIMEOUT};
use e2e::segment::BRIDGE;

/// From the start of the first program until the last client has all its answers, on a machine that takes the cores away
/// at times: about a second where it does not.
const FOUND_WITHIN: Duration = Duration::from_secs(20);
const MTU_BYTES: u32 = 1500;

/// Hosts, and the examples that run on them.
struct Hosts {
    hosts: hosts::Hosts,
    installation: Installation,
}

impl Hosts {
    fn new(hosts: hosts::Hosts) -> Self {
        Self {
            hosts,
            installation: Installation::new(),
        }
    }

    fn on_bridge(count: usize) -> Self {
        Self::new(hosts::Hosts::on_bridge(count, MTU_BYTES, |_, nic| nic))
    }

    /// A server that is on its way to listen.
    fn start_server(&self, at: usize, clients: usize) -> Running {
        let mut server = self
            .hosts
            .program(at, self.installation.program("EchoServer"));
        server.args(["-c", &clients.to_string()]);
        Running::start("EchoServer", &mut server)
    }

    fn server(&self, at: usize, clients: usize) -> Running {
        let mut server = self.start_server(at, clients);
        server.wait_for("EchoServer: listening", TIMEOUT);
        server
    }

    fn client(&self, at: usize, server: usize) -> Running {
        let mut client = self
            .hosts
            .program(at, self.installation.program("EchoClient"));
        client.args(["-t", "50000", &name(server)]);
        Running::start("EchoClient", &mut client)
    }

    /// Starts a server on the first host and a client on each other one, all at once; gives the time until the last client
    /// has its answers.
    fn all_meet(&self, count: usize) -> Duration {
        let start = Instant::now();
        let server = self.start_server(0, count - 1);
        let clients: Vec<Running> = (1..count).map(|at| self.client(at, 0)).collect();
        for client in clients {
            all_well(&client.succeed(TIMEOUT));
        }
        let took = start.elapsed();
        server.succeed(TIMEOUT);
        took
    }
}

fn all_well(said: &str) {
    assert!(said.contains(" 0 errors"), "{said}");
}

#[test]
fn a_client_finds_its_server_by_name() {
    let hosts = Hosts::on_bridge(2);
    let server = hosts.server(0, 1);
    let start = Instant::now();
    all_well(&hosts.client(1, 0).succeed(TIMEOUT));
    let took = start.elapsed();
    assert!(took < FOUND_WITHIN, "{took:?}");
    println!("\nnote: found, and served, after {took:.2?}");
    server.succeed(TIMEOUT);
}

#[test]
fn two_hosts_on_a_wire_find_each_other() {
    let hosts = Hosts::new(hosts::Hosts::on_wire(MTU_BYTES));
    let took = hosts.all_meet(2);
    println!("\nnote: a wire: served {took:.2?} after both were started");
    assert!(took < FOUND_WITHIN, "{took:?}");
}

/// What they say to find each other is judged.
#[test]
fn four_hosts_find_the_fifth() {
    const HOSTS: usize = 5;
    let hosts = Hosts::on_bridge(HOSTS);
    let capture = Capture::start(hosts.hosts.segment().namespace(), BRIDGE);
    let took = hosts.all_meet(HOSTS);
    println!("\nnote: a bridge: all four served {took:.2?} after all five were started");
    judge_ports(&PortFrame::all_of(capture));
    assert!(took < FOUND_WITHIN, "{took:?}");
}

/// Two parts of a parallel program on each of two hosts, each connected with each other one.
#[test]
fn peers_of_two_hosts_find_each_other() {
    let hosts = Hosts::on_bridge(2);
    let places = [0, 1, 0, 1];
    let running: Vec<Running> = places
        .iter()
        .enumerate()
        .map(|(rank, at)| {
            let peers = hosts.installation.program("Peers");
            let mut part = hosts.hosts.program(*at, peers);
            part.args(["-r", &rank.to_string(), "-n", "4", "-t", "50000"])
                .args(places.map(name));
            Running::start("Peers", &mut part)
        })
        .collect();
    for (rank, part) in running.into_iter().enumerate() {
        let said = part.succeed(TIMEOUT);
        let expected = format!("Peers: part {rank} of 4: the sum is 6");
        assert!(said.contains(&expected), "{expected:?} is not in {said:?}");
    }
}

/// Both would like the same N_Port_ID, and neither is given up for it.
#[test]
fn ports_with_the_same_low_bits_find_each_other() {
    let hosts = Hosts::new(hosts::Hosts::on_bridge(2, MTU_BYTES, |at, nic| {
        nic.key("port_name", format!("\"20:00:52:54:00:0{at}:12:34\""))
    }));
    let capture = Capture::start(hosts.hosts.segment().namespace(), BRIDGE);
    let server = hosts.server(0, 1);
    all_well(&hosts.client(1, 0).succeed(TIMEOUT));
    server.succeed(TIMEOUT);
    let frames = PortFrame::all_of(capture);
    judge_ports(&frames);
    let wanted = |frame: &&PortFrame| frame.source() == "0e:fd:00:00:12:34";
    let beacons = frames.iter().filter(wanted).count();
    assert!(beacons > 0, "one of them has it");
}

/// Nobody has the address yet.
#[test]
fn client_that_is_started_first_waits_for_the_servers_host() {
    let hosts = Hosts::on_bridge(2);
    let client = hosts.client(1, 0);
    let server = hosts.server(0, 1);
    all_well(&client.succeed(TIMEOUT));
    server.succeed(TIMEOUT);
}
