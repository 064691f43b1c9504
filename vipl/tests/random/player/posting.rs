//! Posts of descriptors: valid ones, and ones with a single flaw.

use vi_core::descriptor::{ControlSegment, DataSegment, control};
use vi_types::QueueKind;
use vipl::{MemoryHandle, RawDescriptor, ViHandle, ViState, provider as vip};

use super::{Checked, Player};
use crate::arena::{Allocation, Arena};
use crate::model::{DecodedPost, State, Verdict, ViFacts, decode_post};
use crate::program::{DescriptorSpec, Flaw, Operation, Pick};
use crate::rng::Rng;

/// A descriptor before it is written into memory.
struct Draft {
    address: u64,
    handle: u32,
    control: ControlSegment,
    segments: Vec<DataSegment>,
    allocations: Vec<(usize, Allocation)>,
    targets: Vec<(usize, Allocation)>,
}

/// A handle of no region.
const NO_HANDLE: u32 = 0xFFFF_FFFF;
/// More segments than any descriptor may have.
const TOO_MANY: usize = 300;

impl Player {
    pub(super) fn post(&mut self, pick: Pick, kind: QueueKind, spec: &DescriptorSpec) -> Checked {
        let vi = self.pick_vi(pick);
        if !self.tables.vis.contains_key(&vi) {
            let address = self.arenas[0].writable_end() - 64;
            let outcome = post(vi, kind, address, 1);
            return self.unknown_vi("post", vi, &outcome);
        }
        if !spec.allow_break {
            self.provide_region(vi)?;
            if self.is_full(vi, kind) {
                return self.done_of(vi, kind, false);
            }
            if kind == QueueKind::Send
                && (spec.operation == Operation::Message || spec.immediate.is_some())
                && let Some(peer) = self.peer_without_receive(vi)
            {
                return self.post_on(peer, QueueKind::Receive, &large_receive(spec.seed));
            }
        }
        self.post_on(vi, kind, spec)
    }

    /// Registers memory with the tag of a VI, and with that of its peer, unless it exists.
    fn provide_region(&mut self, vi: u64) -> Checked {
        let state = self.oracle.any();
        let connection = state.vis[&vi]
            .connection
            .and_then(|connection| state.connections.get(&connection));
        for vi in connection.map_or([vi, vi], |connection| connection.vis) {
            let Some(facts) = self.tables.vis.get(&vi).cloned() else {
                continue;
            };
            let (base, end) = self.arenas[facts.end].writable();
            let exists = self.tables.ends[facts.end].regions.values().any(|r| {
                let all = r.base <= base && end <= r.end;
                all && r.tag == facts.tag && r.rdma_write && r.rdma_read
            });
            if !exists {
                self.register_all(&facts)?;
            }
        }
        Ok(())
    }

    fn is_full(&self, vi: u64, kind: QueueKind) -> bool {
        let posted = self.oracle.any().vis[&vi].queue(kind).items.len();
        posted >= self.tables.limits.queue_descriptors
    }

    /// Returns the peer of a VI if it may have no receive descriptor for one more message.
    fn peer_without_receive(&self, vi: u64) -> Option<u64> {
        let state = self.oracle.any();
        let found = &state.vis[&vi];
        let connection = state.connections.get(&found.connection?)?;
        let to = usize::from(connection.vis[0] == vi);
        let peer = connection.vis[to];
        let pending = |kind| {
            let items = &state.vis.get(&peer)?.queue(kind).items;
            Some(items.iter().filter(|item| item.done.is_none()).count())
        };
        let unsent = found.send.items.iter().filter(|i| i.done.is_none()).count();
        let wanted = connection.in_transit[to].len() + unsent;
        (pending(QueueKind::Receive)? <= wanted && !self.is_full(peer, QueueKind::Receive))
            .then_some(peer)
    }

