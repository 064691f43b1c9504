//! What there is at both ends, and who owns it.

use std::collections::BTreeMap;

use pmd::config::{NicConfig, TransportKind};
use vipl::{NicAttributes, ViAttributes};

use super::peers::PeerRequest;

pub(crate) const PAGE_BYTES: u64 = 4096;

/// A registered region (VIPL 3.4.3): whole pages.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) nic: u64,
    /// As it was registered.
    pub(crate) address: u64,
    pub(crate) base: u64,
    pub(crate) end: u64,
    pub(crate) tag: u64,
    pub(crate) rdma_write: bool,
    pub(crate) rdma_read: bool,
    /// None of its pages is read-only.
    pub(crate) writable: bool,
}

impl Region {
    fn holds(&self, address: u64, length_bytes: u64) -> bool {
        let end = u128::from(address) + u128::from(length_bytes);
        address >= self.base && end <= u128::from(self.end)
    }
}

/// What is fixed about a VI (VIPL 3.2.1).
#[derive(Clone, Debug)]
pub(crate) struct ViFacts {
    pub(crate) end: usize,
    pub(crate) nic: u64,
    pub(crate) attributes: ViAttributes,
    pub(crate) tag: u64,
    pub(crate) send_cq: Option<u64>,
    pub(crate) recv_cq: Option<u64>,
}

/// What is fixed about a completion queue (VIPL 3.6.1).
#[derive(Clone, Debug)]
pub(crate) struct CqFacts {
    pub(crate) end: usize,
    pub(crate) nic: u64,
}

/// The attributes of a NIC that bound what its programs can do (VIPL 4.5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) vis: usize,
    pub(crate) cqs: usize,
    pub(crate) cq_entries: u64,
    pub(crate) tags: usize,
    pub(crate) regions: usize,
    pub(crate) queue_descriptors: usize,
    pub(crate) segments: u32,
    pub(crate) transfer_bytes: u64,
    pub(crate) levels: u16,
    pub(crate) rdma_read_levels: u16,
    /// A message of no more bytes than these is placed as a whole, or not at all.
    pub(crate) whole_bytes: u64,
    /// Are hosts found that nobody named?
    pub(crate) discovers: bool,
    /// Handlers that may wait on one queue.
    pub(crate) notifies: usize,
}

impl Limits {
    pub(crate) fn of(attributes: &NicAttributes, config: &NicConfig) -> Self {
        let in_frames = config.transport == TransportKind::FcVi;
        Self {
            vis: attributes.max_vi as usize,
            cqs: attributes.max_cq as usize,
            cq_entries: attributes.max_cq_entries,
            tags: attributes.max_ptags as usize,
            regions: attributes.max_register_regions as usize,
            queue_descriptors: attributes.max_descriptors_per_queue as usize,
            segments: attributes.max_segments_per_desc as u32,
            transfer_bytes: attributes.max_transfer_size,
            levels: attributes.reliability_level_support,
            rdma_read_levels: attributes.rdma_read_support,
            // A stream may end at any byte.
            whole_bytes: if in_frames { attributes.native_mtu } else { 0 },
            discovers: in_frames,
            notifies: config.max_notifies_per_queue as usize,
        }
    }
}

/// One end: a NIC of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndTables {
    /// Openings, and whether each is open.
    pub(crate) nics: Vec<u64>,
    /// Tags and their owners.
    pub(crate) tags: BTreeMap<u64, u64>,
    pub(crate) regions: BTreeMap<u32, Region>,
}

/// A request that was matched and not yet answered (VIPL 3.3.1).
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) end: usize,
    pub(crate) nic: u64,
    pub(crate) client: u64,
    /// As they were when the client asked.
    pub(crate) attributes: ViAttributes,
}

/// Both ends.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) limits: Limits,
    pub(crate) ends: [EndTables; 2],
    pub(crate) vis: BTreeMap<u64, ViFacts>,
    pub(crate) cqs: BTreeMap<u64, CqFacts>,
    pub(crate) requests: BTreeMap<u64, Request>,
    /// All peer requests that were ever made.
    pub(crate) peers: BTreeMap<u64, PeerRequest>,
}

/// What memory is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Data that is sent.
    Read,
    /// Descriptors, and data that is received.
    Write,
    /// The target of the other end's RDMA writes.
    RemoteWrite,
    /// The source of the other end's RDMA reads.
    RemoteRead,
}

impl Tables {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ends: Default::default(),
            vis: BTreeMap::new(),
            cqs: BTreeMap::new(),
            requests: BTreeMap::new(),
            peers: BTreeMap::new(),
        }
    }

    /// The memory protection check (VIPL 3.4.1): handle, range, tag, rights.
    pub(crate) fn allows(
        &self,
        vi: &ViFacts,
        handle: u32,
        address: u64,
        length_bytes: u64,
        wanted: Use,
    ) -> bool {
        self.ends[vi.end]
            .regions
            .get(&handle)
            .is_some_and(|region| {
                region.tag == vi.tag
                    && region.holds(address, length_bytes)
                    && match wanted {
                        Use::Read => true,
                        Use::Write => region.writable,
                        Use::RemoteWrite => region.writable && region.rdma_write,
                        Use::RemoteRead => region.rdma_read,
                    }
            })
    }

    pub(crate) fn end_of_nic(&self, nic: u64) -> Option<usize> {
        self.ends.iter().position(|end| end.nics.contains(&nic))
    }

    /// Is a tag used by a VI or a region (VIPL 3.4.2)?
    pub(crate) fn tag_in_use(&self, end: usize, tag: u64) -> bool {
        self.ends[end].regions.values().any(|r| r.tag == tag)
            || self.vis.values().any(|vi| vi.end == end && vi.tag == tag)
    }

    /// Is a work queue attached to a completion queue?
    pub(crate) fn attached(&self, cq: u64) -> bool {
        self.attached_descriptors(cq) > 0
    }

    /// Descriptors that can be posted on the work queues that are attached to a completion queue.
    pub(super) fn attached_descriptors(&self, cq: u64) -> usize {
        let queues = self.vis.values().flat_map(|vi| [vi.send_cq, vi.recv_cq]);
        queues.filter(|of| *of == Some(cq)).count() * self.limits.queue_descriptors
    }

    /// A completion queue goes with its opening, or with the last VI of another one that uses it.
    pub(crate) fn forget_orphaned_cqs(&mut self) {
        let gone: Vec<u64> = self
            .cqs
            .iter()
            .filter(|(handle, cq)| self.end_of_nic(cq.nic).is_none() && !self.attached(**handle))
            .map(|(handle, _)| *handle)
            .collect();
        for handle in gone {
            self.cqs.remove(&handle);
        }
    }
}
