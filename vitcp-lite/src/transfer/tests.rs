//! Two ends that are joined by byte streams, and one end whose stream is scripted.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::collection::vec as any_vec;
use proptest::prelude::*;
use vi_types::misses::PeerMisses;
use vi_types::{AsyncError, MissLimits, Operation, ReliabilityLevel, Status, ViIndex, ViParams};

use super::{
    CloseReason, Counter, Counters, Established, Plan, Receiver, SendBatch, Stop, Transfer,
};
use crate::profile::SEGMENT_HEADER_BYTES;
use crate::testkit::{BASE, HANDLE, Host, Posted, REGION_BYTES, Received};
use crate::{
    Attributes, CeHeader, ExactLevel, Flags, IsCode, RdmaHeader, RemoteError, Security,
    SegmentHeader, SegmentType, ViErrorType,
};

const VI: ViIndex = ViIndex(3);
const MAX_TRANSFER_BYTES: u32 = 20_000;
/// Message numbers with which the ends begin: one wraps soon.
const FIRST: [u32; 2] = [u32::MAX - 2, 700];

fn params(level: ReliabilityLevel) -> ViParams {
    ViParams {
        level,
        max_transfer_bytes: MAX_TRANSFER_BYTES,
        rdma_write: true,
        rdma_read: level.is_reliable(),
    }
}

fn ce_header(level: ReliabilityLevel) -> CeHeader {
    CeHeader {
        attributes: Attributes {
            reliable: level.is_reliable(),
            rdma_write: true,
            rdma_read: level.is_reliable(),
            flow_control: false,
            peer_to_peer: false,
            level: match level {
                ReliabilityLevel::UnreliableDelivery => ExactLevel::Unspecified,
                ReliabilityLevel::ReliableDelivery => ExactLevel::Delivery,
                ReliabilityLevel::ReliableReception => ExactLevel::Reception,
            },
        },
        mtu_bytes: MAX_TRANSFER_BYTES,
        calling: Default::default(),
        called: Default::default(),
        read_window: 4,
        security: Security::default(),
    }
}

/// One end of a connection.
struct End {
    transfer: Transfer,
    host: Host,
    batch: SendBatch,
    misses: PeerMisses<crate::Source>,
    counters: Counters,
}

impl End {
    fn new(side: usize, level: ReliabilityLevel, segment_bytes: u32) -> Self {
        let mut transfer = Transfer::default();
        transfer.tx.number = FIRST[side];
        transfer.establish(&Established {
            params: params(level),
            theirs: &ce_header(level),
            message: FIRST[1 - side],
            credits: None,
            segment_bytes,
            max_in_flight: 8,
            max_reads: 4,
        });
        Self {
            transfer,
            host: Host::default(),
            batch: SendBatch::default(),
            misses: PeerMisses::new(MissLimits::default()),
            counters: Counters::default(),
        }
    }

    /// Sends once; TCP takes at most `limit` bytes. Returns them.
    fn send(&mut self, limit: usize) -> Result<Vec<u8>, CloseReason> {
        let (transfer, host) = (&mut self.transfer, &mut self.host);
        transfer.tx.complete_answered(VI, host);
        let stop = Plan::new(VI, transfer, &mut self.batch, host).all()?;
        if self.batch.is_empty() {
            if let Stop::Fault(status) = stop {
                transfer.complete_with_fault(VI, status, host)?;
            }
            return Ok(Vec::new());
        }
        let bytes = self.batch.buffered(self.batch.bytes());
        let taken = bytes[..limit.min(bytes.len())].to_vec();
        let planned = (&self.batch, &mut self.counters);
        transfer.apply_written(VI, taken.len(), planned, host);
        Ok(taken)
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        Receiver {
            now_ns: 0,
            vi: VI,
            transfer: &mut self.transfer,
            path: &mut self.host,
            misses: &mut self.misses,
            counters: &mut self.counters,
        }
        .feed(bytes)
    }

    /// Sends all that may be sent.
    fn send_all(&mut self) -> Vec<u8> {
        core::iter::from_fn(|| {
            let bytes = self.send(usize::MAX).unwrap();
            (!bytes.is_empty()).then_some(bytes)
        })
        .flatten()
        .collect()
    }
}

