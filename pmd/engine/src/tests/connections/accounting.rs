//! Records of all connections: what each side observed.

use std::collections::HashMap;

/// Identifies one side of a connection: its node and the handle of its VI, unique to this connection.
pub(super) type SideId = (usize, u32);

/// Identifies a connection as one side knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) connection_id: u32,
    pub(super) own: SideId,
    pub(super) peer: SideId,
}

impl Identity {
    /// Returns a key that is the same for both sides.
    fn key(&self) -> (u32, SideId, SideId) {
        let (low, high) = (self.own.min(self.peer), self.own.max(self.peer));
        (self.connection_id, low, high)
    }

    /// Returns the payload of a message from this side to the peer.
    pub(super) fn message(&self) -> Vec<u8> {
        let text = |(node, handle): SideId| format!("{node}.{handle:08x}");
        let (from, to) = (text(self.own), text(self.peer));
        format!("{} from {from} to {to}", self.connection_id).into_bytes()
    }

    /// Returns the identity as the peer knows it.
    pub(super) fn reversed(&self) -> Self {
        Self {
            own: self.peer,
            peer: self.own,
            ..*self
        }
    }
}

/// One side of a recorded connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) actor: usize,
    pub(super) connected: bool,
    /// When it disconnected, failed or broke.
    pub(super) ended_ns: Option<u64>,
}

/// A connection that was established at one side at least.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) sides: [Side; 2],
    /// The disconnect IUs were lost: a side had to send to be notified.
    pub(super) sent_to_be_notified: bool,
}

impl Record {
    fn index_of(&self, actor: usize) -> usize {
        let is_own = |side: &Side| side.actor == actor;
        let index = self.sides.iter().position(is_own);
        index.expect("a side of this connection")
    }

    pub(super) fn side(&mut self, actor: usize) -> &mut Side {
        let index = self.index_of(actor);
        &mut self.sides[index]
    }

    pub(super) fn is_over(&self) -> bool {
        self.sides.iter().all(|side| side.ended_ns.is_some())
    }

    pub(super) fn both_connected(&self) -> bool {
        self.sides.iter().all(|side| side.connected)
    }
}

/// All connections of a world. None is removed: a connection that is over must not reappear.
#[derive(Debug, Default)]
pub(super) struct Accounting {
    records: Vec<Record>,
    by_key: HashMap<(u32, SideId, SideId), usize>,
}

impl Accounting {
    /// Records that `actor` is connected with `other` and returns the number of the record. `other_ended`: the peer has
    /// already left the connection.
    pub(super) fn connected(
        &mut self,
        now_ns: u64,
        (actor, identity): (usize, &Identity),
        (other, other_ended): (usize, bool),
    ) -> usize {
        let fresh = self.records.len();
        let number = *self.by_key.entry(identity.key()).or_insert(fresh);
        if number == fresh {
            let side = |actor, ended_ns| Side {
                actor,
                connected: false,
                ended_ns,
            };
            let ended_ns = other_ended.then_some(now_ns);
            self.records.push(Record {
                sides: [side(actor, None), side(other, ended_ns)],
                sent_to_be_notified: false,
            });
        }
        let side = self.records[number].side(actor);
        assert!(!side.connected, "{identity:?} connected twice");
        assert_eq!(side.ended_ns, None, "{identity:?} had ended");
        side.connected = true;
        number
    }

    pub(super) fn record(&mut self, number: usize) -> &mut Record {
        &mut self.records[number]
    }

    /// Returns the peer's side of a connection of this actor.
    pub(super) fn peer(&self, number: usize, actor: usize) -> &Side {
        let record = &self.records[number];
        &record.sides[1 - record.index_of(actor)]
    }

    pub(super) fn is_over(&self, number: usize) -> bool {
        self.records[number].is_over()
    }
}
