//! Sends that are delayed to form bursts, and what sends them.

use super::*;
use crate::coalesce::Coalescer;

const SEND_DONE: u32 = status::DONE | status::OP_SEND;
/// Frames of a full burst.
const FULL: u64 = 4;

/// Connects two endpoints, of which the near one delays frames until a burst is full.
fn delayed_pair(test: &str) -> (Endpoint, Endpoint) {
    let (near, far) = pair(test, RELIABLE_DELIVERY, |_| ());
    if let Some(poller) = near.device.lock().as_mut().unwrap().state_mut() {
        poller.path.send_alone = false;
        poller.coalescer = Coalescer::without_time_limit(FULL as u32);
    }
    for line in 0..32 {
        far.post_recv(line, far.segment(0, 8));
    }
    (near, far)
}

impl Endpoint {
    fn send_lines(&self, lines: core::ops::Range<u64>) {
        for line in lines {
            self.post_send(line, control::OP_SEND_RECV, &[self.segment(0, 8)]);
        }
    }

    /// Polls until all sent messages have arrived; returns their number.
    fn receive_messages(&self) -> usize {
        for _ in 0..100 {
            self.poll();
        }
        let reap = || {
            reap::reap(
                &crate::lookup::vi_of(self.vi).unwrap(),
                self.vi,
                QueueKind::Receive,
            )
        };
        std::iter::from_fn(|| matches!(reap(), Ok(Done::Completed { .. })).then_some(())).count()
    }
}

#[test]
fn full_burst_is_sent_at_once() {
    let (near, far) = delayed_pair("coalesced-full");
    near.send_lines(0..FULL - 1);
    assert_eq!(far.receive_messages(), 0);
    near.send_lines(FULL - 1..FULL);
    assert_eq!(far.receive_messages(), FULL as usize);
    near.send_lines(FULL..FULL + 1);
    assert_eq!(far.receive_messages(), 0, "the next burst is another one");
    near.close();
    far.close();
}

#[test]
fn calls_other_than_post_send_delayed_frames() {
    let (near, far) = delayed_pair("coalesced-calls");
    near.send_lines(0..2);
    near.post_recv(20, near.segment(0, 8));
    assert_eq!(far.receive_messages(), 0, "posting does not send them");
    assert_eq!(near.sent(), Some(SEND_DONE), "complete and sent");
    assert_eq!(far.receive_messages(), 2);

    near.send_lines(2..3);
    let reaped = queue_calls::wait_done(near.vi, QueueKind::Send, Some(TIMEOUT));
    assert!(matches!(reaped, Ok(Done::Completed { .. })), "{reaped:?}");
    assert_eq!(far.receive_messages(), 1);

    near.send_lines(3..4);
    assert!(matches!(
        queue_calls::done(near.vi, QueueKind::Receive),
        Ok(Done::NotDone)
    ));
    assert_eq!(far.receive_messages(), 1);
    near.close();
    far.close();
}

#[test]
fn first_send_after_receive_is_sent_at_once() {
    let (near, far) = delayed_pair("coalesced-answer");
    near.post_recv(20, near.segment(0, 8));
    far.post_send(40, control::OP_SEND_RECV, &[far.segment(0, 8)]);
    near.send_lines(0..1);
    assert_eq!(far.receive_messages(), 0, "nothing was received before it");
    assert_eq!(near.receive_messages(), 1);
    assert_eq!(far.receive_messages(), 1);
    near.send_lines(1..2);
    assert_eq!(far.receive_messages(), 1, "first after a receive");
    near.send_lines(2..3);
    assert_eq!(far.receive_messages(), 0, "the next is delayed");
    near.close();
    far.close();
}

/// So delayed frames are sent by the first poll of the NIC's thread after it takes over.
#[test]
fn poll_sends_delayed_frames() {
    let (near, far) = delayed_pair("coalesced-poll");
    near.send_lines(0..3);
    assert_eq!(far.receive_messages(), 0);
    if let Some(backend) = near.device.backend.lock_unbiased().as_mut() {
        backend.poll(&near.device.shared.doorbells);
    }
    assert_eq!(far.receive_messages(), 3);
    near.close();
    far.close();
}

#[test]
fn send_is_not_delayed_while_a_thread_waits() {
    let (near, far) = delayed_pair("coalesced-sleeper");
    near.post_recv(20, near.segment(0, 8));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let woken = queue_calls::wait_done(near.vi, QueueKind::Receive, Some(TIMEOUT));
            assert!(matches!(woken, Ok(Done::Completed { .. })), "{woken:?}");
        });
        let begun = std::time::Instant::now();
        while !near.device.shared.waiters.any() {
            assert!(begun.elapsed() < TIMEOUT, "no thread waits");
            std::thread::yield_now();
        }
        near.send_lines(0..1);
        assert_eq!(far.receive_messages(), 1);
        far.post_send(40, control::OP_SEND_RECV, &[far.segment(0, 8)]);
        while !waiter.is_finished() {
            near.poll();
            far.poll();
        }
    });
    near.close();
    far.close();
}
