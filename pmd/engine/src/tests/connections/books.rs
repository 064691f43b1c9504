//! Both ends of each connection, as they saw it.

use std::collections::HashMap;

/// One end: its node and the handle that its VI has for this connection alone.
pub(super) type EndName = (usize, u32);

/// What one end knows of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) connection_id: u32,
    pub(super) own: EndName,
    pub(super) other: EndName,
}

impl Identity {
    /// Alike at both ends.
    fn key(&self) -> (u32, EndName, EndName) {
        let (low, high) = (self.own.min(self.other), self.own.max(self.other));
        (self.connection_id, low, high)
    }

    /// What a message of this end says.
    pub(super) fn message(&self) -> Vec<u8> {
        let text = |(node, handle): EndName| format!("{node}.{handle:08x}");
        let (from, to) = (text(self.own), text(self.other));
        format!("{} from {from} to {to}", self.connection_id).into_bytes()
    }

    /// As the other end knows it.
    pub(super) fn turned(&self) -> Self {
        Self {
            own: self.other,
            other: self.own,
            ..*self
        }
    }
}

/// One end of a connection in the books.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// Whose it is.
    pub(super) actor: usize,
    pub(super) connected: bool,
    /// When it had left, failed or broken.
    pub(super) ended_ns: Option<u64>,
}

/// A connection that at least one end was in.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) ends: [End; 2],
    /// Disconnects were lost, so an end had to talk.
    pub(super) talked: bool,
}

impl Record {
    fn place(&self, actor: usize) -> usize {
        let is_own = |end: &End| end.actor == actor;
        let place = self.ends.iter().position(is_own);
        place.expect("an end of this connection")
    }

    pub(super) fn end(&mut self, actor: usize) -> &mut End {
        let place = self.place(actor);
        &mut self.ends[place]
    }

    pub(super) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.ended_ns.is_some())
    }

    pub(super) fn is_whole(&self) -> bool {
        self.ends.iter().all(|end| end.connected)
    }
}

/// All connections of a world. None is ever taken out: one that is over must not come back.
#[derive(Debug, Default)]
pub(super) struct Books {
    records: Vec<Record>,
    by_key: HashMap<(u32, EndName, EndName), usize>,
}

impl Books {
    /// An actor is connected, with this one. `other_left`: it is not in it any more.
    pub(super) fn connected(
        &mut self,
        now_ns: u64,
        (actor, identity): (usize, &Identity),
        (other, other_left): (usize, bool),
    ) -> usize {
        let fresh = self.records.len();
        let number = *self.by_key.entry(identity.key()).or_insert(fresh);
        if number == fresh {
            let end = |actor, ended_ns| End {
                actor,
                connected: false,
                ended_ns,
            };
            let left_ns = other_left.then_some(now_ns);
            self.records.push(Record {
                ends: [end(actor, None), end(other, left_ns)],
                talked: false,
            });
        }
        let end = self.records[number].end(actor);
        assert!(!end.connected, "{identity:?} came back");
        assert_eq!(end.ended_ns, None, "{identity:?} was over for this end");
        end.connected = true;
        number
    }

    pub(super) fn record(&mut self, number: usize) -> &mut Record {
        &mut self.records[number]
    }

    /// The other end than this actor's.
    pub(super) fn other(&self, number: usize, actor: usize) -> &End {
        let record = &self.records[number];
        &record.ends[1 - record.place(actor)]
    }

    pub(super) fn is_over(&self, number: usize) -> bool {
        self.records[number].is_over()
    }
}
