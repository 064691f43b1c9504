//! The table: paths, age, conflicts, limits.

use fcvi_frame::MacAddress;
use fcvi_frame::fip::Vn2vnMessage::{Beacon, ClaimNotification, ClaimResponse};
use fcvi_frame::fip::VnPort;

use super::segment::{ALL, MS, S, Segment, bytes, claim, config, enode, frame, id, port};
use crate::vn2vn::{GoneReason, Neighbour, Vn2vnConfig, Vn2vnCounter, Vn2vnEvent, Vn2vnState};

/// Station 0 is number 5 with 00.00.07, and up.
fn alone() -> Segment {
    alone_with(config(5, 7))
}

fn alone_with(config: Vn2vnConfig) -> Segment {
    let mut segment = Segment::up(vec![config], 5);
    segment.told();
    segment.events(0);
    segment
}

fn claims(segment: &mut Segment, number: u8, low: u16) {
    let notification = frame(port(number, id(low)), ClaimNotification(claim(2158)));
    segment.inject(0, &bytes(&notification, ALL, 0));
}

fn responds(segment: &mut Segment, number: u8, low: u16, pdu_bytes: usize) {
    let response = frame(port(number, id(low)), ClaimResponse(claim(2158)));
    segment.inject(0, &bytes(&response, enode(5), pdu_bytes));
}

fn beacons(segment: &mut Segment, number: u8, low: u16) {
    let beacon = frame(port(number, id(low)), Beacon);
    segment.inject(0, &bytes(&beacon, ALL, 0));
}

/// As number and low bits of the N_Port_ID.
fn known(segment: &Segment) -> Vec<(u8, u32)> {
    let neighbours = segment.neighbours(0);
    let known = neighbours
        .iter()
        .map(|n| ((n.port_name >> 32) as u8, n.id.get()));
    known.collect()
}

/// Ends that were reported: number and reason.
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

fn heard(events: &[Vn2vnEvent]) -> Vec<Neighbour> {
    let heard = events.iter().filter_map(|event| match event {
        Vn2vnEvent::NeighbourHeard(neighbour) => Some(*neighbour),
        _ => None,
    });
    heard.collect()
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
        let asked = test.frame.message.claim().expect("a claim");
        assert_eq!(usize::from(asked.max_fcoe_bytes), padded_bytes);
        let expected = Neighbour {
            id: id(8),
            port_name: 0x2000_0006_0000_0000,
            node_name: 0x1006,
            enode_mac: enode(6),
            vn_port_mac: MacAddress::vn2vn(id(8)),
            max_fcoe_bytes: theirs,
            path_fcoe_bytes: None,
            supports_fc_vi: false,
        };
        assert_eq!(segment.neighbours(0), [expected]);
        assert_eq!(expected.data_field_bytes(), 0);
        assert_eq!(segment.events(0), [Vn2vnEvent::NeighbourFound(expected)]);
    }
}

#[test]
fn a_neighbour_is_heard_when_its_beacon_and_its_padded_response_came() {
    for beacon_first in [true, false] {
        let mut segment = alone();
        claims(&mut segment, 6, 8);
        segment.events(0);
        let steps: [fn(&mut Segment); 2] = [|s| beacons(s, 6, 8), |s| responds(s, 6, 8, 2158)];
        let order = if beacon_first { [0, 1] } else { [1, 0] };
        steps[order[0]](&mut segment);
        assert_eq!(segment.events(0), []);
        steps[order[1]](&mut segment);
        let events = segment.events(0);
        let heard = heard(&events);
        assert_eq!((events.len(), heard.len()), (1, 1));
        assert_eq!(heard[0].path_fcoe_bytes, Some(2158));
        assert_eq!(heard[0].data_field_bytes(), 2112);
        beacons(&mut segment, 6, 8);
        responds(&mut segment, 6, 8, 2158);
        assert_eq!(segment.events(0), [], "only once");
    }
}

#[test]
fn a_neighbour_heard_before_we_are_up_is_told_when_we_are() {
    let mut segment = Segment::new(vec![config(5, 7)], 6);
    segment.start(0);
    while segment.state(0) != Vn2vnState::Claim {
        segment.advance(MS);
    }
    responds(&mut segment, 6, 8, 2158);
    beacons(&mut segment, 6, 8);
    assert_eq!(heard(&segment.events(0)), []);
    segment.advance(400 * MS);
    let events = segment.events(0);
    assert_eq!(events[0], Vn2vnEvent::Up(id(7)));
    assert_eq!(heard(&events).len(), 1);
}

