//! Interfaces that are set down or removed under open NICs.

use std::path::Path;
use std::process::Command;

use e2e::datapath::DatapathProcess;
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

/// The NIC of a host.
fn nic_of(end: End) -> NicText {
    NicText::af_packet(end)
        .long_timeouts()
        .key("network.probe_interval_ms", 500)
}

impl Hosts {
    fn new() -> Self {
        let files = Scratch::new("failures");
        for (name, end) in [("left", End::Left), ("right", End::Right)] {
            nic_of(end).write(&files, name);
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
        Self::client_of(self.peer(End::Right))
    }

    /// Starts a client whose NIC is to fail.
    fn client_of(mut command: Command) -> Running {
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

/// The NIC of a datapath process fails, and a program does nothing about it: it is stopped. Another program opens the NIC
/// nevertheless. The first one finds its NIC failed when it continues, and opens it again.
#[test]
fn failed_nic_of_a_datapath_process_works_again_although_a_program_keeps_it_open() {
    let hosts = Hosts::new();
    let right = &hosts.wire.right;
    let run = |program: &Path| right.program(program);
    let mut process =
        DatapathProcess::start(&hosts.files, "idle = \"hybrid\"", &nic_of(End::Right), run);
    let attached = vi_peer::within(right, process.config());
    let mut server = hosts.server();
    let mut holder = Hosts::client_of(attached);
    holder.signal("STOP");
    hosts.wire.remove();
    server.wait_for("failed Nic", TIMEOUT);
    drop(server.finish(TIMEOUT));
    let has_failed = |line: &str| line.contains("the network interface was removed");
    process.output().wait_until("failure", TIMEOUT, has_failed);
    hosts.wire.join(MTU_BYTES);
    let server = hosts.server();
    let next = vi_peer::within(right, process.config());
    let mut next = vi_peer::ping(next, End::Left.host(), "echo", "next");
    vi_peer::await_progress(&mut next, 2);
    holder.signal("CONT");
    holder.wait_for("failed Nic", TIMEOUT);
    holder.wait_for("closed 0", TIMEOUT);
    holder.send_line("again");
    holder.wait_for("alive 1", TIMEOUT);
    holder.succeed(TIMEOUT);
    vi_peer::stop_client(next);
    server.succeed(TIMEOUT);
    process.stop_and_check();
}
