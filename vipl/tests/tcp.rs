//! VI/TCP beyond what every transport does: descriptor flow control, and what is particular to a stream.

mod common;

use std::net::Ipv4Addr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use common::raw::{Pages, RawEnd};
use common::{End, PATIENCE, WAIT, connect, open_as, own_host, pattern};
use pmd::config::TransportKind;
use pmd::descriptor::status;
use vipl::provider as vip;
use vipl::{
    ErrorCode, Nic, RawDescriptor, ReliabilityLevel, Timeout, ViAttributes, ViState, VipError,
};

/// A NIC that speaks VI/TCP, on an address that only this test run has.
fn tcp(flow_control: bool, number: u32) -> Nic {
    open_as(|config| {
        let own = own_host().to_bits() ^ (number << 16);
        config.transport = TransportKind::ViTcp;
        config.host = Some(Ipv4Addr::from_bits(own).into());
        config.flow_control = flow_control;
        config.max_descriptors_per_queue = 2048;
    })
}

fn ends(level: ReliabilityLevel, flow_control: [bool; 2]) -> (End, End) {
    let [near, far] = flow_control;
    let client = End::on(tcp(near, 1), |vi| vi.reliability(level));
    let server = End::on(tcp(far, 2), |vi| vi.reliability(level));
    connect(&client, &server);
    (client, server)
}

const LEVELS: [ReliabilityLevel; 3] = [
    ReliabilityLevel::Unreliable,
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];

