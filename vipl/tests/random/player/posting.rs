//! Descriptors made, written and posted: good ones, and ones that are wrong in one way.

use pmd::descriptor::{ControlSegment, DataSegment, control};
use vipl::{MemoryHandle, RawDescriptor, ViHandle, ViState, provider as vip};

use super::{Checked, Player};
use crate::arena::{Arena, Lent};
use crate::model::{Judged, State, Verdict, ViFacts, judge_post};
use crate::program::{Flaw, Operation, Pick, Shape, Side};
use crate::seeded::Seeded;

/// A descriptor on its way into memory.
struct Draft {
    address: u64,
    handle: u32,
    control: ControlSegment,
    segments: Vec<DataSegment>,
    lent: Vec<(usize, Lent)>,
    targets: Vec<(usize, Lent)>,
}

/// A handle that names no region of anybody.
const NO_HANDLE: u32 = 0xFFFF_FFFF;
/// More segments than any descriptor may have.
const TOO_MANY: usize = 300;

impl Player {
    pub(super) fn post(&mut self, pick: Pick, side: Side, shape: &Shape) -> Checked {
        let vi = self.pick_vi(pick);
        if !self.tables.vis.contains_key(&vi) {
            let nowhere = self.arenas[0].edge_end() - 64;
            let outcome = post(vi, side, nowhere, 1);
            return self.unknown_vi("post", vi, &outcome);
        }
        if !shape.reckless {
            self.provide_region(vi)?;
            if self.is_full(vi, side) {
                return self.done_of(vi, side, false);
            }
            if side == Side::Send
                && (shape.operation == Operation::Message || shape.immediate.is_some())
                && let Some(peer) = self.starving_peer(vi)
            {
                return self.post_on(peer, Side::Receive, &room(shape.dice));
            }
        }
        self.post_on(vi, side, shape)
    }

    /// Memory with the tag of a VI, and with that of the VI it is connected with.
    fn provide_region(&mut self, vi: u64) -> Checked {
        let state = self.oracle.any();
        let link = state.vis[&vi].link.and_then(|link| state.links.get(&link));
        for vi in link.map_or([vi, vi], |link| link.vis) {
            let Some(facts) = self.tables.vis.get(&vi).cloned() else {
                continue;
            };
            let (base, end) = self.arenas[facts.end].writable();
            let there = self.tables.ends[facts.end].regions.values().any(|r| {
                let all = r.base <= base && end <= r.end;
                all && r.tag == facts.tag && r.rdma_write && r.rdma_read
            });
            if !there {
                self.register_all(&facts)?;
            }
        }
        Ok(())
    }

    fn is_full(&self, vi: u64, side: Side) -> bool {
        let posted = self.oracle.any().vis[&vi].queue(side).items.len();
        posted >= self.tables.limits.queue_descriptors
    }

    /// The other end of a connection, if it may have no receive descriptor for one more message.
    fn starving_peer(&self, vi: u64) -> Option<u64> {
        let state = self.oracle.any();
        let found = &state.vis[&vi];
        let link = state.links.get(&found.link?)?;
        let to = usize::from(link.vis[0] == vi);
        let peer = link.vis[to];
        let pending = |side| {
            let items = &state.vis.get(&peer)?.queue(side).items;
            Some(items.iter().filter(|item| item.done.is_none()).count())
        };
        let unsent = found.send.items.iter().filter(|i| i.done.is_none()).count();
        let wanted = link.onward[to].len() + unsent;
        (pending(Side::Receive)? <= wanted && !self.is_full(peer, Side::Receive)).then_some(peer)
    }

    fn post_on(&mut self, vi: u64, side: Side, shape: &Shape) -> Checked {
        let limit = self.tables.limits.queue_descriptors;
        self.oracle.work_on(&self.tables);
        let mut states = self.oracle.states().iter();
        let full = |state: &State| state.vis[&vi].queue(side).items.len() >= limit;
        if states.any(full) && !self.oracle.states().iter().all(full) {
            // A handler may just be called with one of its descriptors: wait until that is known.
            self.settle()?;
        }
        let facts = self.tables.vis[&vi].clone();
        let Some(draft) = self.draft(vi, &facts, side, shape) else {
            return Ok(());
        };
        self.write_descriptor(&facts, &draft);
        let judged = self.judge(&facts, side, &draft);
        self.oracle.work_on(&self.tables);
        let outcome = post(vi, side, draft.address, draft.handle);
        let call = || format!("post {side:?} on {vi:#x}: {judged:x?}");
        self.certain(call, &outcome, &Verdict::default())?;
        let tables = &self.tables;
        self.oracle.change(|state| {
            *state = state.clone().post(tables, vi, side, &judged);
        });
        self.targets.extend(&draft.targets);
        match &judged {
            Judged::Readable(posted) if self.oracle.any().vis[&vi].queue(side).holds(posted.id) => {
                self.arenas[facts.end].expect(draft.address + 28, &[0; 4]);
                self.lent.insert(posted.id, draft.lent);
            }
            Judged::Readable(_) | Judged::Unreadable { .. } => {
                // It was not taken: it stays as it is, but for the status that an overrun may have cleared.
                if self.arenas[facts.end].holds(draft.address, 32) && draft.address % 64 == 0 {
                    self.arenas[facts.end].adopt(draft.address + 28, 4);
                }
                for (end, lent) in draft.lent {
                    self.arenas[end].take_back(lent);
                }
            }
        }
        Ok(())
    }

