//! The neighbour table: paths, age, conflicts, limits.

use fcvi_frame::fip::Vn2vnMessage::{Beacon, ClaimNotification, ClaimResponse};
use fcvi_frame::fip::VnPort;

use super::segment::{ALL, MS, S, Segment, bytes, claim, config, enode, frame, id, port};
use crate::Neighbour;
use crate::vn2vn::{GoneReason, Vn2vnConfig, Vn2vnCounter, Vn2vnEvent, Vn2vnState};

/// Returns a segment whose station 0 is number 5, has 00.00.07, and is up.
fn alone() -> Segment {
    alone_with(config(5, 7))
}

fn alone_with(config: Vn2vnConfig) -> Segment {
    let mut segment = Segment::up(vec![config], 5);
    segment.take_sent();
    segment.events(0);
    segment
}

fn inject_claim(segment: &mut Segment, number: u8, low: u16) {
    let notification = frame(port(number, id(low)), ClaimNotification(claim(2158)));
    segment.inject(0, &bytes(&notification, ALL, 0));
}

fn inject_response(segment: &mut Segment, number: u8, low: u16, pdu_bytes: usize) {
    let response = frame(port(number, id(low)), ClaimResponse(claim(2158)));
    segment.inject(0, &bytes(&response, enode(5), pdu_bytes));
}

fn inject_beacon(segment: &mut Segment, number: u8, low: u16) {
    let beacon = frame(port(number, id(low)), Beacon);
    segment.inject(0, &bytes(&beacon, ALL, 0));
}

/// Returns the known neighbours as number and low bits of the N_Port_ID.
fn known(segment: &Segment) -> Vec<(u8, u32)> {
    let neighbours = segment.neighbours(0);
    let known = neighbours
        .iter()
        .map(|n| ((n.port_name >> 32) as u8, n.id.get()));
    known.collect()
}

/// Takes the events and returns the neighbours reported as gone: number and reason.
fn gone(segment: &mut Segment) -> Vec<(u8, GoneReason)> {
    let events = segment.events(0).into_iter();
    let gone = events.filter_map(|event| match event {
        Vn2vnEvent::NeighbourGone {
            port_name, reason, ..
        } => Some(((port_name >> 32) as u8, reason)),
        _ => None,
    });
    gone.collect()
}

fn ready(events: &[Vn2vnEvent]) -> Vec<Neighbour> {
    let ready = events.iter().filter_map(|event| match event {
        Vn2vnEvent::NeighbourReady(neighbour) => Some(*neighbour),
        _ => None,
    });
    ready.collect()
}

#[test]
fn a_claim_is_answered_with_a_padded_response_and_its_path_tested() {
    for (own, theirs, padded_bytes) in [(2158, 2158, 2158), (1500, 2158, 1500), (2158, 900, 900)] {
        let mut segment = alone_with(Vn2vnConfig {
            max_fcoe_bytes: own,
            ..config(5, 7)
        });
        let notification = frame(port(6, id(8)), ClaimNotification(claim(theirs)));
        segment.inject(0, &bytes(&notification, ALL, 0));
        let [response, test] = &segment.sent[..] else {
            panic!("two frames: {:?}", segment.sent);
        };
        assert_eq!((response.dst, test.dst), (enode(6), enode(6)));
        assert_eq!(response.frame.message.subcode(), 4);
        assert_eq!(response.frame_bytes, 14 + padded_bytes);
        let claimed = response.frame.message.claim().expect("a claim");
        assert_eq!(claimed.max_fcoe_bytes, own);
        assert_eq!(test.frame.message.subcode(), 3);
        let requested = test.frame.message.claim().expect("a claim");
        assert_eq!(usize::from(requested.max_fcoe_bytes), padded_bytes);
        let expected = Neighbour {
            id: id(8),
            port_name: 0x2000_0006_0000_0000,
            node_name: 0x1006,
            enode_mac: enode(6),
            max_fcoe_bytes: theirs,
            path_fcoe_bytes: None,
            supports_fc4: false,
        };
        assert_eq!(segment.neighbours(0), [expected]);
        assert_eq!(expected.data_field_bytes(), (theirs - 46) & !3);
        assert_eq!(segment.events(0), [Vn2vnEvent::NeighbourFound(expected)]);
    }
}

