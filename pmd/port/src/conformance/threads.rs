//! Checks between two threads, and between a sleeper and its waker.

use std::time::Duration;

use super::Pair;
use super::frames::{
    Deadline, MIN_FRAME_BYTES, alloc_for, flush, receive, send, serial_of, write_frame,
};
use crate::mbuf::{BURST, MbufBatch};
use crate::port::{MacBytes, Port, WakeSource};
use crate::sync::mapped::{AtomicU32, Ordering};

const STREAM_FRAMES: u32 = 20_000;
const WAKES: u32 = 1_000;

/// Timeout of a sleep that a frame should end.
const SLEEP: Duration = Duration::from_secs(5);
/// Poll interval for sources that cannot wake the sleeper.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Sends frames continuously until both sides have received enough, and receives the peer's frames.
fn stream(port: &mut dyn Port, peer: MacBytes, satisfied: &AtomicU32) {
    let own = port.capabilities().mac;
    let lossless = port.capabilities().lossless;
    let deadline = Deadline::new("a stream of frames");
    let (mut sent, mut next, mut seen) = (0u32, 0u32, 0u32);
    let (mut unsent, mut received) = (MbufBatch::new(), MbufBatch::new());
    // Acquire: partner is the Release below.
    while satisfied.load(Ordering::Acquire) < 2 {
        while unsent.room() > 0
            && let Some(mut mbuf) = port.alloc(peer)
        {
            let len_bytes = MIN_FRAME_BYTES + sent as usize % 60;
            write_frame(&mut mbuf, peer, own, sent, len_bytes);
            unsent.push(mbuf).expect("room was checked");
            sent += 1;
        }
        let moved = port.tx_burst(&mut unsent) + port.rx_burst(&mut received, BURST);
        while let Some(mbuf) = received.pop() {
            let serial = serial_of(mbuf.bytes(), own, peer);
            assert!(serial >= next, "frame {serial} after {next}");
            assert!(!lossless || serial == next, "{next} is missing");
            next = serial + 1;
            seen += 1;
            port.free(mbuf);
            if seen == STREAM_FRAMES {
                // Release: partner is the Acquire above.
                satisfied.fetch_add(1, Ordering::Release);
            }
        }
        if moved == 0 {
            deadline.check();
        }
    }
    while let Some(mbuf) = unsent.pop() {
        port.free(mbuf);
    }
}

pub(super) fn two_threads_stream_both_ways(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    let satisfied = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| stream(&mut *a, b_mac, &satisfied));
        scope.spawn(|| stream(&mut *b, a_mac, &satisfied));
    });
}

/// Receives one frame, sleeping while there is none.
fn receive_asleep(port: &mut dyn Port, src: MacBytes, expected: u32) {
    let dst = port.capabilities().mac;
    let deadline = Deadline::new("a frame that wakes");
    let mut batch = MbufBatch::new();
    let mut overslept = false;
    while port.rx_burst(&mut batch, 1) == 0 {
        let source = port.arm();
        if port.rx_burst(&mut batch, 1) > 0 {
            break;
        }
        let timeout = match source {
            WakeSource::Futex { .. } | WakeSource::Fd(_) => SLEEP,
            WakeSource::Poll => POLL_INTERVAL,
        };
        let slept = source.sleep(timeout).expect("a source to sleep on");
        overslept = timeout == SLEEP && slept == crate::wake::Slept::TimedOut;
        if deadline.is_over() {
            println!("frame {expected} has not arrived: {:?}", port.stats());
        }
        deadline.check();
    }
    port.disarm();
    assert!(!overslept, "frame {expected} did not wake the receiver");
    let mbuf = batch.pop().expect("one frame was received");
    assert_eq!(serial_of(mbuf.bytes(), dst, src), expected);
    port.free(mbuf);
}

/// Two sides send alternately; each sleeps until the other's frame wakes it.
pub(super) fn arm_and_poll_lose_no_wakeup(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for serial in 0..WAKES {
                send(&mut *a, b_mac, serial..serial + 1, MIN_FRAME_BYTES);
                receive_asleep(&mut *a, b_mac, serial);
            }
        });
        scope.spawn(|| {
            for serial in 0..WAKES {
                receive_asleep(&mut *b, a_mac, serial);
                send(&mut *b, a_mac, serial..serial + 1, MIN_FRAME_BYTES);
            }
        });
    });
}

pub(super) fn arm_without_sleep_has_no_effect(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    a.disarm();
    for serial in 0..100 {
        let mut batch = MbufBatch::new();
        let mut mbuf = alloc_for(&mut *a, b_mac);
        write_frame(&mut mbuf, b_mac, a_mac, serial, MIN_FRAME_BYTES);
        batch.push(mbuf).expect("an empty batch");
        drop(b.arm());
        drop(b.arm());
        if serial % 2 == 0 {
            b.disarm();
            b.disarm();
        }
        flush(&mut *a, &mut batch);
        receive(&mut *b, a_mac, serial..serial + 1);
    }
}
