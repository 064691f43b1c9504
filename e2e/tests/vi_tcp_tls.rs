//! VI/TCP with TLS: the conformance suite between two hosts, and the Python implementation over OpenSSL
//! (`programs/vitcp`) as client, as server, and with malformed messages.

use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::certificates::Certificates;
use e2e::conformance_suite::{DAMAGED, LOSSY, Settings, UnknownHost, fragile, run_phase};
use e2e::datapath::DatapathProcess;
use e2e::installation::Installation;
use e2e::interop::{assert_no_growth, assert_unaffected, case_count, python_peer_in, resident_kib};
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, program};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const VI_PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// MaxTransferSize of the VIs of `vi-peer`.
const MTU: &str = "65536";
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

struct Network {
    wire: Wire,
    files: Scratch,
    certificates: Certificates,
}

impl Network {
    fn new() -> Self {
        let wire = Wire::new(1500);
        wire.assign_addresses();
        Self {
            wire,
            files: Scratch::new("vi-tcp-tls"),
            certificates: Certificates::new(),
        }
    }

    fn nic(&self, end: End) -> NicText {
        let tls = self.certificates.issue(end.host()).table();
        NicText::vi_tcp(end).key("tls", tls)
    }

    /// Returns the command of `vi-peer` at this end.
    fn ours(&self, end: End) -> Command {
        let mut command = self.wire.end(end).program(VI_PEER);
        let nic = self.nic(end).key("ulp_timeout_ms", 3000);
        let config = nic.write(&self.files, end.interface());
        command.env("VIADUCT_CONFIG", config);
        command
    }

    fn server(&self) -> Running {
        let mut server = Running::start("server", self.ours(End::Left).args(["serve", "echo"]));
        server.wait_for("listening", TIMEOUT);
        server
    }

    /// Returns the command of a Python program at the right end, with the TLS options at its end.
    fn theirs(&self, words: &[&str]) -> Command {
        let (name, words) = words.split_first().expect("a program");
        let mut inside = python_peer_in(&self.wire.right, name);
        inside.args(words);
        self.certificates
            .issue(End::Right.host())
            .add_options(&mut inside);
        inside
    }
}

#[test]
fn openssl_client_is_served_for_all_segmentations() {
    let network = Network::new();
    let server = network.server();
    for split in ["0", "1", "1000"] {
        for segment in ["16", "60000"] {
            let mut client = network.theirs(&["peer.py", "client"]);
            client.args(["--host", End::Left.host(), "--called", "echo"]);
            client.args(["--calling", "python", "--level", "rd", "--mtu", MTU]);
            client.args(["--split", split, "--segment", segment]);
            client.args(["echo:5:0", "echo:5:1", "echo:5:64", "echo:2:4000"]);
            let output = Running::start("python peer", &mut client).succeed(TIMEOUT);
            assert!(
                output.contains("echoed 2 messages of 4000 bytes"),
                "{output}"
            );
        }
    }
    server.succeed(TIMEOUT);
}

#[test]
fn openssl_server_serves_vi_peer() {
    let network = Network::new();
    let mut peer = network.theirs(&["peer.py", "server"]);
    peer.args(["--host", End::Right.host(), "--port", "8420"]);
    peer.args(["--disc", "there", "--level", "rd", "--mtu", MTU]);
    peer.args(["--posted", "1000", "--repost", "reflect:200"]);
    let mut peer = Running::start("python peer", &mut peer);
    peer.wait_for("listening 8420", TIMEOUT);
    let mut client = network.ours(End::Left);
    client.args([
        "ping",
        End::Right.host(),
        "there",
        "--client-name",
        "vi-peer",
    ]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("connected", TIMEOUT);
    // The server closes the connection after 200 echoes.
    client.wait_for("lost server", TIMEOUT);
    let output = client.succeed(TIMEOUT);
    assert!(output.contains("count round_trips 200"), "{output}");
    peer.succeed(TIMEOUT);
}

/// Truncated, slow and invalid handshakes and records, then all cases without TLS over TLS: other connections are
/// unaffected.
#[test]
fn malformed_tls_affects_no_other_connection() {
    let network = Network::new();
    let mut server = network.ours(End::Left);
    let mut server = Running::start("server", server.args(["observe", "observe"]));
    server.wait_for("listening", TIMEOUT);
    let mut honest = network.ours(End::Right);
    honest.args([
        "ping",
        End::Left.host(),
        "observe",
        "--client-name",
        "honest",
    ]);
    let mut honest = Running::start("honest", &mut honest);
    honest.wait_for("connected", TIMEOUT);
    let before = resident_kib(&server);
    for names in [TLS_CASES.as_slice(), &["all"]] {
        let mut malformed = network.theirs(&["malformed.py"]);
        malformed.args(["--host", End::Left.host(), "--called", "observe"]);
        malformed.args(["--calling", "malformed", "--mtu", MTU, "--timeout", "20"]);
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
    let network = Network::new();
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
    let servers = ["one", "two"].map(|name| {
        let mut server = network.wire.left.program(VI_PEER);
        server.env("VIADUCT_CONFIG", left.config());
        let mut server = Running::start(name, server.args(["serve", name]));
        server.wait_for("listening", TIMEOUT);
        server
    });
    for name in ["one", "two"] {
        let mut client = network.wire.right.program(VI_PEER);
        client.env("VIADUCT_CONFIG", right.config());
        client.args(["ping", End::Left.host(), name, "--client-name", "client"]);
        let mut client = Running::start("client", &mut client);
        for _ in 0..3 {
            client.wait_for("alive", TIMEOUT);
        }
        client.succeed(TIMEOUT);
    }
    for server in servers {
        server.succeed(TIMEOUT);
    }
    for process in [left, right] {
        let ended = process.stop();
        assert!(ended.status.success(), "{}", ended.text);
    }
}

/// Returns the NICs that the suite requires; only the usual one is VI/TCP.
fn nics(usual: NicText, segments: &Path) -> NicText {
    let shm = |name: &str| {
        let directory = segments.join(name.to_lowercase());
        fs::create_dir_all(&directory).expect("a directory");
        NicText::shm(&directory).key("name", format!("{name:?}"))
    };
    usual
        .key("ulp_timeout_ms", 240_000)
        .and(shm("SMALL").small_limits().key("ulp_timeout_ms", 240_000))
        .and(fragile(segments))
        .and(shm("LOSSY").short_timeouts().key("fault", LOSSY))
        .and(shm("DAMAGED").short_timeouts().key("fault", DAMAGED))
}

#[test]
fn full() {
    let network = Network::new();
    let installation = Installation::new();
    let segments = Scratch::in_memory("vi-tcp-tls");
    let [left, right] = [(End::Left, "left.toml"), (End::Right, "right.toml")]
        .map(|(end, name)| nics(network.nic(end), segments.path()).write(&network.files, name));
    let mut words: Vec<String> = network.wire.right.command_prefix().into();
    let outside = program("env");
    words.push(outside.get_program().to_string_lossy().into_owned());
    words.extend(
        outside
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.push(format!("VIADUCT_CONFIG={}", right.display()));
    let settings = Settings {
        config: &left,
        files: network.files.path(),
        segments: segments.path(),
        remote_command: &words.join(" "),
        has_recovery: false,
        unknown_host: UnknownHost::Silent,
    };
    let run = |path: &Path| network.wire.left.program(path);
    let tests = run_phase(&installation, "full", &settings, run);
    println!("\nnote: full: {tests} tests between two hosts over VI/TCP with TLS");
}
