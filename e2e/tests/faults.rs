//! Injected loss, duplication, reordering and corruption of frames between two processes.

use std::process::Command;

use e2e::faults::{
    ONE_PERCENT, Pair, Size, assert_complete_rounds, assert_nothing_leaked, recovered, reliable,
    unreliable,
};
use e2e::nics::{End, Faults, NicText};
use e2e::process::program;
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const VI_PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// The size of runs without recovery.
const LONG: Size = Size {
    messages: 20_000,
    rounds: 25,
    round_messages: 400,
};
/// Sets the timeouts of a configuration.
type SetTimeouts = fn(NicText) -> NicText;

/// The port between two processes, and their configurations.
enum Medium {
    Memory { _segment: Scratch, files: Scratch },
    Wire { wire: Wire, files: Scratch },
}

impl Medium {
    fn memory(faults: [u32; 4], set_timeouts: SetTimeouts) -> Self {
        let segment = Scratch::in_memory("segment");
        let files = Scratch::new("faults");
        for (seed, name) in [(11, "sink"), (12, "source")] {
            let text = set_timeouts(NicText::shm(segment.path()));
            let text = text.faults(Faults { seed, ppm: faults });
            text.write(&files, name);
        }
        Self::Memory {
            _segment: segment,
            files,
        }
    }

    fn wire(faults: [u32; 4], set_timeouts: SetTimeouts, recovery: bool) -> Self {
        let files = Scratch::new("faults");
        for (seed, name, end) in [(21, "sink", End::Left), (22, "source", End::Right)] {
            let text = set_timeouts(NicText::af_packet(end)).key("recovery", recovery);
            let text = text.faults(Faults { seed, ppm: faults });
            text.write(&files, name);
        }
        Self::Wire {
            wire: Wire::new(2500),
            files,
        }
    }

    fn peer(&self, end: &str) -> Command {
        let (mut command, files) = match (self, end) {
            (Self::Memory { files, .. }, _) => (program(VI_PEER), files),
            (Self::Wire { wire, files }, "sink") => (wire.left.program(VI_PEER), files),
            (Self::Wire { wire, files }, _) => (wire.right.program(VI_PEER), files),
        };
        command.env("VIADUCT_CONFIG", files.file(end));
        command
    }

    fn sinks_host(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "localhost",
            Self::Wire { .. } => End::Left.host(),
        }
    }

    fn pair(&self) -> Pair {
        Pair {
            sink: self.peer("sink"),
            source: self.peer("source"),
            host: self.sinks_host(),
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
    let (sink, source) = medium.pair().run(
        "rd",
        &["--rounds", "3"],
        &["--rounds", "3", "--messages", "400"],
    );
    let (sink_report, source_report) = (Report::read(&sink), Report::read(&source));
    assert_eq!(source_report.get("unbroken"), 3, "{source}");
    assert_complete_rounds(&sink, 3, 400);
    assert!(sink_report.get("drop_duplicate") > 0, "{sink}");
    assert_nothing_leaked("sink", &sink_report);
    assert_nothing_leaked("source", &source_report);
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
