//! VI/TCP with a shared key: the Python implementation (`programs/vitcp`) without the key, and with malformed proofs.

use e2e::interop::network::{InteropNetwork, Security};
use e2e::interop::{
    assert_no_growth, assert_unaffected, case_count, connect_results, malformed_cases, resident_kib,
};
use e2e::nics::End;
use e2e::process::{Running, TIMEOUT};

const OTHER_KEY: &str = "100102030405060708090a0b0c0d0e0f";

#[test]
fn python_peer_without_the_key_is_rejected_as_client_and_server() {
    let network = InteropNetwork::protected(Security::Key);
    let theirs = |words: &[&str], key: Option<&str>| {
        let mut theirs = network.their("peer.py");
        theirs.args(words);
        if let Some(key) = key {
            theirs.args(["--key", key]);
        }
        Running::start("python peer", &mut theirs)
    };
    let server = network.echo_server();
    for (key, expected) in [
        (None, "failed: challenged"),
        (Some(OTHER_KEY), "failed: reject 20, not accept"),
    ] {
        let ended = theirs(&network.client_words(), key).finish(TIMEOUT);
        assert!(ended.text.contains(expected), "{}", ended.text);
        assert!(!ended.status.success());
    }
    let output = server.succeed(TIMEOUT);
    assert!(!output.contains("connected"), "{output}");
    let mut explorer = network.explorer();
    for key in [None, Some(OTHER_KEY)] {
        let mut peer = theirs(&network.server_words(), key);
        peer.wait_for("listening 8420", TIMEOUT);
        explorer.send_line(&format!("request {} there", End::Right.host()));
        let result = explorer.wait_for("result", TIMEOUT).text;
        assert!(result.ends_with("Reject"), "{result}");
        peer.finish(TIMEOUT);
    }
    explorer.succeed(TIMEOUT);
}

/// Proofs that are wrong, of other data, replayed, truncated, early or late: no request reaches the listener, and other
/// connections are unaffected.
#[test]
fn malformed_proofs_of_a_client_are_rejected() {
    let network = InteropNetwork::protected(Security::Key);
    let server = network.echo_server();
    let honest = network.honest(End::Left, "echo");
    let before = resident_kib(&server);
    let mut names = malformed_cases(&[]);
    names.retain(|name| name.starts_with("keyed"));
    let mut malformed = network.malformed_client("echo");
    malformed.arg("run").args(&names).arg("--check");
    let output = Running::start("malformed", &mut malformed).succeed(TIMEOUT);
    let cases = case_count(&output);
    println!("\nnote: {cases} malformed proofs");
    assert!(cases == names.len() && cases > 20, "{output}");
    assert_no_growth(&server, before);
    assert_unaffected(honest);
    server.succeed(TIMEOUT);
}

#[test]
fn malformed_proofs_of_a_server_are_rejected() {
    let network = InteropNetwork::protected(Security::Key);
    let server = network.echo_server();
    let honest = network.honest(End::Left, "echo");
    let mut explorer = network.explorer();
    let (mut malformed, mut names) = network.malformed_server();
    names.retain(|name| name.starts_with("answer-keyed"));
    let before = resident_kib(&explorer);
    let results = connect_results(&names, End::Right.host(), &mut malformed, &mut explorer);
    assert_no_growth(&explorer, before);
    let is_complete = results.len() == names.len() && results.len() > 15;
    assert!(is_complete, "{results:?}");
    for (name, outcome) in &results {
        assert_eq!(outcome, "Reject", "{name}");
    }
    explorer.succeed(TIMEOUT);
    assert_unaffected(honest);
    server.succeed(TIMEOUT);
}
