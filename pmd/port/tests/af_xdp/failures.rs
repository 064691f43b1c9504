//! Ports that cannot be opened, and interfaces that change while a port is open.

use super::*;
use crate::netns::keep_capabilities_of_this_thread;
use pmd_port::af_packet::AfPacketError;
use pmd_port::af_xdp::AfXdpError;
use pmd_port::{BURST, PortEvent, PortFailure, WakeSource};

const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_BPF: u32 = 39;

fn open_error(namespace: &Namespace, config: AfXdpConfig) -> AfXdpError {
    namespace.run(|| AfXdpPort::open(config).expect_err("a port that cannot be opened"))
}

#[test]
fn unusable_interfaces_are_rejected_with_advice() {
    let namespace = Namespace::new();
    namespace.ip("link set lo up");
    namespace.ip("link add small mtu 301 type veth peer name sleepy");
    namespace.ip("link set small up");
    namespace.ip("link add large mtu 3823 type veth peer name other");
    namespace.ip("link set large up");
    let open_error = |name: &str| open_error(&namespace, AfXdpConfig::new(name, LEFT));

    let error = open_error("nowhere");
    assert!(matches!(
        error,
        AfXdpError::Interface(AfPacketError::NoSuchInterface { .. })
    ));
    assert!(error.to_string().contains("ip link"), "{error}");
    let error = open_error("lo");
    assert!(matches!(
        error,
        AfXdpError::Interface(AfPacketError::NotEthernet { .. })
    ));
    let error = open_error("sleepy");
    assert!(
        error.to_string().contains("ip link set sleepy up"),
        "{error}"
    );
    let error = open_error("small");
    assert!(error.to_string().contains("mtu 1500"), "{error}");
    let error = open_error("large");
    assert!(matches!(
        error,
        AfXdpError::MtuTooLong {
            mtu_bytes: 3823,
            limit_bytes: 3822,
            ..
        }
    ));
    assert!(
        error.to_string().contains("ip link set large mtu 2500"),
        "{error}"
    );
}

#[test]
fn unusable_queues_are_rejected_with_advice() {
    let wire = wire(1500);
    let with = |queue, queues, copy| {
        open_error(
            &wire.left,
            AfXdpConfig {
                queue,
                queues,
                copy,
                ..left_config()
            },
        )
    };
    let error = with(1, 1, CopyMode::Auto);
    assert!(matches!(error, AfXdpError::NoSuchQueue { queue: 1, .. }));
    assert!(error.to_string().contains("ethtool -l left"), "{error}");
    let error = with(0, 2, CopyMode::Auto);
    assert!(matches!(error, AfXdpError::NoSuchQueue { queue: 1, .. }));
    let error = with(0, 1, CopyMode::ZeroCopy);
    assert!(matches!(
        error,
        AfXdpError::ZeroCopyRefused { queue: 0, .. }
    ));
    assert!(error.to_string().contains("copy = \"auto\""), "{error}");
    // A port that failed to open leaves nothing on the interface.
    open(&wire.left, left_config());
}

