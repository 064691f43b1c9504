//! VIs, completion queues and NICs destroyed during waiting calls and notify handlers.

use pmd::config::Progress;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::raw::{self, RawEndpoint, attributes, post_empty_recv};
use crate::common::{
    Endpoint, TIMEOUT, WAIT, config, pair, retry_no_match, unique_discriminator, wait_until,
};
use vi_types::status;
use vipl::{Done, NicHandle, Returned, Timeout, ViHandle, VipError, provider as vip};

/// An endpoint on a separate NIC for each value of `takeover_us`, so that a test can close it.
fn raw_endpoint(takeover_us: u64) -> RawEndpoint {
    RawEndpoint::new(&config(|config| {
        config.progress = Progress::inline(takeover_us)
    }))
}

/// A handler that sends to the channel when called; dropping it uncalled disconnects the channel.
fn reporting_handler(
    sender: &Sender<()>,
) -> impl FnOnce(NicHandle, Option<Returned>) + Send + 'static {
    let sender = sender.clone();
    move |_, _| {
        // Fails if the test has failed.
        let _ = sender.send(());
    }
}

/// Checks that all handlers were dropped without a call.
fn expect_no_call(calls: &Receiver<()>) {
    assert_eq!(
        calls.recv_timeout(TIMEOUT),
        Err(RecvTimeoutError::Disconnected)
    );
}

/// Checks that VipCloseNic waits for a running handler and cancels the queued ones.
fn check_close_waits(takeover_us: u64) {
    let end = raw_endpoint(takeover_us);
    for slot in 0..3 {
        end.post_recv(slot, &[]);
    }
    let (begun_sender, begun) = channel();
    let (release, released) = channel();
    let (returned_sender, returned) = channel();
    let wait = move |_, found: Option<Returned>| {
        assert_ne!(found.unwrap().status & status::DESC_FLUSHED_ERROR, 0);
        begun_sender.send(()).unwrap();
        // Returns early if a failed test drops the sender.
        let _ = released.recv_timeout(TIMEOUT);
        let _ = returned_sender.send(());
    };
    vip::recv_notify(end.vi, wait).unwrap();
    let (sender, queued) = channel();
    for _ in 0..2 {
        vip::recv_notify(end.vi, reporting_handler(&sender)).unwrap();
    }
    drop(sender);
    vip::disconnect(end.vi).unwrap();
    begun.recv_timeout(TIMEOUT).unwrap();
    // The descriptors of the queued handlers.
    for _ in 0..2 {
        assert!(matches!(vip::recv_done(end.vi), Ok(Done::Completed { .. })));
    }
    let nic = end.nic;
    let closed = thread::spawn(move || {
        vip::close_nic(nic).unwrap();
        returned.try_recv()
    });
    // Long enough to detect a call that does not wait.
    thread::sleep(Duration::from_millis(20));
    release.send(()).unwrap();
    assert_eq!(closed.join().unwrap(), Ok(()), "the handler had returned");
    expect_no_call(&queued);
    assert_eq!(vip::recv_done(end.vi), Err(VipError::InvalidParameter));
    let refused = vip::recv_notify(end.vi, |_, _| ());
    assert_eq!(refused, Err(VipError::InvalidParameter));
}

#[test]
fn close_nic_waits_for_running_handlers_and_cancels_the_others() {
    check_close_waits(1102);
    // Another handle keeps the NIC open.
    let other = raw_endpoint(1103);
    check_close_waits(1103);
    other.post_recv(0, &[]);
    vip::disconnect(other.vi).unwrap();
    assert_ne!(other.received() & status::DESC_FLUSHED_ERROR, 0);
}