    fn post_on(&mut self, vi: u64, kind: QueueKind, spec: &DescriptorSpec) -> Checked {
        let limit = self.tables.limits.queue_descriptors;
        self.oracle.explore(&self.tables);
        let mut states = self.oracle.states().iter();
        let full = |state: &State| state.vis[&vi].queue(kind).items.len() >= limit;
        if states.any(full) && !self.oracle.states().iter().all(full) {
            // A handler may be called with one of its descriptors at this moment: wait until that is certain.
            self.quiesce()?;
        }
        let facts = self.tables.vis[&vi].clone();
        let Some(draft) = self.draft(vi, &facts, kind, spec) else {
            return Ok(());
        };
        self.write_descriptor(&facts, &draft);
        let decoded = self.decode(&facts, kind, &draft);
        self.oracle.explore(&self.tables);
        let outcome = post(vi, kind, draft.address, draft.handle);
        let call = || format!("post {kind:?} on {vi:#x}: {decoded:x?}");
        self.check_result(call, &outcome, &Verdict::default())?;
        let tables = &self.tables;
        self.oracle.apply(|state| {
            *state = state.clone().post(tables, vi, kind, &decoded);
        });
        self.targets.extend(&draft.targets);
        match &decoded {
            DecodedPost::Readable(posted)
                if self.oracle.any().vis[&vi].queue(kind).holds(posted.id) =>
            {
                self.arenas[facts.end].expect(draft.address + 28, &[0; 4]);
                self.allocations.insert(posted.id, draft.allocations);
            }
            DecodedPost::Readable(_) | DecodedPost::Unreadable { .. } => {
                // The post failed: the descriptor is unchanged, except for the status that an overrun may have cleared.
                if self.arenas[facts.end].contains(draft.address, 32) && draft.address % 64 == 0 {
                    self.arenas[facts.end].accept_content(draft.address + 28, 4);
                }
                for (end, allocation) in draft.allocations {
                    self.arenas[end].free(allocation);
                }
            }
        }
        Ok(())
    }

    fn decode(&mut self, facts: &ViFacts, kind: QueueKind, draft: &Draft) -> DecodedPost {
        let id = self.next_id();
        let arenas = &self.arenas;
        let arena = &arenas[facts.end];
        let length = 32 + 16 * draft.segments.len();
        let readable = length.min((self.arenas[facts.end].unmapped() - draft.address) as usize);
        let bytes = arena.read(draft.address, readable);
        let named = (id, draft.address, draft.handle);
        decode_post(&self.tables, facts, kind, named, &bytes, |segments| {
            let mut payload = Vec::new();
            for segment in segments {
                let length = segment.length as usize;
                let has_segment =
                    |arena: &&Arena| arena.contains(segment.address, segment.length.into());
                match arenas.iter().find(has_segment) {
                    Some(arena) => payload.extend(arena.read(segment.address, length)),
                    // The descriptor is refused before this is read.
                    None => payload.resize(payload.len() + length, 0),
                }
            }
            payload
        })
    }

    fn write_descriptor(&mut self, facts: &ViFacts, draft: &Draft) {
        let c = &draft.control;
        let mut bytes = Vec::with_capacity(32 + 16 * draft.segments.len());
        bytes.extend(c.next.to_le_bytes());
        bytes.extend(c.next_handle.to_le_bytes());
        bytes.extend(c.segment_count.to_le_bytes());
        bytes.extend(c.control.to_le_bytes());
        bytes.extend(c.reserved.to_le_bytes());
        bytes.extend(c.immediate_data.to_le_bytes());
        bytes.extend(c.length.to_le_bytes());
        bytes.extend(c.status.to_le_bytes());
        for segment in &draft.segments {
            bytes.extend(segment.address.to_le_bytes());
            bytes.extend(segment.handle.to_le_bytes());
            bytes.extend(segment.length.to_le_bytes());
        }
        let arena = &mut self.arenas[facts.end];
        if draft.address < arena.read_only() {
            let buffer_bytes = (arena.writable_end() - draft.address) as usize;
            bytes.truncate(buffer_bytes);
            arena.write(draft.address, &bytes);
        }
    }

