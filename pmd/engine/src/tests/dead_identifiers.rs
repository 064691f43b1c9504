//! OX_IDs while connections are asked for at full rate and some are never answered [FCVI P-10].
//!
//! Requests to a port that answers end their exchange: the OX_ID is free at once and comes round
//! again as soon as all others were used. Requests to a port that is silent are given up: theirs
//! stay dead for R_A_TOV, however often the others come round.

use fcvi_frame::frame::FrameView;

use crate::exchange::OX_IDS;
use crate::testkit::net::{CLIENT, Net, S, SERVER, config, params};
use crate::{ConnectError, Level};

const SILENT: usize = 2;
const US: u64 = 1_000;
/// One of so many requests goes to the silent port.
const SHARE: usize = 8;

/// When each OX_ID of the client was used last, and whether what it was used for was answered.
struct Uses {
    last: Vec<Option<(u64, bool)>>,
    r_a_tov_ns: u64,
    /// Used again within R_A_TOV, after an answer.
    soon: usize,
    /// Used again after it was dead.
    revived: usize,
    given_up: usize,
}

impl Uses {
    fn new(r_a_tov_ns: u64) -> Self {
        Self {
            last: vec![None; OX_IDS],
            r_a_tov_ns,
            soon: 0,
            revived: 0,
            given_up: 0,
        }
    }

    /// A request or disconnect of the client's, each on an exchange of its own.
    fn note(&mut self, now_ns: u64, ox_id: u16, answered: bool) {
        let before = self.last[usize::from(ox_id)].replace((now_ns, answered));
        self.given_up += usize::from(!answered);
        let Some((used_ns, was_answered)) = before else {
            return;
        };
        let late = now_ns >= used_ns + self.r_a_tov_ns;
        assert!(was_answered || late, "{ox_id:#06x} was used again early");
        self.soon += usize::from(was_answered && !late);
        self.revived += usize::from(!was_answered);
    }
}

/// Makes so many requests, and notes the OX_IDs of everything that is sent for them.
fn ask(net: &mut Net, uses: &mut Uses, requests: usize) {
    let (answered, silent) = (
        net.create(CLIENT, params(Level::ReliableDelivery)),
        net.create(CLIENT, params(Level::ReliableDelivery)),
    );
    let (client, silent_id) = (net.nodes[CLIENT].id, net.nodes[SILENT].id);
    for request in 0..requests {
        if request % SHARE == 0 {
            net.request(CLIENT, silent, "x", &[SILENT], None);
            net.disconnect(CLIENT, silent);
            assert!(net.outcome(CLIENT, silent).is_some());
        }
        net.request(CLIENT, answered, "x", &[SERVER], None);
        net.advance(5 * US);
        assert_eq!(net.error(CLIENT, answered), Some(ConnectError::NoMatch));
        for sent in net.wire.trace.drain(..) {
            let fc = FrameView::parse(&sent.bytes).expect("a frame").fc;
            if fc.s_id == client {
                uses.note(net.now_ns, fc.ox_id, fc.d_id != silent_id);
            }
        }
    }
    for vi in [answered, silent] {
        assert!(net.nodes[CLIENT].engine.destroy_vi(vi));
    }
    net.clear_logs();
}

#[test]
fn an_ox_id_that_was_given_up_is_dead_for_r_a_tov_at_full_rate() {
    let mut net = Net::new((0..3).map(config).collect(), 3);
    net.nodes[SILENT].host.room = 0;
    let r_a_tov_ns = net.nodes[CLIENT].engine.config().r_a_tov_ns;
    let mut uses = Uses::new(r_a_tov_ns);
    ask(&mut net, &mut uses, 3 * OX_IDS / 2);
    assert!(uses.soon > OX_IDS / 4, "they came round: {}", uses.soon);
    assert!(uses.given_up > OX_IDS / 8, "{}", uses.given_up);
    assert_eq!(uses.revived, 0);
    // Whatever was given up is free again.
    net.wire.tracing = false;
    net.advance(r_a_tov_ns + 20 * S);
    net.wire.tracing = true;
    ask(&mut net, &mut uses, OX_IDS);
    assert!(uses.revived > OX_IDS / 8, "{}", uses.revived);
}
