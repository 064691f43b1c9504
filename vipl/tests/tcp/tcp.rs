//! VI/TCP: descriptor flow control, partial writes and reads, transmission timeouts, and the hot connection.

use crate::common;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::raw::{Pages, RawEndpoint, errors_of, post_empty_recv};
use crate::common::{
    Endpoint, LEVELS, TIMEOUT, WRITABLE, connect, counter, deliver, inline_keys, open_as, pattern,
    tcp_keys, use_tcp, wait_until,
};
use vi_types::status;
use vipl::provider as vip;
use vipl::{ErrorCode, Nic, ReliabilityLevel, Timeout, ViAttributes, ViState, VipError};

fn tcp(flow_control: bool, number: u32) -> Nic {
    open_as(|config| {
        use_tcp(config, number);
        tcp_keys(config).flow_control = flow_control;
        config.limits.max_descriptors_per_queue = 2048;
    })
}

fn endpoints(level: ReliabilityLevel, [client, server]: [bool; 2]) -> (Endpoint, Endpoint) {
    let client = Endpoint::on(tcp(client, 1), |vi| vi.reliability(level));
    let server = Endpoint::on(tcp(server, 2), |vi| vi.reliability(level));
    connect(&client, &server);
    (client, server)
}

#[test]
fn flow_control_delays_sends_until_receives_are_posted() {
    const AHEAD: usize = 1000;
    for level in LEVELS {
        let (client, server) = endpoints(level, [true, true]);
        for message in 0..AHEAD {
            client.post_message(&pattern(message, message % 300));
        }
        for message in 0..AHEAD {
            // One receive at a time, each posted after the completion of the previous one.
            server.post_receives(1, 300);
            server.expect_message(&pattern(message, message % 300));
        }
        client.expect_sent(AHEAD);
        assert!(client.errors.none() && server.errors.none(), "{level:?}");
    }
}

#[test]
fn message_without_a_receive_is_recvq_empty_unless_both_sides_use_flow_control() {
    for flow_control in [[false, false], [true, false], [false, true]] {
        let (client, server) = endpoints(ReliabilityLevel::ReliableDelivery, flow_control);
        client.post_message(b"too soon");
        server.expect_errors(&[ErrorCode::RecvqEmpty]);
        for end in [&client, &server] {
            end.expect_errors(&[ErrorCode::ConnLost]);
            assert_eq!(end.vi.state().unwrap(), ViState::Error);
        }
    }
}

#[test]
fn credit_count_wraps() {
    const MESSAGES: u32 = 3 * 65_536 / 2;
    const POSTED: u32 = 500;
    let (client, server) = endpoints(ReliabilityLevel::ReliableDelivery, [true, true]);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut posted = 0;
            let mut receives: Vec<_> = (0..POSTED).map(|_| server.descriptor(4)).collect();
            for message in 0..MESSAGES {
                while posted < MESSAGES && posted < message + POSTED {
                    let Some(receive) = receives.pop() else {
                        break;
                    };
                    server.vi.post_recv(receive).unwrap();
                    posted += 1;
                }
                receives.push(server.expect_message(&message.to_ne_bytes()));
            }
        });
        let mut free = Vec::new();
        for message in 0..MESSAGES {
            let mut next = match free.pop() {
                Some(descriptor) => descriptor,
                None if message < 1500 => client.descriptor(4),
                None => client.sent().ok().unwrap().descriptor,
            };
            next.buffer_mut(0)[..4].copy_from_slice(&message.to_ne_bytes());
            next.set_used_bytes(0, 4);
            client.vi.post_send(next).unwrap();
            while let Ok(Some(sent)) = client.vi.send_done() {
                free.push(sent.ok().unwrap().descriptor);
            }
        }
    });
    assert!(client.errors.none() && server.errors.none());
}

