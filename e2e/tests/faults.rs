//! Frames lost, doubled, overtaken and damaged on purpose, between two processes.

use std::process::Command;

use e2e::faults::{
    ONE_PERCENT, Pair, Size, assert_nothing_leaked, assert_whole_rounds, recovered, reliable,
    unreliable,
};
use e2e::nics::{End, Faults, NicText};
use e2e::process::program;
use e2e::report::Report;
use e2e::scratch::Scratch;
use e2e::wire::Wire;

const PEER: &str = env!("CARGO_BIN_EXE_vi-peer");
/// Of the runs without recovery.
const LONG: Size = Size {
    messages: 20_000,
    rounds: 25,
    round_messages: 400,
};
/// Sets the time-outs of a configuration.
type TimeOuts = fn(NicText) -> NicText;

/// Two processes and what lies between them.
enum Between {
    Memory { _segment: Scratch, files: Scratch },
    Wire { wire: Wire, files: Scratch },
}

impl Between {
    fn memory(faults: [u32; 4], time_outs: TimeOuts) -> Self {
        let segment = Scratch::in_memory("segment");
        let files = Scratch::new("faults");
        for (seed, name) in [(11, "sink"), (12, "source")] {
            let text = time_outs(NicText::shm(segment.path()));
            let text = text.faults(Faults { seed, ppm: faults });
            text.write(&files, name);
        }
        Self::Memory {
            _segment: segment,
            files,
        }
    }

    fn wire(faults: [u32; 4], time_outs: TimeOuts, recovery: bool) -> Self {
        let files = Scratch::new("faults");
        for (seed, name, end) in [(21, "sink", End::Left), (22, "source", End::Right)] {
            let text = time_outs(NicText::af_packet(end)).key("recovery", recovery);
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
            (Self::Memory { files, .. }, _) => (program(PEER), files),
            (Self::Wire { wire, files }, "sink") => (wire.left.program(PEER), files),
            (Self::Wire { wire, files }, _) => (wire.right.program(PEER), files),
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
    let between = Between::memory(ONE_PERCENT, NicText::quick);
    unreliable(between.pair(), LONG, "shm");
}

#[test]
fn unreliable_delivery_under_faults_on_a_wire() {
    let between = Between::wire(ONE_PERCENT, NicText::quick, true);
    unreliable(between.pair(), LONG, "veth");
}

#[test]
fn reliable_delivery_under_faults_on_shared_memory() {
    let between = Between::memory(ONE_PERCENT, NicText::quick);
    reliable(between.pair(), LONG, "shm");
}

#[test]
fn reliable_delivery_under_faults_on_a_wire() {
    let between = Between::wire(ONE_PERCENT, NicText::quick, false);
    reliable(between.pair(), LONG, "veth");
}

/// What harms no message breaks no connection.
#[test]
fn reliable_delivery_survives_doubled_frames() {
    let between = Between::memory([0, 50_000, 0, 0], NicText::steady);
    let (sink, source) = between.pair().run(
        "rd",
        &["--rounds", "3"],
        &["--rounds", "3", "--messages", "400"],
    );
    let (sink_report, source_report) = (Report::read(&sink), Report::read(&source));
    assert_eq!(source_report.get("unbroken"), 3, "{source}");
    assert_whole_rounds(&sink, 3, 400);
    assert!(sink_report.get("drop_duplicate") > 0, "{sink}");
    assert_nothing_leaked("sink", &sink_report);
    assert_nothing_leaked("source", &source_report);
}

#[test]
fn recovery_makes_good_what_a_wire_does() {
    let between = Between::wire(ONE_PERCENT, NicText::steady, true);
    let size = Size {
        rounds: 5,
        round_messages: 500,
        ..LONG
    };
    recovered(between.pair(), size);
}
