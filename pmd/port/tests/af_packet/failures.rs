//! Ports that cannot be opened, and interfaces that change while a port is open.

use std::process::Command;

use super::*;
use crate::netns::keep_capabilities_of_this_thread;
use pmd_port::af_packet::AfPacketError;
use pmd_port::wake::Slept;
use pmd_port::{MtuChange, PortEvent, PortFailure};

/// Environment variable for the part of a test that needs a process of its own.
const CHILD: &str = "AF_PACKET_TEST_CHILD";

fn open_error(namespace: &Namespace, config: AfPacketConfig) -> AfPacketError {
    namespace.run(|| AfPacketPort::open(config).expect_err("a port that cannot be opened"))
}

#[test]
fn unusable_interfaces_are_rejected_with_advice() {
    as_root(
        "failures::unusable_interfaces_are_rejected_with_advice",
        || {
            let namespace = Namespace::new();
            namespace.ip("link set lo up");
            namespace.ip("link add small mtu 301 type veth peer name sleepy");
            namespace.ip("link set small up");
            let open_error = |name: &str| open_error(&namespace, AfPacketConfig::new(name, LEFT));

            let error = open_error("nowhere");
            assert!(matches!(error, AfPacketError::NoSuchInterface { .. }));
            assert!(error.to_string().contains("ip link"), "{error}");
            assert!(matches!(
                open_error(""),
                AfPacketError::NoSuchInterface { .. }
            ));
            assert!(matches!(
                open_error("lo\0"),
                AfPacketError::NoSuchInterface { .. }
            ));
            let error = open_error("a-name-of-16-byt");
            assert!(matches!(error, AfPacketError::NameTooLong { .. }));
            assert!(error.to_string().contains("15 bytes"), "{error}");
            let error = open_error("lo");
            assert!(matches!(error, AfPacketError::NotEthernet { .. }));
            let error = open_error("sleepy");
            assert!(matches!(error, AfPacketError::InterfaceDown { .. }));
            assert!(
                error.to_string().contains("ip link set sleepy up"),
                "{error}"
            );
            let error = open_error("small");
            assert!(matches!(
                error,
                AfPacketError::MtuTooSmall {
                    mtu_bytes: 301,
                    needed_bytes: 302,
                    ..
                }
            ));
            assert!(error.to_string().contains("mtu 1500"), "{error}");
        },
    );
}

#[test]
fn missing_capability_is_named_in_the_error() {
    as_root("failures::missing_capability_is_named_in_the_error", || {
        let wire = wire(1500);
        let error = wire.left.run(|| {
            keep_capabilities_of_this_thread(&[]);
            AfPacketPort::open(left_config()).expect_err("no permission")
        });
        assert!(matches!(error, AfPacketError::NotPermitted));
        let text = error.to_string();
        assert!(text.contains("setcap cap_net_raw+ep PROGRAM"), "{text}");
    });
}

/// Allows this process to map 4 MiB more than it has mapped now.
fn limit_address_space() {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: u64 = statm
        .split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .expect("a number of pages");
    // SAFETY: takes one integer.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let limit_bytes = pages * page_bytes + 4 * 1024 * 1024;
    let limit = libc::rlimit {
        rlim_cur: limit_bytes,
        rlim_max: limit_bytes,
    };
    // SAFETY: the limit outlives the call.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn ring_allocation_failure_is_reported() {
    const NAME: &str = "failures::ring_allocation_failure_is_reported";
    as_root(NAME, || {
        if std::env::var_os(CHILD).is_none() {
            let program = std::env::current_exe().expect("the path of this program");
            let output = Command::new(program)
                .args(["--exact", NAME, "--nocapture"])
                .env(CHILD, "1")
                .output()
                .expect("this program again");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && text.contains("1 passed"),
                "{text}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            return;
        }
        let wire = wire(1500);
        let error = wire.left.run(|| {
            limit_address_space();
            AfPacketPort::open(left_config()).expect_err("no memory")
        });
        assert!(
            matches!(error, AfPacketError::RingMemory { ring_bytes, .. } if ring_bytes > 8_000_000),
            "{error:?}"
        );
        assert!(error.to_string().contains("lower rx_frames"), "{error}");
    });
}

