//! Frames captured from a Linux kernel, received in place of its peer.

use fcvi_frame::fip::FipView;
use protocol_testkit::hex;

use super::segment::{ALL, S, Segment, config, enode, id};
use crate::Neighbour;
use crate::vn2vn::{Vn2vnConfig, Vn2vnEvent};

macro_rules! golden {
    ($name:literal) => {
        hex::parse(include_str!(concat!(
            "../../../../../fcvi-frame/testdata/fip/",
            $name,
            ".hex"
        )))
    };
}

/// Returns a station with the interface of the kernel's peer. The kernel has 52:54:00:00:00:01 and 00.00.01.
fn station() -> Segment {
    let config = Vn2vnConfig {
        max_fcoe_bytes: 2_158,
        ..config(2, 2)
    };
    let mut segment = Segment::up(vec![config], 16);
    segment.take_sent();
    segment.events(0);
    segment
}

#[test]
fn linux_kernel_is_found_by_its_claim_and_ready_after_its_beacon() {
    let mut segment = station();
    segment.inject(0, &golden!("linux_probe_request"));
    assert_eq!(segment.take_sent(), [""; 0]);
    segment.inject(0, &golden!("linux_claim_notification"));
    let found = Neighbour {
        id: id(1),
        port_name: 0x2000_5254_0000_0001,
        node_name: 0x1000_5254_0000_0001,
        enode_mac: enode(1),
        max_fcoe_bytes: 2_158,
        path_fcoe_bytes: None,
        supports_fc4: false,
    };
    assert_eq!(segment.events(0), [Vn2vnEvent::NeighbourFound(found)]);
    let to_kernel = ["0 claim response to ", "0 claim to "].map(|s| format!("{s}{}", enode(1)));
    assert_eq!(segment.take_sent(), to_kernel);
    // It answers the path test like any claim.
    segment.inject(0, &golden!("linux_claim_response"));
    segment.inject(0, &golden!("linux_beacon"));
    let ready = Neighbour {
        path_fcoe_bytes: Some(2_158),
        ..found
    };
    assert_eq!(segment.events(0), [Vn2vnEvent::NeighbourReady(ready)]);
}

#[test]
fn linux_kernel_with_the_larger_name_keeps_its_id() {
    let mut segment = Segment::up(vec![config(2, 1)], 17);
    assert_eq!(segment.id(0), id(1));
    // The kernel has the larger name.
    segment.inject(0, &golden!("linux_beacon"));
    segment.advance(3 * S);
    assert_ne!(segment.id(0), id(1));
}

/// The machine's frames have the lengths and descriptors of the kernel's.
#[test]
fn frames_have_the_layout_of_the_kernels() {
    let mut segment = Segment::up(vec![config(2, 2)], 18);
    segment.inject(0, &golden!("linux_claim_notification"));
    let layout = |bytes: &[u8]| {
        let view = FipView::parse(bytes).expect("a FIP frame");
        let kinds = view.descriptors().map(|d| d.expect("whole").kind);
        (view.subcode, bytes.len(), kinds.collect::<Vec<_>>())
    };
    for golden in [
        golden!("linux_probe_request"),
        golden!("linux_claim_notification"),
        golden!("linux_claim_response"),
        golden!("linux_beacon"),
    ] {
        let kernel = FipView::parse(&golden).expect("a FIP frame");
        let same = |sent: &&super::segment::Sent| {
            let is_to_all = kernel.ethernet.dst == ALL;
            sent.frame.message.subcode() == kernel.subcode && (sent.dst == ALL) == is_to_all
        };
        let sent = segment.sent.iter().find(same).expect("a sent frame");
        let mut ours = vec![0; sent.frame_bytes];
        sent.frame
            .emit(sent.dst, sent.frame_bytes, &mut ours)
            .expect("room");
        assert_eq!(layout(&ours), layout(&golden));
    }
}
