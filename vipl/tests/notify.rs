//! Handlers that are called when something completes: which, in which order, with what, and what they may do.

mod common;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::raw::RawEnd;
use common::{
    End, PATIENCE, SecondProcess, WAIT, config, connect, is_child, open_as, pair, pair_on, raw,
};
use pmd::descriptor::status;
use vipl::{Completed, Done, NicHandle, Returned, Timeout, Vi, ViState, VipError, provider as vip};

/// What a handler was called with, and on which thread.
type Told = (Option<Completed>, thread::ThreadId);

/// A handler that tells what it was called with.
fn tell(sender: &Sender<Told>) -> impl FnOnce(Option<Completed>) + Send + 'static {
    let sender = sender.clone();
    move |found| {
        // A test that has failed does not listen.
        let _ = sender.send((found, thread::current().id()));
    }
}

fn next<T>(told: &Receiver<T>) -> T {
    told.recv_timeout(PATIENCE).expect("a handler is called")
}

#[test]
fn handlers_are_called_in_order_one_for_each_descriptor_on_one_thread() {
    let (client, server) = pair();
    let (sender, told) = channel();
    for _ in 0..3 {
        server.vi.post_recv(server.room(8)).unwrap();
        let number = tell(&sender);
        server.vi.recv_notify(number).unwrap();
    }
    let mut threads = Vec::new();
    for message in 0..3u64 {
        client
            .send(client.message(&message.to_le_bytes()))
            .ok()
            .unwrap();
        let (found, on) = next(&told);
        assert_eq!(
            found.unwrap().ok().unwrap().first_bytes(),
            message.to_le_bytes()
        );
        threads.push(on);
    }
    assert!(threads.iter().all(|on| *on == threads[0]), "one thread");
    assert_ne!(threads[0], thread::current().id(), "of its own");

    // The send queue has another one.
    client.vi.post_send(client.message(b"once more")).unwrap();
    client.vi.send_notify(tell(&sender)).unwrap();
    let (found, on) = next(&told);
    assert!(found.is_some());
    assert_ne!(on, threads[0]);
}

#[test]
fn a_descriptor_that_was_complete_before_is_given_at_once() {
    let (client, server) = pair();
    server.vi.post_recv(server.room(8)).unwrap();
    server.vi.post_recv(server.room(8)).unwrap();
    client.send(client.message(b"early")).ok().unwrap();
    // A descriptor of its own tells that the one before it is complete.
    client.vi.post_recv(client.room(8)).unwrap();
    server.send(server.message(b"go")).ok().unwrap();
    client.recv().ok().unwrap();
    let (sender, told) = channel();
    server.vi.recv_notify(tell(&sender)).unwrap();
    let found = next(&told).0.unwrap().ok().unwrap();
    assert_eq!(found.first_bytes(), b"early");
}

#[test]
fn an_empty_queue_is_an_error_and_the_handler_is_not_called() {
    let end = End::new();
    let (sender, told) = channel();
    let refused = end.vi.recv_notify(tell(&sender));
    assert_eq!(refused, Err(VipError::DescriptorError));
    assert_eq!(
        end.vi.send_notify(tell(&sender)),
        Err(VipError::DescriptorError)
    );
    drop(sender);
    assert_eq!(
        told.recv_timeout(PATIENCE).unwrap_err(),
        RecvTimeoutError::Disconnected,
        "both were dropped"
    );
}

#[test]
fn when_the_queue_becomes_empty_all_others_are_told_even_if_the_first_posts_again() {
    let (client, server) = pair();
    let server = Arc::new(server);
    server.vi.post_recv(server.room(8)).unwrap();
    let (sender, told) = channel();
    let again = {
        let (end, tell) = (Arc::clone(&server), tell(&sender));
        move |found: Option<Completed>| {
            // Posted before the others are called: the queue had become empty all the same.
            end.vi.post_recv(found.unwrap().descriptor).unwrap();
            tell(None);
        }
    };
    server.vi.recv_notify(again).unwrap();
    for _ in 0..2 {
        server.vi.recv_notify(tell(&sender)).unwrap();
    }
    client.send(client.message(b"message")).ok().unwrap();
    for _ in 0..3 {
        assert!(next(&told).0.is_none());
    }
    server.vi.recv_notify(tell(&sender)).unwrap();
    client.send(client.message(b"another")).ok().unwrap();
    assert_eq!(next(&told).0.unwrap().first_bytes(), b"another");
}

