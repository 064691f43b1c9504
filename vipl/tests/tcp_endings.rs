//! What a connection over VI/TCP still brings when TCP has no room, or one end goes (docs/spec/vitcp.md).

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::thread;

use common::stranger::{
    END, FLOW_CONTROL, LEVELS, Meeting, NOP, READ_REQUEST, READ_RESPONSE, SEND, Stranger,
    errors_of, strangers,
};
use common::tls::counter;
use common::{End, PATIENCE, WAIT, pattern};
use pmd::config::NicConfig;
use pmd::descriptor::status;
use vipl::{
    Descriptor, ErrorCode, Operation, ReliabilityLevel, RemoteBuffer, ViChoices, ViState,
    provider as vip,
};

/// So long that a segment of it hardly ever ends where TCP has no more room.
const LONG_BYTES: usize = 60_000;

/// Posts sends of [`LONG_BYTES`], one after the other, until TCP has no room for one, and it took a part of that; how
/// many those are.
fn fill(ours: &End) -> usize {
    let calls = || counter(&ours.nic, "tx_calls");
    let no_room = || counter(&ours.nic, "tx_no_room_in_tcp");
    let messages = || counter(&ours.nic, "tx_messages");
    let first = messages();
    let sent = || (messages() - first) as usize;
    for posted in 1.. {
        let (calls_before, full_before) = (calls(), no_room());
        ours.vi
            .post_send(ours.message(&pattern(posted, LONG_BYTES)))
            .unwrap();
        // The NIC's thread may be the one that sends it.
        while no_room() == full_before && sent() < posted {
            thread::yield_now();
        }
        if no_room() > full_before {
            assert!(calls() > calls_before, "TCP took nothing of it");
            return posted;
        }
    }
    unreachable!("TCP has room for everything")
}

/// Behind a segment of which TCP has a part nothing else is said before its rest, which says what was so before.
#[test]
fn what_is_owed_behind_half_a_segment_is_told() {
    let level = ReliabilityLevel::ReliableReception;
    let many = |config: &mut NicConfig| config.max_in_flight = 256;
    let (ours, mut stranger) = strangers(level, many, |vi| vi);
    ours.vi.post_recv(ours.room(64)).unwrap();
    let sent = fill(&ours);
    stranger.say(SEND, END, b"well placed");
    let asked = stranger.number;
    assert_eq!(ours.recv().ok().unwrap().first_bytes(), b"well placed");
    let (mut ended, mut told) = (0, false);
    while ended < sent || !told {
        let heard = stranger.hear().expect("the stream goes on");
        ended += usize::from(heard.kind == SEND && heard.flags & END != 0);
        // Or more than that.
        told |= heard.ack.wrapping_sub(asked).cast_signed() >= 0;
        if heard.kind == SEND && heard.flags & END != 0 {
            stranger.say(NOP, END, &[]);
        }
    }
    for _ in 0..sent {
        assert_eq!(errors_of(&ours.vi.send_wait(WAIT).unwrap().unwrap()), 0);
    }
}

/// The other end sent something and went: that is received, though a send of ours found out first that it is gone.
#[test]
fn what_came_before_an_end_is_received_though_a_send_fails() {
    for level in LEVELS {
        // Nobody but the calls of this thread looks at the connection.
        let calls_only = |config: &mut NicConfig| config.takeover_us = 10_000_000;
        let (ours, mut stranger) = strangers(level, calls_only, |vi| vi);
        for _ in 0..2 {
            ours.vi.post_recv(ours.room(64)).unwrap();
        }
        stranger.say(SEND, END, b"the last one");
        drop(stranger);
        // TCP answers the first that nobody takes it any more, and refuses those behind it.
        for _ in 0..3 {
            ours.vi.post_send(ours.message(b"too late")).unwrap();
        }
        let last = ours.recv();
        assert_eq!(errors_of(&last), 0, "{level:?}");
        assert_eq!(last.first_bytes(), b"the last one");
        assert_eq!(errors_of(&ours.recv()), status::DESC_FLUSHED_ERROR);
        assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::ConnLost);
        assert_eq!(ours.vi.state().unwrap(), ViState::Error);
        assert!(ours.errors.none());
    }
}

