//! Repeated requests of answered reads whose memory has been deregistered: late copies, and reads that have completed
//! in the meantime.

use fcvi_frame::iu::Opcode::{ReadRequest, ReadResponse};
use vi_types::ViState;

use super::{RD, RR, TARGET, is_retransmitted, pair};
use crate::testkit::net::{CLIENT, MS, SERVER};
use crate::{Counter, testkit::expected_events::sent};

/// A request that is repeated after its read has completed and the target has deregistered the memory is dropped.
#[test]
fn late_repeated_request_of_a_completed_read_is_dropped() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.wire.lose(SERVER, ReadResponse, 1);
        net.post_read(CLIENT, a, (0, TARGET), 100);
        net.advance(20 * MS);
        assert_eq!(net.log(CLIENT, a), [sent(0, 100)]);
        let again = net
            .frames(CLIENT, ReadRequest)
            .pop()
            .expect("a repeated request");
        assert!(is_retransmitted(&again));
        net.nodes[SERVER].io.regions.remove(&TARGET);
        for _ in 0..3 {
            net.inject(SERVER, &again);
            net.advance(MS);
        }
        assert_eq!(net.count(SERVER, Counter::DropReadAgain), 3, "{level:?}");
        assert_eq!(
            net.log(SERVER, b),
            [],
            "{level:?}: no event for its consumer"
        );
        assert_eq!(net.log(CLIENT, a), [], "{level:?}");
        assert_eq!(net.state(CLIENT, a), ViState::Connected);
        assert_eq!(net.state(SERVER, b), ViState::Connected);
    }
}

/// The reader repeats its request while the data is in flight. The target's port is too full for the second response
/// until the first one has arrived and the memory is deregistered.
#[test]
fn second_response_to_a_completed_read_ends_with_its_memory() {
    for begun in [false, true] {
        let (mut net, a, b) = pair(RD);
        net.post_read(CLIENT, a, (0, TARGET), 20_000);
        while net.frames(SERVER, ReadResponse).is_empty() {
            assert!(net.deliver_one());
        }
        let first_response = net.wire.take_in_transit();
        assert_eq!(net.frames(SERVER, ReadResponse).len(), 10);
        net.nodes[SERVER].io.room = if begun { 3 } else { 0 };
        net.advance(15 * MS);
        assert!(net.count(SERVER, Counter::ReadsRepeated) > 0);
        for (to, bytes) in first_response {
            net.inject(to, &bytes);
        }
        assert_eq!(net.log(CLIENT, a), [sent(0, 20_000)]);
        net.nodes[SERVER].io.regions.remove(&TARGET);
        net.nodes[SERVER].io.room = usize::MAX;
        net.advance(20 * MS);
        assert_eq!(net.count(SERVER, Counter::DropReadAgain), 1);
        assert_eq!(net.log(SERVER, b), []);
        assert_eq!(net.state(CLIENT, a), ViState::Connected);
        // Later reads are answered.
        net.nodes[SERVER].io.register(TARGET, 0, 100_000);
        net.post_read(CLIENT, a, (0, TARGET), 5_000);
        net.advance(20 * MS);
        assert_eq!(net.log(CLIENT, a), [sent(1, 5_000)], "begun: {begun}");
        assert_eq!(net.state(SERVER, b), ViState::Connected);
    }
}
