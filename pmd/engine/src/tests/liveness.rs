//! Liveness probes (ADISC): detection of peers that disappear or are replaced without notice from the network.

use fcvi_frame::els::Adisc;
use fcvi_frame::fcoe::{Eof, FCOE_TRAILER_BYTES};
use fcvi_frame::frame::seal;
use vi_types::{ReliabilityLevel, ViIndex, ViState};

use crate::Counter;
use crate::testkit::{
    expected_events::connection_lost_events,
    net::{CLIENT, MS, Net, S, SERVER, config, params},
};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const INTERVAL: u64 = S;

/// Returns a connected pair whose nodes probe each other.
fn probing() -> (Net, ViIndex, ViIndex) {
    let configs = [CLIENT, SERVER].map(|node| {
        let mut config = config(node);
        config.probe_interval_ns = INTERVAL;
        config
    });
    let mut net = Net::new(configs.to_vec(), 8);
    let (a, b) = net.join(RD);
    net.clear_logs();
    // Keeps the first probes and responses.
    net.wire.trace.retain(|sent| sent.opcode.is_none());
    (net, a, b)
}

/// Returns the ELS frames that a node sent.
fn els(net: &Net, node: usize) -> Vec<Vec<u8>> {
    let fits = |s: &&crate::testkit::wire::Sent| s.from == node && s.opcode.is_none();
    let frames = net.wire.trace.iter().filter(fits);
    frames.map(|s| s.bytes.clone()).collect()
}

/// Returns the ELS requests that a node sent.
fn probes(net: &Net, node: usize) -> Vec<Vec<u8>> {
    const R_CTL: usize = 28;
    const ELS_REQUEST: u8 = 0x22;
    let mut frames = els(net, node);
    frames.retain(|frame| frame[R_CTL] == ELS_REQUEST);
    frames
}

#[test]
fn silent_peers_that_answer_probes_stay_connected() {
    let (mut net, a, b) = probing();
    net.advance(100 * INTERVAL);
    assert_eq!(net.log(CLIENT, a), []);
    assert_eq!(net.log(SERVER, b), []);
    assert!(els(&net, CLIENT).len() >= 100);
    for node in [CLIENT, SERVER] {
        // The OX_ID of a probe is quarantined for 20 s, with or without a response.
        let (open, quarantined) = net.nodes[node].engine.exchange_usage();
        assert!(
            open == 0 && (11..=20).contains(&quarantined),
            "{quarantined}"
        );
    }
}

#[test]
fn peer_that_sends_is_probed_only_for_its_name() {
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
    assert_eq!(net.log(CLIENT, a), connection_lost_events());
    assert_eq!(net.log(SERVER, b), connection_lost_events());
    assert_eq!(net.count(CLIENT, Counter::PeersLost), 1);
    // Then no frames are sent and no state remains.
    net.wire.trace.clear();
    net.advance(100 * INTERVAL);
    assert!(net.wire.trace.is_empty());
    assert_eq!(net.nodes[CLIENT].engine.port.timers.len(), 0);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
}

