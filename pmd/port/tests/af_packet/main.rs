//! The `af_packet` driver on real interfaces: veth pairs between network namespaces.

mod addresses;
mod failures;
#[path = "../common/frames.rs"]
mod frames;
#[path = "../common/netns.rs"]
mod netns;
mod root;

use std::time::Duration;

use frames::*;
use netns::{Namespace, Wire};
use pmd_port::af_packet::{AfPacketConfig, AfPacketPort, Promiscuous, SEGMENT_BROADCAST};
use pmd_port::{MbufBatch, Port, conformance};
use root::as_root;

fn left_config() -> AfPacketConfig {
    AfPacketConfig::new("left", LEFT)
}

fn right_config() -> AfPacketConfig {
    AfPacketConfig::new("right", RIGHT)
}

fn open(namespace: &Namespace, config: AfPacketConfig) -> AfPacketPort {
    namespace.run(|| AfPacketPort::open(config).unwrap_or_else(|error| panic!("{error}")))
}

/// Creates a wire and waits until it carries frames in both directions.
fn wire(mtu_bytes: u32) -> Wire {
    let wire = Wire::new(mtu_bytes);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
    wire
}

fn conformance_over(wire: &Wire, name: &str, qdisc_bypass: bool) {
    conformance::run_all(name, &mut || {
        let left = AfPacketConfig {
            qdisc_bypass,
            ..left_config()
        };
        let right = AfPacketConfig {
            qdisc_bypass,
            ..right_config()
        };
        (
            Box::new(open(&wire.left, left)),
            Box::new(open(&wire.right, right)),
        )
    });
}

#[test]
fn conforms_with_a_large_mtu() {
    as_root("conforms_with_a_large_mtu", || {
        conformance_over(&wire(2500), "af_packet, MTU 2500", false);
    });
}

#[test]
fn conforms_with_an_ordinary_mtu_and_qdisc_bypass() {
    as_root("conforms_with_an_ordinary_mtu_and_qdisc_bypass", || {
        conformance_over(&wire(1500), "af_packet, MTU 1500, bypass", true)
    });
}

#[test]
fn max_frame_length_follows_the_mtu() {
    as_root("max_frame_length_follows_the_mtu", || {
        for (mtu_bytes, expected) in [(302, 316), (1500, 1514), (2158, 2172), (2500, 2172)] {
            let wire = wire(mtu_bytes);
            let mut left = open(&wire.left, left_config());
            let mut right = open(&wire.right, right_config());
            assert_eq!(left.capabilities().max_frame_bytes, expected);
            let longest = frame(RIGHT, LEFT, &[FCOE], expected);
            send(&mut left, &longest);
            assert_eq!(receive(&mut right), longest);
        }
    });
}

#[test]
fn only_configured_frames_are_received() {
    as_root("only_configured_frames_are_received", || {
        let wire = wire(2500);
        let mut left = open(&wire.left, left_config());
        let mut right = open(
            &wire.right,
            AfPacketConfig {
                multicast: vec![ALL_VN2VN],
                promiscuous: Promiscuous::Always,
                ..right_config()
            },
        );
        let foreign = [
            frame(RIGHT, LEFT, &[0x0800], 60),
            frame(RIGHT, LEFT, &[0x88b5], 60),
            frame(UNUSED, LEFT, &[FCOE], 60),
            frame([0xff; 6], LEFT, &[FCOE], 60),
            frame([0x01, 0x10, 0x18, 0x01, 0x00, 0x01], LEFT, &[FIP], 60),
            frame(RIGHT, LEFT, &[VLAN, 0, 0x0800], 64),
        ];
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
            send(&mut left, expected);
            assert_eq!(&receive(&mut right), expected);
        }
        right.upkeep();
        let stats = right.stats();
        assert_eq!(stats.rx_frames, ours.len() as u64);
        let drops = stats.counters.iter().filter(|c| c.name.starts_with("drop"));
        assert_eq!(drops.map(|c| c.value).sum::<u64>(), 0, "{stats:?}");
    });
}

