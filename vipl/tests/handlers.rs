//! Error handlers that do more than look: they end connections, replace themselves, close the NIC, and panic.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use common::{End, PATIENCE, SecondProcess, connect, is_child, open, pair, pair_on};
use vipl::{
    ErrorCode, ErrorDescriptor, NicHandle, ReliabilityLevel, ResourceCode, ViState, VipError,
    provider as vip,
};

/// Has `act` called for each error, and tells the code after it.
fn handle(
    nic: NicHandle,
    mut act: impl FnMut(&ErrorDescriptor) + Send + 'static,
) -> Receiver<ErrorCode> {
    let (sender, receiver): (Sender<ErrorCode>, _) = channel();
    vip::error_callback(
        nic,
        Some(Box::new(move |error| {
            act(error);
            // A test that has seen enough does not listen.
            let _ = sender.send(error.code);
        })),
    )
    .unwrap();
    receiver
}

fn next(errors: &Receiver<ErrorCode>) -> ErrorCode {
    errors.recv_timeout(PATIENCE).expect("an error is reported")
}

#[test]
fn an_error_names_the_nic_the_vi_and_what_it_is_about() {
    let (client, server) = pair();
    let (sender, told) = channel();
    let report = move |error: &ErrorDescriptor| {
        sender
            .send((error.nic, error.vi, error.cq, error.resource, error.code))
            .unwrap();
    };
    server.nic.set_error_handler(report).unwrap();
    client.vi.disconnect().unwrap();
    let expected = (
        server.nic.handle(),
        Some(server.vi.handle()),
        None,
        ResourceCode::Vi,
        ErrorCode::ConnLost,
    );
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), expected);
}

#[test]
fn a_handler_may_disconnect_the_vi() {
    let (client, server) = pair();
    server.vi.post_recv(server.room(8)).unwrap();
    let errors = handle(server.nic.handle(), |error: &ErrorDescriptor| {
        vip::disconnect(error.vi.unwrap()).unwrap();
    });
    client.vi.disconnect().unwrap();
    assert_eq!(next(&errors), ErrorCode::ConnLost);
    assert_eq!(server.vi.state().unwrap(), ViState::Idle);
    assert!(server.vi.recv_done().unwrap().unwrap().status.is_flushed());
    connect(&client, &server);
}

#[test]
fn a_handler_may_set_another_handler_or_none() {
    let (client, server) = pair();
    let nic = server.nic.handle();
    let (sender, second) = channel();
    let first = handle(nic, move |_| {
        let sender = sender.clone();
        let second = move |error: &ErrorDescriptor| {
            vip::error_callback(error.nic, None).unwrap();
            sender.send(error.code).unwrap();
        };
        vip::error_callback(nic, Some(Box::new(second))).unwrap();
    });
    for errors in [&first, &second] {
        client.vi.disconnect().unwrap();
        assert_eq!(next(errors), ErrorCode::ConnLost);
        server.vi.disconnect().unwrap();
        connect(&client, &server);
    }
    client.vi.disconnect().unwrap();
    // The replaced handlers are gone with what they own.
    assert_eq!(
        first.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected)
    );
    assert_eq!(
        second.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected)
    );
}

#[test]
fn a_handler_may_close_the_nic_and_the_next_opening_is_whole() {
    for round in 0..20 {
        let change = |config: &mut pmd::config::NicConfig| config.takeover_us = 1001;
        let (client, server) = pair_on(open(), common::open_as(change));
        let nic = server.nic.handle();
        let errors = handle(nic, move |_| vip::close_nic(nic).unwrap());
        client.vi.disconnect().unwrap();
        assert_eq!(next(&errors), ErrorCode::ConnLost, "round {round}");
        assert_eq!(server.vi.state(), Err(VipError::InvalidParameter));
        // The thread that ran the handler may still be on its way out.
        let again = End::on(common::open_as(change), |vi| vi);
        client.vi.disconnect().unwrap();
        connect(&client, &again);
        client.vi.disconnect().unwrap();
        assert_eq!(again.errors.next_of(&again.vi), ErrorCode::ConnLost);
        assert!(again.errors.none());
    }
}

#[test]
fn a_handler_that_closes_while_others_close_does_not_wait_for_itself() {
    for round in 0..20 {
        let (client, server) = pair_on(open(), common::open_as(|config| config.takeover_us = 1002));
        let nic = server.nic.handle();
        let both = Arc::new(Barrier::new(2));
        let errors = {
            let both = Arc::clone(&both);
            handle(nic, move |_| {
                both.wait();
                // One of the two closes it, the other is told that it is closed.
                let _ = vip::close_nic(nic);
            })
        };
        client.vi.disconnect().unwrap();
        both.wait();
        let _ = vip::close_nic(nic);
        assert_eq!(next(&errors), ErrorCode::ConnLost, "round {round}");
        assert_eq!(vip::query_nic(nic).unwrap_err(), VipError::InvalidParameter);
    }
}