#[test]
fn a_path_that_is_too_narrow_for_the_full_size_is_used_at_the_smaller_one() {
    let mut segment = Segment::new(vec![config(1, 1), config(2, 2)], 7);
    segment.stations[0].mtu_bytes = 1_600;
    for station in [0, 1] {
        segment.start(station);
    }
    segment.advance(20 * S);
    let path = |segment: &Segment, station| segment.neighbours(station)[0].path_fcoe_bytes;
    assert_eq!(path(&segment, 0), Some(1_500));
    assert_eq!(path(&segment, 1), Some(2_158));
    assert_eq!(heard(&segment.events(0))[0].data_field_bytes(), 1_452);
    assert_eq!(segment.count(0, Vn2vnCounter::PathReduced), 1);
    assert_eq!(segment.count(1, Vn2vnCounter::PathReduced), 0);
    assert_eq!(segment.neighbours(0)[0].max_fcoe_bytes, 2_158);
}

#[test]
fn a_neighbour_whose_padded_response_never_comes_is_not_heard_until_it_does() {
    let mut segment = alone();
    claims(&mut segment, 6, 8);
    beacons(&mut segment, 6, 8);
    segment.events(0);
    // Five tests of each size, a tenth of a second apart, then silence.
    segment.advance(5 * S);
    let tests = |segment: &mut Segment| {
        let told = segment.told().into_iter();
        told.filter(|told| told.starts_with("0 claim to 52"))
            .count()
    };
    assert_eq!(tests(&mut segment), 10);
    assert_eq!(segment.count(0, Vn2vnCounter::PathFailed), 1);
    assert_eq!(segment.events(0), []);
    // The next beacon tries again; a response that is not padded says nothing.
    beacons(&mut segment, 6, 8);
    responds(&mut segment, 6, 8, 0);
    assert_eq!(tests(&mut segment), 1);
    assert_eq!(segment.events(0), []);
    segment.advance(MS * 550);
    assert_eq!(tests(&mut segment), 5);
    responds(&mut segment, 6, 8, 1_500);
    assert_eq!(heard(&segment.events(0))[0].path_fcoe_bytes, Some(1_500));
}

#[test]
fn a_silent_neighbour_is_gone_after_two_and_a_half_beacons_and_can_come_back() {
    let mut segment = alone();
    responds(&mut segment, 6, 8, 2158);
    beacons(&mut segment, 6, 8);
    segment.events(0);
    segment.advance(12 * S);
    beacons(&mut segment, 6, 8);
    segment.advance(20 * S - 1);
    assert_eq!(gone(&mut segment), []);
    segment.advance(1);
    assert_eq!(gone(&mut segment), [(6, GoneReason::Silent)]);
    assert_eq!(segment.neighbours(0), []);
    segment.told();
    beacons(&mut segment, 6, 8);
    assert_eq!(segment.told(), ["0 claim to all"]);
    responds(&mut segment, 6, 8, 2158);
    beacons(&mut segment, 6, 8);
    assert_eq!(heard(&segment.events(0)).len(), 1);
}

#[test]
fn a_neighbour_with_another_id_address_or_size_is_another_one() {
    let mut segment = alone();
    claims(&mut segment, 6, 8);
    segment.events(0);
    claims(&mut segment, 6, 9);
    assert_eq!(gone(&mut segment), [(6, GoneReason::Changed)]);
    assert_eq!(known(&segment), [(6, 9)]);
    let mut moved = port(6, id(9));
    moved.enode_mac = enode(60);
    let moved = frame(moved, ClaimNotification(claim(2158)));
    segment.inject(0, &bytes(&moved, ALL, 0));
    assert_eq!(gone(&mut segment), [(6, GoneReason::Changed)]);
    claims(&mut segment, 6, 9);
    assert_eq!(gone(&mut segment), [(6, GoneReason::Changed)]);
    let smaller = frame(port(6, id(9)), ClaimNotification(claim(1000)));
    segment.inject(0, &bytes(&smaller, ALL, 0));
    assert_eq!(gone(&mut segment), [(6, GoneReason::Changed)]);
    // But the other end's test of its path says nothing about its size.
    let test = frame(port(6, id(9)), ClaimNotification(claim(500)));
    segment.inject(0, &bytes(&test, enode(5), 0));
    assert_eq!(gone(&mut segment), []);
    assert_eq!(segment.neighbours(0)[0].max_fcoe_bytes, 1000);
}

