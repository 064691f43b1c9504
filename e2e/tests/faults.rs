//! Injected loss, duplication, reordering and corruption of frames between two processes.

use e2e::faults::{
    ONE_PERCENT, Pair, Size, assert_nothing_leaked, complete, recovered, reliable, unreliable,
};
use e2e::nics::{End, Faults, NicText};
use e2e::scratch::Scratch;
use e2e::vi_peer;
use e2e::wire::Wire;

/// The size of runs without recovery.
const LONG: Size = Size {
    messages: 20_000,
    rounds: 25,
    round_messages: 400,
};
/// Sets the timeouts of a configuration.
type SetTimeouts = fn(NicText) -> NicText;

/// The port between two processes, and their configurations.
struct Medium {
    /// `None`: shared memory.
    wire: Option<Wire>,
    segment: Scratch,
    files: Scratch,
}

impl Medium {
    fn new(
        wire: Option<Wire>,
        first_seed: u64,
        ppm: [u32; 4],
        set: impl Fn(NicText) -> NicText,
    ) -> Self {
        let this = Self {
            wire,
            segment: Scratch::in_memory("segment"),
            files: Scratch::new("faults"),
        };
        for (seed, end) in (first_seed..).zip([End::Left, End::Right]) {
            let nic = match &this.wire {
                Some(_) => NicText::af_packet(end),
                None => NicText::shm(this.segment.path()),
            };
            let nic = set(nic).faults(Faults { seed, ppm });
            nic.write(&this.files, end.interface());
        }
        this
    }

    fn memory(ppm: [u32; 4], set_timeouts: SetTimeouts) -> Self {
        Self::new(None, 11, ppm, set_timeouts)
    }

    fn wire(ppm: [u32; 4], set_timeouts: SetTimeouts, recovery: bool) -> Self {
        let set = |nic| set_timeouts(nic).key("recovery", recovery);
        Self::new(Some(Wire::new(2500)), 21, ppm, set)
    }

    fn pair(&self) -> Pair {
        let peer = |end: End| {
            let config = self.files.file(end.interface());
            match &self.wire {
                Some(wire) => vi_peer::within(wire.end(end), &config),
                None => vi_peer::local(&config),
            }
        };
        Pair {
            sink: peer(End::Left),
            source: peer(End::Right),
            host: match &self.wire {
                Some(_) => End::Left.host(),
                None => "localhost",
            },
        }
    }
}

#[test]
fn unreliable_delivery_under_faults_on_shared_memory() {
    let medium = Medium::memory(ONE_PERCENT, NicText::short_timeouts);
    unreliable(medium.pair(), LONG, "shm");
}

#[test]
fn unreliable_delivery_under_faults_on_a_wire() {
    let medium = Medium::wire(ONE_PERCENT, NicText::short_timeouts, true);
    unreliable(medium.pair(), LONG, "veth");
}

#[test]
fn reliable_delivery_under_faults_on_shared_memory() {
    let medium = Medium::memory(ONE_PERCENT, NicText::short_timeouts);
    reliable(medium.pair(), LONG, "shm");
}

#[test]
fn reliable_delivery_under_faults_on_a_wire() {
    let medium = Medium::wire(ONE_PERCENT, NicText::short_timeouts, false);
    reliable(medium.pair(), LONG, "veth");
}

#[test]
fn reliable_delivery_survives_duplicated_frames() {
    let medium = Medium::memory([0, 50_000, 0, 0], NicText::long_timeouts);
    let [sink, source] = complete("duplicated frames", medium.pair(), 3, 400);
    assert!(sink.get("drop_duplicate") > 0, "{sink:?}");
    assert_nothing_leaked("sink", &sink);
    assert_nothing_leaked("source", &source);
}

#[test]
fn recovery_survives_injected_faults_on_a_wire() {
    let medium = Medium::wire(ONE_PERCENT, NicText::long_timeouts, true);
    let size = Size {
        rounds: 5,
        round_messages: 500,
        ..LONG
    };
    recovered(medium.pair(), size);
}
