//! Timeouts without progress: a peer that acknowledges but accepts nothing breaks the connection after
//! FCVI_ULP_TIMEOUT, a silent peer after all tries.

use fcvi_frame::iu::Opcode::SendResponse;
use vi_types::{ReliabilityLevel, Status, ViIndex, ViState};

use super::{RD, RR, US, acknowledgement, pair_with, withheld};
use crate::Counter;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER};
use crate::testkit::{
    expected_events::{connection_lost_events, send_failed, sent},
    io::Event,
};

const ULP_TIMEOUT: u64 = S;

/// Sends a message of many frames with a window of four, of which only the first arrives. Returns the acknowledgement
/// of the first frame.
fn stuck(level: ReliabilityLevel, ulp_timeout_ns: u64) -> (Net, ViIndex, Vec<u8>) {
    let (mut net, a, b) = pair_with(level, |node, config| {
        let recovery = config.recovery.as_mut().expect("on");
        (recovery.min_window_frames, recovery.max_window_frames) = (4, 4);
        if node == CLIENT {
            config.ulp_timeout_ns = ulp_timeout_ns;
        }
    });
    net.post_receive(SERVER, b, 200_000);
    let frames = withheld(&mut net, |net| {
        net.post_send(CLIENT, a, &[1; 200_000]);
    });
    assert_eq!(frames.len(), 4);
    net.inject(SERVER, &frames[0]);
    net.wire.cut = true;
    net.advance(200 * US);
    let ack = net.frames(SERVER, SendResponse).remove(0);
    assert_eq!(acknowledgement(&ack).1, 2096);
    net.inject(CLIENT, &ack);
    (net, a, ack)
}

/// Returns the events of the sender when the connection breaks.
fn break_events(level: ReliabilityLevel) -> Vec<Event> {
    let mut log = connection_lost_events();
    match level {
        RR => log.insert(0, send_failed(0, Status::TRANSPORT)),
        _ => log.insert(1, send_failed(0, Status::FLUSHED)),
    }
    log
}

/// No frame of it is in flight, but the timeout applies all the same.
#[test]
fn message_longer_than_the_window_without_progress_breaks_after_the_ulp_timeout() {
    for level in [RD, RR] {
        let (mut net, a, ack) = stuck(level, ULP_TIMEOUT);
        let begin = net.now_ns;
        while net.state(CLIENT, a) == ViState::Connected {
            // Before the next probe.
            net.inject(CLIENT, &ack);
            net.advance(200 * US);
            assert!(net.now_ns <= begin + ULP_TIMEOUT + MS, "{level:?}");
        }
        assert!(net.now_ns >= begin + ULP_TIMEOUT - MS, "{level:?}");
        assert_eq!(net.count(CLIENT, Counter::RecoveryTimeouts), 0);
        assert_eq!(net.count(CLIENT, Counter::ResponseTimeouts), 1);
        assert_eq!(net.log(CLIENT, a), break_events(level));
    }
}

/// Progress restarts the timeout.
#[test]
fn message_longer_than_the_window_may_take_longer_than_the_ulp_timeout() {
    let (mut net, a, _) = stuck(RD, ULP_TIMEOUT);
    let sent_bytes = |net: &Net| {
        let ep = net.nodes[CLIENT].engine.endpoints[a.slot()].as_ref();
        let tx = ep.and_then(|ep| ep.tx.as_ref()).expect("connected");
        assert!(tx.in_flight.is_empty());
        tx.message.expect("not sent whole").sent_bytes
    };
    for _ in 0..8 {
        net.advance(ULP_TIMEOUT / 2);
        net.wire.cut = false;
        let before = sent_bytes(&net);
        while sent_bytes(&net) == before {
            if !net.deliver_one() {
                net.advance(100 * US);
            }
        }
        net.wire.cut = true;
    }
    net.wire.cut = false;
    net.advance(ULP_TIMEOUT);
    assert_eq!(net.log(CLIENT, a), [sent(0, 200_000)]);
}

/// The sender cannot distinguish lost retransmissions from a peer without progress: it probes until the timeout, a
/// limited number of times.
#[test]
fn peer_without_progress_is_probed_until_the_ulp_timeout() {
    for level in [RD, RR] {
        let (mut net, a, ack) = stuck(level, ULP_TIMEOUT);
        let mut probes = 0;
        let begin = net.now_ns;
        while net.state(CLIENT, a) == ViState::Connected {
            net.advance(100 * US);
            let now = net.count(CLIENT, Counter::RecoveryTimeouts);
            if core::mem::replace(&mut probes, now) < now {
                net.inject(CLIENT, &ack);
            }
            assert!(net.now_ns <= begin + ULP_TIMEOUT + MS, "{level:?}");
        }
        assert!((12..32).contains(&probes), "{level:?}: {probes}");
        assert_eq!(net.count(CLIENT, Counter::GiveUps), 0, "{level:?}");
        assert_eq!(net.count(CLIENT, Counter::ResponseTimeouts), 1);
        assert_eq!(net.log(CLIENT, a), break_events(level));
    }
}

#[test]
fn silent_peer_breaks_the_connection_after_all_tries() {
    for level in [RD, RR] {
        let (mut net, a, _) = stuck(level, 100 * ULP_TIMEOUT);
        let tries = u64::from(crate::RecoveryConfig::default().tries);
        let begin = net.now_ns;
        while net.state(CLIENT, a) == ViState::Connected {
            net.advance(100 * US);
            assert!(net.now_ns < begin + 20 * ULP_TIMEOUT, "{level:?}");
        }
        assert_eq!(net.count(CLIENT, Counter::RecoveryTimeouts), tries);
        assert_eq!(net.count(CLIENT, Counter::GiveUps), 1, "{level:?}");
        assert_eq!(net.log(CLIENT, a), break_events(level));
    }
}
