//! Late responses to ADISC probes: they have no message ID, only their OX_ID identifies the request.

use vi_types::ReliabilityLevel;

use crate::testkit::{
    expected_events::connection_lost_events,
    net::{CLIENT, Net, S, SERVER, config},
};

const R_CTL: usize = 28;
const ELS_REPLY: u8 = 0x23;

/// Checks that the loss of a port is detected although an earlier response is repeated. Each probe takes the first free
/// OX_ID, not a random one. A late request has a late response: up to twice R_A_TOV after the request.
pub(super) fn run(seed: u64) -> Result<(), String> {
    run_with_interval(S, 7, seed)?;
    run_with_interval(9 * S / 2, 4, seed)
}

/// Repeats the last response at `times` probe intervals, all within twice R_A_TOV of its request.
fn run_with_interval(interval_ns: u64, times: u32, seed: u64) -> Result<(), String> {
    let configs = [CLIENT, SERVER].map(|node| {
        let mut config = config(node);
        config.probe_interval_ns = interval_ns;
        config
    });
    let mut net = Net::new(configs.to_vec(), seed);
    net.nodes[CLIENT].io.random_mask = 0;
    let (a, _) = net.join(ReliabilityLevel::ReliableDelivery);
    net.advance(2 * interval_ns);
    net.clear_logs();
    let mut responses = net.wire.trace.iter().filter(|sent| {
        sent.from == SERVER && sent.opcode.is_none() && sent.bytes[R_CTL] == ELS_REPLY
    });
    let last = responses.next_back().ok_or("no response")?.bytes.clone();
    net.wire.cut = true;
    for _ in 0..times {
        net.advance(interval_ns);
        net.inject(CLIENT, &last);
    }
    net.advance(3 * interval_ns / 2);
    if net.log(CLIENT, a) == connection_lost_events() {
        Ok(())
    } else {
        Err("a lost port appears to be present".to_owned())
    }
}