    fn judge(&mut self, facts: &ViFacts, side: Side, draft: &Draft) -> Judged {
        let id = self.name();
        let arenas = &self.arenas;
        let arena = &arenas[facts.end];
        let length = 32 + 16 * draft.segments.len();
        let there = length.min((self.arenas[facts.end].hole() - draft.address) as usize);
        let bytes = arena.read(draft.address, there);
        let named = (id, draft.address, draft.handle);
        judge_post(&self.tables, facts, side, named, &bytes, |segments| {
            let mut payload = Vec::new();
            for segment in segments {
                let length = segment.length as usize;
                let there = |arena: &&Arena| arena.holds(segment.address, segment.length.into());
                match arenas.iter().find(there) {
                    Some(arena) => payload.extend(arena.read(segment.address, length)),
                    // It is refused before it is read.
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
            let room = (arena.edge_end() - draft.address) as usize;
            bytes.truncate(room);
            arena.write(draft.address, &bytes);
        }
    }

    fn draft(&mut self, vi: u64, facts: &ViFacts, side: Side, shape: &Shape) -> Option<Draft> {
        let mut dice = Seeded::new(u64::from(shape.dice));
        let mut draft = Draft {
            address: 0,
            handle: 0,
            control: ControlSegment {
                next: dice.next(),
                next_handle: dice.next() as u32,
                immediate_data: shape.immediate.unwrap_or(0x5EED),
                status: dice.next() as u32,
                ..ControlSegment::default()
            },
            segments: Vec::new(),
            lent: Vec::new(),
            targets: Vec::new(),
        };
        let drafted = self.draft_data(facts, side, shape, &mut dice, &mut draft)
            && self.draft_target(vi, side, shape, &mut dice, &mut draft)
            && self.draft_place(facts, shape, &mut dice, &mut draft);
        if !drafted {
            for (end, lent) in draft.lent.into_iter().chain(draft.targets) {
                self.arenas[end].take_back(lent);
            }
            return None;
        }
        let head = &mut draft.control;
        head.segment_count = draft.segments.len() as u16;
        head.control |= match shape.operation {
            Operation::Message => control::OP_SEND_RECV,
            Operation::RdmaWrite => control::OP_RDMA_WRITE,
            Operation::RdmaRead => control::OP_RDMA_READ,
        };
        head.control |= if shape.immediate.is_some() {
            control::IMMEDIATE
        } else {
            0
        };
        head.control |= if shape.fence { control::QFENCE } else { 0 };
        match shape.flaw {
            Some(Flaw::ReservedControlBit) => head.control |= 16 << dice.below(12),
            Some(Flaw::ReservedWord) => head.reserved = 1 << dice.below(32),
            Some(Flaw::UndefinedOperation) => head.control |= 3,
            Some(Flaw::LengthField) => head.length ^= 1 << dice.below(20),
            Some(Flaw::NoAddressSegment) => draft.segments.clear(),
            _ => {}
        }
        if shape.flaw == Some(Flaw::NoAddressSegment) {
            draft.control.segment_count = 0;
            draft.control.length = 0;
        }
        Some(draft)
    }

    fn draft_data(
        &mut self,
        facts: &ViFacts,
        side: Side,
        shape: &Shape,
        dice: &mut Seeded,
        draft: &mut Draft,
    ) -> bool {
        let mut lengths = shape.segments.clone();
        let mut room = facts.attributes.max_transfer_bytes as u32;
        for length in &mut lengths {
            if side == Side::Send && !shape.reckless {
                *length = (*length).min(room);
                room -= *length;
            }
        }
        match shape.flaw {
            Some(Flaw::TooManySegments) => lengths.resize(TOO_MANY, 0),
            Some(Flaw::TooLong) => lengths = vec![facts.attributes.max_transfer_bytes as u32 + 1],
            Some(
                Flaw::SegmentHandle | Flaw::SegmentTag | Flaw::SegmentRange | Flaw::SegmentReadOnly,
            ) => lengths.push(1 + dice.below(100)),
            _ => {}
        }
        let last = lengths.len().wrapping_sub(1);
        for (index, length) in lengths.iter().copied().enumerate() {
            let Some((address, lent)) =
                self.arenas[facts.end].lend_data(length, dice.next() as u32)
            else {
                return false;
            };
            draft.lent.push((facts.end, lent));
            let bytes: Vec<u8> = (0..length).map(|_| dice.next() as u8).collect();
            self.arenas[facts.end].write(address, &bytes);
            let handle = self.region_for(facts, address, length.into(), dice);
            let mut segment = DataSegment {
                address,
                handle,
                length,
            };
            if index == last {
                self.spoil_segment(facts, shape.flaw, dice, &mut segment);
            }
            draft.segments.push(segment);
        }
        let sum: u64 = draft.segments.iter().map(|s| u64::from(s.length)).sum();
        draft.control.length = match side {
            Side::Send => sum as u32,
            Side::Receive => dice.next() as u32,
        };
        true
    }

    fn spoil_segment(
        &self,
        facts: &ViFacts,
        flaw: Option<Flaw>,
        dice: &mut Seeded,
        segment: &mut DataSegment,
    ) {
        let regions = &self.tables.ends[facts.end].regions;
        match flaw {
            Some(Flaw::SegmentHandle) => segment.handle = self.bad_handle(facts.end, dice),
            Some(Flaw::SegmentTag) => {
                let other = regions.iter().find(|(_, region)| region.tag != facts.tag);
                segment.handle = other.map_or(NO_HANDLE, |(handle, _)| *handle);
            }
            Some(Flaw::SegmentRange) => {
                if let Some(region) = regions.get(&segment.handle) {
                    // One byte before it, or some behind it.
                    segment.address = match dice.below(3) {
                        0 => region.base - 1,
                        1 => region.end - 1,
                        _ => u64::MAX - 1,
                    };
                    segment.length = segment.length.max(2);
                }
            }
            Some(Flaw::SegmentReadOnly) => {
                let page = self.arenas[facts.end].read_only();
                segment.address = page + u64::from(dice.below(1000));
                segment.handle =
                    self.region_for(facts, segment.address, segment.length.into(), dice);
            }
            _ => {}
        }
    }

    /// Handle of a region that went, or of the other end.
    fn bad_handle(&self, end: usize, dice: &mut Seeded) -> u32 {
        let foreign = self.tables.ends[1 - end].regions.keys().copied();
        let stale = self.stale.regions.iter().map(|(_, handle)| *handle);
        let all: Vec<u32> = foreign.chain(stale).chain([0, NO_HANDLE]).collect();
        dice.one_of(&all)
    }

    /// Handle of a region with the VI's tag around this range, if there is one; else of another one around it.
    fn region_for(&self, facts: &ViFacts, address: u64, length: u64, dice: &mut Seeded) -> u32 {
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
            (false, _) => dice.one_of(&own),
            (true, false) => dice.one_of(&around).0,
            (true, true) => NO_HANDLE,
        }
    }

    /// The address segment of an RDMA operation.
    fn draft_target(
        &mut self,
        vi: u64,
        side: Side,
        shape: &Shape,
        dice: &mut Seeded,
        draft: &mut Draft,
    ) -> bool {
        if side == Side::Receive || shape.operation == Operation::Message {
            return true;
        }
        let length: u32 = draft.segments.iter().map(|s| s.length).sum();
        let state = self.oracle.any();
        let found = &state.vis[&vi];
        let peer = found
            .link
            .and_then(|link| state.links.get(&link))
            .map(|link| {
                let to = usize::from(link.vis[0] == vi);
                link.vis[to]
            });
        let facts = peer.and_then(|peer| self.tables.vis.get(&peer)).cloned();
        let Some(facts) = facts.filter(|_| found.state == ViState::Connected) else {
            let nowhere = DataSegment {
                address: dice.next(),
                handle: dice.next() as u32,
                length: 0,
            };
            draft.segments.insert(0, nowhere);
            return true;
        };
        let Some((address, lent)) = self.arenas[facts.end].lend_data(length, dice.next() as u32)
        else {
            return false;
        };
        draft.targets.push((facts.end, lent));
        if shape.operation == Operation::RdmaRead {
            let bytes: Vec<u8> = (0..length).map(|_| dice.next() as u8).collect();
            self.arenas[facts.end].write(address, &bytes);
        }
        let mut target = DataSegment {
            address,
            handle: self.target_region(&facts, shape, (address, length), true, dice),
            length: 0,
        };
        let regions = &self.tables.ends[facts.end].regions;
        match shape.flaw {
            Some(Flaw::AddressReserved) => target.length = 1 << dice.below(32),
            Some(Flaw::TargetHandle) => target.handle = self.bad_handle(facts.end, dice),
            Some(Flaw::TargetTag) => {
                let other = regions.iter().find(|(_, region)| region.tag != facts.tag);
                target.handle = other.map_or(NO_HANDLE, |(handle, _)| *handle);
            }
            Some(Flaw::TargetRange) => {
                if let Some(region) = regions.get(&target.handle) {
                    target.address = match dice.below(3) {
                        0 => region.base - 1,
                        1 => (region.end + 1).saturating_sub(u64::from(length)),
                        _ => u64::MAX - u64::from(length / 2),
                    };
                }
            }
            Some(Flaw::TargetRights) => {
                target.handle = self.target_region(&facts, shape, (address, length), false, dice);
            }
            _ => {}
        }
        draft.segments.insert(0, target);
        true
    }

    /// Handle of a region of the target that allows the operation, or does not.
    fn target_region(
        &self,
        facts: &ViFacts,
        shape: &Shape,
        (address, length): (u64, u32),
        allowed: bool,
        dice: &mut Seeded,
    ) -> u32 {
        let fitting: Vec<u32> = self.tables.ends[facts.end]
            .regions
            .iter()
            .filter(|(_, r)| {
                r.tag == facts.tag
                    && allowed
                        == match shape.operation {
                            Operation::RdmaRead => r.rdma_read,
                            Operation::Message | Operation::RdmaWrite => r.rdma_write,
                        }
                    && r.base <= address
                    && address + u64::from(length) <= r.end
            })
            .map(|(handle, _)| *handle)
            .collect();
        if fitting.is_empty() {
            self.region_for(facts, address, length.into(), dice)
        } else {
            dice.one_of(&fitting)
        }
    }

    /// Where the descriptor itself stands.
    fn draft_place(
        &mut self,
        facts: &ViFacts,
        shape: &Shape,
        dice: &mut Seeded,
        draft: &mut Draft,
    ) -> bool {
        let length = 32 + 16 * draft.segments.len() as u64;
        let Some((address, lent)) = self.arenas[facts.end].lend_descriptor(length + 64) else {
            return false;
        };
        draft.lent.push((facts.end, lent));
        draft.address = address;
        match shape.flaw {
            Some(Flaw::DescriptorMisaligned) => draft.address += 8 << dice.below(3),
            Some(Flaw::DescriptorRange) => {
                // The first segments are the last of what is registered; the others are behind it.
                draft.address = self.arenas[facts.end].edge_end() - 64;
                draft
                    .segments
                    .resize(3.max(draft.segments.len().min(8)), DataSegment::default());
            }
            Some(Flaw::DescriptorReadOnly) => draft.address = self.arenas[facts.end].read_only(),
            _ => {}
        }
        draft.handle = self.region_for(facts, draft.address, 64, dice);
        let regions = &self.tables.ends[facts.end].regions;
        match shape.flaw {
            Some(Flaw::DescriptorHandle) => draft.handle = self.bad_handle(facts.end, dice),
            Some(Flaw::DescriptorTag) => {
                let other = regions.iter().find(|(_, region)| region.tag != facts.tag);
                draft.handle = other.map_or(NO_HANDLE, |(handle, _)| *handle);
            }
            _ => {}
        }
        true
    }

    /// The descriptors of a VI that is closed with them.
    pub(super) fn abandon_descriptors(&mut self, vi: u64) {
        let found = &self.oracle.any().vis[&vi];
        let items = found.send.items.iter().chain(&found.recv.items);
        let ids: Vec<u64> = items.map(|item| item.posted.0.id).collect();
        for id in ids {
            for (end, lent) in self.lent.remove(&id).into_iter().flatten() {
                self.arenas[end].adopt_lent(lent);
                self.arenas[end].take_back(lent);
            }
        }
    }
}

/// A receive descriptor that most messages fit into.
fn room(dice: u32) -> Shape {
    Shape {
        operation: Operation::Message,
        segments: vec![100, 3996],
        immediate: None,
        fence: false,
        flaw: None,
        dice,
        reckless: true,
    }
}

fn post(vi: u64, side: Side, address: u64, handle: u32) -> vipl::Result<()> {
    let (vi, handle) = (ViHandle::from_raw(vi), MemoryHandle(handle));
    let descriptor = address as *mut RawDescriptor;
    match side {
        // SAFETY: the program leaves descriptor and buffers alone until they come back; where they are no good, or
        // registered by nobody, the provider must not touch them: that is what is tested.
        Side::Send => unsafe { vip::post_send(vi, descriptor, handle) },
        // SAFETY: as above.
        Side::Receive => unsafe { vip::post_recv(vi, descriptor, handle) },
    }
}
