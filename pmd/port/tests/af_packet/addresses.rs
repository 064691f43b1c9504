//! Ports whose station address changes, and ports that receive for the interface's own address.

use std::io;

use super::*;
use pmd_port::layer::fault::{FaultConfig, FaultInjector};

/// Returns the frames received before `last`, which was sent last: that others do not arrive is shown by the last one.
fn received_before(port: &mut dyn Port, last: &[u8]) -> Vec<Vec<u8>> {
    let mut before = Vec::new();
    wait_for("the last frame", || {
        let mut received = receive_some(port);
        let end = received.iter().position(|frame| frame == last);
        received.truncate(end.unwrap_or(received.len()));
        before.extend(received);
        end
    });
    before
}

/// Changes the address while frames to both addresses arrive.
fn check_address_change(port: &mut dyn Port, from: &mut AfPacketPort) {
    let src = from.capabilities().mac;
    let to = |dst, serial| frame(dst, src, &[FCOE, serial], 60);

    send(from, &to(LEFT, 1));
    send(from, &to(UNUSED, 2));
    assert_eq!(receive(port), to(LEFT, 1));
    port.change_address(UNUSED).expect("a free address");
    assert_eq!(port.capabilities().mac, UNUSED);
    for serial in 3..6 {
        send(from, &to(LEFT, serial));
        send(from, &to(UNUSED, serial));
    }
    let received = received_before(port, &to(UNUSED, 5));
    assert_eq!(received, [to(UNUSED, 3), to(UNUSED, 4)]);
    send(port, &frame(src, UNUSED, &[FCOE, 7], 60));
    assert_eq!(receive(from), frame(src, UNUSED, &[FCOE, 7], 60));

    // Frames to the own address are delivered for the current address.
    let own = frame(UNUSED, UNUSED, &[FCOE, 8], 60);
    send(port, &own);
    assert_eq!(receive(port), own);
    port.change_address(LEFT).expect("the previous address");
    port.change_address(LEFT).expect("the current address");
    send(from, &to(UNUSED, 9));
    send(from, &to(LEFT, 9));
    assert_eq!(receive(port), to(LEFT, 9));
}

#[test]
fn change_address_moves_reception() {
    as_root("addresses::change_address_moves_reception", || {
        let wire = wire(1500);
        let mut right = open(&wire.right, right_config());
        for promiscuous in [Promiscuous::Never, Promiscuous::Always] {
            let config = AfPacketConfig {
                promiscuous,
                ..left_config()
            };
            let mut left = open(&wire.left, config);
            wait_until_connected(&mut left, &mut right);
            check_address_change(&mut left, &mut right);
        }
        let left = open(&wire.left, left_config());
        let mut wrapped = FaultInjector::new(left, FaultConfig::default()).expect("no faults");
        check_address_change(&mut wrapped, &mut right);
    });
}

#[test]
fn invalid_address_is_rejected() {
    as_root("addresses::invalid_address_is_rejected", || {
        let wire = wire(1500);
        let mut left = open(&wire.left, left_config());
        let mut right = open(&wire.right, right_config());
        for invalid in [[0; 6], ALL_VN2VN] {
            let error = left.change_address(invalid).expect_err("no station");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(left.capabilities().mac, LEFT);
            let bytes = frame(LEFT, RIGHT, &[FCOE, 1], 60);
            send(&mut right, &bytes);
            assert_eq!(receive(&mut left), bytes);
        }
    });
}

#[test]
fn interface_address_frames_reach_all_opted_in_ports() {
    as_root(
        "addresses::interface_address_frames_reach_all_opted_in_ports",
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
            let mut without = open(&wire.left, AfPacketConfig::new("left", UNUSED));
            let own = first.capabilities().interface_mac.expect("an interface");
            assert_eq!(without.capabilities().interface_mac, Some(own));
            let bytes = frame(own, RIGHT, &[FIP, 1], 60);
            send(&mut right, &bytes);
            assert_eq!(receive(&mut first), bytes);
            assert_eq!(receive(&mut second), bytes);
            let last = frame(UNUSED, RIGHT, &[FIP, 2], 60);
            send(&mut right, &last);
            assert_eq!(received_before(&mut without, &last), [[0u8; 0]; 0]);

            // Another port of this host receives it too, the sender does not.
            let from_first = frame(own, LEFT, &[FIP, 3], 60);
            send(&mut first, &from_first);
            assert_eq!(receive(&mut second), from_first);
            let last = frame(LEFT, RIGHT, &[FIP, 4], 60);
            send(&mut right, &last);
            assert_eq!(received_before(&mut first, &last), [[0u8; 0]; 0]);
        },
    );
}
