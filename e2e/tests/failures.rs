//! Interfaces that are taken down or removed under open NICs.

use std::process::Command;

use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
const MTU_BYTES: u32 = 2500;

/// Two hosts and their configurations.
struct Hosts {
    wire: Wire,
    files: Scratch,
}

impl Hosts {
    fn new() -> Self {
        let files = Scratch::new("failures");
        for (name, end) in [("left", End::Left), ("right", End::Right)] {
            let text = NicText::af_packet(end)
                .steady()
                .key("probe_interval_ms", 500);
            text.write(&files, name);
        }
        Self {
            wire: Wire::new(MTU_BYTES),
            files,
        }
    }

    fn peer(&self, end: End) -> Command {
        let mut command = match end {
            End::Left => self.wire.left.program(PEER),
            End::Right => self.wire.right.program(PEER),
        };
        command.env("VIADUCT_CONFIG", self.files.file(end.interface()));
        command
    }

    fn server(&self) -> Running {
        let mut server = Running::start("server", self.peer(End::Left).args(["serve", "here"]));
        server.wait_for("listening", TIMEOUT);
        server
    }

    fn client(&self) -> Running {
        let mut command = self.peer(End::Right);
        command.args(["outlive", End::Left.host(), "here"]);
        command.args(["--own", "client", "--failures", "1"]);
        let mut client = Running::start("client", &mut command);
        client.wait_for("alive 0", TIMEOUT);
        client
    }
}

/// The client's interface goes down; the other host learns it from silence, and the connection
/// that is made when it is up again works.
#[test]
fn an_interface_that_is_taken_down_fails_its_nic_until_it_is_opened_again() {
    let hosts = Hosts::new();
    let mut server = hosts.server();
    let mut client = hosts.client();
    hosts.wire.right.ip("link set right down");
    client.wait_for("failed Nic", TIMEOUT);
    client.wait_for("closed 0", TIMEOUT);
    server.wait_for("lost client", TIMEOUT);
    hosts.wire.right.ip("link set right up");
    hosts.wire.wait_for_carrier();
    client.tell("again");
    client.wait_for("alive 1", TIMEOUT);
    client.succeed(TIMEOUT);
    server.wait_for("left client", TIMEOUT);
    let text = server.succeed(TIMEOUT);
    assert!(
        !text.contains("failed Nic"),
        "the server's NIC is well: {text}"
    );
}

/// Both interfaces are removed: both NICs fail, and others of the same names serve the next
/// openings.
#[test]
fn an_interface_that_is_removed_fails_its_nic_and_another_one_takes_its_place() {
    let hosts = Hosts::new();
    let mut server = hosts.server();
    let mut client = hosts.client();
    hosts.wire.remove();
    for program in [&mut client, &mut server] {
        program.wait_for("failed Nic", TIMEOUT);
    }
    client.wait_for("closed 0", TIMEOUT);
    server.wait_for("lost client", TIMEOUT);
    let ended = server.finish(TIMEOUT);
    assert!(!ended.status.success(), "it cannot listen any more");
    assert!(ended.text.contains("cannot listen"), "{}", ended.text);
    hosts.wire.join(MTU_BYTES);
    let server = hosts.server();
    client.tell("again");
    client.wait_for("alive 1", TIMEOUT);
    client.succeed(TIMEOUT);
    server.succeed(TIMEOUT);
}
