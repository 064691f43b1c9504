//! Numbers that begin again at 0: message numbers modulo 2^32, and descriptor flow control
//! modulo 2^16 [VI/TCP 3.1].

/// Is `a` behind `b` in the order of message numbers, modulo 2^32? Of two numbers that are
/// 2^31 apart neither is.
#[inline]
#[must_use]
pub const fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

/// Descriptor flow control, the sender's side: the descriptors that the peer has posted
/// and that are not used yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// The last Rx Descriptors Posted that counted.
    posted: u16,
    /// Wider than the field: a peer that posts more than it can say loses none.
    unused: u32,
}

impl Credits {
    /// At the start of a connection: `rx_posted` of the peer's Connect Request or Connect
    /// Accept, all of them unused.
    #[must_use]
    pub fn new(rx_posted: u16) -> Self {
        Self {
            posted: rx_posted,
            unused: u32::from(rx_posted),
        }
    }

    /// A segment came with this Rx Descriptors Posted. One that would take credits back,
    /// 2^15 or more ahead of the last, is stale: it is ignored.
    #[inline]
    pub fn note_posted(&mut self, rx_posted: u16) {
        let more = rx_posted.wrapping_sub(self.posted);
        if more.cast_signed() > 0 {
            self.posted = rx_posted;
            self.unused = self.unused.saturating_add(u32::from(more));
        }
    }

    /// Messages that may be sent now, at most 65535.
    #[inline]
    #[must_use]
    pub fn available(&self) -> u16 {
        u16::try_from(self.unused).unwrap_or(u16::MAX)
    }

    /// A message is sent that takes a descriptor. `false`, and nothing happens, if there
    /// is none.
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

/// The receiver's side: how many descriptors to say, and when a NOP is due. All counts are
/// since the connection began, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    posted: u32,
    used: u32,
    said: u32,
    threshold: u16,
}

impl Posted {
    /// Most credits that the peer is ever told of ahead of those it used: half the range of
    /// the field, so that it can tell more from less.
    pub const MAX_AHEAD: u16 = 32767;

    /// At the start of a connection. A NOP is due when fewer than `threshold` credits are
    /// unused.
    #[must_use]
    pub const fn new(threshold: u16) -> Self {
        Self {
            posted: 0,
            used: 0,
            said: 0,
            threshold,
        }
    }

    /// So many descriptors were posted since the connection began, modulo 2^32. A count
    /// behind the last one is ignored.
    #[inline]
    pub const fn note(&mut self, posted_total: u32) {
        if is_after(posted_total, self.posted) {
            self.posted = posted_total;
        }
    }

    /// A message took a descriptor.
    #[inline]
    pub const fn use_one(&mut self) {
        self.used = self.used.wrapping_add(1);
    }

    /// The Rx Descriptors Posted of a segment that is sent now. It is said when the segment is on
    /// its way: see [`note_said`](Self::note_said).
    #[inline]
    #[must_use]
    pub const fn word(&self) -> u16 {
        // The low half: the field is modulo 2^16.
        (self.sayable() & 0xFFFF) as u16
    }

    /// A segment with what [`word`](Self::word) gave is on its way, and nothing was counted since.
    #[inline]
    pub const fn note_said(&mut self) {
        self.said = self.sayable();
    }

    /// Is a NOP due: more is posted than was said, and the unused credits are below the
    /// threshold?
    #[inline]
    #[must_use]
    pub const fn wants_nop(&self) -> bool {
        let low = self.used.wrapping_add(self.threshold as u32);
        is_after(self.sayable(), self.said) && is_after(low, self.said)
    }

    /// What may be said: never back, never more than is posted or than
    /// [`MAX_AHEAD`](Self::MAX_AHEAD) allows.
    const fn sayable(&self) -> u32 {
        let bound = self.used.wrapping_add(Self::MAX_AHEAD as u32);
        let value = if is_after(self.posted, bound) {
            bound
        } else {
            self.posted
        };
        if is_after(value, self.said) {
            value
        } else {
            self.said
        }
    }
}

#[cfg(test)]
mod tests;