/// Each lost peer is a pass over all VIs, so that each call of `handle_timeout` handles one, and probes a part of them.
#[test]
fn peers_that_become_silent_together_are_lost_one_per_call() {
    const PEERS: usize = 200;
    let configs = (0..=PEERS).map(|node| {
        let mut config = config(node);
        config.probe_interval_ns = INTERVAL;
        config.max_vi = PEERS as u32;
        config
    });
    let mut net = Net::new(configs.collect(), 8);
    // Node 0 is the server of all others.
    for node in 1..=PEERS {
        let (a, b) = (net.create(node, params(RD)), net.create(0, params(RD)));
        let listener = net.listen(0, "x");
        net.request(node, a, "x", &[0], None);
        net.settle();
        let conn = net.indication(0, listener).expect("a request").conn;
        net.accept(0, conn, b).expect("a match");
        net.settle();
    }
    net.advance(3 * INTERVAL / 2);
    net.wire.cut = true;
    net.wire.trace.clear();
    let (mut lost, mut calls) = (0, 0);
    while lost < PEERS as u64 {
        assert!(calls < 10 * PEERS, "{lost} lost after {calls} calls");
        calls += 1;
        let due_ns = net.nodes[0].engine.poll_timeout().expect("a probe is due");
        net.now_ns = net.now_ns.max(due_ns);
        let (now_ns, sent) = (net.now_ns, els(&net, 0).len());
        net.act(0, |engine, io| engine.handle_timeout(now_ns, 64, io));
        assert!(els(&net, 0).len() - sent <= 64);
        let now_lost = net.count(0, Counter::PeersLost);
        assert!(now_lost - lost <= 1);
        lost = now_lost;
    }
    assert_eq!(net.count(0, Counter::Breaks), PEERS as u64);
    net.advance(10 * INTERVAL);
    assert_eq!(net.nodes[0].engine.port.timers.len(), 0);
}

#[test]
fn two_lost_probes_do_not_lose_the_peer() {
    let (mut net, a, _) = probing();
    net.advance(3 * INTERVAL / 2);
    net.wire.lose(CLIENT, None, 2);
    net.wire.lose(SERVER, None, 2);
    net.advance(10 * INTERVAL);
    assert_eq!(net.log(CLIENT, a), []);
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
}

#[test]
fn probe_not_sent_by_a_full_port_does_not_count() {
    let (mut net, a, _) = probing();
    net.advance(3 * INTERVAL / 2);
    net.nodes[CLIENT].io.room = 0;
    net.advance(10 * INTERVAL);
    net.nodes[CLIENT].io.room = usize::MAX;
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
    assert!(net.count(CLIENT, Counter::ControlNoRoom) > 3);
}

#[test]
fn peer_with_a_changed_port_name_is_lost() {
    let (mut net, a, b) = probing();
    net.advance(3 * INTERVAL / 2);
    net.nodes[SERVER].engine.port.config.port_name += 1;
    net.advance(2 * INTERVAL);
    assert_eq!(net.log(CLIENT, a), connection_lost_events());
    assert_eq!(net.count(CLIENT, Counter::PeersLost), 1);
    assert_eq!(net.state(SERVER, b), ViState::Connected);
}

#[test]
fn peer_replaced_right_after_connecting_is_lost() {
    let (mut net, a, _) = probing();
    net.nodes[SERVER].engine.port.config.port_name += 1;
    net.advance(2 * INTERVAL);
    assert_eq!(net.log(CLIENT, a), connection_lost_events());
}

