//! Programs: lists of steps that a seed decides. A step names what it works on by numbers, which the player resolves
//! against what there is at that moment; so a program stays one when steps are taken out of it.

/// Names something that exists, or a handle that is no good.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pick {
    /// Counts what there is, modulo how much there is.
    pub(crate) number: u32,
    /// A handle of something that ended, of the other end, or made up.
    pub(crate) wrong: bool,
}

/// Which work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// What is wrong with a descriptor, or where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    ReservedControlBit,
    ReservedWord,
    UndefinedOperation,
    LengthField,
    TooLong,
    TooManySegments,
    SegmentHandle,
    SegmentTag,
    SegmentRange,
    SegmentReadOnly,
    AddressReserved,
    NoAddressSegment,
    TargetHandle,
    TargetTag,
    TargetRange,
    TargetRights,
    DescriptorMisaligned,
    DescriptorHandle,
    DescriptorTag,
    DescriptorRange,
    DescriptorReadOnly,
}

/// What a posted descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Send, or receive.
    Message,
    RdmaWrite,
    RdmaRead,
}

/// A descriptor to be.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) operation: Operation,
    pub(crate) segments: Vec<u32>,
    pub(crate) immediate: Option<u32>,
    pub(crate) fence: bool,
    pub(crate) flaw: Option<Flaw>,
    /// Decides on places and regions.
    pub(crate) dice: u32,
    /// Posted also where that breaks the connection: on a full queue, or towards an empty one.
    pub(crate) reckless: bool,
}

/// What is wrong with the arguments of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mistake {
    #[default]
    None,
    /// Of a VI, a region or a completion queue.
    Attribute,
    Address,
    Timeout,
    Host,
    /// Nobody waits there.
    Nobody,
}

/// Attributes of a VI to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViShape {
    pub(crate) level: u16,
    pub(crate) max_transfer_bytes: u64,
    pub(crate) rdma_write: bool,
    pub(crate) rdma_read: bool,
    pub(crate) tag: Pick,
    pub(crate) send_cq: Option<Pick>,
    pub(crate) recv_cq: Option<Pick>,
    pub(crate) mistake: Option<u32>,
}

/// A region to be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RegionShape {
    pub(crate) tag: Pick,
    /// All of the memory that can be written, the pages that cannot, or this part of it.
    pub(crate) whole: bool,
    pub(crate) read_only: bool,
    pub(crate) dice: u32,
    pub(crate) rdma_write: bool,
    pub(crate) rdma_read: bool,
    pub(crate) mistake: Mistake,
}

/// A peer request to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerShape {
    /// Decides whom it asks for.
    pub(crate) dice: u32,
    /// It ends soon, whether there is a match or not.
    pub(crate) limited: bool,
    pub(crate) mistake: Mistake,
}

/// One step.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    OpenNic {
        end: usize,
    },
    CloseNic {
        end: usize,
        nic: Pick,
    },
    QueryNic {
        end: usize,
        nic: Pick,
    },
    CreateTag {
        end: usize,
        nic: Pick,
    },
    DestroyTag {
        end: usize,
        nic: Pick,
        tag: Pick,
    },
    Register {
        end: usize,
        nic: Pick,
        shape: RegionShape,
    },
    Deregister {
        end: usize,
        nic: Pick,
        region: Pick,
        mistake: Mistake,
    },
    QueryMem {
        end: usize,
        nic: Pick,
        region: Pick,
        mistake: Mistake,
    },
    CreateCq {
        end: usize,
        nic: Pick,
        entries: u64,
    },
    DestroyCq {
        cq: Pick,
    },
    CreateVi {
        end: usize,
        nic: Pick,
        shape: ViShape,
    },
    DestroyVi {
        vi: Pick,
    },
    QueryVi {
        vi: Pick,
    },
    Post {
        vi: Pick,
        side: Side,
        shape: Shape,
    },
    Done {
        vi: Pick,
        side: Side,
    },
    Wait {
        vi: Pick,
        side: Side,
    },
    CqDone {
        cq: Pick,
    },
    CqWait {
        cq: Pick,
    },
    ConnectWait {
        end: usize,
        nic: Pick,
        mistake: Mistake,
    },
    Request {
        vi: Pick,
        end: usize,
        nic: Pick,
        mistake: Mistake,
    },
    Accept {
        request: Pick,
        vi: Pick,
    },
    Reject {
        request: Pick,
    },
    Disconnect {
        vi: Pick,
    },
    ResizeCq {
        cq: Pick,
        entries: u64,
    },
    SetVi {
        vi: Pick,
        shape: ViShape,
    },
    SetMem {
        end: usize,
        nic: Pick,
        region: Pick,
        shape: RegionShape,
    },
    Discover {
        end: usize,
        nic: Pick,
        hops: u64,
    },
    PeerRequest {
        vi: Pick,
        shape: PeerShape,
    },
    PeerDone {
        vi: Pick,
    },
    PeerWait {
        vi: Pick,
    },
    Notify {
        vi: Pick,
        side: Side,
        times: u32,
    },
    CqNotify {
        cq: Pick,
    },
    Settle,
}
