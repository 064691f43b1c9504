//! Generation of programs from seeds.

use vi_types::QueueKind;

use crate::program::{
    DescriptorSpec, Fault, Flaw, Operation, PeerSpec, Pick, RegionSpec, Step, ViSpec,
};
use crate::rng::Rng;

/// Generates a program.
pub(crate) struct Generator {
    rng: Rng,
}

/// Maximum of steps between two quiescent points.
const BURST_STEPS: u32 = 7;

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
        }
    }

    /// Generates a program with this number of steps.
    pub(crate) fn program(mut self, steps: usize) -> Vec<Step> {
        let mut program = self.setup();
        let mut burst = 0;
        while program.len() < steps {
            if burst == 0 {
                program.push(Step::Quiesce);
                burst = 1 + self.rng.below(BURST_STEPS);
            }
            burst -= 1;
            self.some_steps(&mut program);
        }
        program.truncate(steps);
        program
    }

    /// Steps that create the objects that most of the following steps need, at both endpoints.
    fn setup(&mut self) -> Vec<Step> {
        let mut program = Vec::new();
        for end in [0, 1] {
            let nic = self.valid();
            program.push(Step::OpenNic { end });
            for _ in 0..2 {
                program.push(Step::CreateTag { end, nic });
            }
            // The writable memory with and without rights, and with another tag; and the read-only page.
            for (tag, whole, rights) in [
                (0, true, true),
                (0, true, false),
                (1, true, true),
                (0, false, true),
            ] {
                let spec = RegionSpec {
                    whole,
                    read_only: !whole,
                    tag: Pick {
                        number: tag,
                        invalid: false,
                    },
                    rdma_write: rights,
                    rdma_read: rights,
                    ..RegionSpec::default()
                };
                program.push(Step::Register { end, nic, spec });
            }
            let entries = u64::from(1 + self.rng.below(20));
            program.push(Step::CreateCq { end, nic, entries });
            for _ in 0..3 {
                let spec = self.valid_vi();
                program.push(Step::CreateVi { end, nic, spec });
            }
        }
        for _ in 0..3 {
            self.connection(&mut program);
        }
        program
    }

    fn valid(&mut self) -> Pick {
        Pick {
            number: self.rng.below(1 << 16),
            invalid: false,
        }
    }

    fn pick(&mut self) -> Pick {
        Pick {
            number: self.rng.below(1 << 16),
            invalid: self.rng.percent(3),
        }
    }

    fn end(&mut self) -> usize {
        self.rng.below(2) as usize
    }

    fn queue_kind(&mut self) -> QueueKind {
        self.rng.one_of(&[QueueKind::Send, QueueKind::Receive])
    }

    fn fault(&mut self, choices: &[Fault]) -> Fault {
        if self.rng.percent(15) {
            self.rng.one_of(choices)
        } else {
            Fault::None
        }
    }

    /// A request that is immediately accepted.
    fn connection(&mut self, program: &mut Vec<Step>) {
        let (vi, end, nic) = (self.valid(), self.end(), self.valid());
        program.push(Step::Request {
            vi,
            end,
            nic,
            fault: Fault::None,
        });
        program.push(Step::Accept {
            request: self.valid(),
            vi: self.valid(),
        });
    }

    fn some_steps(&mut self, program: &mut Vec<Step>) {
        let choice = self.rng.below(1000);
        let step = match choice {
            750..=809 => {
                // Two requests, so that most are matched.
                let (first, second) = (self.peer_request(), self.peer_request());
                program.extend([first, second]);
                self.peer_outcome()
            }
            810..=859 => self.attribute_change(),
            0..=609 => self.traffic(),
            610..=749 => {
                return match self.rng.below(10) {
                    0..=6 => self.connection(program),
                    _ => {
                        let step = self.connecting();
                        program.push(step);
                    }
                };
            }
            _ => self.control(),
        };
        program.push(step);
    }

    fn traffic(&mut self) -> Step {
        match self.rng.below(100) {
            0..=24 => Step::Post {
                vi: self.pick(),
                kind: QueueKind::Receive,
                spec: self.receive(),
            },
            25..=54 => Step::Post {
                vi: self.pick(),
                kind: QueueKind::Send,
                spec: self.send(),
            },
            55..=70 => Step::Done {
                vi: self.pick(),
                kind: self.queue_kind(),
            },
            71..=78 => Step::Notify {
                vi: self.pick(),
                kind: self.queue_kind(),
                times: self.rng.weighted(&[(6, 1), (2, 2), (2, 3)]),
            },
            79..=81 => Step::CqNotify { cq: self.pick() },
            82..=84 => Step::Wait {
                vi: self.pick(),
                kind: self.queue_kind(),
            },
            85..=92 => Step::CqDone { cq: self.pick() },
            93..=95 => Step::CqWait { cq: self.pick() },
            _ => Step::QueryVi { vi: self.pick() },
        }
    }

    fn peer_request(&mut self) -> Step {
        Step::PeerRequest {
            vi: self.pick(),
            spec: PeerSpec {
                seed: self.rng.next() as u32,
                limited: self.rng.percent(15),
                fault: match self.rng.percent(40) {
                    true => self.fault(&[Fault::Address, Fault::Timeout, Fault::Host]),
                    false => Fault::None,
                },
            },
        }
    }

    fn peer_outcome(&mut self) -> Step {
        let vi = self.pick();
        match self.rng.below(4) {
            0 => Step::PeerDone { vi },
            1 => Step::PeerWait { vi },
            2 => Step::Disconnect { vi },
            _ => self.peer_request(),
        }
    }

    fn attribute_change(&mut self) -> Step {
        let (end, nic) = (self.end(), self.pick());
        match self.rng.below(10) {
            0..=2 => Step::SetVi {
                vi: self.pick(),
                spec: self.vi(),
            },
            3..=5 => {
                let region = self.pick();
                let mut spec = self.region();
                spec.fault = self.fault(&[Fault::Address]);
                spec.tag.invalid |= self.rng.percent(15);
                Step::SetMem {
                    end,
                    nic,
                    region,
                    spec,
                }
            }
            6..=8 => Step::ResizeCq {
                cq: self.pick(),
                entries: self.rng.one_of(&[0, 1, 1, 2, 3, 16, 1 << 12, 1 << 40]),
            },
            _ => Step::Discover {
                end,
                nic,
                hops: self.rng.one_of(&[0, 1, 1, 3]),
            },
        }
    }

    fn connecting(&mut self) -> Step {
        match self.rng.below(10) {
            0..=1 => Step::Disconnect { vi: self.pick() },
            2..=3 => Step::Request {
                vi: self.pick(),
                end: self.end(),
                nic: self.valid(),
                fault: self.fault(&[
                    Fault::Address,
                    Fault::Timeout,
                    Fault::Host,
                    Fault::NoListener,
                ]),
            },
            4..=7 => Step::Accept {
                request: self.pick(),
                vi: self.pick(),
            },
            8 => Step::Reject {
                request: self.pick(),
            },
            _ => Step::ConnectWait {
                end: self.end(),
                nic: self.pick(),
                fault: self.fault(&[Fault::Address, Fault::NoListener]),
            },
        }
    }

    fn control(&mut self) -> Step {
        let (end, nic) = (self.end(), self.pick());
        match self.rng.below(100) {
            0..=1 => Step::OpenNic { end },
            2 => Step::CloseNic { end, nic },
            3..=4 => Step::QueryNic { end, nic },
            5..=11 => Step::CreateTag { end, nic },
            12..=18 => Step::DestroyTag {
                end,
                nic,
                tag: self.pick(),
            },
            19..=29 => Step::Register {
                end,
                nic,
                spec: self.region(),
            },
            30..=33 => Step::Deregister {
                end,
                nic,
                region: self.pick(),
                fault: self.fault(&[Fault::Address]),
            },
            34..=43 => Step::QueryMem {
                end,
                nic,
                region: self.pick(),
                fault: self.fault(&[Fault::Address]),
            },
            44..=50 => Step::CreateCq {
                end,
                nic,
                entries: self.rng.one_of(&[0, 1, 2, 16, 1 << 12, 1 << 40]),
            },
            51..=57 => Step::DestroyCq { cq: self.pick() },
            58..=74 => Step::CreateVi {
                end,
                nic,
                spec: self.vi(),
            },
            75..=84 => Step::DestroyVi { vi: self.pick() },
            _ => Step::QueryVi { vi: self.pick() },
        }
    }

    fn region(&mut self) -> RegionSpec {
        RegionSpec {
            tag: self.pick(),
            whole: self.rng.percent(40),
            read_only: self.rng.percent(15),
            seed: self.rng.next() as u32,
            rdma_write: self.rng.percent(60),
            rdma_read: self.rng.percent(60),
            fault: self.fault(&[Fault::Attribute, Fault::Address]),
        }
    }

    fn valid_vi(&mut self) -> ViSpec {
        let mut spec = self.vi();
        spec.level = self.rng.one_of(&[1, 2, 4]);
        spec.max_transfer_bytes = 4096;
        spec.rdma_read = spec.level != 1;
        spec.tag = Pick {
            number: 0,
            invalid: false,
        };
        spec.fault = None;
        spec
    }

    fn vi(&mut self) -> ViSpec {
        let cq = |generator: &mut Self| {
            (generator.rng.percent(50)).then(|| {
                let mut cq = generator.pick();
                cq.invalid &= generator.rng.percent(50);
                cq
            })
        };
        ViSpec {
            level: self.rng.weighted(&[(30, 1), (33, 2), (33, 4), (4, 8)]),
            max_transfer_bytes: self.rng.weighted(&[(15, 100), (60, 4096), (25, 65536)]),
            rdma_write: self.rng.percent(75),
            rdma_read: self.rng.percent(50),
            tag: self.pick(),
            send_cq: cq(self),
            recv_cq: cq(self),
            fault: self.rng.percent(8).then(|| self.rng.below(4)),
        }
    }

    fn segments(&mut self) -> Vec<u32> {
        let count = self.rng.weighted(&[
            (10, 0),
            (50, 1),
            (20, 2),
            (12, 4),
            (5, 9),
            (2, 252),
            (1, 255),
        ]);
        let longest = match count {
            0..=9 => self
                .rng
                .weighted(&[(10, 1), (40, 64), (30, 1000), (15, 3000), (5, 20_000)]),
            _ => 20,
        };
        (0..count)
            .map(|_| {
                if self.rng.percent(8) {
                    0
                } else {
                    self.rng.below(longest + 1)
                }
            })
            .collect()
    }

    fn spec(&mut self, operation: Operation, flaws: &[Flaw]) -> DescriptorSpec {
        DescriptorSpec {
            operation,
            segments: self.segments(),
            immediate: self.rng.percent(30).then(|| self.rng.next() as u32),
            fence: self.rng.percent(10),
            flaw: self.rng.percent(9).then(|| self.rng.one_of(flaws)),
            seed: self.rng.next() as u32,
            allow_break: self.rng.percent(4),
        }
    }

    fn receive(&mut self) -> DescriptorSpec {
        let mut spec = self.spec(Operation::Message, &RECEIVE_FLAWS);
        if self.rng.percent(90) {
            // Large enough for most messages.
            spec.segments
                .push(if self.rng.percent(80) { 4096 } else { 8192 });
        }
        spec
    }

    fn send(&mut self) -> DescriptorSpec {
        match self.rng.below(100) {
            0..=49 => self.spec(Operation::Message, &SEND_FLAWS),
            // Long enough that the peer copies it; on many VIs 4096 bytes, the longest.
            50..=59 => DescriptorSpec {
                segments: vec![4096 + self.rng.below(4096)],
                ..self.spec(Operation::Message, &SEND_FLAWS)
            },
            60..=84 => self.spec(Operation::RdmaWrite, &WRITE_FLAWS),
            _ => self.spec(Operation::RdmaRead, &WRITE_FLAWS),
        }
    }
}

