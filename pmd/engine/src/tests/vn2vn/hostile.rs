//! Frames that are wrong, forged, or too many.

use fcvi_frame::MacAddress;
use fcvi_frame::fip::Vn2vnMessage::{Beacon, ClaimNotification, ClaimResponse, ProbeRequest};

use super::segment::{ALL, S, Segment, bytes, claim, config, enode, frame, id, port};
use crate::testkit::rng::Rng;
use crate::vn2vn::{Vn2vn, Vn2vnConfig, Vn2vnCounter, Vn2vnState};

fn alone() -> Segment {
    let mut segment = Segment::up(vec![config(5, 7)], 11);
    segment.told();
    segment
}

/// Refused with this counter and nothing else: no frame, no event, no neighbour.
fn is_refused(bytes: &[u8], counter: Vn2vnCounter) {
    let mut segment = alone();
    segment.events(0);
    segment.inject(0, bytes);
    assert_eq!(segment.count(0, counter), 1, "{counter:?}");
    assert_eq!(segment.told(), [""; 0], "{counter:?}");
    assert_eq!(segment.events(0), [], "{counter:?}");
    assert_eq!(segment.neighbours(0), [], "{counter:?}");
    assert_eq!(segment.state(0), Vn2vnState::Up, "{counter:?}");
}

#[test]
fn every_kind_of_wrong_frame_has_its_counter() {
    let good = frame(port(6, id(8)), ClaimNotification(claim(2158)));
    let wire = |dst| bytes(&good, dst, 0);
    let mut segment = alone();
    segment.inject(0, &wire(ALL));
    segment.inject(0, &wire(enode(5)));
    assert_eq!(segment.count(0, Vn2vnCounter::Rx), 2);

    is_refused(&wire(ALL)[..231], Vn2vnCounter::DropMalformed);
    is_refused(&[], Vn2vnCounter::DropMalformed);
    let mut other = wire(ALL);
    other[13] = 0x06;
    is_refused(&other, Vn2vnCounter::DropMalformed);
    for dst in [enode(6), MacAddress::BROADCAST, MacAddress::vn2vn(id(7))] {
        is_refused(&wire(dst), Vn2vnCounter::DropBadDestination);
    }
    for (at, value) in [(17, 2), (17, 1), (19, 9)] {
        let mut other = wire(ALL);
        other[at] = value;
        is_refused(&other, Vn2vnCounter::DropOtherOperation);
    }
    let mut other = wire(ALL);
    other[44] = 99;
    is_refused(&other, Vn2vnCounter::DropBadDescriptor);
    let mut small = good;
    small.message = ClaimNotification(claim(301));
    is_refused(&bytes(&small, ALL, 0), Vn2vnCounter::DropTooSmall);
}

#[test]
fn addresses_and_identities_must_agree() {
    let claims = ClaimNotification(claim(2158));
    let mut other = bytes(&frame(port(6, id(8)), claims), ALL, 0);
    other[11] ^= 1;
    is_refused(&other, Vn2vnCounter::DropBadAddress);
    // A beacon comes from the VN_Port, not from the interface.
    let mut beacon = bytes(&frame(port(6, id(8)), Beacon), ALL, 0);
    beacon[6..12].copy_from_slice(&enode(6).0);
    is_refused(&beacon, Vn2vnCounter::DropBadAddress);
    let mut wrong = port(6, id(8));
    wrong.id.mac = MacAddress::vn2vn(id(9));
    let wrong = bytes(&frame(wrong, claims), ALL, 0);
    is_refused(&wrong, Vn2vnCounter::DropBadAddress);
    let mut group = port(6, id(8));
    group.enode_mac = ALL;
    let group = bytes(&frame(group, claims), ALL, 0);
    is_refused(&group, Vn2vnCounter::DropBadAddress);
    for never in [0, 0xFFFF, 0x01_0000, 0xFF_FFFF] {
        let never = fcvi_frame::NPortId::new(never).expect("24 bits");
        let never = bytes(&frame(port(6, never), claims), ALL, 0);
        is_refused(&never, Vn2vnCounter::DropBadIdentity);
    }
    let mut nameless = port(6, id(8));
    nameless.id.port_name = 0;
    let nameless = bytes(&frame(nameless, claims), ALL, 0);
    is_refused(&nameless, Vn2vnCounter::DropBadIdentity);
    let probe = bytes(&frame(port(6, id(8)), ProbeRequest), ALL, 0);
    is_refused(&probe, Vn2vnCounter::DropOtherId);
}