#[test]
fn only_rdma_writes_with_immediate_data_wait_for_credits() {
    let client = Endpoint::on(tcp(true, 1), |vi| vi);
    let server = Endpoint::on(tcp(true, 2), |vi| vi.rdma_write(true));
    connect(&client, &server);
    let memory = server.region(16, WRITABLE);
    let write = |bytes: &[u8], immediate| {
        let mut descriptor = client.write_of(bytes, memory.remote_buffer());
        descriptor.set_immediate(immediate);
        descriptor
    };
    assert!(client.send(write(b"first", None)).status.is_ok());
    client.vi.post_send(write(b"later", Some(7))).unwrap();
    let mut seen = [0; 5];
    while seen != *b"first" {
        memory.read(0, &mut seen);
        thread::yield_now();
    }
    assert!(matches!(client.vi.send_done(), Err(VipError::NotDone)));
    server.vi.post_recv(server.empty(0)).unwrap();
    let arrived = server.recv().ok().unwrap();
    assert_eq!(arrived.immediate(), Some(7));
    memory.read(0, &mut seen);
    assert_eq!(seen, *b"later");
    assert!(client.errors.none() && server.errors.none());
}

/// More data than the TCP send buffer holds, in messages of all sizes: system calls end within messages.
#[test]
fn partially_sent_messages_arrive_complete() {
    const MESSAGES: usize = 600;
    let bytes_of = |message: usize| 1 + (message * 7919) % 60_000;
    for level in LEVELS {
        // The server reads only in its own calls, so that the TCP buffers fill up.
        let client = Endpoint::on(tcp(false, 1), |vi| vi.reliability(level));
        let server = Endpoint::on(no_takeover(3), |vi| vi.reliability(level));
        connect(&client, &server);
        for message in 0..MESSAGES {
            server.post_receives(1, bytes_of(message));
        }
        for message in 0..MESSAGES {
            client.post_message(&pattern(message, bytes_of(message)));
        }
        for message in 0..MESSAGES {
            server.expect_message(&pattern(message, bytes_of(message)));
        }
        client.expect_sent(MESSAGES);
        assert!(client.errors.none() && server.errors.none(), "{level:?}");
    }
}

/// Messages in flight on a [`no_takeover`] NIC: more bytes than the TCP buffers hold, if the messages are long.
const LONG_MESSAGES: usize = 256;

/// Opens a NIC that reads only in calls of the test.
fn no_takeover(number: u32) -> Nic {
    open_as(|config| {
        use_tcp(config, number);
        config.limits.max_in_flight = LONG_MESSAGES as u32;
        inline_keys(config).takeover_us = 10_000_000;
    })
}

/// Posts sends until TCP has accepted a part of a message.
fn fill_tcp(end: &Endpoint) {
    let message = |number| end.message(&pattern(number, 65_000 - number));
    let messages: Vec<_> = (0..LONG_MESSAGES).map(message).collect();
    for message in messages {
        end.vi.post_send(message).unwrap();
    }
}

fn reception(nic: Nic) -> Endpoint {
    Endpoint::on(nic, |vi| {
        vi.reliability(ReliabilityLevel::ReliableReception)
    })
}

/// Polls the connection until the VI is in Error.
fn poll_until_error(end: &Endpoint) {
    while end.vi.state().unwrap() != ViState::Error {
        let _ = end.vi.send_done();
    }
}

/// Checks that the next send was refused for its receive.
fn expect_refused(end: &Endpoint) {
    let status = end.sent().status;
    assert!(status.is_remote_descriptor_error(), "{status:?}");
}

/// Number of messages that TCP has completely accepted from this NIC.
fn sent_messages(nic: &Nic) -> usize {
    counter(nic.handle(), "tx_messages") as usize
}

/// A received message fails while a local one is partially sent: the error report follows the remainder.
#[test]
fn error_report_follows_a_partially_sent_segment() {
    let (client, server) = (reception(no_takeover(1)), reception(no_takeover(3)));
    connect(&client, &server);
    server.post_receives(LONG_MESSAGES, 65_000);
    fill_tcp(&client);
    server.post_message(b"too many");
    poll_until_error(&client);
    expect_refused(&server);
}

