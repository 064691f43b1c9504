//! `ping` and `echo`: one frame in flight.

use std::time::Instant;

use super::report::{PortReport, Traffic};
use super::station::Station;
use super::stream::BurstClock;
use crate::error::Result;
use crate::latency::RoundLimit;
use crate::raw_control::{FrameHeader, PollTimer};
use crate::report::Percentiles;
use crate::totals::new_histogram;

/// Sends frames and records the round trip of each.
pub(super) fn ping(
    station: &mut Station,
    frame_bytes: usize,
    limit: &RoundLimit,
) -> Result<PortReport> {
    station.check(frame_bytes)?;
    let mut round_trips_ns = new_histogram()?;
    let mut header = FrameHeader::first_of_run();
    let start = Instant::now();
    let (mut before, mut lost) = (start, 0);
    while !limit.is_over(before - start, round_trips_ns.len() + lost) {
        station.send(&header, frame_bytes)?;
        let is_back = wait_for_echo(station, &header)?;
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

/// Waits for this frame and ignores late ones; returns false if it is lost.
#[inline]
fn wait_for_echo(station: &mut Station, header: &FrameHeader) -> Result<bool> {
    let mut idle = PollTimer::default();
    loop {
        let mut is_back = false;
        station.receive_burst(|_, found| is_back |= found == Some(*header))?;
        if is_back || idle.exceeds(station.lost_after) {
            return Ok(is_back);
        }
    }
}

/// Sends every frame back until the limit.
pub(super) fn echo(station: &mut Station, limit: &RoundLimit) -> Result<PortReport> {
    let mut traffic = Traffic::default();
    let mut clock = BurstClock::default();
    while !clock.is_over(limit, traffic.frames) {
        let (mut bytes, before) = (0, traffic.frames);
        traffic.frames += station.echo_burst(|taken| bytes += taken as u64)?;
        traffic.bytes += bytes;
        if traffic.frames > before {
            clock.add_burst(&mut traffic, before, bytes);
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
    fn ping_gets_every_frame_back() {
        let (mut client, mut server) = pair("port-ping");
        for frame_bytes in [60, 1500] {
            let (pinged, echoed) = std::thread::scope(|scope| {
                let echoed = scope.spawn(|| echo(&mut server, &limit(200)).unwrap());
                let pinged = ping(&mut client, frame_bytes, &limit(200)).unwrap();
                (pinged, echoed.join().unwrap())
            });
            assert_eq!((pinged.frames, pinged.lost), (200, Some(0)));
            assert_eq!(echoed.bytes, 200 * frame_bytes as u64);
            let half = pinged.half_round_trip_ns.unwrap();
            assert!(half.p50 > 0.0 && half.p50 <= half.max, "{half:?}");
        }
    }
}
