//! The C examples, built by their own Makefile, as separate processes on one host.

mod common;

use std::path::Path;

use common::{Installation, Linkage, Running, await_file, rust_example, succeed, workspace};

/// Bytes of one message of each size that an echo client sends unless it is told others.
const BYTES_OF_ALL_SIZES: u64 = 1 + 64 + 4096 + 65536;
/// How many sizes these are; the first is 0.
const SIZES: u64 = 5;

/// What an echo client has transferred after so many messages of each size.
fn totals(iterations: u64) -> String {
    format!(
        "{} messages, {} bytes",
        SIZES * iterations,
        BYTES_OF_ALL_SIZES * iterations
    )
}

/// Starts `program` with words; the examples lie in the installation's own directory.
fn start(installation: &Installation, program: &str, words: &[&str]) -> Running {
    start_at(installation, &installation.file(program), words)
}

fn start_at(installation: &Installation, program: &Path, words: &[&str]) -> Running {
    Running::start(installation.command(program).args(words))
}

/// Starts a C client that waits for anything longer than a loaded machine takes: its default is 10 s.
fn client(installation: &Installation, program: &str, words: &[&str]) -> Running {
    start(installation, program, &[&["-t", "50000"], words].concat())
}

/// Starts a server and waits until it listens.
fn serve(installation: &Installation, program: &str, words: &[&str]) -> Running {
    serve_at(installation, &installation.file(program), words)
}

fn serve_at(installation: &Installation, program: &Path, words: &[&str]) -> Running {
    let ready = installation.file("ready");
    let ready_name = ready.to_str().expect("a path that is text");
    let server = start_at(
        installation,
        program,
        &[words, &["-r", ready_name]].concat(),
    );
    await_file(&ready);
    server
}

fn eight_clients(installation: &Installation) {
    installation.make_examples();
    let server = serve(installation, "EchoServer", &["-c", "8"]);
    let clients: Vec<Running> = (0..8)
        .map(|_| client(installation, "EchoClient", &["-i", "50", "localhost"]))
        .collect();
    for client in clients {
        let printed = client.succeed();
        assert!(
            printed.contains(&format!("{}, 0 errors", totals(50))),
            "{printed}"
        );
    }
    let printed = server.succeed();
    let told = format!("left after {}", totals(50));
    assert_eq!(printed.matches(&told).count(), 8, "{printed}");
}

#[test]
fn eight_clients_at_once() {
    eight_clients(&Installation::new("echo"));
}

/// The same programs, and another configuration.
#[test]
fn eight_clients_at_once_over_tcp() {
    eight_clients(&Installation::over_tcp("echo-tcp"));
}

/// The same by handlers, in both languages; one of the clients is killed in the middle of its work.
fn clients_at_a_notify_server(installation: &Installation, server: Running) {
    let endless = client(
        installation,
        "EchoClient",
        &["-i", "1000000000", "-s", "64", "localhost"],
    );
    let clients: Vec<Running> = (0..4)
        .map(|_| client(installation, "EchoClient", &["-i", "50", "localhost"]))
        .collect();
    for client in clients {
        let printed = client.succeed();
        assert!(
            printed.contains(&format!("{}, 0 errors", totals(50))),
            "{printed}"
        );
    }
    endless.kill();
    let printed = server.succeed();
    assert_eq!(printed.matches(&totals(50)).count(), 4, "{printed}");
}

#[test]
fn clients_at_a_c_server_of_handlers() {
    let installation = Installation::new("notify-c");
    installation.make_examples();
    let server = serve(&installation, "EchoNotify", &["-c", "5"]);
    clients_at_a_notify_server(&installation, server);
}

#[test]
fn clients_at_a_rust_server_of_handlers() {
    let installation = Installation::new("notify-rust");
    installation.make_examples();
    let server = serve_at(&installation, &rust_example("echo_notify"), &["-c", "5"]);
    clients_at_a_notify_server(&installation, server);
}

/// Programs of both languages are on one network: a C client at a Rust server.
#[test]
fn c_clients_at_a_rust_server() {
    let installation = Installation::new("echo-c-rust");
    installation.make_examples();
    let server = serve_at(&installation, &rust_example("echo_server"), &["-c", "2"]);
    let clients: Vec<Running> = (0..2)
        .map(|_| client(&installation, "EchoClient", &["-i", "50", "localhost"]))
        .collect();
    for client in clients {
        let printed = client.succeed();
        assert!(
            printed.contains(&format!("{}, 0 errors", totals(50))),
            "{printed}"
        );
    }
    let printed = server.succeed();
    assert_eq!(printed.matches(&totals(50)).count(), 2, "{printed}");
}

