//! The decoder: however a stream is cut, it says what a reading of the whole stream says, as
//! soon as it can, and no byte of a payload is lost or told twice.

use vitcp_lite::{Decoder, Headers, Item, Segment, SegmentError, SegmentHeader, SegmentType};

use crate::input::Input;
use crate::reference;

/// A decoder keeps headers and nothing else.
const MOST_DECODER_BYTES: usize = 400;
const _: () = assert!(size_of::<Decoder>() <= MOST_DECODER_BYTES);
/// The longest headers: whatever is taken and not told yet is a part of them.
const MOST_HELD_BYTES: usize = 24 + 44 + 256;

/// A stream in one piece, in pieces of any sizes, in pieces as the decoder wants them, and with
/// parts of payloads that go past the decoder.
///
/// # Panics
/// If the decoder says anything else than the reference.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let steering_bytes = usize::from(input.byte() % 16);
    let repaired = input.byte() % 32;
    let steering = input.bytes(steering_bytes);
    let mut stream = input.rest().to_vec();
    repair(&mut stream, usize::from(repaired));
    let reading = Reading::new(&stream);

    let mut whole = Driver::new(&stream, &reading);
    whole.feed(stream.len());
    whole.finish();
    in_pieces(&stream, &reading, steering, false);
    in_pieces(&stream, &reading, steering, true);
    as_wanted(&stream, &reading);
}

