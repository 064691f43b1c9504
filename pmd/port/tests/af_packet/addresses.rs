//! Ports that take another station address, and those that hear the interface's own.

use std::io;

use super::*;
use pmd_port::layer::fault::{FaultConfig, FaultInjector};

/// What comes before a frame that is sent last. That something does not come, the last one shows.
fn received_before(port: &mut dyn Port, last: &[u8]) -> Vec<Vec<u8>> {
    let mut before = Vec::new();
    wait_for("the last frame", || {
        let mut came = receive_some(port);
        let end = came.iter().position(|frame| frame == last);
        came.truncate(end.unwrap_or(came.len()));
        before.extend(came);
        end
    });
    before
}

/// Moves from one address to another while frames to both come.
fn moves(port: &mut dyn Port, from: &mut AfPacketPort) {
    let src = from.capabilities().mac;
    let to = |dst, serial| frame(dst, src, &[FCOE, serial], 60);

    send(from, &to(LEFT, 1));
    send(from, &to(NOBODY, 2));
    assert_eq!(receive(port), to(LEFT, 1));
    port.change_address(NOBODY).expect("a free address");
    assert_eq!(port.capabilities().mac, NOBODY);
    for serial in 3..6 {
        send(from, &to(LEFT, serial));
        send(from, &to(NOBODY, serial));
    }
    let came = received_before(port, &to(NOBODY, 5));
    assert_eq!(came, [to(NOBODY, 3), to(NOBODY, 4)]);
    send(port, &frame(src, NOBODY, &[FCOE, 7], 60));
    assert_eq!(receive(from), frame(src, NOBODY, &[FCOE, 7], 60));

    // Frames to ourselves go to the address that we have.
    let own = frame(NOBODY, NOBODY, &[FCOE, 8], 60);
    send(port, &own);
    assert_eq!(receive(port), own);
    port.change_address(LEFT).expect("our former address");
    port.change_address(LEFT).expect("the address that it has");
    send(from, &to(NOBODY, 9));
    send(from, &to(LEFT, 9));
    assert_eq!(receive(port), to(LEFT, 9));
}

#[test]
fn a_station_moves_to_another_address() {
    as_root("addresses::a_station_moves_to_another_address", || {
        let wire = wire(1500);
        let mut right = open(&wire.right, right_config());
        for promiscuous in [Promiscuous::Never, Promiscuous::Always] {
            let config = AfPacketConfig {
                promiscuous,
                ..left_config()
            };
            let mut left = open(&wire.left, config);
            settle(&mut left, &mut right);
            moves(&mut left, &mut right);
        }
        let left = open(&wire.left, left_config());
        let mut behind = FaultInjector::new(left, FaultConfig::default()).expect("no faults");
        moves(&mut behind, &mut right);
    });
}

#[test]
fn an_impossible_address_changes_nothing() {
    as_root("addresses::an_impossible_address_changes_nothing", || {
        let wire = wire(1500);
        let mut left = open(&wire.left, left_config());
        let mut right = open(&wire.right, right_config());
        for impossible in [[0; 6], ALL_VN2VN] {
            let error = left.change_address(impossible).expect_err("no station");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(left.capabilities().mac, LEFT);
            let bytes = frame(LEFT, RIGHT, &[FCOE, 1], 60);
            send(&mut right, &bytes);
            assert_eq!(receive(&mut left), bytes);
        }
    });
}

#[test]
fn the_interfaces_own_address_is_heard_when_asked_for_by_all() {
    as_root(
        "addresses::the_interfaces_own_address_is_heard_when_asked_for_by_all",
        || {
            let wire = wire(1500);
            let mut right = open(&wire.right, right_config());
            let config = |mac| AfPacketConfig {
                interface_address: true,
                promiscuous: Promiscuous::Never,
                ..AfPacketConfig::new("left", mac)
            };
            let mut first = open(&wire.left, config(LEFT));
            let mut second = open(&wire.left, config(THIRD));
            let mut deaf = open(&wire.left, AfPacketConfig::new("left", NOBODY));
            let own = first.capabilities().interface_mac.expect("an interface");
            assert_eq!(deaf.capabilities().interface_mac, Some(own));
            let bytes = frame(own, RIGHT, &[FIP, 1], 60);
            send(&mut right, &bytes);
            assert_eq!(receive(&mut first), bytes);
            assert_eq!(receive(&mut second), bytes);
            let last = frame(NOBODY, RIGHT, &[FIP, 2], 60);
            send(&mut right, &last);
            assert_eq!(received_before(&mut deaf, &last), [[0u8; 0]; 0]);

            // Another program of this host hears it too, the sender does not hear itself.
            let from_first = frame(own, LEFT, &[FIP, 3], 60);
            send(&mut first, &from_first);
            assert_eq!(receive(&mut second), from_first);
            let last = frame(LEFT, RIGHT, &[FIP, 4], 60);
            send(&mut right, &last);
            assert_eq!(received_before(&mut first, &last), [[0u8; 0]; 0]);
        },
    );
}
