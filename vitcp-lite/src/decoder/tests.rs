//! Decoding of a stream in any fragmentation yields the same segments.

use std::vec;
use std::vec::Vec;

use proptest::collection::vec as any_vec;
use proptest::prelude::*;

use super::{Decoder, Headers, Item};
use crate::samples::{SampleSegment, any_segment};
use crate::{Flags, RemoteError, SegmentError, SegmentHeader, SegmentType};

/// Collects the items of a decoder, with the payload joined.
#[derive(Default)]
struct Joined {
    segments: Vec<SampleSegment>,
}

impl Joined {
    fn add(&mut self, item: Item<'_>, decoder: &Decoder) {
        match item {
            Item::Segment(segment) => {
                assert!(self.is_whole(), "a segment before the end of the last one");
                assert_eq!(decoder.payload_left(), segment.payload_bytes);
                self.segments.push(SampleSegment {
                    segment,
                    payload: Vec::new(),
                });
            }
            Item::Payload { bytes, left } => {
                assert!(!bytes.is_empty());
                assert_eq!(decoder.payload_left(), left);
                self.add_payload(bytes);
                assert_eq!(left, self.left());
            }
        }
        let in_payload = decoder.payload_left() > 0;
        assert_eq!(decoder.is_between_segments(), !in_payload);
    }

    fn add_payload(&mut self, bytes: &[u8]) {
        let last = self.segments.last_mut().expect("payload after headers");
        last.payload.extend(bytes);
    }

    fn left(&self) -> u16 {
        self.segments.last().map_or(0, |last| {
            last.segment.payload_bytes - u16::try_from(last.payload.len()).unwrap()
        })
    }

    fn is_whole(&self) -> bool {
        self.left() == 0
    }
}

/// Consumes the next send of the input if it is whole; checks that `next` returns the same.
fn take_whole_send(decoder: &Decoder, input: &mut &[u8], joined: &mut Joined) -> bool {
    let before = *input;
    let Some((header, payload)) = decoder.whole_send(input) else {
        assert_eq!(*input, before, "nothing is consumed");
        return false;
    };
    let (mut slow, mut rest) = (decoder.clone(), before);
    let Ok(Some(Item::Segment(segment))) = slow.next(&mut rest) else {
        panic!("no segment");
    };
    assert_eq!((segment.header, segment.headers), (header, Headers::Plain));
    if !payload.is_empty() {
        let item = slow.next(&mut rest);
        let bytes = payload;
        assert_eq!(item, Ok(Some(Item::Payload { bytes, left: 0 })));
    }
    assert_eq!(rest, *input);
    joined.segments.push(SampleSegment {
        segment,
        payload: payload.to_vec(),
    });
    true
}

/// As [`decode`], with whole sends decoded by `whole_send`; returns their count, too.
fn decode_whole_sends(stream: &[u8], pieces: &[usize]) -> (Vec<SampleSegment>, usize) {
    let mut decoder = Decoder::new();
    let (mut joined, mut at_once) = (Joined::default(), 0);
    let mut rest = stream;
    for piece in pieces.iter().cycle() {
        let (mut input, behind) = rest.split_at((*piece).min(rest.len()));
        rest = behind;
        loop {
            if take_whole_send(&decoder, &mut input, &mut joined) {
                at_once += 1;
            } else if let Some(item) = decoder.next(&mut input).unwrap() {
                joined.add(item, &decoder);
            } else {
                break;
            }
        }
        if rest.is_empty() {
            break;
        }
    }
    (joined.segments, at_once)
}

/// Decodes `stream` in fragments of these sizes, cyclically.
fn decode(stream: &[u8], pieces: &[usize]) -> Vec<SampleSegment> {
    let mut decoder = Decoder::new();
    let mut joined = Joined::default();
    let mut rest = stream;
    for piece in pieces.iter().cycle() {
        let (mut input, behind) = rest.split_at((*piece).min(rest.len()));
        rest = behind;
        while let Some(item) = decoder.next(&mut input).unwrap() {
            joined.add(item, &decoder);
        }
        assert!(input.is_empty());
        if rest.is_empty() {
            break;
        }
    }
    assert!(decoder.is_between_segments());
    joined.segments
}

