//! Reads that were answered before, asked for again when their memory is gone: by a request that
//! is late, or by a reader that has everything meanwhile.

use fcvi_frame::iu::Opcode::{ReadRequest, ReadResponse};

use super::{RD, RR, TARGET, pair, resent};
use crate::testkit::net::{CLIENT, MS, SERVER, sent};
use crate::{Counter, EndpointState};

/// A request that comes once more when the reader is done, and the target has taken its memory
/// back, concerns nobody.
#[test]
fn a_late_repetition_of_a_read_that_is_over_breaks_nothing() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.wire.lose(SERVER, ReadResponse, 1);
        net.post_read(CLIENT, a, (0, TARGET), 100);
        net.advance(20 * MS);
        assert_eq!(net.log(CLIENT, a), [sent(0, 100)]);
        let again = net.frames(CLIENT, ReadRequest).pop().expect("asked again");
        assert!(resent(&again));
        net.nodes[SERVER].host.regions.remove(&TARGET);
        for _ in 0..3 {
            net.inject(SERVER, &again);
            net.advance(MS);
        }
        assert_eq!(net.count(SERVER, Counter::DropReadAgain), 3, "{level:?}");
        assert_eq!(
            net.log(SERVER, b),
            [],
            "{level:?}: its consumer did nothing"
        );
        assert_eq!(net.log(CLIENT, a), [], "{level:?}");
        assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
        assert_eq!(net.state(SERVER, b), EndpointState::Connected);
    }
}

/// The reader asks once more while its data is on the way. The target has no room for the second
/// answer until the first one has come, and the memory is gone.
#[test]
fn a_second_answer_that_nobody_waits_for_ends_with_its_memory() {
    for begun in [false, true] {
        let (mut net, a, b) = pair(RD);
        net.post_read(CLIENT, a, (0, TARGET), 20_000);
        while net.frames(SERVER, ReadResponse).is_empty() {
            assert!(net.deliver_one());
        }
        let first_answer = net.wire.take_flying();
        assert_eq!(net.frames(SERVER, ReadResponse).len(), 10);
        net.nodes[SERVER].host.room = if begun { 3 } else { 0 };
        net.advance(15 * MS);
        assert!(net.count(SERVER, Counter::ReadsRepeated) > 0);
        for (to, bytes) in first_answer {
            net.inject(to, &bytes);
        }
        assert_eq!(net.log(CLIENT, a), [sent(0, 20_000)]);
        net.nodes[SERVER].host.regions.remove(&TARGET);
        net.nodes[SERVER].host.room = usize::MAX;
        net.advance(20 * MS);
        assert_eq!(net.count(SERVER, Counter::DropReadAgain), 1);
        assert_eq!(net.log(SERVER, b), []);
        assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
        // What comes next is answered as ever.
        net.nodes[SERVER].host.register(TARGET, 0, 100_000);
        net.post_read(CLIENT, a, (0, TARGET), 5_000);
        net.advance(20 * MS);
        assert_eq!(net.log(CLIENT, a), [sent(1, 5_000)], "begun: {begun}");
        assert_eq!(net.state(SERVER, b), EndpointState::Connected);
    }
}
