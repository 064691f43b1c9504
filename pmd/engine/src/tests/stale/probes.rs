//! Answers to ADISC have no message ID: only their OX_ID says to which question they are.

use crate::Level;
use crate::testkit::net::{CLIENT, Net, S, SERVER, broken, config};

const R_CTL: usize = 28;
const ELS_REPLY: u8 = 0x23;
const OX_ID: usize = 44;

/// A port goes. Its earlier answers come again while OX_IDs come round; all the same its peer
/// must find out. A late question is answered late: twice R_A_TOV after it was asked.
pub(super) fn play(seed: u64) -> Result<(), String> {
    asked_every(S, 7, seed)?;
    asked_every(9 * S / 2, 4, seed)
}

/// The answers come again at so many intervals, all within twice R_A_TOV of their questions.
fn asked_every(interval_ns: u64, times: u32, seed: u64) -> Result<(), String> {
    let configs = [CLIENT, SERVER].map(|node| {
        let mut config = config(node);
        config.probe_interval_ns = interval_ns;
        config
    });
    let mut net = Net::new(configs.to_vec(), seed);
    let (a, _) = net.join(Level::ReliableDelivery);
    net.advance(2 * interval_ns);
    net.clear_logs();
    let answers = net.wire.trace.iter().filter(|sent| {
        sent.from == SERVER && sent.opcode.is_none() && sent.bytes[R_CTL] == ELS_REPLY
    });
    let answers: Vec<Vec<u8>> = answers.map(|sent| sent.bytes.clone()).collect();
    let last = answers.last().ok_or("no answer")?;
    let ox_id = u16::from_be_bytes([last[OX_ID], last[OX_ID + 1]]);
    net.wire.cut = true;
    for _ in 0..times {
        turn_to(&mut net, ox_id);
        net.advance(interval_ns);
        for answer in &answers {
            net.inject(CLIENT, answer);
        }
    }
    net.advance(3 * interval_ns / 2);
    if net.log(CLIENT, a) == broken() {
        Ok(())
    } else {
        Err("a port that went seems to be there".to_owned())
    }
}

/// Messages use OX_IDs, until this one is the next one; if it is dead, all others once.
fn turn_to(net: &mut Net, ox_id: u16) {
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
