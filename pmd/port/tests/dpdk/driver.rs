//! The driver's handling of frames and buffers, beyond the conformance suite.

use super::*;

fn rings(name: &str) -> (DpdkPort, DpdkPort) {
    let device = format!("ring:{name}");
    wait_for_link(open(config(&device, LEFT)), open(config(&device, RIGHT)))
}

/// Opens a net_af_packet port on the left interface of a wire, for frames that the test sends on the right one.
fn port_on_wire(number: u32, change: impl FnOnce(&mut DpdkConfig) + Send) -> (Wire, DpdkPort) {
    let wire = Wire::new(1500);
    let device = format!("net_af_packet{number},iface=left");
    let mut config = config(&device, LEFT);
    change(&mut config);
    let mut port = wire.left.run(|| open(config));
    wait_for("the link", || {
        port.upkeep();
        port.link_up().then_some(())
    });
    // A new wire loses frames at first.
    let first = frame(LEFT, RIGHT, &[FCOE, 0], 60);
    wait_for("a first frame", || {
        wire.right.run(|| send_raw("right", &first));
        (!receive_some(&mut port).is_empty()).then_some(())
    });
    (wire, port)
}

/// Sends frames on the wire; returns what the port receives until the last of them.
fn received_of(wire: &Wire, port: &mut DpdkPort, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let last = frame(port.capabilities().mac, RIGHT, &[FCOE, 0xffff], 60);
    wire.right.run(|| {
        for frame in frames.iter().chain([&last]) {
            send_raw("right", frame);
        }
    });
    let mut received = Vec::new();
    wait_for("the last frame", || {
        received.extend(receive_some(port));
        received.contains(&last).then_some(())
    });
    received.retain(|bytes| *bytes != last && bytes[14..16] != [0, 0]);
    received
}

#[test]
fn frames_to_others_are_dropped_and_counted() {
    let (wire, mut port) = port_on_wire(31, |config| config.multicast = vec![ALL_VN2VN]);
    let tagged = |control| frame(LEFT, RIGHT, &[VLAN, control, FCOE, 1], 64);
    let ours = [
        frame(LEFT, RIGHT, &[FCOE, 1], 60),
        frame(ALL_VN2VN, RIGHT, &[FIP, 1], 60),
        tagged(0x6000),
    ];
    let others = [
        (
            frame(UNUSED, RIGHT, &[FCOE, 1], 60),
            "drop_rx_other_address",
        ),
        (
            frame([0xff; 6], RIGHT, &[FCOE, 1], 60),
            "drop_rx_other_address",
        ),
        (
            frame(LEFT, RIGHT, &[0x0800, 1], 60),
            "drop_rx_other_ethertype",
        ),
    ];
    let sent: Vec<_> = ours
        .iter()
        .chain(others.iter().map(|(frame, _)| frame))
        .cloned()
        .collect();
    let received = received_of(&wire, &mut port, &sent);
    assert_eq!(received[..2], ours[..2]);
    assert_eq!(received[2], frame(LEFT, RIGHT, &[FCOE, 1], 60));
    assert_eq!(received.len(), 3);
    assert_eq!(counter(&port, "rx_priority_tagged"), 1);
    assert!(counter(&port, "drop_rx_other_address") >= 2);
    // The interface's own protocols send such frames, too.
    assert!(counter(&port, "drop_rx_other_ethertype") >= 1);
    assert_eq!(counter(&port, "drop_rx_vlan"), 0);
}

#[test]
fn change_address_moves_reception() {
    let (wire, mut port) = port_on_wire(32, |_| ());
    let (old, new) = (
        frame(LEFT, RIGHT, &[FCOE, 1], 60),
        frame(THIRD, RIGHT, &[FCOE, 2], 60),
    );
    port.change_address(THIRD).expect("another address");
    let received = received_of(&wire, &mut port, &[old.clone(), new.clone()]);
    assert_eq!(received, [new]);
    port.change_address([0; 6]).expect_err("the null address");
    port.change_address([1; 6]).expect_err("a group address");
    assert_eq!(port.capabilities().mac, THIRD);
}

