//! The C examples, built with their Makefile, as separate processes on one host.

mod common;

use std::path::Path;

use common::{Installation, Linkage, Running, await_file, rust_example, succeed, workspace};

/// Sum of the default message sizes of an echo client, in bytes.
const BYTES_OF_ALL_SIZES: u64 = 1 + 64 + 4096 + 65536;
/// Number of default message sizes; the first is 0.
const SIZES: u64 = 5;

/// Returns the totals that an echo client prints after `iterations` messages of each size.
fn totals(iterations: u64) -> String {
    format!(
        "{} messages, {} bytes",
        SIZES * iterations,
        BYTES_OF_ALL_SIZES * iterations
    )
}

/// Starts an example of the installation's directory.
fn start(installation: &Installation, program: &str, arguments: &[&str]) -> Running {
    start_at(installation, &installation.file(program), arguments)
}

fn start_at(installation: &Installation, program: &Path, arguments: &[&str]) -> Running {
    Running::start(installation.command(program).args(arguments))
}

/// Starts a C client with a timeout of 50 s, for loaded machines; the default is 10 s.
fn client(installation: &Installation, program: &str, arguments: &[&str]) -> Running {
    start(
        installation,
        program,
        &[&["-t", "50000"], arguments].concat(),
    )
}

/// Starts a server and waits until it listens.
fn serve(installation: &Installation, program: &str, arguments: &[&str]) -> Running {
    serve_at(installation, &installation.file(program), arguments)
}

fn serve_at(installation: &Installation, program: &Path, arguments: &[&str]) -> Running {
    let ready = installation.file("ready");
    let ready_name = ready.to_str().expect("a UTF-8 path");
    let server = start_at(
        installation,
        program,
        &[arguments, &["-r", ready_name]].concat(),
    );
    await_file(&ready);
    server
}

/// Returns an installation with the C examples.
fn examples(name: &str) -> Installation {
    let installation = Installation::new(name);
    installation.make_examples();
    installation
}

fn assert_no_errors(printed: &str, iterations: u64) {
    let expected = format!("{}, 0 errors", totals(iterations));
    assert!(printed.contains(&expected), "{printed}");
}

/// Runs concurrent C clients, each of which sends 50 messages of each size.
fn run_clients(installation: &Installation, count: usize) {
    let clients: Vec<Running> = (0..count)
        .map(|_| client(installation, "EchoClient", &["-i", "50", "localhost"]))
        .collect();
    for client in clients {
        assert_no_errors(&client.succeed(), 50);
    }
}

/// Waits for the end of a server of these clients.
fn finish(server: Running, clients: usize) {
    let printed = server.succeed();
    let totals = totals(50);
    assert_eq!(printed.matches(&totals).count(), clients, "{printed}");
}

fn eight_clients(installation: &Installation) {
    installation.make_examples();
    let server = serve(installation, "EchoServer", &["-c", "8"]);
    run_clients(installation, 8);
    finish(server, 8);
}

#[test]
fn eight_concurrent_clients() {
    eight_clients(&Installation::new("echo"));
}

#[test]
fn eight_concurrent_clients_over_tcp() {
    eight_clients(&Installation::over_tcp("echo-tcp"));
}

/// Runs clients of a server that uses handlers, and kills one more during transfers.
fn clients_of_a_handler_server(installation: &Installation, server: Running) {
    let endless = ["-i", "1000000000", "-s", "64", "localhost"];
    let endless = client(installation, "EchoClient", &endless);
    run_clients(installation, 4);
    endless.kill();
    finish(server, 4);
}

#[test]
fn clients_of_a_c_handler_server() {
    let installation = examples("notify-c");
    let server = serve(&installation, "EchoNotify", &["-c", "5"]);
    clients_of_a_handler_server(&installation, server);
}

#[test]
fn clients_of_a_rust_handler_server() {
    let installation = examples("notify-rust");
    let server = serve_at(&installation, &rust_example("echo_notify"), &["-c", "5"]);
    clients_of_a_handler_server(&installation, server);
}