#[test]
fn destroyed_completion_queue_cancels_its_handlers() {
    let end = raw_endpoint(1104);
    for close in [false, true] {
        let cq = vip::create_cq(end.nic, 4).unwrap();
        let (sender, calls) = channel();
        for _ in 0..3 {
            let report = reporting_handler(&sender);
            vip::cq_notify(cq, move |nic, _| report(nic, None)).unwrap();
        }
        drop(sender);
        if close {
            vip::close_nic(end.nic).unwrap();
        } else {
            vip::destroy_cq(cq).unwrap();
        }
        expect_no_call(&calls);
        let refused = vip::cq_notify(cq, |_, _| ());
        assert_eq!(refused, Err(VipError::InvalidParameter));
    }
}

#[test]
fn completion_queue_that_outlives_its_nic_handle_calls_no_handler() {
    let (of_vi, of_cq) = (raw_endpoint(1105), raw_endpoint(1105));
    let cq = vip::create_cq(of_cq.nic, 4).unwrap();
    let vi = vip::create_vi(of_vi.nic, &attributes(of_vi.ptag), None, Some(cq)).unwrap();
    let (sender, calls) = channel();
    let report = reporting_handler(&sender);
    drop(sender);
    vip::cq_notify(cq, move |nic, _| report(nic, None)).unwrap();
    vip::close_nic(of_cq.nic).unwrap();
    expect_no_call(&calls);
    assert_eq!(vip::cq_done(cq), Err(VipError::NotDone), "still valid");
    vip::destroy_vi(vi).unwrap();
    assert_eq!(vip::cq_done(cq), Err(VipError::InvalidParameter));
}

#[test]
fn handlers_that_destroy_each_others_vis_do_not_deadlock() {
    for _ in 0..20 {
        let ends = [raw_endpoint(1108), raw_endpoint(1108)];
        let both = Arc::new(Barrier::new(2));
        let (sender, results) = channel();
        for (own, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            own.post_recv(0, &[]);
            let (both, sender, other) = (Arc::clone(&both), sender.clone(), other.vi);
            let destroy = move |_, _: Option<Returned>| {
                both.wait();
                sender.send(vip::destroy_vi(other)).unwrap();
            };
            vip::recv_notify(own.vi, destroy).unwrap();
        }
        for end in &ends {
            vip::disconnect(end.vi).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(results.recv_timeout(TIMEOUT), Ok(Ok(())));
        }
    }
}

#[test]
fn handler_and_another_thread_may_close_concurrently() {
    for _ in 0..20 {
        let end = raw_endpoint(1109);
        end.post_recv(0, &[]);
        let both = Arc::new(Barrier::new(2));
        let (sender, results) = channel();
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
            results.recv_timeout(TIMEOUT).unwrap(),
        ];
        // One of the two closes it.
        for expected in [Ok(()), Err(VipError::InvalidParameter)] {
            assert!(outcomes.contains(&expected), "{outcomes:?}");
        }
    }
}

#[test]
fn handler_may_be_the_last_owner_of_a_vi() {
    for _ in 0..20 {
        let (client, server) = pair();
        let Endpoint {
            vi,
            nic,
            ptag,
            errors,
        } = server;
        let mut descriptors = nic.create_descriptors(2, 0, &ptag).unwrap();
        let vi = Arc::new(vi);
        vi.post_recv(descriptors.pop().unwrap()).unwrap();
        vi.post_recv(descriptors.pop().unwrap()).unwrap();
        let (sender, results) = channel();
        let (queued_sender, queued) = channel::<()>();
        let owner = Arc::clone(&vi);
        let last = move |_| {
            let handle = owner.handle();
            drop(owner);
            sender.send(vip::query_vi(handle).unwrap_err()).unwrap();
        };
        vi.recv_notify(last).unwrap();
        vi.recv_notify(move |_| drop(queued_sender)).unwrap();
        // The handler is also the last owner of the NIC handle.
        drop((vi, nic, ptag, errors));
        client.send(client.empty(0)).ok().unwrap();
        assert_eq!(
            results.recv_timeout(TIMEOUT),
            Ok(VipError::InvalidParameter)
        );
        expect_no_call(&queued);
    }
}