#[test]
fn frames_of_invalid_length_are_counted() {
    let (mut left, mut right) = rings("lengths");
    assert_eq!(left.capabilities().max_frame_bytes, 2172);
    let longest = frame(RIGHT, LEFT, &[FCOE], 2172);
    send(&mut left, &longest);
    assert_eq!(receive(&mut right), longest);
    send(&mut left, &longest[..13]);
    assert_eq!(counter(&left, "drop_tx_runt"), 1);
    assert!(receive_some(&mut right).is_empty());
}

#[test]
fn max_frame_length_follows_the_mtu() {
    let wire = Wire::new(600);
    let device = "net_af_packet33,iface=left,framesz=512,blocksz=4096";
    let port = wire.left.run(|| open(config(device, LEFT)));
    assert_eq!(port.capabilities().max_frame_bytes, 512 - 66);
    drop(port);
    let device = "net_af_packet34,iface=left";
    let port = wire.left.run(|| open(config(device, LEFT)));
    assert_eq!(port.capabilities().max_frame_bytes, 614);
}

#[test]
fn misused_buffers_are_counted() {
    let (mut left, mut right) = rings("buffers");
    let bytes = frame(LEFT, RIGHT, &[FCOE], 60);
    let (mut other, _peer) = rings("others");
    let foreign = filled(&mut other, &bytes);
    left.free(foreign);
    assert_eq!(counter(&left, "foreign_mbufs"), 1);

    send(&mut right, &bytes);
    let mut batch = MbufBatch::new();
    assert_eq!(left.rx_burst(&mut batch, 1), 1);
    assert_eq!(left.tx_burst(&mut batch), 1);
    assert_eq!(counter(&left, "drop_tx_not_lent"), 1);
    assert_eq!(
        counter(&left, "foreign_mbufs"),
        1,
        "the buffer was the own one"
    );

    // A buffer can be sent to any station, also to the own address.
    send(&mut left, &bytes);
    assert_eq!(receive(&mut left), bytes);
    assert_eq!(counter(&left, "tx_self"), 1);
}

#[test]
fn buffers_outlive_their_port() {
    let (mut left, mut right) = rings("lifetimes");
    let bytes = frame(RIGHT, LEFT, &[FCOE], 500);
    send(&mut left, &bytes);
    let mut batch = MbufBatch::new();
    assert_eq!(right.rx_burst(&mut batch, 1), 1);
    let received = batch.pop().expect("one frame");
    let mut lent = filled(&mut left, &bytes);
    drop(left);
    drop(right);
    assert_eq!(received.bytes(), bytes);
    lent.buffer_mut().fill(1);
    assert_eq!(received.bytes(), bytes);
}

/// Frames beyond the requested number are received by the next calls, in order.
#[test]
fn frames_beyond_the_requested_number_are_not_lost() {
    let (mut left, mut right) = rings("asked");
    for serial in 0..100 {
        send(&mut left, &frame(RIGHT, LEFT, &[FCOE, serial], 60));
    }
    for serial in 0..100 {
        let mut batch = MbufBatch::new();
        assert_eq!(right.rx_burst(&mut batch, 1), 1);
        let mbuf = batch.pop().expect("one frame");
        assert_eq!(mbuf.bytes(), frame(RIGHT, LEFT, &[FCOE, serial], 60));
        right.free(mbuf);
    }
}

