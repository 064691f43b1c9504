//! Objects of both endpoints, and their owners.

use std::collections::BTreeMap;

use pmd::config::NicConfig;
use vipl::{NicAttributes, ViAttributes};

use super::peers::PeerRequest;
use crate::can_be_direct;

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

/// Attributes of a VI (VIPL 3.2.1).
#[derive(Clone, Debug)]
pub(crate) struct ViFacts {
    pub(crate) end: usize,
    pub(crate) nic: u64,
    pub(crate) attributes: ViAttributes,
    pub(crate) tag: u64,
    pub(crate) send_cq: Option<u64>,
    pub(crate) recv_cq: Option<u64>,
}

/// Attributes of a completion queue (VIPL 3.6.1).
#[derive(Clone, Debug)]
pub(crate) struct CqFacts {
    pub(crate) end: usize,
    pub(crate) nic: u64,
}

/// Limits of a NIC (VIPL 4.5).
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
    /// A message of at most this length is placed as a whole or not at all.
    pub(crate) whole_bytes: u64,
    /// Sends of at least this length may be copied by the peer from memory.
    pub(crate) copied_from_bytes: u64,
    /// Hosts that are not configured are discovered.
    pub(crate) discovers: bool,
    /// Maximum of pending notify handlers of a queue.
    pub(crate) notifies: usize,
}

impl Limits {
    pub(crate) fn of(attributes: &NicAttributes, config: &NicConfig) -> Self {
        let in_frames = config.network.vi_tcp().is_none();
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
            // A TCP stream may end at any byte.
            whole_bytes: if in_frames { attributes.native_mtu } else { 0 },
            copied_from_bytes: if can_be_direct() { 4096 } else { u64::MAX },
            discovers: in_frames,
            notifies: config.limits.max_notifies_per_queue as usize,
        }
    }
}

/// Objects of one endpoint, which is a NIC of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndpointTables {
    /// Open NIC handles.
    pub(crate) nics: Vec<u64>,
    /// Tags and their owners.
    pub(crate) tags: BTreeMap<u64, u64>,
    pub(crate) regions: BTreeMap<u32, Region>,
}

/// A received connection request without a response (VIPL 3.3.1).
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) end: usize,
    pub(crate) nic: u64,
    pub(crate) client: u64,
    /// Attributes of the client's VI at the time of the request.
    pub(crate) attributes: ViAttributes,
}

/// Objects of both endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) limits: Limits,
    pub(crate) ends: [EndpointTables; 2],
    pub(crate) vis: BTreeMap<u64, ViFacts>,
    pub(crate) cqs: BTreeMap<u64, CqFacts>,
    pub(crate) requests: BTreeMap<u64, Request>,
    /// All peer requests of the program.
    pub(crate) peers: BTreeMap<u64, PeerRequest>,
}

/// Kind of access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Data of sends.
    Read,
    /// Descriptors, and data of receives.
    Write,
    /// Target of the peer's RDMA writes.
    RemoteWrite,
    /// Source of the peer's RDMA reads.
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

    /// Returns whether a VI or a region uses the tag (VIPL 3.4.2).
    pub(crate) fn tag_in_use(&self, end: usize, tag: u64) -> bool {
        self.ends[end].regions.values().any(|r| r.tag == tag)
            || self.vis.values().any(|vi| vi.end == end && vi.tag == tag)
    }

    /// Returns whether a work queue is attached to the completion queue.
    pub(crate) fn attached(&self, cq: u64) -> bool {
        self.attached_descriptors(cq) > 0
    }

    /// Maximum of descriptors on the work queues that are attached to a completion queue.
    pub(super) fn attached_descriptors(&self, cq: u64) -> usize {
        let queues = self.vis.values().flat_map(|vi| [vi.send_cq, vi.recv_cq]);
        queues.filter(|of| *of == Some(cq)).count() * self.limits.queue_descriptors
    }

    /// A completion queue is destroyed with its NIC handle, or with the last VI of another handle that uses it.
    pub(crate) fn forget_orphaned_cqs(&mut self) {
        let orphaned: Vec<u64> = self
            .cqs
            .iter()
            .filter(|(handle, cq)| self.end_of_nic(cq.nic).is_none() && !self.attached(**handle))
            .map(|(handle, _)| *handle)
            .collect();
        for handle in orphaned {
            self.cqs.remove(&handle);
        }
    }
}
