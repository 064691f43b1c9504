//! The rules of VN2VN (docs/spec/vn2vn.md), one test for each.

use fcvi_frame::fc::{FcType, NPortId};
use fcvi_frame::fip::Fc4Attributes;
use fcvi_frame::fip::Vn2vnMessage::{
    self, Beacon, ClaimNotification, ClaimResponse, ProbeReply, ProbeRequest,
};

use super::segment::{ALL, MS, S, Segment, bytes, claim, config, enode, frame, id, port};
use crate::testkit::FCP_INITIATOR;
use crate::vn2vn::{Vn2vnConfig, Vn2vnCounter, Vn2vnEvent, Vn2vnState};

/// Returns a segment with a single station, number 5, which requests 00.00.07, in this state.
fn alone(state: Vn2vnState) -> Segment {
    let mut segment = Segment::new(vec![config(5, 7)], 1);
    if state == Vn2vnState::Stopped {
        return segment;
    }
    segment.start(0);
    for _ in 0..100_000 {
        if segment.state(0) == state {
            return segment;
        }
        segment.advance(MS);
    }
    panic!("state not reached: {state:?}");
}

/// Returns a frame about 00.00.07 from a port whose name is smaller or larger than that of number 5.
fn contender(number: u8, message: Vn2vnMessage) -> Vec<u8> {
    bytes(&frame(port(number, id(7)), message), ALL, 0)
}

const WEAKER: u8 = 4;
const STRONGER: u8 = 6;

#[test]
fn single_port_probes_twice_claims_and_sends_beacons() {
    let mut segment = Segment::new(vec![config(5, 7)], 2);
    let start_ns = segment.now_ns;
    segment.start(0);
    segment.advance(30 * S);
    let kinds: Vec<u8> = segment
        .sent
        .iter()
        .map(|s| s.frame.message.subcode())
        .collect();
    assert_eq!(kinds[..3], [1, 1, 3]);
    assert!(kinds[3..].iter().all(|kind| *kind == 5), "{kinds:?}");
    assert!(
        segment
            .sent
            .iter()
            .all(|s| s.dst == ALL && !s.frame.recorded)
    );
    let times: Vec<u64> = segment.sent.iter().map(|s| s.at_ns).collect();
    assert!(times[0] - start_ns < 100 * MS);
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps[..4], [100 * MS, 400 * MS, 400 * MS, 400 * MS]);
    assert_eq!(gaps.len(), 7, "three more beacons in 30 s");
    for gap in &gaps[4..] {
        assert!((8 * S..8 * S + 100 * MS).contains(gap), "{gap}");
    }
    assert_ne!(gaps[4], gaps[5], "with some randomness");
    let events = [Vn2vnEvent::Claimed(id(7)), Vn2vnEvent::Up(id(7))];
    assert_eq!(segment.events(0), events);
}

#[test]
fn frames_contain_the_identity_and_the_fc_vi_type() {
    let segment = alone(Vn2vnState::Up);
    let own = config(5, 7);
    for sent in &segment.sent {
        let sender = sent.frame.port;
        assert_eq!(sender.enode_mac, own.enode_mac);
        assert_eq!(sender.node_name, own.node_name);
        assert_eq!(sender.id.port_name, own.port_name);
        assert_eq!(sender.id.n_port_id, id(7));
        assert_eq!(sender.id.mac.to_string(), "0e:fd:00:00:00:07");
        if let Some(claim) = sent.frame.message.claim() {
            assert_eq!(claim.max_fcoe_bytes, 2158);
            assert_eq!(claim.fc4.types[8], 1);
        }
    }
}

