//! Notify handlers: order, arguments, threads, limits, and calls that handlers may make.

mod common;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::raw::RawEndpoint;
use common::{
    Endpoint, SecondProcess, TIMEOUT, WAIT, config, connect, is_child, open_as, pair, pair_on, raw,
};
use vi_types::status;
use vipl::{Completed, Done, NicHandle, Returned, Timeout, Vi, ViState, VipError, provider as vip};

/// The argument of a handler call, and its thread.
type Call = (Option<Completed>, thread::ThreadId);

/// A handler that sends its argument and thread to the channel.
fn reporting_handler(sender: &Sender<Call>) -> impl FnOnce(Option<Completed>) + Send + 'static {
    let sender = sender.clone();
    move |found| {
        // Fails if the test has failed.
        let _ = sender.send((found, thread::current().id()));
    }
}

fn next<T>(calls: &Receiver<T>) -> T {
    calls.recv_timeout(TIMEOUT).expect("a handler is called")
}

#[test]
fn handlers_are_called_in_order_one_for_each_descriptor_on_one_thread() {
    let (client, server) = pair();
    let (sender, calls) = channel();
    for _ in 0..3 {
        server.vi.post_recv(server.descriptor(8)).unwrap();
        server.vi.recv_notify(reporting_handler(&sender)).unwrap();
    }
    let mut threads = Vec::new();
    for message in 0..3u64 {
        client
            .send(client.message(&message.to_le_bytes()))
            .ok()
            .unwrap();
        let (found, on) = next(&calls);
        assert_eq!(
            found.unwrap().ok().unwrap().first_bytes(),
            message.to_le_bytes()
        );
        threads.push(on);
    }
    assert!(threads.iter().all(|on| *on == threads[0]), "one thread");
    assert_ne!(threads[0], thread::current().id(), "a separate thread");

    // The send queue has its own thread.
    client.vi.post_send(client.message(b"once more")).unwrap();
    client.vi.send_notify(reporting_handler(&sender)).unwrap();
    let (found, on) = next(&calls);
    assert!(found.is_some());
    assert_ne!(on, threads[0]);
}

#[test]
fn handler_is_called_at_once_for_a_completed_descriptor() {
    let (client, server) = pair();
    server.vi.post_recv(server.descriptor(8)).unwrap();
    server.vi.post_recv(server.descriptor(8)).unwrap();
    client.send(client.message(b"early")).ok().unwrap();
    // Waits for a later message, so that the first receive is complete.
    client.vi.post_recv(client.descriptor(8)).unwrap();
    server.send(server.message(b"go")).ok().unwrap();
    client.recv().ok().unwrap();
    let (sender, calls) = channel();
    server.vi.recv_notify(reporting_handler(&sender)).unwrap();
    let found = next(&calls).0.unwrap().ok().unwrap();
    assert_eq!(found.first_bytes(), b"early");
}

#[test]
fn notify_on_an_empty_queue_is_an_error() {
    let end = Endpoint::new();
    let (sender, calls) = channel();
    let refused = end.vi.recv_notify(reporting_handler(&sender));
    assert_eq!(refused, Err(VipError::DescriptorError));
    assert_eq!(
        end.vi.send_notify(reporting_handler(&sender)),
        Err(VipError::DescriptorError)
    );
    drop(sender);
    assert_eq!(
        calls.recv_timeout(TIMEOUT).unwrap_err(),
        RecvTimeoutError::Disconnected,
        "both were dropped"
    );
}

#[test]
fn emptied_queue_calls_remaining_handlers_even_after_a_repost() {
    let (client, server) = pair();
    let server = Arc::new(server);
    server.vi.post_recv(server.descriptor(8)).unwrap();
    let (sender, calls) = channel();
    let again = {
        let (end, report) = (Arc::clone(&server), reporting_handler(&sender));
        move |found: Option<Completed>| {
            // Posted before the others are called: the queue had become empty nevertheless.
            end.vi.post_recv(found.unwrap().descriptor).unwrap();
            report(None);
        }
    };
    server.vi.recv_notify(again).unwrap();
    for _ in 0..2 {
        server.vi.recv_notify(reporting_handler(&sender)).unwrap();
    }
    client.send(client.message(b"message")).ok().unwrap();
    for _ in 0..3 {
        assert!(next(&calls).0.is_none());
    }
    server.vi.recv_notify(reporting_handler(&sender)).unwrap();
    client.send(client.message(b"another")).ok().unwrap();
    assert_eq!(next(&calls).0.unwrap().first_bytes(), b"another");
}