/// A new port has the address of the old one: its name must not be compared with the old one's.
#[test]
fn new_connection_does_not_inherit_the_previous_port_name() {
    let (mut net, a, b) = probing();
    net.advance(3 * INTERVAL / 2);
    net.disconnect(CLIENT, a);
    net.settle();
    net.disconnect(SERVER, b);
    net.nodes[SERVER].engine.port.config.port_name += 1;
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
fn forged_request_with_another_port_name_is_verified_by_a_probe() {
    let (mut net, a, _) = probing();
    net.advance(3 * INTERVAL / 2);
    let forged = adisc_from_server(&net, 0xBAD);
    net.wire.trace.clear();
    net.inject(CLIENT, &forged);
    net.inject(CLIENT, &forged);
    // A response to each forged request, and one probe.
    assert_eq!(els(&net, CLIENT).len(), 3);
    net.advance(MS / 10);
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
    net.nodes[SERVER].engine.port.config.port_name = 0xBAD;
    net.advance(INTERVAL / 4);
    net.inject(CLIENT, &forged);
    net.settle();
    assert_eq!(net.log(CLIENT, a), connection_lost_events());
}

/// The OX_IDs of probes are in quarantine for 20 s: a probe per forged frame would use all that connection procedures
/// may use.
#[test]
fn forged_requests_with_another_port_name_cause_few_probes() {
    let (mut net, a, _) = probing();
    net.advance(3 * INTERVAL / 2);
    let forged = adisc_from_server(&net, 0xBAD);
    let before = probes(&net, CLIENT).len();
    for _ in 0..1000 {
        net.inject(CLIENT, &forged);
        net.advance(10 * MS);
    }
    // In ten intervals.
    assert!(probes(&net, CLIENT).len() - before <= 40);
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
}

const OX_ID: core::ops::Range<usize> = 44..46;

/// A station that guesses the OX_ID of a probe: two such replies have no effect.
#[test]
fn forged_replies_with_another_port_name_end_no_connection() {
    const PORT_NAME: core::ops::Range<usize> = 60..68;
    let (mut net, a, _) = probing();
    net.advance(3 * INTERVAL / 2);
    let mut replies = els(&net, SERVER);
    replies.retain(|frame| frame[28] == 0x23);
    let mut forged = replies[0].clone();
    forged[PORT_NAME].copy_from_slice(&0xBAD_u64.to_be_bytes());
    let len = forged.len();
    for tries in [1, 2, 3] {
        // Until the next probe is on the wire.
        let before = probes(&net, CLIENT).len();
        while probes(&net, CLIENT).len() == before {
            let due_ns = net.nodes[CLIENT].engine.poll_timeout().expect("a probe");
            net.now_ns = net.now_ns.max(due_ns);
            let now_ns = net.now_ns;
            net.act(CLIENT, |engine, io| engine.handle_timeout(now_ns, 8, io));
        }
        for _ in 0..tries {
            let probe = probes(&net, CLIENT).pop().expect("a probe");
            forged[OX_ID].copy_from_slice(&probe[OX_ID]);
            seal(&mut forged, len, Eof::T).unwrap();
            net.inject(CLIENT, &forged);
        }
        let expected = if tries < 3 {
            ViState::Connected
        } else {
            ViState::Error
        };
        assert_eq!(net.state(CLIENT, a), expected, "{tries} replies");
        net.advance(INTERVAL / 2);
    }
}

#[test]
fn ox_ids_of_probes_are_unpredictable() {
    let (mut net, _, _) = probing();
    net.advance(200 * INTERVAL);
    let probes = probes(&net, CLIENT);
    let ox_id = |frame: &Vec<u8>| u16::from_be_bytes([frame[OX_ID][0], frame[OX_ID][1]]);
    let ox_ids: Vec<u16> = probes.iter().map(ox_id).collect();
    assert!(ox_ids.len() > 40);
    let near = ox_ids
        .windows(2)
        .filter(|pair| pair[0].abs_diff(pair[1]) < 100);
    assert!(near.count() < 5, "{ox_ids:?}");
}

#[test]
fn unrequested_probe_response_is_dropped() {
    let (mut net, a, _) = probing();
    net.advance(3 * INTERVAL / 2);
    let answers = els(&net, SERVER);
    let before = net.count(CLIENT, Counter::DropStrayConnect);
    net.nodes[SERVER].engine.port.config.port_name += 1;
    for frame in &answers {
        net.inject(CLIENT, frame);
    }
    assert!(net.count(CLIENT, Counter::DropStrayConnect) > before);
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
}

#[test]
fn pending_probe_when_the_last_connection_ends_leaks_no_ox_id() {
    let (mut net, a, b) = probing();
    net.wire.lose(CLIENT, None, u32::MAX);
    net.advance(3 * INTERVAL / 2);
    net.disconnect(CLIENT, a);
    net.settle();
    net.disconnect(SERVER, b);
    net.advance(20 * S);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
    assert_eq!(net.nodes[CLIENT].engine.port.timers.len(), 0);
}

#[test]
fn unsupported_els_frames_are_counted() {
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