#[test]
fn a_queue_that_is_emptied_by_done_calls_is_told_too() {
    let (client, server) = pair();
    server.vi.post_recv(server.room(8)).unwrap();
    let (sender, told) = channel();
    let (begun, held) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let busy = {
        let (begun, held) = (Arc::clone(&begun), Arc::clone(&held));
        move |_| {
            begun.wait();
            held.wait();
        }
    };
    server.vi.recv_notify(busy).unwrap();
    client.send(client.message(b"first")).ok().unwrap();
    begun.wait();
    // While the thread is busy, a descriptor comes and goes.
    server.vi.post_recv(server.room(8)).unwrap();
    server.vi.recv_notify(tell(&sender)).unwrap();
    client.send(client.message(b"second")).ok().unwrap();
    assert_eq!(server.recv().first_bytes(), b"second");
    held.wait();
    assert!(next(&told).0.is_none());
}

#[test]
fn disconnecting_gives_every_handler_its_flushed_descriptor() {
    let end = End::new();
    let (sender, told) = channel();
    for _ in 0..4 {
        end.vi.post_recv(end.room(8)).unwrap();
    }
    for _ in 0..6 {
        end.vi.recv_notify(tell(&sender)).unwrap();
    }
    end.vi.disconnect().unwrap();
    for _ in 0..4 {
        assert!(next(&told).0.unwrap().status.is_flushed());
    }
    for _ in 0..2 {
        assert!(next(&told).0.is_none());
    }
}

#[test]
fn raw_handlers_are_told_the_opening_and_the_status() {
    let (client, server) = (RawEnd::new(&config(|_| ())), RawEnd::new(&config(|_| ())));
    raw::connect(&client, &server);
    server.post_recv(0, &[server.segment(0, 8)]);
    let posted = server.memory.at(0);
    let (sender, told) = channel::<(NicHandle, Option<(u64, u32)>)>();
    let report = move |nic, found: Option<Returned>| {
        let found = found.map(|found| (found.descriptor as u64, found.status));
        sender.send((nic, found)).unwrap();
    };
    vip::recv_notify(server.vi, report).unwrap();
    client.post_send(0, &[client.segment(0, 8)]);
    let done = status::DONE | status::OP_RECEIVE;
    assert_eq!(next(&told), (server.nic, Some((posted, done))));
    assert_eq!(vip::recv_done(server.vi), Ok(Done::Empty));
}

#[test]
fn a_queue_on_a_completion_queue_is_asked_for_there() {
    let end = End::new();
    let cq = end.nic.create_cq(4).unwrap();
    let client = End::on(end.nic.clone(), |vi| vi);
    let server = End::on(end.nic.clone(), |vi| vi.recv_cq(&cq));
    connect(&client, &server);
    for _ in 0..2 {
        server.vi.post_recv(server.room(8)).unwrap();
    }
    let refused = server.vi.recv_notify(|_| ());
    assert_eq!(refused, Err(VipError::ErrorResource));
    let (sender, told) = channel();
    for number in 0..2 {
        let sender = sender.clone();
        cq.notify(move |entry| sender.send((number, entry)).unwrap())
            .unwrap();
    }
    for number in 0..2u8 {
        client.send(client.message(&[number])).ok().unwrap();
        let (asked, entry) = next(&told);
        assert_eq!((asked, entry.vi), (number, server.vi.handle()));
        assert!(entry.recv_queue);
        // The descriptor is where it was.
        let arrived = server.vi.recv_done().unwrap().unwrap().ok().unwrap();
        assert_eq!(arrived.first_bytes(), [number]);
    }
    // The other queue of the VI reports to none.
    server.vi.post_send(server.message(b"x")).unwrap();
    let (sender, told) = channel();
    server.vi.send_notify(tell(&sender)).unwrap();
    assert!(next(&told).0.is_some());
}

