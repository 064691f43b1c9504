//! VI/TCP connections whose TCP send buffer is full, or that are closed with data pending (docs/spec/vitcp.md).

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::thread;

use common::forked::in_forked_child;
use common::scripted_peer::{
    ConnectionSetup, END, FLOW_CONTROL, NOP, READ_REQUEST, SEND, connect_with, errors_of,
};
use common::{
    Endpoint, LEVELS, TIMEOUT, counter, inline_keys, pattern, post_until_tcp_is_full, segment,
    tcp_keys,
};
use pmd::config::{Network, NicConfig};
use vi_types::status;
use vipl::{
    ConnectionOptions, ErrorCode, ReliabilityLevel, RemoteBuffer, ViState, provider as vip,
};

/// Long enough that the TCP send buffer rarely fills up exactly between two segments.
const LONG_BYTES: usize = 60_000;

/// Posts sends of [`LONG_BYTES`], one after the other, until TCP accepts only a part of one; returns the number of
/// sends.
fn fill(local: &Endpoint) -> usize {
    let calls = || counter(local.nic.handle(), "tx_calls");
    let mut calls_before = 0;
    let sends = post_until_tcp_is_full(local.nic.handle(), |send| {
        calls_before = calls();
        local.post_message(&pattern(send + 1, LONG_BYTES));
    });
    assert!(calls() > calls_before, "TCP accepted no byte of the last");
    sends
}

/// The remainder of a partially sent segment has the old acknowledgement; the new one follows it.
#[test]
fn pending_ack_is_sent_after_partial_segment() {
    let level = ReliabilityLevel::ReliableReception;
    let many = |config: &mut NicConfig| config.limits.max_in_flight = 256;
    let (local, mut peer) = connect_with(level, many, |vi| vi);
    local.post_receives(1, 64);
    let sent = fill(&local);
    peer.send(SEND, END, b"well placed");
    let number = peer.number;
    local.expect_message(b"well placed");
    let (mut ended, mut acknowledged) = (0, false);
    while ended < sent || !acknowledged {
        let segment = peer.receive().expect("a segment");
        ended += usize::from(segment.kind == SEND && segment.flags & END != 0);
        // Or a later number.
        acknowledged |= segment.ack.wrapping_sub(number).cast_signed() >= 0;
        if segment.kind == SEND && segment.flags & END != 0 {
            peer.send(NOP, END, &[]);
        }
    }
    local.expect_sent(sent);
}

/// The last message before the FIN is received, though a local send fails first.
#[test]
fn message_before_the_fin_is_received_after_a_failed_send() {
    for level in LEVELS {
        // Only calls of this thread poll the connection.
        let calls_only = |config: &mut NicConfig| inline_keys(config).takeover_us = 10_000_000;
        let (local, mut peer) = connect_with(level, calls_only, |vi| vi);
        local.post_receives(2, 64);
        peer.send(SEND, END, b"the last one");
        drop(peer);
        // TCP responds to the first with RST and rejects the following ones.
        for _ in 0..3 {
            local.post_message(b"too late");
        }
        local.expect_message(b"the last one");
        assert_eq!(errors_of(&local.recv()), status::DESC_FLUSHED_ERROR);
        local.expect_errors(&[ErrorCode::ConnLost]);
        assert_eq!(local.vi.state().unwrap(), ViState::Error);
        assert!(local.errors.none());
    }
}

/// Data in the TCP send buffer arrives, though the VI is disconnected and the NIC closed meanwhile, and the peer sends
/// data.
#[test]
fn sent_messages_arrive_after_close_nic() {
    // At Reliable Reception sends complete only when they are acknowledged.
    for level in [LEVELS[0], LEVELS[1]] {
        let long_timeout = |config: &mut NicConfig| config.ulp_timeout_ms = Some(60_000);
        let (local, mut peer) = connect_with(level, long_timeout, |vi| vi);
        let posted = fill(&local);
        let mut complete = 0;
        while local.vi.send_done().is_ok_and(|done| done.is_some()) {
            complete += 1;
        }
        // TCP has accepted a part of the last one, or meanwhile all of it.
        assert!(complete + 1 >= posted, "{complete} of {posted}");
        thread::scope(|scope| {
            scope.spawn(|| {
                local.vi.disconnect().unwrap();
                drop(local);
            });
            let mut bytes_left = LONG_BYTES;
            let mut whole = 0;
            while whole < complete {
                let segment = peer.receive().expect("a segment of a completed send");
                assert_eq!(segment.kind, SEND);
                bytes_left -= segment.body.len();
                if segment.flags & END != 0 {
                    assert_eq!(bytes_left, 0);
                    (bytes_left, whole) = (LONG_BYTES, whole + 1);
                    // Fails when the connection is closed after the last message.
                    let nop = peer.next_segment(NOP, END, &[]);
                    let _closed = peer.tcp.write_all(&nop);
                }
            }
        });
    }
}

