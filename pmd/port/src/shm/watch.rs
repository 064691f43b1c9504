//! Which stations the owner of a port was told of.

use super::layout::StationState;

/// What a station slot looks like to the owner of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// There is no station.
    Nobody,
    /// The station with this generation joined.
    Joined(u64),
    /// The station with this generation left, which is told once its last frame,
    /// the one before this position of its ring, was handed out.
    Leaving { generation: u64, end: u64 },
}

/// A change to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Joined { slot: usize, generation: u64 },
    Left { slot: usize, generation: u64 },
}

/// Compares what is with what was told.
///
/// ```text
///            live                      not live, or another generation
///  Nobody ---------> Joined(g) ---------------------------> Leaving(g, end)
///    ^                                                            |
///    +------------- the receiver has reached `end` ---------------+
/// ```
#[derive(Debug)]
pub(super) struct Watch {
    told: Vec<Told>,
    now: Vec<StationState>,
    unsettled: bool,
}

impl Watch {
    pub(super) fn new(max_stations: usize) -> Self {
        Self {
            told: vec![Told::Nobody; max_stations],
            now: vec![StationState::from_word(0); max_stations],
            unsettled: false,
        }
    }

    /// Takes note of the state of a slot; `end` gives the end of its ring.
    pub(super) fn update(&mut self, slot: usize, state: StationState, end: impl Fn() -> u64) {
        self.now[slot] = state;
        match self.told[slot] {
            Told::Nobody => self.unsettled |= state.live,
            Told::Joined(generation) => {
                if !state.live || state.generation != generation {
                    self.told[slot] = Told::Leaving {
                        generation,
                        end: end(),
                    };
                    self.unsettled = true;
                }
            }
            Told::Leaving { .. } => {}
        }
    }

    /// True if there is something to tell, now or when rings are drained.
    #[inline]
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Tells all changes whose time has come.
    pub(super) fn settle(
        &mut self,
        has_reached: impl Fn(usize, u64) -> bool,
        mut tell: impl FnMut(Change),
    ) {
        self.unsettled = false;
        for (slot, (told, now)) in self.told.iter_mut().zip(&self.now).enumerate() {
            if let Told::Leaving { generation, end } = *told {
                if !has_reached(slot, end) {
                    self.unsettled = true;
                    continue;
                }
                tell(Change::Left { slot, generation });
                *told = Told::Nobody;
            }
            if *told == Told::Nobody && now.live {
                let generation = now.generation;
                tell(Change::Joined { slot, generation });
                *told = Told::Joined(generation);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: usize = 1;

    fn state(generation: u64, live: bool) -> StationState {
        StationState { generation, live }
    }

    /// Tells everything while the receiver has reached `reached`.
    fn told(watch: &mut Watch, reached: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        watch.settle(|_, end| reached >= end, |change| changes.push(change));
        changes
    }

    fn joined(generation: u64) -> Change {
        Change::Joined {
            slot: SLOT,
            generation,
        }
    }

    fn left(generation: u64) -> Change {
        Change::Left {
            slot: SLOT,
            generation,
        }
    }

    #[test]
    fn every_state_times_every_change() {
        let mut watch = Watch::new(2);
        watch.update(SLOT, state(0, false), || 0);
        assert!(!watch.is_unsettled(), "nobody was and is there");
        watch.update(SLOT, state(1, true), || 0);
        assert!(watch.is_unsettled());
        assert_eq!(told(&mut watch, 0), [joined(1)]);
        assert!(!watch.is_unsettled());
        watch.update(SLOT, state(1, true), || 0);
        assert!(!watch.is_unsettled(), "told already");
        watch.update(SLOT, state(1, false), || 7);
        assert!(watch.is_unsettled());
        assert_eq!(told(&mut watch, 6), []);
        assert!(watch.is_unsettled(), "its last frame is still to be read");
        watch.update(SLOT, state(2, true), || 99);
        assert_eq!(told(&mut watch, 7), [left(1), joined(2)]);
        watch.update(SLOT, state(5, true), || 8);
        assert_eq!(
            told(&mut watch, 8),
            [left(2), joined(5)],
            "unseen ones between"
        );
        watch.update(SLOT, state(5, false), || 8);
        assert_eq!(told(&mut watch, 8), [left(5)]);
        assert!(!watch.is_unsettled());
    }

    #[test]
    fn a_station_that_came_and_went_untold_is_not_told() {
        let mut watch = Watch::new(2);
        watch.update(SLOT, state(1, true), || 0);
        watch.update(SLOT, state(1, false), || 0);
        assert_eq!(told(&mut watch, 0), []);
        assert!(!watch.is_unsettled());
    }
}
