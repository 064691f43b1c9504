//! Handlers asked for, and what they were called with.

use vipl::{CqEntry, CqHandle, NicHandle, Returned, ViHandle, VipError, provider as vip};

use super::{Checked, Player};
use crate::model::{Call, Place, Rung, Seen, Verdict};
use crate::oracle::Violation;
use crate::program::{Pick, Side};

/// What a handler was called with, as it came.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    /// Address and status word.
    Descriptor(Option<(u64, u32)>),
    Entry(CqEntry),
}

/// A call of a handler: which one, the NIC that it was told, and what else.
pub(super) type Ring = (u64, NicHandle, Heard);

impl Player {
    pub(super) fn notify(&mut self, pick: Pick, side: Side, times: u32) -> Checked {
        let (vi, side) = self.pick_queue(pick, side);
        for _ in 0..times {
            self.notify_of(vi, side)?;
        }
        Ok(())
    }

    /// Most often a queue on which something is posted, and of which a handler may be asked.
    fn pick_queue(&self, pick: Pick, side: Side) -> (u64, Side) {
        let fits = |vi: &u64, side: Side| {
            let facts = &self.tables.vis[vi];
            let cq = match side {
                Side::Send => facts.send_cq,
                Side::Receive => facts.recv_cq,
            };
            cq.is_none() && !self.oracle.any().vis[vi].queue(side).items.is_empty()
        };
        let sides = [Side::Send, Side::Receive];
        let all = self.tables.vis.keys();
        let all = all.flat_map(|vi| sides.map(|side| (*vi, side)));
        let fitting: Vec<(u64, Side)> = all.filter(|(vi, side)| fits(vi, *side)).collect();
        if pick.wrong || fitting.is_empty() || pick.number & 0x3000 == 0 {
            return (self.pick_vi(pick), side);
        }
        fitting[pick.number as usize % fitting.len()]
    }

    fn notify_of(&mut self, vi: u64, side: Side) -> Checked {
        let (id, rings) = (self.name(), self.rings.clone());
        let handler = move |nic, found: Option<Returned>| {
            let found = found.map(|found| (found.descriptor as u64, found.status));
            let ring = (id, nic, Heard::Descriptor(found));
            rings.lock().expect("no handler panics").push(ring);
        };
        self.listen()?;
        self.oracle.work_on(&self.tables);
        let handle = ViHandle::from_raw(vi);
        let outcome = match side {
            Side::Send => vip::send_notify(handle, handler),
            Side::Receive => vip::recv_notify(handle, handler),
        };
        if !self.tables.vis.contains_key(&vi) {
            return self.unknown_vi("notify", vi, &outcome);
        }
        self.asked(Place::Work(vi, side), id, &outcome)
    }

    pub(super) fn cq_notify(&mut self, pick: Pick) -> Checked {
        let cq = self.pick_cq(pick);
        let (id, rings) = (self.name(), self.rings.clone());
        let handler = move |nic, entry| {
            let ring = (id, nic, Heard::Entry(entry));
            rings.lock().expect("no handler panics").push(ring);
        };
        self.listen()?;
        self.oracle.work_on(&self.tables);
        let outcome = vip::cq_notify(CqHandle::from_raw(cq), handler);
        if !self.tables.cqs.contains_key(&cq) {
            let verdict = Verdict::default().refuse_if(true, VipError::InvalidParameter);
            return self.certain(|| format!("notify of no CQ {cq:#x}"), &outcome, &verdict);
        }
        self.asked(Place::Cq(cq), id, &outcome)
    }

    fn asked(&mut self, place: Place, id: u64, outcome: &vipl::Result<()>) -> Checked {
        let text = format!("notify #{id} of {place:x?} -> {outcome:?}");
        self.note(|| text.clone());
        let tables = &self.tables;
        self.oracle.see(
            || text,
            |state| {
                let fits = state.may_notify(tables, place, outcome);
                fits.then(|| state.clone()).into_iter().collect()
            },
        )?;
        match outcome {
            Ok(()) => {
                self.oracle.change(|state| state.notify(place, id));
                self.places.insert(id, place);
            }
            Err(error) => self.count(format!("notify: {error:?}")),
        }
        Ok(())
    }

    /// Were the handlers that were called those that must be, with what they must be called with? True if there was
    /// one.
    pub(super) fn listen(&mut self) -> Checked<bool> {
        let rings = core::mem::take(&mut *self.rings.lock().expect("no handler panics"));
        if rings.is_empty() {
            return Ok(false);
        }
        self.oracle.work_on(&self.tables);
        for ring in rings {
            self.hear(ring)?;
        }
        Ok(true)
    }

    fn hear(&mut self, (id, nic, heard): Ring) -> Checked {
        let text = format!("handler #{id} is called with {heard:x?}");
        self.note(|| text.clone());
        let Some(place) = self.places.remove(&id) else {
            return Err(Violation(format!(
                "{text}\nits queue ended, or it was called before"
            )));
        };
        let owner = match place {
            Place::Work(vi, _) => self.tables.vis[&vi].nic,
            Place::Cq(cq) => self.tables.cqs[&cq].nic,
        };
        if nic.into_raw() != owner {
            return Err(Violation(format!("{text} by {nic:x?}, must be {owner:#x}")));
        }
        let rung = match (heard, place) {
            (Heard::Descriptor(Some((address, status))), Place::Work(vi, _)) => {
                Rung::Descriptor(self.completed(vi, address, status))
            }
            (Heard::Entry(entry), _) if entry.recv_queue => {
                Rung::Entry(entry.vi.into_raw(), Side::Receive)
            }
            (Heard::Entry(entry), _) => Rung::Entry(entry.vi.into_raw(), Side::Send),
            (Heard::Descriptor(_), _) => Rung::Descriptor(Seen::Empty),
        };
        let item = self.oracle.states().iter().find_map(|state| {
            state.rung(place, id, &rung)?;
            match &state.called[&place].front()?.1 {
                Call::Descriptor(item) => Some(item.clone()),
                Call::Emptied | Call::Entry(_, _) => None,
            }
        });
        self.oracle.see(
            || format!("{text}, {rung:x?}"),
            |state| state.rung(place, id, &rung).into_iter().collect(),
        )?;
        self.count(match &rung {
            Rung::Descriptor(Seen::Completed { .. }) => "handler: descriptor".into(),
            Rung::Descriptor(_) => "handler: NULL".into(),
            Rung::Entry(_, _) => "handler: entry".into(),
        });
        match (item, place) {
            (Some(item), Place::Work(vi, _)) => match &item.done {
                Some(done) => self.came_back(vi, &item.posted.0, done),
                None => Ok(()),
            },
            (_, _) => Ok(()),
        }
    }

    /// Queues end: what was taken off for their handlers has been told, all other requests are dropped.
    pub(super) fn places_end(&mut self, places: &[Place]) -> Checked {
        self.listen()?;
        self.oracle.see(
            || format!("{places:x?} end: what was taken off was not told"),
            |state| {
                let told = !places.iter().any(|place| state.withholds(*place));
                told.then(|| state.clone()).into_iter().collect()
            },
        )?;
        self.places.retain(|_, place| !places.contains(place));
        self.oracle.change(|state| {
            for place in places {
                state.end_place(*place);
            }
        });
        Ok(())
    }
}

/// Both queues of a VI.
pub(super) fn places_of(vi: u64) -> [Place; 2] {
    [Place::Work(vi, Side::Send), Place::Work(vi, Side::Receive)]
}
