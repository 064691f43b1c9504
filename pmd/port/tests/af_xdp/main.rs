//! The `af_xdp` driver on real interfaces: veth pairs between network namespaces.
//!
//! Root of the host is needed: without it the kernel does not load XDP programs.

mod addresses;
mod child_process;
mod failures;
mod forks;
#[path = "../common/frames.rs"]
mod frames;
mod kills;
mod memory;
#[path = "../common/netns.rs"]
mod netns;
mod steering;

use std::time::Duration;

use frames::*;
use netns::{Namespace, Wire};
use pmd_port::af_packet::Promiscuous;
use pmd_port::af_xdp::{AfXdpConfig, AfXdpPort, CopyMode};
use pmd_port::wake::Slept;
use pmd_port::{BURST, MbufBatch, Port, conformance};

fn left_config() -> AfXdpConfig {
    AfXdpConfig::new("left", LEFT)
}

fn right_config() -> AfXdpConfig {
    AfXdpConfig::new("right", RIGHT)
}

fn open(namespace: &Namespace, config: AfXdpConfig) -> AfXdpPort {
    namespace.run(|| AfXdpPort::open(config).unwrap_or_else(|error| panic!("{error}")))
}

/// Returns whether a program is attached to the left interface.
fn has_program(left: &Namespace) -> bool {
    left.ip("-d link show left").contains("xdp")
}

/// Returns whether the left interface is promiscuous, or receives for one of the test's groups.
fn is_promiscuous(left: &Namespace) -> bool {
    !left.ip("-d link show left").contains("promiscuity 0")
        || left
            .ip("maddress show dev left")
            .contains("01:10:18:01:00:04")
}

/// Waits until nothing of a port remains on the left interface. A child that another test starts has the
/// descriptors of the port as well, until it executes its program.
fn wait_until_detached(left: &Namespace) {
    wait_for("the interface to be detached", || {
        (!has_program(left) && !is_promiscuous(left)).then_some(())
    });
}

/// Creates a wire and waits until it carries frames in both directions.
fn wire(mtu_bytes: u32) -> Wire {
    let wire = Wire::new(mtu_bytes);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
    wire
}

fn conformance_over(wire: &Wire, name: &str, left: &AfXdpConfig, right: &AfXdpConfig) {
    conformance::run_all(name, &mut || {
        (
            Box::new(open(&wire.left, left.clone())),
            Box::new(open(&wire.right, right.clone())),
        )
    });
}

#[test]
fn conforms_with_a_large_mtu() {
    let wire = wire(2500);
    conformance_over(&wire, "af_xdp, MTU 2500", &left_config(), &right_config());
}

#[test]
fn conforms_with_an_ordinary_mtu_and_copies() {
    let wire = wire(1500);
    let copied = |config| AfXdpConfig {
        copy: CopyMode::Copy,
        ..config
    };
    conformance_over(
        &wire,
        "af_xdp, MTU 1500",
        &copied(left_config()),
        &copied(right_config()),
    );
}

#[test]
fn conforms_with_two_queues() {
    let wire = Wire::with_queues(1500, 2);
    // So few chunks that the test fails if any is lost.
    let left = AfXdpConfig {
        queues: 2,
        rx_frames: 16,
        ..left_config()
    };
    // Sends on the other queue.
    let right = AfXdpConfig {
        queue: 1,
        ..right_config()
    };
    let both = AfXdpConfig {
        queues: 2,
        ..right_config()
    };
    wait_until_connected(
        &mut open(&wire.left, left.clone()),
        &mut open(&wire.right, both.clone()),
    );
    let usual = AfXdpConfig {
        queues: 2,
        ..left_config()
    };
    conformance_over(&wire, "af_xdp, two queues", &usual, &both);
    let mut left = open(&wire.left, left);
    let mut right = open(&wire.right, right);
    let bytes = frame(LEFT, RIGHT, &[FCOE, 1], 60);
    for _ in 0..5000 {
        send(&mut right, &bytes);
        assert_eq!(receive(&mut left), bytes);
    }
    // Both queues wake the port.
    let source = left.arm();
    assert!(receive_some(&mut left).is_empty());
    send(&mut right, &bytes);
    assert_eq!(source.sleep(TIMEOUT).expect("poll"), Slept::Woken);
    assert_eq!(receive(&mut left), bytes);
    left.disarm();
}

/// The driver of veth rejects programs for an MTU whose frames do not fit into a page.
#[test]
fn conforms_with_a_generic_program() {
    let wire = wire(3800);
    let left = open(&wire.left, left_config());
    assert!(!left.is_native() && !left.is_zero_copy());
    assert_eq!(counter(&left, "native"), 0);
    drop(left);
    conformance_over(&wire, "af_xdp, generic", &left_config(), &right_config());
}

