//! Programs with their own NIC on an interface: the first connection request, and closed standard streams.

use e2e::first_request::request_once_each;
use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::vi_peer;
use e2e::wire::Wire;

const MTU_BYTES: u32 = 1500;

fn between_hosts(name: &str, opens: u32, nic: impl Fn(End) -> NicText) {
    let wire = Wire::new(MTU_BYTES);
    let files = Scratch::new(name);
    let peer = |end: End| vi_peer::within(wire.end(end), &nic(end).write(&files, end.interface()));
    let host = End::Left.host();
    request_once_each(peer(End::Left), [peer(End::Right)], host, opens);
}

#[test]
fn first_request_to_a_configured_host_reaches_its_server() {
    between_hosts("neighbours", 200, NicText::af_packet_one_id);
}

#[test]
fn first_request_to_a_discovered_host_reaches_its_server() {
    between_hosts("discovered", 10, |end| {
        NicText::discovering(end.interface(), end.host())
    });
}

#[test]
fn nic_on_an_interface_does_not_reuse_closed_standard_streams() {
    let wire = Wire::new(MTU_BYTES);
    let (installation, files) = (Installation::new(), Scratch::new("streams"));
    let streams = installation.test_program("vipl/capi/tests/c", "standard_streams");
    let mut command = wire.left.program(streams);
    let nic = NicText::af_packet_one_id(End::Left).long_timeouts();
    command.env("VIADUCT_CONFIG", nic.write(&files, "left.toml"));
    let output = Running::start("standard_streams", &mut command).succeed(TIMEOUT);
    assert!(output.ends_with(" passed, 0 failed\n"), "{output}");
}