/// What TCP has taken arrives, though the VI is disconnected and the NIC closed meanwhile, and the other end says
/// something.
#[test]
fn what_was_sent_arrives_though_the_nic_is_closed() {
    for level in LEVELS {
        if level == ReliabilityLevel::ReliableReception {
            // Its sends are complete when the other end says so.
            continue;
        }
        let patient = |config: &mut NicConfig| config.ulp_timeout_ms = Some(60_000);
        let (ours, mut stranger) = strangers(level, patient, |vi| vi);
        let posted = fill(&ours);
        let mut complete = 0;
        while ours.vi.send_done().is_ok_and(|done| done.is_some()) {
            complete += 1;
        }
        // TCP has a part of the last, or has found room for all of it meanwhile.
        assert!(complete + 1 >= posted, "{complete} of {posted}");
        thread::scope(|scope| {
            scope.spawn(|| {
                ours.vi.disconnect().unwrap();
                drop(ours);
            });
            let mut bytes_left = LONG_BYTES;
            let mut whole = 0;
            while whole < complete {
                let heard = stranger.hear().expect("all that was complete");
                assert_eq!(heard.kind, SEND);
                bytes_left -= heard.behind.len();
                if heard.flags & END != 0 {
                    assert_eq!(bytes_left, 0);
                    (bytes_left, whole) = (LONG_BYTES, whole + 1);
                    // Once all has arrived nobody takes it any more.
                    let nop = stranger.next(NOP, END, &[]);
                    let _gone = stranger.tcp.write_all(&nop);
                }
            }
        });
    }
}

/// A peer that reads nothing takes all the time that a NIC has for its close. Nothing else of the program waits
/// for that: another thread opens and closes another NIC, and forks.
#[test]
fn open_close_and_fork_while_a_peer_holds_up_a_close_do_not_wait() {
    let level = ReliabilityLevel::ReliableDelivery;
    let long = |config: &mut NicConfig| config.ulp_timeout_ms = Some(300_000);
    let (ours, stranger) = strangers(level, long, |vi| vi);
    let own = stranger.tcp.peer_addr().unwrap();
    fill(&ours);
    let closing = thread::spawn(move || {
        ours.vi.disconnect().unwrap();
        drop(ours);
    });
    // It accepts no more connections as soon as it closes.
    while TcpStream::connect(own).is_ok() {
        thread::yield_now();
    }
    let (done, is_done) = channel();
    let other = thread::spawn(move || {
        drop(common::open_as(|config| {
            config.segment = format!("{}-other", config.segment);
        }));
        // SAFETY: the child does nothing but end.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child and writes its status.
        let ended = unsafe { libc::waitpid(pid, &mut status, 0) };
        done.send(ended == pid && status == 0).unwrap();
    });
    let went_on = is_done.recv_timeout(PATIENCE);
    let closes = !closing.is_finished();
    drop(stranger);
    closing.join().unwrap();
    other.join().unwrap();
    assert!(went_on.expect("it waits for the close"));
    assert!(closes, "the close was over before");
}

