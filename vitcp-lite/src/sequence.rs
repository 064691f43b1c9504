//! Serial number arithmetic: message numbers modulo 2^32, and descriptor flow control modulo 2^16
//! [VI/TCP 3.1].

/// Checks whether message number `a` follows `b`, modulo 2^32. False in both directions for numbers
/// that are 2^31 apart.
#[inline]
#[must_use]
pub const fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

/// Sender side of descriptor flow control: credits for receive descriptors that the peer has posted
/// and no message has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// The last valid Rx Descriptors Posted.
    posted: u16,
    /// Wider than the field: no credit is lost if the peer posts more than the field holds.
    unused: u32,
}

impl Credits {
    /// Starts with `rx_posted` of the peer's Connect Request or Connect Accept, all unused.
    #[must_use]
    pub fn new(rx_posted: u16) -> Self {
        Self {
            posted: rx_posted,
            unused: u32::from(rx_posted),
        }
    }

    /// Adds the credits of a received Rx Descriptors Posted. Ignores a stale value, which would take
    /// credits back: one that is 2^15 or more ahead of the last.
    #[inline]
    pub fn note_posted(&mut self, rx_posted: u16) {
        let more = rx_posted.wrapping_sub(self.posted);
        if more.cast_signed() > 0 {
            self.posted = rx_posted;
            self.unused = self.unused.saturating_add(u32::from(more));
        }
    }

    /// Returns the number of messages that may be sent now, at most 65535.
    #[inline]
    #[must_use]
    pub fn available(&self) -> u16 {
        u16::try_from(self.unused).unwrap_or(u16::MAX)
    }

    /// Uses one credit for a message that consumes a descriptor. `false`, without effect, if there is
    /// none.
    #[inline]
    #[must_use]
    pub fn use_one(&mut self) -> bool {
        match self.unused.checked_sub(1) {
            Some(left) => {
                self.unused = left;
                true
            }
            None => false,
        }
    }
}

/// Receiver side of descriptor flow control: the count to advertise, and when a NOP is due. Counts
/// are since the start of the connection, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    posted: u32,
    used: u32,
    advertised: u32,
    threshold: u16,
}

impl Posted {
    /// Limit of advertised but unused credits: half the range of the field, so that the peer can
    /// distinguish an increase from a stale value.
    pub const MAX_AHEAD: u16 = 32767;

    /// Starts with no descriptor. A NOP is due when fewer than `threshold` credits are unused.
    #[must_use]
    pub const fn new(threshold: u16) -> Self {
        Self {
            posted: 0,
            used: 0,
            advertised: 0,
            threshold,
        }
    }

    /// Sets the count of descriptors posted since the start of the connection, modulo 2^32. Ignores a
    /// count before the last one.
    #[inline]
    pub const fn note(&mut self, posted_total: u32) {
        if is_after(posted_total, self.posted) {
            self.posted = posted_total;
        }
    }

    /// Counts a descriptor that a message consumed.
    #[inline]
    pub const fn use_one(&mut self) {
        self.used = self.used.wrapping_add(1);
    }

    /// Returns the Rx Descriptors Posted for a segment. It counts as advertised once the segment is
    /// sent: see [`note_advertised`](Self::note_advertised).
    #[inline]
    #[must_use]
    pub const fn word(&self) -> u16 {
        // The low half: the field is modulo 2^16.
        (self.advertisable() & 0xFFFF) as u16
    }

    /// Marks the value of [`word`](Self::word) as advertised: a segment with it was sent, and nothing
    /// was counted since.
    #[inline]
    pub const fn note_advertised(&mut self) {
        self.advertised = self.advertisable();
    }

    /// Checks whether a NOP is due: more is posted than advertised, and the unused credits are below
    /// the threshold.
    #[inline]
    #[must_use]
    pub const fn wants_nop(&self) -> bool {
        let low = self.used.wrapping_add(self.threshold as u32);
        is_after(self.advertisable(), self.advertised) && is_after(low, self.advertised)
    }

    /// Returns the count to advertise: never less than before, never more than is posted or than
    /// [`MAX_AHEAD`](Self::MAX_AHEAD) allows.
    const fn advertisable(&self) -> u32 {
        let bound = self.used.wrapping_add(Self::MAX_AHEAD as u32);
        let value = if is_after(self.posted, bound) {
            bound
        } else {
            self.posted
        };
        if is_after(value, self.advertised) {
            value
        } else {
            self.advertised
        }
    }
}

#[cfg(test)]
mod tests;