#[test]
fn queue_emptied_by_done_calls_calls_remaining_handlers() {
    let (client, server) = pair();
    server.vi.post_recv(server.descriptor(8)).unwrap();
    let (sender, calls) = channel();
    let (begun, released) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let blocked = {
        let (begun, released) = (Arc::clone(&begun), Arc::clone(&released));
        move |_| {
            begun.wait();
            released.wait();
        }
    };
    server.vi.recv_notify(blocked).unwrap();
    client.send(client.message(b"first")).ok().unwrap();
    begun.wait();
    // While the handler runs, a descriptor is posted and collected.
    server.vi.post_recv(server.descriptor(8)).unwrap();
    server.vi.recv_notify(reporting_handler(&sender)).unwrap();
    client.send(client.message(b"second")).ok().unwrap();
    assert_eq!(server.recv().first_bytes(), b"second");
    released.wait();
    assert!(next(&calls).0.is_none());
}

#[test]
fn disconnect_calls_every_handler_with_a_flushed_descriptor() {
    let end = Endpoint::new();
    let (sender, calls) = channel();
    for _ in 0..4 {
        end.vi.post_recv(end.descriptor(8)).unwrap();
    }
    for _ in 0..6 {
        end.vi.recv_notify(reporting_handler(&sender)).unwrap();
    }
    end.vi.disconnect().unwrap();
    for _ in 0..4 {
        assert!(next(&calls).0.unwrap().status.is_flushed());
    }
    for _ in 0..2 {
        assert!(next(&calls).0.is_none());
    }
}

#[test]
fn raw_handler_receives_nic_handle_and_status() {
    let (client, server) = (
        RawEndpoint::new(&config(|_| ())),
        RawEndpoint::new(&config(|_| ())),
    );
    raw::connect(&client, &server);
    server.post_recv(0, &[server.segment(0, 8)]);
    let posted = server.memory.at(0);
    let (sender, calls) = channel::<(NicHandle, Option<(u64, u32)>)>();
    let report = move |nic, found: Option<Returned>| {
        let found = found.map(|found| (found.descriptor as u64, found.status));
        sender.send((nic, found)).unwrap();
    };
    vip::recv_notify(server.vi, report).unwrap();
    client.post_send(0, &[client.segment(0, 8)]);
    let done = status::DONE | status::OP_RECEIVE;
    assert_eq!(next(&calls), (server.nic, Some((posted, done))));
    assert_eq!(vip::recv_done(server.vi), Ok(Done::Empty));
}

#[test]
fn work_queue_with_a_cq_is_notified_through_the_cq() {
    let end = Endpoint::new();
    let cq = end.nic.create_cq(4).unwrap();
    let client = Endpoint::on(end.nic.clone(), |vi| vi);
    let server = Endpoint::on(end.nic.clone(), |vi| vi.recv_cq(&cq));
    connect(&client, &server);
    for _ in 0..2 {
        server.vi.post_recv(server.descriptor(8)).unwrap();
    }
    let refused = server.vi.recv_notify(|_| ());
    assert_eq!(refused, Err(VipError::ErrorResource));
    let (sender, calls) = channel();
    for number in 0..2 {
        let sender = sender.clone();
        cq.notify(move |entry| sender.send((number, entry)).unwrap())
            .unwrap();
    }
    for number in 0..2u8 {
        client.send(client.message(&[number])).ok().unwrap();
        let (handler, entry) = next(&calls);
        assert_eq!((handler, entry.vi), (number, server.vi.handle()));
        assert!(entry.recv_queue);
        // The descriptor is still on its queue.
        let arrived = server.vi.recv_done().unwrap().unwrap().ok().unwrap();
        assert_eq!(arrived.first_bytes(), [number]);
    }
    // The other queue of the VI has no completion queue.
    server.vi.post_send(server.message(b"x")).unwrap();
    let (sender, calls) = channel();
    server.vi.send_notify(reporting_handler(&sender)).unwrap();
    assert!(next(&calls).0.is_some());
}

#[test]
fn pending_handlers_per_queue_are_limited() {
    let nic = open_as(|config| config.max_notifies_per_queue = 3);
    let end = Endpoint::on(nic, |vi| vi);
    let cq = end.nic.create_cq(1).unwrap();
    end.vi.post_recv(end.descriptor(8)).unwrap();
    let (sender, calls) = channel();
    for _ in 0..3 {
        end.vi.recv_notify(reporting_handler(&sender)).unwrap();
        cq.notify(|_| ()).unwrap();
    }
    let refused = end.vi.recv_notify(reporting_handler(&sender));
    assert_eq!(refused, Err(VipError::ErrorResource));
    assert_eq!(cq.notify(|_| ()), Err(VipError::ErrorResource));
    end.vi.disconnect().unwrap();
    for _ in 0..3 {
        next(&calls);
    }
    // More handlers can wait after some were called.
    end.vi.post_recv(end.descriptor(8)).unwrap();
    end.vi.recv_notify(reporting_handler(&sender)).unwrap();
    end.vi.disconnect().unwrap();
    assert!(next(&calls).0.is_some());
}