#[test]
fn c_and_rust_clients_of_a_rust_server() {
    let installation = examples("echo-rust");
    let server = serve_at(&installation, &rust_example("echo_server"), &["-c", "3"]);
    let rust = start_rust_client(&installation);
    run_clients(&installation, 2);
    assert_rust_totals(rust);
    finish(server, 3);
}

#[test]
fn rust_client_of_a_c_server() {
    let installation = examples("echo-rust-c");
    let server = serve(&installation, "EchoServer", &["-c", "1"]);
    assert_rust_totals(start_rust_client(&installation));
    finish(server, 1);
}

fn start_rust_client(installation: &Installation) -> Running {
    let program = rust_example("echo_client");
    start_at(installation, &program, &["-i", "50", "localhost"])
}

fn assert_rust_totals(client: Running) {
    let printed = client.succeed();
    let is_complete = printed.contains("250 messages") && printed.contains(" 0 errors");
    assert!(is_complete, "{printed}");
}

#[test]
fn killed_client_does_not_disturb_server_and_other_clients() {
    let installation = examples("echo-bad");
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
    let other = client(
        &installation,
        "EchoClient",
        &["-i", "2000", "-s", "64,4096", "localhost"],
    );
    let printed = other.succeed();
    assert!(
        printed.contains("4000 messages, 8320000 bytes, 0 errors"),
        "{printed}"
    );
    endless.kill();
    server.succeed();
}

/// An unknown discriminator, host or NIC name is an error and does not hang.
#[test]
fn invalid_names_are_errors() {
    let installation = examples("echo-names");
    let server = serve(&installation, "EchoServer", &["-n", "second", "-c", "1"]);
    for arguments in [
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
            .args(arguments)
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        // Log lines of the library may precede.
        let printed = String::from_utf8(output.stderr).expect("text");
        assert!(
            printed.lines().any(|line| line.starts_with("EchoClient: ")),
            "{arguments:?}: {printed}"
        );
    }
    let printed = client(&installation, "EchoClient", &["-n", "second", "localhost"]).succeed();
    assert_no_errors(&printed, 10);
    server.succeed();
}

#[test]
fn rdma_write() {
    let installation = examples("rdma");
    let server = serve(&installation, "RdmaWrite", &["-S", "-t", "50000"]);
    let client = client(&installation, "RdmaWrite", &["localhost"]);
    assert_eq!(
        client.succeed(),
        "RdmaWrite client: the server verified all bytes\n"
    );
    assert_eq!(server.succeed(), "RdmaWrite server: all bytes correct\n");
}

/// Parts of one parallel program, in C and Rust, each connected to each other one.
#[test]
fn peers() {
    let installation = examples("peers");
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

/// A part whose peer is not started reports the timeout.
#[test]
fn peer_without_match_times_out() {
    let installation = examples("peers-alone");
    let program = installation.file("Peers");
    let mut command = installation.command(&program);
    let output = command.args(["-r", "1", "-n", "2", "-t", "200"]).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8(output.stderr).expect("text");
    assert!(
        printed.contains("Peers: no connection with part 0: VIP_TIMEOUT"),
        "{printed}"
    );
}

/// The program of docs/guides/c.md compiles and prints the documented output.
#[test]
fn guide_program_compiles_and_runs() {
    let installation = Installation::new("guide");
    let guide = workspace().join("docs/guides/c.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let (_, rest) = guide.split_once("```c\n").expect("a program");
    let (program, _) = rest.split_once("```\n").expect("its end");
    let source = installation.file("guide.c");
    std::fs::write(&source, program).expect("the source");
    let source = source.to_str().expect("a UTF-8 path");
    for linkage in [Linkage::Shared, Linkage::Static] {
        let built = installation.compile("guide", &[source], &["cc", "-std=c11"], linkage);
        let output = succeed(&mut installation.command(&built));
        assert_eq!(output.stdout, b"receive completed: yes\n");
    }
}