#[test]
fn neighbour_is_ready_after_its_beacon_and_padded_response() {
    for beacon_first in [true, false] {
        let mut segment = alone();
        inject_claim(&mut segment, 6, 8);
        segment.events(0);
        let steps: [fn(&mut Segment); 2] = [
            |s| inject_beacon(s, 6, 8),
            |s| inject_response(s, 6, 8, 2158),
        ];
        let order = if beacon_first { [0, 1] } else { [1, 0] };
        steps[order[0]](&mut segment);
        assert_eq!(segment.events(0), []);
        steps[order[1]](&mut segment);
        let events = segment.events(0);
        let ready = ready(&events);
        assert_eq!((events.len(), ready.len()), (1, 1));
        assert_eq!(ready[0].path_fcoe_bytes, Some(2158));
        assert_eq!(ready[0].data_field_bytes(), 2112);
        inject_beacon(&mut segment, 6, 8);
        inject_response(&mut segment, 6, 8, 2158);
        assert_eq!(segment.events(0), [], "only once");
    }
}

#[test]
fn neighbour_ready_before_up_is_reported_at_up() {
    let mut segment = Segment::new(vec![config(5, 7)], 6);
    segment.start(0);
    while segment.state(0) != Vn2vnState::Claim {
        segment.advance(MS);
    }
    inject_response(&mut segment, 6, 8, 2158);
    inject_beacon(&mut segment, 6, 8);
    assert_eq!(ready(&segment.events(0)), []);
    segment.advance(400 * MS);
    let events = segment.events(0);
    assert_eq!(events[0], Vn2vnEvent::Up(id(7)));
    assert_eq!(ready(&events).len(), 1);
}

#[test]
fn path_with_a_small_mtu_uses_the_reduced_size() {
    let mut segment = Segment::new(vec![config(1, 1), config(2, 2)], 7);
    segment.stations[0].mtu_bytes = 1_600;
    for station in [0, 1] {
        segment.start(station);
    }
    segment.advance(20 * S);
    let path = |segment: &Segment, station| segment.neighbours(station)[0].path_fcoe_bytes;
    assert_eq!(path(&segment, 0), Some(1_500));
    assert_eq!(path(&segment, 1), Some(2_158));
    assert_eq!(ready(&segment.events(0))[0].data_field_bytes(), 1_452);
    assert_eq!(segment.count(0, Vn2vnCounter::PathReduced), 1);
    assert_eq!(segment.count(1, Vn2vnCounter::PathReduced), 0);
    assert_eq!(segment.neighbours(0)[0].max_fcoe_bytes, 2_158);
}

#[test]
fn neighbour_is_not_ready_without_a_padded_response() {
    let mut segment = alone();
    inject_claim(&mut segment, 6, 8);
    inject_beacon(&mut segment, 6, 8);
    segment.events(0);
    // Five tests of each size at intervals of 100 ms, then none.
    segment.advance(5 * S);
    let tests = |segment: &mut Segment| {
        let sent = segment.take_sent().into_iter();
        sent.filter(|sent| sent.starts_with("0 claim to 52"))
            .count()
    };
    assert_eq!(tests(&mut segment), 10);
    assert_eq!(segment.count(0, Vn2vnCounter::PathFailed), 1);
    assert_eq!(segment.events(0), []);
    // The next beacon repeats the test; a response without padding does not count.
    inject_beacon(&mut segment, 6, 8);
    inject_response(&mut segment, 6, 8, 0);
    assert_eq!(tests(&mut segment), 1);
    assert_eq!(segment.events(0), []);
    segment.advance(MS * 550);
    assert_eq!(tests(&mut segment), 5);
    inject_response(&mut segment, 6, 8, 1_500);
    assert_eq!(ready(&segment.events(0))[0].path_fcoe_bytes, Some(1_500));
}

