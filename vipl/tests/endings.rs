//! VIs, completion queues and NICs that end under waiting calls and under notify handlers.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use common::raw::{RawEnd, attributes};
use common::{
    End, PATIENCE, WAIT, config, connect, open_as, pair, persist, raw, unique_discriminator,
};
use pmd::descriptor::status;
use vipl::{Done, NicHandle, Returned, Timeout, ViHandle, VipError, provider as vip};

/// A NIC of its own for a test that closes it.
fn raw_end(mark: u64) -> RawEnd {
    RawEnd::new(&config(|config| config.takeover_us = mark))
}

/// A handler that tells that it was called, and is heard to be dropped if it was not.
fn tell(sender: &Sender<()>) -> impl FnOnce(NicHandle, Option<Returned>) + Send + 'static {
    let sender = sender.clone();
    move |_, _| {
        // A test that has failed does not listen.
        let _ = sender.send(());
    }
}

/// Everybody who could tell is gone, and nobody told.
fn none_was_called(told: &Receiver<()>) {
    assert_eq!(
        told.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected)
    );
}

/// An Idle VI with nothing posted, whose handler runs until it is told to go on and then tells that it returns; and
/// who tells whether others were called that wait behind it.
struct Busy {
    end: RawEnd,
    go_on: Sender<()>,
    returned: Receiver<()>,
    behind: Receiver<()>,
}

fn busy(mark: u64) -> Busy {
    let end = raw_end(mark);
    for slot in 0..3 {
        end.post_recv(slot, &[]);
    }
    let (begun_sender, begun) = channel();
    let (go_on, held) = channel();
    let (returned_sender, returned) = channel();
    let wait = move |_, found: Option<Returned>| {
        assert_ne!(found.unwrap().status & status::DESC_FLUSHED_ERROR, 0);
        begun_sender.send(()).unwrap();
        // Longer than any look at it takes; a test that fails lets go of it.
        let _ = held.recv_timeout(PATIENCE);
        let _ = returned_sender.send(());
    };
    vip::recv_notify(end.vi, wait).unwrap();
    let (sender, behind) = channel();
    for _ in 0..2 {
        vip::recv_notify(end.vi, tell(&sender)).unwrap();
    }
    vip::disconnect(end.vi).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    // What the others would have been called with.
    for _ in 0..2 {
        assert!(matches!(vip::recv_done(end.vi), Ok(Done::Completed { .. })));
    }
    Busy {
        end,
        go_on,
        returned,
        behind,
    }
}

fn ends_after_the_handler(busy: Busy, finish: impl FnOnce(&RawEnd) + Send) {
    let Busy {
        end,
        go_on,
        returned,
        behind,
    } = busy;
    thread::scope(|scope| {
        let end = &end;
        let ended = scope.spawn(move || {
            finish(end);
            returned.try_recv()
        });
        // Time enough for who does not wait to be caught.
        thread::sleep(Duration::from_millis(20));
        go_on.send(()).unwrap();
        assert_eq!(ended.join().unwrap(), Ok(()), "the handler had returned");
    });
    none_was_called(&behind);
    assert_eq!(vip::recv_done(end.vi), Err(VipError::InvalidParameter));
    let refused = vip::recv_notify(end.vi, |_, _| ());
    assert_eq!(refused, Err(VipError::InvalidParameter));
}

#[test]
fn who_destroys_a_vi_waits_for_its_handler_and_cancels_the_others() {
    ends_after_the_handler(busy(1101), |end| vip::destroy_vi(end.vi).unwrap());
}

#[test]
fn who_closes_a_nic_waits_for_its_notify_handlers_and_cancels_the_others() {
    ends_after_the_handler(busy(1102), |end| vip::close_nic(end.nic).unwrap());
    // Another opening stays, and with it the NIC.
    let stays = raw_end(1103);
    ends_after_the_handler(busy(1103), |end| vip::close_nic(end.nic).unwrap());
    stays.post_recv(0, &[]);
    vip::disconnect(stays.vi).unwrap();
    assert_ne!(stays.received() & status::DESC_FLUSHED_ERROR, 0);
}

