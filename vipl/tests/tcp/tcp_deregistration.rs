//! Memory that is deregistered while VI/TCP sends from it or receives into it (docs/spec/vitcp.md, Errors).

use std::io::ErrorKind;
use std::net::Shutdown;
use std::thread;

use crate::common::raw::{PAGE_BYTES, Pages, segment};
use crate::common::scripted_peer::{
    ConnectionSetup, DESCRIPTOR_ERROR, END, IMMEDIATE, PROTECTION_ERROR, READ_REQUEST,
    READ_RESPONSE, ReceivedSegment, SEND, ScriptedPeer, TRANSMIT_ERROR, WRITE, expect_connected,
    expect_connection_lost, expected_reports, rdma,
};
use crate::common::{
    Endpoint, LEVELS, READ_WRITE, RELIABLE, WAIT, counter, post_until_tcp_is_full, wait_until,
};
use vi_core::descriptor::{ControlSegment, control};
use vi_types::status;
use vipl::{
    Done, ErrorCode, MemoryHandle, RawDescriptor, ReliabilityLevel, RemoteBuffer, ViState,
    provider as vip,
};

/// Length of interrupted messages: more than the TCP buffers hold while the peer does not read.
const LONG_BYTES: usize = 16 << 20;

/// An endpoint with separately registered memory for descriptors and for data.
struct Owner {
    end: Endpoint,
    slots: Pages,
    slots_handle: MemoryHandle,
    data: Pages,
    data_handle: MemoryHandle,
}

impl Owner {
    fn new(level: ReliabilityLevel, data_bytes: usize) -> (Self, ScriptedPeer) {
        let mut setup = ConnectionSetup::new(level);
        setup.mtu_bytes = LONG_BYTES as u32;
        let reliable = level != ReliabilityLevel::UnreliableDelivery;
        let (end, peer) = setup.connect(
            |config| {
                config.limits.max_transfer_bytes = LONG_BYTES as u32;
                config.limits.max_in_flight = 256;
            },
            |vi| {
                vi.max_transfer_bytes(LONG_BYTES as u64)
                    .rdma_write(true)
                    .rdma_read(reliable)
            },
        );
        let pages = |pages: usize| {
            let pages = Pages::new(pages);
            let ptag = Some(end.ptag.handle());
            let handle = pages.register_for(end.nic.handle(), ptag, READ_WRITE);
            (pages, handle.unwrap())
        };
        let (slots, slots_handle) = pages(8);
        let (data, data_handle) = pages(data_bytes.div_ceil(PAGE_BYTES));
        let owner = Self {
            end,
            slots,
            slots_handle,
            data,
            data_handle,
        };
        (owner, peer)
    }

    fn counter(&self, name: &str) -> u64 {
        counter(self.end.nic.handle(), name)
    }

    /// Deregisters the data memory.
    fn deregister_data(&self) {
        let (nic, at) = (self.end.nic.handle(), self.data.at(0));
        vip::deregister_mem(nic, at, self.data_handle).unwrap();
    }

    /// Writes a descriptor for `bytes` of data into a slot, with an address segment for RDMA.
    fn write_descriptor(&self, slot: usize, operation: u16, bytes: usize) -> *mut RawDescriptor {
        let mut descriptor = RawDescriptor::default();
        let remote = segment(0x1000, MemoryHandle(7), 0);
        let data = segment(self.data.at(0), self.data_handle, bytes as u32);
        descriptor.control = ControlSegment {
            control: operation,
            length: data.length,
            segment_count: 1,
            ..ControlSegment::default()
        };
        descriptor.segments[0] = data;
        if operation != control::OP_SEND_RECV {
            descriptor.control.segment_count = 2;
            (descriptor.segments[0], descriptor.segments[1]) = (remote, data);
        }
        let at = self.slots.at(slot * 64) as *mut RawDescriptor;
        // SAFETY: a slot of these pages, which the library does not use while it is not posted.
        unsafe { at.write(descriptor) };
        at
    }

    fn post_recv(&self, slot: usize, bytes: usize) {
        let at = self.write_descriptor(slot, control::OP_SEND_RECV, bytes);
        // SAFETY: not accessed until it is returned, or the NIC is closed.
        unsafe { vip::post_recv(self.end.vi.handle(), at, self.slots_handle) }.unwrap();
    }

    fn post_send(&self, slot: usize, operation: u16, bytes: usize) {
        let at = self.write_descriptor(slot, operation, bytes);
        // SAFETY: as above.
        unsafe { vip::post_send(self.end.vi.handle(), at, self.slots_handle) }.unwrap();
    }