#[test]
fn silent_neighbour_expires_after_two_and_a_half_beacon_intervals() {
    let mut segment = alone();
    inject_response(&mut segment, 6, 8, 2158);
    inject_beacon(&mut segment, 6, 8);
    segment.events(0);
    segment.advance(12 * S);
    inject_beacon(&mut segment, 6, 8);
    segment.advance(20 * S - 1);
    assert_eq!(gone(&mut segment), []);
    segment.advance(1);
    assert_eq!(gone(&mut segment), [(6, GoneReason::Silent)]);
    assert_eq!(segment.neighbours(0), []);
    segment.take_sent();
    inject_beacon(&mut segment, 6, 8);
    assert_eq!(segment.take_sent(), ["0 claim to all"]);
    inject_response(&mut segment, 6, 8, 2158);
    inject_beacon(&mut segment, 6, 8);
    assert_eq!(ready(&segment.events(0)).len(), 1);
}

/// Claims of number 6 with another N_Port_ID or interface, and of a port with precedence for its N_Port_ID.
fn contradictions() -> [Vec<u8>; 3] {
    let mut moved = port(6, id(8));
    moved.enode_mac = enode(60);
    [port(6, id(9)), moved, port(9, id(8))]
        .map(|port| bytes(&frame(port, ClaimNotification(claim(2158))), ALL, 0))
}

/// Returns a segment with number 6 at 00.00.08 as a neighbour that is ready, and unanswered.
fn with_neighbour() -> Segment {
    let mut segment = alone();
    inject_response(&mut segment, 6, 8, 2158);
    inject_beacon(&mut segment, 6, 8);
    segment.advance(S);
    segment.take_sent();
    segment.events(0);
    segment
}

#[test]
fn neighbour_that_a_claim_contradicts_stays_if_it_responds() {
    for contradiction in contradictions() {
        let mut segment = with_neighbour();
        segment.inject(0, &contradiction);
        assert_eq!(segment.count(0, Vn2vnCounter::DropContested), 1);
        let sent = segment.take_sent();
        assert!(
            sent.contains(&format!("0 claim to {}", enode(6))),
            "{sent:?}"
        );
        assert_eq!(known(&segment), [(6, 8)]);
        inject_response(&mut segment, 6, 8, 1_500);
        segment.advance(5 * S);
        assert_eq!(segment.events(0), []);
        assert_eq!(segment.neighbours(0)[0].path_fcoe_bytes, Some(2158));
        assert_eq!(segment.count(0, Vn2vnCounter::PathFailed), 0);
    }
}

#[test]
fn neighbour_that_a_claim_contradicts_is_replaced_if_it_does_not_respond() {
    for contradiction in contradictions() {
        let mut segment = with_neighbour();
        segment.inject(0, &contradiction);
        segment.take_sent();
        segment.advance(450 * MS);
        assert_eq!(known(&segment), [(6, 8)]);
        segment.advance(100 * MS);
        assert_eq!(gone(&mut segment), [(6, GoneReason::Changed)]);
        // The other port responds, and logs in.
        let sent = segment.take_sent();
        assert_eq!(
            sent[sent.len() - 2..],
            ["0 claim to all", "0 beacon to all"]
        );
        segment.inject(0, &contradiction);
        let now_known = segment.neighbours(0);
        assert_eq!(now_known.len(), 1);
        let identity = (known(&segment)[0], now_known[0].enode_mac);
        assert_ne!(identity, ((6, 8), enode(6)));
    }
}

/// The port verifies the login, and reports whether it was confirmed.
#[test]
fn logged_in_neighbour_that_a_claim_contradicts_is_doubted_and_stays() {
    let smaller = bytes(
        &frame(port(6, id(8)), ClaimNotification(claim(1000))),
        ALL,
        0,
    );
    for contradiction in contradictions().into_iter().chain([smaller]) {
        let mut segment = with_neighbour();
        segment.stations[0].machine.set_pinned(id(8), true);
        for _ in 0..3 {
            segment.inject(0, &contradiction);
            inject_beacon(&mut segment, 6, 8);
            segment.advance(5 * S);
        }
        let port_name = port(6, id(8)).id.port_name;
        assert_eq!(
            segment.events(0),
            [Vn2vnEvent::NeighbourDoubted { port_name }; 3]
        );
        assert_eq!(segment.count(0, Vn2vnCounter::Doubted), 3);
        assert_eq!(known(&segment), [(6, 8)]);
        segment.take_sent();
        let now_ns = segment.now_ns;
        segment.stations[0].machine.neighbour_denied(now_ns, id(8));
        segment.advance(MS);
        assert_eq!(known(&segment), []);
        assert_eq!(gone(&mut segment), []);
    }
}

