//! The stream decoder: however a stream is split, it returns the items of the reference parser, as
//! early as possible, and no payload byte is lost or returned twice.

use vitcp_lite::{Decoder, Headers, Item, Segment, SegmentError, SegmentHeader, SegmentType};

use crate::input::Input;
use crate::reference;

/// Maximum size of a decoder, which buffers only headers.
const MAX_DECODER_BYTES: usize = 400;
const _: () = assert!(size_of::<Decoder>() <= MAX_DECODER_BYTES);
/// Length of the longest headers; the decoder buffers less than that.
const MAX_BUFFERED_BYTES: usize = 24 + 44 + 256;

/// Checks a stream in one piece, in pieces of any sizes, in pieces of the missing bytes, and with
/// skipped ranges of payloads.
///
/// # Panics
/// If the decoder's results differ from the reference's.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let size_count = usize::from(input.byte() % 16);
    let repaired = input.byte() % 32;
    let sizes = input.bytes(size_count);
    let mut stream = input.rest().to_vec();
    repair(&mut stream, usize::from(repaired));
    let expected = Reference::new(&stream);

    let mut whole = CheckedDecoder::new(&stream, &expected);
    whole.feed(stream.len());
    whole.finish();
    in_pieces(&stream, &expected, sizes, false);
    in_pieces(&stream, &expected, sizes, true);
    by_missing_bytes(&stream, &expected);
}

/// Makes the first `segments` segments of a stream valid, except for the last one sometimes.
fn repair(stream: &mut [u8], segments: usize) {
    let mut rest = stream;
    for segment in 0..segments {
        if rest.len() < 24 {
            return;
        }
        if segment + 1 == segments && segments.is_multiple_of(2) {
            reference::set_boundary_length(rest);
            return;
        }
        let at = usize::from(rest[1] >> 3) % SegmentType::ALL.len();
        let kind = SegmentType::ALL[at];
        let value = u16::from_be_bytes([rest[2], rest[3]]);
        let payload = value % 200;
        let length = match kind {
            SegmentType::Send => 24 + payload,
            SegmentType::ReadResponse | SegmentType::Write => 40 + payload,
            SegmentType::ReadRequest => 40,
            SegmentType::Nop | SegmentType::ConnectNoMatch => 24,
            SegmentType::ConnectReject if value.is_multiple_of(2) => 24,
            SegmentType::ConnectReject
            | SegmentType::ConnectRequest
            | SegmentType::ConnectAccept => 68 + value % 257,
        };
        rest[0] = 1;
        rest[1] = (at as u8) << 3 | rest[1] & 7;
        rest[2..4].copy_from_slice(&length.to_be_bytes());
        if length >= 68 && at >= 5 && rest.len() >= 68 {
            for at in [26, 50] {
                rest[at] = 0;
                rest[at + 1] %= 17;
            }
        }
        let end = usize::from(length).min(rest.len());
        rest = &mut rest[end..];
    }
}

/// Position of one segment in a stream, which may end before it.
struct SegmentSpan {
    start: usize,
    /// End of its headers; end of its segment header if the stream ends before that.
    payload: usize,
    end: usize,
    /// The segment, if the stream contains all its headers.
    segment: Option<Segment>,
}

/// A whole stream, parsed by the reference parser.
struct Reference {
    /// All segments; the last one is incomplete, and may be empty.
    spans: Vec<SegmentSpan>,
    /// Error of the last segment, and the number of bytes of the stream at which it is detected.
    failure: Option<(usize, SegmentError)>,
}

impl Reference {
    fn new(stream: &[u8]) -> Self {
        let mut parsed = Self {
            spans: Vec::new(),
            failure: None,
        };
        let mut start = 0;
        loop {
            let (span, error) = read_span(stream, start);
            let (known, end) = (span.payload, span.end);
            let is_last = span.segment.is_none() || end > stream.len();
            parsed.spans.push(span);
            parsed.failure = error.map(|error| (known, error));
            if is_last {
                return parsed;
            }
            start = end;
        }
    }

    /// Returns the segment at position `at` of the stream.
    fn span(&self, at: usize) -> &SegmentSpan {
        let after = self.spans.partition_point(|span| span.start <= at);
        &self.spans[after - 1]
    }
}

fn read_span(stream: &[u8], start: usize) -> (SegmentSpan, Option<SegmentError>) {
    let bytes = &stream[start..];
    let mut span = SegmentSpan {
        start,
        payload: start + 24,
        end: start + 24,
        segment: None,
    };
    if bytes.len() < 24 {
        return (span, None);
    }
    let header = match reference::segment(bytes) {
        Ok(header) => header,
        Err(error) => return (span, Some(error)),
    };
    let extension_bytes = reference::extension_bytes(header.kind, header.segment_bytes);
    span.payload += extension_bytes;
    span.end = start + usize::from(header.segment_bytes);
    let Some(extension) = bytes.get(24..24 + extension_bytes) else {
        return (span, None);
    };
    let headers = match extension.len() {
        0 => Headers::Plain,
        16 => Headers::Rdma(reference::rdma(extension)),
        _ => match reference::ce(extension) {
            Ok(ce) => Headers::Connect(ce),
            Err(error) => return (span, Some(error)),
        },
    };
    span.segment = Some(Segment {
        header,
        headers,
        payload_bytes: (span.end - span.payload) as u16,
    });
    (span, None)
}

/// A decoder with a check of every result.
struct CheckedDecoder<'a> {
    stream: &'a [u8],
    expected: &'a Reference,
    decoder: Decoder,
    /// Number of bytes that the decoder has consumed, or that were skipped.
    at: usize,
    /// Number of bytes of the returned items.
    returned: usize,
    /// Number of returned segments.
    segments: usize,
    has_failed: bool,
}

