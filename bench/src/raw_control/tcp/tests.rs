use std::net::Ipv4Addr;
use std::sync::Mutex;

use vi_types::ReliabilityLevel;

use super::*;
use crate::process::StopFlag;
use crate::sync::{AtomicBool, Ordering};

/// Opens two connected ends with different addresses.
fn pair() -> (RawTcpEnd, RawTcpEnd) {
    let [from, host] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
    let listener = RawTcpListener::open(host).unwrap();
    let to = SocketAddr::new(host, listener.port().unwrap());
    let client = RawTcpEnd::connect(from, to).unwrap();
    let server = listener.accept().unwrap();
    assert_eq!(server.stream.peer_addr().unwrap().ip(), from);
    assert_eq!(client.stream.peer_addr().unwrap(), to);
    assert!(client.stream.nodelay().unwrap() && server.stream.nodelay().unwrap());
    (client, server)
}

fn round(benchmark: Benchmark, op: Op, size_bytes: u32) -> StreamRound {
    StreamRound::of(
        &Test::new(
            benchmark,
            op,
            ReliabilityLevel::ReliableDelivery,
            size_bytes,
            16,
            None,
        )
        .unwrap(),
    )
}

fn limit(messages: u64) -> RoundLimit {
    RoundLimit {
        duration: Duration::ZERO,
        messages: Some(messages),
        stop: StopFlag::never(),
    }
}

#[test]
fn round_sizes_match_vi_tcp_messages() {
    let bytes = |round: StreamRound| (round.there_bytes, round.back_bytes, round.batch);
    assert_eq!(bytes(round(Benchmark::Latency, Op::Send, 8)), (32, 32, 1));
    assert_eq!(bytes(round(Benchmark::Latency, Op::Write, 8)), (48, 48, 1));
    assert_eq!(bytes(round(Benchmark::Latency, Op::Read, 8)), (40, 48, 1));
    assert_eq!(bytes(round(Benchmark::Rate, Op::Send, 64)), (88, 88, 16));
    assert_eq!(bytes(round(Benchmark::Rate, Op::Read, 64)), (104, 104, 16));
    let large = 1 << 20;
    assert_eq!(
        bytes(round(Benchmark::Bandwidth, Op::Send, large)),
        (large + 24, large + 24, 1)
    );
    assert_eq!(round(Benchmark::Bandwidth, Op::Send, 65536).batch, 7);
}

#[test]
fn begin_rejects_invalid_rounds() {
    let (mut client, _far) = pair();
    let good = round(Benchmark::Rate, Op::Send, 64);
    client.begin(&good).unwrap();
    for bad in [
        StreamRound {
            there_bytes: 0,
            ..good
        },
        StreamRound {
            back_bytes: 0,
            ..good
        },
        StreamRound { batch: 0, ..good },
        StreamRound {
            batch: u32::MAX,
            ..good
        },
        StreamRound {
            there_bytes: u32::MAX,
            ..good
        },
    ] {
        assert!(client.begin(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn ping_gets_every_message_back() {
    let (mut client, mut server) = pair();
    for (op, size_bytes) in [(Op::Send, 0), (Op::Write, 8), (Op::Read, 300_000)] {
        let round = round(Benchmark::Latency, op, size_bytes);
        client.begin(&round).unwrap();
        server.begin(&round).unwrap();
        let is_over = AtomicBool::new(false);
        let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| server.echo(|| Ok(is_over.load(Ordering::Acquire))));
            let pinged = client.ping(&limit(50), &mut histogram).unwrap();
            is_over.store(true, Ordering::Release);
            echo.join().unwrap().unwrap();
            assert_eq!((pinged.round_trips, pinged.lost), (50, 0), "{op}");
        });
        assert_eq!(histogram.len(), 50);
    }
}

#[test]
fn stream_counts_every_message() {
    let (mut client, mut server) = pair();
    for size_bytes in [0, 64, 300_000] {
        let round = round(Benchmark::Rate, Op::Send, size_bytes);
        client.begin(&round).unwrap();
        server.begin(&round).unwrap();
        let sent_count = Mutex::new(None);
        std::thread::scope(|scope| {
            let receive = scope.spawn(|| server.receive(|| Ok(*sent_count.lock().unwrap())));
            let sent = client.send(&limit(320)).unwrap();
            *sent_count.lock().unwrap() = Some(sent);
            let result = receive.join().unwrap().unwrap();
            assert_eq!(result.delivered, sent, "{size_bytes}");
            assert!(result.delivered >= 320 && result.timed < result.delivered);
            assert!(
                result.elapsed_ns > 0 && result.broken.is_none(),
                "{result:?}"
            );
        });
    }
}

#[test]
fn ping_and_echo_fail_when_peer_closes() {
    let (mut client, server) = pair();
    client
        .begin(&round(Benchmark::Latency, Op::Send, 8))
        .unwrap();
    drop(server);
    let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
    assert!(client.ping(&limit(50), &mut histogram).is_err());
    assert!(client.echo(|| Ok(false)).is_err());
}
