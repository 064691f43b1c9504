//! Tracks which stations were reported to the owner of a port.

use super::layout::StationState;

/// The reported state of a station slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    /// No station.
    Absent,
    /// The station with this generation joined.
    Joined(u64),
    /// The station with this generation left, which is reported after its last frame,
    /// the one before this position of its ring, was received.
    Leaving { generation: u64, end: u64 },
}

/// A change to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StationChange {
    Joined { slot: usize, generation: u64 },
    Left { slot: usize, generation: u64 },
}

/// Compares the current with the reported states of all stations.
///
/// ```text
///            live                      not live, or another generation
///  Absent ---------> Joined(g) ---------------------------> Leaving(g, end)
///    ^                                                            |
///    +------------- the receiver has reached `end` ---------------+
/// ```
#[derive(Debug)]
pub(super) struct StationEvents {
    reported: Vec<Reported>,
    current: Vec<StationState>,
    has_pending: bool,
}

impl StationEvents {
    pub(super) fn new(max_stations: usize) -> Self {
        Self {
            reported: vec![Reported::Absent; max_stations],
            current: vec![StationState::from_word(0); max_stations],
            has_pending: false,
        }
    }

    /// Updates the state of a slot; `end` returns the end of its ring.
    pub(super) fn update(&mut self, slot: usize, state: StationState, end: impl Fn() -> u64) {
        self.current[slot] = state;
        match self.reported[slot] {
            Reported::Absent => self.has_pending |= state.live,
            Reported::Joined(generation) => {
                if !state.live || state.generation != generation {
                    self.reported[slot] = Reported::Leaving {
                        generation,
                        end: end(),
                    };
                    self.has_pending = true;
                }
            }
            Reported::Leaving { .. } => {}
        }
    }

    /// Returns whether changes are pending, to be reported now or after rings are drained.
    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        self.has_pending
    }

    /// Reports all changes that are due.
    pub(super) fn report_due(
        &mut self,
        has_reached: impl Fn(usize, u64) -> bool,
        mut report: impl FnMut(StationChange),
    ) {
        self.has_pending = false;
        for (slot, (reported, now)) in self.reported.iter_mut().zip(&self.current).enumerate() {
            if let Reported::Leaving { generation, end } = *reported {
                if !has_reached(slot, end) {
                    self.has_pending = true;
                    continue;
                }
                report(StationChange::Left { slot, generation });
                *reported = Reported::Absent;
            }
            if *reported == Reported::Absent && now.live {
                let generation = now.generation;
                report(StationChange::Joined { slot, generation });
                *reported = Reported::Joined(generation);
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

    /// Returns the changes that are due while the receiver has reached `reached`.
    fn due(events: &mut StationEvents, reached: u64) -> Vec<StationChange> {
        let mut changes = Vec::new();
        events.report_due(|_, end| reached >= end, |change| changes.push(change));
        changes
    }

    fn joined(generation: u64) -> StationChange {
        StationChange::Joined {
            slot: SLOT,
            generation,
        }
    }

    fn left(generation: u64) -> StationChange {
        StationChange::Left {
            slot: SLOT,
            generation,
        }
    }

    #[test]
    fn state_transitions_are_reported_in_order() {
        let mut events = StationEvents::new(2);
        events.update(SLOT, state(0, false), || 0);
        assert!(!events.has_pending(), "absent before and after");
        events.update(SLOT, state(1, true), || 0);
        assert!(events.has_pending());
        assert_eq!(due(&mut events, 0), [joined(1)]);
        assert!(!events.has_pending());
        events.update(SLOT, state(1, true), || 0);
        assert!(!events.has_pending(), "already reported");
        events.update(SLOT, state(1, false), || 7);
        assert!(events.has_pending());
        assert_eq!(due(&mut events, 6), []);
        assert!(events.has_pending(), "its last frame is not yet received");
        events.update(SLOT, state(2, true), || 99);
        assert_eq!(due(&mut events, 7), [left(1), joined(2)]);
        events.update(SLOT, state(5, true), || 8);
        assert_eq!(
            due(&mut events, 8),
            [left(2), joined(5)],
            "generations between them were not observed"
        );
        events.update(SLOT, state(5, false), || 8);
        assert_eq!(due(&mut events, 8), [left(5)]);
        assert!(!events.has_pending());
    }

    #[test]
    fn station_that_left_before_a_report_is_not_reported() {
        let mut events = StationEvents::new(2);
        events.update(SLOT, state(1, true), || 0);
        events.update(SLOT, state(1, false), || 0);
        assert_eq!(due(&mut events, 0), []);
        assert!(!events.has_pending());
    }
}
