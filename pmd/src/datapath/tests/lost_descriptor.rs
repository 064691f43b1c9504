//! A descriptor whose memory is deregistered before it completes fails its VI (VIPL 3.8.1, 6.3.1), also at Unreliable
//! Delivery. Later work of the VI in the same poll is not done.

use std::net::Ipv4Addr;

use super::*;
use crate::config::{Network, NicConfig, ViTcp};

const SEND_DONE: u32 = status::DONE | status::OP_SEND;
const SEND_FLUSHED: u32 = SEND_DONE | status::DESC_FLUSHED_ERROR;
const SEND_PROTECTION: u32 = SEND_DONE | status::PROTECTION_ERROR;

/// A transport between two VIs: a name for the segment, and the configuration.
type Setup = (&'static str, fn(&mut NicConfig));

/// Descriptors in a page of their own.
struct Descriptors {
    pages: Pages,
    region: u32,
}

impl Descriptors {
    fn new(end: &Endpoint) -> Self {
        let pages = Pages::new(PAGE_BYTES);
        let region = end.register(pages);
        Self { pages, region }
    }

    /// Posts a descriptor without data segments.
    fn post(&self, end: &Endpoint, queue: QueueKind) {
        let own = (self.pages, self.region);
        end.post_at(queue, own, 0, control::OP_SEND_RECV, &[]);
    }

    fn deregister(&self, end: &Endpoint) {
        nic::deregister(end.nic, self.pages.address, self.region).unwrap();
    }

    /// The asynchronous errors of the VI that had posted the descriptor.
    fn errors(&self) -> [(ErrorCode, u64); 2] {
        [
            (ErrorCode::CompProt, self.pages.address),
            (ErrorCode::ConnLost, 0),
        ]
    }
}

/// Posts under the backend lock, so that all is processed by one later poll.
fn post_for_one_poll(end: &Endpoint, post: impl FnOnce()) {
    let backend_lock = end.device.lock();
    post();
    drop(backend_lock);
}

/// Configures VI/TCP at an address that no other process and no other test has: NICs at one address share a TCP port,
/// and the NICs of a test do not take part in that while the test does not poll them.
fn over_tcp(config: &mut NicConfig, test: u32) {
    let pid = std::process::id() & 0x3F_FFFF;
    config.network = Network::ViTcp(ViTcp::default());
    config.host = Some(Ipv4Addr::from_bits(0x7F80_0000 | test << 22 | pid).into());
}

#[test]
fn write_behind_lost_receive_in_one_burst_is_dropped() {
    let (near, far) = pair("lost-receive", UNRELIABLE_DELIVERY, |_| ());
    let lost = Descriptors::new(&far);
    lost.post(&far, QueueKind::Receive);
    lost.deregister(&far);
    near.post_send(0, control::OP_SEND_RECV, &[]);
    // Would be refused with an error of its own, if it were processed.
    let forbidden = DataSegment {
        handle: far.region ^ 0x0100_0000,
        ..remote(far.segment(0, 8))
    };
    let segments = [forbidden, near.segment(0, 8)];
    near.post_send(1, control::OP_RDMA_WRITE, &segments);
    far.poll();
    assert_eq!(far.take_errors(), lost.errors());
    near.close();
    far.close();
}

#[test]
fn send_behind_lost_send_in_one_poll_is_flushed() {
    let setups: [Setup; 3] = [
        ("lost-send", |_| ()),
        ("lost-send-shortcut", |config| config.fc_vi.shortcut = true),
        ("lost-send-tcp", |config| over_tcp(config, 0)),
    ];
    for (test, setup) in setups {
        let (near, far) = pair(test, UNRELIABLE_DELIVERY, setup);
        let lost = Descriptors::new(&near);
        post_for_one_poll(&near, || {
            lost.post(&near, QueueKind::Send);
            near.post_send(0, control::OP_SEND_RECV, &[]);
        });
        lost.deregister(&near);
        assert_eq!(near.wait_sent(&far), SEND_PROTECTION, "{test}");
        assert_eq!(near.wait_sent(&far), SEND_FLUSHED, "{test}");
        assert_eq!(near.take_errors()[..2], lost.errors(), "{test}");
        near.close();
        far.close();
    }
}

#[test]
fn answered_send_behind_lost_send_is_flushed() {
    let setups: [Setup; 2] = [
        ("lost-answered", |_| ()),
        ("lost-answered-tcp", |config| over_tcp(config, 1)),
    ];
    for (test, setup) in setups {
        let (near, far) = pair(test, RELIABLE_DELIVERY, setup);
        for line in 0..2 {
            far.post_recv(line, far.segment(0, 8));
        }
        let lost = Descriptors::new(&near);
        near.post_read(0, near.segment(0, 8), far.segment(0, 8));
        lost.post(&near, QueueKind::Send);
        near.post_send(1, control::OP_SEND_RECV, &[]);
        while near.in_flight() < 3 {
            near.poll();
        }
        lost.deregister(&near);
        assert_eq!(near.wait_sent(&far), READ_DONE, "{test}");
        assert_eq!(near.wait_sent(&far), SEND_DONE, "{test}");
        assert_eq!(near.wait_sent(&far), SEND_FLUSHED, "{test}");
        assert_eq!(near.take_errors(), lost.errors(), "{test}");
        near.close();
        far.close();
    }
}

#[test]
fn message_behind_lost_receive_is_not_moved_by_shortcut() {
    let (near, far) = pair("lost-moved", UNRELIABLE_DELIVERY, |config| {
        config.fc_vi.shortcut = true;
    });
    let lost = Descriptors::new(&far);
    lost.post(&far, QueueKind::Receive);
    far.post_recv(0, far.segment(0, 8));
    lost.deregister(&far);
    post_for_one_poll(&near, || {
        for line in 0..2 {
            near.post_send(line, control::OP_SEND_RECV, &[]);
        }
    });
    assert_eq!(near.wait_sent(&far), SEND_DONE);
    assert_eq!(near.wait_sent(&far), SEND_FLUSHED);
    assert_eq!(far.take_errors()[..2], lost.errors());
    near.close();
    far.close();
}
