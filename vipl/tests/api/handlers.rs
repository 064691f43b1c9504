//! Error handlers that disconnect VIs, replace themselves, close the NIC, or panic; and the default handler.

use crate::common;
use pmd::config::Progress;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Endpoint, SecondProcess, TIMEOUT, connect, deliver, is_child, open, pair, pair_on,
};
use vipl::{
    ErrorCode, ErrorDescriptor, Nic, NicHandle, ReliabilityLevel, ViState, VipError,
    provider as vip,
};

/// Sets a handler that calls `act` for each error and then sends its code to the receiver.
fn set_handler(
    nic: NicHandle,
    mut act: impl FnMut(&ErrorDescriptor) + Send + 'static,
) -> Receiver<ErrorCode> {
    let (sender, receiver): (Sender<ErrorCode>, _) = channel();
    vip::error_callback(
        nic,
        Some(Box::new(move |error| {
            act(error);
            // Fails if the test no longer uses the receiver.
            let _ = sender.send(error.code);
        })),
    )
    .unwrap();
    receiver
}

fn next(errors: &Receiver<ErrorCode>) -> ErrorCode {
    errors.recv_timeout(TIMEOUT).expect("an error is reported")
}

#[test]
fn a_handler_may_disconnect_the_vi() {
    let (client, server) = pair();
    server.post_receives(1, 8);
    let errors = set_handler(server.nic.handle(), |error: &ErrorDescriptor| {
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
    let first = set_handler(nic, move |_| {
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
    // The replaced handlers are dropped, with their senders.
    let dropped = Err(RecvTimeoutError::Disconnected);
    assert_eq!(first.recv_timeout(TIMEOUT), dropped);
    assert_eq!(second.recv_timeout(TIMEOUT), dropped);
}

#[test]
fn error_handler_may_close_the_nic() {
    for round in 0..20 {
        let change = |config: &mut pmd::config::NicConfig| config.progress = Progress::inline(1001);
        let (client, server) = pair_on(open(), common::open_as(change));
        let nic = server.nic.handle();
        let errors = set_handler(nic, move |_| vip::close_nic(nic).unwrap());
        client.vi.disconnect().unwrap();
        assert_eq!(next(&errors), ErrorCode::ConnLost, "round {round}");
        assert_eq!(server.vi.state(), Err(VipError::InvalidParameter));
        // The handler thread may still be exiting.
        let again = Endpoint::on(common::open_as(change), |vi| vi);
        client.vi.disconnect().unwrap();
        connect(&client, &again);
        client.vi.disconnect().unwrap();
        again.expect_errors(&[ErrorCode::ConnLost]);
        assert!(again.errors.none());
    }
}

#[test]
fn handler_and_another_thread_closing_the_nic_do_not_deadlock() {
    for round in 0..20 {
        let (client, server) = pair_on(
            open(),
            common::open_as(|config| config.progress = Progress::inline(1002)),
        );
        let nic = server.nic.handle();
        let both = Arc::new(Barrier::new(2));
        let errors = {
            let both = Arc::clone(&both);
            set_handler(nic, move |_| {
                both.wait();
                // One of the two closes it; the other gets InvalidParameter.
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
            assert!(calls > 1, "intentional panic");
        };
        server.nic.set_error_handler(report).unwrap();
        receiver
    };
    for call in 1..=2 {
        client.vi.disconnect().unwrap();
        assert_eq!(errors.recv_timeout(TIMEOUT).unwrap(), call);
        server.vi.disconnect().unwrap();
        connect(&client, &server);
    }
}

/// A client and a server whose handler is running, the sender that lets it return, and the receiver of its end.
fn running_handler() -> (Endpoint, Endpoint, Sender<()>, Receiver<()>) {
    let (client, server) = pair();
    let (begun_sender, begun) = channel();
    let (release, released) = channel::<()>();
    let (ended_sender, ended) = channel();
    let report = move |_: &ErrorDescriptor| {
        begun_sender.send(()).unwrap();
        // Returns early if a failed test drops the sender.
        let _ = released.recv_timeout(TIMEOUT);
        let _ = ended_sender.send(());
    };
    server.nic.set_error_handler(report).unwrap();
    client.vi.disconnect().unwrap();
    begun.recv_timeout(TIMEOUT).unwrap();
    (client, server, release, ended)
}

/// Checks that a call on the NIC of a running error handler waits until the handler has returned.
fn check_waits_for_handler(call: fn(&Nic)) {
    let (_client, server, release, ended) = running_handler();
    // Another NIC handle stays open, with its handler thread.
    let _other = open();
    let nic = server.nic.clone();
    let called = thread::spawn(move || {
        call(&nic);
        ended.try_recv()
    });
    // Long enough to detect a call that does not wait.
    thread::sleep(Duration::from_millis(20));
    release.send(()).unwrap();
    assert_eq!(called.join().unwrap(), Ok(()), "the handler had returned");
}

#[test]
fn replacing_a_handler_waits_until_it_has_returned() {
    check_waits_for_handler(|nic| nic.reset_error_handler().unwrap());
}

#[test]
fn close_nic_waits_until_the_error_handler_has_returned() {
    check_waits_for_handler(|nic| vip::close_nic(nic.handle()).unwrap());
}

#[test]
fn slow_handler_does_not_delay_data() {
    let (_client, server, release, _ended) = running_handler();
    let (sender, receiver) = pair();
    deliver(&sender, &receiver, b"meantime");
    release.send(()).unwrap();
    drop(server);
}

/// A peer can cause errors at line rate: the log lines of the default handler are limited, and suppressed ones counted.
#[test]
fn default_handler_lines_are_limited_and_suppressed_ones_counted() {
    const LIMIT: u32 = 3;
    if is_child() {
        let nic = common::open_as(|config| config.limits.max_log_lines_per_second = LIMIT);
        let [client, server] = [0, 1].map(|_| {
            let end = Endpoint::on(nic.clone(), |vi| {
                vi.reliability(ReliabilityLevel::UnreliableDelivery)
            });
            vip::error_callback(end.nic.handle(), None).unwrap();
            end
        });
        connect(&client, &server);
        // No receive is posted: each message is an error. The parent kills this process.
        let begun = Instant::now();
        while begun.elapsed() < TIMEOUT {
            client.send_bytes(&[1]);
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
        if let Some((_, text)) = line.split_once(": ")
            && line.contains("suppressed")
        {
            let count = text
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
    assert_eq!(suppressed.len(), 2, "the child runs until it is killed");
    assert!(suppressed.iter().all(|count| *count > 0), "{suppressed:?}");
    assert!(
        errors > 0 && errors <= LIMIT as usize * (seconds + 1),
        "{errors} in {seconds} s"
    );
}