/// A frame is answered while the kernel is still processing the one that it answers.
#[test]
fn ping_pong_loses_no_frame() {
    // Beside other load each takes as long as a turn of the scheduler.
    const EXCHANGES: u32 = 20_000;
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    let (to_right, to_left) = (
        frame(RIGHT, LEFT, &[FCOE, 1], 60),
        frame(LEFT, RIGHT, &[FCOE, 2], 60),
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..EXCHANGES {
                send(&mut left, &to_right);
                assert_eq!(receive(&mut left), to_left);
            }
        });
        scope.spawn(|| {
            for _ in 0..EXCHANGES {
                assert_eq!(receive(&mut right), to_right);
                send(&mut right, &to_left);
            }
        });
    });
    for port in [&mut left, &mut right] {
        port.upkeep();
        let stats = port.stats();
        let drops = stats.counters.iter().filter(|c| c.name.starts_with("drop"));
        assert_eq!(drops.map(|c| c.value).sum::<u64>(), 0, "{stats:?}");
    }
}

#[test]
fn program_runs_natively_if_supported() {
    let wire = wire(1500);
    let left = open(&wire.left, left_config());
    assert!(left.is_native(), "veth can");
    assert!(!left.is_zero_copy(), "veth cannot");
    assert_eq!(counter(&left, "native"), 1);
    assert_eq!(counter(&left, "zero_copy"), 0);
}

#[test]
fn max_frame_length_follows_the_mtu() {
    for (mtu_bytes, expected) in [
        (302, 316),
        (1500, 1514),
        (1774, 1788),
        (1775, 1789),
        (2158, 2172),
        (3400, 2172),
    ] {
        let wire = wire(mtu_bytes);
        let mut left = open(&wire.left, left_config());
        let mut right = open(&wire.right, right_config());
        assert_eq!(left.capabilities().max_frame_bytes, expected);
        let longest = frame(RIGHT, LEFT, &[FCOE], expected);
        send(&mut left, &longest);
        assert_eq!(receive(&mut right), longest);
    }
}

#[test]
fn too_long_and_too_short_frames_are_counted() {
    let wire = wire(3400);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    for len_bytes in [2173, 2176, 2177, 3000, 3414] {
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
}

#[test]
fn frames_without_a_free_chunk_are_counted() {
    const CHUNKS: u64 = 16;
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(
        &wire.right,
        AfXdpConfig {
            rx_frames: 9,
            ..right_config()
        },
    );
    let sent = 1000u64;
    for serial in 0..sent {
        send(&mut left, &frame(RIGHT, LEFT, &[FCOE, serial as u16], 60));
    }
    wait_for("every frame to be received or dropped", || {
        right.upkeep();
        (counter(&right, "drop_rx_no_buffer") + CHUNKS == sent).then_some(())
    });
    assert!(counter(&right, "rx_fill_ring_empty") > 0);
    let mut received = 0;
    while received < CHUNKS as u16 {
        for bytes in receive_some(&mut right) {
            assert_eq!(bytes, frame(RIGHT, LEFT, &[FCOE, received], 60));
            received += 1;
        }
    }
    let next = frame(RIGHT, LEFT, &[FCOE, 7], 60);
    send(&mut left, &next);
    assert_eq!(receive(&mut right), next);
}

/// However many frames a station sends to itself, it receives those of others.
#[test]
fn frames_to_own_address_do_not_starve_others() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    let own = frame(LEFT, LEFT, &[FCOE, 1], 60);
    let other = frame(LEFT, RIGHT, &[FCOE, 2], 60);
    let source = left.arm();
    assert!(receive_some(&mut left).is_empty());
    send(&mut right, &other);
    assert_eq!(source.sleep(TIMEOUT).expect("poll"), Slept::Woken);
    left.disarm();
    // More of them than the calls below receive.
    for _ in 0..3 * BURST {
        send(&mut left, &own);
    }
    let mut frames = receive_some(&mut left);
    frames.extend(receive_some(&mut left));
    assert!(
        frames.contains(&own) && frames.contains(&other),
        "{frames:02x?}"
    );
}

#[test]
fn buffers_outlive_their_port() {
    let wire = wire(1500);
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
    drop(left);
    drop(right);
    assert_eq!(received.bytes(), sent);
    assert_eq!(lent.bytes(), sent);
    lent.buffer_mut().fill(1);
    assert_eq!(received.bytes(), sent);
}

#[test]
fn misused_buffers_are_counted() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());

    let foreign = filled(&mut right, &frame(LEFT, RIGHT, &[FCOE], 60));
    left.free(foreign);
    assert_eq!(counter(&left, "foreign_mbufs"), 1);

    let echoed = frame(RIGHT, LEFT, &[FCOE], 60);
    send(&mut left, &echoed);
    let mut batch = MbufBatch::new();
    wait_for("a frame", || {
        (right.rx_burst(&mut batch, 1) == 1).then_some(())
    });
    assert_eq!(right.tx_burst(&mut batch), 1);
    assert_eq!(counter(&right, "drop_tx_not_lent"), 1);
    assert_eq!(
        counter(&right, "foreign_mbufs"),
        0,
        "the chunk was the own one"
    );
    send(&mut left, &echoed);
    assert_eq!(receive(&mut right), echoed);

    // A buffer can be sent to any station, also to the own address.
    let mut moved = filled(&mut left, &echoed);
    moved.buffer_mut()[..6].copy_from_slice(&LEFT);
    batch.push(moved).expect("room");
    assert_eq!(left.tx_burst(&mut batch), 1);
    assert_eq!(receive(&mut left)[..6], LEFT);
    assert_eq!(counter(&left, "tx_self"), 1);
}
