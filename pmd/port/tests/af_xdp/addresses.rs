//! Ports whose station address changes, and ports that receive for the interface's own address.

use std::io;

use super::*;

#[test]
fn change_address_moves_reception() {
    let wire = wire(1500);
    let mut right = open(&wire.right, right_config());
    for promiscuous in [Promiscuous::Never, Promiscuous::Always] {
        let mut left = open(
            &wire.left,
            AfXdpConfig {
                promiscuous,
                ..left_config()
            },
        );
        let to = |dst, serial| frame(dst, RIGHT, &[FCOE, serial], 60);
        // A frame that arrived before is still delivered.
        let source = left.arm();
        send(&mut right, &to(LEFT, 1));
        assert_eq!(source.sleep(TIMEOUT).expect("poll"), Slept::Woken);
        left.change_address(UNUSED).expect("a free address");
        assert_eq!(left.capabilities().mac, UNUSED);
        assert_eq!(receive(&mut left), to(LEFT, 1));
        for serial in 2..5 {
            send(&mut right, &to(LEFT, serial));
            send(&mut right, &to(UNUSED, serial));
            assert_eq!(receive(&mut left), to(UNUSED, serial));
        }
        let own = frame(UNUSED, UNUSED, &[FCOE, 8], 60);
        send(&mut left, &own);
        assert_eq!(receive(&mut left), own);
        left.change_address(LEFT).expect("the previous address");
        left.change_address(LEFT).expect("the current address");
        send(&mut right, &to(UNUSED, 9));
        send(&mut right, &to(LEFT, 9));
        assert_eq!(receive(&mut left), to(LEFT, 9));
    }
}

#[test]
fn invalid_address_is_rejected() {
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
}

#[test]
fn interface_address_frames_are_received_if_configured() {
    let wire = wire(1500);
    let mut right = open(&wire.right, right_config());
    for interface_address in [false, true] {
        let mut left = open(
            &wire.left,
            AfXdpConfig {
                interface_address,
                ..left_config()
            },
        );
        let own = left.capabilities().interface_mac.expect("an interface");
        let bytes = frame(own, RIGHT, &[FIP, 1], 60);
        send(&mut right, &bytes);
        let last = frame(LEFT, RIGHT, &[FIP, 2], 60);
        send(&mut right, &last);
        if interface_address {
            let first = wait_for("a frame", || receive_one(&mut left));
            assert_eq!(first, bytes);
        }
        assert_eq!(wait_for("a frame", || receive_one(&mut left)), last);
    }
}

fn receive_one(port: &mut dyn Port) -> Option<Vec<u8>> {
    let mut batch = MbufBatch::new();
    port.rx_burst(&mut batch, 1);
    let mbuf = batch.pop()?;
    let bytes = mbuf.bytes().to_vec();
    port.free(mbuf);
    Some(bytes)
}

#[test]
fn addresses_are_joined_while_the_port_is_open() {
    let wire = wire(1500);
    let joined = || {
        wire.left
            .ip("maddress show dev left")
            .contains("01:10:18:01:00:04")
    };
    let port = open(
        &wire.left,
        AfXdpConfig {
            multicast: vec![ALL_VN2VN],
            ..left_config()
        },
    );
    assert!(joined());
    drop(port);
    wait_until_detached(&wire.left);
}
