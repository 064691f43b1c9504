//! Proptest strategies for valid segments, as values and as bytes.

use std::vec;
use std::vec::Vec;

use proptest::collection::vec as any_vec;
use proptest::prelude::*;

use crate::{
    Attributes, CeHeader, Discriminator, Flags, Headers, RdmaHeader, RemoteError, Security,
    Segment, SegmentHeader, SegmentType,
};

/// A segment with its payload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleSegment {
    pub(crate) segment: Segment,
    pub(crate) payload: Vec<u8>,
}

impl SampleSegment {
    /// Returns the bytes on the wire.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 24];
        let header = bytes.first_chunk_mut().unwrap();
        self.segment.header.emit(header);
        match &self.segment.headers {
            Headers::Plain => {}
            Headers::Rdma(rdma) => {
                let mut out = [0; 16];
                rdma.emit(&mut out);
                bytes.extend(out);
            }
            Headers::Connect(ce) => {
                let mut out = [0; 300];
                let written = ce.emit(&mut out).unwrap();
                bytes.extend(&out[..written]);
            }
        }
        bytes.extend(&self.payload);
        assert_eq!(bytes.len(), usize::from(self.segment.header.segment_bytes));
        bytes
    }
}

pub(crate) fn any_discriminator() -> impl Strategy<Value = Discriminator> {
    any_vec(any::<u8>(), 0..=16).prop_map(|bytes| Discriminator::new(&bytes).unwrap())
}

pub(crate) fn any_ce() -> impl Strategy<Value = CeHeader> {
    (
        any::<(u16, u32, u16)>(),
        any_discriminator(),
        any_discriminator(),
        prop_oneof![Just(0), Just(256), 0..=256usize].prop_flat_map(|n| any_vec(any::<u8>(), n)),
    )
        .prop_map(
            |((attributes, mtu_bytes, read_window), calling, called, security)| CeHeader {
                attributes: Attributes::from_bits(attributes),
                mtu_bytes,
                calling,
                called,
                read_window,
                security: Security::new(&security).unwrap(),
            },
        )
}

/// Generates headers of this type and length.
pub(crate) fn any_header(
    kind: SegmentType,
    segment_bytes: u16,
) -> impl Strategy<Value = SegmentHeader> {
    any::<(u8, u32, u32, u32, u32, u16, u16)>().prop_map(
        move |(flags, data_offset, immediate, message, ack, rx_posted, error)| SegmentHeader {
            kind,
            flags: Flags::from_bits(flags),
            segment_bytes,
            data_offset,
            immediate,
            message,
            ack,
            rx_posted,
            remote_error: RemoteError::from_bits(error),
        },
    )
}

/// Generates the RDMA or CE header for this type.
fn any_headers(kind: SegmentType) -> BoxedStrategy<Headers> {
    match kind {
        SegmentType::ReadRequest | SegmentType::ReadResponse | SegmentType::Write => {
            any::<(u64, u32, u32)>()
                .prop_map(|(address, handle, total_bytes)| {
                    Headers::Rdma(RdmaHeader {
                        address,
                        handle,
                        total_bytes,
                    })
                })
                .boxed()
        }
        SegmentType::ConnectRequest | SegmentType::ConnectAccept => {
            any_ce().prop_map(Headers::Connect).boxed()
        }
        SegmentType::ConnectReject => {
            prop_oneof![Just(Headers::Plain), any_ce().prop_map(Headers::Connect)].boxed()
        }
        SegmentType::Send | SegmentType::Nop | SegmentType::ConnectNoMatch => {
            Just(Headers::Plain).boxed()
        }
    }
}

/// Generates valid segments with up to `max_payload` bytes.
pub(crate) fn any_segment(max_payload: usize) -> impl Strategy<Value = SampleSegment> {
    let kind = (0..9usize).prop_map(|at| SegmentType::ALL[at]);
    kind.prop_flat_map(move |kind| {
        let limit = if kind.has_payload() { max_payload } else { 0 };
        (
            Just(kind),
            any_headers(kind),
            any_vec(any::<u8>(), 0..=limit),
        )
    })
    .prop_flat_map(|(kind, headers, payload)| {
        let behind = match &headers {
            Headers::Plain => 0,
            Headers::Rdma(_) => 16,
            Headers::Connect(ce) => ce.bytes(),
        };
        let segment_bytes = u16::try_from(24 + behind + payload.len()).unwrap();
        any_header(kind, segment_bytes).prop_map(move |header| SampleSegment {
            segment: Segment {
                header,
                headers,
                payload_bytes: u16::try_from(payload.len()).unwrap(),
            },
            payload: payload.clone(),
        })
    })
}