#[test]
fn claim_advertises_the_fc4_protocol_of_the_configuration() {
    let initiator = |number| Vn2vnConfig {
        fc4: FCP_INITIATOR,
        ..config(number, u16::from(number))
    };
    let segment = Segment::up(vec![initiator(5), initiator(6), config(7, 7)], 20);
    let claims = segment.sent.iter().filter(|sent| sent.from == 0);
    let mut claims = claims.filter_map(|sent| sent.frame.message.claim());
    let expected = Fc4Attributes::default().with(FcType::Fcp, 2);
    assert!(claims.all(|claim| claim.fc4 == expected));
    let supported = |station| {
        let neighbours = segment.neighbours(station);
        neighbours
            .iter()
            .map(|n| n.supports_fc4)
            .collect::<Vec<_>>()
    };
    assert_eq!(supported(0), [true, false]);
    assert_eq!(supported(2), [false, false]);
}

#[test]
fn first_id_is_the_preferred_one_or_the_low_bits_of_the_port_name() {
    let chosen = |low: u16, preferred: Option<NPortId>| {
        let config = Vn2vnConfig {
            preferred,
            ..config(5, low)
        };
        Segment::up(vec![config], 3).id(0)
    };
    assert_eq!(chosen(7, None), id(7));
    assert_eq!(chosen(7, Some(id(9))), id(9));
    assert_eq!(chosen(0xFFFE, None), id(0xFFFE));
    assert_eq!(chosen(0, None), id(1));
    assert_eq!(chosen(0xFFFF, None), id(1));
    for never in [0, 0xFFFF, 0x01_0000, 0xFF_FFFF] {
        assert_eq!(chosen(7, NPortId::new(never)), id(7), "{never:x}");
    }
}

#[test]
fn restart_of_the_link_tries_the_last_id_first() {
    let mut segment = alone(Vn2vnState::Up);
    segment.inject(0, &contender(STRONGER, ClaimNotification(claim(2158))));
    segment.advance(3 * S);
    let other = segment.id(0);
    assert_ne!(other, id(7));
    segment.events(0);
    segment.stop(0);
    segment.advance(S);
    assert_eq!(segment.stations[0].machine.poll_timeout(), None);
    segment.start(0);
    segment.advance(3 * S);
    let events = [
        Vn2vnEvent::Lost,
        Vn2vnEvent::Claimed(other),
        Vn2vnEvent::Up(other),
    ];
    assert_eq!(segment.events(0), events);
}

#[test]
fn probe_for_a_claimed_id_is_answered() {
    for state in [Vn2vnState::Claim, Vn2vnState::Up] {
        for number in [WEAKER, STRONGER] {
            let mut segment = alone(state);
            segment.take_sent();
            segment.inject(0, &contender(number, ProbeRequest));
            let answer = format!("0 probe reply to {}", enode(number));
            assert_eq!(segment.take_sent(), [answer]);
            assert_eq!(segment.state(0), state);
        }
    }
}

#[test]
fn probing_port_with_the_smaller_name_restarts() {
    for state in [Vn2vnState::Probe1, Vn2vnState::Probe2] {
        let mut segment = alone(state);
        segment.take_sent();
        segment.inject(0, &contender(WEAKER, ProbeRequest));
        assert_eq!(
            segment.take_sent(),
            [format!("0 probe reply to {}", enode(4))]
        );
        assert_eq!(segment.state(0), state);
        segment.inject(0, &contender(STRONGER, ProbeRequest));
        assert_eq!(segment.state(0), Vn2vnState::Start);
        // A recorded N_Port_ID wins, whatever the names are.
        let mut segment = alone(state);
        let mut recorded = frame(port(WEAKER, id(7)), ProbeRequest);
        recorded.recorded = true;
        segment.inject(0, &bytes(&recorded, ALL, 0));
        assert_eq!(segment.state(0), Vn2vnState::Start);
    }
    let mut segment = alone(Vn2vnState::Start);
    segment.inject(0, &contender(WEAKER, ProbeRequest));
    assert_eq!(segment.count(0, Vn2vnCounter::Restarts), 1);
}