#[test]
fn receive_only_queue_is_rejected_with_advice() {
    let namespace = Namespace::new();
    namespace.ip("link add odd numrxqueues 2 numtxqueues 1 type veth peer name other");
    namespace.ip("link set odd up");
    let with = |queue| AfXdpConfig {
        queue,
        ..AfXdpConfig::new("odd", LEFT)
    };
    let error = open_error(&namespace, with(1));
    assert!(
        matches!(
            error,
            AfXdpError::NoSendQueue {
                queue: 1,
                queues: 1,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("ethtool -L odd"), "{error}");
    let both = AfXdpConfig {
        queues: 2,
        ..with(0)
    };
    open(&namespace, both);
}

/// On an interface that does not report its number of queues.
#[test]
fn port_on_a_receive_only_queue_fails() {
    let namespace = Namespace::new();
    namespace.ip("link add odd numrxqueues 2 numtxqueues 1 type bridge");
    namespace.ip("link add one type veth peer name other");
    for name in ["odd", "one master odd", "other"] {
        namespace.ip(&format!("link set {name} up"));
    }
    let config = AfXdpConfig {
        queue: 1,
        tx_frames: 16,
        ..AfXdpConfig::new("odd", LEFT)
    };
    let mut port = open(&namespace, config);
    wait_for("the interface to be up", || {
        port.upkeep();
        port.link_up().then_some(())
    });
    let bytes = frame(RIGHT, LEFT, &[FCOE], 60);
    send(&mut port, &bytes);
    assert_eq!(
        events(&mut port),
        [PortEvent::Failed(PortFailure::NoSendQueue)]
    );
    for serial in 1..=1000 {
        send(&mut port, &bytes);
        port.upkeep();
        assert_eq!(counter(&port, "drop_tx_link_down"), serial);
    }
    assert_eq!(events(&mut port), [], "reported once");
}

#[test]
fn interface_accepts_only_one_port() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let error = open_error(&wire.left, AfXdpConfig::new("left", THIRD));
    assert!(matches!(error, AfXdpError::AnotherProgram { .. }));
    assert!(error.to_string().contains("af_packet"), "{error}");
    // The first port still works.
    let mut right = open(&wire.right, right_config());
    let bytes = frame(LEFT, RIGHT, &[FCOE], 60);
    send(&mut right, &bytes);
    assert_eq!(receive(&mut left), bytes);
    drop(left);
    open(&wire.left, AfXdpConfig::new("left", THIRD));
}

#[test]
fn missing_capabilities_are_named_in_the_error() {
    let wire = wire(1500);
    for kept in [
        &[][..],
        &[CAP_NET_RAW],
        &[CAP_NET_RAW, CAP_NET_ADMIN],
        &[CAP_NET_ADMIN, CAP_BPF],
    ] {
        let error = wire.left.run(|| {
            keep_capabilities_of_this_thread(kept);
            AfXdpPort::open(left_config()).expect_err("no permission")
        });
        assert!(matches!(error, AfXdpError::NotPermitted), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM"),
            "{text}"
        );
    }
}

/// The named capabilities suffice, except for locking more memory than the limit.
#[test]
fn buffers_beyond_the_limit_of_locked_memory_are_rejected() {
    let wire = wire(1500);
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit outlives the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // Threads with CAP_IPC_LOCK, as in the other tests of this process, are not affected.
    limit.rlim_cur = 1024 * 1024;
    // SAFETY: as above.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    wire.left.run(|| {
        keep_capabilities_of_this_thread(&[CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF]);
        let error = AfXdpPort::open(left_config()).expect_err("too much memory");
        assert!(
            matches!(
                error,
                AfXdpError::MemoryLimit {
                    memory_bytes: 10_485_760
                }
            ),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(text.contains("LimitMEMLOCK"), "{text}");
        let small = AfXdpConfig {
            rx_frames: 64,
            tx_frames: 64,
            ..left_config()
        };
        AfXdpPort::open(small).unwrap_or_else(|error| panic!("{error}"));
    });
}

/// With the maximum numbers of EtherTypes and addresses.
#[test]
fn longest_program_needs_no_further_capabilities() {
    let wire = wire(1500);
    let ethertypes = (0..16).map(|serial| FCOE + serial).collect::<Vec<_>>();
    let group = |serial: u16| {
        let [high, low] = serial.to_be_bytes();
        [0x01, 0x10, 0x18, 0x02, high, low]
    };
    let config = AfXdpConfig {
        ethertypes: ethertypes.clone(),
        multicast: (0..256).map(group).collect(),
        interface_address: true,
        rx_frames: 64,
        tx_frames: 64,
        ..left_config()
    };
    let mut left = wire.left.run(|| {
        keep_capabilities_of_this_thread(&[CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF]);
        AfXdpPort::open(config).unwrap_or_else(|error| panic!("{error}"))
    });
    let mut right = open(&wire.right, right_config());
    for bytes in [
        frame(group(255), RIGHT, &[FCOE + 15, 1], 60),
        frame(LEFT, RIGHT, &[FCOE, 2], 60),
    ] {
        send(&mut right, &bytes);
        assert_eq!(receive(&mut left), bytes);
    }
}

fn events(port: &mut AfXdpPort) -> Vec<PortEvent> {
    let mut events = Vec::new();
    port.events(&mut events);
    events
}

#[test]
fn interface_down_fails_the_port_and_up_restores_traffic() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
    wire.left.ip("link set left down");
    let bytes = frame(RIGHT, LEFT, &[FCOE], 60);
    // The first frame detects that the interface is down, and stays in the ring.
    send(&mut left, &bytes);
    for serial in 1..=5000 {
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
    assert_eq!(counter(&left, "drop_tx_link_down"), 5000);
}