/// Creates a client that has sent a number of messages and a part of one more, and a server with a receive for each
/// except the last; returns them and the number.
fn one_receive_missing() -> (Endpoint, Endpoint, usize) {
    for _ in 0..100 {
        // NICs whose counters no other test uses.
        let (client, server) = (reception(no_takeover(4)), reception(no_takeover(5)));
        connect(&client, &server);
        let receives: Vec<_> = (0..LONG_MESSAGES)
            .map(|_| server.descriptor(65_000))
            .collect();
        let before = sent_messages(&client.nic);
        fill_tcp(&client);
        let sent = sent_messages(&client.nic) - before;
        assert!((1..LONG_MESSAGES).contains(&sent), "{sent}");
        for receive in receives.into_iter().take(sent) {
            server.vi.post_recv(receive).unwrap();
        }
        // The housekeeping of the NIC may have read before a receive was posted.
        if server.vi.state().unwrap() == ViState::Connected {
            return (client, server, sent);
        }
    }
    panic!("the server has read too early in each attempt");
}

/// A message of which only the beginning was sent fails; the messages before it complete.
#[test]
fn partially_sent_message_can_be_refused() {
    let (client, server, sent) = one_receive_missing();
    for _ in 0..sent {
        assert!(server.recv().status.is_ok());
    }
    poll_until_error(&server);
    client.expect_sent(sent);
    expect_refused(&client);
}

/// Two messages in one read, the first of which breaks the VI: the second causes neither a completion nor an error.
#[test]
fn messages_behind_one_that_breaks_the_vi_are_not_processed() {
    let config = |number: u32| {
        common::config(|config| {
            use_tcp(config, number);
            // It reads only in calls of the test.
            inline_keys(config).takeover_us = 10_000_000;
        })
    };
    let [end, peer] = [1, 2].map(|number| {
        let mut end = RawEndpoint::new(&config(number));
        vip::destroy_vi(end.vi).unwrap();
        // At a reliable level the first message breaks the connection anyway.
        let unreliable = ViAttributes {
            reliability: ReliabilityLevel::UnreliableDelivery as u16,
            ..common::raw::attributes(end.ptag)
        };
        end.vi = vip::create_vi(end.nic, &unreliable, None, None).unwrap();
        end
    });
    let errors = errors_of(end.nic);
    common::raw::connect(&peer, &end);
    let pages = Pages::new(1);
    let region = pages.register(end.nic, end.ptag).unwrap();
    post_empty_recv(end.vi, pages.at(0), region).unwrap();
    vip::deregister_mem(end.nic, pages.at(0), region).unwrap();
    for slot in 0..2 {
        peer.post_send(slot, &[]);
    }
    for _ in 0..2 {
        assert_eq!(peer.sent(), status::DONE);
    }
    while vip::query_vi(end.vi).unwrap().state != ViState::Error {
        // Polls; errors are reported to the handler.
        let _ = vip::recv_done(end.vi);
    }
    for code in [ErrorCode::CompProt, ErrorCode::ConnLost] {
        assert_eq!(errors.recv_timeout(TIMEOUT).unwrap(), code);
    }
    vip::close_nic(end.nic).unwrap();
    // No error for the second message.
    assert_eq!(errors.try_recv().ok(), None);
}

