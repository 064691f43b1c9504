//! VI/TCP: descriptor flow control, partial writes and reads, transmission timeouts, and the hot connection.

mod common;

use std::net::Ipv4Addr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use common::raw::{Pages, RawEndpoint};
use common::{Endpoint, TIMEOUT, WAIT, connect, open_as, own_host, pattern};
use pmd::config::TransportKind;
use vi_types::status;
use vipl::provider as vip;
use vipl::{
    ErrorCode, Nic, RawDescriptor, ReliabilityLevel, Timeout, ViAttributes, ViState, VipError,
};

/// Opens a NIC of VI/TCP with an address that only this test run uses.
fn tcp(flow_control: bool, number: u32) -> Nic {
    open_as(|config| {
        let own = own_host().to_bits() ^ (number << 16);
        config.transport = TransportKind::ViTcp;
        config.host = Some(Ipv4Addr::from_bits(own).into());
        config.flow_control = flow_control;
        config.max_descriptors_per_queue = 2048;
    })
}

fn endpoints(level: ReliabilityLevel, [client, server]: [bool; 2]) -> (Endpoint, Endpoint) {
    let client = Endpoint::on(tcp(client, 1), |vi| vi.reliability(level));
    let server = Endpoint::on(tcp(server, 2), |vi| vi.reliability(level));
    connect(&client, &server);
    (client, server)
}

const LEVELS: [ReliabilityLevel; 3] = [
    ReliabilityLevel::UnreliableDelivery,
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];

#[test]
fn flow_control_delays_sends_until_receives_are_posted() {
    const AHEAD: usize = 1000;
    for level in LEVELS {
        let (client, server) = endpoints(level, [true, true]);
        for message in 0..AHEAD {
            let bytes = pattern(message, message % 300);
            client.vi.post_send(client.message(&bytes)).unwrap();
        }
        for message in 0..AHEAD {
            // One receive at a time, each posted after the completion of the previous one.
            server.vi.post_recv(server.descriptor(300)).unwrap();
            let arrived = server.recv().ok().unwrap();
            assert!(arrived.first_bytes() == pattern(message, message % 300));
        }
        for _ in 0..AHEAD {
            let sent = client.vi.send_wait(WAIT).unwrap().unwrap();
            assert!(sent.status.is_ok(), "{level:?}: {:?}", sent.status);
        }
        assert!(client.errors.none() && server.errors.none(), "{level:?}");
    }
}

#[test]
fn message_without_a_receive_is_recvq_empty_unless_both_sides_use_flow_control() {
    for flow_control in [[false, false], [true, false], [false, true]] {
        let (client, server) = endpoints(ReliabilityLevel::ReliableDelivery, flow_control);
        client.vi.post_send(client.message(b"too soon")).unwrap();
        assert_eq!(server.errors.next_of(&server.vi), ErrorCode::RecvqEmpty);
        for end in [&client, &server] {
            assert_eq!(end.errors.next_of(&end.vi), ErrorCode::ConnLost);
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
                let arrived = server.recv().ok().unwrap();
                assert_eq!(arrived.first_bytes(), message.to_ne_bytes());
                receives.push(arrived.descriptor);
            }
        });
        let mut free = Vec::new();
        for message in 0..MESSAGES {
            let mut next = match free.pop() {
                Some(descriptor) => descriptor,
                None if message < 1500 => client.descriptor(4),
                None => {
                    client
                        .vi
                        .send_wait(WAIT)
                        .unwrap()
                        .unwrap()
                        .ok()
                        .unwrap()
                        .descriptor
                }
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
    let access = vipl::RdmaAccess {
        write: true,
        read: false,
    };
    let memory = server
        .nic
        .create_rdma_region(16, &server.ptag, access)
        .unwrap();
    let write = |bytes: &[u8], immediate| {
        let mut descriptor = client.message(bytes);
        descriptor.set_operation(vipl::Operation::RdmaWrite(memory.remote_buffer()));
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
            server
                .vi
                .post_recv(server.descriptor(bytes_of(message)))
                .unwrap();
        }
        for message in 0..MESSAGES {
            let bytes = pattern(message, bytes_of(message));
            client.vi.post_send(client.message(&bytes)).unwrap();
        }
        for message in 0..MESSAGES {
            let arrived = server.recv().ok().unwrap();
            let expected = pattern(message, bytes_of(message));
            assert!(arrived.first_bytes() == expected, "{level:?}: {message}");
        }
        for _ in 0..MESSAGES {
            let sent = client.vi.send_wait(WAIT).unwrap().unwrap();
            assert!(sent.status.is_ok(), "{level:?}: {:?}", sent.status);
        }
        assert!(client.errors.none() && server.errors.none(), "{level:?}");
    }
}

