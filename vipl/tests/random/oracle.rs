//! Keeps every state that there can be, and says when there is none left.

use std::collections::HashSet;

use crate::model::{State, Tables};

/// What a provider did against the rules.
#[derive(Clone, Debug)]
pub(crate) struct Violation(pub(crate) String);

/// States at a time, at most: the bursts of a program are short enough for far fewer.
const MAX_STATES: usize = 50_000;

/// All states that there can be after what was seen so far.
pub(crate) struct Oracle {
    states: Vec<State>,
}

impl Oracle {
    pub(crate) fn new() -> Self {
        Self {
            states: vec![State::default()],
        }
    }

    /// One of them. Once the program has waited for everything, they differ only in the order of completion queues.
    pub(crate) fn any(&self) -> &State {
        &self.states[0]
    }

    pub(crate) fn states(&self) -> &[State] {
        &self.states
    }

    /// The provider may have done something, or nothing.
    pub(crate) fn work_on(&mut self, tables: &Tables) {
        let mut seen: HashSet<State> = self.states.iter().cloned().collect();
        let mut at = 0;
        while at < self.states.len() {
            for next in self.states[at].acts(tables) {
                if seen.insert(next.clone()) {
                    self.states.push(next);
                }
            }
            at += 1;
            assert!(self.states.len() < MAX_STATES, "a burst is too long");
        }
    }

    /// The states in which the provider has nothing left to do.
    pub(crate) fn at_rest(&self, tables: &Tables) -> Vec<State> {
        let rests = |state: &&State| {
            // What was taken back may have no consequence any more.
            let mut without = (*state).clone();
            without.withdrawn.clear();
            without.acts(tables).is_empty()
        };
        self.states.iter().filter(rests).cloned().collect()
    }

    /// What a call showed, and what follows from it: `after` gives the states that a state leads to if the call could
    /// have shown that in it.
    pub(crate) fn see(
        &mut self,
        what: impl FnOnce() -> String,
        after: impl Fn(&State) -> Vec<State>,
    ) -> Result<(), Violation> {
        let mut left: Vec<State> = Vec::new();
        let mut seen = HashSet::new();
        for state in &self.states {
            for next in after(state) {
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        if left.is_empty() {
            let text = format!("{}\npossible before: {}", what(), self.describe());
            return Err(Violation(text));
        }
        self.states = left;
        Ok(())
    }

    /// Something that happens in every state.
    pub(crate) fn change(&mut self, change: impl Fn(&mut State)) {
        for state in &mut self.states {
            change(state);
        }
    }

    /// Only these are left.
    pub(crate) fn replace(&mut self, states: Vec<State>) {
        self.states = states;
    }

    fn describe(&self) -> String {
        let mut text = format!("{} states", self.states.len());
        for state in self.states.iter().take(3) {
            text.push_str(&format!("\n{state}"));
        }
        text
    }
}