#[test]
fn ports_of_one_host_share_an_interface() {
    as_root("ports_of_one_host_share_an_interface", || {
        let wire = wire(2500);
        let with_multicast = |config: AfPacketConfig| AfPacketConfig {
            multicast: vec![ALL_VN2VN],
            ..config
        };
        let mut first = open(&wire.left, with_multicast(left_config()));
        let mut second = open(
            &wire.left,
            with_multicast(AfPacketConfig::new("left", THIRD)),
        );
        let mut right = open(&wire.right, with_multicast(right_config()));

        let unicast = frame(THIRD, LEFT, &[FCOE, 1], 100);
        send(&mut first, &unicast);
        assert_eq!(receive(&mut second), unicast);
        let back = frame(LEFT, THIRD, &[FCOE, 2], 2172);
        send(&mut second, &back);
        assert_eq!(receive(&mut first), back, "not the frame that it sent");

        let to_all = frame(ALL_VN2VN, THIRD, &[FIP, 3], 60);
        send(&mut second, &to_all);
        assert_eq!(receive(&mut first), to_all);
        assert_eq!(receive(&mut right), to_all);

        let from_the_wire = frame(ALL_VN2VN, RIGHT, &[FIP, 4], 60);
        send(&mut right, &from_the_wire);
        assert_eq!(receive(&mut first), from_the_wire);
        assert_eq!(receive(&mut second), from_the_wire);
    });
}

#[test]
fn vlan_frames_are_dropped() {
    as_root("vlan_frames_are_dropped", || {
        let wire = wire(2500);
        let mut left = open(&wire.left, left_config());
        let mut beside = open(&wire.left, AfPacketConfig::new("left", RIGHT));
        let mut right = open(&wire.right, right_config());

        let vlan_100 = frame(RIGHT, LEFT, &[VLAN, 100, FCOE, 1], 64);
        let priority = frame(RIGHT, LEFT, &[VLAN, 0x6000, FCOE, 2], 2172);
        let untagged = frame(RIGHT, LEFT, &[FCOE, 2], 2168);
        send(&mut left, &vlan_100);
        send(&mut left, &priority);
        // Received from the wire the tag was removed by the kernel; on the same host it is in the frame.
        for port in [&mut right, &mut beside] {
            assert_eq!(receive(port), untagged);
            assert_eq!(counter(port, "drop_rx_vlan"), 1);
            assert_eq!(counter(port, "rx_priority_tagged"), 1);
        }
    });
}

#[test]
fn too_long_and_too_short_frames_are_counted() {
    as_root("too_long_and_too_short_frames_are_counted", || {
        let wire = wire(9000);
        let mut left = open(&wire.left, left_config());
        let mut right = open(&wire.right, right_config());
        assert_eq!(right.capabilities().max_frame_bytes, 2172);
        for len_bytes in [2173, 2176, 2177, 3000, 9014] {
            wire.left
                .run(|| send_raw("left", &frame(RIGHT, LEFT, &[FCOE], len_bytes)));
        }
        let shortest = frame(RIGHT, LEFT, &[FCOE], 14);
        send(&mut left, &shortest);
        assert_eq!(receive(&mut right), shortest);
        assert_eq!(counter(&right, "drop_rx_too_long"), 5);

        let before = left.stats();
        send(&mut left, &shortest[..13]);
        send(&mut left, &frame(LEFT, LEFT, &[FCOE], 60)[..6]);
        assert_eq!(counter(&left, "drop_tx_runt"), 2);
        assert_eq!(left.stats().tx_frames, before.tx_frames + 2);
        send(&mut left, &shortest);
        assert_eq!(receive(&mut right), shortest);
    });
}

#[test]
fn frames_dropped_at_a_full_ring_are_counted() {
    as_root("frames_dropped_at_a_full_ring_are_counted", || {
        let wire = wire(2500);
        let mut left = open(&wire.left, left_config());
        let mut right = open(
            &wire.right,
            AfPacketConfig {
                rx_frames: 1,
                ..right_config()
            },
        );
        let (sent, mut received) = (1000u64, 0);
        for serial in 0..sent {
            send(&mut left, &frame(RIGHT, LEFT, &[FCOE, serial as u16], 60));
        }
        let all = wait_for("every frame to be received or dropped", || {
            right.upkeep();
            let dropped = counter(&right, "drop_rx_ring_full");
            // The ring stays full: one block of slots.
            (dropped + 28 == sent).then_some(dropped)
        });
        assert_eq!(all, sent - 28);
        for _ in 0..28 {
            let mut batch = MbufBatch::new();
            assert_eq!(right.rx_burst(&mut batch, 1), 1);
            let mbuf = batch.pop().expect("one frame");
            assert_eq!(mbuf.bytes(), frame(RIGHT, LEFT, &[FCOE, received], 60));
            received += 1;
            right.free(mbuf);
        }
        let next = frame(RIGHT, LEFT, &[FCOE, 7], 60);
        send(&mut left, &next);
        assert_eq!(receive(&mut right), next);
    });
}

