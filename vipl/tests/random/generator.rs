//! How a seed makes a program.

use crate::program::{
    Flaw, Mistake, Operation, PeerShape, Pick, RegionShape, Shape, Side, Step, ViShape,
};
use crate::seeded::Seeded;

/// Makes programs.
pub(crate) struct Generator {
    seeded: Seeded,
}

/// Steps of a burst, at most: nobody waits for what they set off to be over.
const BURST_STEPS: u32 = 7;

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seeded: Seeded::new(seed),
        }
    }

    /// A program of so many steps.
    pub(crate) fn program(mut self, steps: usize) -> Vec<Step> {
        let mut program = self.beginning();
        let mut burst = 0;
        while program.len() < steps {
            if burst == 0 {
                program.push(Step::Settle);
                burst = 1 + self.seeded.below(BURST_STEPS);
            }
            burst -= 1;
            self.some_steps(&mut program);
        }
        program.truncate(steps);
        program
    }

    /// Both ends with what most of the following steps need.
    fn beginning(&mut self) -> Vec<Step> {
        let mut program = Vec::new();
        for end in [0, 1] {
            let nic = self.good();
            program.push(Step::OpenNic { end });
            for _ in 0..2 {
                program.push(Step::CreateTag { end, nic });
            }
            // All that can be written, with rights and without, with another tag; and the pages that cannot.
            for (tag, whole, rights) in [
                (0, true, true),
                (0, true, false),
                (1, true, true),
                (0, false, true),
            ] {
                let shape = RegionShape {
                    whole,
                    read_only: !whole,
                    tag: Pick {
                        number: tag,
                        wrong: false,
                    },
                    rdma_write: rights,
                    rdma_read: rights,
                    ..RegionShape::default()
                };
                program.push(Step::Register { end, nic, shape });
            }
            let entries = u64::from(1 + self.seeded.below(20));
            program.push(Step::CreateCq { end, nic, entries });
            for _ in 0..3 {
                let shape = self.good_vi();
                program.push(Step::CreateVi { end, nic, shape });
            }
        }
        for _ in 0..3 {
            self.connection(&mut program);
        }
        program
    }

    fn good(&mut self) -> Pick {
        Pick {
            number: self.seeded.below(1 << 16),
            wrong: false,
        }
    }

    fn pick(&mut self) -> Pick {
        Pick {
            number: self.seeded.below(1 << 16),
            wrong: self.seeded.percent(3),
        }
    }

    fn end(&mut self) -> usize {
        self.seeded.below(2) as usize
    }

    fn side(&mut self) -> Side {
        self.seeded.one_of(&[Side::Send, Side::Receive])
    }

    fn mistake(&mut self, choices: &[Mistake]) -> Mistake {
        if self.seeded.percent(15) {
            self.seeded.one_of(choices)
        } else {
            Mistake::None
        }
    }

    /// A request that is accepted at once.
    fn connection(&mut self, program: &mut Vec<Step>) {
        let (vi, end, nic) = (self.good(), self.end(), self.good());
        program.push(Step::Request {
            vi,
            end,
            nic,
            mistake: Mistake::None,
        });
        program.push(Step::Accept {
            request: self.good(),
            vi: self.good(),
        });
    }

    fn some_steps(&mut self, program: &mut Vec<Step>) {
        let choice = self.seeded.below(1000);
        let step = match choice {
            750..=809 => {
                // Two at a time, so that most find each other.
                let (first, second) = (self.peer_request(), self.peer_request());
                program.extend([first, second]);
                self.peer_outcome()
            }
            810..=859 => self.changing(),
            0..=609 => self.traffic(),
            610..=749 => {
                return match self.seeded.below(10) {
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
        match self.seeded.below(100) {
            0..=24 => Step::Post {
                vi: self.pick(),
                side: Side::Receive,
                shape: self.receive(),
            },
            25..=54 => Step::Post {
                vi: self.pick(),
                side: Side::Send,
                shape: self.send(),
            },
            55..=70 => Step::Done {
                vi: self.pick(),
                side: self.side(),
            },
            71..=78 => Step::Notify {
                vi: self.pick(),
                side: self.side(),
                times: self.seeded.weighted(&[(6, 1), (2, 2), (2, 3)]),
            },
            79..=81 => Step::CqNotify { cq: self.pick() },
            82..=84 => Step::Wait {
                vi: self.pick(),
                side: self.side(),
            },
            85..=92 => Step::CqDone { cq: self.pick() },
            93..=95 => Step::CqWait { cq: self.pick() },
            _ => Step::QueryVi { vi: self.pick() },
        }
    }

    fn peer_request(&mut self) -> Step {
        Step::PeerRequest {
            vi: self.pick(),
            shape: PeerShape {
                dice: self.seeded.next() as u32,
                limited: self.seeded.percent(15),
                mistake: match self.seeded.percent(40) {
                    true => self.mistake(&[Mistake::Address, Mistake::Timeout, Mistake::Host]),
                    false => Mistake::None,
                },
            },
        }
    }

    fn peer_outcome(&mut self) -> Step {
        let vi = self.pick();
        match self.seeded.below(4) {
            0 => Step::PeerDone { vi },
            1 => Step::PeerWait { vi },
            2 => Step::Disconnect { vi },
            _ => self.peer_request(),
        }
    }

    fn changing(&mut self) -> Step {
        let (end, nic) = (self.end(), self.pick());
        match self.seeded.below(10) {
            0..=2 => Step::SetVi {
                vi: self.pick(),
                shape: self.vi(),
            },
            3..=5 => {
                let region = self.pick();
                let mut shape = self.region();
                shape.mistake = self.mistake(&[Mistake::Address]);
                shape.tag.wrong |= self.seeded.percent(15);
                Step::SetMem {
                    end,
                    nic,
                    region,
                    shape,
                }
            }
            6..=8 => Step::ResizeCq {
                cq: self.pick(),
                entries: self.seeded.one_of(&[0, 1, 1, 2, 3, 16, 1 << 12, 1 << 40]),
            },
            _ => Step::Discover {
                end,
                nic,
                hops: self.seeded.one_of(&[0, 1, 1, 3]),
            },
        }
    }

    fn connecting(&mut self) -> Step {
        match self.seeded.below(10) {
            0..=1 => Step::Disconnect { vi: self.pick() },
            2..=3 => Step::Request {
                vi: self.pick(),
                end: self.end(),
                nic: self.good(),
                mistake: self.mistake(&[
                    Mistake::Address,
                    Mistake::Timeout,
                    Mistake::Host,
                    Mistake::Nobody,
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
                mistake: self.mistake(&[Mistake::Address, Mistake::Nobody]),
            },
        }
    }

    fn control(&mut self) -> Step {
        let (end, nic) = (self.end(), self.pick());
        match self.seeded.below(100) {
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
                shape: self.region(),
            },
            30..=33 => Step::Deregister {
                end,
                nic,
                region: self.pick(),
                mistake: self.mistake(&[Mistake::Address]),
            },
            34..=43 => Step::QueryMem {
                end,
                nic,
                region: self.pick(),
                mistake: self.mistake(&[Mistake::Address]),
            },
            44..=50 => Step::CreateCq {
                end,
                nic,
                entries: self.seeded.one_of(&[0, 1, 2, 16, 1 << 12, 1 << 40]),
            },
            51..=57 => Step::DestroyCq { cq: self.pick() },
            58..=74 => Step::CreateVi {
                end,
                nic,
                shape: self.vi(),
            },
            75..=84 => Step::DestroyVi { vi: self.pick() },
            _ => Step::QueryVi { vi: self.pick() },
        }
    }

    fn region(&mut self) -> RegionShape {
        RegionShape {
            tag: self.pick(),
            whole: self.seeded.percent(40),
            read_only: self.seeded.percent(15),
            dice: self.seeded.next() as u32,
            rdma_write: self.seeded.percent(60),
            rdma_read: self.seeded.percent(60),
            mistake: self.mistake(&[Mistake::Attribute, Mistake::Address]),
        }
    }

    fn good_vi(&mut self) -> ViShape {
        let mut shape = self.vi();
        shape.level = self.seeded.one_of(&[1, 2, 4]);
        shape.max_transfer_bytes = 4096;
        shape.rdma_read = shape.level != 1;
        shape.tag = Pick {
            number: 0,
            wrong: false,
        };
        shape.mistake = None;
        shape
    }

    fn vi(&mut self) -> ViShape {
        let cq = |generator: &mut Self| {
            (generator.seeded.percent(50)).then(|| {
                let mut cq = generator.pick();
                cq.wrong &= generator.seeded.percent(50);
                cq
            })
        };
        ViShape {
            level: self.seeded.weighted(&[(30, 1), (33, 2), (33, 4), (4, 8)]),
            max_transfer_bytes: self.seeded.weighted(&[(15, 100), (60, 4096), (25, 65536)]),
            rdma_write: self.seeded.percent(75),
            rdma_read: self.seeded.percent(50),
            tag: self.pick(),
            send_cq: cq(self),
            recv_cq: cq(self),
            mistake: self.seeded.percent(8).then(|| self.seeded.below(4)),
        }
    }

    fn segments(&mut self) -> Vec<u32> {
        let count = self.seeded.weighted(&[
            (10, 0),
            (50, 1),
            (20, 2),
            (12, 4),
            (5, 9),
            (2, 252),
            (1, 255),
        ]);
        let longest = match count {
            0..=9 => {
                self.seeded
                    .weighted(&[(10, 1), (40, 64), (30, 1000), (15, 3000), (5, 20_000)])
            }
            _ => 20,
        };
        (0..count)
            .map(|_| {
                if self.seeded.percent(8) {
                    0
                } else {
                    self.seeded.below(longest + 1)
                }
            })
            .collect()
    }

    fn shape(&mut self, operation: Operation, flaws: &[Flaw]) -> Shape {
        Shape {
            operation,
            segments: self.segments(),
            immediate: self.seeded.percent(30).then(|| self.seeded.next() as u32),
            fence: self.seeded.percent(10),
            flaw: self.seeded.percent(9).then(|| self.seeded.one_of(flaws)),
            dice: self.seeded.next() as u32,
            reckless: self.seeded.percent(4),
        }
    }

    fn receive(&mut self) -> Shape {
        let mut shape = self.shape(Operation::Message, &RECEIVE_FLAWS);
        if self.seeded.percent(90) {
            // Room enough for most messages.
            shape.segments.push(4096);
        }
        shape
    }

    fn send(&mut self) -> Shape {
        match self.seeded.below(100) {
            0..=59 => self.shape(Operation::Message, &SEND_FLAWS),
            60..=84 => self.shape(Operation::RdmaWrite, &WRITE_FLAWS),
            _ => self.shape(Operation::RdmaRead, &WRITE_FLAWS),
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
