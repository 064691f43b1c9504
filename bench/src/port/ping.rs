//! One frame there and back.

use std::time::{Duration, Instant};

use super::report::{PortReport, Traffic};
use super::station::Station;
use super::stream::Clock;
use crate::control::{Header, Idle};
use crate::error::Result;
use crate::latency::Limit;
use crate::report::Percentiles;
use crate::tally::new_histogram;

/// A frame that is away for so long is lost.
const LOST_AFTER: Duration = Duration::from_millis(50);

/// Sends frames and measures how long each takes to come back.
pub(super) fn ping(station: &mut Station, frame_bytes: usize, limit: &Limit) -> Result<PortReport> {
    station.check(frame_bytes)?;
    let mut round_trips_ns = new_histogram()?;
    let mut header = Header::first_of_run();
    let start = Instant::now();
    let (mut before, mut lost) = (start, 0);
    while !limit.is_over(before - start, round_trips_ns.len() + lost) {
        station.send(&header, frame_bytes)?;
        let is_back = comes_back(station, &header)?;
        let now = Instant::now();
        if is_back {
            round_trips_ns.saturating_record((now - before).as_nanos() as u64);
        } else {
            lost += 1;
        }
        before = now;
        header.message = header.message.wrapping_add(1);
    }
    let frames = round_trips_ns.len();
    let traffic = Traffic {
        frames,
        bytes: frames * frame_bytes as u64,
        timed_frames: frames,
        timed_bytes: frames * frame_bytes as u64,
        elapsed: before - start,
    };
    let mut report = PortReport::of_stream("ping", station, &traffic);
    report.lost = Some(lost);
    report.half_round_trip_ns = Percentiles::half_of(&round_trips_ns);
    Ok(report)
}

/// Waits for this frame; others, which were late, are none.
#[inline]
fn comes_back(station: &mut Station, header: &Header) -> Result<bool> {
    let mut idle = Idle::default();
    loop {
        let mut is_back = false;
        station.take(|_, found| is_back |= found == Some(*header))?;
        if is_back || idle.is_longer_than(LOST_AFTER) {
            return Ok(is_back);
        }
    }
}

/// Sends every frame back until the limit.
pub(super) fn echo(station: &mut Station, limit: &Limit) -> Result<PortReport> {
    let mut traffic = Traffic::default();
    let mut clock = Clock::default();
    while !clock.is_over(limit, traffic.frames) {
        let (mut bytes, before) = (0, traffic.frames);
        traffic.frames += station.send_back(|taken| bytes += taken as u64)?;
        traffic.bytes += bytes;
        if traffic.frames > before {
            clock.note(&mut traffic, before, bytes);
        }
    }
    station.finish()?;
    Ok(PortReport::of_stream("echo", station, &traffic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::station::tests::{limit, pair};

    #[test]
    fn every_frame_comes_back() {
        let (mut near, mut far) = pair("port-ping");
        for frame_bytes in [60, 1500] {
            let (pinged, echoed) = std::thread::scope(|scope| {
                let echoed = scope.spawn(|| echo(&mut far, &limit(200)).unwrap());
                let pinged = ping(&mut near, frame_bytes, &limit(200)).unwrap();
                (pinged, echoed.join().unwrap())
            });
            assert_eq!((pinged.frames, pinged.lost), (200, Some(0)));
            assert_eq!(echoed.bytes, 200 * frame_bytes as u64);
            let half = pinged.half_round_trip_ns.unwrap();
            assert!(half.p50 > 0.0 && half.p50 <= half.max, "{half:?}");
        }
    }
}
