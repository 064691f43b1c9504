//! The example configurations in `configs/`.

use std::path::Path;
use std::process::Command;

use e2e::datapath::{DatapathProcess, fcvi_pmd, fcvi_pmd_path};
use e2e::echo::listen;
use e2e::installation::{Installation, workspace};
use e2e::nics::End;
#[cfg(feature = "dpdk")]
use e2e::process::unprivileged;
use e2e::process::{Running, TIMEOUT, program};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

fn example(name: &str) -> String {
    let path = workspace().join("configs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Starts a server with the configuration, stops it with SIGTERM, and checks that it prints no warnings.
fn serve(server: &mut Command) {
    let server = listen(server);
    server.signal("TERM");
    let output = server.succeed(TIMEOUT);
    assert!(!output.contains("vipl: "), "unexpected warning: {output}");
}

#[test]
fn shared_memory_examples_are_accepted() {
    let installation = Installation::new();
    let runtime = Scratch::in_memory("runtime");
    let scratch = Scratch::new("configs");
    for name in ["laptop-shm.toml", "pinned-shm.toml"] {
        let config = scratch.write(name, &example(name));
        let mut server = program(installation.program("EchoServer"));
        server.env("XDG_RUNTIME_DIR", runtime.path());
        serve(server.env("VIADUCT_CONFIG", config));
    }
    let config = scratch.file("pinned-shm.toml");
    let mut server = program(installation.program("EchoServer"));
    server.env("XDG_RUNTIME_DIR", runtime.path());
    serve(server.env("VIADUCT_CONFIG", config).args(["-d", "clan0"]));
}

#[test]
fn tcp_example_is_accepted() {
    let wire = Wire::new(1500);
    wire.assign_addresses();
    let installation = Installation::new();
    let scratch = Scratch::new("configs");
    let config = scratch.write("vi-tcp.toml", &example("vi-tcp.toml"));
    let mut server = wire.left.program(installation.program("EchoServer"));
    serve(server.env("VIADUCT_CONFIG", config));
}

#[test]
fn af_packet_example_is_accepted_with_an_existing_interface() {
    const NAME: &str = "two-hosts-af_packet.toml";
    let wire = Wire::new(1500);
    let installation = Installation::new();
    let scratch = Scratch::new("configs");
    let text = example(NAME);
    assert!(text.contains("\"eth0\""), "{text}");
    let config = scratch.write(NAME, &text.replace("\"eth0\"", "\"left\""));
    let mut server = wire.left.program(installation.program("EchoServer"));
    serve(server.env("VIADUCT_CONFIG", config));
}

/// Returns the AF_XDP example, adapted to the interface, address and files of one end of a wire.
fn af_xdp_example(end: End, scratch: &Scratch, names: &Path) -> String {
    let socket = scratch.file(&format!("{}.sock", end.interface()));
    let mut text = example("two-hosts-af-xdp.toml");
    for (word, replacement) in [
        ("\"eth0\"", format!("{:?}", end.interface())),
        ("\"192.0.2.1\"", format!("{:?}", end.host())),
        (
            "name = \"VINIC0\"\n",
            format!("name = \"VINIC0\"\nhosts_file = {names:?}\n"),
        ),
        // Two spinning processes would share a core here.
        (
            "[process]\n",
            format!("[process]\nidle = \"hybrid\"\nsocket = {socket:?}\n"),
        ),
    ] {
        assert_eq!(text.matches(word).count(), 1, "{word} in {text}");
        text = text.replace(word, &replacement);
    }
    text
}

/// Two hosts with a datapath process each; a server and a client attach. Requires root of the host: AF_XDP is not
/// available in a user namespace.
#[test]
fn af_xdp_example_carries_messages() {
    let wire = Wire::new(1500);
    let installation = Installation::new();
    let scratch = Scratch::new("configs");
    let names = scratch.write("hosts", &format!("{} server.example\n", End::Left.host()));
    let process = |end: End| {
        let text = af_xdp_example(end, &scratch, &names);
        let config = scratch.write(&format!("{}.toml", end.interface()), &text);
        DatapathProcess::start_from(&config, |program| wire.end(end).program(program))
    };
    let (left, right) = (process(End::Left), process(End::Right));
    let mut server = wire.left.program(installation.program("EchoServer"));
    server
        .env("VIADUCT_CONFIG", left.config())
        .args(["-c", "1"]);
    let server = listen(&mut server);
    let mut client = wire.right.program(installation.program("EchoClient"));
    client.env("VIADUCT_CONFIG", right.config()).args([
        "-t",
        "20000",
        "-i",
        "10",
        "server.example",
    ]);
    let output = Running::start("EchoClient", &mut client).succeed(TIMEOUT);
    assert!(
        output.contains("50 messages, 696970 bytes, 0 errors"),
        "{output}"
    );
    server.succeed(TIMEOUT);
    for (end, process) in [(End::Left, left), (End::Right, right)] {
        let show = format!("-details link show {}", end.interface());
        assert!(
            wire.end(end).ip(&show).contains("xdp"),
            "no XDP program on the interface"
        );
        process.stop_and_check();
        assert!(
            !wire.end(end).ip(&show).contains("xdp"),
            "the XDP program was not removed"
        );
    }
}

/// The examples with a process, and the end of the output of `fcvi-pmd check` for each.
const SERVED: [(&str, &str); 5] = [
    (
        "dpdk-nic.toml",
        "process: socket /run/viaduct/pmd.sock, users its own user, groups 100, idle spin, no metrics",
    ),
    (
        "hpc-node.toml",
        "process: socket /run/viaduct/pmd.sock, users 0, groups 100, idle spin, metrics at 127.0.0.1:9464",
    ),
    (
        "laptop-process.toml",
        "users its own user, idle hybrid after 50 us, no metrics",
    ),
    (
        "two-hosts-af-xdp.toml",
        "process: socket /run/viaduct/pmd.sock, users its own user, idle spin, no metrics",
    ),
    (
        "two-hosts-process.toml",
        "process: socket /run/viaduct/pmd.sock, users its own user, groups 100, idle hybrid after 100 us, no metrics",
    ),
];

#[test]
fn process_examples_are_accepted() {
    assert!(fcvi_pmd_path().exists(), "cargo build -p fcvi-pmd");
    for (name, last) in SERVED {
        let mut check = fcvi_pmd();
        check
            .arg("check")
            .arg(workspace().join("configs").join(name));
        let output = Running::start("check", &mut check).succeed(TIMEOUT);
        assert!(output.trim_end().ends_with(last), "{name}: {output}");
    }
}

/// All programs can check them; only those built with DPDK can open them.
#[test]
fn dpdk_memif_examples_are_two_ends_of_one_link() {
    let ends = [("server", "192.0.2.1"), ("client", "192.0.2.2")];
    for (role, host) in ends {
        let file = workspace().join(format!("configs/dpdk-memif-{role}.toml"));
        let mut check = fcvi_pmd();
        let output = Running::start("check", check.arg("check").arg(&file)).succeed(TIMEOUT);
        let expected =
            format!("VINIC0: dpdk on net_memif0, host {host}, neighbours are discovered");
        assert_eq!(output.trim_end(), expected);
        let text = example(&format!("dpdk-memif-{role}.toml"));
        let device = format!("device = \"net_memif0,role={role},socket=viaduct-memif\"");
        assert!(text.contains(&device), "{text}");
    }
}

/// Server and client of an ordinary user, each with its own DPDK.
#[cfg(feature = "dpdk")]
#[test]
fn memif_examples_carry_messages() {
    let installation = Installation::new();
    let scratch = Scratch::new("configs");
    // The abstract socket address is visible in the whole network namespace.
    let socket = format!("viaduct-test-{}", std::process::id());
    let config = |role: &str| {
        let name = format!("dpdk-memif-{role}.toml");
        scratch.write(&name, &example(&name).replace("viaduct-memif", &socket))
    };
    let mut server = unprivileged(installation.program("EchoServer"));
    let server = server.env("VIADUCT_CONFIG", config("server"));
    let server = listen(server.args(["-c", "1"]));
    let mut client = unprivileged(installation.program("EchoClient"));
    let client = client.env("VIADUCT_CONFIG", config("client"));
    let client = client.args(["-t", "20000", "-i", "10", "192.0.2.1"]);
    let output = Running::start("EchoClient", client).succeed(TIMEOUT);
    assert!(
        output.contains("50 messages, 696970 bytes, 0 errors"),
        "{output}"
    );
    server.succeed(TIMEOUT);
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn dpdk_nic_is_refused_by_programs_without_dpdk() {
    let scratch = Scratch::new("configs");
    let socket = scratch.file("pmd.sock");
    let text = example("dpdk-memif-server.toml") + &format!("[process]\nsocket = {socket:?}\n");
    let config = scratch.write("pmd.toml", &text);
    let mut run = fcvi_pmd();
    run.args(["run", "--config"]).arg(&config);
    let ended = Running::start("fcvi-pmd", &mut run).finish(TIMEOUT);
    let why = "this program was built without DPDK: build it with --features dpdk";
    assert!(
        !ended.status.success() && ended.text.contains(why),
        "{}",
        ended.text
    );
}

#[test]
fn every_example_has_a_test() {
    let mut names: Vec<String> = std::fs::read_dir(workspace().join("configs"))
        .expect("the examples")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "dpdk-memif-client.toml",
            "dpdk-memif-server.toml",
            "dpdk-nic.toml",
            "fcvi-pmd.service",
            "hpc-node.toml",
            "laptop-process.toml",
            "laptop-shm.toml",
            "pinned-shm.toml",
            "two-hosts-af-xdp.toml",
            "two-hosts-af_packet.toml",
            "two-hosts-process.toml",
            "vi-tcp.toml"
        ]
    );
}
