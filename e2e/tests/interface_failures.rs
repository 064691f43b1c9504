//! Interfaces that are set down or removed under open NICs.

use std::process::Command;

use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::vi_peer;
use e2e::wire::Wire;

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
                .long_timeouts()
                .key("probe_interval_ms", 500);
            text.write(&files, name);
        }
        Self {
            wire: Wire::new(MTU_BYTES),
            files,
        }
    }

    fn peer(&self, end: End) -> Command {
        vi_peer::within(self.wire.end(end), &self.files.file(end.interface()))
    }

    fn server(&self) -> Running {
        vi_peer::serve(self.peer(End::Left), "echo")
    }

    fn client(&self) -> Running {
        let mut command = self.peer(End::Right);
        command.args(["survive-failures", End::Left.host(), "echo"]);
        command.args(["--client-name", "client", "--failures", "1"]);
        let mut client = Running::start("client", &mut command);
        client.wait_for("alive 0", TIMEOUT);
        client
    }
}

/// The client's interface is set down: its NIC fails, and the server detects the loss by probes. After the interface is
/// up again, a new connection works.
#[test]
fn nic_fails_when_its_interface_is_set_down_and_works_after_reopening() {
    let hosts = Hosts::new();
    let mut server = hosts.server();
    let mut client = hosts.client();
    hosts.wire.right.ip("link set right down");
    client.wait_for("failed Nic", TIMEOUT);
    client.wait_for("closed 0", TIMEOUT);
    server.wait_for("lost client", TIMEOUT);
    hosts.wire.right.ip("link set right up");
    hosts.wire.wait_for_carrier();
    client.send_line("again");
    client.wait_for("alive 1", TIMEOUT);
    client.succeed(TIMEOUT);
    server.wait_for("disconnected client", TIMEOUT);
    let text = server.succeed(TIMEOUT);
    assert!(
        !text.contains("failed Nic"),
        "the server's NIC failed: {text}"
    );
}

/// Both interfaces are removed: both NICs fail. They work after reopening on new interfaces of the same names.
#[test]
fn nic_fails_when_its_interface_is_removed_and_works_on_a_new_one() {
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
    assert!(!ended.status.success(), "the server still listens");
    assert!(ended.text.contains("listener: "), "{}", ended.text);
    hosts.wire.join(MTU_BYTES);
    let server = hosts.server();
    client.send_line("again");
    client.wait_for("alive 1", TIMEOUT);
    client.succeed(TIMEOUT);
    server.succeed(TIMEOUT);
}
