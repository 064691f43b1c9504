//! Messages between two VIs of one NIC: copied from memory to memory.

use super::*;

const SEND_DONE: u32 = status::DONE | status::OP_SEND;
const WRITE_DONE: u32 = status::DONE | status::OP_RDMA_WRITE;
const RECEIVE_DONE: u32 = status::DONE | status::OP_RECEIVE;
/// More than one poll copies.
const LONG_BYTES: u32 = 256 << 10;
const LEVELS: [u16; 2] = [RELIABLE_DELIVERY, RELIABLE_RECEPTION];

fn shortcut_pair(test: &str, reliability: u16) -> (Endpoint, Endpoint) {
    let (near, far) = pair(test, reliability, |config| config.fc_vi.shortcut = true);
    assert!(core::ptr::eq(near.device, far.device));
    (near, far)
}

fn pattern(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|n| (n ^ n >> 8) as u8).collect()
}

fn counter(end: &Endpoint, name: &str) -> u64 {
    let all = end.device.counters();
    all.iter().find(|(n, _)| n == name).unwrap().1
}

impl Endpoint {
    /// Polls the NIC once; returns the status of the next receive.
    fn received(&self) -> Option<u32> {
        match queue_calls::done(self.vi, QueueKind::Receive).unwrap() {
            Done::Completed { status, .. } => Some(status),
            Done::NotDone | Done::Empty => None,
        }
    }

    fn post_recv_at(&self, line: u64, segments: &[DataSegment]) {
        let own = (self.memory, self.region);
        self.post_at(
            QueueKind::Receive,
            own,
            line,
            control::OP_SEND_RECV,
            segments,
        );
    }
}

/// The segment boundaries of both endpoints differ.
#[test]
fn shortcut_message_is_copied_between_segments_without_frames() {
    for reliability in LEVELS {
        let (near, far) = shortcut_pair(&format!("cut-send-{reliability}"), reliability);
        let frames = counter(&near, "tx_frames");
        let data = pattern(3000);
        near.memory.write(PAGE_BYTES, &data);
        far.post_recv_at(0, &[far.segment(5, 1000), far.segment(2000, 2500)]);
        let parts = [near.segment(0, 1700), near.segment(1700, 1300)];
        near.post_send(0, control::OP_SEND_RECV, &parts);
        assert_eq!(near.sent(), Some(SEND_DONE));
        assert_eq!(far.received(), Some(RECEIVE_DONE));
        assert_eq!(far.memory.read(PAGE_BYTES + 5, 1000), data[..1000]);
        assert_eq!(far.memory.read(PAGE_BYTES + 2000, 2000), data[1000..]);
        assert!(far.memory.is_untouched(PAGE_BYTES + 1005, 995));
        assert!(far.memory.is_untouched(PAGE_BYTES + 4000, 500));
        assert_eq!(counter(&near, "tx_frames"), frames);
        assert_eq!(counter(&near, "shortcut_messages"), 1);
        assert_eq!(counter(&near, "shortcut_bytes"), 3000);
        far.close();
        near.close();
    }
}

#[test]
fn shortcut_rdma_completes_when_bytes_are_placed() {
    let (near, far) = shortcut_pair("cut-rdma", RELIABLE_DELIVERY);
    let data = pattern(777);
    far.memory.write(PAGE_BYTES, &data);
    near.post_read(0, near.segment(3, 777), far.segment(0, 777));
    assert_eq!(near.sent(), Some(READ_DONE));
    assert_eq!(near.memory.read(PAGE_BYTES + 3, 777), data);
    let target = remote(far.segment(1001, 0));
    near.post_send(1, control::OP_RDMA_WRITE, &[target, near.segment(3, 777)]);
    assert_eq!(near.sent(), Some(WRITE_DONE));
    assert_eq!(far.memory.read(PAGE_BYTES + 1001, 777), data);
    assert!(far.memory.is_untouched(PAGE_BYTES + 1001 + 777, 64));
    far.close();
    near.close();
}

/// A program may send from the buffer into which it receives.
#[test]
fn shortcut_copies_overlapping_buffers() {
    let (near, far) = shortcut_pair("cut-overlap", RELIABLE_DELIVERY);
    let data = pattern(4096);
    near.memory.write(PAGE_BYTES, &data);
    let shared = far.register(near.memory);
    let into = DataSegment {
        handle: shared,
        ..near.segment(64, 4096)
    };
    far.post_recv(0, into);
    near.post_send(0, control::OP_SEND_RECV, &[near.segment(0, 4096)]);
    assert_eq!(near.sent(), Some(SEND_DONE));
    assert_eq!(far.received(), Some(RECEIVE_DONE));
    assert_eq!(near.memory.read(PAGE_BYTES + 64, 4096), data);
    far.close();
    near.close();
}