#[test]
fn probe_reply_causes_a_restart_before_up_and_a_claim_after() {
    for state in [
        Vn2vnState::Start,
        Vn2vnState::Probe1,
        Vn2vnState::Probe2,
        Vn2vnState::Claim,
    ] {
        let mut segment = alone(state);
        segment.inject(0, &contender(WEAKER, ProbeReply));
        assert_eq!(segment.state(0), Vn2vnState::Start);
        assert_eq!(segment.count(0, Vn2vnCounter::Restarts), 1);
        segment.advance(3 * S);
        assert_ne!(segment.id(0), id(7));
    }
    let mut segment = alone(Vn2vnState::Up);
    segment.take_sent();
    segment.inject(0, &contender(STRONGER, ProbeReply));
    assert_eq!(segment.state(0), Vn2vnState::Up);
    assert_eq!(segment.take_sent(), ["0 claim to all"]);
}

#[test]
fn id_conflict_is_lost_before_the_claim_and_won_by_the_larger_name_after() {
    for message in [
        ClaimNotification(claim(2158)),
        ClaimResponse(claim(2158)),
        Beacon,
    ] {
        for state in [Vn2vnState::Start, Vn2vnState::Probe1, Vn2vnState::Probe2] {
            for number in [WEAKER, STRONGER] {
                let mut segment = alone(state);
                segment.inject(0, &contender(number, message));
                assert_eq!(segment.count(0, Vn2vnCounter::Restarts), 1);
            }
        }
        for state in [Vn2vnState::Claim, Vn2vnState::Up] {
            let mut segment = alone(state);
            segment.take_sent();
            segment.inject(0, &contender(WEAKER, message));
            assert_eq!(segment.take_sent(), ["0 claim to all"]);
            assert_eq!(segment.state(0), state);
            assert_eq!(segment.count(0, Vn2vnCounter::Defended), 1);
            segment.inject(0, &contender(STRONGER, message));
            assert_eq!(segment.state(0), Vn2vnState::Start);
            assert_eq!(segment.events(0).last(), Some(&Vn2vnEvent::Lost));
        }
    }
}

#[test]
fn a_recorded_claim_or_beacon_is_answered_with_a_probe() {
    for message in [ClaimNotification(claim(2158)), Beacon] {
        for about in [id(7), id(8)] {
            let mut segment = alone(Vn2vnState::Up);
            segment.take_sent();
            let mut recorded = frame(port(STRONGER, about), message);
            recorded.recorded = true;
            segment.inject(0, &bytes(&recorded, ALL, 0));
            assert_eq!(segment.take_sent(), ["0 probe to all"]);
            assert_eq!(segment.state(0), Vn2vnState::Up);
            assert_eq!(segment.neighbours(0), []);
        }
    }
}

#[test]
fn two_ports_with_the_same_low_bits_get_different_ids() {
    for first in [0, 1] {
        for late_ns in [0, 50 * MS, 300 * MS, 700 * MS, 2 * S] {
            let mut segment = Segment::new(vec![config(1, 7), config(2, 7)], 4);
            segment.start(first);
            segment.advance(late_ns);
            segment.start(1 - first);
            segment.advance(20 * S);
            let (a, b) = (segment.id(0), segment.id(1));
            assert_ne!(a, b, "{first} first, {late_ns}");
            assert!(a == id(7) || b == id(7), "one of them keeps it");
            for (station, other) in [(0, b), (1, a)] {
                let ids: Vec<_> = segment.neighbours(station).iter().map(|n| n.id).collect();
                assert_eq!(ids, [other]);
                let restarts = segment.count(station, Vn2vnCounter::Restarts);
                assert!(restarts <= 1, "{restarts}");
            }
        }
    }
}

#[test]
fn beacons_of_unknown_ports_cause_a_claim_at_most_every_400_ms() {
    let mut segment = alone(Vn2vnState::Up);
    segment.advance(S);
    segment.take_sent();
    let beacons = 100;
    for number in 0..beacons {
        let other = frame(port(STRONGER, id(0x100 + number)), Beacon);
        segment.inject(0, &bytes(&other, ALL, 0));
        segment.advance(10 * MS);
    }
    assert_eq!(segment.take_sent(), ["0 claim to all"; 3]);
    assert_eq!(segment.neighbours(0), []);
}

