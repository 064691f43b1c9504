//! Late responses to ADISC probes: they have no message ID, only their OX_ID identifies the request.

use vi_types::ReliabilityLevel;

use crate::testkit::{
    expected_events::connection_lost_events,
    net::{CLIENT, Net, S, SERVER, config},
};

const R_CTL: usize = 28;
const ELS_REPLY: u8 = 0x23;
const OX_ID: usize = 44;

/// Checks that the loss of a port is detected although its earlier responses are repeated while OX_IDs wrap. A late
/// request has a late response: up to twice R_A_TOV after the request.
pub(super) fn run(seed: u64) -> Result<(), String> {
    run_with_interval(S, 7, seed)?;
    run_with_interval(9 * S / 2, 4, seed)
}

/// Repeats the responses at `times` probe intervals, all within twice R_A_TOV of their requests.
fn run_with_interval(interval_ns: u64, times: u32, seed: u64) -> Result<(), String> {
    let configs = [CLIENT, SERVER].map(|node| {
        let mut config = config(node);
        config.probe_interval_ns = interval_ns;
        config
    });
    let mut net = Net::new(configs.to_vec(), seed);
    let (a, _) = net.join(ReliabilityLevel::ReliableDelivery);
    net.advance(2 * interval_ns);
    net.clear_logs();
    let responses = net.wire.trace.iter().filter(|sent| {
        sent.from == SERVER && sent.opcode.is_none() && sent.bytes[R_CTL] == ELS_REPLY
    });
    let responses: Vec<Vec<u8>> = responses.map(|sent| sent.bytes.clone()).collect();
    let last = responses.last().ok_or("no response")?;
    let ox_id = u16::from_be_bytes([last[OX_ID], last[OX_ID + 1]]);
    net.wire.cut = true;
    for _ in 0..times {
        advance_ox_ids_to(&mut net, ox_id);
        net.advance(interval_ns);
        for response in &responses {
            net.inject(CLIENT, response);
        }
    }
    net.advance(3 * interval_ns / 2);
    if net.log(CLIENT, a) == connection_lost_events() {
        Ok(())
    } else {
        Err("a lost port appears to be present".to_owned())
    }
}

/// Uses OX_IDs until this one is the next one; if it is quarantined, uses all others once.
fn advance_ox_ids_to(net: &mut Net, ox_id: u16) {
    let now_ns = net.now_ns;
    let pool = &mut net.nodes[CLIENT].engine.exchanges;
    for _ in 0..=u16::MAX {
        let Some(used) = pool.open(now_ns) else {
            return;
        };
        pool.close(used.ox_id, used.seq_cnt.wrapping_add(1));
        if used.ox_id.wrapping_add(1) == ox_id {
            return;
        }
    }
}
