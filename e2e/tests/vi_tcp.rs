//! VI/TCP between two hosts: the conformance suite, lost frames, a cut wire, a killed peer.

use std::process::Command;
use std::time::{Duration, Instant};

use e2e::conformance_suite::{UnknownHost, run_between_hosts, with_shm_nics};
use e2e::faults::{Pair, complete};
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::vi_peer::{self, await_progress, stop_client};
use e2e::wire::Wire;

const MTU_BYTES: u32 = 1500;
/// Timeout of the loss of a connection: four probe intervals, plus a margin since the kernel's keepalive timers have a
/// resolution of seconds.
const CONNECTION_LOSS_TIMEOUT: Duration = Duration::from_secs(4 + 20);

/// Runs a phase on two hosts; `usual` returns the usual NIC of an end. The other NICs are not VI/TCP: TCP hides lost and
/// damaged frames, and SMALL and FRAGILE are used within one process.
fn run_phase_on_two_hosts(phase: &str, wire: &Wire, usual: fn(End) -> NicText) {
    run_between_hosts(phase, wire, false, UnknownHost::Silent, |end, segments| {
        with_shm_nics(usual(end).key("ulp_timeout_ms", 240_000), segments)
    });
}

fn run_phase_over_v4(phase: &str) {
    let wire = Wire::new(MTU_BYTES);
    wire.assign_addresses();
    run_phase_on_two_hosts(phase, &wire, NicText::vi_tcp);
}

#[test]
fn early_adopter() {
    run_phase_over_v4("early_adopter");
}

#[test]
fn functional() {
    run_phase_over_v4("functional");
}

#[test]
fn full() {
    run_phase_over_v4("full");
}

/// Both hosts have IPv6 addresses only.
#[test]
fn full_over_v6() {
    let wire = Wire::new(MTU_BYTES);
    wire.assign_v6_addresses();
    let usual = |end: End| NicText::vi_tcp_at(end.host_v6());
    run_phase_on_two_hosts("full", &wire, usual);
}

/// Two programs on one host use its loopback address.
#[test]
fn v6_loopback_carries_messages() {
    const HOST: &str = "::1";
    let wire = Wire::new(MTU_BYTES);
    wire.left.ip("link set lo up");
    let files = Scratch::new("vi-tcp-v6");
    let config = NicText::vi_tcp_at(HOST).write(&files, "nic.toml");
    let peer = || vi_peer::within(&wire.left, &config);
    let mut server = vi_peer::serve(peer(), "echo");
    let mut client = vi_peer::ping(peer(), HOST, "echo", "client");
    await_progress(&mut client, 3);
    stop_client(client);
    server.wait_for("disconnected client", TIMEOUT);
    server.succeed(TIMEOUT);
}

/// Returns the command of `vi-peer` on the host of an end.
fn peer(wire: &Wire, files: &Scratch, end: End) -> Command {
    let config = NicText::vi_tcp(end).write(files, end.interface());
    vi_peer::within(wire.end(end), &config)
}

/// Starts an echo server at the left end and its client at the right end.
fn echo_pair(wire: &Wire, files: &Scratch) -> (Running, Running) {
    let server = vi_peer::serve(peer(wire, files, End::Left), "echo");
    let client = peer(wire, files, End::Right);
    (
        server,
        vi_peer::ping(client, End::Left.host(), "echo", "client"),
    )
}

/// The kernel drops some frames; the sink checks order and content of all messages.
#[test]
fn bulk_transfer_survives_lost_frames() {
    for of_ten_thousand in [200, 500] {
        let wire = Wire::lossy(MTU_BYTES, of_ten_thousand);
        wire.assign_addresses();
        // With offloads, only a few long segments would be dropped.
        wire.disable_offloads();
        let files = Scratch::new("vi-tcp-loss");
        let pair = Pair {
            sink: peer(&wire, &files, End::Left),
            source: peer(&wire, &files, End::Right),
            host: End::Left.host(),
        };
        complete(&format!("{of_ten_thousand} of 10000 lost"), pair, 3, 500);
        let lost = wire.lost();
        println!("\nnote: {of_ten_thousand} of 10000 frames: {lost:?} were lost");
        assert!(lost.iter().all(|frames| *frames > 0), "{lost:?}");
    }
}

/// No frames arrive any more: both sides detect the loss within the timeout.
#[test]
fn cut_wire_ends_the_connection_on_both_sides() {
    let wire = Wire::lanes(MTU_BYTES, 1);
    wire.assign_addresses();
    let files = Scratch::new("vi-tcp-cut");
    let (mut server, mut client) = echo_pair(&wire, &files);
    server.wait_for("connected client", TIMEOUT);
    let cut_at = Instant::now();
    wire.cut();
    let times = [(&mut client, "lost server"), (&mut server, "lost client")]
        .map(|(end, lost)| end.wait_for(lost, 2 * CONNECTION_LOSS_TIMEOUT).at - cut_at);
    // Posted descriptors are flushed as well.
    server.wait_for("disconnected client", TIMEOUT);
    println!(
        "\nnote: cut: the client noticed after {:.2?}, the server after {:.2?}",
        times[0], times[1]
    );
    assert!(
        times.iter().all(|time| *time < CONNECTION_LOSS_TIMEOUT),
        "{times:?}"
    );
    for end in [client, server] {
        let output = end.succeed(TIMEOUT);
        assert_eq!(Report::read(&output).get("events"), 1, "{output}");
        assert!(output.contains("event ConnLost"), "{output}");
    }
}

/// A kill is detected immediately, also if the kernel of the killed peer has unread data.
#[test]
fn killed_peer_is_detected_immediately() {
    let wire = Wire::new(MTU_BYTES);
    wire.assign_addresses();
    let files = Scratch::new("vi-tcp-kill");
    let (server, mut client) = echo_pair(&wire, &files);
    let killed_at = server.kill();
    let detected_after = client.wait_for("lost server", TIMEOUT).at - killed_at;
    println!("\nnote: killed: detected after {detected_after:.2?}");
    assert!(
        detected_after < Duration::from_secs(20),
        "{detected_after:?}"
    );
    client.succeed(TIMEOUT);
}
