//! `send` and `receive`: one-way frames.

use std::time::{Duration, Instant};

use super::payload::{self, Payload};
use super::report::{PortReport, Traffic};
use super::station::Station;
use crate::error::{Error, Result};
use crate::latency::RoundLimit;
use crate::raw_control::{FrameHeader, PollTimer};

/// Sends frames until the limit.
pub(super) fn send(
    station: &mut Station,
    frame_bytes: usize,
    mut payload: Option<Payload>,
    limit: &RoundLimit,
) -> Result<PortReport> {
    station.check(frame_bytes)?;
    if payload.is_some() && frame_bytes < payload::MIN_FILLED_FRAME_BYTES {
        return Err(Error::Usage(format!(
            "--size {frame_bytes}: a filled frame has at least {} bytes",
            payload::MIN_FILLED_FRAME_BYTES
        )));
    }
    let mut header = FrameHeader::first_of_run();
    let dropped_before = station.dropped();
    let start = Instant::now();
    let (mut now, mut sent) = (start, 0);
    let mut idle = PollTimer::default();
    while !limit.is_over(now - start, sent) {
        let wanted = limit.messages.map_or(u64::MAX, |frames| frames - sent);
        station.prepare(wanted, &mut header, frame_bytes, &mut payload);
        let taken = station.flush()?;
        sent += taken;
        if taken > 0 {
            idle = PollTimer::default();
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

/// Receives and counts frames until the limit.
pub(super) fn receive(
    station: &mut Station,
    mut payload: Option<Payload>,
    limit: &RoundLimit,
) -> Result<PortReport> {
    let mut traffic = Traffic::default();
    let mut serials = SerialNumbers::default();
    let mut clock = BurstClock::default();
    while !clock.is_over(limit, traffic.frames) {
        let (mut bytes, before) = (0, traffic.frames);
        traffic.frames += station.receive_burst(|frame: &[u8], header| {
            bytes += frame.len() as u64;
            serials.record(header);
            if let (Some(payload), Some(_)) = (&mut payload, header) {
                payload.check_and_copy(frame);
            }
        })?;
        traffic.bytes += bytes;
        if traffic.frames > before {
            clock.add_burst(&mut traffic, before, bytes);
        }
    }
    let mut report = PortReport::of_stream("receive", station, &traffic);
    report.lost = serials.lost();
    report.damaged = payload.map(|payload| payload.damaged());
    Ok(report)
}

/// Time from the first burst to the last one; the frames of the first burst do not count toward rates.
#[derive(Default)]
pub(super) struct BurstClock {
    first: Option<Instant>,
    polls: u32,
}

impl BurstClock {
    /// Polls per reading of the clock.
    const POLLS: u32 = 1024;

    /// Adds a burst to the timed frames of `traffic`, unless it is the first one.
    #[inline]
    pub(super) fn add_burst(&mut self, traffic: &mut Traffic, before: u64, bytes: u64) {
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

    /// Returns whether the limit is reached, by the number of frames or by the time since the first burst.
    #[inline]
    pub(super) fn is_over(&mut self, limit: &RoundLimit, frames: u64) -> bool {
        self.polls = self.polls.wrapping_add(1);
        let elapsed = match self.first {
            Some(first) if self.polls.is_multiple_of(Self::POLLS) => first.elapsed(),
            _ => Duration::ZERO,
        };
        limit.is_over(elapsed, frames)
    }
}

/// Serial numbers of the frames of one run, for counting losses.
#[derive(Default)]
struct SerialNumbers {
    run: Option<u32>,
    last: u32,
    /// Distance from the first number to the last one.
    span: u64,
    count: u64,
}

impl SerialNumbers {
    #[inline]
    fn record(&mut self, header: Option<FrameHeader>) {
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
        // A late or duplicate frame has a number before the last one.
        let ahead = header.message.wrapping_sub(self.last);
        if ahead.cast_signed() > 0 {
            self.span += u64::from(ahead);
            self.last = header.message;
        }
        self.count += 1;
    }

    /// Returns how many numbers are missing between the first and the last one of the latest run; `None` if no frame of
    /// vibench arrived.
    fn lost(&self) -> Option<u64> {
        self.run?;
        Some((self.span + 1).saturating_sub(self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::station::tests::{limit, pair};

    fn header(round: u32, message: u32) -> FrameHeader {
        FrameHeader {
            round,
            message,
            ..FrameHeader::first_of_run()
        }
    }

    #[test]
    fn lost_counts_gaps_of_latest_run() {
        let mut serials = SerialNumbers::default();
        serials.record(None);
        assert_eq!(serials.lost(), None);
        for serial in [u32::MAX - 1, u32::MAX, 1, 4] {
            serials.record(Some(header(7, serial)));
        }
        assert_eq!(serials.lost(), Some(3), "0, 2, 3");
        serials.record(Some(header(7, 3)));
        assert_eq!(serials.lost(), Some(2), "late frame is not lost");
        serials.record(Some(header(8, 100)));
        assert_eq!(serials.lost(), Some(0), "only the latest run counts");
    }

    #[test]
    fn lost_is_correct_after_serial_wraparound() {
        const STEP: u32 = 1 << 30;
        let mut serials = SerialNumbers::default();
        for step in 0..=12 {
            serials.record(Some(header(7, STEP.wrapping_mul(step))));
        }
        assert_eq!(serials.lost(), Some(12 * u64::from(STEP) - 12));
    }

    #[test]
    fn receive_counts_all_sent_frames() {
        let (mut sender, mut receiver) = pair("port-stream");
        for (frame_bytes, filled) in [(60, false), (1500, false), (60, true), (1500, true)] {
            let payload = || filled.then(Payload::new);
            let (sent, received) = std::thread::scope(|scope| {
                let received =
                    scope.spawn(|| receive(&mut receiver, payload(), &limit(5000)).unwrap());
                let sent = send(&mut sender, frame_bytes, payload(), &limit(5000)).unwrap();
                (sent, received.join().unwrap())
            });
            assert_eq!(
                (received.damaged, sent.damaged),
                (filled.then_some(0), None)
            );
            assert_eq!((sent.frames, received.frames), (5000, 5000));
            assert_eq!(received.bytes, 5000 * frame_bytes as u64);
            assert_eq!((received.lost, sent.lost), (Some(0), None));
            assert!(received.frames_per_s > 0.0 && sent.frames_per_s > 0.0);
        }
    }

    #[test]
    fn unfilled_frames_count_as_damaged() {
        let (mut sender, mut receiver) = pair("port-unfilled");
        let received = std::thread::scope(|scope| {
            let payload = Some(Payload::new());
            let received = scope.spawn(|| receive(&mut receiver, payload, &limit(100)).unwrap());
            send(&mut sender, 60, None, &limit(100)).unwrap();
            received.join().unwrap()
        });
        assert_eq!((received.frames, received.damaged), (100, Some(100)));
        let error = send(&mut sender, 26, Some(Payload::new()), &limit(1)).unwrap_err();
        assert!(error.to_string().contains("27 bytes"), "{error}");
    }

    #[test]
    fn send_rejects_frames_longer_than_port_limit() {
        let (mut sender, _receiver) = pair("port-long");
        let error = send(&mut sender, 60_000, None, &limit(1)).unwrap_err();
        assert!(error.to_string().contains("60000"), "{error}");
    }
}