/// Makes calls on a VI until it is destroyed; checks that returned descriptors were posted there, and counts them.
fn call_until_destroyed(vi: ViHandle, which: usize, from: u64) -> u64 {
    let deadline = Instant::now() + TIMEOUT;
    let mut returned = 0;
    loop {
        assert!(Instant::now() < deadline, "the VI is not destroyed");
        let found = match which {
            0 => vip::recv_wait(vi, Timeout::Infinite),
            1 => vip::recv_done(vi),
            _ => vip::recv_wait(vi, Timeout::After(Duration::from_micros(50))),
        };
        match found {
            Ok(Done::Completed { descriptor, .. }) => {
                assert!((from..from + 4 * 64).contains(&(descriptor as u64)));
                returned += 1;
            }
            Ok(Done::Empty | Done::NotDone) | Err(VipError::Timeout) => thread::yield_now(),
            Err(error) => {
                assert_eq!(error, VipError::InvalidParameter);
                return returned;
            }
        }
    }
}

#[test]
fn calls_on_a_destroyed_vi_return_no_descriptor_of_its_successor() {
    let end = raw_endpoint(1110);
    let notified = Arc::new(AtomicU64::new(0));
    for round in 0..60u64 {
        let vi = vip::create_vi(end.nic, &attributes(end.ptag), None, None).unwrap();
        // Each VI has its own slots: a descriptor that is returned to a caller of another VI is detected.
        let first = (round % 16) as usize * 4;
        let from = end.memory.at(first * 64);
        notified.store(0, Ordering::Relaxed);
        for slot in first..first + 4 {
            post_empty_recv(vi, end.memory.at(slot * 64), end.handle).unwrap();
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
                [0, 1, 2].map(|which| scope.spawn(move || call_until_destroyed(vi, which, from)));
            vip::disconnect(vi).unwrap();
            wait_until("descriptors are collected", || {
                vip::destroy_vi(vi) != Err(VipError::InvalidState)
            });
            let returned = callers.map(|caller| caller.join().unwrap());
            let returned = returned.iter().sum::<u64>() + notified.load(Ordering::Relaxed);
            assert_eq!(returned, 4, "round {round}");
        });
    }
}

#[test]
fn destroyed_vi_ends_its_connect_call() {
    let listener = RawEndpoint::new(&config(|_| ()));
    let client = raw_endpoint(1111);
    let own = raw::address(client.nic, b"client");
    let remote = raw::address(listener.nic, &unique_discriminator());
    for _ in 0..20 {
        let vi = vip::create_vi(client.nic, &attributes(client.ptag), None, None).unwrap();
        thread::scope(|scope| {
            let incoming = scope.spawn(|| vip::connect_wait(listener.nic, &remote, WAIT).unwrap());
            let call = scope.spawn(|| {
                retry_no_match(|| vip::connect_request(vi, &own, &remote, Timeout::Infinite))
            });
            // The call now waits for a response that is never sent.
            let request = incoming.join().unwrap();
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
fn queues_are_created_and_destroyed_during_concurrent_calls() {
    let end = raw_endpoint(1112);
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
            post_empty_recv(vi, end.memory.at(0), end.handle).unwrap();
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
fn close_nic_during_traffic_leaves_no_handler_running() {
    for round in 0..30 {
        let client = RawEndpoint::new(&config(|_| ()));
        let server = raw_endpoint(1113);
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
        // All handlers are dropped, with their references to the counter.
        assert_eq!(Arc::strong_count(&called), 1, "round {round}");
        drop(client);
    }
}

#[test]
fn done_calls_are_not_blocked_by_wait_calls() {
    let end = raw_endpoint(1115);
    let cq = vip::create_cq(end.nic, 1).unwrap();
    end.post_recv(0, &[]);
    thread::scope(|scope| {
        let waits = [
            scope.spawn(|| vip::recv_wait(end.vi, Timeout::Infinite).map(drop)),
            scope.spawn(|| vip::cq_wait(cq, Timeout::Infinite).map(drop)),
        ];
        // Before and during the sleep of the waits.
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
