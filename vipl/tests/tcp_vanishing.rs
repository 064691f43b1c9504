//! Memory that a program takes back while VI/TCP is at it (docs/spec/vitcp.md, Errors).

mod common;

use std::io::ErrorKind;
use std::net::Shutdown;
use std::thread;
use std::time::Instant;

use common::raw::{PAGE_BYTES, Pages};
use common::stranger::{
    DESCRIPTOR_ERROR, END, Heard, IMMEDIATE, LEVELS, Meeting, PROTECTION_ERROR, READ_REQUEST,
    READ_RESPONSE, RELIABLE, SEND, Stranger, TRANSMIT_ERROR, WRITE, goes_on, is_over, rdma,
    told_of,
};
use common::tls::counter;
use common::{End, PATIENCE, WAIT};
use pmd::descriptor::{ControlSegment, DataSegment, control, status};
use vipl::{
    Done, ErrorCode, MemAttributes, MemoryHandle, RawDescriptor, ReliabilityLevel, RemoteBuffer,
    ViState, provider as vip,
};

/// Of what is cut off: more than TCP takes when nobody reads.
const LONG_BYTES: usize = 16 << 20;

/// One of ours with memory that it registers by itself: descriptors, and data apart from them.
struct Owner {
    end: End,
    lines: Pages,
    lines_handle: MemoryHandle,
    data: Pages,
    data_handle: MemoryHandle,
}

impl Owner {
    fn new(level: ReliabilityLevel, data_bytes: usize) -> (Self, Stranger) {
        let mut meeting = Meeting::at(level);
        meeting.mtu_bytes = LONG_BYTES as u32;
        let reliable = level != ReliabilityLevel::Unreliable;
        let (end, stranger) = meeting.hold(
            |config| {
                config.max_transfer_bytes = LONG_BYTES as u32;
                config.max_in_flight = 256;
            },
            |vi| {
                vi.max_transfer_bytes(LONG_BYTES as u64)
                    .rdma_write(true)
                    .rdma_read(reliable)
            },
        );
        let pages = |pages: usize| {
            let pages = Pages::new(pages);
            let attributes = MemAttributes {
                ptag: Some(end.ptag.handle()),
                rdma_write: true,
                rdma_read: true,
            };
            let (nic, at, bytes) = (end.nic.handle(), pages.at(0), pages.bytes() as u64);
            // SAFETY: mapped until dropped, which is behind the NIC.
            let handle = unsafe { vip::register_mem(nic, at, bytes, &attributes) }.unwrap();
            (pages, handle)
        };
        let (lines, lines_handle) = pages(8);
        let (data, data_handle) = pages(data_bytes.div_ceil(PAGE_BYTES));
        let owner = Self {
            end,
            lines,
            lines_handle,
            data,
            data_handle,
        };
        (owner, stranger)
    }

    /// The data is no memory for VIs any more.
    fn take_back(&self) {
        let (nic, at) = (self.end.nic.handle(), self.data.at(0));
        vip::deregister_mem(nic, at, self.data_handle).unwrap();
    }

    /// Writes a descriptor of so much data into a line: with an address segment for RDMA.
    fn describe(&self, line: usize, operation: u16, bytes: usize) -> *mut RawDescriptor {
        let mut descriptor = RawDescriptor::default();
        let remote = DataSegment {
            address: 0x1000,
            handle: 7,
            length: 0,
        };
        let data = DataSegment {
            address: self.data.at(0),
            handle: self.data_handle.0,
            length: bytes as u32,
        };
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
        let at = self.lines.at(line * 64) as *mut RawDescriptor;
        // SAFETY: a line of these pages, which is ours while it is not posted.
        unsafe { at.write(descriptor) };
        at
    }

    fn post_recv(&self, line: usize, bytes: usize) {
        let at = self.describe(line, control::OP_SEND_RECV, bytes);
        // SAFETY: left alone until it comes back, or the NIC is closed.
        unsafe { vip::post_recv(self.end.vi.handle(), at, self.lines_handle) }.unwrap();
    }

    fn post_send(&self, line: usize, operation: u16, bytes: usize) {
        let at = self.describe(line, operation, bytes);
        // SAFETY: as above.
        unsafe { vip::post_send(self.end.vi.handle(), at, self.lines_handle) }.unwrap();
    }

    fn received(&self) -> u32 {
        errors_of(vip::recv_wait(self.end.vi.handle(), WAIT).unwrap())
    }

