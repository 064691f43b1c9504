//! Hosts that come and go: what autodiscovery lists, and what becomes of connections and requests when one vanishes.

use std::time::{Duration, Instant};

use e2e::hosts::{Hosts, address, name};
use e2e::nics::NicText;
use e2e::process::{Running, TIMEOUT};

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
const MTU_BYTES: u32 = 2500;
/// So that a host is missed soon; the default is eight seconds.
const BEACON: Duration = Duration::from_secs(1);
/// How often a silent peer is asked whether it lives.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// What a machine may add that takes the cores away.
const LATENESS: Duration = Duration::from_secs(20);
/// A connection is lost when its other end was silent for four intervals.
const LOST_WITHIN: Duration = PROBE_INTERVAL.saturating_mul(4).saturating_add(LATENESS);
/// A port is gone when it sent no beacon for two and a half of their periods.
const MISSED_AFTER: Duration = Duration::from_millis(2500);
const MISSED_WITHIN: Duration = MISSED_AFTER.saturating_add(LATENESS);

fn hosts(count: usize) -> Hosts {
    Hosts::on_bridge(count, MTU_BYTES, |_, nic: NicText| {
        nic.key("beacon_ms", BEACON.as_millis())
            .key("probe_interval_ms", PROBE_INTERVAL.as_millis())
    })
}

fn server(hosts: &Hosts, at: usize) -> Running {
    let mut command = hosts.program(at, PEER);
    let mut server = Running::start("server", command.args(["serve", "here"]));
    server.wait_for("listening", TIMEOUT);
    server
}

/// A program on a host that looks for others, and is told what to do.
struct Explorer(Running);

impl Explorer {
    fn start(hosts: &Hosts, at: usize) -> Self {
        let mut command = hosts.program(at, PEER);
        let name = format!("explorer on {at}");
        let mut explorer = Running::start(&name, command.arg("explore"));
        explorer.wait_for("ready", TIMEOUT);
        Self(explorer)
    }

    /// Waits until autodiscovery lists exactly these hosts; gives the time.
    fn sees(&mut self, hosts: &[usize]) -> Instant {
        let addresses: Vec<String> = hosts
            .iter()
            .map(|at| format!(" {}", address(*at)))
            .collect();
        let addresses = addresses.concat();
        self.0.skip();
        self.0.tell(&format!("see{addresses}"));
        let line = self
            .0
            .wait_for(format!("sees{addresses}").trim_end(), TIMEOUT);
        line.at
    }

    /// Has it ask for a connection until a program waits there.
    fn ask(&mut self, host: usize) {
        self.0.skip();
        self.0.tell(&format!("connect {} here", address(host)));
    }

    /// Waits for what came of it; gives the time.
    fn answered(&mut self, host: usize, answer: &str) -> Instant {
        let answer = format!("asked {} {answer}", address(host));
        self.0.wait_for(&answer, TIMEOUT).at
    }

    fn end(self) {
        self.0.succeed(TIMEOUT);
    }
}

/// The server's host dies: its client's connection is lost, and from then on nobody can connect to it: at first because
/// it is silent until it is missed, and later because nobody is there.
#[test]
fn a_host_that_vanishes_loses_its_connections_and_is_not_reachable() {
    let hosts = hosts(2);
    let victim = server(&hosts, 0);
    let mut command = hosts.program(1, PEER);
    command.args(["ping", &name(0), "here", "--own", "client"]);
    let mut client = Running::start("client", &mut command);
    client.wait_for("connected", TIMEOUT);
    let mut explorer = Explorer::start(&hosts, 1);
    explorer.ask(0);
    explorer.answered(0, "connected");

    let death = victim.kill();
    explorer.ask(0);
    let lost = client.wait_for("lost server", TIMEOUT).at - death;
    let refused = explorer.answered(0, "NotReachable") - death;
    assert!(lost < LOST_WITHIN, "{lost:?}");
    assert!(refused < MISSED_WITHIN, "{refused:?}");
    client.succeed(TIMEOUT);
    explorer.sees(&[]);
    println!(
        "\nnote: the server's host vanished: connection lost after {lost:.2?}, VIP_NOT_REACHABLE after {refused:.2?}"
    );

    // Now nobody has its address: whoever asks waits until it is there again.
    explorer.ask(0);
    let successor = server(&hosts, 0);
    explorer.answered(0, "connected");
    successor.kill();
    explorer.end();
}

/// A request whose answer never comes, for whoever thought about it is dead.
#[test]
fn a_request_that_a_vanished_host_holds_is_not_reachable() {
    let hosts = hosts(2);
    let mut holder = Explorer::start(&hosts, 0);
    let mut explorer = Explorer::start(&hosts, 1);
    holder.0.tell("hold here");
    explorer.sees(&[0]);
    explorer.ask(0);
    holder.0.wait_for("holds explorer", TIMEOUT);
    let death = holder.0.kill();
    let refused = explorer.answered(0, "NotReachable") - death;
    assert!(refused < MISSED_WITHIN, "{refused:?}");
    println!("\nnote: its request: VIP_NOT_REACHABLE after {refused:.2?}");
    explorer.end();
}

/// Autodiscovery lists each host that has a program, as often as it has some, until the last one is gone.
#[test]
fn autodiscovery_lists_the_hosts_that_are_there() {
    let hosts = hosts(3);
    let mut looks = Explorer::start(&hosts, 1);
    looks.sees(&[]);
    let killed = Explorer::start(&hosts, 2);
    looks.sees(&[2]);
    let leaves = Explorer::start(&hosts, 0);
    let mut stays = Explorer::start(&hosts, 0);
    looks.sees(&[0, 2]);
    stays.sees(&[0, 1, 2]);

    // One that leaves says so, but its host has another program; one that is killed is missed.
    leaves.end();
    stays.sees(&[1, 2]);
    let death = killed.0.kill();
    let missed = looks.sees(&[0]) - death;
    assert!(missed < MISSED_WITHIN, "{missed:?}");
    stays.sees(&[1]);
    let begin = Instant::now();
    stays.end();
    let dropped = looks.sees(&[]) - begin;
    assert!(dropped < LATENESS, "{dropped:?}");
    println!(
        "\nnote: a killed host was dropped after {missed:.2?}, one that left after {dropped:.2?}"
    );

    // The one that died comes back.
    let mut again = Explorer::start(&hosts, 2);
    looks.sees(&[2]);
    again.sees(&[1]);
    again.end();
    looks.end();
}
