//! OX_ID quarantine while connections are requested at full rate and some requests get no response [FCVI P-10].
//!
//! A response ends the exchange of its request: the OX_ID is free at once and is used again after all others.
//! Requests to a silent port are abandoned: their OX_IDs stay quarantined for R_A_TOV, however often the others are
//! reused.

use fcvi_frame::frame::FrameView;
use vi_types::{CallError, ReliabilityLevel};

use crate::exchange::OX_IDS;
use crate::testkit::net::{CLIENT, Net, S, SERVER, config, params};

const SILENT: usize = 2;
const US: u64 = 1_000;
/// One of this many requests goes to the silent port.
const SILENT_INTERVAL: usize = 8;

/// The last use of each OX_ID of the client: its time, and whether it got a response.
struct Uses {
    last: Vec<Option<(u64, bool)>>,
    r_a_tov_ns: u64,
    /// OX_IDs reused within R_A_TOV, after a response.
    reused_early: usize,
    /// OX_IDs reused after quarantine.
    reused_after_quarantine: usize,
    abandoned: usize,
}

impl Uses {
    fn new(r_a_tov_ns: u64) -> Self {
        Self {
            last: vec![None; OX_IDS],
            r_a_tov_ns,
            reused_early: 0,
            reused_after_quarantine: 0,
            abandoned: 0,
        }
    }

    /// Records a request or disconnect of the client; each has an exchange of its own.
    fn record(&mut self, now_ns: u64, ox_id: u16, answered: bool) {
        let before = self.last[usize::from(ox_id)].replace((now_ns, answered));
        self.abandoned += usize::from(!answered);
        let Some((used_ns, was_answered)) = before else {
            return;
        };
        let late = now_ns >= used_ns + self.r_a_tov_ns;
        assert!(was_answered || late, "{ox_id:#06x} was used again early");
        self.reused_early += usize::from(was_answered && !late);
        self.reused_after_quarantine += usize::from(!was_answered);
    }
}

/// Makes `requests` requests and records the OX_IDs of all frames that are sent for them.
fn send_requests(net: &mut Net, uses: &mut Uses, requests: usize) {
    let (answered, silent) = (
        net.create(CLIENT, params(ReliabilityLevel::ReliableDelivery)),
        net.create(CLIENT, params(ReliabilityLevel::ReliableDelivery)),
    );
    let (client, silent_id) = (net.nodes[CLIENT].id, net.nodes[SILENT].id);
    for request in 0..requests {
        if request % SILENT_INTERVAL == 0 {
            net.request(CLIENT, silent, "x", &[SILENT], None);
            net.disconnect(CLIENT, silent);
            assert!(net.outcome(CLIENT, silent).is_some());
        }
        net.request(CLIENT, answered, "x", &[SERVER], None);
        net.advance(5 * US);
        assert_eq!(net.error(CLIENT, answered), Some(CallError::NoMatch));
        for sent in net.wire.trace.drain(..) {
            let fc = FrameView::parse(&sent.bytes).expect("a frame").fc;
            if fc.s_id == client {
                uses.record(net.now_ns, fc.ox_id, fc.d_id != silent_id);
            }
        }
    }
    for vi in [answered, silent] {
        assert!(net.nodes[CLIENT].engine.destroy_vi(vi));
    }
    net.clear_logs();
}

#[test]
fn abandoned_ox_id_is_quarantined_for_r_a_tov_at_full_rate() {
    let mut net = Net::new((0..3).map(config).collect(), 3);
    net.nodes[SILENT].io.room = 0;
    let r_a_tov_ns = net.nodes[CLIENT].engine.config().r_a_tov_ns;
    let mut uses = Uses::new(r_a_tov_ns);
    send_requests(&mut net, &mut uses, 3 * OX_IDS / 2);
    assert!(
        uses.reused_early > OX_IDS / 4,
        "too few reused: {}",
        uses.reused_early
    );
    assert!(uses.abandoned > OX_IDS / 8, "{}", uses.abandoned);
    assert_eq!(uses.reused_after_quarantine, 0);
    // All abandoned OX_IDs are free again.
    net.wire.tracing = false;
    net.advance(r_a_tov_ns + 20 * S);
    net.wire.tracing = true;
    send_requests(&mut net, &mut uses, OX_IDS);
    assert!(
        uses.reused_after_quarantine > OX_IDS / 8,
        "{}",
        uses.reused_after_quarantine
    );
}
