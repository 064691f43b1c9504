//! Sends that wait for others, and what ends their waiting.

use super::*;
use crate::coalesce::Coalescer;

const SEND_DONE: u32 = status::DONE | status::OP_SEND;
/// Frames of a full burst.
const FULL: u64 = 4;

/// Connected ends, of which the near one's frames wait for a full burst.
fn waiting(test: &str) -> (End, End) {
    let (near, far) = pair(test, RELIABLE_DELIVERY, |_| ());
    if let Some(poller) = near.device.hold().as_mut().unwrap().engine_mut() {
        poller.path.send_alone = false;
        poller.coalescer = Coalescer::patient(FULL as u32);
    }
    for line in 0..32 {
        far.post_recv(line, far.segment(0, 8));
    }
    (near, far)
}

impl End {
    fn send_some(&self, lines: core::ops::Range<u64>) {
        for line in lines {
            self.post_send(line, control::OP_SEND_RECV, &[self.segment(0, 8)]);
        }
    }

    /// How many messages are here, whatever their number, and no more come.
    fn messages(&self) -> usize {
        for _ in 0..100 {
            self.poll();
        }
        let reap = || work::reap(crate::vi::vi_of(self.vi).unwrap(), self.vi, Queue::Receive);
        std::iter::from_fn(|| matches!(reap(), Ok(Done::Completed { .. })).then_some(())).count()
    }
}

#[test]
fn a_full_burst_goes_by_itself() {
    let (near, far) = waiting("coalesced-full");
    near.send_some(0..FULL - 1);
    assert_eq!(far.messages(), 0);
    near.send_some(FULL - 1..FULL);
    assert_eq!(far.messages(), FULL as usize);
    near.send_some(FULL..FULL + 1);
    assert_eq!(far.messages(), 0, "the next burst is another one");
    near.close();
    far.close();
}

#[test]
fn any_call_that_does_not_post_sends_what_waits() {
    let (near, far) = waiting("coalesced-calls");
    near.send_some(0..2);
    near.post_recv(20, near.segment(0, 8));
    assert_eq!(far.messages(), 0, "posting is no such call");
    assert_eq!(near.sent(), Some(SEND_DONE), "complete and on its way");
    assert_eq!(far.messages(), 2);

    near.send_some(2..3);
    let reaped = work::wait_done(near.vi, Queue::Send, Some(PATIENCE));
    assert!(matches!(reaped, Ok(Done::Completed { .. })), "{reaped:?}");
    assert_eq!(far.messages(), 1);

    near.send_some(3..4);
    assert!(matches!(
        work::done(near.vi, Queue::Receive),
        Ok(Done::NotDone)
    ));
    assert_eq!(far.messages(), 1);
    near.close();
    far.close();
}

#[test]
fn an_answer_goes_at_once() {
    let (near, far) = waiting("coalesced-answer");
    near.post_recv(20, near.segment(0, 8));
    far.post_send(40, control::OP_SEND_RECV, &[far.segment(0, 8)]);
    near.send_some(0..1);
    assert_eq!(far.messages(), 0, "nothing came yet that it would answer");
    assert_eq!(near.messages(), 1);
    assert_eq!(far.messages(), 1);
    near.send_some(1..2);
    assert_eq!(far.messages(), 1, "an answer");
    near.send_some(2..3);
    assert_eq!(far.messages(), 0, "and what follows it");
    near.close();
    far.close();
}

/// So what waits goes with the first turn of the NIC's thread after it took over.
#[test]
fn any_turn_sends_what_waits() {
    let (near, far) = waiting("coalesced-turn");
    near.send_some(0..3);
    assert_eq!(far.messages(), 0);
    if let Some(driver) = near.device.turn.hold_as_guest().as_mut() {
        driver.turn(&near.device.doorbells);
    }
    assert_eq!(far.messages(), 3);
    near.close();
    far.close();
}

#[test]
fn nothing_waits_while_somebody_sleeps() {
    let (near, far) = waiting("coalesced-sleeper");
    near.post_recv(20, near.segment(0, 8));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let woken = work::wait_done(near.vi, Queue::Receive, Some(PATIENCE));
            assert!(matches!(woken, Ok(Done::Completed { .. })), "{woken:?}");
        });
        let begun = std::time::Instant::now();
        while !near.device.sleepers.any() {
            assert!(begun.elapsed() < PATIENCE, "nobody sleeps");
            std::thread::yield_now();
        }
        near.send_some(0..1);
        assert_eq!(far.messages(), 1);
        far.post_send(40, control::OP_SEND_RECV, &[far.segment(0, 8)]);
        while !sleeper.is_finished() {
            near.poll();
            far.poll();
        }
    });
    near.close();
    far.close();
}
