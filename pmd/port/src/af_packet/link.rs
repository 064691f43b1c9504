//! Monitors the state of the interface while a port on it is open.

use super::driver::frame_bytes;
use super::socket::{LinkState, Socket};
use crate::port::{MtuChange, PortEvent, PortFailure};

/// Monitors the link of an interface by polling.
#[derive(Debug)]
pub(crate) struct LinkMonitor {
    index: i32,
    state: LinkState,
    changes: u64,
    /// A failure that is not yet reported.
    unreported_failure: Option<PortFailure>,
    /// The MTU that the port was opened with.
    opened_mtu_bytes: u32,
    /// A lower MTU that was reported.
    reported_low_mtu: Option<u32>,
}

impl LinkMonitor {
    /// Monitors the interface with this index, whose current state is given.
    pub(crate) fn new(index: i32, state: LinkState) -> Self {
        Self {
            index,
            state,
            changes: 0,
            unreported_failure: None,
            opened_mtu_bytes: state.mtu_bytes,
            reported_low_mtu: None,
        }
    }

    /// Returns the state as of the last refresh.
    #[inline]
    pub(crate) fn state(&self) -> LinkState {
        self.state
    }

    /// Returns how often the link was found up or down when it was not before.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Reads the interface's state. A removed interface counts as down, and one that was taken
    /// down fails the port; a lost carrier is a network failure, not one of the port.
    pub(crate) fn refresh(&mut self, socket: &Socket) {
        let (state, failure) = match socket.link_state(self.index) {
            Ok(state) => (state, PortFailure::InterfaceDown),
            Err(_) => {
                let removed = LinkState {
                    up: false,
                    running: false,
                    ..self.state
                };
                (removed, PortFailure::InterfaceRemoved)
            }
        };
        if self.state.up && !state.up {
            self.unreported_failure = Some(failure);
        }
        if state.running != self.state.running {
            self.changes += 1;
        }
        self.state = state;
    }

    /// Sets a failure that the interface's state does not show.
    pub(crate) fn fail(&mut self, failure: PortFailure) {
        self.unreported_failure = Some(failure);
    }

    /// Reports a failure, and a relevant change of the MTU, each once; returns false if there is neither.
    pub(crate) fn report(&mut self, out: &mut Vec<PortEvent>) -> bool {
        let before = out.len();
        out.extend(self.unreported_failure.take().map(PortEvent::Failed));
        let (opened, now) = (self.opened_mtu_bytes, self.state.mtu_bytes);
        let is_too_low = frame_bytes(now) < frame_bytes(opened);
        let is_new = match is_too_low {
            true => self.reported_low_mtu != Some(now),
            false => self.reported_low_mtu.is_some(),
        };
        if is_new {
            self.reported_low_mtu = is_too_low.then_some(now);
            out.push(PortEvent::MtuChanged(MtuChange {
                opened_bytes: opened,
                now_bytes: now,
                is_too_low,
            }));
        }
        out.len() > before
    }
}
