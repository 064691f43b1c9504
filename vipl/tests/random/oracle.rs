//! Keeps all possible states of the model; reports a violation when an observation fits none of them.

use std::collections::HashSet;

use crate::model::{State, Tables};

/// A violation of the rules by the provider.
#[derive(Clone, Debug)]
pub(crate) struct Violation(pub(crate) String);

/// Maximum of states: the bursts of a program are short enough for far fewer.
const MAX_STATES: usize = 50_000;

/// All possible states after the observations so far.
pub(crate) struct Oracle {
    states: Vec<State>,
}

impl Oracle {
    pub(crate) fn new() -> Self {
        Self {
            states: vec![State::default()],
        }
    }

    /// Returns one of the states. At a quiescent point they differ only in the order of completion queues.
    pub(crate) fn any(&self) -> &State {
        &self.states[0]
    }

    pub(crate) fn states(&self) -> &[State] {
        &self.states
    }

    /// Adds all states that steps of the provider can lead to.
    pub(crate) fn explore(&mut self, tables: &Tables) {
        let mut seen: HashSet<State> = self.states.iter().cloned().collect();
        let mut at = 0;
        while at < self.states.len() {
            for next in self.states[at].provider_steps(tables) {
                if seen.insert(next.clone()) {
                    self.states.push(next);
                }
            }
            at += 1;
            assert!(self.states.len() < MAX_STATES, "a burst is too long");
        }
    }

    /// Returns the states in which the provider has no step left.
    pub(crate) fn quiescent(&self, tables: &Tables) -> Vec<State> {
        let is_quiescent = |state: &&State| {
            // A withdrawn peer request may have no further effect.
            let mut without = (*state).clone();
            without.withdrawn.clear();
            without.provider_steps(tables).is_empty()
        };
        self.states.iter().filter(is_quiescent).cloned().collect()
    }

    /// Keeps the states that fit an observation: `after` returns the successors of a state, or none if it does not fit.
    /// The violation has the text of `what`.
    pub(crate) fn observe(
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

    /// Applies a change to each state.
    pub(crate) fn apply(&mut self, change: impl Fn(&mut State)) {
        for state in &mut self.states {
            change(state);
        }
    }

    /// Replaces all states.
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