impl<'a> CheckedDecoder<'a> {
    fn new(stream: &'a [u8], expected: &'a Reference) -> Self {
        Self {
            stream,
            expected,
            decoder: Decoder::new(),
            at: 0,
            returned: 0,
            segments: 0,
            has_failed: false,
        }
    }

    /// Feeds the stream up to `to` in one piece; returns the number of items.
    fn feed(&mut self, to: usize) -> usize {
        let stream = self.stream;
        let mut input = &stream[self.at..to];
        let mut items = 0;
        while !self.has_failed {
            let found = self.decoder.next(&mut input);
            self.at = to - input.len();
            match found {
                Ok(Some(item)) => {
                    items += 1;
                    self.check_item(item);
                }
                Ok(None) => {
                    assert!(input.is_empty(), "input is left without an item");
                    self.check_no_item();
                    break;
                }
                Err(error) => self.check_error(error),
            }
        }
        items
    }

    fn check_item(&mut self, item: Item<'_>) {
        match item {
            Item::Segment(segment) => {
                let span = &self.expected.spans[self.segments];
                assert_eq!(Some(segment), span.segment);
                assert_eq!((self.returned, self.at), (span.start, span.payload));
                self.segments += 1;
            }
            Item::Payload { bytes, left } => {
                assert_eq!(bytes, &self.stream[self.returned..self.at], "payload");
                assert!(!bytes.is_empty());
                let span = &self.expected.spans[self.segments - 1];
                assert_eq!(usize::from(left), span.end - self.at);
            }
        }
        self.returned = self.at;
        self.check_position();
    }

    /// Checks that there is no item to return at this position.
    fn check_no_item(&self) {
        let span = self.expected.span(self.at);
        let buffered = if self.at < span.payload {
            self.at - span.start
        } else {
            0
        };
        assert_eq!(
            self.at - self.returned,
            buffered,
            "an item is returned too late"
        );
        assert!(buffered < MAX_BUFFERED_BYTES);
        let is_known = self
            .expected
            .failure
            .is_some_and(|(known, _)| known <= self.at);
        assert!(!is_known, "an error is not returned");
        self.check_position();
    }

    /// Checks the decoder's properties that depend on the position.
    fn check_position(&self) {
        let span = self.expected.span(self.at);
        let header = span.start + 24;
        let (missing, left) = match self.at {
            at if at < header => (header - at, 0),
            at if at < span.payload => (span.payload - at, 0),
            at => (span.end - at, span.end - at),
        };
        assert_eq!(self.decoder.missing_bytes(), missing, "missing");
        assert_eq!(usize::from(self.decoder.payload_left()), left, "left");
        assert_eq!(self.decoder.is_between_segments(), self.at == span.start);
    }

    /// Checks that an error is the reference's, is returned at its position, and is permanent.
    fn check_error(&mut self, error: SegmentError) {
        assert_eq!(self.expected.failure, Some((self.at, error)));
        assert_eq!(self.segments, self.expected.spans.len() - 1);
        self.has_failed = true;
        let mut nop = [0; 24];
        SegmentHeader::new(SegmentType::Nop, 24).emit(&mut nop);
        for input in [&nop[..], &[]] {
            let mut rest = input;
            assert_eq!(self.decoder.next(&mut rest), Err(error));
            assert_eq!(rest, input);
            assert_eq!(self.decoder.missing_bytes(), 1);
            assert_eq!(self.decoder.payload_left(), 0);
            assert!(!self.decoder.skip_payload(1));
            assert!(self.decoder.skip_payload(0));
            assert!(!self.decoder.is_between_segments());
        }
    }

    /// Skips up to `bytes` bytes of the payload; checks that more than the payload is refused.
    fn skip(&mut self, bytes: usize) {
        let left = self.decoder.payload_left();
        let too_many = left.saturating_add(1 + bytes as u16);
        assert!(too_many == left || !self.decoder.skip_payload(too_many));
        self.check_position();
        let skipped = bytes
            .min(usize::from(left))
            .min(self.stream.len() - self.at);
        assert!(self.decoder.skip_payload(skipped as u16));
        self.at += skipped;
        self.returned += skipped;
        self.check_position();
    }

    /// Checks that all items were returned at the end of the stream.
    fn finish(&self) {
        assert_eq!(self.has_failed, self.expected.failure.is_some());
        let complete = self.expected.spans.iter().filter(|p| p.segment.is_some());
        assert_eq!(self.segments, complete.count());
        assert!(self.has_failed || self.at == self.stream.len());
    }
}

/// Feeds pieces of the given sizes, repeatedly.
fn in_pieces(stream: &[u8], expected: &Reference, sizes: &[u8], skips: bool) {
    let mut decoder = CheckedDecoder::new(stream, expected);
    let mut sizes = sizes.iter().copied().chain([0]).cycle();
    let mut next = || match sizes.next().map_or(0, usize::from) {
        small @ 0..128 => small % 32,
        large => (large - 127) * 9,
    };
    while decoder.at < stream.len() && !decoder.has_failed {
        if skips {
            decoder.skip(next());
        }
        let to = (decoder.at + next() + 1).min(stream.len());
        decoder.feed(to);
    }
    decoder.finish();
}

/// Feeds only the decoder's missing bytes: each piece ends at the next item.
fn by_missing_bytes(stream: &[u8], expected: &Reference) {
    let mut decoder = CheckedDecoder::new(stream, expected);
    while decoder.at < stream.len() && !decoder.has_failed {
        let to = (decoder.at + decoder.decoder.missing_bytes()).min(stream.len());
        assert!(decoder.feed(to) <= 1, "consumed more than one item");
    }
    decoder.finish();
}
