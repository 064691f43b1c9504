//! VI/TCP with TLS: the conformance suite between two hosts, and a second implementation over OpenSSL (`programs/vitcp`)
//! as client, as server, and as a liar.

use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::certificates::Certificates;
use e2e::datapath::DatapathProcess;
use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, program};
use e2e::scratch::Scratch;
use e2e::strangers::{has_not_grown, is_untouched, resident_kib, stranger_in, told};
use e2e::suite::{DAMAGED, LOSSY, Settings, UnknownHost, conforms, fragile};
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// MaxTransferSize of the VIs of `vi-peer`.
const MTU: &str = "65536";
/// Lies of TLS alone.
const LIES: [&str; 15] = [
    "tls-garbage",
    "tls-plain-request",
    "tls-silence",
    "tls-hello-cut",
    "tls-finished-cut",
    "tls-finished-kept",
    "tls-finished-wrong",
    "tls-slow",
    "tls-no-certificate",
    "tls-record-wrong",
    "tls-garbage-connected",
    "tls-cut",
    "tls-end",
    "tls-end-behind",
    "tls-garbage-behind",
];

struct Network {
    wire: Wire,
    files: Scratch,
    certificates: Certificates,
}

impl Network {
    fn new() -> Self {
        let wire = Wire::new(1500);
        wire.give_addresses();
        Self {
            wire,
            files: Scratch::new("vi-tcp-tls"),
            certificates: Certificates::new(),
        }
    }

    fn nic(&self, end: End) -> NicText {
        let tls = self.certificates.of(end.host()).table();
        NicText::vi_tcp(end).key("tls", tls)
    }

    /// One of ours at this end.
    fn ours(&self, end: End) -> Command {
        let mut command = self.wire.end(end).program(PEER);
        let nic = self.nic(end).key("ulp_timeout_ms", 3000);
        let config = nic.write(&self.files, end.interface());
        command.env("VIADUCT_CONFIG", config);
        command
    }

    fn server(&self) -> Running {
        let mut server = Running::start("server", self.ours(End::Left).args(["serve", "here"]));
        server.wait_for("listening", TIMEOUT);
        server
    }

    /// The other implementation at the right end, with TLS: the options follow the words.
    fn theirs(&self, words: &[&str]) -> Command {
        let (name, words) = words.split_first().expect("a program");
        let mut inside = stranger_in(&self.wire.right, name);
        inside.args(words);
        self.certificates.of(End::Right.host()).give(&mut inside);
        inside
    }
}

#[test]
fn a_stranger_with_openssl_is_served_however_its_bytes_are_cut() {
    let network = Network::new();
    let server = network.server();
    for split in ["0", "1", "1000"] {
        for segment in ["16", "60000"] {
            let mut client = network.theirs(&["peer.py", "client"]);
            client.args(["--host", End::Left.host(), "--called", "here"]);
            client.args(["--calling", "stranger", "--level", "rd", "--mtu", MTU]);
            client.args(["--split", split, "--segment", segment]);
            client.args(["echo:5:0", "echo:5:1", "echo:5:64", "echo:2:4000"]);
            let said = Running::start("stranger", &mut client).succeed(TIMEOUT);
            assert!(said.contains("echoed 2 messages of 4000 bytes"), "{said}");
        }
    }
    server.succeed(TIMEOUT);
}

#[test]
fn a_stranger_with_openssl_serves_ours() {
    let network = Network::new();
    let mut stranger = network.theirs(&["peer.py", "server"]);
    stranger.args(["--host", End::Right.host(), "--port", "8420"]);
    stranger.args(["--disc", "there", "--level", "rd", "--mtu", MTU]);
    stranger.args(["--posted", "1000", "--repost", "reflect:200"]);
    let mut stranger = Running::start("stranger", &mut stranger);
    stranger.wait_for("listening 8420", TIMEOUT);
    let mut client = network.ours(End::Left);
    client.args(["ping", End::Right.host(), "there", "--own", "ours"]);
    let mut client = Running::start("client", &mut client);
    client.wait_for("connected", TIMEOUT);
    // It reflects so many, and leaves.
    client.wait_for("lost server", TIMEOUT);
    let said = client.succeed(TIMEOUT);
    assert!(said.contains("count round_trips 200"), "{said}");
    stranger.succeed(TIMEOUT);
}

