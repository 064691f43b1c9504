//! Frames that are redirected to the port, and frames that are passed to the kernel.

use std::net::UdpSocket;

use super::*;
use pmd_port::af_packet::{AfPacketConfig, AfPacketPort, SEGMENT_BROADCAST};

/// Opens a port of the kernel's network stack on the interface: it receives what the program passes.
fn open_stack_port(namespace: &Namespace, interface: &str) -> AfPacketPort {
    let config = AfPacketConfig {
        ethertypes: vec![FCOE, FIP, 0x88b5],
        ..AfPacketConfig::new(interface, RIGHT)
    };
    namespace.run(|| AfPacketPort::open(config).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn only_configured_frames_are_redirected() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(
        &wire.right,
        AfXdpConfig {
            multicast: vec![ALL_VN2VN],
            promiscuous: Promiscuous::Always,
            ..right_config()
        },
    );
    let mut stack = open_stack_port(&wire.right, "right");
    let foreign = [
        frame(RIGHT, LEFT, &[0x0800], 60),
        frame(UNUSED, LEFT, &[FCOE], 60),
        frame([0xff; 6], LEFT, &[FCOE], 60),
        frame([0x01, 0x10, 0x18, 0x01, 0x00, 0x01], LEFT, &[FIP], 60),
        frame(RIGHT, LEFT, &[VLAN, 0, 0x0800], 64),
    ];
    let to_kernel = frame(RIGHT, LEFT, &[0x88b5, 9], 60);
    let ours = [
        frame(RIGHT, LEFT, &[FCOE, 1], 60),
        frame(RIGHT, LEFT, &[FIP, 2], 60),
        frame(SEGMENT_BROADCAST, LEFT, &[FCOE, 3], 60),
        frame(ALL_VN2VN, LEFT, &[FIP, 4], 60),
    ];
    for expected in &ours {
        for bytes in &foreign {
            send(&mut left, bytes);
        }
        send(&mut left, &to_kernel);
        send(&mut left, expected);
        assert_eq!(&receive(&mut right), expected);
        assert_eq!(receive(&mut stack), to_kernel);
    }
    right.upkeep();
    let stats = right.stats();
    assert_eq!(stats.rx_frames, ours.len() as u64);
    let drops = stats.counters.iter().filter(|c| c.name.starts_with("drop"));
    assert_eq!(drops.map(|c| c.value).sum::<u64>(), 0, "{stats:?}");
    assert_eq!(stack.stats().rx_frames, ours.len() as u64);
}

/// ARP and UDP of the kernel work on the interface that carries the port's frames.
#[test]
fn kernel_networking_works_beside_the_port() {
    let wire = wire(1500);
    wire.left.ip("address add 192.0.2.1/24 dev left");
    wire.right.ip("address add 192.0.2.2/24 dev right");
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    let bind = |namespace: &Namespace, address: &str| {
        let socket = namespace.run(|| UdpSocket::bind(address).expect("an address of ours"));
        socket.set_read_timeout(Some(TIMEOUT)).expect("a time");
        socket
    };
    let one = bind(&wire.left, "192.0.2.1:4000");
    let other = bind(&wire.right, "192.0.2.2:4000");
    for serial in 0..100u16 {
        let bytes = frame(RIGHT, LEFT, &[FCOE, serial], 60);
        send(&mut left, &bytes);
        one.send_to(&serial.to_be_bytes(), "192.0.2.2:4000")
            .expect("a route");
        let mut word = [0; 4];
        let (length, from) = other.recv_from(&mut word).expect("a datagram");
        assert_eq!(word[..length], serial.to_be_bytes());
        other.send_to(&word[..length], from).expect("a route back");
        assert_eq!(one.recv(&mut word).expect("a datagram"), 2);
        assert_eq!(receive(&mut right), bytes);
    }
}

#[test]
fn vlan_frames_are_passed_to_the_kernel() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    let mut stack = open_stack_port(&wire.right, "right");
    send(&mut left, &frame(RIGHT, LEFT, &[VLAN, 100, FCOE, 1], 64));
    send(
        &mut left,
        &frame(RIGHT, LEFT, &[VLAN, 0x6000, FCOE, 2], 1514),
    );
    assert_eq!(receive(&mut right), frame(RIGHT, LEFT, &[FCOE, 2], 1510));
    assert_eq!(counter(&right, "rx_priority_tagged"), 1);
    assert_eq!(counter(&right, "drop_rx_vlan"), 0);
    wait_for("the kernel to see the frame of the VLAN", || {
        assert!(receive_some(&mut stack).is_empty());
        (counter(&stack, "drop_rx_vlan") == 1).then_some(())
    });
}

#[test]
fn frames_on_another_queue_are_passed_to_the_kernel_and_counted() {
    let wire = Wire::with_queues(1500, 2);
    let mut left = open(
        &wire.left,
        AfXdpConfig {
            queues: 2,
            ..left_config()
        },
    );
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
    drop(left);
    let mut left = open(
        &wire.left,
        AfXdpConfig {
            queue: 1,
            ..left_config()
        },
    );
    let mut stack = open_stack_port(&wire.right, "right");
    for serial in 0..10 {
        let bytes = frame(RIGHT, LEFT, &[FCOE, serial], 60);
        send(&mut left, &bytes);
        assert_eq!(receive(&mut stack), bytes);
    }
    // Frames that the port does not receive are not counted.
    let bytes = frame(RIGHT, LEFT, &[0x88b5], 60);
    send(&mut left, &bytes);
    assert_eq!(receive(&mut stack), bytes);
    assert!(receive_some(&mut right).is_empty());
    right.upkeep();
    assert_eq!(counter(&right, "rx_other_queue"), 10);
}

/// Returns a pseudo-random number, deterministic in every run.
fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Headers of redirected frames followed by random bytes of any length, with tags in all positions.
#[test]
fn malformed_frames_are_tolerated() {
    let wire = wire(2500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    let mut state = 0x5EED_F00D;
    eprintln!("seed {state:#x}");
    let mut delivered = 0u64;
    for _ in 0..20_000 {
        let choice = xorshift(&mut state);
        let len_bytes = 14 + (choice >> 8) as usize % 2159;
        let words: &[u16] = match choice % 8 {
            0 => &[FCOE],
            1 => &[FIP],
            2 => &[VLAN, 0, FCOE],
            3 => &[VLAN, 1, FCOE],
            4 => &[VLAN, 0, VLAN, 0, FCOE],
            5 => &[VLAN],
            6 => &[0xffff],
            _ => &[0],
        };
        let mut bytes = frame(RIGHT, LEFT, words, len_bytes);
        for byte in bytes.iter_mut().skip(12 + 2 * words.len()) {
            *byte = xorshift(&mut state) as u8;
        }
        send(&mut left, &bytes);
        for bytes in receive_some(&mut right) {
            assert_eq!(bytes[..6], RIGHT);
            assert!((14..=2172).contains(&bytes.len()));
            delivered += 1;
        }
    }
    assert!(delivered > 1000, "{delivered}");
    let bytes = frame(SEGMENT_BROADCAST, LEFT, &[FCOE, 1], 60);
    send(&mut left, &bytes);
    wait_for("a good frame", || {
        receive_some(&mut right).contains(&bytes).then_some(())
    });
    right.upkeep();
    assert_eq!(counter(&right, "drop_rx_misplaced"), 0);
    assert_eq!(counter(&left, "drop_tx_invalid"), 0);
}
