//! Malformed VI/TCP messages of the Python implementation (`programs/vitcp`) to `vi-peer` as server and as client.
//!
//! For each case and reliability level, the outcome is checked on both sides: `malformed.py` checks the reaction, the
//! test checks the outcome for the VI of `vi-peer`. Other connections are unaffected, and the resident memory does not
//! grow.

use std::process::Command;
use std::time::Duration;

use e2e::interop::network::{InteropNetwork, MTU};
use e2e::interop::{
    assert_ending, assert_no_growth, assert_unaffected, endings_of, expected_read_status,
    malformed_cases, outcomes, resident_kib,
};
use e2e::nics::End;
use e2e::process::{Running, TIMEOUT};
use e2e::vi_peer;

/// The `ulp_timeout_ms` of servers and clients in cases that wait for it.
const SHORT_TIMEOUT: Duration = Duration::from_millis(1000);

/// Starts `vi-peer` at the left end, which reports the ending of each connection.
fn observer(network: &InteropNetwork, ulp_timeout: Duration, options: &[&str]) -> Running {
    let mut server = network.peer(End::Left, ulp_timeout);
    server.args(["observe", "observe"]).args(options);
    let mut server = Running::start("server", &mut server);
    server.wait_for("listening", TIMEOUT);
    server
}

/// Returns the command of `malformed.py` at the right end, with the address of the memory of `vi-peer`, and with a
/// probe after cases that keep the connection open.
fn malformed(network: &InteropNetwork, level: &str, in_pieces: bool) -> Command {
    let mut command = network.their("malformed.py");
    command.args(["--level", level, "--mtu", MTU, "--timeout", "20"]);
    let silent_timeout = (2 * SHORT_TIMEOUT).as_secs_f32().to_string();
    command.args(["--silent-timeout", &silent_timeout]);
    command.args(["--region", "--probe", "--numbered"]);
    command.args(["--split", if in_pieces { "1" } else { "0" }]);
    command
}

/// Runs all client cases against a server; the client requests level `theirs`. `in_pieces`: sent byte by byte.
fn run_against_server(level: &str, theirs: &str, options: &[&str], in_pieces: bool) {
    let network = InteropNetwork::new(End::Left);
    let server_options = [&["--level", level], options].concat();
    let mut server = observer(&network, Duration::from_secs(3), &server_options);
    let honest = network.honest(End::Right, "observe");
    let names = malformed_cases(&["--all"]);
    let connected = malformed_cases(&["--all", "--both-roles"]);
    let before = resident_kib(&server);
    let mut malformed = malformed(&network, theirs, in_pieces);
    malformed.args(options);
    malformed.args(["--host", End::Left.host(), "--called", "observe", "run"]);
    let malformed = Running::start("malformed", malformed.args(&names).arg("--check"));
    // For cases on a connection, the server prints how it ended.
    for (number, name) in names.iter().enumerate() {
        if connected.contains(name) {
            server.wait_for(&format!("ended case-{number} "), 2 * TIMEOUT);
        }
    }
    let outcomes = outcomes(&malformed.succeed(TIMEOUT));
    assert_no_growth(&server, before);
    assert_unaffected(honest);
    let mut checked = 0;
    for (name, found) in endings_of(&server.succeed(TIMEOUT)) {
        let number = name.strip_prefix("case-").map(str::parse::<usize>);
        let Some(Ok(number)) = number else { continue };
        let case = &names[number];
        assert_ending(&found, case, level, &outcomes[case], in_pieces);
        checked += usize::from(connected.contains(case));
    }
    println!(
        "\nnote: {} malformed messages at {level}, {checked} of them on a connection",
        outcomes.len()
    );
    assert_eq!((outcomes.len(), checked), (names.len(), connected.len()));
    assert!(checked > 100);
}

#[test]
fn server_survives_malformed_messages_at_unreliable_delivery() {
    run_against_server("ud", "ud", &[], false);
}

#[test]
fn server_survives_malformed_messages_at_reliable_delivery() {
    run_against_server("rd", "rd", &[], false);
}

#[test]
fn server_survives_malformed_messages_at_reliable_reception() {
    run_against_server("rr", "rr", &[], false);
}

/// The client follows the draft only and does not send the exact reliable level.
#[test]
fn server_survives_malformed_messages_of_a_draft_client() {
    run_against_server("rd", "reliable", &[], false);
}

/// With flow control, wrong credits are relevant.
#[test]
fn server_with_flow_control_survives_malformed_messages_in_pieces() {
    run_against_server("rr", "rr", &["--flow-control"], true);
}