/// Echoes each message from a handler that requests the next notification.
fn echo_from_handler(vi: Arc<Vi>, remaining: u64, done: Sender<()>) {
    let again = Arc::clone(&vi);
    let handler = move |arrived: Option<Completed>| {
        let arrived = arrived.unwrap().ok().unwrap();
        vi.post_send(arrived.descriptor).unwrap();
        // A handler may block.
        let sent = vi.send_wait(WAIT).unwrap().unwrap().ok().unwrap();
        vi.post_recv(sent.descriptor).unwrap();
        if remaining > 1 {
            echo_from_handler(vi, remaining - 1, done);
        } else {
            done.send(()).unwrap();
        }
    };
    again.recv_notify(handler).unwrap();
}

#[test]
fn handler_may_post_wait_and_notify_again() {
    const MESSAGES: u64 = 300;
    let (client, server) = pair();
    // Two: a message may arrive before the handler has posted the descriptor of the previous one.
    for _ in 0..2 {
        server.vi.post_recv(server.descriptor(8)).unwrap();
    }
    let vi = Arc::new(server.vi);
    let (sender, done) = channel();
    echo_from_handler(Arc::clone(&vi), MESSAGES, sender);
    for message in 0..MESSAGES {
        client.vi.post_recv(client.descriptor(8)).unwrap();
        client
            .send(client.message(&message.to_le_bytes()))
            .ok()
            .unwrap();
        assert_eq!(
            client.recv().ok().unwrap().first_bytes(),
            message.to_le_bytes()
        );
    }
    next(&done);
}

#[test]
fn descriptors_passed_to_handlers_free_queue_slots() {
    let nic = open_as(|config| config.max_descriptors_per_queue = 2);
    let end = Endpoint::on(nic, |vi| vi);
    let (sender, calls) = channel();
    for round in 0..5 {
        for _ in 0..2 {
            end.vi.post_recv(end.descriptor(8)).unwrap();
        }
        let refused = end.vi.post_recv(end.descriptor(8)).unwrap_err();
        assert_eq!(refused.error, VipError::ErrorResource, "round {round}");
        end.vi.recv_notify(reporting_handler(&sender)).unwrap();
        end.vi.disconnect().unwrap();
        next(&calls);
        // One descriptor was passed to the handler; the other one is collected.
        assert!(end.vi.recv_done().unwrap().is_some());
    }
    assert!(end.errors.none(), "no overrun error");
}

#[test]
fn handler_may_disconnect_its_vi_and_close_another_nic() {
    let (client, server) = pair();
    let other = open_as(|config| config.takeover_us = 1003);
    let vi = Arc::new(server.vi);
    let mut descriptors = server.nic.create_descriptors(2, 0, &server.ptag).unwrap();
    vi.post_recv(descriptors.pop().unwrap()).unwrap();
    vi.post_recv(descriptors.pop().unwrap()).unwrap();
    let (sender, calls) = channel();
    let end = {
        let (vi, report) = (Arc::clone(&vi), reporting_handler(&sender));
        move |_| {
            vi.disconnect().unwrap();
            drop(other);
            report(None);
        }
    };
    vi.recv_notify(end).unwrap();
    vi.recv_notify(reporting_handler(&sender)).unwrap();
    client.send(client.empty(0)).ok().unwrap();
    assert!(next(&calls).0.is_none());
    assert!(next(&calls).0.unwrap().status.is_flushed());
    assert_eq!(vi.state().unwrap(), ViState::Idle);
}

#[test]
fn panicking_handler_does_not_block_the_next_one() {
    let end = Endpoint::new();
    let (sender, calls) = channel();
    for _ in 0..3 {
        end.vi.post_recv(end.descriptor(8)).unwrap();
    }
    end.vi.recv_notify(|_| panic!("intentional panic")).unwrap();
    end.vi.recv_notify(reporting_handler(&sender)).unwrap();
    end.vi.disconnect().unwrap();
    assert!(next(&calls).0.unwrap().status.is_flushed());
    assert!(end.vi.recv_done().unwrap().is_some(), "the third");
}