/// The same, with parts of the payload skipped by `skip_payload`.
fn decode_with_skips(stream: &[u8], pieces: &[usize], skips: &[u16]) -> Vec<SampleSegment> {
    let mut decoder = Decoder::new();
    let mut joined = Joined::default();
    let mut rest = stream;
    let mut skips = skips.iter().cycle();
    for piece in pieces.iter().cycle() {
        let left = decoder.payload_left();
        let skip = (*skips.next().unwrap()).min(left);
        if left > 0 {
            assert!(!decoder.skip_payload(left + 1), "more than is left");
            assert_eq!(decoder.payload_left(), left);
            assert!(decoder.skip_payload(skip));
            assert_eq!(decoder.payload_left(), left - skip);
            let (past, behind) = rest.split_at(usize::from(skip));
            joined.add_payload(past);
            rest = behind;
        }
        let (mut input, behind) = rest.split_at((*piece).min(rest.len()));
        // One item only, so that skips occur between the fragments of one payload.
        if let Some(item) = decoder.next(&mut input).unwrap() {
            joined.add(item, &decoder);
        } else {
            assert!(input.is_empty());
        }
        rest = &rest[rest.len() - behind.len() - input.len()..];
        if rest.is_empty() {
            break;
        }
    }
    assert!(decoder.is_between_segments());
    joined.segments
}

fn stream(segments: &[SampleSegment]) -> Vec<u8> {
    segments.iter().flat_map(SampleSegment::to_bytes).collect()
}

proptest! {
    #![proptest_config(crate::seeded::config())]

    #[test]
    fn decode_is_independent_of_fragmentation(
        segments in any_vec(any_segment(200), 1..12),
        pieces in any_vec(1..100usize, 1..30),
    ) {
        let stream = stream(&segments);
        prop_assert_eq!(&decode(&stream, &[stream.len()]), &segments);
        prop_assert_eq!(&decode(&stream, &[1]), &segments);
        prop_assert_eq!(&decode(&stream, &pieces), &segments);
    }

    #[test]
    fn whole_send_takes_every_complete_send(
        mut segments in any_vec(any_segment(200), 1..12),
        simpler in any_vec(any::<bool>(), 12),
        pieces in any_vec(1..400usize, 1..30),
    ) {
        for (whole, _) in segments.iter_mut().zip(&simpler).filter(|(_, simpler)| **simpler) {
            let header = &mut whole.segment.header;
            header.flags = header.flags.with(Flags::END_OF_MESSAGE);
            (header.data_offset, header.remote_error) = (0, RemoteError::NONE);
        }
        let stream = stream(&segments);
        let simple = segments.iter().filter(|whole| {
            let header = &whole.segment.header;
            SegmentHeader::parse_whole_send(whole.to_bytes().first_chunk().unwrap()) == Some(*header)
        });
        let (all, at_once) = decode_whole_sends(&stream, &[stream.len()]);
        prop_assert_eq!(&all, &segments);
        prop_assert_eq!(at_once, simple.count());
        prop_assert_eq!(&decode_whole_sends(&stream, &pieces).0, &segments);
        prop_assert_eq!(decode_whole_sends(&stream, &[1]).1, 0);
    }

    #[test]
    fn decode_is_independent_of_every_split(whole in any_segment(30), next in any_segment(3)) {
        let segments = [whole, next];
        let stream = stream(&segments);
        for cut in 1..stream.len() {
            prop_assert_eq!(&decode(&stream, &[cut, stream.len()])[..], &segments);
        }
    }

    #[test]
    fn skip_payload_keeps_the_stream_in_sync(
        segments in any_vec(any_segment(200), 1..12),
        pieces in any_vec(1..100usize, 1..30),
        skips in any_vec(0..120u16, 1..30),
    ) {
        let stream = stream(&segments);
        prop_assert_eq!(&decode_with_skips(&stream, &pieces, &skips), &segments);
        prop_assert_eq!(&decode_with_skips(&stream, &pieces, &[u16::MAX]), &segments);
        prop_assert_eq!(&decode_with_skips(&stream, &[1], &skips), &segments);
    }

    /// Streams with a changed byte and random bytes: decoding terminates, and an error is permanent.
    #[test]
    fn decode_of_corrupted_stream_does_not_panic(
        segments in any_vec(any_segment(50), 0..5),
        random in any_vec(any::<u8>(), 1..400),
        (at, with) in any::<(usize, u8)>(),
        pieces in any_vec(1..60usize, 1..10),
    ) {
        let mut stream = stream(&segments);
        stream.extend(&random);
        let at = at % stream.len();
        stream[at] = with;
        let whole = outcome(&stream, &[stream.len()]);
        prop_assert_eq!(&whole, &outcome(&stream, &pieces));
        prop_assert_eq!(&whole, &outcome(&stream, &[1]));
    }
}

