//! What may be one way or another until it is looked at: VIs, their queues, completion queues, connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use vipl::ViState;

use super::descriptor::{Posted, own_memory};
use super::notices::{Call, Place};
use super::peers::Peer;
use super::tables::{Tables, ViFacts};
use crate::program::Side;

/// How a descriptor completes, as far as the guide fixes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Completion {
    /// No error bit if 0, else at least one of these and no other.
    pub(crate) errors: u32,
    /// `None`: left open.
    pub(crate) operation: Option<u32>,
    /// Immediate flag and data.
    pub(crate) immediate: Option<u32>,
    /// `None`: left open, as for most errors (VIPL 5.2).
    pub(crate) length_bytes: Option<u32>,
    /// The bytes in the data segments, from the first on; the rest stays as it was. `None`: left open, as for all
    /// errors (VIPL 5.5).
    pub(crate) placed: Option<Bytes>,
    /// Its memory was deregistered: only the queue tells (VIPL 3.8.1).
    pub(crate) lost: bool,
}

/// Bytes of a message: those of the descriptor that sent it.
#[derive(Clone, Debug)]
pub(crate) struct Bytes(pub(crate) Rc<Posted>);

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Bytes {}

impl Hash for Bytes {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.id.hash(hasher);
    }
}

/// A descriptor on a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Item {
    pub(crate) posted: Bytes,
    /// In flight: sent, and not complete.
    pub(crate) sent: bool,
    /// How it completes once all before it are complete (VIPL 6.1).
    pub(crate) ready: Option<Completion>,
    pub(crate) done: Option<Completion>,
}

/// A work queue: completed descriptors, then those that are not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    pub(crate) items: VecDeque<Item>,
}

impl Queue {
    /// The oldest descriptor that is not complete.
    pub(crate) fn next(&self) -> Option<&Rc<Posted>> {
        let pending = self.items.iter().find(|item| item.done.is_none());
        pending.map(|item| &item.posted.0)
    }

    /// The oldest descriptor that is not in flight.
    pub(super) fn next_unsent(&self) -> Option<&Rc<Posted>> {
        let unsent = |item: &&Item| item.done.is_none() && !item.sent;
        self.items.iter().find(unsent).map(|item| &item.posted.0)
    }

    /// The descriptors in flight.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = &Item> {
        let in_flight = |item: &&Item| item.done.is_none() && item.sent;
        self.items.iter().filter(in_flight)
    }

    /// The descriptor of this name, if it is not complete.
    pub(super) fn pending_mut(&mut self, id: u64) -> Option<&mut Item> {
        let named = |item: &&mut Item| item.posted.0.id == id && item.done.is_none();
        self.items.iter_mut().find(named)
    }

    fn complete_next(&mut self, completion: Completion) {
        if let Some(item) = self.items.iter_mut().find(|item| item.done.is_none()) {
            item.done = Some(completion);
        }
    }

    pub(crate) fn holds(&self, id: u64) -> bool {
        self.items.iter().any(|item| item.posted.0.id == id)
    }
}

/// A VI (VIPL 3.3, 4.8).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Vi {
    pub(crate) state: ViState,
    /// A fatal error of the program's making, which the provider has not acted on yet (VIPL 6.3.1).
    pub(crate) broken: bool,
    pub(crate) link: Option<u64>,
    /// The request that it waits for.
    pub(crate) asking: Option<u64>,
    /// Its peer request, until the outcome is told.
    pub(crate) peer: Option<Peer>,
    pub(crate) send: Queue,
    pub(crate) recv: Queue,
    /// Reads of the other end that wait for their data.
    pub(crate) owed: VecDeque<Bytes>,
}

impl Vi {
    pub(crate) fn new() -> Self {
        Self {
            state: ViState::Idle,
            broken: false,
            link: None,
            asking: None,
            peer: None,
            send: Queue::default(),
            recv: Queue::default(),
            owed: VecDeque::new(),
        }
    }

    pub(crate) fn queue(&self, side: Side) -> &Queue {
        match side {
            Side::Send => &self.send,
            Side::Receive => &self.recv,
        }
    }

    pub(crate) fn queue_mut(&mut self, side: Side) -> &mut Queue {
        match side {
            Side::Send => &mut self.send,
            Side::Receive => &mut self.recv,
        }
    }
}

/// What travels over a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Onward {
    Message(Bytes),
    /// What became of a message at Reliable Reception, or of a read; 0 or the error bits of which one is set.
    Answer {
        id: u64,
        errors: u32,
    },
    /// The other end left the connection.
    End,
}

/// A connection: what is on its way to each of the two VIs, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub(crate) vis: [u64; 2],
    pub(crate) onward: [VecDeque<Onward>; 2],
    /// The other NIC went down: what it sent may be lost, save the end.
    pub(crate) cut: [bool; 2],
}