#[test]
fn long_shortcut_message_yields_to_other_vis() {
    let (near, far) = shortcut_pair("cut-polls", RELIABLE_DELIVERY);
    let data = pattern(LONG_BYTES);
    near.memory.write(PAGE_BYTES, &data);
    far.post_recv(0, far.segment(0, LONG_BYTES));
    near.post_recv(8, near.segment(LONG_BYTES as usize, 8));
    near.post_send(0, control::OP_SEND_RECV, &[near.segment(0, LONG_BYTES)]);
    let half = PAGE_BYTES + LONG_BYTES as usize / 2;
    assert!(far.memory.is_untouched(half, 8), "not in one poll");
    let end = LONG_BYTES as usize;
    far.post_send(8, control::OP_SEND_RECV, &[far.segment(end, 8)]);
    assert_eq!(
        near.received(),
        Some(RECEIVE_DONE),
        "the other VI is served meanwhile"
    );
    assert_eq!(far.received(), None);
    assert_eq!(far.wait_sent(&near), SEND_DONE);
    assert_eq!(near.wait_sent(&far), SEND_DONE);
    assert_eq!(far.received(), Some(RECEIVE_DONE));
    assert_eq!(far.memory.read(PAGE_BYTES, LONG_BYTES as usize), data);
    far.close();
    near.close();
}

/// What is removed in the middle of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removed {
    SendersMemory,
    ReceiversMemory,
    Sender,
    Receiver,
}

/// Returns the error bits of the send and of the receive, and the number of VIs whose loss of connection is reported.
fn outcome(removed: Removed, reliability: u16) -> (u32, u32, usize) {
    let refused = if reliability == RELIABLE_RECEPTION {
        status::REMOTE_DESC_ERROR
    } else {
        0
    };
    let flushed = status::DESC_FLUSHED_ERROR;
    let partial = status::PROTECTION_ERROR | status::PARTIAL_ERROR;
    match removed {
        Removed::SendersMemory => (partial, flushed, 2),
        Removed::ReceiversMemory => (refused, status::PROTECTION_ERROR, 2),
        Removed::Sender | Removed::Receiver => (flushed, flushed, 1),
    }
}

#[test]
fn removal_during_shortcut_message_ends_it_on_both_vis() {
    let all = [
        Removed::SendersMemory,
        Removed::ReceiversMemory,
        Removed::Sender,
        Removed::Receiver,
    ];
    for (reliability, removed) in LEVELS.iter().flat_map(|l| all.map(|removed| (*l, removed))) {
        let (near, far) =
            shortcut_pair(&format!("cut-goes-{reliability}-{removed:?}"), reliability);
        let buffer = |end: &Endpoint| {
            let pages = Pages::new(LONG_BYTES as usize);
            let segment = DataSegment {
                address: pages.address,
                handle: end.register(pages),
                length: LONG_BYTES,
            };
            (pages, segment)
        };
        let ((source, from), (sink, into)) = (buffer(&near), buffer(&far));
        source.write(0, &pattern(LONG_BYTES));
        far.post_recv(0, into);
        near.post_send(0, control::OP_SEND_RECV, &[from]);
        let last = LONG_BYTES as usize - 8;
        assert!(!sink.is_untouched(0, 8) && sink.is_untouched(last, 8));
        match removed {
            Removed::SendersMemory => nic::deregister(near.nic, from.address, from.handle),
            Removed::ReceiversMemory => nic::deregister(far.nic, into.address, into.handle),
            Removed::Sender => nic::disconnect(near.vi),
            Removed::Receiver => nic::disconnect(far.vi),
        }
        .unwrap();
        let (send_error, receive_error, losses) = outcome(removed, reliability);
        let what = format!("{removed:?} at {reliability}");
        let sent = near.wait_sent(&far);
        assert_eq!(sent, SEND_DONE | send_error, "{what}");
        let received = far.received();
        assert_eq!(received, Some(RECEIVE_DONE | receive_error), "{what}");
        let lost = vec![(ErrorCode::ConnLost, 0); losses];
        assert_eq!(near.take_errors(), lost, "{what}");
        assert!(
            sink.is_untouched(last, 8),
            "{what}: the remaining bytes were not copied"
        );
        far.close();
        near.close();
    }
}
