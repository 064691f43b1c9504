//! What is uncertain until it is observed: VIs, their queues, completion queues, connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use vi_types::QueueKind;
use vipl::ViState;

use super::descriptor::{Posted, own_memory};
use super::notify::{ExpectedCall, NotifyQueue};
use super::peers::Peer;
use super::tables::{Tables, ViFacts};

/// Completion of a descriptor, as far as the guide specifies it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Completion {
    /// No error bit if 0, else at least one of these and no other.
    pub(crate) errors: u32,
    /// `None`: unspecified.
    pub(crate) operation: Option<u32>,
    /// Immediate flag and data.
    pub(crate) immediate: Option<u32>,
    /// `None`: unspecified, as for most errors (VIPL 5.2).
    pub(crate) length_bytes: Option<u32>,
    /// Bytes in the data segments, from the first on; the remainder is unchanged. `None`: unspecified, as for all
    /// errors (VIPL 5.5).
    pub(crate) placed: Option<Bytes>,
    /// Its memory was deregistered: the descriptor is not written (VIPL 3.8.1).
    pub(crate) lost: bool,
}

/// Bytes of a message, from the descriptor that sent it.
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
    /// Its completion, which follows those of all earlier descriptors (VIPL 6.1).
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

    /// The descriptor of this number, if it is not complete.
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
    /// A fatal error of the program, which the provider has not processed yet (VIPL 6.3.1).
    pub(crate) broken: bool,
    pub(crate) connection: Option<u64>,
    /// Its pending client request.
    pub(crate) connecting: Option<u64>,
    /// Its peer request, until the outcome is reported.
    pub(crate) peer: Option<Peer>,
    pub(crate) send: Queue,
    pub(crate) recv: Queue,
    /// Reads of the peer whose data is not sent yet.
    pub(crate) pending_reads: VecDeque<Bytes>,
}

impl Vi {
    pub(crate) fn new() -> Self {
        Self {
            state: ViState::Idle,
            broken: false,
            connection: None,
            connecting: None,
            peer: None,
            send: Queue::default(),
            recv: Queue::default(),
            pending_reads: VecDeque::new(),
        }
    }

    pub(crate) fn queue(&self, kind: QueueKind) -> &Queue {
        match kind {
            QueueKind::Send => &self.send,
            QueueKind::Receive => &self.recv,
        }
    }

    pub(crate) fn queue_mut(&mut self, kind: QueueKind) -> &mut Queue {
        match kind {
            QueueKind::Send => &mut self.send,
            QueueKind::Receive => &mut self.recv,
        }
    }
}

/// An item in transit on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Transit {
    Message(Bytes),
    /// Result of a message at Reliable Reception, or of a read; 0 or error bits, of which at least one is set.
    Response {
        id: u64,
        errors: u32,
    },
    /// The peer has left the connection.
    Disconnect,
}

/// A connection: items in transit to each of the two VIs, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    pub(crate) vis: [u64; 2],
    pub(crate) in_transit: [VecDeque<Transit>; 2],
    /// The NIC of the peer was closed, or the peer left before a send of it was copied: items except the disconnect may be
    /// lost.
    pub(crate) is_lossy: [bool; 2],
}

/// An asynchronous error that must be reported (VIPL 3.8.1, 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AsyncError {
    pub(crate) vi: u64,
    pub(crate) code: u32,
    pub(crate) resource: u32,
    /// Address of the descriptor, or 0.
    pub(crate) descriptor: u64,
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) vi: u64,
    pub(crate) kind: QueueKind,
    /// Number of the descriptor.
    pub(crate) id: u64,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cq {
    /// Maximum of entries.
    pub(crate) capacity: usize,
    /// Entries, oldest first. Those of one group are in any order, except that those of one work queue are in its order
    /// (VIPL 6.1).
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

/// Everything that is uncertain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) vis: BTreeMap<u64, Vi>,
    pub(crate) cqs: BTreeMap<u64, Cq>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    /// Pending notify handlers, in order.
    pub(crate) handlers: BTreeMap<NotifyQueue, VecDeque<u64>>,
    /// Handler calls that the provider must make, or has made.
    pub(crate) expected_calls: BTreeMap<NotifyQueue, VecDeque<(u64, ExpectedCall)>>,
    /// Asynchronous errors since the last quiescent point, with their number.
    pub(crate) async_errors: BTreeMap<AsyncError, u32>,
    /// Peer requests that were withdrawn since then: one may still be in transit.
    pub(crate) withdrawn: BTreeSet<u64>,
    /// Some of the asynchronous errors were not received yet at the last quiescent point.
    pub(crate) late: bool,
    /// RDMA writes that arrived since then, and whether all their bytes are certain.
    pub(crate) written: BTreeMap<u64, (Bytes, bool)>,
}

impl State {
    pub(crate) fn vi_mut(&mut self, vi: u64) -> &mut Vi {
        self.vis.get_mut(&vi).expect("a VI that exists")
    }

    pub(crate) fn report_error(&mut self, async_error: AsyncError) {
        *self.async_errors.entry(async_error).or_default() += 1;
    }

    /// Completes the oldest pending descriptor of a queue. Returns its entry of a completion queue, and whether its
    /// memory was deregistered.
    pub(super) fn complete(
        &mut self,
        tables: &Tables,
        vi: u64,
        kind: QueueKind,
        mut completion: Completion,
    ) -> (Option<(u64, Entry)>, bool) {
        let facts = &tables.vis[&vi];
        let queue = self.vi_mut(vi).queue_mut(kind);
        let Some(posted) = queue.next().cloned() else {
            return (None, false);
        };
        completion.lost = !own_memory(tables, facts, &posted);
        let lost = completion.lost;
        queue.complete_next(completion);
        if lost {
            self.report_error(AsyncError {
                vi,
                code: vipl::ErrorCode::CompProt as u32,
                resource: vipl::ResourceCode::Descriptor as u32,
                descriptor: posted.address,
            });
        }
        let id = posted.id;
        let entry = cq_of(facts, kind).map(|cq| (cq, Entry { vi, kind, id }));
        (entry, lost)
    }

    /// Adds entries in any order. On overflow, entries of collected descriptors are dropped (VIPL 7.1); the others
    /// always fit.
    pub(super) fn add_entries(&mut self, entries: impl IntoIterator<Item = (u64, Entry)>) {
        let mut groups: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
        for (cq, entry) in entries {
            groups.entry(cq).or_default().push(entry);
        }
        let vis = &self.vis;
        let is_posted = |entry: &Entry| {
            let vi = vis.get(&entry.vi);
            vi.is_some_and(|vi| vi.queue(entry.kind).holds(entry.id))
        };
        for (cq, group) in groups {
            let cq = self.cqs.get_mut(&cq).expect("one that exists");
            if cq.len() + group.len() > cq.capacity {
                cq.retain(is_posted);
            }
            cq.groups.push_back(group);
        }
    }

    /// The entries that the next call may return, each with the state after it. Their descriptors may already be
    /// collected, and their VIs destroyed (VIPL 3.5.7, 7.5).
    pub(super) fn take_entry(&self, cq: u64) -> Vec<(Entry, State)> {
        let Some(group) = self.cqs.get(&cq).and_then(|cq| cq.groups.front()) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        for (at, entry) in group.iter().enumerate() {
            let same_queue = |e: &&Entry| e.vi == entry.vi && e.kind == entry.kind;
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
pub(super) fn cq_of(facts: &ViFacts, kind: QueueKind) -> Option<u64> {
    match kind {
        QueueKind::Send => facts.send_cq,
        QueueKind::Receive => facts.recv_cq,
    }
}