#[test]
fn done_wait_and_notify_share_a_queue_without_loss() {
    const MESSAGES: u64 = 400;
    let (client, server) = pair();
    let (sender, calls) = channel::<Option<u64>>();
    let number = |found: &Completed| u64::from_le_bytes(found.first_bytes().try_into().unwrap());
    let mut seen = Vec::new();
    for first in (0..MESSAGES).step_by(4) {
        for _ in 0..4 {
            server.vi.post_recv(server.descriptor(8)).unwrap();
        }
        for _ in 0..2 {
            let sender = sender.clone();
            let report = move |found: Option<Completed>| {
                sender.send(found.map(|found| number(&found))).unwrap();
            };
            server.vi.recv_notify(report).unwrap();
        }
        for message in first..first + 4 {
            client
                .send(client.message(&message.to_le_bytes()))
                .ok()
                .unwrap();
        }
        // Two are collected here and two by handlers, in any order.
        let mut collected = 0;
        let deadline = Instant::now() + TIMEOUT;
        while collected < 2 {
            assert!(Instant::now() < deadline, "{collected} of two");
            let found = match first % 8 {
                0 => server
                    .vi
                    .recv_wait(Timeout::After(Duration::from_millis(50))),
                _ => server.vi.recv_done(),
            };
            match found {
                Ok(Some(found)) => {
                    seen.push(number(&found));
                    collected += 1;
                }
                Ok(None) => break,
                Err(error) => assert!(matches!(error, VipError::NotDone | VipError::Timeout)),
            }
        }
        for _ in 0..2 {
            seen.extend(next(&calls));
        }
        while let Ok(Some(found)) = server.vi.recv_done() {
            seen.push(number(&found));
        }
    }
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..MESSAGES), "each message once");
}

/// Number of threads of this process with this name.
fn threads(name: &str) -> usize {
    fs::read_dir("/proc/self/task")
        .unwrap()
        .filter(|task| {
            let comm = task.as_ref().unwrap().path().join("comm");
            // A thread may exit meanwhile.
            fs::read_to_string(comm).is_ok_and(|found| found.trim_end() == name)
        })
        .count()
}

/// Waits until this number of threads has the name: a joined thread is still listed for a short time.
fn await_threads(name: &str, count: usize) {
    let deadline = Instant::now() + TIMEOUT;
    while threads(name) != count {
        assert!(Instant::now() < deadline, "{} threads", threads(name));
        thread::yield_now();
    }
}

#[test]
fn notify_thread_lives_from_the_first_request_to_the_end_of_its_queue() {
    // The kernel truncates names of threads to 15 bytes.
    const NAME: &str = "notify-counted-";
    let nic = open_as(|config| config.name = "counted-threads".into());
    let cq = nic.create_cq(4).unwrap();
    let end = Endpoint::on(nic, |vi| vi);
    end.vi.post_recv(end.descriptor(8)).unwrap();
    assert_eq!(threads(NAME), 0, "none before");
    for _ in 0..5 {
        cq.notify(|_| ()).unwrap();
        end.vi.recv_notify(|_| ()).unwrap();
    }
    await_threads(NAME, 2);
    drop(end.vi);
    await_threads(NAME, 1);
    drop(cq);
    await_threads(NAME, 0);
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime(2) writes one timespec.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn threads_that_wait_for_completions_sleep() {
    // A separate process: processor time is counted per process.
    if !is_child() {
        SecondProcess::start("threads_that_wait_for_completions_sleep").join();
        return;
    }
    let pause = Duration::from_millis(500);
    for progress in [pmd::config::Progress::Inline, pmd::config::Progress::Pinned] {
        let pinned = progress == pmd::config::Progress::Pinned;
        let nic = || open_as(|config| config.progress = progress);
        let (client, server) = pair_on(nic(), nic());
        let cq = server.nic.create_cq(1).unwrap();
        for end in [&client, &server] {
            end.vi.post_recv(end.descriptor(8)).unwrap();
            end.vi.recv_notify(|_| ()).unwrap();
        }
        cq.notify(|_| ()).unwrap();
        thread::sleep(Duration::from_millis(20));
        let (before, begun) = (processor_time(), Instant::now());
        thread::sleep(pause);
        // The pause may be longer if this thread is descheduled.
        let (used, passed) = (processor_time() - before, begun.elapsed());
        // A pinned NIC has a thread that polls, and needs a processor for it.
        let allowed = if pinned { passed * 6 / 5 } else { passed / 5 };
        assert!(used < allowed, "{used:?} of processor time in {passed:?}");
    }
}