#[test]
fn a_completion_queue_that_ends_cancels_its_handlers() {
    let end = raw_end(1104);
    for close in [false, true] {
        let cq = vip::create_cq(end.nic, 4).unwrap();
        let (sender, told) = channel();
        for _ in 0..3 {
            let tell = tell(&sender);
            vip::cq_notify(cq, move |nic, _| tell(nic, None)).unwrap();
        }
        drop(sender);
        if close {
            vip::close_nic(end.nic).unwrap();
        } else {
            vip::destroy_cq(cq).unwrap();
        }
        none_was_called(&told);
        let refused = vip::cq_notify(cq, |_, _| ());
        assert_eq!(refused, Err(VipError::InvalidParameter));
    }
}

#[test]
fn a_completion_queue_that_outlives_its_opening_calls_nobody_of_it() {
    let (mine, theirs) = (raw_end(1105), raw_end(1105));
    let cq = vip::create_cq(theirs.nic, 4).unwrap();
    let vi = vip::create_vi(mine.nic, &attributes(mine.ptag), None, Some(cq)).unwrap();
    let (sender, told) = channel();
    let tell = tell(&sender);
    drop(sender);
    vip::cq_notify(cq, move |nic, _| tell(nic, None)).unwrap();
    vip::close_nic(theirs.nic).unwrap();
    none_was_called(&told);
    assert_eq!(vip::cq_done(cq), Err(VipError::NotDone), "still there");
    vip::destroy_vi(vi).unwrap();
    assert_eq!(vip::cq_done(cq), Err(VipError::InvalidParameter));
}

#[test]
fn a_handler_may_destroy_its_vi_and_the_next_one_is_whole() {
    let end = raw_end(1106);
    let mut vi = end.vi;
    for round in 0..20 {
        let next = vip::create_vi(end.nic, &attributes(end.ptag), None, None).unwrap();
        for slot in 0..2 {
            let at = end.describe(slot, Default::default(), &[]);
            // SAFETY: the memory stays mapped and is left alone until the descriptor comes back.
            unsafe { vip::post_recv(vi, at, end.handle) }.unwrap();
        }
        let (sender, told) = channel();
        let (behind_sender, behind) = channel();
        let destroy = move |_, found: Option<Returned>| {
            assert!(found.is_some());
            assert!(matches!(vip::recv_done(vi), Ok(Done::Completed { .. })));
            vip::destroy_vi(vi).unwrap();
            let again = vip::recv_notify(vi, |_, _| ());
            sender.send((vip::destroy_vi(vi), again)).unwrap();
        };
        // Both before anything completes.
        vip::recv_notify(vi, destroy).unwrap();
        vip::recv_notify(vi, tell(&behind_sender)).unwrap();
        drop(behind_sender);
        vip::disconnect(vi).unwrap();
        let stale = Err(VipError::InvalidParameter);
        assert_eq!(
            told.recv_timeout(PATIENCE),
            Ok((stale, stale)),
            "round {round}"
        );
        none_was_called(&behind);
        vi = next;
    }
}

#[test]
fn a_handler_may_close_its_nic_and_the_next_opening_is_whole() {
    for round in 0..20 {
        let end = raw_end(1107);
        end.post_recv(0, &[]);
        let (sender, told) = channel();
        let close = move |nic, _: Option<Returned>| sender.send(vip::close_nic(nic)).unwrap();
        vip::recv_notify(end.vi, close).unwrap();
        vip::disconnect(end.vi).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(())), "round {round}");
        assert_eq!(vip::recv_done(end.vi), Err(VipError::InvalidParameter));
    }
}

#[test]
fn handlers_that_end_each_others_queues_do_not_wait_for_each_other() {
    for _ in 0..20 {
        let ends = [raw_end(1108), raw_end(1108)];
        let both = Arc::new(Barrier::new(2));
        let (sender, told) = channel();
        for (mine, theirs) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            mine.post_recv(0, &[]);
            let (both, sender, theirs) = (Arc::clone(&both), sender.clone(), theirs.vi);
            let destroy = move |_, _: Option<Returned>| {
                both.wait();
                sender.send(vip::destroy_vi(theirs)).unwrap();
            };
            vip::recv_notify(mine.vi, destroy).unwrap();
        }
        for end in &ends {
            vip::disconnect(end.vi).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(())));
        }
    }
}