/// Messages in flight on a [`no_takeover`] NIC: more bytes than the TCP buffers hold, if the messages are long.
const LONG_MESSAGES: usize = 256;

/// Opens a NIC that reads only in calls of the test.
fn no_takeover(number: u32) -> Nic {
    open_as(|config| {
        config.transport = TransportKind::ViTcp;
        config.host = Some(Ipv4Addr::from_bits(own_host().to_bits() ^ (number << 16)).into());
        config.max_in_flight = LONG_MESSAGES as u32;
        config.takeover_us = 10_000_000;
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

/// Number of messages that TCP has completely accepted from this NIC.
fn sent_messages(nic: &Nic) -> usize {
    let counters = vip::counters(nic.handle()).unwrap();
    let found = counters.iter().find(|(known, _)| known == "tx_messages");
    found.unwrap_or_else(|| panic!("{counters:?}")).1 as usize
}

/// A received message fails while a local one is partially sent: the error report follows the remainder.
#[test]
fn error_report_follows_a_partially_sent_segment() {
    let reception = |vi: vipl::ViBuilder| vi.reliability(ReliabilityLevel::ReliableReception);
    let client = Endpoint::on(no_takeover(1), reception);
    let server = Endpoint::on(no_takeover(3), reception);
    connect(&client, &server);
    for _ in 0..LONG_MESSAGES {
        server.vi.post_recv(server.descriptor(65_000)).unwrap();
    }
    fill_tcp(&client);
    server.vi.post_send(server.message(b"too many")).unwrap();
    while client.vi.state().unwrap() != ViState::Error {
        // Polls the connection.
        let _ = client.vi.send_done();
    }
    let refused = server.vi.send_wait(WAIT).unwrap().unwrap();
    let status = refused.status;
    assert!(status.is_remote_descriptor_error(), "{status:?}");
}

/// Creates a client that has sent a number of messages and a part of one more, and a server with a receive for each
/// except the last; returns them and the number.
fn one_receive_missing() -> (Endpoint, Endpoint, usize) {
    let reception = |vi: vipl::ViBuilder| vi.reliability(ReliabilityLevel::ReliableReception);
    for _ in 0..100 {
        // NICs whose counters no other test uses.
        let client = Endpoint::on(no_takeover(4), reception);
        let server = Endpoint::on(no_takeover(5), reception);
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
    while server.vi.state().unwrap() != ViState::Error {
        // Polls the connection.
        let _ = server.vi.send_done();
    }
    for _ in 0..sent {
        let arrived = client.vi.send_wait(WAIT).unwrap().unwrap();
        assert!(arrived.status.is_ok(), "{:?}", arrived.status);
    }
    let refused = client.vi.send_wait(WAIT).unwrap().unwrap();
    let status = refused.status;
    assert!(status.is_remote_descriptor_error(), "{status:?}");
}

/// Two messages in one read, the first of which breaks the VI: the second causes neither a completion nor an error.
#[test]
fn messages_behind_one_that_breaks_the_vi_are_not_processed() {
    let config = |number: u32| {
        common::config(|config| {
            config.transport = TransportKind::ViTcp;
            config.host = Some(Ipv4Addr::from_bits(own_host().to_bits() ^ (number << 16)).into());
            // It reads only in calls of the test.
            config.takeover_us = 10_000_000;
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
    let (sender, errors) = channel();
    let report = move |error: &vipl::ErrorDescriptor| sender.send(error.code).unwrap();
    vip::error_callback(end.nic, Some(Box::new(report))).unwrap();
    common::raw::connect(&peer, &end);
    let pages = Pages::new(1);
    let region = pages.register(end.nic, end.ptag, false).unwrap();
    let descriptor = pages.at(0) as *mut RawDescriptor;
    // SAFETY: our page, not posted yet.
    unsafe { descriptor.write(RawDescriptor::default()) };
    // SAFETY: the page stays mapped to the end of the test.
    unsafe { vip::post_recv(end.vi, descriptor, region) }.unwrap();
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
    assert_eq!(
        errors.try_recv().ok(),
        None,
        "no error for the second message"
    );
}

/// Small messages that TCP delays are transmitted, though the program makes no further call.
#[test]
fn last_messages_of_a_stream_arrive_without_further_calls() {
    const BATCH: usize = 16;
    const BATCHES: usize = 12;
    let (client, server) = endpoints(ReliabilityLevel::ReliableDelivery, [false, false]);
    for round in 0..100 {
        let messages = BATCH * BATCHES - round % BATCH;
        for _ in 0..messages {
            server.vi.post_recv(server.descriptor(64)).unwrap();
        }
        let mut complete = 0;
        for message in 0..messages {
            let bytes = pattern(message, 64);
            client.vi.post_send(client.message(&bytes)).unwrap();
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
            let arrived = server.recv().ok().unwrap();
            assert!(
                arrived.first_bytes() == pattern(message, 64),
                "{round}: {message}"
            );
        }
    }
    assert!(client.errors.none() && server.errors.none());
}

/// The timeout applies to each response, however long responses are pending one after the other.
#[test]
fn response_timeout_applies_to_each_response() {
    const IN_FLIGHT: usize = 8;
    let quick = |number: u32| {
        open_as(|config| {
            config.transport = TransportKind::ViTcp;
            config.host = Some(Ipv4Addr::from_bits(own_host().to_bits() ^ (number << 16)).into());
            config.ulp_timeout_ms = Some(300);
        })
    };
    let reception = |vi: vipl::ViBuilder| vi.reliability(ReliabilityLevel::ReliableReception);
    let client = Endpoint::on(quick(1), reception);
    let server = Endpoint::on(quick(2), reception);
    connect(&client, &server);
    for _ in 0..2 * IN_FLIGHT {
        server.vi.post_recv(server.descriptor(4)).unwrap();
    }
    for _ in 0..IN_FLIGHT {
        client.vi.post_send(client.message(b"ping")).unwrap();
    }
    // Messages are continuously in flight, for several times the timeout.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1500) {
        let arrived = server.recv().ok().unwrap();
        server.vi.post_recv(arrived.descriptor).unwrap();
        let sent = client.vi.send_wait(WAIT).unwrap().unwrap();
        assert!(sent.status.is_ok(), "{:?}", sent.status);
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
    let pass = |from: &Endpoint, to: &Endpoint, bytes: &[u8]| {
        to.vi.post_recv(to.descriptor(8)).unwrap();
        assert!(from.send(from.message(bytes)).status.is_ok());
        assert_eq!(to.recv().ok().unwrap().first_bytes(), bytes);
    };
    let (first, second) = (pair(), pair());
    for _ in 0..3 {
        for (client, server) in [&first, &second] {
            for _ in 0..ROUNDS {
                pass(client, server, b"ping");
                pass(server, client, b"pong");
            }
            // The client sleeps until the next message, which follows after a long pause.
            client.vi.post_recv(client.descriptor(8)).unwrap();
            thread::scope(|scope| {
                let asleep = scope.spawn(|| client.recv().ok().unwrap().first_bytes().to_vec());
                server.vi.post_recv(server.descriptor(8)).unwrap();
                let nothing = server
                    .vi
                    .recv_wait(Timeout::After(Duration::from_millis(50)));
                assert!(matches!(nothing, Err(VipError::Timeout)));
                assert!(server.send(server.message(b"late")).status.is_ok());
                assert_eq!(asleep.join().unwrap(), b"late");
            });
        }
    }
    for (client, server) in [&second, &first] {
        for _ in 0..ROUNDS {
            pass(client, server, b"ping");
            pass(server, client, b"pong");
        }
        server.vi.disconnect().unwrap();
        let deadline = Instant::now() + TIMEOUT;
        while client.vi.state().unwrap() != ViState::Error {
            assert!(Instant::now() < deadline, "the FIN was not detected");
        }
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
        pair.1.vi.post_recv(pair.1.descriptor(4)).unwrap();
        pairs.push(pair);
    }
    for (client, _) in &pairs {
        assert!(client.send(client.message(b"last")).status.is_ok());
        client.vi.disconnect().unwrap();
    }
    for (_, server) in &pairs {
        let arrived = server.recv();
        assert_eq!(arrived.ok().unwrap().first_bytes(), b"last");
    }
    let deadline = Instant::now() + TIMEOUT;
    let lost = |end: &Endpoint| end.vi.state().unwrap() == ViState::Error;
    while !pairs.iter().all(|(_, server)| lost(server)) {
        assert!(Instant::now() < deadline, "a FIN was not detected");
    }
}