/// Handshakes cut at every flight, slow ones, false ones, records that are none: who is connected meanwhile notices
/// nothing. What is a lie without TLS is one with it.
#[test]
fn a_liar_with_openssl_harms_nobody_but_itself() {
    let network = Network::new();
    let mut server = network.ours(End::Left);
    let mut server = Running::start("server", server.args(["witness", "here"]));
    server.wait_for("listening", TIMEOUT);
    let mut honest = network.ours(End::Right);
    honest.args(["ping", End::Left.host(), "here", "--own", "honest"]);
    let mut honest = Running::start("honest", &mut honest);
    honest.wait_for("connected", TIMEOUT);
    let before = resident_kib(&server);
    for names in [LIES.as_slice(), &["all"]] {
        let mut liar = network.theirs(&["liar.py"]);
        liar.args(["--host", End::Left.host(), "--called", "here"]);
        liar.args(["--calling", "liar", "--mtu", MTU, "--patience", "20"]);
        liar.args(["--quiet", "2", "--region", "--probe", "run"])
            .args(names)
            .arg("--check");
        let said = Running::start("liar", &mut liar).succeed(6 * TIMEOUT);
        let lies = told(&said);
        println!("\nnote: {lies} lies over TLS");
        assert!(lies >= names.len(), "{said}");
    }
    has_not_grown(&server, before);
    is_untouched(honest);
    server.succeed(TIMEOUT);
}

/// A datapath process has the port for all that are attached to it.
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
        let mut server = network.wire.left.program(PEER);
        server.env("VIADUCT_CONFIG", left.config());
        let mut server = Running::start(name, server.args(["serve", name]));
        server.wait_for("listening", TIMEOUT);
        server
    });
    for name in ["one", "two"] {
        let mut client = network.wire.right.program(PEER);
        client.env("VIADUCT_CONFIG", right.config());
        client.args(["ping", End::Left.host(), name, "--own", "client"]);
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

/// The NICs that the suite wants: only the usual one is of VI/TCP.
fn nics(usual: NicText, segments: &Path) -> NicText {
    let shm = |name: &str| {
        let directory = segments.join(name.to_lowercase());
        fs::create_dir_all(&directory).expect("a directory");
        NicText::shm(&directory).key("name", format!("{name:?}"))
    };
    usual
        .key("ulp_timeout_ms", 240_000)
        .and(shm("SMALL").with_little().key("ulp_timeout_ms", 240_000))
        .and(fragile(segments))
        .and(shm("LOSSY").quick().key("fault", LOSSY))
        .and(shm("DAMAGED").quick().key("fault", DAMAGED))
}

#[test]
fn full() {
    let network = Network::new();
    let installation = Installation::new();
    let segments = Scratch::in_memory("vi-tcp-tls");
    let [here, there] = [(End::Left, "here.toml"), (End::Right, "there.toml")]
        .map(|(end, name)| nics(network.nic(end), segments.path()).write(&network.files, name));
    let mut words: Vec<String> = network.wire.right.words().into();
    let outside = program("env");
    words.push(outside.get_program().to_string_lossy().into_owned());
    words.extend(
        outside
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.push(format!("VIADUCT_CONFIG={}", there.display()));
    let settings = Settings {
        config: &here,
        files: network.files.path(),
        segments: segments.path(),
        far: &words.join(" "),
        recovers: false,
        unknown_host: UnknownHost::Silent,
    };
    let run = |path: &Path| network.wire.left.program(path);
    let tests = conforms(&installation, "full", &settings, run);
    println!("\nnote: full: {tests} tests between two hosts over VI/TCP with TLS");
}