/// Makes so many segments at the front of a stream ones that can be, but for the last one sometimes.
fn repair(stream: &mut [u8], segments: usize) {
    let mut rest = stream;
    for segment in 0..segments {
        if rest.len() < 24 {
            return;
        }
        if segment + 1 == segments && segments.is_multiple_of(2) {
            reference::to_the_brink(rest);
            return;
        }
        let at = usize::from(rest[1] >> 3) % SegmentType::ALL.len();
        let kind = SegmentType::ALL[at];
        let said = u16::from_be_bytes([rest[2], rest[3]]);
        let some = said % 200;
        let length = match kind {
            SegmentType::Send => 24 + some,
            SegmentType::ReadResponse | SegmentType::Write => 40 + some,
            SegmentType::ReadRequest => 40,
            SegmentType::Nop | SegmentType::ConnectNoMatch => 24,
            SegmentType::ConnectReject if said.is_multiple_of(2) => 24,
            SegmentType::ConnectReject
            | SegmentType::ConnectRequest
            | SegmentType::ConnectAccept => 68 + said % 257,
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

/// One segment of a stream, of which the end need not be there.
struct Part {
    start: usize,
    /// Where its headers end; where its segment header ends as long as that is all that is known.
    payload: usize,
    end: usize,
    /// If all its headers are there.
    segment: Option<Segment>,
}

/// A whole stream, read the plain way.
struct Reading {
    /// The last one is not complete; it may be empty.
    parts: Vec<Part>,
    /// What is wrong with the last one, and how many bytes of the stream it takes to know.
    failure: Option<(usize, SegmentError)>,
}

impl Reading {
    fn new(stream: &[u8]) -> Self {
        let mut reading = Self {
            parts: Vec::new(),
            failure: None,
        };
        let mut start = 0;
        loop {
            let (part, error) = read_part(stream, start);
            let (known, end) = (part.payload, part.end);
            let is_last = part.segment.is_none() || end > stream.len();
            reading.parts.push(part);
            reading.failure = error.map(|error| (known, error));
            if is_last {
                return reading;
            }
            start = end;
        }
    }

    /// The segment in which the stream is behind its first `at` bytes.
    fn part(&self, at: usize) -> &Part {
        let after = self.parts.partition_point(|part| part.start <= at);
        &self.parts[after - 1]
    }
}

fn read_part(stream: &[u8], start: usize) -> (Part, Option<SegmentError>) {
    let bytes = &stream[start..];
    let mut part = Part {
        start,
        payload: start + 24,
        end: start + 24,
        segment: None,
    };
    if bytes.len() < 24 {
        return (part, None);
    }
    let header = match reference::segment(bytes) {
        Ok(header) => header,
        Err(error) => return (part, Some(error)),
    };
    let behind = reference::behind(header.kind, header.segment_bytes);
    part.payload += behind;
    part.end = start + usize::from(header.segment_bytes);
    let Some(behind) = bytes.get(24..24 + behind) else {
        return (part, None);
    };
    let headers = match behind.len() {
        0 => Headers::Plain,
        16 => Headers::Rdma(reference::rdma(behind)),
        _ => match reference::ce(behind) {
            Ok(ce) => Headers::Connect(ce),
            Err(error) => return (part, Some(error)),
        },
    };
    part.segment = Some(Segment {
        header,
        headers,
        payload_bytes: (part.end - part.payload) as u16,
    });
    (part, None)
}

/// A decoder whose every word is compared.
struct Driver<'a> {
    stream: &'a [u8],
    reading: &'a Reading,
    decoder: Decoder,
    /// Bytes that the decoder took, or that went past it.
    at: usize,
    /// Bytes that it told of.
    told: usize,
    /// Segments that it told of.
    segments: usize,
    has_failed: bool,
}

impl<'a> Driver<'a> {
    fn new(stream: &'a [u8], reading: &'a Reading) -> Self {
        Self {
            stream,
            reading,
            decoder: Decoder::new(),
            at: 0,
            told: 0,
            segments: 0,
            has_failed: false,
        }
    }

    /// Gives it the stream up to `to` in one piece; how many items came of it.
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
                    self.item(item);
                }
                Ok(None) => {
                    assert!(input.is_empty(), "more is wanted while there is more");
                    self.nothing();
                    break;
                }
                Err(error) => self.failed(error),
            }
        }
        items
    }

    fn item(&mut self, item: Item<'_>) {
        match item {
            Item::Segment(segment) => {
                let part = &self.reading.parts[self.segments];
                assert_eq!(Some(segment), part.segment);
                assert_eq!((self.told, self.at), (part.start, part.payload));
                self.segments += 1;
            }
            Item::Payload { bytes, left } => {
                assert_eq!(bytes, &self.stream[self.told..self.at], "payload");
                assert!(!bytes.is_empty());
                let part = &self.reading.parts[self.segments - 1];
                assert_eq!(usize::from(left), part.end - self.at);
            }
        }
        self.told = self.at;
        self.check_place();
    }

    /// Nothing is told any more only if there is nothing to tell.
    fn nothing(&self) {
        let part = self.reading.part(self.at);
        let untold = if self.at < part.payload {
            self.at - part.start
        } else {
            0
        };
        assert_eq!(self.at - self.told, untold, "told too late");
        assert!(untold < MOST_HELD_BYTES);
        let is_known = self
            .reading
            .failure
            .is_some_and(|(known, _)| known <= self.at);
        assert!(!is_known, "an error is not told");
        self.check_place();
    }

    /// What the decoder says of its place in the stream.
    fn check_place(&self) {
        let part = self.reading.part(self.at);
        let header = part.start + 24;
        let (missing, left) = match self.at {
            at if at < header => (header - at, 0),
            at if at < part.payload => (part.payload - at, 0),
            at => (part.end - at, part.end - at),
        };
        assert_eq!(self.decoder.missing_bytes(), missing, "missing");
        assert_eq!(usize::from(self.decoder.payload_left()), left, "left");
        assert_eq!(self.decoder.is_between_segments(), self.at == part.start);
    }

    /// An error is the reference's, comes when its bytes are there, and is for good.
    fn failed(&mut self, error: SegmentError) {
        assert_eq!(self.reading.failure, Some((self.at, error)));
        assert_eq!(self.segments, self.reading.parts.len() - 1);
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

    /// Lets up to `bytes` of the payload go past the decoder; more than it has is refused.
    fn skip(&mut self, bytes: usize) {
        let left = self.decoder.payload_left();
        let more = left.saturating_add(1 + bytes as u16);
        assert!(more == left || !self.decoder.skip_payload(more));
        self.check_place();
        let skipped = bytes
            .min(usize::from(left))
            .min(self.stream.len() - self.at);
        assert!(self.decoder.skip_payload(skipped as u16));
        self.at += skipped;
        self.told += skipped;
        self.check_place();
    }

    /// At the end of the stream all of it was told.
    fn finish(&self) {
        assert_eq!(self.has_failed, self.reading.failure.is_some());
        let complete = self.reading.parts.iter().filter(|p| p.segment.is_some());
        assert_eq!(self.segments, complete.count());
        assert!(self.has_failed || self.at == self.stream.len());
    }
}

/// Pieces of the sizes that the steering bytes have, again and again.
fn in_pieces(stream: &[u8], reading: &Reading, steering: &[u8], skips: bool) {
    let mut driver = Driver::new(stream, reading);
    let mut sizes = steering.iter().copied().chain([0]).cycle();
    let mut next = || match sizes.next().map_or(0, usize::from) {
        small @ 0..128 => small % 32,
        large => (large - 127) * 9,
    };
    while driver.at < stream.len() && !driver.has_failed {
        if skips {
            driver.skip(next());
        }
        let to = (driver.at + next() + 1).min(stream.len());
        driver.feed(to);
    }
    driver.finish();
}

/// Never more than the decoder misses: it never comes further than the next thing to say.
fn as_wanted(stream: &[u8], reading: &Reading) {
    let mut driver = Driver::new(stream, reading);
    while driver.at < stream.len() && !driver.has_failed {
        let to = (driver.at + driver.decoder.missing_bytes()).min(stream.len());
        assert!(driver.feed(to) <= 1, "read past an item");
    }
    driver.finish();
}
