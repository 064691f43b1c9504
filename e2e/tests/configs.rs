//! The example configurations do what they say.

use std::process::Command;

use e2e::installation::{Installation, built, workspace};
use e2e::process::{PATIENCE, Running, program};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

fn example(name: &str) -> String {
    let path = workspace().join("configs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A server starts with the configuration and ends when it is told to.
fn serve(server: &mut Command) {
    let mut server = Running::start("EchoServer", server);
    server.wait_for("EchoServer: listening", PATIENCE);
    server.signal("TERM");
    let said = server.succeed(PATIENCE);
    assert!(!said.contains("vipl: "), "nothing to warn of: {said}");
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
fn the_wire_example_is_accepted_with_ones_own_interface() {
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

/// The examples with a process, and the last line of what is said of each.
const SERVED: [(&str, &str); 3] = [
    (
        "hpc-node.toml",
        "process: socket /run/viaduct/pmd.sock, users 0, groups 100, idle spin, metrics at 127.0.0.1:9464",
    ),
    (
        "laptop-process.toml",
        "users its own user, idle hybrid after 50 us, no metrics",
    ),
    (
        "two-hosts-process.toml",
        "process: socket /run/viaduct/pmd.sock, users its own user, groups 100, idle hybrid after 100 us, no metrics",
    ),
];

#[test]
fn process_examples_are_accepted_for_serving() {
    let fcvi_pmd = built().join("fcvi-pmd");
    assert!(fcvi_pmd.exists(), "cargo build -p fcvi-pmd");
    for (name, last) in SERVED {
        let mut check = program(&fcvi_pmd);
        check
            .arg("check")
            .arg(workspace().join("configs").join(name));
        let said = Running::start("check", &mut check).succeed(PATIENCE);
        assert!(said.trim_end().ends_with(last), "{name}: {said}");
    }
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
            "fcvi-pmd.service",
            "hpc-node.toml",
            "laptop-process.toml",
            "laptop-shm.toml",
            "pinned-shm.toml",
            "two-hosts-af_packet.toml",
            "two-hosts-process.toml"
        ]
    );
}