#[test]
fn restarts_are_delayed_after_ten_until_the_port_was_up() {
    let mut segment = alone(Vn2vnState::Start);
    let mut waits = Vec::new();
    for _ in 0..14 {
        // Every probe gets a reply.
        segment.take_sent();
        let before_ns = segment.now_ns;
        while segment.state(0) == Vn2vnState::Start {
            segment.advance(MS);
        }
        waits.push((segment.now_ns - before_ns) / MS);
        let wanted = segment
            .sent
            .last()
            .expect("a probe")
            .frame
            .port
            .id
            .n_port_id;
        let reply = frame(port(WEAKER, wanted), ProbeReply);
        segment.inject(0, &bytes(&reply, enode(5), 0));
    }
    assert!(waits[..11].iter().all(|wait| *wait <= 100), "{waits:?}");
    assert!(waits[11..].iter().all(|wait| *wait == 10_000), "{waits:?}");
    segment.advance(30 * S);
    assert_eq!(segment.state(0), Vn2vnState::Up);
    let own = segment.id(0);
    let taken = frame(port(STRONGER, own), Beacon);
    segment.inject(0, &bytes(&taken, ALL, 0));
    segment.advance(100 * MS);
    assert_eq!(segment.state(0), Vn2vnState::Probe1);
}

#[test]
fn repeated_claim_does_not_delay_up() {
    let mut segment = alone(Vn2vnState::Claim);
    for _ in 0..4 {
        segment.inject(0, &contender(WEAKER, ClaimNotification(claim(2158))));
        segment.advance(100 * MS);
    }
    assert_eq!(segment.count(0, Vn2vnCounter::Defended), 4);
    assert_eq!(segment.state(0), Vn2vnState::Up);
}

/// Frames arrive in bursts: frames queued for one N_Port_ID are not sent after it was lost.
#[test]
fn queued_frames_are_dropped_with_the_id() {
    let segment = &mut alone(Vn2vnState::Up);
    let now_ns = segment.now_ns + S;
    let machine = &mut segment.stations[0].machine;
    let other = frame(port(STRONGER, id(9)), ClaimNotification(claim(2158)));
    machine.handle_frame(now_ns, &contender(WEAKER, ProbeRequest));
    machine.handle_frame(now_ns, &bytes(&other, ALL, 0));
    machine.handle_frame(now_ns, &contender(WEAKER, ClaimNotification(claim(2158))));
    machine.handle_frame(now_ns, &contender(STRONGER, Beacon));
    assert_eq!(machine.state(), Vn2vnState::Start);
    assert_eq!(machine.poll_outbound(), None);
    assert_eq!(machine.poll_event(), Some(Vn2vnEvent::Lost));
    assert_eq!(machine.poll_event(), None);
}

/// The owner need not poll after every frame: its events describe the current state, in a consistent order.
#[test]
fn late_poll_returns_events_of_the_current_state() {
    let mut machine = crate::vn2vn::Vn2vn::new(config(5, 7), 19);
    let run = |machine: &mut crate::vn2vn::Vn2vn| {
        while let Some(due_ns) = machine.poll_timeout().filter(|due_ns| *due_ns < 5 * S) {
            machine.handle_timeout(due_ns);
            while machine.poll_outbound().is_some() {}
        }
    };
    machine.start(0);
    run(&mut machine);
    // Lost and regained before the events were taken.
    machine.stop(5 * S);
    machine.start(0);
    run(&mut machine);
    assert_eq!(machine.poll_event(), Some(Vn2vnEvent::Claimed(id(7))));
    assert_eq!(machine.poll_event(), Some(Vn2vnEvent::Up(id(7))));
    assert_eq!(machine.poll_event(), None);
    // The same after the events were taken: Lost is reported, which removes the earlier neighbours.
    machine.stop(5 * S);
    machine.start(0);
    run(&mut machine);
    let reported: Vec<_> = std::iter::from_fn(|| machine.poll_event()).collect();
    let events = [
        Vn2vnEvent::Lost,
        Vn2vnEvent::Claimed(id(7)),
        Vn2vnEvent::Up(id(7)),
    ];
    assert_eq!(reported, events);
}
