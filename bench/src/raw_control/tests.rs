use pmd_port::shm::{ShmConfig, ShmPort};

use super::*;
use crate::plan::{Benchmark, Op};
use crate::process::StopFlag;

#[test]
fn frame_header_round_trips() {
    for kind in [FrameKind::More, FrameKind::Last, FrameKind::Stop] {
        let header = FrameHeader {
            kind,
            round: 0x0102_0304,
            message: 0xfffe_fdfc,
        };
        let mut bytes = [0; HEADER_BYTES];
        header.emit([1; 6], [2; 6], ETHERTYPE, &mut bytes);
        assert_eq!(FrameHeader::parse(&bytes, ETHERTYPE), Some(header));
        assert_eq!(
            FrameHeader::parse(&bytes[..HEADER_BYTES - 1], ETHERTYPE),
            None
        );
        assert_eq!(FrameHeader::parse(&bytes, ETHERTYPE + 1), None);
        bytes[12] ^= 1;
        assert_eq!(FrameHeader::parse(&bytes, ETHERTYPE), None);
    }
}

/// Opens two ends on a private segment.
fn pair(name: &str) -> (RawPortEnd, RawPortEnd) {
    let config = ShmConfig::new(format!("vibench-{name}-{}", std::process::id()));
    let open = || RawPortEnd {
        // On a busy host the peer may not run for a while, and nothing is lost.
        lost_after: Duration::from_secs(60),
        ..RawPortEnd::new(Box::new(ShmPort::open(config.clone()).unwrap()))
    };
    (open(), open())
}

fn round(benchmark: Benchmark, size_bytes: u32, mac: MacBytes) -> RawRound {
    RawRound {
        benchmark,
        frames: Frames::for_port(Op::Send, size_bytes, 2172).unwrap(),
        mac,
    }
}

fn limit(messages: u64) -> RoundLimit {
    RoundLimit {
        duration: Duration::ZERO,
        messages: Some(messages),
        stop: StopFlag::never(),
    }
}

#[test]
fn ping_gets_every_message_back() {
    let (mut client, mut server) = pair("control-ping");
    for size_bytes in [0, 8, 4096, 65536] {
        let (client_round, server_round) = (
            round(Benchmark::Latency, size_bytes, server.mac()),
            round(Benchmark::Latency, size_bytes, client.mac()),
        );
        std::thread::scope(|scope| {
            server.begin(&server_round, server_round.frames).unwrap();
            client.begin(&client_round, client_round.frames).unwrap();
            let echo = scope.spawn(|| server.echo());
            let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
            let pinged = client.ping(&limit(100), &mut histogram).unwrap();
            assert_eq!((pinged.round_trips, pinged.lost), (100, 0), "{size_bytes}");
            assert_eq!(histogram.len(), 100);
            echo.join().unwrap().unwrap();
        });
    }
}

#[test]
fn read_round_sends_short_requests_and_long_responses() {
    let (mut client, mut server) = pair("control-read");
    let (client_round, server_round) = (
        round(Benchmark::Latency, 65536, server.mac()),
        round(Benchmark::Latency, 65536, client.mac()),
    );
    std::thread::scope(|scope| {
        server.begin(&server_round, server_round.frames).unwrap();
        client
            .begin(&client_round, Frames::of_read_request())
            .unwrap();
        let echo = scope.spawn(|| server.echo());
        let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
        let pinged = client.ping(&limit(20), &mut histogram).unwrap();
        assert_eq!((pinged.round_trips, pinged.lost), (20, 0));
        echo.join().unwrap().unwrap();
    });
    let sent = client.port.stats().tx_frames;
    let responses = server.port.stats().tx_frames;
    assert!(responses >= 20 * 32 && sent < 20 * 2, "{sent}, {responses}");
}

#[test]
fn stream_counts_every_message() {
    let (mut client, mut server) = pair("control-stream");
    for size_bytes in [64, 65536] {
        let (client_round, server_round) = (
            round(Benchmark::Rate, size_bytes, server.mac()),
            round(Benchmark::Rate, size_bytes, client.mac()),
        );
        std::thread::scope(|scope| {
            server.begin(&server_round, server_round.frames).unwrap();
            client.begin(&client_round, client_round.frames).unwrap();
            let receive = scope.spawn(|| server.receive());
            client.send(&limit(320), 16).unwrap();
            let result = receive.join().unwrap().unwrap();
            assert_eq!(result.delivered, 320, "{size_bytes}");
            assert!(
                result.timed < result.delivered && result.elapsed_ns > 0,
                "{result:?}"
            );
        });
    }
}

#[test]
fn begin_rejects_invalid_frame_sizes() {
    let (mut client, server) = pair("control-misfit");
    let mut misfit = round(Benchmark::Rate, 4096, server.mac());
    misfit.frames.full_bytes = 1 << 20;
    assert!(client.begin(&misfit, misfit.frames).is_err());
    misfit.frames.count = 0;
    assert!(client.begin(&misfit, misfit.frames).is_err());
    misfit.frames = Frames {
        count: 1,
        full_bytes: 2172,
        last_bytes: HEADER_BYTES as u32 - 1,
    };
    assert!(client.begin(&misfit, misfit.frames).is_err());
}

#[test]
fn frame_kind_rejects_unknown_byte() {
    assert_eq!(FrameKind::from_byte(3), None);
}