/// A neighbour whose claim has another size or protocol, from the same addresses.
#[test]
fn neighbour_with_another_size_is_replaced() {
    let mut segment = with_neighbour();
    let smaller = frame(port(6, id(8)), ClaimNotification(claim(1000)));
    segment.inject(0, &bytes(&smaller, ALL, 0));
    assert_eq!(gone(&mut segment), [(6, GoneReason::Changed)]);
    assert_eq!(segment.neighbours(0)[0].max_fcoe_bytes, 1000);
    // A path test of the neighbour does not announce its size.
    let test = frame(port(6, id(8)), ClaimNotification(claim(500)));
    segment.inject(0, &bytes(&test, enode(5), 0));
    assert_eq!(gone(&mut segment), []);
    assert_eq!(segment.neighbours(0)[0].max_fcoe_bytes, 1000);
}

#[test]
fn beacon_with_another_address_or_name_does_not_count() {
    let differences: [fn(&mut VnPort); 3] = [
        |port| port.enode_mac = enode(60),
        |port| port.node_name += 1,
        |port| port.id.port_name += 1,
    ];
    for change in differences {
        let mut segment = alone();
        inject_response(&mut segment, 6, 8, 2158);
        segment.events(0);
        segment.advance(12 * S);
        segment.take_sent();
        let mut other = port(6, id(8));
        change(&mut other);
        segment.inject(0, &bytes(&frame(other, Beacon), ALL, 0));
        assert_eq!(segment.events(0), [], "not ready");
        assert_eq!(
            segment.take_sent(),
            ["0 claim to all"],
            "requests its claim"
        );
        segment.advance(8 * S);
        assert_eq!(gone(&mut segment), [(6, GoneReason::Silent)]);
    }
}

#[test]
fn id_conflict_of_neighbours_is_won_by_the_larger_name() {
    let mut segment = alone();
    inject_claim(&mut segment, 6, 8);
    inject_claim(&mut segment, 4, 8);
    assert_eq!(known(&segment), [(6, 8)]);
    assert_eq!(segment.count(0, Vn2vnCounter::DropContested), 1);
    segment.advance(2 * S);
    assert_eq!(gone(&mut segment), [], "not even doubted");
    // It missed a beacon: a port that claims its N_Port_ID now has probed for it without a response.
    segment.advance(8_500 * MS);
    inject_claim(&mut segment, 4, 8);
    assert_eq!(known(&segment), [(4, 8)]);
    assert_eq!(gone(&mut segment), [(6, GoneReason::Displaced)]);
}

#[test]
fn neighbours_are_ignored_before_the_claim() {
    for state in [Vn2vnState::Start, Vn2vnState::Probe1, Vn2vnState::Probe2] {
        let mut segment = Segment::new(vec![config(5, 7)], 8);
        segment.start(0);
        while segment.state(0) != state {
            segment.advance(MS);
        }
        segment.take_sent();
        inject_claim(&mut segment, 6, 8);
        inject_response(&mut segment, 6, 8, 2158);
        inject_beacon(&mut segment, 6, 8);
        assert_eq!(segment.count(0, Vn2vnCounter::DropTooEarly), 3);
        assert_eq!(
            (segment.neighbours(0).len(), segment.take_sent().len()),
            (0, 0)
        );
    }
}

#[test]
fn lost_id_removes_all_neighbours_with_one_event() {
    let mut segment = alone();
    inject_response(&mut segment, 6, 8, 2158);
    inject_beacon(&mut segment, 6, 8);
    segment.events(0);
    inject_beacon(&mut segment, 9, 7);
    assert_eq!(segment.events(0), [Vn2vnEvent::Lost]);
    assert_eq!(segment.neighbours(0), []);
}