/// Returns the count of decoded segments, and the error after them.
fn outcome(stream: &[u8], pieces: &[usize]) -> (usize, Option<SegmentError>) {
    let mut decoder = Decoder::new();
    let mut segments = 0;
    let mut rest = stream;
    for piece in pieces.iter().cycle() {
        let (mut input, behind) = rest.split_at((*piece).min(rest.len()));
        rest = behind;
        loop {
            match decoder.next(&mut input) {
                Ok(Some(Item::Segment(_))) => segments += 1,
                Ok(Some(Item::Payload { .. })) => {}
                Ok(None) => break,
                Err(error) => {
                    assert_failed(&mut decoder, error);
                    return (segments, Some(error));
                }
            }
        }
        if rest.is_empty() {
            return (segments, None);
        }
    }
    unreachable!()
}

/// Checks that an error is permanent.
fn assert_failed(decoder: &mut Decoder, error: SegmentError) {
    let mut nop = [0; 24];
    SegmentHeader::new(SegmentType::Nop, 24).emit(&mut nop);
    for input in [&nop[..], &[]] {
        let mut left = input;
        assert_eq!(decoder.next(&mut left), Err(error));
        assert_eq!(left, input);
    }
    assert!(!decoder.is_between_segments());
    assert_eq!(decoder.payload_left(), 0);
    assert!(!decoder.skip_payload(1));
}

#[test]
fn each_invalid_field_has_its_error() {
    let header = |kind, segment_bytes| {
        let mut bytes = vec![0; 324];
        SegmentHeader::new(kind, segment_bytes).emit(bytes.first_chunk_mut().unwrap());
        bytes
    };
    let with = |mut bytes: Vec<u8>, at: usize, value: u8| {
        bytes[at] = value;
        bytes
    };
    let kind = SegmentType::ConnectRequest;
    let request = header(kind, 324);
    let cases = [
        (with(request.clone(), 0, 0), SegmentError::Version(0)),
        (with(request.clone(), 1, 0xFF), SegmentError::Type(31)),
        (
            header(kind, 67),
            SegmentError::Length {
                kind,
                segment_bytes: 67,
            },
        ),
        (header(kind, 325), SegmentError::Security { bytes: 257 }),
        (
            with(request.clone(), 24 + 3, 17),
            SegmentError::CallingDiscriminator { bytes: 17 },
        ),
        (
            with(request.clone(), 24 + 26, 1),
            SegmentError::CalledDiscriminator { bytes: 256 },
        ),
    ];
    assert_eq!(outcome(&request, &[324]), (1, None));
    for (bytes, error) in cases {
        assert_eq!(outcome(&bytes, &[324]), (0, Some(error)));
        assert_eq!(outcome(&bytes, &[7]), (0, Some(error)));
    }
}

#[test]
fn longest_segment_is_two_items() {
    let mut stream = vec![0xA5; 65535];
    let header = SegmentHeader::new(SegmentType::Send, 65535);
    header.emit(stream.first_chunk_mut().unwrap());
    stream.push(1);
    let mut decoder = Decoder::default();
    let mut input = &stream[..];
    let Ok(Some(Item::Segment(segment))) = decoder.next(&mut input) else {
        panic!("no segment");
    };
    assert_eq!((segment.header, segment.headers), (header, Headers::Plain));
    let Ok(Some(Item::Payload { bytes, left: 0 })) = decoder.next(&mut input) else {
        panic!("no payload");
    };
    assert_eq!((bytes.len(), input), (65511, &[1][..]));
    assert!(decoder.is_between_segments());
    assert_eq!(decoder.next(&mut input), Ok(None));
    assert!(input.is_empty() && !decoder.is_between_segments());
}

#[test]
fn segment_without_payload_ends_with_its_headers() {
    let mut stream = [0; 64];
    SegmentHeader::new(SegmentType::Send, 24).emit(stream.first_chunk_mut().unwrap());
    let write = stream.last_chunk_mut::<40>().unwrap();
    SegmentHeader::new(SegmentType::Write, 40).emit(write.first_chunk_mut().unwrap());
    let mut decoder = Decoder::new();
    let mut input = &stream[..];
    assert!(decoder.skip_payload(0) && !decoder.skip_payload(1));
    for _ in 0..2 {
        assert!(decoder.is_between_segments());
        let item = decoder.next(&mut input).unwrap();
        assert!(matches!(item, Some(Item::Segment(segment)) if segment.payload_bytes == 0));
    }
    assert!(decoder.is_between_segments());
    assert_eq!(decoder.next(&mut input), Ok(None));
}