/// Incomplete requests are closed after the timeout; established connections have no such timeout.
#[test]
fn server_closes_incomplete_requests_after_the_timeout() {
    let network = InteropNetwork::new(End::Left);
    let mut server = observer(&network, SHORT_TIMEOUT, &[]);
    let honest = network.honest(End::Right, "observe");
    let start = |names: &[&str]| {
        let mut malformed = malformed(&network, "rd", false);
        malformed.args(["--host", End::Left.host(), "--called", "observe"]);
        Running::start("malformed", malformed.arg("run").args(names).arg("--check"))
    };
    let names = ["request-never-sent", "slow-half"];
    let mut malformed = start(&names);
    let closed = names.map(|name| malformed.wait_for(&format!("{name}: closed"), TIMEOUT).at);
    let took = closed[1] - closed[0];
    // Both lines are printed with different delays.
    assert!(
        took >= SHORT_TIMEOUT.mul_f32(0.9) && took < 5 * SHORT_TIMEOUT,
        "{took:?}"
    );
    malformed.succeed(TIMEOUT);
    let was_connected = server.has_printed("ended");
    assert!(!was_connected, "a connection was established");
    // No timeout on an established connection.
    let mut malformed = start(&["segment-never-sent"]);
    malformed.wait_for("segment-never-sent: open", TIMEOUT);
    malformed.succeed(TIMEOUT);
    assert_unaffected(honest);
    server.wait_for("ended case-0", TIMEOUT);
    server.succeed(TIMEOUT);
}

/// Runs all cases on a connection, and those of read responses, against a client; its connection to an echo server is
/// unaffected. `in_pieces`: sent byte by byte.
fn run_against_client(level: &str, options: &[&str], in_pieces: bool) {
    let network = InteropNetwork::new(End::Left);
    let echo = vi_peer::serve(network.peer(End::Left, TIMEOUT), "echo");
    let mut client = network.peer(End::Left, SHORT_TIMEOUT);
    let mut client = Running::start(
        "client",
        client.args(["commands", "--level", level]).args(options),
    );
    client.send_line(&format!("echo-connect {} echo", End::Left.host()));
    client.wait_for("echo-connected", TIMEOUT);
    let mut names = malformed_cases(&["--all", "--both-roles"]);
    let is_response =
        |name: &String| name.starts_with("response-") || name.starts_with("control-response");
    names.retain(|name| !is_response(name));
    if level != "ud" {
        let all = malformed_cases(&["--both-roles"]).into_iter();
        names.extend(all.filter(is_response));
    }
    let mut malformed = malformed(&network, level, in_pieces);
    malformed
        .args(["--host", End::Right.host(), "serve"])
        .args(&names);
    let mut malformed = Running::start("malformed", malformed.arg("--check"));
    let mut before = 0;
    for (number, name) in names.iter().enumerate() {
        malformed.wait_for("listening", TIMEOUT);
        client.send_line(&format!("connect {} there", End::Right.host()));
        client.send_line("advertise");
        if is_response(name) && name != "response-unsolicited" {
            client.send_line("read 0 64");
            let read = client.wait_for("read ", TIMEOUT).text;
            let read = read.strip_prefix("read ").expect("a status");
            assert_eq!(read, expected_read_status(name), "{name} at {level}");
        }
        client.send_line("answer-probes");
        let ended = client.wait_for("ended", TIMEOUT).text;
        let line = malformed.wait_for(&format!("{name}: "), TIMEOUT).text;
        let (_, outcome) = line.split_once(": ").expect("an outcome");
        let ended = ended.replace("ended ", "ended client ");
        let (_, found) = endings_of(&ended).pop().expect("an ending");
        assert_ending(&found, name, level, outcome, in_pieces);
        client.send_line("echo");
        client.wait_for(&format!("echoed {}", number + 1), TIMEOUT);
        // After the one-time allocations of the first case.
        if number == 0 {
            before = resident_kib(&client);
        }
    }
    malformed.succeed(TIMEOUT);
    println!(
        "\nnote: {} malformed messages of a server at {level}",
        names.len()
    );
    assert!(names.len() > 100);
    assert_no_growth(&client, before);
    let output = client.succeed(TIMEOUT);
    assert!(!output.contains("lost echo-server"), "{output}");
    echo.succeed(TIMEOUT);
}

#[test]
fn client_survives_malformed_messages_at_unreliable_delivery() {
    run_against_client("ud", &[], false);
}

#[test]
fn client_survives_malformed_messages_at_reliable_delivery() {
    run_against_client("rd", &[], false);
}

#[test]
fn client_survives_malformed_messages_at_reliable_reception() {
    run_against_client("rr", &[], false);
}

#[test]
fn client_with_flow_control_survives_malformed_messages_in_pieces() {
    run_against_client("rr", &["--flow-control"], true);
}
