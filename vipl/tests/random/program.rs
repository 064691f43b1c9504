//! Programs: lists of steps. Steps select objects by number, which the player resolves at run time against the existing
//! objects; so a program stays valid when steps are removed.

use vi_types::QueueKind;

/// Selects an existing object, or an invalid handle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pick {
    /// Index, modulo the number of existing objects.
    pub(crate) number: u32,
    /// Selects a stale handle, a handle of the other endpoint, or an arbitrary value.
    pub(crate) invalid: bool,
}

/// Error in a descriptor, or in its address.
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

/// Operation of a posted descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Send, or receive.
    Message,
    RdmaWrite,
    RdmaRead,
}

/// A descriptor to be posted.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorSpec {
    pub(crate) operation: Operation,
    pub(crate) segments: Vec<u32>,
    pub(crate) immediate: Option<u32>,
    pub(crate) fence: bool,
    pub(crate) flaw: Option<Flaw>,
    /// Determines addresses and regions.
    pub(crate) seed: u32,
    /// Posts also if that breaks the connection: on a full queue, or without a receive at the peer.
    pub(crate) allow_break: bool,
}

/// Error in the arguments of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// An attribute of a VI, a region or a completion queue.
    Attribute,
    Address,
    Timeout,
    Host,
    /// An address without a listener.
    NoListener,
}

/// Attributes of a VI to be created or changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViSpec {
    pub(crate) level: u16,
    pub(crate) max_transfer_bytes: u64,
    pub(crate) rdma_write: bool,
    pub(crate) rdma_read: bool,
    pub(crate) tag: Pick,
    pub(crate) send_cq: Option<Pick>,
    pub(crate) recv_cq: Option<Pick>,
    pub(crate) fault: Option<u32>,
}

/// A region to be registered or changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RegionSpec {
    pub(crate) tag: Pick,
    /// All writable memory.
    pub(crate) whole: bool,
    /// The read-only page.
    pub(crate) read_only: bool,
    /// Otherwise determines a part of the writable memory.
    pub(crate) seed: u32,
    pub(crate) rdma_write: bool,
    pub(crate) rdma_read: bool,
    pub(crate) fault: Fault,
}

/// A peer request to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSpec {
    /// Determines the discriminator.
    pub(crate) seed: u32,
    /// Has a short timeout.
    pub(crate) limited: bool,
    pub(crate) fault: Fault,
}

/// A step of a program.
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
        spec: RegionSpec,
    },
    Deregister {
        end: usize,
        nic: Pick,
        region: Pick,
        fault: Fault,
    },
    QueryMem {
        end: usize,
        nic: Pick,
        region: Pick,
        fault: Fault,
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
        spec: ViSpec,
    },
    DestroyVi {
        vi: Pick,
    },
    QueryVi {
        vi: Pick,
    },
    Post {
        vi: Pick,
        kind: QueueKind,
        spec: DescriptorSpec,
    },
    Done {
        vi: Pick,
        kind: QueueKind,
    },
    Wait {
        vi: Pick,
        kind: QueueKind,
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
        fault: Fault,
    },
    Request {
        vi: Pick,
        end: usize,
        nic: Pick,
        fault: Fault,
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
        spec: ViSpec,
    },
    SetMem {
        end: usize,
        nic: Pick,
        region: Pick,
        spec: RegionSpec,
    },
    Discover {
        end: usize,
        nic: Pick,
        hops: u64,
    },
    PeerRequest {
        vi: Pick,
        spec: PeerSpec,
    },
    PeerDone {
        vi: Pick,
    },
    PeerWait {
        vi: Pick,
    },
    Notify {
        vi: Pick,
        kind: QueueKind,
        times: u32,
    },
    CqNotify {
        cq: Pick,
    },
    Quiesce,
}