#[test]
fn a_handler_that_panics_is_called_again() {
    let (client, server) = pair();
    let mut calls = 0;
    let errors = {
        let (sender, receiver) = channel();
        let report = move |_: &ErrorDescriptor| {
            calls += 1;
            sender.send(calls).unwrap();
            assert!(calls > 1, "on purpose");
        };
        server.nic.set_error_handler(report).unwrap();
        receiver
    };
    for call in 1..=2 {
        client.vi.disconnect().unwrap();
        assert_eq!(errors.recv_timeout(PATIENCE).unwrap(), call);
        server.vi.disconnect().unwrap();
        connect(&client, &server);
    }
}

/// A server whose handler is being called, what tells it to return, and what tells that it did.
fn busy_handler() -> (End, End, Sender<()>, Receiver<()>) {
    let (client, server) = pair();
    let (begun_sender, begun) = channel();
    let (go_on, held) = channel::<()>();
    let (ended_sender, ended) = channel();
    let report = move |_: &ErrorDescriptor| {
        begun_sender.send(()).unwrap();
        // Longer than any look at it takes; a test that fails lets go of it.
        let _ = held.recv_timeout(PATIENCE);
        let _ = ended_sender.send(());
    };
    server.nic.set_error_handler(report).unwrap();
    client.vi.disconnect().unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    (client, server, go_on, ended)
}

#[test]
fn who_replaces_a_handler_waits_until_it_has_returned() {
    let (_client, server, go_on, ended) = busy_handler();
    thread::scope(|scope| {
        let nic = &server.nic;
        let replaced = scope.spawn(move || {
            nic.reset_error_handler().unwrap();
            ended.try_recv()
        });
        // Time enough for who does not wait to be caught.
        thread::sleep(Duration::from_millis(20));
        go_on.send(()).unwrap();
        assert_eq!(
            replaced.join().unwrap(),
            Ok(()),
            "the old handler had returned"
        );
    });
}

#[test]
fn who_closes_a_nic_waits_until_its_handler_has_returned() {
    let (_client, server, go_on, ended) = busy_handler();
    // Another opening stays: its thread goes on.
    let other = open();
    let nic = server.nic.handle();
    thread::scope(|scope| {
        let closed = scope.spawn(move || {
            vip::close_nic(nic).unwrap();
            ended.try_recv()
        });
        // As above.
        thread::sleep(Duration::from_millis(20));
        go_on.send(()).unwrap();
        assert_eq!(closed.join().unwrap(), Ok(()), "the handler had returned");
    });
    drop(other);
}

#[test]
fn a_slow_handler_of_one_opening_keeps_no_data_waiting() {
    let (_client, server, go_on, _ended) = busy_handler();
    let (sender, receiver) = pair();
    receiver.vi.post_recv(receiver.room(8)).unwrap();
    sender.send(sender.message(b"meantime")).ok().unwrap();
    assert_eq!(receiver.recv().ok().unwrap().first_bytes(), b"meantime");
    go_on.send(()).unwrap();
    drop(server);
}

/// A peer can cause errors at line rate, which no handler takes: their lines are limited, and
/// those left out are counted.
#[test]
fn default_handler_lines_are_limited_and_suppressed_ones_counted() {
    const LIMIT: u32 = 3;
    if is_child() {
        let nic = common::open_as(|config| config.max_log_lines_per_second = LIMIT);
        let [client, server] = [0, 1].map(|_| {
            let end = End::on(nic.clone(), |vi| {
                vi.reliability(ReliabilityLevel::Unreliable)
            });
            vip::error_callback(end.nic.handle(), None).unwrap();
            end
        });
        connect(&client, &server);
        // No receive is posted: each is an error. The parent ends this.
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            client.send(client.message(&[1])).ok().unwrap();
        }
        return;
    }
    let begun = Instant::now();
    let name = "default_handler_lines_are_limited_and_suppressed_ones_counted";
    let mut child = SecondProcess::start_with(name, |command| {
        command.stderr(Stdio::piped());
    });
    let lines = BufReader::new(child.stderr()).lines().map(Result::unwrap);
    let (mut errors, mut suppressed) = (0, Vec::new());
    for line in lines {
        errors += usize::from(line.contains("asynchronous error VIP_ERROR_RECVQ_EMPTY"));
        if let Some((_, behind)) = line.split_once(": ")
            && line.contains("suppressed")
        {
            let count = behind
                .split_whitespace()
                .find_map(|word| word.parse::<u64>().ok());
            suppressed.push(count.expect("a number"));
        }
        if suppressed.len() == 2 {
            break;
        }
    }
    let seconds = begun.elapsed().as_secs() as usize;
    child.kill();
    assert_eq!(suppressed.len(), 2, "the child goes on until it is killed");
    assert!(suppressed.iter().all(|count| *count > 0), "{suppressed:?}");
    assert!(
        errors > 0 && errors <= LIMIT as usize * (seconds + 1),
        "{errors} in {seconds} s"
    );
}