    fn draft(
        &mut self,
        vi: u64,
        facts: &ViFacts,
        kind: QueueKind,
        spec: &DescriptorSpec,
    ) -> Option<Draft> {
        let mut rng = Rng::new(u64::from(spec.seed));
        let mut draft = Draft {
            address: 0,
            handle: 0,
            control: ControlSegment {
                next: rng.next(),
                next_handle: rng.next() as u32,
                immediate_data: spec.immediate.unwrap_or(0x5EED),
                status: rng.next() as u32,
                ..ControlSegment::default()
            },
            segments: Vec::new(),
            allocations: Vec::new(),
            targets: Vec::new(),
        };
        let drafted = self.draft_data(facts, kind, spec, &mut rng, &mut draft)
            && self.draft_target(vi, kind, spec, &mut rng, &mut draft)
            && self.draft_address(facts, spec, &mut rng, &mut draft);
        if !drafted {
            for (end, allocation) in draft.allocations.into_iter().chain(draft.targets) {
                self.arenas[end].free(allocation);
            }
            return None;
        }
        let head = &mut draft.control;
        head.segment_count = draft.segments.len() as u16;
        head.control |= match spec.operation {
            Operation::Message => control::OP_SEND_RECV,
            Operation::RdmaWrite => control::OP_RDMA_WRITE,
            Operation::RdmaRead => control::OP_RDMA_READ,
        };
        head.control |= if spec.immediate.is_some() {
            control::IMMEDIATE
        } else {
            0
        };
        head.control |= if spec.fence { control::QFENCE } else { 0 };
        match spec.flaw {
            Some(Flaw::ReservedControlBit) => head.control |= 16 << rng.below(12),
            Some(Flaw::ReservedWord) => head.reserved = 1 << rng.below(32),
            Some(Flaw::UndefinedOperation) => head.control |= 3,
            Some(Flaw::LengthField) => head.length ^= 1 << rng.below(20),
            Some(Flaw::NoAddressSegment) => draft.segments.clear(),
            _ => {}
        }
        if spec.flaw == Some(Flaw::NoAddressSegment) {
            draft.control.segment_count = 0;
            draft.control.length = 0;
        }
        Some(draft)
    }

    fn draft_data(
        &mut self,
        facts: &ViFacts,
        kind: QueueKind,
        spec: &DescriptorSpec,
        rng: &mut Rng,
        draft: &mut Draft,
    ) -> bool {
        let mut lengths = spec.segments.clone();
        let mut buffer_bytes = facts.attributes.max_transfer_bytes as u32;
        for length in &mut lengths {
            if kind == QueueKind::Send && !spec.allow_break {
                *length = (*length).min(buffer_bytes);
                buffer_bytes -= *length;
            }
        }
        match spec.flaw {
            Some(Flaw::TooManySegments) => lengths.resize(TOO_MANY, 0),
            Some(Flaw::TooLong) => lengths = vec![facts.attributes.max_transfer_bytes as u32 + 1],
            Some(
                Flaw::SegmentHandle | Flaw::SegmentTag | Flaw::SegmentRange | Flaw::SegmentReadOnly,
            ) => lengths.push(1 + rng.below(100)),
            _ => {}
        }
        let last = lengths.len().wrapping_sub(1);
        for (index, length) in lengths.iter().copied().enumerate() {
            let Some((address, allocation)) =
                self.arenas[facts.end].allocate_data(length, rng.next() as u32)
            else {
                return false;
            };
            draft.allocations.push((facts.end, allocation));
            let bytes: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
            self.arenas[facts.end].write(address, &bytes);
            let handle = self.region_for(facts, address, length.into(), rng);
            let mut segment = DataSegment {
                address,
                handle,
                length,
            };
            if index == last {
                self.apply_segment_flaw(facts, spec.flaw, rng, &mut segment);
            }
            draft.segments.push(segment);
        }
        let sum: u64 = draft.segments.iter().map(|s| u64::from(s.length)).sum();
        draft.control.length = match kind {
            QueueKind::Send => sum as u32,
            QueueKind::Receive => rng.next() as u32,
        };
        true
    }