#[test]
fn our_own_frames_that_come_back_are_nothing_to_us() {
    let mut own = port(5, id(7));
    own.id.port_name = config(5, 7).port_name;
    for message in [ProbeRequest, ClaimNotification(claim(2158)), Beacon] {
        is_refused(&bytes(&frame(own, message), ALL, 0), Vn2vnCounter::DropOwn);
    }
}

#[test]
fn a_port_with_our_name_is_no_neighbour_but_cannot_have_our_id() {
    let mut twin = port(5, id(8));
    twin.id.port_name = config(5, 7).port_name;
    twin.enode_mac = enode(50);
    let elsewhere = bytes(&frame(twin, ClaimNotification(claim(2158))), ALL, 0);
    is_refused(&elsewhere, Vn2vnCounter::DropDuplicateName);

    // Two machines with the same name want the same N_Port_ID: the higher interface has it.
    let twin = Vn2vnConfig {
        enode_mac: enode(50),
        ..config(5, 7)
    };
    let mut segment = Segment::new(vec![config(5, 7), twin], 12);
    segment.start(0);
    segment.start(1);
    segment.advance(20 * S);
    assert_ne!(segment.id(0), segment.id(1));
    assert_eq!(
        (segment.neighbours(0).len(), segment.neighbours(1).len()),
        (0, 0)
    );
    assert!(segment.count(0, Vn2vnCounter::DropDuplicateName) > 0);
}

#[test]
fn a_stopped_port_takes_and_sends_nothing() {
    let mut segment = Segment::new(vec![config(5, 7)], 13);
    let notification = frame(port(6, id(7)), ClaimNotification(claim(2158)));
    segment.inject(0, &bytes(&notification, ALL, 0));
    segment.advance(100 * S);
    assert_eq!(segment.count(0, Vn2vnCounter::DropStopped), 1);
    assert_eq!((segment.told().len(), segment.events(0).len()), (0, 0));
}

#[test]
fn the_same_answer_waits_only_once() {
    let mut segment = alone();
    let now_ns = segment.now_ns;
    let machine = &mut segment.stations[0].machine;
    let notification = frame(port(6, id(8)), ClaimNotification(claim(2158)));
    for _ in 0..100 {
        machine.handle_frame(now_ns, &bytes(&notification, ALL, 0));
    }
    // The response, and the test of the path.
    let sent: Vec<_> = std::iter::from_fn(|| machine.poll_outbound()).collect();
    assert_eq!(sent.len(), 2);
    assert_eq!(machine.counters().get(Vn2vnCounter::AnswersFull), 0);
}

#[test]
fn every_counter_has_a_name_of_its_own() {
    let segment = alone();
    let counters = segment.stations[0].machine.counters();
    let names: std::collections::BTreeSet<_> = counters.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), Vn2vnCounter::ALL.len());
    assert!(names.iter().all(|name| name.starts_with("vn2vn_")));
    let sent: u64 = counters
        .iter()
        .filter(|(name, _)| name.contains("_tx_"))
        .map(|(_, n)| n)
        .sum();
    assert_eq!(sent, 5, "two probes, a claim, two beacons");
}

