//! The C examples, built by their own Makefile, as separate processes on one host.

mod common;

use common::{Installation, Running, await_file};

/// Starts `program` with words; the examples lie in the installation's own directory.
fn start(installation: &Installation, program: &str, words: &[&str]) -> Running {
    Running::start(
        installation
            .command(&installation.file(program))
            .args(words),
    )
}

/// Starts a server and waits until it listens.
fn serve(installation: &Installation, program: &str, words: &[&str]) -> Running {
    let ready = installation.file("ready");
    let ready_name = ready.to_str().expect("a path that is text");
    let server = start(
        installation,
        program,
        &[words, &["-r", ready_name]].concat(),
    );
    await_file(&ready);
    server
}

#[test]
fn eight_clients_at_once() {
    let installation = Installation::new("echo");
    installation.make_examples();
    let server = serve(&installation, "EchoServer", &["-c", "8"]);
    let clients: Vec<Running> = (0..8)
        .map(|_| start(&installation, "EchoClient", &["-i", "50", "localhost"]))
        .collect();
    for client in clients {
        let printed = client.succeed();
        assert!(
            printed.contains("250 messages, 3485050 bytes, 0 errors"),
            "{printed}"
        );
    }
    let printed = server.succeed();
    assert_eq!(
        printed
            .matches("left after 250 messages, 3485050 bytes")
            .count(),
        8,
        "{printed}"
    );
}

/// A client that is killed in the middle of its work harms nobody.
#[test]
fn bad_clients_do_not_disturb_the_server() {
    let installation = Installation::new("echo-bad");
    installation.make_examples();
    let mut server = serve(&installation, "EchoServer", &["-c", "3"]);
    let first = start(
        &installation,
        "EchoClient",
        &["-i", "1", "-s", "64", "localhost"],
    );
    assert!(first.succeed().contains("1 messages, 64 bytes, 0 errors"));
    let endless = start(
        &installation,
        "EchoClient",
        &["-i", "1000000000", "-s", "64", "localhost"],
    );
    server.await_line("client 2 connected");
    let lively = start(
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
        assert!(output.stderr.starts_with(b"EchoClient: "), "{words:?}");
    }
    let printed = start(&installation, "EchoClient", &["-n", "second", "localhost"]).succeed();
    assert!(
        printed.contains("50 messages, 697010 bytes, 0 errors"),
        "{printed}"
    );
    server.succeed();
}

#[test]
fn rdma_write() {
    let installation = Installation::new("rdma");
    installation.make_examples();
    let server = serve(&installation, "RdmaWrite", &["-S"]);
    let client = start(&installation, "RdmaWrite", &["localhost"]);
    assert_eq!(
        client.succeed(),
        "RdmaWrite client: the server found every byte right\n"
    );
    assert_eq!(server.succeed(), "RdmaWrite server: every byte was right\n");
}