#[test]
fn a_handler_and_another_thread_may_close_at_once() {
    for _ in 0..20 {
        let end = raw_end(1109);
        end.post_recv(0, &[]);
        let both = Arc::new(Barrier::new(2));
        let (sender, told) = channel();
        let close = {
            let both = Arc::clone(&both);
            move |nic, _: Option<Returned>| {
                both.wait();
                sender.send(vip::close_nic(nic)).unwrap();
            }
        };
        vip::recv_notify(end.vi, close).unwrap();
        vip::disconnect(end.vi).unwrap();
        both.wait();
        let outcomes = [
            vip::close_nic(end.nic),
            told.recv_timeout(PATIENCE).unwrap(),
        ];
        // One of the two closes it, the other is told that it is closed.
        assert!(outcomes.contains(&Ok(())), "{outcomes:?}");
        assert!(
            outcomes.contains(&Err(VipError::InvalidParameter)),
            "{outcomes:?}"
        );
    }
}

#[test]
fn the_last_owner_of_a_vi_may_be_a_handler() {
    for _ in 0..20 {
        let (client, server) = pair();
        let End {
            vi,
            nic,
            ptag,
            errors,
        } = server;
        let mut descriptors = nic.create_descriptors(2, 0, &ptag).unwrap();
        let vi = Arc::new(vi);
        vi.post_recv(descriptors.pop().unwrap()).unwrap();
        vi.post_recv(descriptors.pop().unwrap()).unwrap();
        let (sender, told) = channel();
        let (behind_sender, behind) = channel::<()>();
        let owner = Arc::clone(&vi);
        let last = move |_| {
            let handle = owner.handle();
            drop(owner);
            sender.send(vip::query_vi(handle).unwrap_err()).unwrap();
        };
        vi.recv_notify(last).unwrap();
        vi.recv_notify(move |_| drop(behind_sender)).unwrap();
        // Also the last owner of the opening: errors are not heard any more.
        drop((vi, nic, ptag, errors));
        client.send(client.empty(0)).ok().unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(VipError::InvalidParameter));
        none_was_called(&behind);
    }
}

/// Makes calls on a VI until it is gone, and counts the descriptors that come back; each is one that was posted there.
fn call_until_gone(vi: ViHandle, which: usize, from: u64) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    let mut back = 0;
    loop {
        assert!(Instant::now() < deadline, "it never goes");
        let found = match which {
            0 => vip::recv_wait(vi, Timeout::Infinite),
            1 => vip::recv_done(vi),
            _ => vip::recv_wait(vi, Timeout::After(Duration::from_micros(50))),
        };
        match found {
            Ok(Done::Completed { descriptor, .. }) => {
                assert!((from..from + 4 * 64).contains(&(descriptor as u64)));
                back += 1;
            }
            Ok(Done::Empty | Done::NotDone) | Err(VipError::Timeout) => thread::yield_now(),
            Err(error) => {
                assert_eq!(error, VipError::InvalidParameter);
                return back;
            }
        }
    }
}

