//! Interoperability of `vi-peer` and the independent Python implementation of VI/TCP (`programs/vitcp`) without
//! protection, with a shared key, and over TLS by OpenSSL: client, server, and malformed responses to connect requests.
//! Other malformed messages: `vi_tcp_malformed.rs`; all operations: `vi_tcp_operations.rs`.

use std::time::Duration;

use e2e::interop::network::{InteropNetwork, Security};
use e2e::interop::{
    assert_no_growth, assert_unaffected, connect_results, python_peer, resident_kib,
};
use e2e::nics::End;
use e2e::process::{Running, TIMEOUT};
use e2e::vi_peer;

#[test]
fn python_selftest_succeeds() {
    let output = Running::start("selftest", &mut python_peer("selftest.py")).succeed(TIMEOUT);
    assert!(output.contains("OK"), "{output}");
}

/// Runs clients that split the stream and their segments differently.
fn serve_clients(security: Security, splits: &[&str], segments: &[&str]) {
    let network = InteropNetwork::protected(security);
    let server = network.echo_server();
    for (split, segment) in splits
        .iter()
        .flat_map(|split| segments.iter().map(move |segment| (split, segment)))
    {
        let mut client = network.their_protected("peer.py", &network.client_words());
        client.args(["--split", split, "--segment", segment]);
        client.args(["echo:5:0", "echo:5:1", "echo:5:64", "echo:2:4000"]);
        let output = Running::start("python peer", &mut client).succeed(TIMEOUT);
        let echoed = output.contains("echoed 2 messages of 4000 bytes");
        assert!(echoed, "{output}");
    }
    server.succeed(TIMEOUT);
}

#[test]
fn python_client_is_served_for_all_segmentations() {
    let (splits, segments) = (["0", "1", "7", "24", "1000"], ["16", "1000", "60000"]);
    serve_clients(Security::Plain, &splits, &segments);
}

#[test]
fn python_client_with_the_key_is_served_for_all_segmentations() {
    serve_clients(Security::Key, &["0", "1", "1000"], &["16", "60000"]);
}

#[test]
fn openssl_client_is_served_for_all_segmentations() {
    let security = Security::tls();
    serve_clients(security, &["0", "1", "1000"], &["16", "60000"]);
}

/// The server closes the connection after 200 echoes.
fn ping_python_server(security: Security) {
    let network = InteropNetwork::protected(security);
    let mut peer = network.their_protected("peer.py", &network.server_words());
    peer.args(["--posted", "1000", "--repost", "reflect:200"]);
    let mut peer = Running::start("python peer", &mut peer);
    peer.wait_for("listening 8420", TIMEOUT);
    let ours = network.peer(End::Left, Duration::from_secs(3));
    let mut client = vi_peer::ping(ours, End::Right.host(), "there", "vi-peer");
    client.wait_for("lost server", TIMEOUT);
    let output = client.succeed(TIMEOUT);
    assert!(output.contains("count round_trips 200"), "{output}");
    peer.succeed(TIMEOUT);
}

#[test]
fn python_server_serves_vi_peer() {
    ping_python_server(Security::Plain);
}

#[test]
fn python_server_with_the_key_serves_vi_peer() {
    ping_python_server(Security::Key);
}

#[test]
fn openssl_server_serves_vi_peer() {
    ping_python_server(Security::tls());
}

/// Results of malformed answers that are not `VIP_REJECT`.
const ANSWERS: [(&str, &str); 13] = [
    ("answer-mtu-0", "InvalidMtu"),
    ("answer-mtu-larger", "InvalidMtu"),
    ("answer-reliable-other", "InvalidReliabilityLevel"),
    ("answer-no-match-open", "NoMatch"),
    // These are accepted.
    ("answer-attribute-bits", "connected"),
    ("answer-calling-other", "connected"),
    ("answer-called-other", "connected"),
    ("answer-level-3", "connected"),
    ("answer-immediate", "connected"),
    ("answer-transmit-error", "connected"),
    ("answer-vi-error-1", "connected"),
    ("answer-is-error-16", "connected"),
    // Accepted, and lost with the second accept.
    ("answer-twice", "connected"),
];

/// Answers with each field wrong in turn, and other data: each is rejected immediately with its status, and other
/// connections of the host are unaffected.
#[test]
fn malformed_answers_of_a_server_are_rejected() {
    let network = InteropNetwork::new(End::Left);
    let server = network.echo_server();
    let honest = network.honest(End::Left, "echo");
    let mut explorer = network.explorer();
    let before = resident_kib(&explorer);
    let (mut malformed, mut names) = network.malformed_server();
    malformed.args(["--silent-timeout", "2"]);
    names.retain(|name| !name.starts_with("answer-keyed"));
    let results = connect_results(&names, End::Right.host(), &mut malformed, &mut explorer);
    assert!(results.len() > 20, "{results:?}");
    for (name, result) in &results {
        let other = ANSWERS.iter().find(|(case, _)| case == name);
        let expected = other.map_or("Reject", |(_, result)| *result);
        assert_eq!(result, expected, "{name}");
    }
    assert_no_growth(&explorer, before);
    explorer.send_line(&format!("connect {} echo", End::Left.host()));
    let result = explorer.wait_for("result", TIMEOUT).text;
    assert!(result.ends_with("connected"), "{result}");
    explorer.succeed(TIMEOUT);
    assert_unaffected(honest);
    server.succeed(TIMEOUT);
}
