use std::net::Ipv4Addr;
use std::sync::Mutex;

use super::*;
use crate::plan::Level;
use crate::process::Stop;
use crate::sync::{AtomicBool, Ordering};

/// Two ends on addresses of their own.
fn pair() -> (StreamEnd, StreamEnd) {
    let [here, there] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
    let listening = Listening::open(there).unwrap();
    let to = SocketAddr::new(there, listening.port().unwrap());
    let near = StreamEnd::connect(here, to).unwrap();
    let far = listening.accept().unwrap();
    assert_eq!(far.stream.peer_addr().unwrap().ip(), here);
    assert_eq!(near.stream.peer_addr().unwrap(), to);
    assert!(near.stream.nodelay().unwrap() && far.stream.nodelay().unwrap());
    (near, far)
}

fn round(benchmark: Benchmark, op: Op, size_bytes: u32) -> StreamRound {
    StreamRound::of(&Test::new(benchmark, op, Level::Rd, size_bytes, 16, None).unwrap())
}

fn limit(messages: u64) -> Limit {
    Limit {
        duration: Duration::ZERO,
        messages: Some(messages),
        stop: Stop::never(),
    }
}

#[test]
fn messages_have_the_bytes_of_ours() {
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
fn rounds_that_cannot_be_are_refused() {
    let (mut near, _far) = pair();
    let good = round(Benchmark::Rate, Op::Send, 64);
    near.begin(&good).unwrap();
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
        assert!(near.begin(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn every_message_comes_back() {
    let (mut near, mut far) = pair();
    for (op, size_bytes) in [(Op::Send, 0), (Op::Write, 8), (Op::Read, 300_000)] {
        let round = round(Benchmark::Latency, op, size_bytes);
        near.begin(&round).unwrap();
        far.begin(&round).unwrap();
        let is_over = AtomicBool::new(false);
        let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| far.echo(|| Ok(is_over.load(Ordering::Acquire))));
            let pinged = near.ping(&limit(50), &mut histogram).unwrap();
            is_over.store(true, Ordering::Release);
            echo.join().unwrap().unwrap();
            assert_eq!((pinged.round_trips, pinged.lost), (50, 0), "{op}");
        });
        assert_eq!(histogram.len(), 50);
    }
}

#[test]
fn every_message_of_a_stream_is_counted() {
    let (mut near, mut far) = pair();
    for size_bytes in [0, 64, 300_000] {
        let round = round(Benchmark::Rate, Op::Send, size_bytes);
        near.begin(&round).unwrap();
        far.begin(&round).unwrap();
        let told = Mutex::new(None);
        std::thread::scope(|scope| {
            let receive = scope.spawn(|| far.receive(|| Ok(*told.lock().unwrap())));
            let sent = near.send(&limit(320)).unwrap();
            *told.lock().unwrap() = Some(sent);
            let seen = receive.join().unwrap().unwrap();
            assert_eq!(seen.delivered, sent, "{size_bytes}");
            assert!(seen.delivered >= 320 && seen.timed < seen.delivered);
            assert!(seen.elapsed_ns > 0 && seen.broken.is_none(), "{seen:?}");
        });
    }
}

#[test]
fn an_end_that_goes_is_told() {
    let (mut near, far) = pair();
    near.begin(&round(Benchmark::Latency, Op::Send, 8)).unwrap();
    drop(far);
    let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
    assert!(near.ping(&limit(50), &mut histogram).is_err());
    assert!(near.echo(|| Ok(false)).is_err());
}
