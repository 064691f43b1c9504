//! Invalid, forged and excessive frames.

use fcvi_frame::MacAddress;
use fcvi_frame::fip::Vn2vnMessage::{Beacon, ClaimNotification, ClaimResponse, ProbeRequest};

use super::segment::{ALL, S, Segment, bytes, claim, config, enode, frame, id, port};
use crate::vn2vn::{Vn2vn, Vn2vnConfig, Vn2vnCounter, Vn2vnState};
use protocol_testkit::rng::Rng;

fn alone() -> Segment {
    let mut segment = Segment::up(vec![config(5, 7)], 11);
    segment.take_sent();
    segment
}

/// Asserts that a frame is dropped with this counter and has no other effect: no frame, no event, no neighbour.
fn assert_dropped(bytes: &[u8], counter: Vn2vnCounter) {
    let mut segment = alone();
    segment.events(0);
    segment.inject(0, bytes);
    assert_eq!(segment.count(0, counter), 1, "{counter:?}");
    assert_eq!(segment.take_sent(), [""; 0], "{counter:?}");
    assert_eq!(segment.events(0), [], "{counter:?}");
    assert_eq!(segment.neighbours(0), [], "{counter:?}");
    assert_eq!(segment.state(0), Vn2vnState::Up, "{counter:?}");
}

#[test]
fn invalid_frames_are_dropped_with_their_counter() {
    let good = frame(port(6, id(8)), ClaimNotification(claim(2158)));
    let wire = |dst| bytes(&good, dst, 0);
    let mut segment = alone();
    segment.inject(0, &wire(ALL));
    segment.inject(0, &wire(enode(5)));
    assert_eq!(segment.count(0, Vn2vnCounter::Rx), 2);

    assert_dropped(&wire(ALL)[..231], Vn2vnCounter::DropMalformed);
    assert_dropped(&[], Vn2vnCounter::DropMalformed);
    let mut other = wire(ALL);
    other[13] = 0x06;
    assert_dropped(&other, Vn2vnCounter::DropMalformed);
    for dst in [enode(6), MacAddress::BROADCAST, MacAddress::vn2vn(id(7))] {
        assert_dropped(&wire(dst), Vn2vnCounter::DropBadDestination);
    }
    for (at, value) in [(17, 2), (17, 1), (19, 9)] {
        let mut other = wire(ALL);
        other[at] = value;
        assert_dropped(&other, Vn2vnCounter::DropOtherOperation);
    }
    let mut other = wire(ALL);
    other[44] = 99;
    assert_dropped(&other, Vn2vnCounter::DropBadDescriptor);
    let mut small = good;
    small.message = ClaimNotification(claim(301));
    assert_dropped(&bytes(&small, ALL, 0), Vn2vnCounter::DropTooSmall);
}

#[test]
fn frames_with_inconsistent_addresses_are_dropped() {
    let claims = ClaimNotification(claim(2158));
    let mut other = bytes(&frame(port(6, id(8)), claims), ALL, 0);
    other[11] ^= 1;
    assert_dropped(&other, Vn2vnCounter::DropBadAddress);
    // A beacon comes from the VN_Port, not from the interface.
    let mut beacon = bytes(&frame(port(6, id(8)), Beacon), ALL, 0);
    beacon[6..12].copy_from_slice(&enode(6).0);
    assert_dropped(&beacon, Vn2vnCounter::DropBadAddress);
    let mut wrong = port(6, id(8));
    wrong.id.mac = MacAddress::vn2vn(id(9));
    let wrong = bytes(&frame(wrong, claims), ALL, 0);
    assert_dropped(&wrong, Vn2vnCounter::DropBadAddress);
    let mut group = port(6, id(8));
    group.enode_mac = ALL;
    let group = bytes(&frame(group, claims), ALL, 0);
    assert_dropped(&group, Vn2vnCounter::DropBadAddress);
    for never in [0, 0xFFFF, 0x01_0000, 0xFF_FFFF] {
        let never = fcvi_frame::NPortId::new(never).expect("24 bits");
        let never = bytes(&frame(port(6, never), claims), ALL, 0);
        assert_dropped(&never, Vn2vnCounter::DropBadIdentity);
    }
    let mut nameless = port(6, id(8));
    nameless.id.port_name = 0;
    let nameless = bytes(&frame(nameless, claims), ALL, 0);
    assert_dropped(&nameless, Vn2vnCounter::DropBadIdentity);
    let probe = bytes(&frame(port(6, id(8)), ProbeRequest), ALL, 0);
    assert_dropped(&probe, Vn2vnCounter::DropOtherId);
}