#[test]
fn ring_without_a_peer_does_not_block_the_sender() {
    const SENT: u64 = 20_000;
    /// Slots of a ring for 4096 frames.
    const RING: u64 = 8192;
    let (mut left, right) = rings("departed");
    drop(right);
    let bytes = frame(RIGHT, LEFT, &[FCOE], 60);
    for _ in 0..SENT {
        let mut batch = MbufBatch::new();
        batch.push(filled(&mut left, &bytes)).expect("room");
        wait_for("the frame to be taken or dropped", || {
            (left.tx_burst(&mut batch) == 1).then_some(())
        });
    }
    let dropped = counter(&left, "drop_tx_link_down");
    assert!(dropped > SENT - RING, "{dropped} of {SENT} were dropped");
    // The next port at that end receives the frames sent from then on.
    let mut right = open(config("ring:departed", RIGHT));
    left.upkeep();
    right.upkeep();
    let fresh = frame(RIGHT, LEFT, &[FCOE, 7], 60);
    send(&mut left, &fresh);
    assert_eq!(receive(&mut right), fresh);
}

#[test]
fn interface_down_is_reported_once() {
    let (wire, mut port) = port_on_wire(35, |_| ());
    wire.left.ip("link set left down");
    let mut events = Vec::new();
    port.upkeep();
    assert!(port.events(&mut events));
    assert_eq!(
        events,
        [PortEvent::Failed(PortFailure::InterfaceDown)],
        "reported once"
    );
    assert!(!port.events(&mut events));
}

/// Returns the error message of a port that cannot be opened.
fn open_error(config: DpdkConfig) -> String {
    match DpdkPort::open(config) {
        Ok(_) => panic!("it opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn open_errors_say_what_to_do() {
    // EAL runs from here on, with this configuration only.
    let _any = open(config("net_null0", LEFT));
    let mut other = config("net_null1", LEFT);
    other.eal.memory_mb = 64;
    let rows = [
        (
            config("net_nosuch0", LEFT),
            &["net_nosuch0", "vfio-pci"][..],
        ),
        (
            config("0000:7f:1f.7", LEFT),
            &["0000:7f:1f.7", "PCI address"],
        ),
        (config("net_af_packet36", LEFT), &["net_af_packet36"]),
        (
            config("net_af_packet37,iface=nosuch", LEFT),
            &["nosuch", "No such device"],
        ),
        (config("net_null0", RIGHT), &["used by another NIC"]),
        (other, &["initialized once per process", "memory_mb = 2048"]),
        (
            DpdkConfig {
                queues: 2,
                ..config("ring:queues", LEFT)
            },
            &["1 receive queues", "lower queues"],
        ),
    ];
    for (config, words) in rows {
        let device = config.device.clone();
        let text = open_error(config);
        for word in words {
            assert!(text.contains(word), "{device}: {text}");
        }
    }
    let _ends = [
        open(config("ring:full", LEFT)),
        open(config("ring:full", RIGHT)),
    ];
    assert!(open_error(config("ring:full", THIRD)).contains("used by another NIC"));
}

#[test]
fn missing_privileges_are_reported() {
    // EAL itself needs none.
    let _any = open(config("net_null2", LEFT));
    let wire = Wire::new(1500);
    let text = wire.left.run(|| {
        keep_capabilities_of_this_thread(&[]);
        open_error(config("net_af_packet38,iface=left", LEFT))
    });
    assert!(text.contains("Could not open AF_PACKET socket"), "{text}");
}

#[test]
fn frames_are_received_on_several_queues() {
    let wire = Wire::with_queues(1500, 2);
    let device = "net_af_packet39,iface=left,qpairs=2";
    let port = wire.left.run(|| {
        open(DpdkConfig {
            queues: 2,
            ..config(device, LEFT)
        })
    });
    let mut port = port;
    let mut seen = 0;
    wait_for("frames at both queues", || {
        // The kernel spreads frames over the sockets by their addresses.
        for source in 0..64 {
            let src = [2, 0, 0, 0, 1, source];
            wire.right
                .run(|| send_raw("right", &frame(LEFT, src, &[FCOE, 1], 60)));
        }
        seen += receive_some(&mut port).len();
        port.upkeep();
        let at = |queue| {
            let name = format!("device_rx_q{queue}_");
            let counters = port.stats().counters;
            counters.iter().any(|c| c.name.starts_with(&name))
        };
        (seen > 0 && at(0) && at(1)).then_some(())
    });
}