/// A peer that reads nothing delays VipCloseNic up to its timeout. Other threads are not blocked meanwhile: one opens
/// and closes another NIC, and forks.
#[test]
fn open_close_and_fork_do_not_wait_for_a_blocked_close() {
    let level = ReliabilityLevel::ReliableDelivery;
    let long_timeout = |config: &mut NicConfig| config.ulp_timeout_ms = Some(300_000);
    let (local, peer) = connect_with(level, long_timeout, |vi| vi);
    let own = peer.tcp.peer_addr().unwrap();
    fill(&local);
    let closing = thread::spawn(move || {
        local.vi.disconnect().unwrap();
        drop(local);
    });
    // A NIC that closes accepts no more connections.
    while TcpStream::connect(own).is_ok() {
        thread::yield_now();
    }
    let (done, is_done) = channel();
    let other = thread::spawn(move || {
        drop(common::open_as(|config| {
            config.network = Network::segment(format!("{}-other", segment()));
        }));
        in_forked_child(|| true);
        done.send(()).unwrap();
    });
    let other_result = is_done.recv_timeout(TIMEOUT);
    let is_closing = !closing.is_finished();
    drop(peer);
    closing.join().unwrap();
    other.join().unwrap();
    other_result.expect("the other thread waits for the close");
    assert!(is_closing, "the close returned too early");
}

/// Receives that complete in error consume credits as well: later receives are advertised.
#[test]
fn receives_behind_length_errors_are_advertised() {
    const LOW: u16 = 4;
    let mut setup = ConnectionSetup::new(ReliabilityLevel::UnreliableDelivery);
    setup.attributes |= FLOW_CONTROL;
    setup.options = ConnectionOptions {
        flow_control: true,
        ..ConnectionOptions::default()
    };
    let few = |config: &mut NicConfig| tcp_keys(config).credits_low = LOW;
    let (local, mut peer) = setup.connect(few, |vi| vi);
    local.post_receives(LOW.into(), 1);
    while peer.receive_kind(NOP).posted < LOW {}
    // Not advertised yet: LOW credits are unused.
    local.post_receives(LOW.into(), 64);
    for _ in 0..LOW {
        peer.send(SEND, END, b"more than one byte");
    }
    for _ in 0..LOW {
        assert_eq!(errors_of(&local.recv()), status::LENGTH_ERROR);
    }
    while peer.receive_kind(NOP).posted < 2 * LOW {}
    peer.send(SEND, END, b"fits");
    local.expect_message(b"fits");
}

/// Behind a pending read at most `max_in_flight` messages are in flight, also if many are sent by one call.
#[test]
fn max_in_flight_is_not_exceeded() {
    const LIMIT: usize = 4;
    let few = |config: &mut NicConfig| config.limits.max_in_flight = LIMIT as u32;
    let (local, mut peer) = connect_with(ReliabilityLevel::ReliableDelivery, few, |vi| vi);
    local.post_receives(1, 64);
    // All of these wait for the TCP send buffer.
    let before = fill(&local);
    let remote = RemoteBuffer::from_bytes(&[1; RemoteBuffer::BYTES]);
    local.vi.post_send(local.read_of(remote, 16)).unwrap();
    for _ in 0..20 {
        local.post_message(b"behind");
    }
    let mut ends = 0;
    while ends < before {
        ends += usize::from(peer.receive_kind(SEND).flags & END != 0);
    }
    let request = peer.receive_kind(READ_REQUEST);
    for _ in 1..LIMIT {
        peer.receive_kind(SEND);
    }
    // The library must not send more before it has received this.
    peer.send(SEND, END, b"now");
    local.expect_message(b"now");
    let messages = counter(local.nic.handle(), "tx_messages");
    assert_eq!(messages, (before + LIMIT) as u64);
    let body = [&request.body[..], &[5; 16]].concat();
    peer.write(&peer.read_response(&request, END, 0, &body));
    local.expect_sent(before + 21);
}

/// An error of the receiving program breaks its VI: messages that were placed before are acknowledged.
#[test]
fn placed_message_is_acknowledged_before_the_break() {
    let calls_only = |config: &mut NicConfig| inline_keys(config).takeover_us = 10_000_000;
    let (local, mut peer) = connect_with(ReliabilityLevel::ReliableReception, calls_only, |vi| vi);
    local.post_receives(1, 64);
    peer.send(SEND, END, b"placed");
    local.expect_message(b"placed");
    // A misaligned descriptor breaks the VI before anything else is sent.
    let misaligned = std::ptr::without_provenance_mut(8);
    // SAFETY: the library must reject the address without accessing it.
    unsafe { vip::post_send(local.vi.handle(), misaligned, vipl::MemoryHandle(1)) }.unwrap();
    local.expect_errors(&[ErrorCode::PostDesc]);
    let mut acknowledged = false;
    while let Some(segment) = peer.receive() {
        acknowledged |= segment.ack == peer.number;
    }
    assert!(acknowledged);
    local.expect_errors(&[ErrorCode::ConnLost]);
}