/// An operation of one end, as a test describes it.
#[derive(Clone, Debug)]
enum Step {
    Send {
        bytes: usize,
        immediate: Option<u32>,
    },
    Write {
        offset: usize,
        bytes: usize,
        immediate: Option<u32>,
    },
    Read {
        offset: usize,
        bytes: usize,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let any_bytes = || prop_oneof![0..200usize, 0..MAX_TRANSFER_BYTES as usize];
    let in_region = || (any_bytes(), 0..REGION_BYTES);
    let fit = |(bytes, offset): (usize, usize)| {
        let bytes = bytes.min(REGION_BYTES);
        (bytes, offset.min(REGION_BYTES - bytes))
    };
    prop_oneof![
        (any_bytes(), any::<Option<u32>>())
            .prop_map(|(bytes, immediate)| Step::Send { bytes, immediate }),
        (in_region(), any::<Option<u32>>()).prop_map(move |(at, immediate)| {
            let (bytes, offset) = fit(at);
            Step::Write {
                offset,
                bytes,
                immediate,
            }
        }),
        in_region().prop_map(move |at| {
            let (bytes, offset) = fit(at);
            Step::Read { offset, bytes }
        }),
    ]
}

/// What both ends must show at last, by applying the steps in order.
struct Model {
    region: Vec<u8>,
    received: Vec<Received>,
    sent: Vec<(Status, u32)>,
    read: Vec<Vec<u8>>,
}

/// Returns the bytes of message number `at`.
fn pattern(at: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i * 7 + at * 31 + i / 251) as u8)
        .collect()
}

fn run_model(steps: &[Step], can_read: bool) -> Model {
    let mut model = Model {
        region: vec![0; REGION_BYTES],
        received: Vec::new(),
        sent: Vec::new(),
        read: Vec::new(),
    };
    for (at, step) in steps.iter().enumerate() {
        let (bytes, completion) = match *step {
            Step::Send { bytes, immediate } => {
                (bytes, Some((pattern(at, bytes), immediate, false)))
            }
            Step::Write {
                offset,
                bytes,
                immediate,
            } => {
                model.region[offset..offset + bytes].copy_from_slice(&pattern(at, bytes));
                (bytes, immediate.map(|some| (Vec::new(), Some(some), true)))
            }
            Step::Read { .. } if !can_read => continue,
            Step::Read { offset, bytes } => {
                model
                    .read
                    .push(model.region[offset..offset + bytes].to_vec());
                (bytes, None)
            }
        };
        model.sent.push((Status::OK, bytes as u32));
        if let Some((payload, immediate, remote_write)) = completion {
            model.received.push(Received {
                status: Status::OK,
                length_bytes: bytes as u32,
                payload,
                immediate,
                remote_write,
            });
        }
    }
    model
}

fn post(host: &mut Host, at: usize, step: &Step) {
    let remote = |offset: usize| (BASE + offset as u64, HANDLE);
    let (operation, bytes, immediate) = match *step {
        Step::Send { bytes, immediate } => (Operation::Send, bytes, immediate),
        Step::Write {
            offset,
            bytes,
            immediate,
        } => (
            Operation::Write {
                remote: remote(offset),
            },
            bytes,
            immediate,
        ),
        Step::Read { offset, bytes } => (
            Operation::Read {
                remote: remote(offset),
            },
            bytes,
            None,
        ),
    };
    let data = match operation {
        Operation::Read { .. } => vec![0; bytes],
        Operation::Send | Operation::Write { .. } => pattern(at, bytes),
    };
    host.sends.push_back(Posted {
        operation,
        data,
        immediate,
    });
}

fn any_level() -> impl Strategy<Value = ReliabilityLevel> {
    prop_oneof![
        Just(ReliabilityLevel::UnreliableDelivery),
        Just(ReliabilityLevel::ReliableDelivery),
        Just(ReliabilityLevel::ReliableReception),
    ]
}

