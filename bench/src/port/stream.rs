//! Frames one way.

use std::time::{Duration, Instant};

use super::contents::{self, Contents};
use super::report::{PortReport, Traffic};
use super::station::Station;
use crate::control::{Header, Idle};
use crate::error::{Error, Result};
use crate::latency::Limit;

/// Sends frames until the limit.
pub(super) fn send(
    station: &mut Station,
    frame_bytes: usize,
    mut contents: Option<Contents>,
    limit: &Limit,
) -> Result<PortReport> {
    station.check(frame_bytes)?;
    if contents.is_some() && frame_bytes < contents::SHORTEST_BYTES {
        return Err(Error::Usage(format!(
            "--size {frame_bytes}: a filled frame has {} bytes or more",
            contents::SHORTEST_BYTES
        )));
    }
    let mut header = Header::first_of_run();
    let dropped_before = station.dropped();
    let start = Instant::now();
    let (mut now, mut sent) = (start, 0);
    let mut idle = Idle::default();
    while !limit.is_over(now - start, sent) {
        let wanted = limit.messages.map_or(u64::MAX, |frames| frames - sent);
        station.prepare(wanted, &mut header, frame_bytes, &mut contents);
        let taken = station.flush()?;
        sent += taken;
        if taken > 0 {
            idle = Idle::default();
        } else {
            Station::check_progress(&mut idle)?;
        }
        now = Instant::now();
    }
    station.finish()?;
    sent -= (station.dropped() - dropped_before).min(sent);
    let traffic = Traffic {
        frames: sent,
        bytes: sent * frame_bytes as u64,
        timed_frames: sent,
        timed_bytes: sent * frame_bytes as u64,
        elapsed: now - start,
    };
    Ok(PortReport::of_stream("send", station, &traffic))
}

/// Counts frames until the limit.
pub(super) fn receive(
    station: &mut Station,
    mut contents: Option<Contents>,
    limit: &Limit,
) -> Result<PortReport> {
    let mut traffic = Traffic::default();
    let mut serials = Serials::default();
    let mut clock = Clock::default();
    while !clock.is_over(limit, traffic.frames) {
        let (mut bytes, before) = (0, traffic.frames);
        traffic.frames += station.take(|frame: &[u8], header| {
            bytes += frame.len() as u64;
            serials.see(header);
            if let (Some(contents), Some(_)) = (&mut contents, header) {
                contents.take(frame);
            }
        })?;
        traffic.bytes += bytes;
        if traffic.frames > before {
            clock.note(&mut traffic, before, bytes);
        }
    }
    let mut report = PortReport::of_stream("receive", station, &traffic);
    report.lost = serials.lost();
    report.damaged = contents.map(|contents| contents.damaged());
    Ok(report)
}

/// From the first burst, which says nothing of how fast frames come, to the last one.
#[derive(Default)]
pub(super) struct Clock {
    first: Option<Instant>,
    looks: u32,
}

impl Clock {
    /// Looks that found nothing between two readings of the clock.
    const LOOKS: u32 = 1024;

    /// Adds a burst to what is timed.
    #[inline]
    pub(super) fn note(&mut self, traffic: &mut Traffic, before: u64, bytes: u64) {
        let now = Instant::now();
        match self.first {
            None => self.first = Some(now),
            Some(first) => {
                traffic.timed_frames += traffic.frames - before;
                traffic.timed_bytes += bytes;
                traffic.elapsed = now - first;
            }
        }
    }

    /// Whether so many frames are enough, or the time since the first one.
    #[inline]
    pub(super) fn is_over(&mut self, limit: &Limit, frames: u64) -> bool {
        self.looks = self.looks.wrapping_add(1);
        let elapsed = match self.first {
            Some(first) if self.looks.is_multiple_of(Self::LOOKS) => first.elapsed(),
            _ => Duration::ZERO,
        };
        limit.is_over(elapsed, frames)
    }
}