    fn apply_segment_flaw(
        &self,
        facts: &ViFacts,
        flaw: Option<Flaw>,
        rng: &mut Rng,
        segment: &mut DataSegment,
    ) {
        let regions = &self.tables.ends[facts.end].regions;
        match flaw {
            Some(Flaw::SegmentHandle) => segment.handle = self.invalid_handle(facts.end, rng),
            Some(Flaw::SegmentTag) => {
                let other = regions.iter().find(|(_, region)| region.tag != facts.tag);
                segment.handle = other.map_or(NO_HANDLE, |(handle, _)| *handle);
            }
            Some(Flaw::SegmentRange) => {
                if let Some(region) = regions.get(&segment.handle) {
                    // One byte before the region, or bytes behind it.
                    segment.address = match rng.below(3) {
                        0 => region.base - 1,
                        1 => region.end - 1,
                        _ => u64::MAX - 1,
                    };
                    segment.length = segment.length.max(2);
                }
            }
            Some(Flaw::SegmentReadOnly) => {
                let page = self.arenas[facts.end].read_only();
                segment.address = page + u64::from(rng.below(1000));
                segment.handle =
                    self.region_for(facts, segment.address, segment.length.into(), rng);
            }
            _ => {}
        }
    }

    /// Handle of a deregistered region, or of the other endpoint.
    fn invalid_handle(&self, end: usize, rng: &mut Rng) -> u32 {
        let foreign = self.tables.ends[1 - end].regions.keys().copied();
        let stale = self.stale.regions.iter().map(|(_, handle)| *handle);
        let all: Vec<u32> = foreign.chain(stale).chain([0, NO_HANDLE]).collect();
        rng.one_of(&all)
    }

    /// Handle of a region that contains this range: with the VI's tag if possible, else with another tag.
    fn region_for(&self, facts: &ViFacts, address: u64, length: u64, rng: &mut Rng) -> u32 {
        let regions = self.tables.ends[facts.end].regions.iter();
        let around: Vec<(u32, bool)> = regions
            .filter(|(_, r)| r.base <= address && address + length <= r.end)
            .map(|(handle, r)| (*handle, r.tag == facts.tag))
            .collect();
        let own: Vec<u32> = around
            .iter()
            .filter(|(_, own)| *own)
            .map(|(h, _)| *h)
            .collect();
        match (own.is_empty(), around.is_empty()) {
            (false, _) => rng.one_of(&own),
            (true, false) => rng.one_of(&around).0,
            (true, true) => NO_HANDLE,
        }
    }

    /// The address segment of an RDMA operation.
    fn draft_target(
        &mut self,
        vi: u64,
        kind: QueueKind,
        spec: &DescriptorSpec,
        rng: &mut Rng,
        draft: &mut Draft,
    ) -> bool {
        if kind == QueueKind::Receive || spec.operation == Operation::Message {
            return true;
        }
        let length: u32 = draft.segments.iter().map(|s| s.length).sum();
        let state = self.oracle.any();
        let found = &state.vis[&vi];
        let peer = found
            .connection
            .and_then(|connection| state.connections.get(&connection))
            .map(|connection| {
                let to = usize::from(connection.vis[0] == vi);
                connection.vis[to]
            });
        let facts = peer.and_then(|peer| self.tables.vis.get(&peer)).cloned();
        let Some(facts) = facts.filter(|_| found.state == ViState::Connected) else {
            let arbitrary = DataSegment {
                address: rng.next(),
                handle: rng.next() as u32,
                length: 0,
            };
            draft.segments.insert(0, arbitrary);
            return true;
        };
        let Some((address, allocation)) =
            self.arenas[facts.end].allocate_data(length, rng.next() as u32)
        else {
            return false;
        };
        draft.targets.push((facts.end, allocation));
        if spec.operation == Operation::RdmaRead {
            let bytes: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
            self.arenas[facts.end].write(address, &bytes);
        }
        let mut target = DataSegment {
            address,
            handle: self.target_region(&facts, spec, (address, length), true, rng),
            length: 0,
        };
        let regions = &self.tables.ends[facts.end].regions;
        match spec.flaw {
            Some(Flaw::AddressReserved) => target.length = 1 << rng.below(32),
            Some(Flaw::TargetHandle) => target.handle = self.invalid_handle(facts.end, rng),
            Some(Flaw::TargetTag) => {
                let other = regions.iter().find(|(_, region)| region.tag != facts.tag);
                target.handle = other.map_or(NO_HANDLE, |(handle, _)| *handle);
            }
            Some(Flaw::TargetRange) => {
                if let Some(region) = regions.get(&target.handle) {
                    target.address = match rng.below(3) {
                        0 => region.base - 1,
                        1 => (region.end + 1).saturating_sub(u64::from(length)),
                        _ => u64::MAX - u64::from(length / 2),
                    };
                }
            }
            Some(Flaw::TargetRights) => {
                target.handle = self.target_region(&facts, spec, (address, length), false, rng);
            }
            _ => {}
        }
        draft.segments.insert(0, target);
        true
    }

