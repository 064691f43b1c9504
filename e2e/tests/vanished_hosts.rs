//! Hosts that start, stop and vanish: autodiscovery, and the fate of connections and pending requests.

use std::time::{Duration, Instant};

use e2e::hosts::{Hosts, address, name};
use e2e::nics::NicText;
use e2e::process::{Running, TIMEOUT};
use e2e::vi_peer;

const MTU_BYTES: u32 = 2500;
/// Beacon period; shorter than the default of eight seconds, for fast detection of lost hosts.
const BEACON_PERIOD: Duration = Duration::from_secs(1);
/// Probe interval for silent peers.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum delay on a busy machine.
const LATENESS: Duration = Duration::from_secs(20);
/// Timeout of the loss of a connection, which is detected after four probe intervals.
const CONNECTION_LOSS_TIMEOUT: Duration = PROBE_INTERVAL.saturating_mul(4).saturating_add(LATENESS);
/// Time without a beacon after which a port is lost: 2.5 periods.
const BEACON_LOSS: Duration = Duration::from_millis(2500);
const PORT_LOSS_TIMEOUT: Duration = BEACON_LOSS.saturating_add(LATENESS);

fn hosts(count: usize) -> Hosts {
    Hosts::on_bridge(count, MTU_BYTES, |_, nic: NicText| {
        nic.key("discovery.beacon_ms", BEACON_PERIOD.as_millis())
            .key("network.probe_interval_ms", PROBE_INTERVAL.as_millis())
    })
}

fn server(hosts: &Hosts, at: usize) -> Running {
    vi_peer::serve(hosts.program(at, vi_peer::path()), "echo")
}

/// A `vi-peer explore` on a host.
struct Explorer(Running);

impl Explorer {
    fn start(hosts: &Hosts, at: usize) -> Self {
        Self(vi_peer::explore(hosts.program(at, vi_peer::path())))
    }

    /// Waits until autodiscovery lists exactly these hosts; returns the time.
    fn discovers(&mut self, hosts: &[usize]) -> Instant {
        let addresses: Vec<String> = hosts
            .iter()
            .map(|at| format!(" {}", address(*at)))
            .collect();
        let addresses = addresses.concat();
        self.0.discard_output();
        self.0.send_line(&format!("discover{addresses}"));
        let line = self
            .0
            .wait_for(format!("discovered{addresses}").trim_end(), TIMEOUT);
        line.at
    }

    /// Starts to request a connection until a program listens.
    fn connect(&mut self, host: usize) {
        self.0.discard_output();
        self.0.send_line(&format!("connect {} echo", address(host)));
    }

    /// Waits for this result of the request; returns the time.
    fn await_result(&mut self, host: usize, result: &str) -> Instant {
        let result = format!("result {} {result}", address(host));
        self.0.wait_for(&result, TIMEOUT).at
    }

    fn end(self) {
        self.0.succeed(TIMEOUT);
    }
}

/// The server's host vanishes: the connection of its client is lost, and requests return VIP_NOT_REACHABLE.
#[test]
fn vanished_host_loses_its_connections_and_is_not_reachable() {
    let hosts = hosts(2);
    let victim = server(&hosts, 0);
    let client = hosts.program(1, vi_peer::path());
    let mut client = vi_peer::ping(client, &name(0), "echo", "client");
    let mut explorer = Explorer::start(&hosts, 1);
    explorer.connect(0);
    explorer.await_result(0, "connected");

    let killed_at = victim.kill();
    explorer.connect(0);
    let lost = client.wait_for("lost server", TIMEOUT).at - killed_at;
    let refused = explorer.await_result(0, "NotReachable") - killed_at;
    assert!(lost < CONNECTION_LOSS_TIMEOUT, "{lost:?}");
    assert!(refused < PORT_LOSS_TIMEOUT, "{refused:?}");
    client.succeed(TIMEOUT);
    explorer.discovers(&[]);
    println!(
        "\nnote: the server's host vanished: connection lost after {lost:.2?}, VIP_NOT_REACHABLE after {refused:.2?}"
    );

    // Now no port has its address: a request waits until one has.
    explorer.connect(0);
    let successor = server(&hosts, 0);
    explorer.await_result(0, "connected");
    successor.kill();
    explorer.end();
}

/// A pending request returns VIP_NOT_REACHABLE if the listener's host vanishes before the response.
#[test]
fn pending_request_to_a_vanished_host_is_not_reachable() {
    let hosts = hosts(2);
    let mut holder = Explorer::start(&hosts, 0);
    let mut explorer = Explorer::start(&hosts, 1);
    holder.0.send_line("hold echo");
    explorer.discovers(&[0]);
    explorer.connect(0);
    holder.0.wait_for("held explorer", TIMEOUT);
    let killed_at = holder.0.kill();
    let refused = explorer.await_result(0, "NotReachable") - killed_at;
    assert!(refused < PORT_LOSS_TIMEOUT, "{refused:?}");
    println!("\nnote: pending request to a vanished host: VIP_NOT_REACHABLE after {refused:.2?}");
    explorer.end();
}

/// Autodiscovery lists each host with at least one program.
#[test]
fn autodiscovery_lists_exactly_the_running_hosts() {
    let hosts = hosts(3);
    let mut observer = Explorer::start(&hosts, 1);
    observer.discovers(&[]);
    let killed = Explorer::start(&hosts, 2);
    observer.discovers(&[2]);
    let stopped = Explorer::start(&hosts, 0);
    let mut remaining = Explorer::start(&hosts, 0);
    observer.discovers(&[0, 2]);
    remaining.discovers(&[0, 1, 2]);

    // A stopped program logs out, but its host has another one; a killed program is detected by missing beacons.
    stopped.end();
    remaining.discovers(&[1, 2]);
    let killed_at = killed.0.kill();
    let lost_after = observer.discovers(&[0]) - killed_at;
    assert!(lost_after < PORT_LOSS_TIMEOUT, "{lost_after:?}");
    remaining.discovers(&[1]);
    let begin = Instant::now();
    remaining.end();
    let removed_after = observer.discovers(&[]) - begin;
    assert!(removed_after < LATENESS, "{removed_after:?}");
    println!(
        "\nnote: a killed host was removed after {lost_after:.2?}, a stopped one after {removed_after:.2?}"
    );

    // The killed host is restarted.
    let mut again = Explorer::start(&hosts, 2);
    observer.discovers(&[2]);
    again.discovers(&[1]);
    again.end();
    observer.end();
}