    fn sent(&self) -> u32 {
        errors_of(vip::send_wait(self.end.vi.handle(), WAIT).unwrap())
    }

    /// Waits until so many segments have come.
    fn await_segments(&self, segments: u64) {
        let begun = Instant::now();
        while counter(&self.end.nic, "rx_segments") < segments {
            assert!(begun.elapsed() < PATIENCE, "they do not come");
        }
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
        // Before the memory goes: what is still posted is the VI's.
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

/// What a stranger hears, and whether it ends within a segment.
fn hear_all(stranger: &mut Stranger) -> (Vec<Heard>, bool) {
    let mut all = Vec::new();
    loop {
        match stranger.hear_whole() {
            Ok(Some(heard)) => all.push(heard),
            Ok(None) => return (all, false),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return (all, true),
            Err(error) => panic!("{error}"),
        }
    }
}

/// What became of a message of which TCP had a part when its memory went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// It was not begun.
    Before,
    /// It ended between two segments, and the other end was told.
    Between,
    /// It ended within a segment, and so did the stream.
    Within,
}

/// Posts messages until TCP has no room for the last one, and takes their memory back.
fn cut_off(level: ReliabilityLevel, bytes: usize) -> (Owner, Stranger, usize) {
    loop {
        let (owner, stranger) = Owner::new(level, bytes);
        let messages = || counter(&owner.end.nic, "tx_messages");
        let full = || counter(&owner.end.nic, "tx_no_room_in_tcp");
        let (first, before) = (messages(), full());
        let sent = || (messages() - first) as usize;
        let mut posted = 0;
        while full() == before {
            owner.post_send(posted, control::OP_SEND_RECV, bytes);
            posted += 1;
            // The NIC's thread may be the one that sends it.
            let begun = Instant::now();
            while full() == before && sent() < posted {
                assert!(begun.elapsed() < PATIENCE, "nobody sends it");
                thread::yield_now();
            }
        }
        owner.take_back();
        // TCP may have found room meanwhile.
        if sent() < posted {
            return (owner, stranger, posted);
        }
    }
}

/// Where TCP stops is its own affair: whatever that is, both ends must make the same of it.
#[test]
fn a_message_whose_memory_goes_is_the_same_to_both_ends() {
    for (level, bytes) in LEVELS
        .into_iter()
        .flat_map(|l| [(l, LONG_BYTES), (l, 60_000)])
    {
        let (owner, mut stranger, posted) = cut_off(level, bytes);
        let hears = thread::spawn(move || hear_all(&mut stranger));
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
        let goes_on = level == ReliabilityLevel::Unreliable && cut != Cut::Within;
        if goes_on {
            owner.end.vi.post_send(owner.end.message(b"next")).unwrap();
            assert_eq!(
                errors_of(vip::send_wait(owner.end.vi.handle(), WAIT).unwrap()),
                0
            );
            assert_eq!(owner.end.vi.state().unwrap(), ViState::Connected);
            owner.end.vi.disconnect().unwrap();
        } else {
            assert_eq!(owner.end.errors.next_of(&owner.end.vi), ErrorCode::ConnLost);
        }
        assert!(owner.end.errors.none());
        let (heard, within) = hears.join().unwrap();
        assert_eq!(within, cut == Cut::Within, "{level:?}, {bytes}: {cut:?}");
        let ends = heard.iter().filter(|heard| heard.flags & END != 0);
        let (told, whole): (Vec<_>, Vec<_>) =
            ends.partition(|heard| heard.flags & TRANSMIT_ERROR != 0);
        assert_eq!(told.len(), usize::from(cut == Cut::Between));
        assert!(told.iter().all(|heard| heard.behind.is_empty()));
        assert_eq!(whole.len(), posted - 1 + usize::from(goes_on));
    }
}

#[test]
fn an_answer_whose_memory_goes_is_the_same_to_both_ends() {
    for level in RELIABLE {
        let (owner, mut stranger) = Owner::new(level, LONG_BYTES);
        let request = rdma(owner.remote(), LONG_BYTES as u32, &[]);
        let before = counter(&owner.end.nic, "tx_no_room_in_tcp");
        stranger.say(READ_REQUEST, END, &request);
        let begun = Instant::now();
        while counter(&owner.end.nic, "tx_no_room_in_tcp") == before {
            assert!(begun.elapsed() < PATIENCE, "TCP takes all of it");
        }
        owner.take_back();
        // Who reads is told, and leaves, or finds the end of the stream within a segment.
        let mut bytes = 0;
        let told = loop {
            match stranger.hear_whole() {
                Ok(Some(heard)) if heard.kind == READ_RESPONSE => {
                    assert_eq!(heard.offset as usize, bytes);
                    bytes += heard.behind.len() - 16;
                    if heard.flags & END != 0 {
                        assert_eq!(
                            (heard.flags, heard.behind.len()),
                            (END | TRANSMIT_ERROR, 16)
                        );
                        break true;
                    }
                }
                Ok(heard) => assert!(heard.is_some(), "{level:?}: nothing is said"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                    break false;
                }
            }
        };
        assert!(bytes > 0 && bytes < LONG_BYTES, "{bytes}");
        if told {
            stranger.tcp.shutdown(Shutdown::Write).unwrap();
        }
        assert_eq!(owner.end.errors.next_of(&owner.end.vi), ErrorCode::ConnLost);
        assert!(owner.end.errors.none());
    }
}

#[test]
fn a_receive_whose_memory_goes_while_its_message_comes_is_a_protection_error() {
    for level in LEVELS {
        let (owner, mut stranger) = Owner::new(level, 64);
        owner.post_recv(0, 64);
        owner.end.vi.post_recv(owner.end.room(64)).unwrap();
        let before = counter(&owner.end.nic, "rx_segments");
        stranger.say(SEND, 0, b"half of");
        owner.await_segments(before + 1);
        owner.take_back();
        let rest = stranger.further(SEND, END, 7, b" a message");
        stranger.write(&rest);
        assert_eq!(owner.received(), status::PROTECTION_ERROR, "{level:?}");
        if level == ReliabilityLevel::Unreliable {
            goes_on(&owner.end, &mut stranger);
            continue;
        }
        assert_eq!(owner.received(), status::DESC_FLUSHED_ERROR);
        let told = told_of(level, stranger.number, DESCRIPTOR_ERROR);
        is_over(&owner.end, &mut stranger, &told);
    }
}

#[test]
fn a_target_that_goes_while_it_is_written_is_a_protection_error() {
    for (level, immediate) in LEVELS.into_iter().flat_map(|l| [(l, 0), (l, IMMEDIATE)]) {
        let (owner, mut stranger) = Owner::new(level, 64);
        for _ in 0..2 {
            owner.end.vi.post_recv(owner.end.room(64)).unwrap();
        }
        let behind = |payload: &[u8]| rdma(owner.remote(), 17, payload);
        let before = counter(&owner.end.nic, "rx_segments");
        stranger.say(WRITE, immediate, &behind(b"half of"));
        owner.await_segments(before + 1);
        owner.take_back();
        let rest = stranger.further(WRITE, END | immediate, 7, &behind(b" a message"));
        stranger.write(&rest);
        if immediate == 0 {
            assert_eq!(
                owner.end.errors.next_of(&owner.end.vi),
                ErrorCode::RdmawProt
            );
        } else {
            assert_eq!(owner.received(), status::PROTECTION_ERROR, "{level:?}");
        }
        if level == ReliabilityLevel::Unreliable {
            goes_on(&owner.end, &mut stranger);
            continue;
        }
        let told = told_of(level, stranger.number, PROTECTION_ERROR);
        is_over(&owner.end, &mut stranger, &told);
    }
}

#[test]
fn a_reader_whose_memory_goes_while_data_comes_has_a_protection_error() {
    for level in RELIABLE {
        let (owner, mut stranger) = Owner::new(level, 64);
        owner.post_send(0, control::OP_RDMA_READ, 16);
        let asked = stranger.hear_a(READ_REQUEST);
        let before = counter(&owner.end.nic, "rx_segments");
        for (flags, offset) in [(0, 0u32), (END, 8)] {
            let numbers = (asked.number, stranger.heard);
            let behind = [&asked.behind[..], b"half of."].concat();
            let mut answer = Stranger::segment(READ_RESPONSE, flags, numbers, &behind);
            answer[4..8].copy_from_slice(&offset.to_be_bytes());
            stranger.write(&answer);
            if offset == 0 {
                owner.await_segments(before + 1);
                owner.take_back();
            }
        }
        let expected = status::PROTECTION_ERROR | status::PARTIAL_ERROR;
        assert_eq!(owner.sent(), expected, "{level:?}");
        is_over(&owner.end, &mut stranger, &[]);
    }
}