#[test]
fn a_vi_that_ends_under_waiting_calls_gives_them_nothing_of_its_successor() {
    let end = raw_end(1110);
    let notified = Arc::new(AtomicU64::new(0));
    for round in 0..60u64 {
        let vi = vip::create_vi(end.nic, &attributes(end.ptag), None, None).unwrap();
        // Each VI has slots of its own: a descriptor that comes back to another one's caller is seen.
        let first = (round % 16) as usize * 4;
        let from = end.memory.at(first * 64);
        notified.store(0, Ordering::Relaxed);
        for slot in first..first + 4 {
            let at = end.describe(slot, Default::default(), &[]);
            // SAFETY: the memory stays mapped and is left alone until the descriptor comes back.
            unsafe { vip::post_recv(vi, at, end.handle) }.unwrap();
        }
        let notified_now = Arc::clone(&notified);
        let count = move |_, found: Option<Returned>| {
            if let Some(found) = found {
                assert!((from..from + 4 * 64).contains(&(found.descriptor as u64)));
                notified_now.fetch_add(1, Ordering::Relaxed);
            }
        };
        vip::recv_notify(vi, count).unwrap();
        thread::scope(|scope| {
            let callers =
                [0, 1, 2].map(|which| scope.spawn(move || call_until_gone(vi, which, from)));
            vip::disconnect(vi).unwrap();
            let deadline = Instant::now() + PATIENCE;
            while vip::destroy_vi(vi) == Err(VipError::InvalidState) {
                assert!(Instant::now() < deadline, "its descriptors are not taken");
                thread::yield_now();
            }
            let back: u64 = callers
                .into_iter()
                .map(|caller| caller.join().unwrap())
                .sum();
            assert_eq!(back + notified.load(Ordering::Relaxed), 4, "round {round}");
        });
    }
}

#[test]
fn a_vi_that_ends_under_a_connection_call_ends_the_call() {
    let listener = RawEnd::new(&config(|_| ()));
    let client = raw_end(1111);
    let address = |end: &RawEnd, discriminator: &[u8]| vipl::NetAddress {
        host: vipl::HostAddress(*vip::query_nic(end.nic).unwrap().local_nic_address),
        discriminator: vipl::Discriminator::new(discriminator).unwrap(),
    };
    let (own, remote) = (
        address(&client, b"client"),
        address(&listener, &unique_discriminator()),
    );
    for _ in 0..20 {
        let vi = vip::create_vi(client.nic, &attributes(client.ptag), None, None).unwrap();
        thread::scope(|scope| {
            let asked = scope.spawn(|| vip::connect_wait(listener.nic, &remote, WAIT).unwrap());
            let call = scope
                .spawn(|| persist(|| vip::connect_request(vi, &own, &remote, Timeout::Infinite)));
            // It waits for an answer now, which it never gets.
            let request = asked.join().unwrap();
            vip::disconnect(vi).unwrap();
            vip::destroy_vi(vi).unwrap();
            let next = vip::create_vi(client.nic, &attributes(client.ptag), None, None).unwrap();
            let error = call.join().unwrap().unwrap_err();
            let allowed = [VipError::InvalidParameter, VipError::InvalidState];
            assert!(allowed.contains(&error), "{error:?}");
            vip::connect_reject(request.conn).unwrap();
            vip::destroy_vi(next).unwrap();
        });
    }
}