/// Small messages that TCP delays are transmitted, though the program makes no further call.
#[test]
fn last_messages_of_a_stream_arrive_without_further_calls() {
    const BATCH: usize = 16;
    const BATCHES: usize = 12;
    let (client, server) = endpoints(ReliabilityLevel::ReliableDelivery, [false, false]);
    for round in 0..100 {
        let messages = BATCH * BATCHES - round % BATCH;
        server.post_receives(messages, 64);
        let mut complete = 0;
        for message in 0..messages {
            client.post_message(&pattern(message, 64));
            if message % BATCH == BATCH - 1 || message == messages - 1 {
                while complete <= message {
                    match client.vi.send_done() {
                        Ok(Some(sent)) => {
                            assert!(sent.status.is_ok(), "{:?}", sent.status);
                            complete += 1;
                        }
                        Ok(None) | Err(VipError::NotDone) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        }
        for message in 0..messages {
            server.expect_message(&pattern(message, 64));
        }
    }
    assert!(client.errors.none() && server.errors.none());
}

/// The timeout applies to each response, however long responses are pending one after the other.
#[test]
fn response_timeout_applies_to_each_response() {
    const IN_FLIGHT: usize = 8;
    let quick = |number: u32| {
        reception(open_as(|config| {
            use_tcp(config, number);
            config.ulp_timeout_ms = Some(300);
        }))
    };
    let (client, server) = (quick(1), quick(2));
    connect(&client, &server);
    server.post_receives(2 * IN_FLIGHT, 4);
    for _ in 0..IN_FLIGHT {
        client.post_message(b"ping");
    }
    // Messages are continuously in flight, for several times the timeout.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1500) {
        let arrived = server.recv().ok().unwrap();
        server.vi.post_recv(arrived.descriptor).unwrap();
        let sent = client.sent().ok().unwrap();
        client.vi.post_send(sent.descriptor).unwrap();
    }
    assert!(client.errors.none() && server.errors.none());
}

/// One connection has all traffic for a while; then others have, or it is idle, or is closed.
#[test]
fn hot_connection_does_not_starve_others_and_detects_the_fin() {
    const ROUNDS: usize = 200;
    let (client_nic, server_nic) = (tcp(false, 1), tcp(false, 2));
    let pair = || {
        let client = Endpoint::on(client_nic.clone(), |vi| vi);
        let server = Endpoint::on(server_nic.clone(), |vi| vi);
        connect(&client, &server);
        (client, server)
    };
    let (first, second) = (pair(), pair());
    for _ in 0..3 {
        for (client, server) in [&first, &second] {
            for _ in 0..ROUNDS {
                deliver(client, server, b"ping");
                deliver(server, client, b"pong");
            }
            // The client sleeps until the next message, which follows after a long pause.
            client.post_receives(1, 8);
            thread::scope(|scope| {
                let asleep = scope.spawn(|| client.expect_message(b"late"));
                server.post_receives(1, 8);
                let nothing = (server.vi).recv_wait(Timeout::After(Duration::from_millis(50)));
                assert!(matches!(nothing, Err(VipError::Timeout)));
                server.send_bytes(b"late");
                asleep.join().unwrap();
            });
        }
    }
    for (client, server) in [&second, &first] {
        for _ in 0..ROUNDS {
            deliver(client, server, b"ping");
            deliver(server, client, b"pong");
        }
        server.vi.disconnect().unwrap();
        wait_until("the FIN is detected", || {
            client.vi.state().unwrap() == ViState::Error
        });
    }
}

/// Several peers send their last message and close immediately: each FIN is detected.
#[test]
fn fin_with_the_last_message_is_detected_on_every_vi() {
    const PEERS: usize = 4;
    let (client_nic, server_nic) = (no_takeover(1), no_takeover(2));
    let mut pairs: Vec<(Endpoint, Endpoint)> = Vec::new();
    for _ in 0..PEERS {
        let pair = (
            Endpoint::on(client_nic.clone(), |vi| vi),
            Endpoint::on(server_nic.clone(), |vi| vi),
        );
        connect(&pair.0, &pair.1);
        pair.1.post_receives(1, 4);
        pairs.push(pair);
    }
    for (client, _) in &pairs {
        client.send_bytes(b"last");
        client.vi.disconnect().unwrap();
    }
    for (_, server) in &pairs {
        server.expect_message(b"last");
    }
    let lost = |end: &Endpoint| end.vi.state().unwrap() == ViState::Error;
    wait_until("each FIN is detected", || {
        pairs.iter().all(|(_, server)| lost(server))
    });
}