/// Forged neighbours keep no new one out: a full table evicts one at random that is not logged in, whether it sent
/// beacons or not.
#[test]
fn full_table_evicts_a_random_neighbour_that_is_not_logged_in() {
    let mut segment = alone_with(Vn2vnConfig {
        max_neighbours: 4,
        ..config(5, 7)
    });
    for number in [10, 11, 12, 13] {
        inject_claim(&mut segment, number, number.into());
        inject_beacon(&mut segment, number, number.into());
    }
    segment.stations[0].machine.set_pinned(id(11), true);
    segment.events(0);
    let mut evicted = std::collections::BTreeSet::new();
    for number in 20..60 {
        inject_claim(&mut segment, number, number.into());
        let known = known(&segment);
        assert!(known.contains(&(11, 11)) && known.contains(&(number, number.into())));
        assert_eq!(known.len(), 4);
        let gone = gone(&mut segment);
        let [(number, GoneReason::Evicted)] = gone[..] else {
            panic!("not one evicted neighbour: {gone:?}");
        };
        evicted.insert(number);
    }
    assert_eq!(evicted.len(), 40);
    assert!(!evicted.contains(&59) && !evicted.contains(&11));
    assert_eq!(segment.count(0, Vn2vnCounter::Evicted), 40);
    // All are logged in: none is evicted, and an unknown one is sent no claim.
    for (_, low) in known(&segment) {
        segment.stations[0].machine.set_pinned(id(low as u16), true);
    }
    segment.advance(S);
    segment.take_sent();
    inject_claim(&mut segment, 14, 0x14);
    inject_beacon(&mut segment, 15, 0x15);
    assert_eq!(gone(&mut segment), []);
    assert_eq!(segment.count(0, Vn2vnCounter::DropNeighboursFull), 2);
    let sent = segment.take_sent();
    assert!(!sent.contains(&"0 claim to all".to_string()), "{sent:?}");
}

/// Their slots are free only when the owner took the events.
#[test]
fn evicted_neighbours_that_were_not_reported_keep_out_no_others() {
    let mut segment = alone_with(Vn2vnConfig {
        max_neighbours: 4,
        ..config(5, 7)
    });
    for number in [10, 11, 12, 13] {
        inject_claim(&mut segment, number, number.into());
    }
    let now_ns = segment.now_ns;
    let machine = &mut segment.stations[0].machine;
    let capacities = machine.capacities();
    for number in 20..40 {
        let notification = frame(
            port(number, id(number.into())),
            ClaimNotification(claim(2158)),
        );
        machine.handle_frame(now_ns, &bytes(&notification, ALL, 0));
        assert!(machine.neighbours().any(|n| n.id == id(number.into())));
    }
    assert_eq!(machine.neighbours().count(), 4);
    assert_eq!(machine.capacities(), capacities);
}

/// Two ports of a host behind one interface, and one of another host.
#[test]
fn ports_that_share_an_interface_are_neighbours() {
    for echoes in [false, true] {
        let shared = Vn2vnConfig {
            enode_mac: enode(1),
            ..config(2, 2)
        };
        let mut segment = Segment::new(vec![config(1, 1), shared, config(3, 3)], 9);
        segment.echoes = echoes;
        for station in 0..3 {
            segment.start(station);
            segment.advance(200 * MS);
        }
        segment.advance(20 * S);
        for station in 0..3 {
            assert_eq!(segment.id(station), id(station as u16 + 1));
            assert_eq!(segment.count(station, Vn2vnCounter::Restarts), 0);
            let neighbours = segment.neighbours(station);
            assert_eq!(neighbours.len(), 2, "station {station}");
            assert!(neighbours.iter().all(|n| n.path_fcoe_bytes == Some(2158)));
            let events = segment.events(station);
            assert_eq!(ready(&events).len(), 2);
            let own = segment.count(station, Vn2vnCounter::DropOwn);
            assert_eq!(own > 0, echoes);
        }
    }
}

/// The same, but both request the same N_Port_ID; unicast responses to one reach the other.
#[test]
fn ports_that_share_an_interface_resolve_id_conflicts() {
    let shared = Vn2vnConfig {
        enode_mac: enode(1),
        ..config(2, 7)
    };
    let mut segment = Segment::new(vec![config(1, 7), shared, config(3, 7)], 10);
    segment.echoes = true;
    for station in 0..3 {
        segment.start(station);
    }
    segment.advance(20 * S);
    let mut ids: Vec<_> = (0..3).map(|station| segment.id(station)).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    assert!((0..3).all(|station| segment.neighbours(station).len() == 2));
}
