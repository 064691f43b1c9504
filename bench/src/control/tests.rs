use pmd_port::shm::{ShmConfig, ShmPort};

use super::*;
use crate::plan::{Benchmark, Op};
use crate::process::Stop;

#[test]
fn headers_come_back() {
    for kind in [Kind::More, Kind::Last, Kind::Stop] {
        let header = Header {
            kind,
            round: 0x0102_0304,
            message: 0xfffe_fdfc,
        };
        let mut bytes = [0; HEADER_BYTES];
        header.emit([1; 6], [2; 6], ETHERTYPE, &mut bytes);
        assert_eq!(Header::parse(&bytes, ETHERTYPE), Some(header));
        assert_eq!(Header::parse(&bytes[..HEADER_BYTES - 1], ETHERTYPE), None);
        assert_eq!(Header::parse(&bytes, ETHERTYPE + 1), None);
        bytes[12] ^= 1;
        assert_eq!(Header::parse(&bytes, ETHERTYPE), None);
    }
}

/// Two ends on a segment of their own.
fn pair(name: &str) -> (RawEnd, RawEnd) {
    let config = ShmConfig::new(format!("vibench-{name}-{}", std::process::id()));
    let open = || RawEnd::new(Box::new(ShmPort::open(config.clone()).unwrap()));
    (open(), open())
}

fn round(benchmark: Benchmark, size_bytes: u32, mac: MacBytes) -> RawRound {
    RawRound {
        benchmark,
        frames: Frames::for_port(Op::Send, size_bytes, 2172).unwrap(),
        mac,
    }
}

fn limit(messages: u64) -> Limit {
    Limit {
        duration: Duration::ZERO,
        messages: Some(messages),
        stop: Stop::never(),
    }
}

#[test]
fn every_message_comes_back() {
    let (mut near, mut far) = pair("control-ping");
    for size_bytes in [0, 8, 4096, 65536] {
        let (near_round, far_round) = (
            round(Benchmark::Latency, size_bytes, far.mac()),
            round(Benchmark::Latency, size_bytes, near.mac()),
        );
        std::thread::scope(|scope| {
            far.begin(&far_round, far_round.frames).unwrap();
            near.begin(&near_round, near_round.frames).unwrap();
            let echo = scope.spawn(|| far.echo());
            let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
            let pinged = near.ping(&limit(100), &mut histogram).unwrap();
            assert_eq!((pinged.round_trips, pinged.lost), (100, 0), "{size_bytes}");
            assert_eq!(histogram.len(), 100);
            echo.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_short_question_gets_a_long_answer() {
    let (mut near, mut far) = pair("control-read");
    let (near_round, far_round) = (
        round(Benchmark::Latency, 65536, far.mac()),
        round(Benchmark::Latency, 65536, near.mac()),
    );
    std::thread::scope(|scope| {
        far.begin(&far_round, far_round.frames).unwrap();
        near.begin(&near_round, Frames::of_read_request()).unwrap();
        let echo = scope.spawn(|| far.echo());
        let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
        let pinged = near.ping(&limit(20), &mut histogram).unwrap();
        assert_eq!((pinged.round_trips, pinged.lost), (20, 0));
        echo.join().unwrap().unwrap();
    });
    let sent = near.port.stats().tx_frames;
    let answered = far.port.stats().tx_frames;
    assert!(answered >= 20 * 32 && sent < 20 * 2, "{sent}, {answered}");
}

#[test]
fn every_message_of_a_stream_is_counted() {
    let (mut near, mut far) = pair("control-stream");
    for size_bytes in [64, 65536] {
        let (near_round, far_round) = (
            round(Benchmark::Rate, size_bytes, far.mac()),
            round(Benchmark::Rate, size_bytes, near.mac()),
        );
        std::thread::scope(|scope| {
            far.begin(&far_round, far_round.frames).unwrap();
            near.begin(&near_round, near_round.frames).unwrap();
            let receive = scope.spawn(|| far.receive());
            near.send(&limit(320), 16).unwrap();
            let seen = receive.join().unwrap().unwrap();
            assert_eq!(seen.delivered, 320, "{size_bytes}");
            assert!(
                seen.timed < seen.delivered && seen.elapsed_ns > 0,
                "{seen:?}"
            );
        });
    }
}

#[test]
fn frames_that_do_not_fit_are_refused() {
    let (mut near, far) = pair("control-misfit");
    let mut misfit = round(Benchmark::Rate, 4096, far.mac());
    misfit.frames.full_bytes = 1 << 20;
    assert!(near.begin(&misfit, misfit.frames).is_err());
    misfit.frames.count = 0;
    assert!(near.begin(&misfit, misfit.frames).is_err());
    misfit.frames = Frames {
        count: 1,
        full_bytes: 2172,
        last_bytes: HEADER_BYTES as u32 - 1,
    };
    assert!(near.begin(&misfit, misfit.frames).is_err());
}

#[test]
fn unknown_kinds_are_no_frames() {
    assert_eq!(Kind::from_byte(3), None);
}