proptest! {
    #![proptest_config(crate::seeded::config())]

    /// Any operations end as in the model, however TCP splits the streams and whatever it takes of each call.
    #[test]
    fn operations_end_as_in_the_model_for_any_fragmentation(
        level in any_level(),
        steps in any_vec(any_step(), 1..12),
        segment_bytes in 60..9000u32,
        taken in any_vec(1..6000usize, 1..30),
        split in any_vec(1..3000usize, 1..30),
    ) {
        let can_read = level.is_reliable();
        let model = run_model(&steps, can_read);
        let mut ends = [0, 1].map(|side| End::new(side, level, segment_bytes));
        for (at, step) in steps.iter().enumerate() {
            if can_read || !matches!(step, Step::Read { .. }) {
                post(&mut ends[0].host, at, step);
            }
        }
        for _ in 0..model.received.len() {
            ends[1].host.receives.push_back(MAX_TRANSFER_BYTES as usize);
        }
        let mut streams = [VecDeque::new(), VecDeque::new()];
        let (mut taken, mut split) = (taken.iter().cycle(), split.iter().cycle());
        loop {
            let mut progressed = false;
            for side in [0, 1] {
                let sent = ends[side].send(*taken.next().unwrap()).unwrap();
                progressed |= !sent.is_empty();
                streams[side].extend(sent);
                let count = streams[side].len().min(*split.next().unwrap());
                let bytes: Vec<u8> = streams[side].drain(..count).collect();
                progressed |= count > 0;
                ends[1 - side].receive(&bytes).unwrap();
            }
            if !progressed {
                break;
            }
        }
        let [sender, receiver] = ends;
        prop_assert_eq!(sender.host.sent, model.sent);
        prop_assert!(sender.host.read == model.read, "data of reads");
        prop_assert!(receiver.host.received == model.received, "received messages");
        prop_assert!(receiver.host.region == model.region, "memory");
        prop_assert_eq!(receiver.host.reports, []);
    }
}

/// Builds a segment without payload, of a stream to the end with side 1.
fn header(kind: SegmentType, message: u32) -> SegmentHeader {
    let mut header = SegmentHeader::new(kind, SEGMENT_HEADER_BYTES as u16);
    header.flags = Flags::END_OF_MESSAGE;
    header.message = message;
    header.ack = FIRST[1];
    header
}

fn bytes_of(header: &SegmentHeader, rdma: Option<(u64, u32, u32)>, payload: &[u8]) -> Vec<u8> {
    let mut header = *header;
    let rdma_bytes = if rdma.is_some() { 16 } else { 0 };
    header.segment_bytes = (SEGMENT_HEADER_BYTES + rdma_bytes + payload.len()) as u16;
    let mut bytes = vec![0; SEGMENT_HEADER_BYTES];
    header.emit(bytes.first_chunk_mut().unwrap());
    if let Some((address, handle, total_bytes)) = rdma {
        let mut out = [0; 16];
        RdmaHeader {
            address,
            handle,
            total_bytes,
        }
        .emit(&mut out);
        bytes.extend(out);
    }
    bytes.extend(payload);
    bytes
}

/// Feeds a script to an end of this level, byte by byte, and returns the end and the result.
fn script(level: ReliabilityLevel, bytes: &[u8]) -> (End, Result<(), CloseReason>) {
    let mut end = End::new(1, level, 1460);
    end.host.receives.push_back(64);
    let fed = bytes.iter().try_for_each(|byte| end.receive(&[*byte]));
    (end, fed)
}

#[test]
fn scripted_segments_have_the_effect_of_the_draft() {
    use ReliabilityLevel::{ReliableDelivery, ReliableReception, UnreliableDelivery};
    let next = FIRST[0].wrapping_add(1);
    let reported = |vi_error, is_code| {
        Err(CloseReason::ReportedToPeer {
            number: next,
            error: RemoteError { vi_error, is_code },
        })
    };
    let send = |message| bytes_of(&header(SegmentType::Send, message), None, b"payload");
    let mut unsent = header(SegmentType::Nop, next);
    unsent.ack = FIRST[1].wrapping_add(1);
    let mut continued = header(SegmentType::Send, next);
    continued.data_offset = 1;
    let too_long = bytes_of(&header(SegmentType::Send, next), None, &[0; 65]);
    let write = |handle| {
        let header = header(SegmentType::Write, next);
        bytes_of(&header, Some((BASE, handle, 4)), b"word")
    };
    let read = bytes_of(
        &header(SegmentType::ReadRequest, next),
        Some((BASE, HANDLE, 8)),
        &[],
    );
    let protocol = |counter| Err(CloseReason::Protocol(counter));
    let out_of_order = protocol(Counter::DropOutOfOrder);
    let cases = [
        ("next send", ReliableDelivery, send(next), Ok(())),
        (
            "skipped number",
            ReliableDelivery,
            send(next.wrapping_add(1)),
            out_of_order,
        ),
        (
            "number again",
            ReliableDelivery,
            send(FIRST[0]),
            out_of_order,
        ),
        (
            "second segment first",
            UnreliableDelivery,
            bytes_of(&continued, None, b"x"),
            out_of_order,
        ),
        (
            "acknowledged before sent",
            ReliableReception,
            bytes_of(&unsent, None, &[]),
            protocol(Counter::DropFalseAck),
        ),
        (
            "acknowledgement ignored",
            ReliableDelivery,
            bytes_of(&unsent, None, &[]),
            Ok(()),
        ),
        (
            "too long",
            ReliableReception,
            too_long.clone(),
            reported(ViErrorType::Descriptor, IsCode::None),
        ),
        ("too long, unreliable", UnreliableDelivery, too_long, Ok(())),
        ("write", ReliableDelivery, write(HANDLE), Ok(())),
        (
            "write elsewhere",
            ReliableDelivery,
            write(HANDLE + 1),
            reported(ViErrorType::RdmaProtection, IsCode::None),
        ),
        (
            "write elsewhere, unreliable",
            UnreliableDelivery,
            write(HANDLE + 1),
            Ok(()),
        ),
        ("read, unreliable", UnreliableDelivery, read, out_of_order),
        (
            "establishment again",
            ReliableDelivery,
            bytes_of(&header(SegmentType::ConnectNoMatch, next), None, &[]),
            out_of_order,
        ),
    ];
    for (name, level, bytes, expected) in cases {
        let (_, result) = script(level, &bytes);
        assert_eq!(result, expected, "{name}");
    }
    let (_, result) = script(ReliableDelivery, &[0xFF; SEGMENT_HEADER_BYTES]);
    assert!(
        matches!(result, Err(CloseReason::Malformed(_))),
        "{result:?}"
    );
}

