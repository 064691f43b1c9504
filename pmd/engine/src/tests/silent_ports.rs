//! Configured ports of a host that do not exist: they get requests like the other ports and never respond. Pending
//! disconnects to them must not delay those of connections.

use fcvi_frame::fc::NPortId;
use vi_types::{CallError, NetAddress, ReliabilityLevel, ViIndex, ViState};

use crate::testkit::net::{CLIENT, Net, S, SERVER, config, discriminator, params};
use crate::{ConnectCommand, Counter};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;

fn silent_ports(count: u32) -> Vec<NPortId> {
    let port = |n| NPortId::new(0x0F00 + n).expect("24 bits");
    (0..count).map(port).collect()
}

/// Sends a request to these ports, as if all of them were ports of the server's host.
fn request(net: &mut Net, vi: ViIndex, targets: &[NPortId]) {
    let address = |net: &Net, node: usize, name| NetAddress {
        host: net.nodes[node].engine.config().host,
        discriminator: discriminator(name),
    };
    let command = ConnectCommand {
        local: address(net, CLIENT, "client"),
        remote: address(net, SERVER, "x"),
        targets,
        timeout_ns: None,
    };
    let now_ns = net.now_ns;
    net.act(CLIENT, |engine, io| {
        engine.connect(now_ns, vi, &command, io)
    })
    .expect("an Idle VI");
}

#[test]
fn disconnect_of_a_connection_is_sent_despite_silent_ports() {
    let mut net = Net::pair();
    let (a, b) = (
        net.create(CLIENT, params(RD)),
        net.create(SERVER, params(RD)),
    );
    let mut targets = silent_ports(net.nodes[CLIENT].engine.config().max_pending_disconnects);
    targets.push(net.nodes[SERVER].id);
    for _ in 0..20 {
        let listener = net.listen(SERVER, "x");
        request(&mut net, a, &targets);
        net.settle();
        let conn = net.indication(SERVER, listener).expect("a request").conn;
        net.accept(SERVER, conn, b).unwrap();
        net.settle();
        assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
        assert!(matches!(net.outcome(SERVER, b), Some(Ok(_))));
        net.disconnect(CLIENT, a);
        net.settle();
        assert_eq!(net.state(SERVER, b), ViState::Error);
        net.disconnect(SERVER, b);
    }
    // A silent port may have received the request: disconnects to silent ports use at most half of the table.
    let engine = &net.nodes[CLIENT].engine;
    let pending = engine.port.pending_disconnects.iter().flatten().count();
    assert_eq!(
        pending,
        engine.config().max_pending_disconnects as usize / 2
    );
    assert!(net.count(CLIENT, Counter::CloseOverflows) > 0);
    net.advance(60 * S);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
}

/// A port that responded that the request is pending is not a silent one.
#[test]
fn port_with_the_pending_request_gets_its_disconnect_before_silent_ports() {
    const HOLDER: usize = 2;
    let mut configs: Vec<_> = (0..3).map(config).collect();
    configs[HOLDER].host = configs[SERVER].host;
    configs[CLIENT].max_pending_disconnects = 4;
    let mut net = Net::new(configs, 5);
    let a = net.create(CLIENT, params(RD));
    let mut targets = silent_ports(8);
    targets.extend([net.nodes[SERVER].id, net.nodes[HOLDER].id]);
    let vis = [SERVER, HOLDER].map(|node| net.create(node, params(RD)));
    let listeners = [SERVER, HOLDER].map(|node| net.listen(node, "x"));
    request(&mut net, a, &targets);
    // Both respond to the retry that the request is pending.
    net.advance(net.nodes[CLIENT].engine.config().ulp_timeout_ns / 4);
    net.settle();
    let conn = net.indication(SERVER, listeners[0]).unwrap().conn;
    net.accept(SERVER, conn, vis[0]).unwrap();
    net.settle();
    assert!(matches!(net.outcome(CLIENT, a), Some(Ok(_))));
    let pending = net.indication(HOLDER, listeners[1]).unwrap().conn;
    let late = net.accept(HOLDER, pending, vis[1]);
    assert_eq!(late, Err(CallError::Timeout));
}