/// Serial numbers of one run, which come in order or not at all.
#[derive(Default)]
struct Serials {
    run: Option<u32>,
    last: u32,
    /// From the first one to the last one.
    span: u64,
    count: u64,
}

impl Serials {
    #[inline]
    fn see(&mut self, header: Option<Header>) {
        let Some(header) = header else {
            return;
        };
        if self.run != Some(header.round) {
            *self = Self {
                run: Some(header.round),
                last: header.message,
                ..Self::default()
            };
        }
        // A frame that came late, or twice, is behind the last one.
        let ahead = header.message.wrapping_sub(self.last);
        if ahead.cast_signed() > 0 {
            self.span += u64::from(ahead);
            self.last = header.message;
        }
        self.count += 1;
    }

    /// Those between the first and the last one of the latest run that did not come; `None` if
    /// none of ours came.
    fn lost(&self) -> Option<u64> {
        self.run?;
        Some((self.span + 1).saturating_sub(self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::station::tests::{limit, pair};

    fn header(round: u32, message: u32) -> Header {
        Header {
            round,
            message,
            ..Header::first_of_run()
        }
    }

    #[test]
    fn gaps_are_lost_frames() {
        let mut serials = Serials::default();
        serials.see(None);
        assert_eq!(serials.lost(), None);
        for serial in [u32::MAX - 1, u32::MAX, 1, 4] {
            serials.see(Some(header(7, serial)));
        }
        assert_eq!(serials.lost(), Some(3), "0, 2, 3");
        serials.see(Some(header(7, 3)));
        assert_eq!(serials.lost(), Some(2), "late, and not lost");
        serials.see(Some(header(8, 100)));
        assert_eq!(serials.lost(), Some(0), "of the latest run");
    }

    #[test]
    fn serial_numbers_that_come_round_are_counted_on() {
        const STEP: u32 = 1 << 30;
        let mut serials = Serials::default();
        for turn in 0..=12 {
            serials.see(Some(header(7, STEP.wrapping_mul(turn))));
        }
        assert_eq!(serials.lost(), Some(12 * u64::from(STEP) - 12));
    }

    #[test]
    fn what_one_end_sends_the_other_one_counts() {
        let (mut near, mut far) = pair("port-stream");
        for (frame_bytes, filled) in [(60, false), (1500, false), (60, true), (1500, true)] {
            let contents = || filled.then(Contents::new);
            let (sent, seen) = std::thread::scope(|scope| {
                let seen = scope.spawn(|| receive(&mut far, contents(), &limit(5000)).unwrap());
                let sent = send(&mut near, frame_bytes, contents(), &limit(5000)).unwrap();
                (sent, seen.join().unwrap())
            });
            assert_eq!((seen.damaged, sent.damaged), (filled.then_some(0), None));
            assert_eq!((sent.frames, seen.frames), (5000, 5000));
            assert_eq!(seen.bytes, 5000 * frame_bytes as u64);
            assert_eq!((seen.lost, sent.lost), (Some(0), None));
            assert!(seen.frames_per_s > 0.0 && sent.frames_per_s > 0.0);
        }
    }

    #[test]
    fn a_frame_that_nobody_filled_is_damaged() {
        let (mut near, mut far) = pair("port-unfilled");
        let seen = std::thread::scope(|scope| {
            let contents = Some(Contents::new());
            let seen = scope.spawn(|| receive(&mut far, contents, &limit(100)).unwrap());
            send(&mut near, 60, None, &limit(100)).unwrap();
            seen.join().unwrap()
        });
        assert_eq!((seen.frames, seen.damaged), (100, Some(100)));
        let error = send(&mut near, 26, Some(Contents::new()), &limit(1)).unwrap_err();
        assert!(error.to_string().contains("27 bytes"), "{error}");
    }

    #[test]
    fn frames_longer_than_the_port_carries_are_refused() {
        let (mut near, _far) = pair("port-long");
        let error = send(&mut near, 60_000, None, &limit(1)).unwrap_err();
        assert!(error.to_string().contains("60000"), "{error}");
    }
}