#[test]
fn buffers_outlive_their_port() {
    as_root("buffers_outlive_their_port", || {
        let wire = wire(2500);
        let mut left = open(&wire.left, left_config());
        let mut right = open(&wire.right, right_config());
        let sent = frame(RIGHT, LEFT, &[FCOE], 500);
        send(&mut left, &sent);
        let mut batch = MbufBatch::new();
        wait_for("a frame", || {
            (right.rx_burst(&mut batch, 1) == 1).then_some(())
        });
        let received = batch.pop().expect("one frame");
        let mut lent = filled(&mut left, &sent);
        let mut to_itself = filled(&mut left, &frame(LEFT, LEFT, &[FCOE], 60));
        drop(left);
        drop(right);
        assert_eq!(received.bytes(), sent);
        assert_eq!(lent.bytes(), sent);
        lent.buffer_mut().fill(1);
        to_itself.buffer_mut().fill(2);
        assert_eq!(received.bytes(), sent);
    });
}

#[test]
fn misused_buffers_are_counted() {
    as_root("misused_buffers_are_counted", || {
        let wire = wire(2500);
        let mut left = open(&wire.left, left_config());
        let mut right = open(&wire.right, right_config());

        let foreign = filled(&mut right, &frame(LEFT, RIGHT, &[FCOE], 60));
        left.free(foreign);
        assert_eq!(counter(&left, "foreign_mbufs"), 1);

        let mut misaddressed = filled(&mut left, &frame(RIGHT, LEFT, &[FCOE], 60));
        misaddressed.buffer_mut()[..6].copy_from_slice(&LEFT);
        let mut batch = MbufBatch::new();
        batch.push(misaddressed).expect("room");
        let mut misaddressed = filled(&mut left, &frame(LEFT, LEFT, &[FCOE], 60));
        misaddressed.buffer_mut()[..6].copy_from_slice(&RIGHT);
        batch.push(misaddressed).expect("room");
        assert_eq!(left.tx_burst(&mut batch), 2);
        assert_eq!(counter(&left, "drop_tx_misaddressed"), 2);

        let echoed = frame(RIGHT, LEFT, &[FCOE], 60);
        send(&mut left, &echoed);
        wait_for("a frame", || {
            (right.rx_burst(&mut batch, 1) == 1).then_some(())
        });
        assert_eq!(right.tx_burst(&mut batch), 1);
        assert_eq!(counter(&right, "drop_tx_not_lent"), 1);
        assert_eq!(
            counter(&right, "foreign_mbufs"),
            0,
            "the slot was the own one"
        );
        send(&mut left, &echoed);
        assert_eq!(receive(&mut right), echoed);
    });
}

#[test]
fn addresses_are_joined_while_the_port_is_open() {
    as_root("addresses_are_joined_while_the_port_is_open", || {
        let wire = wire(2500);
        let joined = || {
            wire.left
                .ip("maddress show dev left")
                .contains("01:10:18:01:00:04")
        };
        let promiscuous = || {
            let text = wire.left.ip("-d link show left");
            !text.contains("promiscuity 0 ")
        };
        let with = |promiscuous| AfPacketConfig {
            multicast: vec![ALL_VN2VN],
            promiscuous,
            ..left_config()
        };
        // A process that another test starts at this moment holds the socket, too, until it executes its program.
        let await_left = || {
            wait_for("the addresses to be left", || {
                (!joined() && !promiscuous()).then_some(())
            });
        };
        let port = open(&wire.left, with(Promiscuous::Never));
        // An interface without filters for single addresses is promiscuous for them.
        assert!(joined());
        drop(port);
        await_left();
        let port = open(&wire.left, with(Promiscuous::Always));
        assert!(!joined() && promiscuous());
        drop(port);
        await_left();
    });
}