#[test]
fn own_frames_are_dropped() {
    let mut own = port(5, id(7));
    own.id.port_name = config(5, 7).port_name;
    for message in [ProbeRequest, ClaimNotification(claim(2158)), Beacon] {
        assert_dropped(&bytes(&frame(own, message), ALL, 0), Vn2vnCounter::DropOwn);
    }
}

#[test]
fn port_with_the_same_name_is_no_neighbour_and_gets_another_id() {
    let mut twin = port(5, id(8));
    twin.id.port_name = config(5, 7).port_name;
    twin.enode_mac = enode(50);
    let elsewhere = bytes(&frame(twin, ClaimNotification(claim(2158))), ALL, 0);
    assert_dropped(&elsewhere, Vn2vnCounter::DropDuplicateName);

    // Two ports with the same name request the same N_Port_ID: the one with the higher MAC address keeps it.
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
fn stopped_port_receives_and_sends_nothing() {
    let mut segment = Segment::new(vec![config(5, 7)], 13);
    let notification = frame(port(6, id(7)), ClaimNotification(claim(2158)));
    segment.inject(0, &bytes(&notification, ALL, 0));
    segment.advance(100 * S);
    assert_eq!(segment.count(0, Vn2vnCounter::DropStopped), 1);
    assert_eq!((segment.take_sent().len(), segment.events(0).len()), (0, 0));
}

#[test]
fn identical_response_is_queued_once() {
    let mut segment = alone();
    let now_ns = segment.now_ns;
    let machine = &mut segment.stations[0].machine;
    let notification = frame(port(6, id(8)), ClaimNotification(claim(2158)));
    for _ in 0..100 {
        machine.handle_frame(now_ns, &bytes(&notification, ALL, 0));
    }
    // The response, and the path test.
    let sent: Vec<_> = std::iter::from_fn(|| machine.poll_outbound()).collect();
    assert_eq!(sent.len(), 2);
    assert_eq!(machine.counters().get(Vn2vnCounter::AnswersFull), 0);
}

#[test]
fn counter_names_are_unique() {
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

/// Floods a machine without taking its output: its state is bounded.
#[test]
fn flood_is_answered_at_a_bounded_rate_without_allocation() {
    let seed = 0xF100D;
    println!("seed {seed:#x}");
    let mut rng = Rng::new(seed);
    let mut segment = alone();
    let mut now_ns = segment.now_ns;
    let machine = &mut segment.stations[0].machine;
    let capacities = machine.capacities();
    for _ in 0..100_000 {
        let sender = port(rng.below(240) as u8 + 6, id(rng.below(0xFFF0) as u16 + 8));
        let message = match rng.below(3) {
            0 => ClaimNotification(claim(2158)),
            1 => ClaimResponse(claim(2158)),
            _ => Beacon,
        };
        machine.handle_frame(now_ns, &bytes(&frame(sender, message), ALL, 0));
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
    // Claim, beacon, 64 responses, and a path test for each neighbour.
    assert!(frames <= 2 + 64 + 256, "{frames}");
    let mut events = 0;
    while machine.poll_event().is_some() {
        events += 1;
    }
    assert!(events <= 3 * 256, "{events}");
    assert_eq!(machine.capacities(), capacities, "no allocation");
    assert!(machine.counters().get(Vn2vnCounter::AnswersFull) > 0);

    // Claims for a tenth of a second, with all output taken: at most the responses permitted in one second.
    let count = |machine: &Vn2vn| machine.counters().get(Vn2vnCounter::TxClaimResponses);
    now_ns += 2 * S;
    let before = count(machine);
    for number in 0..10_000_u32 {
        let sender = port(6 + (number % 200) as u8, id(8 + (number % 5_000) as u16));
        let notification = frame(sender, ClaimNotification(claim(2158)));
        machine.handle_frame(now_ns, &bytes(&notification, ALL, 0));
        while machine.poll_outbound().is_some() {}
        while machine.poll_event().is_some() {}
        now_ns += 10_000;
    }
    assert_eq!(count(machine) - before, 1024);
    assert!(machine.counters().get(Vn2vnCounter::AnswersLimited) > 8_000);
    assert_eq!(machine.capacities(), capacities, "no allocation");
}

/// Probes are cheap: a flood of them must not prevent the defence of the N_Port_ID.
#[test]
fn flood_of_probes_does_not_prevent_the_defence_of_the_id() {
    let mut segment = alone();
    for number in 0..5_000u32 {
        let mut prober = port(4, id(7));
        let [.., c, d] = number.to_be_bytes();
        prober.enode_mac = MacAddress([2, 9, 9, 9, c, d]);
        segment.inject(0, &bytes(&frame(prober, ProbeRequest), ALL, 0));
        segment.take_sent();
    }
    assert!(segment.count(0, Vn2vnCounter::AnswersLimited) > 3_000);
    let weaker = bytes(
        &frame(port(4, id(7)), ClaimNotification(claim(2158))),
        ALL,
        0,
    );
    segment.inject(0, &weaker);
    assert_eq!(segment.take_sent(), ["0 claim to all"]);
    assert_eq!(segment.count(0, Vn2vnCounter::Defended), 1);
    // Claims are cheap too: responses to them are limited, and one claim answers many.
    for _ in 0..5_000 {
        segment.inject(0, &weaker);
    }
    let claims = segment.take_sent();
    assert!(claims.len() < 16, "{}", claims.len());
    assert_eq!(segment.count(0, Vn2vnCounter::Defended), 16);
    assert_eq!(segment.count(0, Vn2vnCounter::DefencesLimited), 5_001 - 16);
    assert_eq!(segment.state(0), Vn2vnState::Up);
    segment.advance(S);
    segment.take_sent();
    let another = frame(port(3, id(7)), ClaimNotification(claim(2158)));
    segment.inject(0, &bytes(&another, ALL, 0));
    assert_eq!(segment.take_sent(), ["0 claim to all"]);
}

/// Returns a claim for 00.00.08 of number 6, which the tests below make a neighbour.
fn sixth() -> Vec<u8> {
    bytes(
        &frame(port(6, id(8)), ClaimNotification(claim(2158))),
        ALL,
        0,
    )
}

/// Floods of claims and of probes leave answers to a logged-in neighbour, and to each other.
#[test]
fn flood_in_other_names_leaves_answers_to_a_logged_in_neighbour() {
    let mut segment = alone();
    segment.inject(0, &sixth());
    segment.stations[0].machine.set_pinned(id(8), true);
    segment.advance(S);
    segment.take_sent();
    let now_ns = segment.now_ns;
    let machine = &mut segment.stations[0].machine;
    for number in 0..20_000u32 {
        let mut other = port(4, id(100 + (number % 5_000) as u16));
        let [.., c, d] = number.to_be_bytes();
        other.enode_mac = MacAddress([2, 9, 9, 9, c, d]);
        let message = ClaimNotification(claim(2158));
        machine.handle_frame(now_ns, &bytes(&frame(other, message), ALL, 0));
        if number % 2 == 0 {
            while machine.poll_outbound().is_some() {}
            while machine.poll_event().is_some() {}
        }
    }
    let sent = |machine: &mut Vn2vn| {
        let sent = std::iter::from_fn(|| machine.poll_outbound());
        sent.filter(|sent| sent.frame.message.subcode() != 3)
            .map(|sent| sent.dst)
            .collect::<Vec<_>>()
    };
    assert_eq!(sent(machine), []);
    // The limit of the others is reached; the queue of the others too.
    machine.handle_frame(now_ns, &sixth());
    assert_eq!(sent(machine), [enode(6)]);
    let prober = frame(port(4, id(7)), ProbeRequest);
    machine.handle_frame(now_ns, &bytes(&prober, ALL, 0));
    assert_eq!(sent(machine), [enode(4)]);
    for _ in 0..100 {
        machine.handle_frame(now_ns, &sixth());
        sent(machine);
    }
    assert_eq!(
        machine.counters().get(Vn2vnCounter::TxClaimResponses),
        1 + 1024 + 16
    );
}

#[test]
fn queue_full_of_answers_to_others_has_room_for_a_logged_in_neighbour() {
    let mut segment = alone();
    segment.inject(0, &sixth());
    segment.stations[0].machine.set_pinned(id(8), true);
    let now_ns = segment.now_ns;
    let machine = &mut segment.stations[0].machine;
    for number in 0..200u16 {
        let mut prober = port(4, id(7));
        let [c, d] = number.to_be_bytes();
        prober.enode_mac = MacAddress([2, 9, 9, 9, c, d]);
        machine.handle_frame(now_ns, &bytes(&frame(prober, ProbeRequest), ALL, 0));
    }
    assert!(machine.counters().get(Vn2vnCounter::AnswersFull) > 0);
    machine.handle_frame(now_ns, &sixth());
    let mut sent = std::iter::from_fn(|| machine.poll_outbound());
    assert!(sent.any(|sent| sent.dst == enode(6)));
}

/// One forged frame of a port with precedence must not take the N_Port_ID of a port that is in use.
#[test]
fn id_of_a_port_with_a_logged_in_neighbour_is_kept() {
    for message in [
        ClaimNotification(claim(2158)),
        ClaimResponse(claim(2158)),
        Beacon,
    ] {
        let mut segment = alone();
        segment.inject(0, &sixth());
        segment.stations[0].machine.set_pinned(id(8), true);
        segment.take_sent();
        segment.events(0);
        let mut twin = port(5, id(7));
        twin.id.port_name = config(5, 7).port_name;
        twin.enode_mac = MacAddress([0xFE; 6]);
        for other in [port(9, id(7)), twin] {
            segment.inject(0, &bytes(&frame(other, message), ALL, 0));
            assert_eq!(segment.take_sent(), ["0 claim to all"]);
        }
        assert_eq!(
            (segment.state(0), segment.events(0)),
            (Vn2vnState::Up, vec![])
        );
        assert_eq!(segment.count(0, Vn2vnCounter::Kept), 2);
        segment.stations[0].machine.set_pinned(id(8), false);
        segment.inject(0, &bytes(&frame(port(9, id(7)), message), ALL, 0));
        assert_eq!(segment.state(0), Vn2vnState::Start);
    }
}

/// The other port has logins, and so keeps the N_Port_ID although its name is smaller.
#[test]
fn port_without_logins_yields_to_one_that_ignores_its_claim() {
    let beacon = bytes(&frame(port(4, id(7)), Beacon), ALL, 0);
    let mut segment = alone();
    segment.inject(0, &beacon);
    segment.advance(S);
    assert_eq!(segment.state(0), Vn2vnState::Up);
    segment.inject(0, &beacon);
    assert_eq!(segment.state(0), Vn2vnState::Start);
    // A port with logins does not, nor one whose contender is another one, or was heard long ago.
    let mut segment = alone();
    segment.inject(0, &beacon);
    segment.advance(25 * S);
    segment.inject(0, &beacon);
    segment.inject(0, &bytes(&frame(port(3, id(7)), Beacon), ALL, 0));
    segment.inject(0, &sixth());
    segment.stations[0].machine.set_pinned(id(8), true);
    segment.advance(S);
    segment.inject(0, &bytes(&frame(port(3, id(7)), Beacon), ALL, 0));
    assert_eq!(segment.state(0), Vn2vnState::Up);
}

/// Frames with any bit changed, in every state: no panic, and there is always a next timeout.
#[test]
fn corrupted_frames_cause_no_panic() {
    let seed = 0xDA4A6E;
    println!("seed {seed:#x}");
    let mut rng = Rng::new(seed);
    for round in 0..200 {
        let mut segment = Segment::new(vec![config(5, 7)], round);
        segment.start(0);
        for _ in 0..200 {
            let sender = port(rng.below(8) as u8, id(rng.below(4) as u16 + 6));
            let message = match rng.below(5) {
                0 => ProbeRequest,
                1 => ClaimNotification(claim(rng.next_u64() as u16)),
                2 => ClaimResponse(claim(2158)),
                3 => fcvi_frame::fip::Vn2vnMessage::ProbeReply,
                _ => Beacon,
            };
            let mut wire = bytes(&frame(sender, message), ALL, rng.below(2200) as usize);
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
                .expect("a timeout");
            assert!(due_ns > segment.now_ns);
        }
    }
}