#[test]
fn lost_carrier_does_not_block_the_sender() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    wire.right.ip("link set right down");
    wait_for("the port to see that the link is down", || {
        left.upkeep();
        (!left.link_up()).then_some(())
    });
    assert_eq!(
        events(&mut left),
        [],
        "a network failure, not one of the port"
    );
    let bytes = frame(RIGHT, LEFT, &[FCOE], 60);
    for serial in 1..5000 {
        send(&mut left, &bytes);
        assert_eq!(counter(&left, "drop_tx_link_down"), serial);
    }
    wire.right.ip("link set right up");
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
}

fn burst(port: &mut AfXdpPort, len_bytes: usize) {
    let mut batch = MbufBatch::new();
    for serial in 0..BURST {
        let bytes = frame(RIGHT, LEFT, &[FCOE, serial as u16], len_bytes);
        batch.push(filled(port, &bytes)).expect("room for a burst");
    }
    assert_eq!(port.tx_burst(&mut batch), BURST);
}

/// Waits until `ip` shows this state of the left interface.
fn wait_for_state(wire: &Wire, state: &str) {
    wait_for(state, || {
        wire.left.ip("link show left").contains(state).then_some(())
    });
}

#[test]
fn frames_queued_before_an_outage_are_not_sent_after_it() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
    drop(right);
    wire.right.ip("link set right down");
    wait_for_state(&wire, "NO-CARRIER");
    // The port has not refreshed the link state yet.
    assert!(left.link_up());
    burst(&mut left, 60);
    assert_eq!(counter(&left, "drop_tx_link_down"), BURST as u64);
    assert!(!left.link_up());
    assert!(matches!(left.arm(), WakeSource::Fd(_)));
    left.disarm();
    wire.right.ip("link set right up");
    wait_for_state(&wire, "LOWER_UP");
    let mut right = open(&wire.right, right_config());
    left.upkeep();
    let bytes = frame(RIGHT, LEFT, &[FIP, 9], 60);
    wait_for("a frame sent after the outage", || {
        left.upkeep();
        send(&mut left, &bytes);
        let frames = receive_some(&mut right);
        assert!(frames.iter().all(|frame| *frame == bytes), "{frames:02x?}");
        (!frames.is_empty()).then_some(())
    });
    assert_eq!(counter(&left, "drop_tx_refused"), 0);
}

/// The driver of veth drops frames that the receiver has no buffers for.
#[test]
fn frames_dropped_by_the_driver_are_counted() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
    drop(right);
    wire.right.ip("link set right mtu 500");
    for bursts in 1..=100 {
        burst(&mut left, 1000);
        assert_eq!(counter(&left, "drop_tx_refused"), bursts * BURST as u64);
        assert!(matches!(left.arm(), WakeSource::Fd(_)), "the ring is empty");
        left.disarm();
    }
    assert_eq!(counter(&left, "drop_tx_link_down"), 0);
    wire.right.ip("link set right mtu 1500");
    let mut right = open(&wire.right, right_config());
    wait_until_connected(&mut left, &mut right);
}

#[test]
fn removed_interface_is_reported() {
    let wire = wire(1500);
    let mut left = open(&wire.left, left_config());
    wire.left.ip("link del left");
    left.upkeep();
    assert!(!left.link_up());
    assert_eq!(
        events(&mut left),
        [PortEvent::Failed(PortFailure::InterfaceRemoved)]
    );
    let bytes = frame(RIGHT, LEFT, &[FCOE], 60);
    for serial in 1..=3000 {
        send(&mut left, &bytes);
        assert_eq!(counter(&left, "drop_tx_link_down"), serial);
    }
    assert!(receive_some(&mut left).is_empty());
}

#[test]
fn lowered_mtu_drops_long_frames_only() {
    let wire = wire(2500);
    let mut left = open(&wire.left, left_config());
    let mut right = open(&wire.right, right_config());
    let long = frame(RIGHT, LEFT, &[FCOE, 1], 2000);
    let short = frame(RIGHT, LEFT, &[FCOE, 2], 1514);
    wire.left.ip("link set left mtu 1500");
    left.upkeep();
    for bytes in [&long, &short, &long] {
        send(&mut left, bytes);
    }
    assert_eq!(receive(&mut right), short);
    assert_eq!(counter(&left, "drop_tx_too_long"), 2);
    wire.left.ip("link set left mtu 2500");
    left.upkeep();
    send(&mut left, &long);
    assert_eq!(receive(&mut right), long);
}
