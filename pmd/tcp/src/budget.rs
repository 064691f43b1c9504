//! Limits of the work of one poll of the sockets.

/// Maximum units of work of one poll: received segments, and other work by what it takes in comparison. The hot
/// connection has a turn in addition.
pub(super) const MAX_POLL_UNITS: u32 = 4096;
/// Maximum units of one connection in one poll. The least segment is a header, so a read that may have as many
/// headers is of 48 KiB, in addition to the payload of the segment that it continues.
pub(super) const MAX_TURN_UNITS: u32 = 2048;
/// Maximum bytes of one poll, which the last served connection may exceed; not with those of the hot connection.
const MAX_POLL_BYTES: usize = 1 << 20;

/// What a poll may still do; the rest waits for the next poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    units: u32,
    /// Of the connection that is served.
    pub(super) turn_units: u32,
    bytes: usize,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            units: MAX_POLL_UNITS,
            turn_units: MAX_TURN_UNITS,
            bytes: MAX_POLL_BYTES,
        }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.units == 0 || self.bytes == 0
    }

    pub(super) fn begin_turn(&mut self) {
        self.turn_units = self.units.min(MAX_TURN_UNITS);
    }

    pub(super) fn spend_units(&mut self, units: u32) {
        self.units = self.units.saturating_sub(units);
        self.turn_units = self.turn_units.saturating_sub(units);
    }

    pub(super) fn spend_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