#[test]
fn lowered_mtu_drops_long_frames_only() {
    const NAME: &str = "failures::lowered_mtu_drops_long_frames_only";
    as_root(NAME, || {
        let wire = wire(2500);
        let mut left = open(&wire.left, left_config());
        let mut right = open(&wire.right, right_config());
        let long = frame(RIGHT, LEFT, &[FCOE, 1], 2000);
        let short = frame(RIGHT, LEFT, &[FCOE, 2], 1514);
        wire.left.ip("link set left mtu 1500");
        let mut batch = MbufBatch::new();
        for bytes in [&long, &short, &long, &short] {
            batch.push(filled(&mut left, bytes)).expect("room");
        }
        assert_eq!(events(&mut left), [], "not refreshed yet");
        assert_eq!(left.tx_burst(&mut batch), 4);
        assert_eq!(counter(&left, "drop_tx_too_long"), 2, "by the kernel");
        let changed = |now_bytes| {
            [PortEvent::MtuChanged(MtuChange {
                opened_bytes: 2500,
                now_bytes,
                is_too_low: now_bytes < 2158,
            })]
        };
        assert_eq!(events(&mut left), changed(1500));
        send(&mut left, &long);
        assert_eq!(counter(&left, "drop_tx_too_long"), 3, "by the port");
        assert_eq!(events(&mut left), [], "reported once");
        for _ in 0..2 {
            let mut batch = MbufBatch::new();
            wait_for("a short frame", || {
                (right.rx_burst(&mut batch, 1) == 1).then_some(())
            });
            let mbuf = batch.pop().expect("one frame");
            assert_eq!(mbuf.bytes(), short);
            right.free(mbuf);
        }
        wire.left.ip("link set left mtu 2500");
        left.upkeep();
        assert_eq!(
            events(&mut left),
            changed(2500),
            "long frames can be sent again"
        );
        send(&mut left, &long);
        assert_eq!(receive(&mut right), long);
    });
}

fn events(port: &mut AfPacketPort) -> Vec<PortEvent> {
    let mut events = Vec::new();
    port.events(&mut events);
    events
}

fn interface_goes_down_and_up(qdisc_bypass: bool) {
    let wire = wire(2500);
    let mut left = open(
        &wire.left,
        AfPacketConfig {
            qdisc_bypass,
            tx_frames: 1,
            ..left_config()
        },
    );
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
    let bytes = frame(RIGHT, LEFT, &[FCOE], 60);
    wire.left.ip("link set left down");
    // Far more frames than the ring holds.
    for serial in 1..=500 {
        send(&mut left, &bytes);
        assert_eq!(counter(&left, "drop_tx_link_down"), serial);
    }
    left.upkeep();
    assert!(!left.link_up());
    assert_eq!(
        events(&mut left),
        [PortEvent::Failed(PortFailure::InterfaceDown)]
    );
    left.upkeep();
    assert_eq!(events(&mut left), [], "reported once");
    let source = left.arm();
    assert_eq!(
        source.sleep(Duration::from_millis(10)).expect("poll"),
        Slept::TimedOut,
        "a port that is down must not keep its poller awake"
    );
    left.disarm();
    wire.left.ip("link set left up");
    wait_until_connected(&mut left, &mut right);
    assert!(left.link_up());
    assert_eq!(counter(&left, "link_up"), 1);
    assert!(counter(&left, "link_changes") >= 2);
    assert_eq!(counter(&left, "drop_tx_link_down"), 500);
}

#[test]
fn interface_down_fails_the_port_and_up_restores_traffic() {
    as_root(
        "failures::interface_down_fails_the_port_and_up_restores_traffic",
        || {
            interface_goes_down_and_up(false);
        },
    );
}

#[test]
fn interface_down_and_up_with_qdisc_bypass() {
    as_root("failures::interface_down_and_up_with_qdisc_bypass", || {
        interface_goes_down_and_up(true)
    });
}

#[test]
fn lost_carrier_does_not_block_the_sender() {
    const NAME: &str = "failures::lost_carrier_does_not_block_the_sender";
    as_root(NAME, || {
        let wire = wire(2500);
        let mut left = open(
            &wire.left,
            AfPacketConfig {
                qdisc_bypass: true,
                tx_frames: 1,
                ..left_config()
            },
        );
        wire.right.ip("link set right down");
        let mut batch = MbufBatch::new();
        let bytes = frame(RIGHT, LEFT, &[FCOE], 60);
        batch.push(filled(&mut left, &bytes)).expect("room");
        assert_eq!(left.tx_burst(&mut batch), 1);
        assert!(
            counter(&left, "tx_busy") >= 1,
            "refused, so it stays queued"
        );
        wait_for("the port to see that the link is down", || {
            left.upkeep();
            (!left.link_up()).then_some(())
        });
        assert_eq!(counter(&left, "drop_tx_link_down"), 1);
        assert_eq!(
            events(&mut left),
            [],
            "a network failure, not one of the port"
        );
        for serial in 2..500 {
            send(&mut left, &bytes);
            assert_eq!(counter(&left, "drop_tx_link_down"), serial);
        }
        wire.right.ip("link set right up");
        let mut right = open(&wire.right, right_config());
        wait_until_connected(&mut left, &mut right);
    });
}

#[test]
fn removed_interface_is_reported() {
    as_root("failures::removed_interface_is_reported", || {
        let wire = wire(2500);
        let mut left = open(&wire.left, left_config());
        wire.left.ip("link del left");
        left.upkeep();
        assert!(!left.link_up());
        assert_eq!(
            events(&mut left),
            [PortEvent::Failed(PortFailure::InterfaceRemoved)]
        );
        for serial in 1..=3000 {
            send(&mut left, &frame(RIGHT, LEFT, &[FCOE], 60));
            assert_eq!(counter(&left, "drop_tx_link_down"), serial);
        }
        assert!(receive_some(&mut left).is_empty());
    });
}