#[test]
fn a_sender_a_thousand_descriptors_ahead_of_a_slow_receiver_loses_nothing() {
    const AHEAD: usize = 1000;
    for level in LEVELS {
        let (client, server) = ends(level, [true, true]);
        for message in 0..AHEAD {
            let bytes = pattern(message, message % 300);
            client.vi.post_send(client.message(&bytes)).unwrap();
        }
        for message in 0..AHEAD {
            // One receive at a time, each posted when the one before was used.
            server.vi.post_recv(server.room(300)).unwrap();
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
fn without_flow_control_at_either_end_a_message_without_a_receive_is_the_guides_error() {
    for flow_control in [[false, false], [true, false], [false, true]] {
        let (client, server) = ends(ReliabilityLevel::ReliableDelivery, flow_control);
        client.vi.post_send(client.message(b"too soon")).unwrap();
        assert_eq!(server.errors.next_of(&server.vi), ErrorCode::RecvqEmpty);
        for end in [&client, &server] {
            assert_eq!(end.errors.next_of(&end.vi), ErrorCode::ConnLost);
            assert_eq!(end.vi.state().unwrap(), ViState::Error);
        }
    }
}

#[test]
fn credits_survive_the_wrap_of_their_count() {
    const MESSAGES: u32 = 3 * 65_536 / 2;
    const POSTED: u32 = 500;
    let (client, server) = ends(ReliabilityLevel::ReliableDelivery, [true, true]);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut posted = 0;
            let mut rooms: Vec<_> = (0..POSTED).map(|_| server.room(4)).collect();
            for message in 0..MESSAGES {
                while posted < MESSAGES && posted < message + POSTED {
                    let Some(room) = rooms.pop() else { break };
                    server.vi.post_recv(room).unwrap();
                    posted += 1;
                }
                let arrived = server.recv().ok().unwrap();
                assert_eq!(arrived.first_bytes(), message.to_ne_bytes());
                rooms.push(arrived.descriptor);
            }
        });
        let mut free = Vec::new();
        for message in 0..MESSAGES {
            let mut next = match free.pop() {
                Some(descriptor) => descriptor,
                None if message < 1500 => client.room(4),
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
fn an_rdma_write_with_immediate_data_waits_for_a_receive_and_one_without_does_not() {
    let client = End::on(tcp(true, 1), |vi| vi);
    let server = End::on(tcp(true, 2), |vi| vi.rdma_write(true));
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
    let told = server.recv().ok().unwrap();
    assert_eq!(told.immediate(), Some(7));
    memory.read(0, &mut seen);
    assert_eq!(seen, *b"later");
    assert!(client.errors.none() && server.errors.none());
}

/// More than TCP takes at a time, in messages of all sizes: a system call ends in the middle of any of them.
#[test]
fn what_tcp_takes_in_parts_arrives_whole() {
    const MESSAGES: usize = 600;
    let bytes_of = |message: usize| 1 + (message * 7919) % 60_000;
    for level in LEVELS {
        // Nobody reads for the server before it does, so that TCP is full.
        let client = End::on(tcp(false, 1), |vi| vi.reliability(level));
        let server = End::on(slow(3), |vi| vi.reliability(level));
        connect(&client, &server);
        for message in 0..MESSAGES {
            server.vi.post_recv(server.room(bytes_of(message))).unwrap();
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

/// Descriptors of a slow NIC's VI in flight: more bytes than TCP takes, if they are long.
const LONG_MESSAGES: usize = 256;

/// A NIC that reads when the test has it read, and not before.
fn slow(number: u32) -> Nic {
    open_as(|config| {
        config.transport = TransportKind::ViTcp;
        config.host = Some(Ipv4Addr::from_bits(own_host().to_bits() ^ (number << 16)).into());
        config.max_in_flight = LONG_MESSAGES as u32;
        config.takeover_us = 10_000_000;
    })
}

/// Has this VI send until TCP has a part of a message.
fn fill_tcp(end: &End) {
    let message = |number| end.message(&pattern(number, 65_000 - number));
    let messages: Vec<_> = (0..LONG_MESSAGES).map(message).collect();
    for message in messages {
        end.vi.post_send(message).unwrap();
    }
}

/// How many messages of this NIC are with TCP, as a whole.
fn sent_messages(nic: &Nic) -> usize {
    let counters = vip::counters(nic.handle()).unwrap();
    let found = counters.iter().find(|(known, _)| known == "tx_messages");
    found.unwrap_or_else(|| panic!("{counters:?}")).1 as usize
}

/// TCP has a part of a message when another one fails here: its sender is told behind the rest.
#[test]
fn what_went_wrong_is_told_behind_a_segment_that_was_begun() {
    let reception = |vi: vipl::ViBuilder| vi.reliability(ReliabilityLevel::ReliableReception);
    let client = End::on(slow(1), reception);
    let server = End::on(slow(3), reception);
    connect(&client, &server);
    for _ in 0..LONG_MESSAGES {
        server.vi.post_recv(server.room(65_000)).unwrap();
    }
    fill_tcp(&client);
    server.vi.post_send(server.message(b"too many")).unwrap();
    while client.vi.state().unwrap() != ViState::Error {
        // It looks at what came.
        let _ = client.vi.send_done();
    }
    let refused = server.vi.send_wait(WAIT).unwrap().unwrap();
    let status = refused.status;
    assert!(status.is_remote_descriptor_error(), "{status:?}");
}

/// A client has sent so many messages and a part of one more, and a server has a receive for each
/// but that.
fn one_too_many() -> (End, End, usize) {
    let reception = |vi: vipl::ViBuilder| vi.reliability(ReliabilityLevel::ReliableReception);
    for _ in 0..100 {
        // NICs that no other test counts with.
        let client = End::on(slow(4), reception);
        let server = End::on(slow(5), reception);
        connect(&client, &server);
        let rooms: Vec<_> = (0..LONG_MESSAGES).map(|_| server.room(65_000)).collect();
        let before = sent_messages(&client.nic);
        fill_tcp(&client);
        let sent = sent_messages(&client.nic) - before;
        assert!((1..LONG_MESSAGES).contains(&sent), "{sent}");
        for room in rooms.into_iter().take(sent) {
            server.vi.post_recv(room).unwrap();
        }
        // A NIC looks after itself now and then: it may have read before there was a receive.
        if server.vi.state().unwrap() == ViState::Connected {
            return (client, server, sent);
        }
    }
    panic!("the server has always read too soon");
}

/// A message is refused of which TCP has only the begin: that one fails, and those before it arrived.
#[test]
fn a_message_that_was_only_begun_is_refused_as_any() {
    let (client, server, sent) = one_too_many();
    for _ in 0..sent {
        assert!(server.recv().status.is_ok());
    }
    while server.vi.state().unwrap() != ViState::Error {
        // It looks at what came.
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

/// Two messages in one read, and the first one fails its VI: the second comes to nobody, not even to an error.
#[test]
fn what_stands_behind_a_message_that_fails_its_vi_is_not_looked_at() {
    let config = |number: u32| {
        common::config(|config| {
            config.transport = TransportKind::ViTcp;
            config.host = Some(Ipv4Addr::from_bits(own_host().to_bits() ^ (number << 16)).into());
            // It reads when the test has it read.
            config.takeover_us = 10_000_000;
        })
    };
    let [end, peer] = [1, 2].map(|number| {
        let mut end = RawEnd::new(&config(number));
        vip::destroy_vi(end.vi).unwrap();
        // At a reliable level the first message ends the connection in any case.
        let unreliable = ViAttributes {
            reliability: ReliabilityLevel::Unreliable as u16,
            ..common::raw::attributes(end.ptag)
        };
        end.vi = vip::create_vi(end.nic, &unreliable, None, None).unwrap();
        end
    });
    let (sender, errors) = channel();
    let report = move |error: &vipl::ErrorDescriptor| sender.send(error.code).unwrap();
    vip::error_callback(end.nic, Some(Box::new(report))).unwrap();
    common::raw::connect(&peer, &end);
    let gone = Pages::new(1);
    let region = gone.register(end.nic, end.ptag, false).unwrap();
    let descriptor = gone.at(0) as *mut RawDescriptor;
    // SAFETY: our page, not posted yet.
    unsafe { descriptor.write(RawDescriptor::default()) };
    // SAFETY: the page stays mapped to the end of the test.
    unsafe { vip::post_recv(end.vi, descriptor, region) }.unwrap();
    vip::deregister_mem(end.nic, gone.at(0), region).unwrap();
    for slot in 0..2 {
        peer.post_send(slot, &[]);
    }
    for _ in 0..2 {
        assert_eq!(peer.sent(), status::DONE);
    }
    while vip::query_vi(end.vi).unwrap().state != ViState::Error {
        // What it finds is told to the handler.
        let _ = vip::recv_done(end.vi);
    }
    for code in [ErrorCode::CompProt, ErrorCode::ConnLost] {
        assert_eq!(errors.recv_timeout(PATIENCE).unwrap(), code);
    }
    vip::close_nic(end.nic).unwrap();
    assert_eq!(
        errors.try_recv().ok(),
        None,
        "nothing is told of the second"
    );
}

/// What TCP keeps back of a stream of small messages goes, though the program makes no other call.
#[test]
fn the_end_of_a_stream_arrives_when_its_sender_falls_silent() {
    const BATCH: usize = 16;
    const BATCHES: usize = 12;
    let (client, server) = ends(ReliabilityLevel::ReliableDelivery, [false, false]);
    for round in 0..100 {
        let messages = BATCH * BATCHES - round % BATCH;
        for _ in 0..messages {
            server.vi.post_recv(server.room(64)).unwrap();
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

/// Each answer has its time, however long one follows the other.
#[test]
fn answers_that_come_in_time_are_never_late_together() {
    const IN_FLIGHT: usize = 8;
    let quick = |number: u32| {
        open_as(|config| {
            config.transport = TransportKind::ViTcp;
            config.host = Some(Ipv4Addr::from_bits(own_host().to_bits() ^ (number << 16)).into());
            config.ulp_timeout_ms = Some(300);
        })
    };
    let reception = |vi: vipl::ViBuilder| vi.reliability(ReliabilityLevel::ReliableReception);
    let client = End::on(quick(1), reception);
    let server = End::on(quick(2), reception);
    connect(&client, &server);
    for _ in 0..2 * IN_FLIGHT {
        server.vi.post_recv(server.room(4)).unwrap();
    }
    for _ in 0..IN_FLIGHT {
        client.vi.post_send(client.message(b"ping")).unwrap();
    }
    // Some are always on their way, for several times as long as one may be.
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

/// One connection brings all that comes for a while; then others do, or it rests, or ends.
#[test]
fn a_connection_that_was_alone_is_one_of_many_again() {
    const ROUNDS: usize = 200;
    let (near, far) = (tcp(false, 1), tcp(false, 2));
    let pair = || {
        let client = End::on(near.clone(), |vi| vi);
        let server = End::on(far.clone(), |vi| vi);
        connect(&client, &server);
        (client, server)
    };
    let pass = |from: &End, to: &End, bytes: &[u8]| {
        to.vi.post_recv(to.room(8)).unwrap();
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
            // It sleeps until the answer comes, which is long after the last one.
            client.vi.post_recv(client.room(8)).unwrap();
            thread::scope(|scope| {
                let asleep = scope.spawn(|| client.recv().ok().unwrap().first_bytes().to_vec());
                server.vi.post_recv(server.room(8)).unwrap();
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
        let deadline = Instant::now() + PATIENCE;
        while client.vi.state().unwrap() != ViState::Error {
            assert!(Instant::now() < deadline, "its end was not seen");
        }
    }
}

/// The last message of each of several peers, and its end right behind it: none of the ends is overlooked.
#[test]
fn an_end_that_comes_with_the_last_message_is_seen_at_every_vi() {
    const PEERS: usize = 4;
    let (near, far) = (slow(1), slow(2));
    let mut ends: Vec<(End, End)> = Vec::new();
    for _ in 0..PEERS {
        let pair = (
            End::on(near.clone(), |vi| vi),
            End::on(far.clone(), |vi| vi),
        );
        connect(&pair.0, &pair.1);
        pair.1.vi.post_recv(pair.1.room(4)).unwrap();
        ends.push(pair);
    }
    for (client, _) in &ends {
        assert!(client.send(client.message(b"last")).status.is_ok());
        client.vi.disconnect().unwrap();
    }
    for (_, server) in &ends {
        let told = server.recv();
        assert_eq!(told.ok().unwrap().first_bytes(), b"last");
    }
    let deadline = Instant::now() + PATIENCE;
    let lost = |end: &End| end.vi.state().unwrap() == ViState::Error;
    while !ends.iter().all(|(_, server)| lost(server)) {
        assert!(Instant::now() < deadline, "an end was not seen");
    }
}