#[test]
fn effects_of_failed_messages_are_reported_to_the_consumer() {
    let next = FIRST[0].wrapping_add(1);
    let level = ReliabilityLevel::UnreliableDelivery;
    let too_long = bytes_of(&header(SegmentType::Send, next), None, &[0; 65]);
    let (end, _) = script(level, &too_long);
    let statuses: Vec<_> = end.host.received.iter().map(|r| r.status).collect();
    assert_eq!(statuses, [Status::LENGTH]);
    assert_eq!(end.counters.get(Counter::DropDiscarded), 1);

    let elsewhere = header(SegmentType::Write, next);
    let elsewhere = bytes_of(&elsewhere, Some((BASE, HANDLE + 1, 4)), b"word");
    let (end, _) = script(level, &elsewhere);
    assert_eq!(end.host.reports, [AsyncError::RdmaWriteProtection]);
    assert_eq!(end.counters.get(Counter::RdmaMisses), 1);
    assert!(end.host.region.iter().all(|byte| *byte == 0));
}

#[test]
fn reception_is_acknowledged_when_the_message_is_placed() {
    let next = FIRST[0].wrapping_add(1);
    let bytes = bytes_of(&header(SegmentType::Send, next), None, b"payload");
    let (mut end, result) = script(
        ReliabilityLevel::ReliableReception,
        &bytes[..bytes.len() - 1],
    );
    assert_eq!(result, Ok(()));
    assert_eq!(end.send_all(), []);
    end.receive(&bytes[bytes.len() - 1..]).unwrap();
    let sent = end.send_all();
    let nop = SegmentHeader::parse(sent.first_chunk().unwrap()).unwrap();
    assert_eq!((nop.kind, nop.ack), (SegmentType::Nop, next));
    assert_eq!(sent.len(), SEGMENT_HEADER_BYTES);
}

#[test]
fn read_of_the_peer_has_its_data_and_then_a_broken_one_its_refusal() {
    let next = FIRST[0].wrapping_add(1);
    let request = |message, handle| {
        let header = header(SegmentType::ReadRequest, message);
        bytes_of(&header, Some((BASE + 2, handle, 5)), &[])
    };
    let (mut end, result) = script(ReliabilityLevel::ReliableDelivery, &request(next, HANDLE));
    assert_eq!(result, Ok(()));
    end.host.region[2..7].copy_from_slice(b"bytes");
    let sent = end.send_all();
    assert_eq!(&sent[SEGMENT_HEADER_BYTES + 16..], b"bytes");

    let refused = end.receive(&request(next.wrapping_add(1), HANDLE + 1));
    assert_eq!(refused, Err(CloseReason::RefusedRead));
    let (host, counters) = (&mut end.host, &mut end.counters);
    end.transfer
        .end(VI, CloseReason::RefusedRead, counters, host);
    let control = &end.transfer.tx.control;
    let last = SegmentHeader::parse(control.first_chunk().unwrap()).unwrap();
    assert_eq!(last.kind, SegmentType::ReadResponse);
    assert!(last.flags.contains(Flags::TRANSMIT_ERROR));
    assert_eq!(host.reports, [AsyncError::RdmaReadProtection]);
}