/// And a Rust client at a C server.
#[test]
fn rust_clients_at_a_c_server() {
    let installation = Installation::new("echo-rust-c");
    installation.make_examples();
    let server = serve(&installation, "EchoServer", &["-c", "2"]);
    let program = rust_example("echo_client");
    let clients: Vec<Running> = (0..2)
        .map(|_| start_at(&installation, &program, &["-i", "50", "localhost"]))
        .collect();
    for client in clients {
        let printed = client.succeed();
        assert!(
            printed.contains("250 messages") && printed.contains(" 0 errors"),
            "{printed}"
        );
    }
    let printed = server.succeed();
    let told = format!("left after {}", totals(50));
    assert_eq!(printed.matches(&told).count(), 2, "{printed}");
}

/// A client that is killed in the middle of its work harms nobody.
#[test]
fn bad_clients_do_not_disturb_the_server() {
    let installation = Installation::new("echo-bad");
    installation.make_examples();
    let mut server = serve(&installation, "EchoServer", &["-c", "3"]);
    let first = client(
        &installation,
        "EchoClient",
        &["-i", "1", "-s", "64", "localhost"],
    );
    assert!(first.succeed().contains("1 messages, 64 bytes, 0 errors"));
    let endless = client(
        &installation,
        "EchoClient",
        &["-i", "1000000000", "-s", "64", "localhost"],
    );
    server.await_line("client 2 connected");
    let lively = client(
        &installation,
        "EchoClient",
        &["-i", "2000", "-s", "64,4096", "localhost"],
    );
    let printed = lively.succeed();
    assert!(
        printed.contains("4000 messages, 8320000 bytes, 0 errors"),
        "{printed}"
    );
    endless.kill();
    server.succeed();
}

/// Another discriminator is another server; a name nobody knows is an error, not a hang.
#[test]
fn names_are_checked() {
    let installation = Installation::new("echo-names");
    installation.make_examples();
    let server = serve(&installation, "EchoServer", &["-n", "second", "-c", "1"]);
    for words in [
        &["-t", "300", "localhost"][..],
        &["-n", "second", "no.such.host.invalid"],
        &["-d", "NOSUCHNIC", "-n", "second", "localhost"],
        &[
            "-n",
            "a discriminator of more than forty-four bytes is too long",
            "localhost",
        ],
    ] {
        let program = installation.file("EchoClient");
        let output = installation
            .command(&program)
            .args(words)
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        // The library's own words may come first.
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(
            said.lines().any(|line| line.starts_with("EchoClient: ")),
            "{words:?}: {said}"
        );
    }
    let printed = client(&installation, "EchoClient", &["-n", "second", "localhost"]).succeed();
    assert!(
        printed.contains(&format!("{}, 0 errors", totals(10))),
        "{printed}"
    );
    server.succeed();
}

#[test]
fn rdma_write() {
    let installation = Installation::new("rdma");
    installation.make_examples();
    let server = serve(&installation, "RdmaWrite", &["-S", "-t", "50000"]);
    let client = client(&installation, "RdmaWrite", &["localhost"]);
    assert_eq!(
        client.succeed(),
        "RdmaWrite client: the server found every byte right\n"
    );
    assert_eq!(server.succeed(), "RdmaWrite server: every byte was right\n");
}

/// Parts of one parallel program, in both languages, each connected with each other one.
#[test]
fn peers() {
    let installation = Installation::new("peers");
    installation.make_examples();
    let parts = ["0", "1", "2", "3", "4"];
    let rust = rust_example("peers");
    let running = parts.map(|rank| match rank {
        "1" | "3" => start_at(&installation, &rust, &[rank, "5"]),
        _ => client(&installation, "Peers", &["-r", rank, "-n", "5"]),
    });
    for (rank, part) in parts.into_iter().zip(running) {
        let printed = part.succeed();
        let expected = format!("part {rank} of 5: the sum is 10\n");
        assert!(printed.ends_with(&expected), "{printed}");
    }
}

/// A part whose peers do not come says so when its time is over.
#[test]
fn a_part_alone() {
    let installation = Installation::new("peers-alone");
    installation.make_examples();
    let program = installation.file("Peers");
    let mut alone = installation.command(&program);
    let output = alone.args(["-r", "1", "-n", "2", "-t", "200"]).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(
        said.contains("Peers: no connection with part 0: VIP_TIMEOUT"),
        "{said}"
    );
}

/// The program in the guide compiles and does what it says.
#[test]
fn the_guides_program() {
    let installation = Installation::new("guide");
    let guide = workspace().join("docs/guides/c.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let (_, rest) = guide.split_once("```c\n").expect("a program");
    let (program, _) = rest.split_once("```\n").expect("its end");
    let source = installation.file("guide.c");
    std::fs::write(&source, program).expect("the source");
    let source = source.to_str().expect("a path that is text");
    for linkage in [Linkage::Shared, Linkage::Static] {
        let built = installation.compile("guide", &[source], &["cc", "-std=c11"], linkage);
        let output = succeed(&mut installation.command(&built));
        assert_eq!(output.stdout, b"the receive came back: yes\n");
    }
}
