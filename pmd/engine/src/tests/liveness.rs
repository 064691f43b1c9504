//! Peers that go, or are replaced, on a network that does not say so.

use fcvi_frame::els::Adisc;
use fcvi_frame::fcoe::{Eof, FCOE_TRAILER_BYTES};
use fcvi_frame::frame::seal;

use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, broken, config};
use crate::{Counter, EndpointState, Level, ViIndex};

const RD: Level = Level::ReliableDelivery;
const INTERVAL: u64 = S;

/// A connected pair that probes each other.
fn probing() -> (Net, ViIndex, ViIndex) {
    let configs = [CLIENT, SERVER].map(|node| {
        let mut config = config(node);
        config.probe_interval_ns = INTERVAL;
        config
    });
    let mut net = Net::new(configs.to_vec(), 8);
    let (a, b) = net.join(RD);
    net.clear_logs();
    // The first questions and answers are kept.
    net.wire.trace.retain(|sent| sent.opcode.is_none());
    (net, a, b)
}

/// ELS frames of a node on the wire.
fn els(net: &Net, node: usize) -> Vec<Vec<u8>> {
    let fits = |s: &&crate::testkit::wire::Sent| s.from == node && s.opcode.is_none();
    let frames = net.wire.trace.iter().filter(fits);
    frames.map(|s| s.bytes.clone()).collect()
}

/// Those of them that ask.
fn probes(net: &Net, node: usize) -> Vec<Vec<u8>> {
    const R_CTL: usize = 28;
    const ELS_REQUEST: u8 = 0x22;
    let mut frames = els(net, node);
    frames.retain(|frame| frame[R_CTL] == ELS_REQUEST);
    frames
}

#[test]
fn silent_peers_that_answer_stay_connected() {
    let (mut net, a, b) = probing();
    net.advance(100 * INTERVAL);
    assert_eq!(net.log(CLIENT, a), []);
    assert_eq!(net.log(SERVER, b), []);
    assert!(els(&net, CLIENT).len() >= 100);
    for node in [CLIENT, SERVER] {
        // An answered probe's OX_ID is dead like that of an unanswered one, for 20 s.
        let (open, dead) = net.nodes[node].engine.exchange_usage();
        assert!(open == 0 && (11..=20).contains(&dead), "{dead}");
    }
}

#[test]
fn a_peer_that_sends_is_asked_only_for_its_name() {
    let (mut net, a, b) = probing();
    for _ in 0..100 {
        net.advance(INTERVAL / 10);
        net.post_receive(SERVER, b, 8);
        net.post_send(CLIENT, a, b"tick");
    }
    assert_eq!(probes(&net, SERVER).len(), 1);
    assert!(probes(&net, CLIENT).len() > 3);
}

#[test]
fn a_peer_that_answers_no_probe_is_lost_in_bounded_time() {
    let (mut net, a, b) = probing();
    net.advance(3 * INTERVAL / 2);
    net.wire.cut = true;
    net.advance(5 * INTERVAL);
    assert_eq!(net.log(CLIENT, a), broken());
    assert_eq!(net.log(SERVER, b), broken());
    assert_eq!(net.count(CLIENT, Counter::PeersLost), 1);
    // Then it is quiet, and nothing stays behind.
    net.wire.trace.clear();
    net.advance(100 * INTERVAL);
    assert!(net.wire.trace.is_empty());
    assert_eq!(net.nodes[CLIENT].engine.timers.len(), 0);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
}

#[test]
fn two_lost_probes_lose_nobody() {
    let (mut net, a, _) = probing();
    net.advance(3 * INTERVAL / 2);
    net.wire.lose(CLIENT, None, 2);
    net.wire.lose(SERVER, None, 2);
    net.advance(10 * INTERVAL);
    assert_eq!(net.log(CLIENT, a), []);
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
}

#[test]
fn a_probe_that_the_port_had_no_room_for_does_not_count() {
    let (mut net, a, _) = probing();
    net.advance(3 * INTERVAL / 2);
    net.nodes[CLIENT].host.room = 0;
    net.advance(10 * INTERVAL);
    net.nodes[CLIENT].host.room = usize::MAX;
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
    assert!(net.count(CLIENT, Counter::ControlNoRoom) > 3);
}

