//! Hosts without configured neighbours: ports get their N_Port_IDs and find each other by FIP VN2VN, log in, and
//! resolve their hosts by FARP.

use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::hosts::{self, name};
use e2e::installation::Installation;
use e2e::port_frames::{PortFrame, check_port_frames};
use e2e::process::{Running, TIMEOUT};
use e2e::segment::BRIDGE;

/// Upper limit, on a busy machine, from the start of the first program until the last client has all replies; about a
/// second on an idle one.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(20);
const MTU_BYTES: u32 = 1500;

/// Hosts, and the installed C examples.
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

    /// Starts a server without waiting until it listens.
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

    /// Starts a server on the first host and a client on each other host at the same time; returns the time until the
    /// last client has its replies.
    fn run_all(&self, count: usize) -> Duration {
        let start = Instant::now();
        let server = self.start_server(0, count - 1);
        let clients: Vec<Running> = (1..count).map(|at| self.client(at, 0)).collect();
        for client in clients {
            assert_no_errors(&client.succeed(TIMEOUT));
        }
        let took = start.elapsed();
        server.succeed(TIMEOUT);
        took
    }
}

fn assert_no_errors(output: &str) {
    assert!(output.contains(" 0 errors"), "{output}");
}

#[test]
fn client_connects_to_its_server_by_name() {
    let hosts = Hosts::on_bridge(2);
    let server = hosts.server(0, 1);
    let start = Instant::now();
    assert_no_errors(&hosts.client(1, 0).succeed(TIMEOUT));
    let took = start.elapsed();
    assert!(took < DISCOVERY_TIMEOUT, "{took:?}");
    println!("\nnote: client done after {took:.2?}");
    server.succeed(TIMEOUT);
}

#[test]
fn two_hosts_on_a_wire_find_each_other() {
    let hosts = Hosts::new(hosts::Hosts::on_wire(MTU_BYTES));
    let took = hosts.run_all(2);
    println!("\nnote: a wire: client done {took:.2?} after the start of both");
    assert!(took < DISCOVERY_TIMEOUT, "{took:?}");
}

/// All frames of discovery are checked.
#[test]
fn five_hosts_on_a_bridge_find_each_other() {
    const HOSTS: usize = 5;
    let hosts = Hosts::on_bridge(HOSTS);
    let capture = Capture::start(hosts.hosts.segment().namespace(), BRIDGE);
    let took = hosts.run_all(HOSTS);
    println!("\nnote: a bridge: all four clients done {took:.2?} after the start of all hosts");
    check_port_frames(&PortFrame::all_of(capture));
    assert!(took < DISCOVERY_TIMEOUT, "{took:?}");
}

/// Two ranks of a parallel program on each of two hosts, each connected with all others.
#[test]
fn peers_on_two_hosts_find_each_other() {
    let hosts = Hosts::on_bridge(2);
    let hosts_of_ranks = [0, 1, 0, 1];
    let running: Vec<Running> = hosts_of_ranks
        .iter()
        .enumerate()
        .map(|(rank, at)| {
            let peers = hosts.installation.program("Peers");
            let mut part = hosts.hosts.program(*at, peers);
            part.args(["-r", &rank.to_string(), "-n", "4", "-t", "50000"])
                .args(hosts_of_ranks.map(name));
            Running::start("Peers", &mut part)
        })
        .collect();
    for (rank, part) in running.into_iter().enumerate() {
        let output = part.succeed(TIMEOUT);
        let expected = format!("Peers: part {rank} of 4: the sum is 6");
        assert!(
            output.contains(&expected),
            "{expected:?} is not in {output:?}"
        );
    }
}

/// Both prefer the same N_Port_ID; one of them chooses another.
#[test]
fn ports_with_the_same_low_bits_find_each_other() {
    let hosts = Hosts::new(hosts::Hosts::on_bridge(2, MTU_BYTES, |at, nic| {
        nic.key("port_name", format!("\"20:00:52:54:00:0{at}:12:34\""))
    }));
    let capture = Capture::start(hosts.hosts.segment().namespace(), BRIDGE);
    let server = hosts.server(0, 1);
    assert_no_errors(&hosts.client(1, 0).succeed(TIMEOUT));
    server.succeed(TIMEOUT);
    let frames = PortFrame::all_of(capture);
    check_port_frames(&frames);
    let wanted = |frame: &&PortFrame| frame.source() == "0e:fd:00:00:12:34";
    let beacons = frames.iter().filter(wanted).count();
    assert!(beacons > 0, "no port has the contested N_Port_ID");
}

/// No port has the address yet when the client starts.
#[test]
fn client_that_is_started_first_waits_for_the_servers_host() {
    let hosts = Hosts::on_bridge(2);
    let client = hosts.client(1, 0);
    let server = hosts.server(0, 1);
    assert_no_errors(&client.succeed(TIMEOUT));
    server.succeed(TIMEOUT);
}