#[test]
fn so_many_handlers_wait_and_no_more() {
    let nic = open_as(|config| config.max_notifies_per_queue = 3);
    let end = End::on(nic, |vi| vi);
    let cq = end.nic.create_cq(1).unwrap();
    end.vi.post_recv(end.room(8)).unwrap();
    let (sender, told) = channel();
    for _ in 0..3 {
        end.vi.recv_notify(tell(&sender)).unwrap();
        cq.notify(|_| ()).unwrap();
    }
    let refused = end.vi.recv_notify(tell(&sender));
    assert_eq!(refused, Err(VipError::ErrorResource));
    assert_eq!(cq.notify(|_| ()), Err(VipError::ErrorResource));
    end.vi.disconnect().unwrap();
    for _ in 0..3 {
        next(&told);
    }
    // And again when some were called.
    end.vi.post_recv(end.room(8)).unwrap();
    end.vi.recv_notify(tell(&sender)).unwrap();
    end.vi.disconnect().unwrap();
    assert!(next(&told).0.is_some());
}

/// Answers each message from the handler, and asks to be called again: a server without a loop.
fn answer(vi: Arc<Vi>, left: u64, done: Sender<()>) {
    let again = Arc::clone(&vi);
    let handler = move |arrived: Option<Completed>| {
        let arrived = arrived.unwrap().ok().unwrap();
        vi.post_send(arrived.descriptor).unwrap();
        // A handler may wait.
        let sent = vi.send_wait(WAIT).unwrap().unwrap().ok().unwrap();
        vi.post_recv(sent.descriptor).unwrap();
        if left > 1 {
            answer(vi, left - 1, done);
        } else {
            done.send(()).unwrap();
        }
    };
    again.recv_notify(handler).unwrap();
}