#[test]
fn completion_queues_and_vis_come_and_go_under_all_their_waiters() {
    let end = raw_end(1112);
    let stop = AtomicBool::new(false);
    let current = AtomicU64::new(0);
    thread::scope(|scope| {
        for which in 0..3 {
            let (stop, current) = (&stop, &current);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let cq = vipl::CqHandle::from_raw(current.load(Ordering::Relaxed));
                    let outcome = match which {
                        0 => vip::cq_wait(cq, Timeout::Infinite).map(drop),
                        1 => vip::cq_done(cq).map(drop),
                        _ => vip::cq_notify(cq, |_, _| ()),
                    };
                    match outcome {
                        Ok(()) | Err(VipError::NotDone | VipError::ErrorResource) => {}
                        Err(error) => assert_eq!(error, VipError::InvalidParameter),
                    }
                    thread::yield_now();
                }
            });
        }
        for round in 0..200 {
            let cq = vip::create_cq(end.nic, 1 + round % 7).unwrap();
            current.store(cq.into_raw(), Ordering::Relaxed);
            let vi = vip::create_vi(end.nic, &attributes(end.ptag), None, Some(cq)).unwrap();
            let at = end.describe(0, Default::default(), &[]);
            // SAFETY: the memory stays mapped and is left alone until the descriptor comes back.
            unsafe { vip::post_recv(vi, at, end.handle) }.unwrap();
            vip::disconnect(vi).unwrap();
            vip::resize_cq(cq, 1 + round % 5).unwrap();
            assert!(matches!(vip::recv_done(vi), Ok(Done::Completed { .. })));
            vip::destroy_vi(vi).unwrap();
            vip::destroy_cq(cq).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_process_that_forks_with_handlers_waiting_keeps_them() {
    let (client, server) = pair();
    server.vi.post_recv(server.room(8)).unwrap();
    let (sender, told) = channel();
    server
        .vi
        .recv_notify(move |found| sender.send(found).unwrap())
        .unwrap();
    let (vi, cq) = (server.vi.handle(), server.nic.create_cq(1).unwrap());
    cq.notify(|_| ()).unwrap();
    // SAFETY: the child calls the library, which is made for that, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let stale = Err(VipError::InvalidParameter);
        let good = vip::recv_notify(vi, |_, _| ()) == stale
            && vip::cq_notify(cq.handle(), |_, _| ()) == stale
            && vip::resize_cq(cq.handle(), 2) == stale
            && vip::destroy_cq(cq.handle()) == stale
            && vip::destroy_vi(vi) == stale;
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child and writes its status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child");
    client.send(client.message(b"as usual")).ok().unwrap();
    let found = told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(found.first_bytes(), b"as usual");
}

#[test]
fn a_nic_that_closes_under_messages_and_handlers_leaves_nothing_running() {
    for round in 0..30 {
        let client = RawEnd::new(&config(|_| ()));
        let server = raw_end(1113);
        raw::connect(&client, &server);
        let called = Arc::new(AtomicU64::new(0));
        for slot in 0..8 {
            server.post_recv(slot, &[server.segment(slot * 8, 8)]);
            let called = Arc::clone(&called);
            let count = move |_, _: Option<Returned>| {
                called.fetch_add(1, Ordering::Relaxed);
            };
            vip::recv_notify(server.vi, count).unwrap();
        }
        for slot in 0..8 {
            client.post_send(slot, &[client.segment(0, 8)]);
        }
        if round % 2 == 0 {
            thread::yield_now();
        }
        vip::close_nic(server.nic).unwrap();
        // The handlers' share of the counter is gone with the last of them.
        assert_eq!(Arc::strong_count(&called), 1, "round {round}");
        drop(client);
    }
}

#[test]
fn a_lost_connection_gives_every_handler_its_flushed_descriptor() {
    let (client, server) = (
        End::new(),
        End::on(open_as(|config| config.takeover_us = 1114), |vi| vi),
    );
    for _ in 0..10 {
        connect(&client, &server);
        for _ in 0..3 {
            server.vi.post_recv(server.empty(0)).unwrap();
        }
        let (sender, told) = channel();
        for _ in 0..3 {
            let sender = sender.clone();
            server
                .vi
                .recv_notify(move |found| sender.send(found.is_some()).unwrap())
                .unwrap();
        }
        client.vi.disconnect().unwrap();
        for _ in 0..3 {
            assert_eq!(
                told.recv_timeout(PATIENCE),
                Ok(true),
                "flushed, each of them"
            );
        }
        server.vi.disconnect().unwrap();
    }
}

#[test]
fn done_calls_do_not_wait_behind_wait_calls() {
    let end = raw_end(1115);
    let cq = vip::create_cq(end.nic, 1).unwrap();
    end.post_recv(0, &[]);
    thread::scope(|scope| {
        let waits = [
            scope.spawn(|| vip::recv_wait(end.vi, Timeout::Infinite).map(drop)),
            scope.spawn(|| vip::cq_wait(cq, Timeout::Infinite).map(drop)),
        ];
        // Before they sleep and while they do.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(20) {
            assert_eq!(vip::recv_done(end.vi), Ok(Done::NotDone));
            assert_eq!(vip::cq_done(cq), Err(VipError::NotDone));
        }
        vip::close_nic(end.nic).unwrap();
        for wait in waits {
            assert_eq!(wait.join().unwrap(), Err(VipError::InvalidParameter));
        }
    });
}