/// Takes nothing out of a machine that is flooded: what it keeps is bounded.
#[test]
fn a_flood_makes_nothing_grow_and_is_answered_at_a_bounded_rate() {
    let seed = 0xF100D;
    println!("seed {seed:#x}");
    let mut rng = Rng::new(seed);
    let mut segment = alone();
    let mut now_ns = segment.now_ns;
    let machine = &mut segment.stations[0].machine;
    let places = machine.places();
    for _ in 0..100_000 {
        let who = port(rng.below(240) as u8 + 6, id(rng.below(0xFFF0) as u16 + 8));
        let message = match rng.below(3) {
            0 => ClaimNotification(claim(2158)),
            1 => ClaimResponse(claim(2158)),
            _ => Beacon,
        };
        machine.handle_frame(now_ns, &bytes(&frame(who, message), ALL, 0));
        now_ns += 1_000;
        if rng.below(1_000) == 0 {
            machine.handle_timeout(now_ns);
        }
    }
    assert!(machine.neighbours().count() <= 256);
    let mut frames = 0;
    while machine.poll_outbound().is_some() {
        frames += 1;
    }
    // Claim, beacon, 64 answers, and a test for each neighbour.
    assert!(frames <= 2 + 64 + 256, "{frames}");
    let mut events = 0;
    while machine.poll_event().is_some() {
        events += 1;
    }
    assert!(events <= 3 * 256, "{events}");
    assert_eq!(machine.places(), places, "no allocation");
    assert!(machine.counters().get(Vn2vnCounter::AnswersFull) > 0);

    // A tenth of a second of claims, all taken out: no more answers than a second may have.
    let count = |machine: &Vn2vn| machine.counters().get(Vn2vnCounter::TxClaimResponses);
    now_ns += 2 * S;
    let before = count(machine);
    for number in 0..10_000_u32 {
        let who = port(6 + (number % 200) as u8, id(8 + (number % 5_000) as u16));
        let notification = frame(who, ClaimNotification(claim(2158)));
        machine.handle_frame(now_ns, &bytes(&notification, ALL, 0));
        while machine.poll_outbound().is_some() {}
        while machine.poll_event().is_some() {}
        now_ns += 10_000;
    }
    assert_eq!(count(machine) - before, 1024);
    assert!(machine.counters().get(Vn2vnCounter::AnswersLimited) > 8_000);
    assert_eq!(machine.places(), places, "no allocation");
}

/// Probes are cheap: whoever sends many must not keep us from saying that we have our N_Port_ID.
#[test]
fn a_flood_of_probes_for_our_id_does_not_take_away_what_defends_it() {
    let mut segment = alone();
    for number in 0..5_000u32 {
        let mut prober = port(4, id(7));
        let [.., c, d] = number.to_be_bytes();
        prober.enode_mac = MacAddress([2, 9, 9, 9, c, d]);
        segment.inject(0, &bytes(&frame(prober, ProbeRequest), ALL, 0));
        segment.told();
    }
    assert!(segment.count(0, Vn2vnCounter::AnswersLimited) > 3_000);
    let weaker = bytes(
        &frame(port(4, id(7)), ClaimNotification(claim(2158))),
        ALL,
        0,
    );
    segment.inject(0, &weaker);
    assert_eq!(segment.told(), ["0 claim to all"]);
    assert_eq!(segment.count(0, Vn2vnCounter::Defended), 1);
    // So are claims: there is a limit for what answers them, too, and one claim answers many.
    for _ in 0..5_000 {
        segment.inject(0, &weaker);
    }
    let claims = segment.told();
    assert!(claims.len() < 16, "{}", claims.len());
    assert_eq!(segment.count(0, Vn2vnCounter::Defended), 16);
    assert_eq!(segment.count(0, Vn2vnCounter::DefencesLimited), 5_001 - 16);
    assert_eq!(segment.state(0), Vn2vnState::Up);
    segment.advance(S);
    segment.told();
    segment.inject(0, &weaker);
    assert_eq!(segment.told(), ["0 claim to all"]);
}

/// Frames with any bit changed, in every state: no panic, and the clock always has a next tick.
#[test]
fn damaged_frames_do_no_harm() {
    let seed = 0xDA4A6E;
    println!("seed {seed:#x}");
    let mut rng = Rng::new(seed);
    for round in 0..200 {
        let mut segment = Segment::new(vec![config(5, 7)], round);
        segment.start(0);
        for _ in 0..200 {
            let who = port(rng.below(8) as u8, id(rng.below(4) as u16 + 6));
            let message = match rng.below(5) {
                0 => ProbeRequest,
                1 => ClaimNotification(claim(rng.next() as u16)),
                2 => ClaimResponse(claim(2158)),
                3 => fcvi_frame::fip::Vn2vnMessage::ProbeReply,
                _ => Beacon,
            };
            let mut wire = bytes(&frame(who, message), ALL, rng.below(2200) as usize);
            for _ in 0..rng.below(4) {
                let at = rng.below(64) as usize;
                wire[at] ^= 1 << rng.below(8);
            }
            wire.truncate(wire.len() - rng.below(2) as usize * rng.below(64) as usize);
            segment.inject(0, &wire);
            segment.advance(rng.below(S / 10));
            let due_ns = segment.stations[0]
                .machine
                .poll_timeout()
                .expect("it goes on");
            assert!(due_ns > segment.now_ns);
        }
    }
}