#[test]
fn a_handler_may_post_wait_and_ask_again() {
    const MESSAGES: u64 = 300;
    let (client, server) = pair();
    // Two: a message may come before the handler has posted the descriptor of the one before it.
    for _ in 0..2 {
        server.vi.post_recv(server.room(8)).unwrap();
    }
    let vi = Arc::new(server.vi);
    let (sender, done) = channel();
    answer(Arc::clone(&vi), MESSAGES, sender);
    for message in 0..MESSAGES {
        client.vi.post_recv(client.room(8)).unwrap();
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
fn descriptors_that_come_back_to_handlers_make_room_in_the_queue() {
    let nic = open_as(|config| config.max_descriptors_per_queue = 2);
    let end = End::on(nic, |vi| vi);
    let (sender, told) = channel();
    for round in 0..5 {
        for _ in 0..2 {
            end.vi.post_recv(end.room(8)).unwrap();
        }
        let refused = end.vi.post_recv(end.room(8)).unwrap_err();
        assert_eq!(refused.error, VipError::ErrorResource, "round {round}");
        end.vi.recv_notify(tell(&sender)).unwrap();
        end.vi.disconnect().unwrap();
        next(&told);
        // One came back to the handler, the other in the old way.
        assert!(end.vi.recv_done().unwrap().is_some());
    }
    assert!(end.errors.none(), "the provider saw no overrun");
}

#[test]
fn a_handler_may_disconnect_its_vi_and_another_nic_may_close_in_it() {
    let (client, server) = pair();
    let other = open_as(|config| config.takeover_us = 1003);
    let vi = Arc::new(server.vi);
    let mut descriptors = server.nic.create_descriptors(2, 0, &server.ptag).unwrap();
    vi.post_recv(descriptors.pop().unwrap()).unwrap();
    vi.post_recv(descriptors.pop().unwrap()).unwrap();
    let (sender, told) = channel();
    let end = {
        let (vi, tell) = (Arc::clone(&vi), tell(&sender));
        move |_| {
            vi.disconnect().unwrap();
            drop(other);
            tell(None);
        }
    };
    vi.recv_notify(end).unwrap();
    vi.recv_notify(tell(&sender)).unwrap();
    client.send(client.empty(0)).ok().unwrap();
    assert!(next(&told).0.is_none());
    assert!(next(&told).0.unwrap().status.is_flushed());
    assert_eq!(vi.state().unwrap(), ViState::Idle);
}

#[test]
fn a_handler_that_panics_keeps_nobody_waiting() {
    let end = End::new();
    let (sender, told) = channel();
    for _ in 0..3 {
        end.vi.post_recv(end.room(8)).unwrap();
    }
    end.vi.recv_notify(|_| panic!("on purpose")).unwrap();
    end.vi.recv_notify(tell(&sender)).unwrap();
    end.vi.disconnect().unwrap();
    assert!(next(&told).0.unwrap().status.is_flushed());
    assert!(end.vi.recv_done().unwrap().is_some(), "the third");
}

#[test]
fn done_wait_and_notify_share_a_queue_without_loss() {
    const MESSAGES: u64 = 400;
    let (client, server) = pair();
    let (sender, told) = channel::<Option<u64>>();
    let number = |found: &Completed| u64::from_le_bytes(found.first_bytes().try_into().unwrap());
    let mut seen = Vec::new();
    for first in (0..MESSAGES).step_by(4) {
        for _ in 0..4 {
            server.vi.post_recv(server.room(8)).unwrap();
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
        // Two here and two there; who gets which is open.
        let mut ours = 0;
        let deadline = Instant::now() + PATIENCE;
        while ours < 2 {
            assert!(Instant::now() < deadline, "{ours} of two are taken");
            let found = match first % 8 {
                0 => server
                    .vi
                    .recv_wait(Timeout::After(Duration::from_millis(50))),
                _ => server.vi.recv_done(),
            };
            match found {
                Ok(Some(found)) => {
                    seen.push(number(&found));
                    ours += 1;
                }
                Ok(None) => break,
                Err(error) => assert!(matches!(error, VipError::NotDone | VipError::Timeout)),
            }
        }
        for _ in 0..2 {
            seen.extend(next(&told));
        }
        while let Ok(Some(found)) = server.vi.recv_done() {
            seen.push(number(&found));
        }
    }
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..MESSAGES), "each of them once");
}

/// Threads of this process with this name.
fn threads(name: &str) -> usize {
    fs::read_dir("/proc/self/task")
        .unwrap()
        .filter(|task| {
            let comm = task.as_ref().unwrap().path().join("comm");
            // A thread may end while it is looked at.
            fs::read_to_string(comm).is_ok_and(|found| found.trim_end() == name)
        })
        .count()
}

/// Waits until so many threads have this name: a thread that was waited for is still listed for a moment.
fn await_threads(name: &str, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while threads(name) != count {
        assert!(Instant::now() < deadline, "{} threads", threads(name));
        thread::yield_now();
    }
}

#[test]
fn a_queue_has_one_thread_from_its_first_request_to_its_end() {
    // A thread's name is cut at 15 bytes.
    const NAME: &str = "notify-counted-";
    let nic = open_as(|config| config.name = "counted-threads".into());
    let cq = nic.create_cq(4).unwrap();
    let end = End::on(nic, |vi| vi);
    end.vi.post_recv(end.room(8)).unwrap();
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

/// Processor time of this process so far.
fn busy() -> Duration {
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
    // A process of its own: processor time is counted by process.
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
            end.vi.post_recv(end.room(8)).unwrap();
            end.vi.recv_notify(|_| ()).unwrap();
        }
        cq.notify(|_| ()).unwrap();
        thread::sleep(Duration::from_millis(20));
        let (before, begun) = (busy(), Instant::now());
        thread::sleep(pause);
        // It may be longer until this thread has a core again.
        let (used, passed) = (busy() - before, begun.elapsed());
        // A pinned NIC has a thread that polls, and needs a processor for it.
        let allowed = if pinned { passed * 6 / 5 } else { passed / 5 };
        assert!(used < allowed, "{used:?} of processor time in {passed:?}");
    }
}
