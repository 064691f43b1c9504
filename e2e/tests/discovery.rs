//! Hosts without configured neighbours: ports get their N_Port_IDs and find each other by FIP VN2VN, log in, and
//! resolve their hosts by FARP.

use std::process::Command;
use std::time::{Duration, Instant};

use e2e::capture::Capture;
use e2e::echo::{all_connect, listen};
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

    /// Returns the command of an example on a host.
    fn program(&self, at: usize, name: &str) -> Command {
        self.hosts.program(at, self.installation.program(name))
    }

    /// Starts a server of one client on the first host.
    fn server(&self) -> Running {
        listen(self.program(0, "EchoServer").args(["-c", "1"]))
    }

    /// Starts a client of that server.
    fn client(&self, at: usize) -> Running {
        let mut client = self.program(at, "EchoClient");
        Running::start("EchoClient", client.args(["-t", "50000", &name(0)]))
    }

    /// Starts a server on the first host and a client on each other host at the same time; returns the time until the
    /// last client has its replies.
    fn run_all(&self, count: usize) -> Duration {
        let start = Instant::now();
        let mut server = self.program(0, "EchoServer");
        let server = Running::start("EchoServer", server.args(["-c", &(count - 1).to_string()]));
        let clients: Vec<Running> = (1..count).map(|at| self.client(at)).collect();
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
    let parts = hosts_of_ranks.map(|at| hosts.program(at, "Peers"));
    all_connect(parts.into(), &hosts_of_ranks.map(name));
}

/// The client connects by name. Both ports prefer the same N_Port_ID; one of them chooses another.
#[test]
fn ports_with_the_same_low_bits_find_each_other() {
    let hosts = Hosts::new(hosts::Hosts::on_bridge(2, MTU_BYTES, |at, nic| {
        nic.key(
            "discovery.port_name",
            format!("\"20:00:52:54:00:0{at}:12:34\""),
        )
    }));
    let capture = Capture::start(hosts.hosts.segment().namespace(), BRIDGE);
    let server = hosts.server();
    assert_no_errors(&hosts.client(1).succeed(TIMEOUT));
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
    let client = hosts.client(1);
    let server = hosts.server();
    assert_no_errors(&client.succeed(TIMEOUT));
    server.succeed(TIMEOUT);
}