    fn received(&self) -> u32 {
        errors_of(vip::recv_wait(self.end.vi.handle(), WAIT).unwrap())
    }

    fn sent(&self) -> u32 {
        errors_of(vip::send_wait(self.end.vi.handle(), WAIT).unwrap())
    }

    /// Waits until the NIC has received this number of segments.
    fn await_segments(&self, segments: u64) {
        wait_until("the segments arrive", || {
            self.counter("rx_segments") >= segments
        });
    }

    fn remote(&self) -> RemoteBuffer {
        RemoteBuffer {
            address: self.data.at(0),
            handle: self.data_handle,
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Before the memory is unmapped: the VI still has posted descriptors.
        self.end.vi.disconnect().unwrap();
        while vip::send_done(self.end.vi.handle()).is_ok_and(|done| done != Done::Empty) {}
        while vip::recv_done(self.end.vi.handle()).is_ok_and(|done| done != Done::Empty) {}
    }
}

fn errors_of(done: Done) -> u32 {
    match done {
        Done::Completed { status, .. } => status & status::ERROR_MASK,
        other => panic!("a descriptor was posted: {other:?}"),
    }
}

/// Receives all segments to end of file; returns also whether it is within a segment.
fn receive_all(peer: &mut ScriptedPeer) -> (Vec<ReceivedSegment>, bool) {
    let mut all = Vec::new();
    loop {
        match peer.try_receive() {
            Ok(Some(segment)) => all.push(segment),
            Ok(None) => return (all, false),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return (all, true),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Where a message ended whose memory was deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Before its first segment.
    Before,
    /// Between two segments; the peer received Transmit Error.
    Between,
    /// Within a segment, at which the stream ended.
    Within,
}

/// Posts messages until the TCP send buffer is full, and deregisters their memory.
fn interrupt(level: ReliabilityLevel, bytes: usize) -> (Owner, ScriptedPeer, usize) {
    loop {
        let (owner, peer) = Owner::new(level, bytes);
        let before = owner.counter("tx_messages");
        let posted = post_until_tcp_is_full(owner.end.nic.handle(), |message| {
            owner.post_send(message, control::OP_SEND_RECV, bytes);
        });
        owner.deregister_data();
        // TCP may have accepted the last one meanwhile.
        if owner.counter("tx_messages") - before < posted as u64 {
            return (owner, peer, posted);
        }
    }
}

/// TCP may accept any number of bytes: both ends must report the same result in each case.
#[test]
fn message_whose_memory_is_deregistered_fails_alike_at_both_sides() {
    for (level, bytes) in LEVELS
        .into_iter()
        .flat_map(|l| [(l, LONG_BYTES), (l, 60_000)])
    {
        let (owner, mut peer, posted) = interrupt(level, bytes);
        let receiver = thread::spawn(move || receive_all(&mut peer));
        let waits = level == ReliabilityLevel::ReliableReception;
        for sent in 1..posted {
            let expected = if waits { status::DESC_FLUSHED_ERROR } else { 0 };
            assert_eq!(owner.sent(), expected, "{level:?}: {sent} of {posted}");
        }
        let cut = match owner.sent() {
            status::PROTECTION_ERROR => Cut::Before,
            status::DESC_FLUSHED_ERROR => Cut::Within,
            both => {
                assert_eq!(both, status::PROTECTION_ERROR | status::PARTIAL_ERROR);
                Cut::Between
            }
        };
        let stays_connected = level == ReliabilityLevel::UnreliableDelivery && cut != Cut::Within;
        if stays_connected {
            owner.end.send_bytes(b"next");
            assert_eq!(owner.end.vi.state().unwrap(), ViState::Connected);
            owner.end.vi.disconnect().unwrap();
        } else {
            owner.end.expect_errors(&[ErrorCode::ConnLost]);
        }
        assert!(owner.end.errors.none());
        let (segments, within) = receiver.join().unwrap();
        assert_eq!(within, cut == Cut::Within, "{level:?}, {bytes}: {cut:?}");
        let last = segments.iter().filter(|segment| segment.flags & END != 0);
        let (failed, complete): (Vec<_>, Vec<_>) =
            last.partition(|segment| segment.flags & TRANSMIT_ERROR != 0);
        assert_eq!(failed.len(), usize::from(cut == Cut::Between));
        assert!(failed.iter().all(|segment| segment.body.is_empty()));
        assert_eq!(complete.len(), posted - 1 + usize::from(stays_connected));
    }
}

#[test]
fn read_response_whose_memory_is_deregistered_fails_alike_at_both_sides() {
    for level in RELIABLE {
        let (owner, mut peer) = Owner::new(level, LONG_BYTES);
        let request = rdma(owner.remote(), LONG_BYTES as u32, &[]);
        let before = owner.counter("tx_no_room_in_tcp");
        peer.send(READ_REQUEST, END, &request);
        wait_until("the TCP send buffer is full", || {
            owner.counter("tx_no_room_in_tcp") != before
        });
        owner.deregister_data();
        // The reader receives Transmit Error and closes, or receives end of file within a segment.
        let mut bytes = 0;
        let is_reported = loop {
            match peer.try_receive() {
                Ok(Some(segment)) if segment.kind == READ_RESPONSE => {
                    assert_eq!(segment.offset as usize, bytes);
                    bytes += segment.body.len() - 16;
                    if segment.flags & END != 0 {
                        assert_eq!(
                            (segment.flags, segment.body.len()),
                            (END | TRANSMIT_ERROR, 16)
                        );
                        break true;
                    }
                }
                Ok(segment) => assert!(segment.is_some(), "{level:?}: no error is reported"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                    break false;
                }
            }
        };
        assert!(bytes > 0 && bytes < LONG_BYTES, "{bytes}");
        if is_reported {
            peer.tcp.shutdown(Shutdown::Write).unwrap();
        }
        owner.end.expect_errors(&[ErrorCode::ConnLost]);
        assert!(owner.end.errors.none());
    }
}

#[test]
fn receive_memory_deregistered_during_a_message_is_a_protection_error() {
    for level in LEVELS {
        let (owner, mut peer) = Owner::new(level, 64);
        owner.post_recv(0, 64);
        owner.end.post_receives(1, 64);
        let before = owner.counter("rx_segments");
        peer.send(SEND, 0, b"half of");
        owner.await_segments(before + 1);
        owner.deregister_data();
        let rest = peer.continuation(SEND, END, 7, b" a message");
        peer.write(&rest);
        assert_eq!(owner.received(), status::PROTECTION_ERROR, "{level:?}");
        if level == ReliabilityLevel::UnreliableDelivery {
            expect_connected(&owner.end, &mut peer);
            continue;
        }
        assert_eq!(owner.received(), status::DESC_FLUSHED_ERROR);
        let reports = expected_reports(level, peer.number, DESCRIPTOR_ERROR);
        expect_connection_lost(&owner.end, &mut peer, &reports);
    }
}

#[test]
fn target_deregistered_during_a_write_is_a_protection_error() {
    for (level, immediate) in LEVELS.into_iter().flat_map(|l| [(l, 0), (l, IMMEDIATE)]) {
        let (owner, mut peer) = Owner::new(level, 64);
        owner.end.post_receives(2, 64);
        let body = |payload: &[u8]| rdma(owner.remote(), 17, payload);
        let before = owner.counter("rx_segments");
        peer.send(WRITE, immediate, &body(b"half of"));
        owner.await_segments(before + 1);
        owner.deregister_data();
        let rest = peer.continuation(WRITE, END | immediate, 7, &body(b" a message"));
        peer.write(&rest);
        if immediate == 0 {
            owner.end.expect_errors(&[ErrorCode::RdmawProt]);
        } else {
            assert_eq!(owner.received(), status::PROTECTION_ERROR, "{level:?}");
        }
        if level == ReliabilityLevel::UnreliableDelivery {
            expect_connected(&owner.end, &mut peer);
            continue;
        }
        let reports = expected_reports(level, peer.number, PROTECTION_ERROR);
        expect_connection_lost(&owner.end, &mut peer, &reports);
    }
}

#[test]
fn read_memory_deregistered_during_a_response_is_a_protection_error() {
    for level in RELIABLE {
        let (owner, mut peer) = Owner::new(level, 64);
        owner.post_send(0, control::OP_RDMA_READ, 16);
        let request = peer.receive_kind(READ_REQUEST);
        let before = owner.counter("rx_segments");
        for (flags, offset) in [(0, 0u32), (END, 8)] {
            let body = [&request.body[..], b"half of."].concat();
            peer.write(&peer.read_response(&request, flags, offset, &body));
            if offset == 0 {
                owner.await_segments(before + 1);
                owner.deregister_data();
            }
        }
        let expected = status::PROTECTION_ERROR | status::PARTIAL_ERROR;
        assert_eq!(owner.sent(), expected, "{level:?}");
        expect_connection_lost(&owner.end, &mut peer, &[]);
    }
}