#[test]
fn a_port_with_another_name_is_another_port() {
    let (mut net, a, b) = probing();
    net.advance(3 * INTERVAL / 2);
    net.nodes[SERVER].engine.config.port_name += 1;
    net.advance(2 * INTERVAL);
    assert_eq!(net.log(CLIENT, a), broken());
    assert_eq!(net.count(CLIENT, Counter::PeersLost), 1);
    assert_eq!(net.state(SERVER, b), EndpointState::Connected);
}

#[test]
fn a_port_that_takes_a_peers_place_at_once_is_another_port() {
    let (mut net, a, _) = probing();
    net.nodes[SERVER].engine.config.port_name += 1;
    net.advance(2 * INTERVAL);
    assert_eq!(net.log(CLIENT, a), broken());
}

/// The new port has the address of the old one; a connection with it is not the old one's.
#[test]
fn a_new_connection_does_not_inherit_the_name_of_the_port_before() {
    let (mut net, a, b) = probing();
    net.advance(3 * INTERVAL / 2);
    net.disconnect(CLIENT, a);
    net.settle();
    net.disconnect(SERVER, b);
    net.nodes[SERVER].engine.config.port_name += 1;
    net.connect(a, b);
    net.clear_logs();
    net.advance(10 * INTERVAL);
    assert_eq!(net.log(CLIENT, a), []);
}

fn adisc_from_server(net: &Net, port_name: u64) -> Vec<u8> {
    let mut frame = probes(net, SERVER)[0].clone();
    let adisc = Adisc {
        port_name,
        n_port_id: net.nodes[SERVER].id,
        ..Adisc::default()
    };
    let payload = frame.len() - FCOE_TRAILER_BYTES - Adisc::BYTES;
    let mut bytes = [0; Adisc::BYTES];
    adisc.emit_request(&mut bytes);
    frame[payload..payload + Adisc::BYTES].copy_from_slice(&bytes);
    let len = frame.len();
    seal(&mut frame, len, Eof::T).unwrap();
    frame
}

#[test]
fn a_claim_to_be_another_port_is_checked_and_breaks_nothing() {
    let (mut net, a, _) = probing();
    net.advance(3 * INTERVAL / 2);
    let forged = adisc_from_server(&net, 0xBAD);
    net.wire.trace.clear();
    net.inject(CLIENT, &forged);
    net.inject(CLIENT, &forged);
    // An answer to each claim, and one question.
    assert_eq!(els(&net, CLIENT).len(), 3);
    net.advance(MS / 10);
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
    net.nodes[SERVER].engine.config.port_name = 0xBAD;
    net.inject(CLIENT, &forged);
    net.settle();
    assert_eq!(net.log(CLIENT, a), broken());
}

#[test]
fn an_answer_that_nobody_asked_for_is_stray() {
    let (mut net, a, _) = probing();
    net.advance(3 * INTERVAL / 2);
    let answers = els(&net, SERVER);
    let before = net.count(CLIENT, Counter::DropStrayConnect);
    net.nodes[SERVER].engine.config.port_name += 1;
    for frame in &answers {
        net.inject(CLIENT, frame);
    }
    assert!(net.count(CLIENT, Counter::DropStrayConnect) > before);
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
}

#[test]
fn a_probe_under_way_when_the_last_connection_ends_costs_no_ox_id() {
    let (mut net, a, b) = probing();
    net.wire.lose(CLIENT, None, u32::MAX);
    net.advance(3 * INTERVAL / 2);
    net.disconnect(CLIENT, a);
    net.settle();
    net.disconnect(SERVER, b);
    net.advance(20 * S);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
    assert_eq!(net.nodes[CLIENT].engine.timers.len(), 0);
}

#[test]
fn els_frames_that_are_not_served_are_counted() {
    let (mut net, _, _) = probing();
    net.advance(3 * INTERVAL / 2);
    let adisc = probes(&net, SERVER)[0].clone();
    let edit = |at: usize, value: u8| {
        let mut frame = adisc.clone();
        frame[at] = value;
        let len = frame.len();
        seal(&mut frame, len, Eof::T).unwrap();
        frame
    };
    for (frame, counter) in [
        (edit(52, 0x03), Counter::DropUnsupportedIu),
        (edit(37, 0xA9), Counter::DropUnsupportedIu),
        (edit(52 + 27, 0xEE), Counter::DropMalformed),
    ] {
        let before = net.count(CLIENT, counter);
        net.inject(CLIENT, &frame);
        assert_eq!(net.count(CLIENT, counter), before + 1, "{counter:?}");
    }
}