/// An asynchronous error that must be told (VIPL 3.8.1, 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Told {
    pub(crate) vi: u64,
    pub(crate) code: u32,
    pub(crate) resource: u32,
    /// 0 if it is not about one.
    pub(crate) descriptor: u64,
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) vi: u64,
    pub(crate) side: Side,
    /// The descriptor.
    pub(crate) id: u64,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cq {
    /// Entries that it has room for.
    pub(crate) capacity: usize,
    /// Entries, oldest first. Those of one group may be in any order, save that those of one work queue are in its
    /// order (VIPL 6.1).
    pub(crate) groups: VecDeque<Vec<Entry>>,
}

impl Cq {
    pub(crate) fn new(capacity: usize) -> Self {
        let groups = VecDeque::new();
        Self { capacity, groups }
    }

    pub(crate) fn len(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }

    fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        for group in &mut self.groups {
            group.retain(&keep);
        }
        self.groups.retain(|group| !group.is_empty());
    }
}

/// Everything that is not certain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) vis: BTreeMap<u64, Vi>,
    pub(crate) cqs: BTreeMap<u64, Cq>,
    pub(crate) links: BTreeMap<u64, Link>,
    /// Handlers that were asked for, in order, and those that must have been called with something.
    pub(crate) asked: BTreeMap<Place, VecDeque<u64>>,
    pub(crate) called: BTreeMap<Place, VecDeque<(u64, Call)>>,
    /// Since the program last waited for all of it.
    pub(crate) told: BTreeMap<Told, u32>,
    /// Peer requests that were taken back since then: one may still be on its way to another end.
    pub(crate) withdrawn: BTreeSet<u64>,
    /// Some of it was not heard yet when the program last waited for all of it.
    pub(crate) late: bool,
    /// RDMA writes that arrived since then, and whether their bytes are certain.
    pub(crate) written: BTreeMap<u64, (Bytes, bool)>,
}

impl State {
    pub(crate) fn vi_mut(&mut self, vi: u64) -> &mut Vi {
        self.vis.get_mut(&vi).expect("a VI that exists")
    }

    pub(crate) fn tell(&mut self, told: Told) {
        *self.told.entry(told).or_default() += 1;
    }

    /// Completes the oldest pending descriptor of a queue. Returns its entry of a completion queue, and whether its
    /// memory is gone.
    pub(super) fn complete(
        &mut self,
        tables: &Tables,
        vi: u64,
        side: Side,
        mut completion: Completion,
    ) -> (Option<(u64, Entry)>, bool) {
        let facts = &tables.vis[&vi];
        let queue = self.vi_mut(vi).queue_mut(side);
        let Some(posted) = queue.next().cloned() else {
            return (None, false);
        };
        completion.lost = !own_memory(tables, facts, &posted);
        let lost = completion.lost;
        queue.complete_next(completion);
        if lost {
            self.tell(Told {
                vi,
                code: vipl::ErrorCode::CompProt as u32,
                resource: vipl::ResourceCode::Descriptor as u32,
                descriptor: posted.address,
            });
        }
        let id = posted.id;
        let entry = cq_of(facts, side).map(|cq| (cq, Entry { vi, side, id }));
        (entry, lost)
    }

    /// Adds entries that may come in any order. Those of descriptors that were taken off their queue make room where
    /// there is none (VIPL 7.1); the others always have it.
    pub(super) fn add_entries(&mut self, entries: impl IntoIterator<Item = (u64, Entry)>) {
        let mut groups: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
        for (cq, entry) in entries {
            groups.entry(cq).or_default().push(entry);
        }
        let vis = &self.vis;
        let is_posted = |entry: &Entry| {
            let vi = vis.get(&entry.vi);
            vi.is_some_and(|vi| vi.queue(entry.side).holds(entry.id))
        };
        for (cq, group) in groups {
            let cq = self.cqs.get_mut(&cq).expect("one that exists");
            if cq.len() + group.len() > cq.capacity {
                cq.retain(is_posted);
            }
            cq.groups.push_back(group);
        }
    }

    /// The entries that the next call may return, each with what it leaves. Their descriptors may be taken already,
    /// and their VIs gone (VIPL 3.5.7, 7.5).
    pub(super) fn take_entry(&self, cq: u64) -> Vec<(Entry, State)> {
        let Some(group) = self.cqs.get(&cq).and_then(|cq| cq.groups.front()) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        for (at, entry) in group.iter().enumerate() {
            let same_queue = |e: &&Entry| e.vi == entry.vi && e.side == entry.side;
            if group[..at].iter().find(same_queue).is_some() {
                continue;
            }
            let mut after = self.clone();
            if let Some(cq) = after.cqs.get_mut(&cq) {
                cq.groups[0].remove(at);
                cq.retain(|_| true);
            }
            taken.push((*entry, after));
        }
        taken
    }
}

/// The completion queue of a work queue.
pub(super) fn cq_of(facts: &ViFacts, side: Side) -> Option<u64> {
    match side {
        Side::Send => facts.send_cq,
        Side::Receive => facts.recv_cq,
    }
}
