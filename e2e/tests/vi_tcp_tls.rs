//! VI/TCP with TLS: the conformance suite between two hosts, malformed handshakes and records of the Python
//! implementation (`programs/vitcp`) over OpenSSL, and attached programs. Valid messages: `vi_tcp_interop.rs`.

use std::fs;
use std::time::Duration;

use e2e::conformance_suite::{UnknownHost, run_between_hosts, with_shm_nics};
use e2e::datapath::DatapathProcess;
use e2e::interop::network::{InteropNetwork, Security};
use e2e::interop::{assert_no_growth, assert_unaffected, case_count, resident_kib};
use e2e::nics::End;
use e2e::process::{Running, TIMEOUT};
use e2e::vi_peer::{self, await_progress};

/// Malformed cases of TLS.
const TLS_CASES: [&str; 15] = [
    "tls-garbage",
    "tls-plain-request",
    "tls-silence",
    "tls-hello-cut",
    "tls-finished-cut",
    "tls-finished-withheld",
    "tls-finished-wrong",
    "tls-slow",
    "tls-no-certificate",
    "tls-record-wrong",
    "tls-garbage-connected",
    "tls-cut",
    "tls-end",
    "tls-end-after-record",
    "tls-garbage-after-record",
];

fn network() -> InteropNetwork {
    InteropNetwork::protected(Security::tls())
}

/// Truncated, slow and invalid handshakes and records, then all cases without TLS over TLS: other connections are
/// unaffected.
#[test]
fn malformed_tls_affects_no_other_connection() {
    let network = network();
    let mut server = network.peer(End::Left, Duration::from_secs(3));
    let mut server = Running::start("server", server.args(["observe", "observe"]));
    server.wait_for("listening", TIMEOUT);
    let honest = network.honest(End::Right, "observe");
    let before = resident_kib(&server);
    for names in [TLS_CASES.as_slice(), &["all"]] {
        let mut malformed = network.malformed_client("observe");
        malformed
            .args(["--silent-timeout", "2", "--region", "--probe", "run"])
            .args(names)
            .arg("--check");
        let output = Running::start("malformed", &mut malformed).succeed(6 * TIMEOUT);
        let cases = case_count(&output);
        println!("\nnote: {cases} malformed cases over TLS");
        assert!(cases >= names.len(), "{output}");
    }
    assert_no_growth(&server, before);
    assert_unaffected(honest);
    server.succeed(TIMEOUT);
}

/// All applications of a datapath process share its TCP port.
#[test]
fn programs_attached_to_a_datapath_process_share_its_port() {
    let network = network();
    let process = |end: End| {
        let socket = network.files.file(&format!("{}.sock", end.interface()));
        let table = format!("\n[process]\nidle = \"hybrid\"\nsocket = {socket:?}\n");
        let name = format!("{}.toml", end.interface());
        let config = network.nic(end).write(&network.files, &name);
        let text = fs::read_to_string(&config).expect("it was written") + &table;
        let config = network.files.write(&name, &text);
        DatapathProcess::start_from(&config, |program| network.wire.end(end).program(program))
    };
    let (left, right) = (process(End::Left), process(End::Right));
    let attached =
        |end, process: &DatapathProcess| vi_peer::within(network.wire.end(end), process.config());
    let servers = ["one", "two"].map(|name| vi_peer::serve(attached(End::Left, &left), name));
    for name in ["one", "two"] {
        let client = attached(End::Right, &right);
        let mut client = vi_peer::ping(client, End::Left.host(), name, "client");
        await_progress(&mut client, 3);
        client.succeed(TIMEOUT);
    }
    for server in servers {
        server.succeed(TIMEOUT);
    }
    for process in [left, right] {
        process.stop_and_check();
    }
}

#[test]
fn full() {
    let network = network();
    let unknown_host = UnknownHost::Silent;
    run_between_hosts(
        "full",
        &network.wire,
        false,
        unknown_host,
        |end, segments| {
            let usual = network.nic(end).key("ulp_timeout_ms", 240_000);
            with_shm_nics(usual, segments)
        },
    );
}