/// Receives that complete in error are used up all the same: the peer hears of those behind them.
#[test]
fn credits_go_on_behind_receives_that_were_too_small() {
    const LOW: u16 = 4;
    let mut meeting = Meeting::at(ReliabilityLevel::Unreliable);
    meeting.attributes |= FLOW_CONTROL;
    meeting.choices = ViChoices {
        flow_control: true,
        ..ViChoices::default()
    };
    let few = |config: &mut NicConfig| config.credits_low = LOW;
    let (ours, mut stranger) = meeting.hold(few, |vi| vi);
    for _ in 0..LOW {
        ours.vi.post_recv(ours.room(1)).unwrap();
    }
    while stranger.hear_a(NOP).posted < LOW {}
    // Not to be told yet: as many as are low are unused.
    for _ in 0..LOW {
        ours.vi.post_recv(ours.room(64)).unwrap();
    }
    for _ in 0..LOW {
        stranger.say(SEND, END, b"more than one byte");
    }
    for _ in 0..LOW {
        assert_eq!(errors_of(&ours.recv()), status::LENGTH_ERROR);
    }
    while stranger.hear_a(NOP).posted < 2 * LOW {}
    stranger.say(SEND, END, b"fits");
    assert_eq!(ours.recv().ok().unwrap().first_bytes(), b"fits");
}

fn read_of(ours: &End) -> Descriptor {
    let mut read = ours.room(16);
    read.set_used_bytes(0, 16);
    let somewhere = RemoteBuffer::from_bytes(&[1; RemoteBuffer::BYTES]);
    read.set_operation(Operation::RdmaRead(somewhere));
    read
}

/// Behind a read that waits no more stay in flight than may, also where many are sent with one call.
#[test]
fn no_more_is_in_flight_than_may_be() {
    const MOST: usize = 4;
    let few = |config: &mut NicConfig| config.max_in_flight = MOST as u32;
    let (ours, mut stranger) = strangers(ReliabilityLevel::ReliableDelivery, few, |vi| vi);
    ours.vi.post_recv(ours.room(64)).unwrap();
    // All of these wait for room together.
    let before = fill(&ours);
    ours.vi.post_send(read_of(&ours)).unwrap();
    for _ in 0..20 {
        ours.vi.post_send(ours.message(b"behind")).unwrap();
    }
    let mut ends = 0;
    while ends < before {
        ends += usize::from(stranger.hear_a(SEND).flags & END != 0);
    }
    let asked = stranger.hear_a(READ_REQUEST);
    for _ in 1..MOST {
        stranger.hear_a(SEND);
    }
    // Whatever it sends next it was not free to send before this.
    stranger.say(SEND, END, b"now");
    assert_eq!(ours.recv().ok().unwrap().first_bytes(), b"now");
    assert_eq!(counter(&ours.nic, "tx_messages"), (before + MOST) as u64);
    let numbers = (asked.number, stranger.heard);
    let behind = [&asked.behind[..], &[5; 16]].concat();
    stranger.write(&Stranger::segment(READ_RESPONSE, END, numbers, &behind));
    for _ in 0..before + 21 {
        assert_eq!(errors_of(&ours.vi.send_wait(WAIT).unwrap().unwrap()), 0);
    }
}

/// An error of the receiver's own making breaks its VI: who waits hears of what was placed before.
#[test]
fn what_was_placed_is_told_though_the_vi_breaks() {
    let calls_only = |config: &mut NicConfig| config.takeover_us = 10_000_000;
    let (ours, mut stranger) = strangers(ReliabilityLevel::ReliableReception, calls_only, |vi| vi);
    ours.vi.post_recv(ours.room(64)).unwrap();
    stranger.say(SEND, END, b"placed");
    assert_eq!(ours.recv().ok().unwrap().first_bytes(), b"placed");
    // Not at a place for a descriptor: the VI breaks before anything else is sent.
    let misaligned = std::ptr::without_provenance_mut(8);
    // SAFETY: no descriptor is there, which is what the library must see without looking.
    unsafe { vip::post_send(ours.vi.handle(), misaligned, vipl::MemoryHandle(1)) }.unwrap();
    assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::PostDesc);
    let mut told = false;
    while let Some(heard) = stranger.hear() {
        told |= heard.ack == stranger.number;
    }
    assert!(told);
    assert_eq!(ours.errors.next_of(&ours.vi), ErrorCode::ConnLost);
}
