//! Reliable connections over a wire on which the kernel drops frames.

use e2e::faults::{Pair, complete};
use e2e::nics::{End, NicText};
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::vi_peer;
use e2e::wire::Wire;

/// Sends over the wire from right to left. Returns the reports of sink and source.
fn run(wire: &Wire, what: &str) -> [Report; 2] {
    let files = Scratch::new("recovery");
    let peer = |end: End| {
        // A lost connect request is repeated after half of R_A_TOV.
        let text = NicText::af_packet(end).key("fc_vi.r_a_tov_ms", 1000);
        vi_peer::within(wire.end(end), &text.write(&files, end.interface()))
    };
    let pair = Pair {
        sink: peer(End::Left),
        source: peer(End::Right),
        host: End::Left.host(),
    };
    complete(what, pair, 3, 500)
}

#[test]
fn recovery_survives_loss_of_up_to_twenty_percent() {
    for (mtu_bytes, of_ten_thousand) in [(2500, 10), (2500, 100), (1500, 500), (2500, 2000)] {
        let what = format!("MTU {mtu_bytes}, {of_ten_thousand} of 10000 lost");
        let wire = Wire::lossy(mtu_bytes, of_ten_thousand);
        let [sink, source] = run(&wire, &what);
        let lost = wire.lost();
        println!(
            "\nnote: {what}: {lost:?} frames lost, {} retransmitted",
            source.get("frames_resent")
        );
        if of_ten_thousand >= 100 {
            assert!(lost.iter().all(|frames| *frames > 0), "{what}: {lost:?}");
            assert!(source.get("frames_resent") > 0, "{what}: {source:?}");
            assert!(sink.get("tx_gap_reports") > 0, "{what}: {sink:?}");
        }
        assert_eq!(source.get("give_ups"), 0, "{what}");
        assert_eq!(source.get("exchanges_open"), 0, "{what}");
    }
}
