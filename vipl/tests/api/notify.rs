//! Notify handlers: emptied queues, panics, threads, and calls that handlers may make.

use pmd::config::Progress;
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::{Endpoint, TIMEOUT, open_as, pair, wait_until};
use vipl::{Completed, Timeout, ViState, VipError};

/// The argument of a handler call.
type Call = Option<Completed>;

/// A handler that sends its argument to the channel.
fn reporting_handler(sender: &Sender<Call>) -> impl FnOnce(Call) + Send + 'static {
    let sender = sender.clone();
    move |found| {
        // Fails if the test has failed.
        let _ = sender.send(found);
    }
}

fn next<T>(calls: &Receiver<T>) -> T {
    calls.recv_timeout(TIMEOUT).expect("a handler is called")
}

#[test]
fn notify_on_an_empty_queue_is_an_error() {
    let end = Endpoint::new();
    let (sender, calls) = channel();
    let refused = Err(VipError::DescriptorError);
    assert_eq!(end.vi.recv_notify(reporting_handler(&sender)), refused);
    assert_eq!(end.vi.send_notify(reporting_handler(&sender)), refused);
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
    server.post_receives(1, 8);
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
    client.send_bytes(b"message");
    for _ in 0..3 {
        assert!(next(&calls).is_none());
    }
    server.vi.recv_notify(reporting_handler(&sender)).unwrap();
    client.send_bytes(b"another");
    assert_eq!(next(&calls).unwrap().first_bytes(), b"another");
}

#[test]
fn queue_emptied_by_done_calls_calls_remaining_handlers() {
    let (client, server) = pair();
    server.post_receives(1, 8);
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
    client.send_bytes(b"first");
    begun.wait();
    // While the handler runs, a descriptor is posted and collected.
    server.post_receives(1, 8);
    server.vi.recv_notify(reporting_handler(&sender)).unwrap();
    client.send_bytes(b"second");
    server.expect_message(b"second");
    released.wait();
    assert!(next(&calls).is_none());
}

#[test]
fn descriptors_passed_to_handlers_free_queue_slots() {
    let nic = open_as(|config| config.limits.max_descriptors_per_queue = 2);
    let end = Endpoint::on(nic, |vi| vi);
    let (sender, calls) = channel();
    for round in 0..5 {
        end.post_receives(2, 8);
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
    let other = open_as(|config| config.progress = Progress::inline(1003));
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
    assert!(next(&calls).is_none());
    assert!(next(&calls).unwrap().status.is_flushed());
    assert_eq!(vi.state().unwrap(), ViState::Idle);
}

#[test]
fn panicking_handler_does_not_block_the_next_one() {
    let end = Endpoint::new();
    let (sender, calls) = channel();
    end.post_receives(3, 8);
    end.vi.recv_notify(|_| panic!("intentional panic")).unwrap();
    end.vi.recv_notify(reporting_handler(&sender)).unwrap();
    end.vi.disconnect().unwrap();
    assert!(next(&calls).unwrap().status.is_flushed());
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
        server.post_receives(4, 8);
        for _ in 0..2 {
            let sender = sender.clone();
            let report = move |found: Option<Completed>| {
                sender.send(found.map(|found| number(&found))).unwrap();
            };
            server.vi.recv_notify(report).unwrap();
        }
        for message in first..first + 4 {
            client.send_bytes(&message.to_le_bytes());
        }
        // Two are collected here and two by handlers, in any order.
        let mut collected = 0;
        let deadline = Instant::now() + TIMEOUT;
        while collected < 2 {
            assert!(Instant::now() < deadline, "{collected} of two");
            let found = match first % 8 {
                0 => (server.vi).recv_wait(Timeout::After(Duration::from_millis(50))),
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
    wait_until("the number of threads", || threads(name) == count);
}

#[test]
fn notify_thread_lives_from_the_first_request_to_the_end_of_its_queue() {
    // The kernel truncates names of threads to 15 bytes.
    const NAME: &str = "notify-counted-";
    let nic = open_as(|config| config.name = "counted-threads".into());
    let cq = nic.create_cq(4).unwrap();
    let end = Endpoint::on(nic, |vi| vi);
    end.post_receives(1, 8);
    assert_eq!(threads(NAME), 0, "none before");
    for _ in 0..5 {
        cq.notify(|_| ()).unwrap();
        end.vi.recv_notify(|_| ()).unwrap();
    }
    await_threads(NAME, 2);
    // Each work queue has its own. A send without a connection is flushed.
    end.vi.post_send(end.descriptor(8)).unwrap();
    end.vi.send_notify(|_| ()).unwrap();
    await_threads(NAME, 3);
    drop(end.vi);
    await_threads(NAME, 1);
    drop(cq);
    await_threads(NAME, 0);
}
