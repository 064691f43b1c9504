//! A peer that answers and takes nothing is given up after FCVI_ULP_TIMEOUT, one that is silent
//! after so many questions.

use fcvi_frame::iu::Opcode::SendResponse;

use super::{RD, RR, US, acknowledgement, kept, pair_with};
use crate::testkit::host::Event;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, broken, send_failed, sent};
use crate::{Counter, EndpointState, Level, Status, ViIndex};

const ULP_TIMEOUT: u64 = S;

/// A message of many frames of which four may be unacknowledged; the first one is there, and what
/// says so is returned.
fn stuck(level: Level, ulp_timeout_ns: u64) -> (Net, ViIndex, Vec<u8>) {
    let (mut net, a, b) = pair_with(level, |node, config| {
        let recovery = config.recovery.as_mut().expect("on");
        (recovery.min_window_frames, recovery.max_window_frames) = (4, 4);
        if node == CLIENT {
            config.ulp_timeout_ns = ulp_timeout_ns;
        }
    });
    net.post_receive(SERVER, b, 200_000);
    let frames = kept(&mut net, |net| {
        net.post_send(CLIENT, a, &[1; 200_000]);
    });
    assert_eq!(frames.len(), 4);
    net.inject(SERVER, &frames[0]);
    net.wire.cut = true;
    net.advance(200 * US);
    let said = net.frames(SERVER, SendResponse).remove(0);
    assert_eq!(acknowledgement(&said).1, 2096);
    net.inject(CLIENT, &said);
    (net, a, said)
}

/// What its sender sees when it is given up.
fn given_up(level: Level) -> Vec<Event> {
    let mut log = broken();
    match level {
        RR => log.insert(0, send_failed(0, Status::TRANSPORT)),
        _ => log.insert(1, send_failed(0, Status::FLUSHED)),
    }
    log
}

/// Nothing of it is in flight: it is watched all the same.
#[test]
fn a_message_longer_than_the_window_has_ulp_timeout_for_the_next_acknowledgement() {
    for level in [RD, RR] {
        let (mut net, a, said) = stuck(level, ULP_TIMEOUT);
        let begin = net.now_ns;
        while net.state(CLIENT, a) == EndpointState::Connected {
            // Sooner than it is asked.
            net.inject(CLIENT, &said);
            net.advance(200 * US);
            assert!(net.now_ns <= begin + ULP_TIMEOUT + MS, "{level:?}");
        }
        assert!(net.now_ns >= begin + ULP_TIMEOUT - MS, "{level:?}");
        assert_eq!(net.count(CLIENT, Counter::RecoveryTimeouts), 0);
        assert_eq!(net.count(CLIENT, Counter::ResponseTimeouts), 1);
        assert_eq!(net.log(CLIENT, a), given_up(level));
    }
}

/// As long as it goes on it has its time anew.
#[test]
fn a_message_longer_than_the_window_may_take_longer_than_ulp_timeout() {
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

/// Whether what is sent again is lost, or never was sent, cannot be known: it is asked often, in
/// all that time, and no more than that.
#[test]
fn a_peer_that_takes_nothing_is_asked_until_ulp_timeout() {
    for level in [RD, RR] {
        let (mut net, a, said) = stuck(level, ULP_TIMEOUT);
        let mut asked = 0;
        let begin = net.now_ns;
        while net.state(CLIENT, a) == EndpointState::Connected {
            net.advance(100 * US);
            let now = net.count(CLIENT, Counter::RecoveryTimeouts);
            if core::mem::replace(&mut asked, now) < now {
                net.inject(CLIENT, &said);
            }
            assert!(net.now_ns <= begin + ULP_TIMEOUT + MS, "{level:?}");
        }
        assert!((12..32).contains(&asked), "{level:?}: {asked}");
        assert_eq!(net.count(CLIENT, Counter::GiveUps), 0, "{level:?}");
        assert_eq!(net.count(CLIENT, Counter::ResponseTimeouts), 1);
        assert_eq!(net.log(CLIENT, a), given_up(level));
    }
}

#[test]
fn a_silent_peer_is_asked_so_often_and_then_given_up() {
    for level in [RD, RR] {
        let (mut net, a, _) = stuck(level, 100 * ULP_TIMEOUT);
        let tries = u64::from(crate::RecoveryConfig::default().tries);
        let begin = net.now_ns;
        while net.state(CLIENT, a) == EndpointState::Connected {
            net.advance(100 * US);
            assert!(net.now_ns < begin + 20 * ULP_TIMEOUT, "{level:?}");
        }
        assert_eq!(net.count(CLIENT, Counter::RecoveryTimeouts), tries);
        assert_eq!(net.count(CLIENT, Counter::GiveUps), 1, "{level:?}");
        assert_eq!(net.log(CLIENT, a), given_up(level));
    }
}