#[test]
fn a_beacon_from_elsewhere_is_not_the_neighbours() {
    let differences: [fn(&mut VnPort); 3] = [
        |port| port.enode_mac = enode(60),
        |port| port.node_name += 1,
        |port| port.id.port_name += 1,
    ];
    for change in differences {
        let mut segment = alone();
        responds(&mut segment, 6, 8, 2158);
        segment.events(0);
        segment.advance(12 * S);
        segment.told();
        let mut other = port(6, id(8));
        change(&mut other);
        segment.inject(0, &bytes(&frame(other, Beacon), ALL, 0));
        assert_eq!(segment.events(0), [], "not heard");
        assert_eq!(segment.told(), ["0 claim to all"], "who is it?");
        segment.advance(8 * S);
        assert_eq!(gone(&mut segment), [(6, GoneReason::Silent)]);
    }
}

#[test]
fn of_two_neighbours_with_one_id_the_larger_name_has_it_while_it_is_there() {
    let mut segment = alone();
    claims(&mut segment, 6, 8);
    claims(&mut segment, 4, 8);
    assert_eq!(known(&segment), [(6, 8)]);
    assert_eq!(segment.count(0, Vn2vnCounter::DropContested), 1);
    claims(&mut segment, 9, 8);
    assert_eq!(known(&segment), [(9, 8)]);
    assert_eq!(gone(&mut segment), [(6, GoneReason::Displaced)]);
    // It missed a beacon: whoever claims its N_Port_ID now probed for it without an answer.
    segment.advance(8_500 * MS);
    claims(&mut segment, 4, 8);
    assert_eq!(known(&segment), [(4, 8)]);
    assert_eq!(gone(&mut segment), [(9, GoneReason::Displaced)]);
}

#[test]
fn nothing_is_known_of_others_before_we_have_an_id() {
    for state in [Vn2vnState::Start, Vn2vnState::Probe1, Vn2vnState::Probe2] {
        let mut segment = Segment::new(vec![config(5, 7)], 8);
        segment.start(0);
        while segment.state(0) != state {
            segment.advance(MS);
        }
        segment.told();
        claims(&mut segment, 6, 8);
        responds(&mut segment, 6, 8, 2158);
        beacons(&mut segment, 6, 8);
        assert_eq!(segment.count(0, Vn2vnCounter::DropTooEarly), 3);
        assert_eq!((segment.neighbours(0).len(), segment.told().len()), (0, 0));
    }
}

#[test]
fn who_loses_its_id_loses_its_neighbours_with_one_word() {
    let mut segment = alone();
    responds(&mut segment, 6, 8, 2158);
    beacons(&mut segment, 6, 8);
    segment.events(0);
    beacons(&mut segment, 9, 7);
    assert_eq!(segment.events(0), [Vn2vnEvent::Lost]);
    assert_eq!(segment.neighbours(0), []);
}

#[test]
fn a_full_table_makes_room_for_claims_but_keeps_those_that_send_beacons() {
    let mut segment = alone_with(Vn2vnConfig {
        max_neighbours: 3,
        ..config(5, 7)
    });
    for (number, low) in [(10, 0x10), (11, 0x11), (12, 0x12)] {
        claims(&mut segment, number, low);
        segment.advance(MS);
    }
    beacons(&mut segment, 10, 0x10);
    segment.events(0);
    // The oldest one without a beacon ends; its place is free when that was told.
    claims(&mut segment, 13, 0x13);
    assert_eq!(gone(&mut segment), [(11, GoneReason::Evicted)]);
    assert_eq!(segment.count(0, Vn2vnCounter::DropNeighboursFull), 1);
    claims(&mut segment, 13, 0x13);
    assert_eq!(known(&segment), [(10, 0x10), (12, 0x12), (13, 0x13)]);
    for (number, low) in [(12, 0x12), (13, 0x13)] {
        beacons(&mut segment, number, low);
    }
    segment.advance(S);
    segment.told();
    claims(&mut segment, 14, 0x14);
    beacons(&mut segment, 15, 0x15);
    assert_eq!(known(&segment), [(10, 0x10), (12, 0x12), (13, 0x13)]);
    assert_eq!(segment.count(0, Vn2vnCounter::DropNeighboursFull), 3);
    let told = segment.told();
    assert!(!told.contains(&"0 claim to all".to_string()), "{told:?}");
}

/// Two ports of a host behind one interface, and one of another host.
#[test]
fn ports_that_share_an_interface_are_neighbours_as_all_others_are() {
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
            assert_eq!(heard(&events).len(), 2);
            let own = segment.count(station, Vn2vnCounter::DropOwn);
            assert_eq!(own > 0, echoes);
        }
    }
}

/// The same, but both want the same N_Port_ID; unicast answers to one reach the other.
#[test]
fn ports_that_share_an_interface_settle_their_conflicts() {
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