    /// Handle of a region of the target that allows the operation, or one that does not.
    fn target_region(
        &self,
        facts: &ViFacts,
        spec: &DescriptorSpec,
        (address, length): (u64, u32),
        allowed: bool,
        rng: &mut Rng,
    ) -> u32 {
        let fitting: Vec<u32> = self.tables.ends[facts.end]
            .regions
            .iter()
            .filter(|(_, r)| {
                r.tag == facts.tag
                    && allowed
                        == match spec.operation {
                            Operation::RdmaRead => r.rdma_read,
                            Operation::Message | Operation::RdmaWrite => r.rdma_write,
                        }
                    && r.base <= address
                    && address + u64::from(length) <= r.end
            })
            .map(|(handle, _)| *handle)
            .collect();
        if fitting.is_empty() {
            self.region_for(facts, address, length.into(), rng)
        } else {
            rng.one_of(&fitting)
        }
    }

    /// Determines the address and the handle of the descriptor.
    fn draft_address(
        &mut self,
        facts: &ViFacts,
        spec: &DescriptorSpec,
        rng: &mut Rng,
        draft: &mut Draft,
    ) -> bool {
        let length = 32 + 16 * draft.segments.len() as u64;
        let Some((address, allocation)) = self.arenas[facts.end].allocate_descriptor(length + 64)
        else {
            return false;
        };
        draft.allocations.push((facts.end, allocation));
        draft.address = address;
        match spec.flaw {
            Some(Flaw::DescriptorMisaligned) => draft.address += 8 << rng.below(3),
            Some(Flaw::DescriptorRange) => {
                // The first segments are at the end of the registered memory; the others are behind it.
                draft.address = self.arenas[facts.end].writable_end() - 64;
                draft
                    .segments
                    .resize(3.max(draft.segments.len().min(8)), DataSegment::default());
            }
            Some(Flaw::DescriptorReadOnly) => draft.address = self.arenas[facts.end].read_only(),
            _ => {}
        }
        draft.handle = self.region_for(facts, draft.address, 64, rng);
        let regions = &self.tables.ends[facts.end].regions;
        match spec.flaw {
            Some(Flaw::DescriptorHandle) => draft.handle = self.invalid_handle(facts.end, rng),
            Some(Flaw::DescriptorTag) => {
                let other = regions.iter().find(|(_, region)| region.tag != facts.tag);
                draft.handle = other.map_or(NO_HANDLE, |(handle, _)| *handle);
            }
            _ => {}
        }
        true
    }

    /// Frees the descriptors of a VI that is destroyed with them.
    pub(super) fn abandon_descriptors(&mut self, vi: u64) {
        let found = &self.oracle.any().vis[&vi];
        let items = found.send.items.iter().chain(&found.recv.items);
        let ids: Vec<u64> = items.map(|item| item.posted.0.id).collect();
        for id in ids {
            for (end, allocation) in self.allocations.remove(&id).into_iter().flatten() {
                self.arenas[end].accept_allocation(allocation);
                self.arenas[end].free(allocation);
            }
        }
    }
}

/// A receive descriptor for most messages.
fn large_receive(seed: u32) -> DescriptorSpec {
    DescriptorSpec {
        operation: Operation::Message,
        segments: vec![100, 3996],
        immediate: None,
        fence: false,
        flaw: None,
        seed,
        allow_break: true,
    }
}

fn post(vi: u64, kind: QueueKind, address: u64, handle: u32) -> vipl::Result<()> {
    let (vi, handle) = (ViHandle::from_raw(vi), MemoryHandle(handle));
    let descriptor = address as *mut RawDescriptor;
    match kind {
        // SAFETY: the program does not access descriptor and buffers until they are returned; the provider must not
        // access invalid or unregistered ones, which is tested.
        QueueKind::Send => unsafe { vip::post_send(vi, descriptor, handle) },
        // SAFETY: as above.
        QueueKind::Receive => unsafe { vip::post_recv(vi, descriptor, handle) },
    }
}
