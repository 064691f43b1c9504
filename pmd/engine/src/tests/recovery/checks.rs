//! Invalid frames, acknowledgements and repeated reads, which recovery drops.

use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::iu::Opcode::{ReadRequest, ReadResponse, SendRequest, SendResponse};
use vi_types::ViState;

use super::{RD, TARGET, acknowledgements, msg_id, pair, withheld};
use crate::testkit::net::{CLIENT, MS, SERVER};
use crate::{
    Counter,
    testkit::expected_events::{received, sent},
};

#[test]
fn invalid_acknowledgements_are_dropped() {
    let (mut net, a, b) = pair(RD);
    net.post_receive(SERVER, b, 8);
    net.post_receive(SERVER, b, 8);
    net.post_send(CLIENT, a, &[1; 8]);
    net.advance(MS);
    net.clear_logs();
    let good = net.frames(SERVER, SendResponse).remove(0);
    withheld(&mut net, |net| {
        net.post_send(CLIENT, a, &[2; 8]);
    });
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        let length = bytes.len();
        seal(&mut bytes, length, Eof::T).expect("a legal length");
        bytes
    };
    for (bytes, counter) in [
        // Two more messages, of which only one was sent.
        (
            changed(63, good[63].wrapping_add(2)),
            Counter::DropStrayResponse,
        ),
        // A partial message of eight bytes that has only eight.
        (changed(51, 8), Counter::DropStrayResponse),
        (
            changed(63, good[63].wrapping_sub(1)),
            Counter::StaleAcknowledgements,
        ),
        // Gaps without a list; a reason that is invalid for acknowledgements; no offset.
        (changed(64, 0xC0), Counter::DropBadIu),
        (changed(64, 0x01), Counter::DropBadIu),
        (changed(39, good[39] & !8), Counter::DropBadIu),
    ] {
        let before = net.count(CLIENT, counter);
        net.inject(CLIENT, &bytes);
        assert_eq!(net.count(CLIENT, counter), before + 1, "{counter:?}");
        assert_eq!(net.log(CLIENT, a), []);
    }
    net.inject(CLIENT, &changed(63, good[63].wrapping_add(1)));
    assert_eq!(net.log(CLIENT, a), [sent(1, 8)]);
}

/// All stale frames of one poll get a single response.
#[test]
fn stale_frames_are_answered_once_per_poll() {
    let (mut net, a, b) = pair(RD);
    net.post_receive(SERVER, b, 8);
    net.post_send(CLIENT, a, &[1; 8]);
    net.advance(MS);
    let request = net.frames(CLIENT, SendRequest).remove(0);
    net.wire.trace.clear();
    for _ in 0..50 {
        net.inject(SERVER, &request);
    }
    assert_eq!(acknowledgements(&net, SERVER).len(), 1);
    net.advance(MS);
    assert_eq!(acknowledgements(&net, SERVER).len(), 2, "and one later");
    assert_eq!(net.count(SERVER, Counter::DropStaleMessage), 50);
}

/// Frames with boundaries that no sender uses, and frames of two messages under one message ID.
#[test]
fn frames_inconsistent_with_their_message_are_dropped() {
    let (mut net, a, b) = pair(RD);
    for _ in 0..2 {
        net.post_receive(SERVER, b, 10_000);
    }
    let frames = withheld(&mut net, |net| {
        net.post_send(CLIENT, a, &[1; 6_500]);
    });
    net.wire.cut = true;
    net.inject(SERVER, &frames[2]);
    let changed = |frame: &[u8], changes: &[(usize, u8)]| {
        let mut bytes = frame.to_vec();
        for (at, value) in changes {
            bytes[*at] = *value;
        }
        let view = FrameView::parse(frame).expect("a frame");
        let (length, eof) = (bytes.len(), view.eof);
        seal(&mut bytes, length, eof).expect("a legal length");
        bytes
    };
    let seq_cnt = frames[1][43];
    let far = msg_id(&frames[1]).wrapping_add(256).to_be_bytes();
    let far_ahead = [(60, far[0]), (61, far[1]), (62, far[2]), (63, far[3])];
    for (bytes, counter) in [
        // An offset that is not a frame boundary; SOFi3 in the middle; SEQ_CNT, SEQ_ID, OX_ID of other frames.
        (changed(&frames[1], &[(51, 4)]), Counter::DropBadIu),
        (changed(&frames[1], &[(27, 0x2E)]), Counter::DropBadIu),
        (
            changed(&frames[1], &[(43, seq_cnt + 1)]),
            Counter::DropSynonym,
        ),
        (
            changed(&frames[1], &[(40, frames[1][40] + 1)]),
            Counter::DropSynonym,
        ),
        (
            changed(&frames[1], &[(45, frames[1][45] ^ 1)]),
            Counter::DropSynonym,
        ),
        (
            changed(&frames[0], &[(43, frames[0][43] + 1)]),
            Counter::DropSynonym,
        ),
        // A message beyond the window.
        (changed(&frames[1], &far_ahead), Counter::DropOutOfWindow),
    ] {
        let before = net.count(SERVER, counter);
        net.inject(SERVER, &bytes);
        assert_eq!(net.count(SERVER, counter), before + 1, "{counter:?}");
    }
    net.wire.cut = false;
    net.advance(20 * MS);
    assert_eq!(net.log(SERVER, b), [received(0, &[1; 6_500])]);
}

#[test]
fn repeated_read_without_an_accepted_read_is_dropped() {
    let (mut net, a, b) = pair(RD);
    net.post_read(CLIENT, a, (0, TARGET), 100);
    let request = net.frames(CLIENT, ReadRequest).remove(0);
    net.advance(20 * MS);
    net.wire.trace.clear();
    for (at, value) in [(75, 0xEE), (80, 1), (83, 99)] {
        let mut other = request.clone();
        other[38] |= 2;
        other[at] = value;
        let length = other.len();
        seal(&mut other, length, Eof::T).expect("a legal length");
        net.inject(SERVER, &other);
        net.advance(MS);
    }
    assert_eq!(net.frames(SERVER, ReadResponse).len(), 0);
    assert_eq!(net.count(SERVER, Counter::ReadsRepeated), 0);
    assert_eq!(net.state(SERVER, b), ViState::Connected);
}