const RECEIVE_FLAWS: [Flaw; 13] = [
    Flaw::ReservedControlBit,
    Flaw::ReservedWord,
    Flaw::UndefinedOperation,
    Flaw::TooManySegments,
    Flaw::SegmentHandle,
    Flaw::SegmentTag,
    Flaw::SegmentRange,
    Flaw::SegmentReadOnly,
    Flaw::DescriptorMisaligned,
    Flaw::DescriptorHandle,
    Flaw::DescriptorTag,
    Flaw::DescriptorRange,
    Flaw::DescriptorReadOnly,
];

const SEND_FLAWS: [Flaw; 15] = [
    Flaw::ReservedControlBit,
    Flaw::ReservedWord,
    Flaw::UndefinedOperation,
    Flaw::LengthField,
    Flaw::TooLong,
    Flaw::TooManySegments,
    Flaw::SegmentHandle,
    Flaw::SegmentTag,
    Flaw::SegmentRange,
    Flaw::SegmentReadOnly,
    Flaw::DescriptorMisaligned,
    Flaw::DescriptorHandle,
    Flaw::DescriptorTag,
    Flaw::DescriptorRange,
    Flaw::DescriptorReadOnly,
];

const WRITE_FLAWS: [Flaw; 12] = [
    Flaw::AddressReserved,
    Flaw::NoAddressSegment,
    Flaw::TargetHandle,
    Flaw::TargetTag,
    Flaw::TargetRange,
    Flaw::TargetRights,
    Flaw::TargetHandle,
    Flaw::TargetRange,
    Flaw::TargetRights,
    Flaw::LengthField,
    Flaw::SegmentHandle,
    Flaw::ReservedWord,
];
