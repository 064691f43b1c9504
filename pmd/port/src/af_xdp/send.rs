//! Sending: the send ring, and the handling of frames that stay in it.
//!
//! In copy mode the kernel takes frames during this process's system calls. A call ends with the
//! first frame that the interface's driver drops, and returns an error: calls are repeated until the
//! ring is empty, so that every such frame is counted, and none stays in the ring of an interface
//! that has lost its carrier. With zero copy the driver takes frames when it can, and frames in
//! the ring cannot be taken back; if they stay for too long, the port has failed.

use std::io;
use std::time::{Duration, Instant};

use super::driver::AfXdpPort;
use crate::af_packet::{ETHERNET_HEADER_BYTES, frame_bytes};
use crate::mbuf::Mbuf;
use crate::port::PortFailure;

/// Why the kernel refused to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The driver dropped a copied frame; the following ones stay in the ring.
    Dropped,
    /// No buffers are free now.
    NoBuffers,
    /// The interface is down or removed, or another reason.
    Other,
}

impl Refusal {
    fn of(error: &io::Error, zero_copy: bool) -> Self {
        match error.raw_os_error() {
            Some(libc::EBUSY) if !zero_copy => Self::Dropped,
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Self::NoBuffers,
            _ => Self::Other,
        }
    }
}

/// Detects that the kernel takes no frames although the send ring has some.
#[derive(Debug)]
pub(super) struct Standstill {
    limit: Duration,
    /// The kernel's index, and since when it has not changed.
    since: Option<(u32, Instant)>,
}

impl Standstill {
    /// Creates a detector with this time limit.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: None }
    }

    /// Updates the kernel's index, `None` if the ring is empty; returns whether frames stayed too long.
    fn is_too_long(&mut self, taken: Option<u32>, now: Instant) -> bool {
        match (taken, self.since) {
            (Some(taken), Some((before, since))) if taken == before => {
                now.saturating_duration_since(since) >= self.limit
            }
            _ => {
                self.since = taken.map(|taken| (taken, now));
                false
            }
        }
    }
}

impl AfXdpPort {
    /// Adds one buffer to the send ring, or drops and counts it.
    #[inline]
    pub(super) fn submit(&mut self, mbuf: Mbuf) {
        let bytes = mbuf.bytes();
        let len_bytes = bytes.len() as u32;
        self.counts.tx_frames += 1;
        self.counts.tx_bytes += u64::from(len_bytes);
        let reason = if len_bytes < ETHERNET_HEADER_BYTES {
            &mut self.counts.drop_tx_runt
        } else if len_bytes > frame_bytes(self.link.state().mtu_bytes) {
            &mut self.counts.drop_tx_too_long
        } else if !self.umem.is_to_send(&mbuf) {
            &mut self.counts.drop_tx_not_lent
        } else if bytes.starts_with(&self.capabilities.mac) {
            self.counts.tx_self += 1;
            // Never grows: there are only as many buffers as the queue's capacity.
            return self.to_self.push_back(mbuf);
        } else if self.blocked {
            &mut self.counts.drop_tx_link_down
        } else {
            self.pending = true;
            return self.sender.tx.push(libc::xdp_desc {
                addr: self.umem.submit(&mbuf),
                len: len_bytes,
                options: 0,
            });
        };
        *reason += 1;
        self.give_back(mbuf);
    }

    /// Makes the kernel take the frames of the send ring, if it does not do so by itself.
    pub(super) fn kick(&mut self) {
        if self.sender.tx.needs_wakeup() {
            self.make_kernel_send();
        }
        self.update_pending();
    }

    /// As [`Self::kick`], before a sleep: the kernel may have missed what was published, and no later
    /// burst would detect that.
    pub(super) fn kick_before_sleep(&mut self) {
        self.make_kernel_send();
        self.update_pending();
    }

    fn update_pending(&mut self) {
        self.pending = self.sender.tx.unread() > 0;
        self.counts.tx_busy += u64::from(self.pending);
    }

    fn make_kernel_send(&mut self) {
        let mut drops = 0;
        // One call for each frame that is dropped, and one that finds the ring empty.
        for _ in 0..=self.sender.tx.unread() {
            self.counts.tx_kicks += 1;
            let Err(error) = self.receivers[0].socket.wake_sender() else {
                // In copy mode a call continues until the ring is empty, unless this queue
                // cannot send.
                if !self.transfer_mode.zero_copy && self.sender.tx.unread() > 0 {
                    self.fail(PortFailure::NoSendQueue);
                }
                break;
            };
            match Refusal::of(&error, self.transfer_mode.zero_copy) {
                Refusal::Dropped => drops += 1,
                Refusal::NoBuffers => break,
                Refusal::Other => {
                    self.count_refusal();
                    break;
                }
            }
        }
        if drops > 0 {
            self.count_drops(drops);
        }
    }

    /// Counts copied frames that the driver dropped, for lack of carrier or of buffers at the receiver.
    #[cold]
    fn count_drops(&mut self, frames: u64) {
        self.refresh_link();
        if self.link.state().running {
            self.counts.drop_tx_refused += frames;
        } else {
            self.counts.drop_tx_link_down += frames;
        }
    }

    #[cold]
    fn count_refusal(&mut self) {
        self.refresh_link();
        self.counts.tx_refusals += u64::from(self.link.state().running);
    }

    /// Reads the link state; blocks sending while the interface is down or without carrier.
    pub(super) fn refresh_link(&mut self) {
        self.link.refresh(&self.control);
        self.blocked = self.failed || !self.link.state().running;
    }

    /// Fails the port and blocks sending.
    #[cold]
    fn fail(&mut self, failure: PortFailure) {
        if !self.failed {
            self.link.fail(failure);
        }
        (self.failed, self.blocked) = (true, true);
    }

    /// Handles frames that stay in the send ring while the caller sends nothing.
    pub(super) fn check_send_ring(&mut self) {
        // Copied frames are sent or dropped by the call. With zero copy the driver takes them
        // when the carrier is back, and before that only returns errors.
        if self.pending && !(self.blocked && self.transfer_mode.zero_copy) {
            self.kick();
        }
        let taken = self.pending.then(|| self.sender.tx.taken());
        // That an interface is down was already reported.
        if self.standstill.is_too_long(taken, Instant::now()) && self.link.state().up {
            self.fail(PortFailure::SendStalled);
        }
    }

    /// Frees chunks whose frames were sent.
    #[inline]
    pub(super) fn reclaim(&mut self) {
        let mut any = false;
        while let Some(address) = self.sender.completion.pop() {
            self.umem.reclaim(address);
            any = true;
        }
        if any {
            self.sender.completion.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_classified_by_errno() {
        for (error, zero_copy, expected) in [
            (libc::EBUSY, false, Refusal::Dropped),
            (libc::EBUSY, true, Refusal::Other),
            (libc::EAGAIN, false, Refusal::NoBuffers),
            (libc::ENOBUFS, true, Refusal::NoBuffers),
            (libc::ENOMEM, false, Refusal::NoBuffers),
            (libc::EINTR, true, Refusal::NoBuffers),
            (libc::ENETDOWN, false, Refusal::Other),
            (libc::ENXIO, true, Refusal::Other),
            (libc::EINVAL, true, Refusal::Other),
            (libc::EOPNOTSUPP, false, Refusal::Other),
        ] {
            let error = io::Error::from_raw_os_error(error);
            assert_eq!(Refusal::of(&error, zero_copy), expected, "{error}");
        }
    }

    #[test]
    fn stalled_frames_are_detected() {
        let start = Instant::now();
        let mut standstill = Standstill::new(Duration::from_secs(5));
        let mut is_too_long = |taken, after_ms| {
            standstill.is_too_long(taken, start + Duration::from_millis(after_ms))
        };
        assert!(!is_too_long(Some(7), 0));
        assert!(!is_too_long(Some(7), 4_999));
        // The kernel has taken a frame.
        assert!(!is_too_long(Some(8), 6_000));
        assert!(!is_too_long(Some(8), 10_999));
        // The ring is empty for a while, and then has a frame at the same index.
        assert!(!is_too_long(None, 12_000));
        assert!(!is_too_long(Some(8), 13_000));
        assert!(!is_too_long(Some(8), 17_999));
        assert!(is_too_long(Some(8), 18_000));
        assert!(is_too_long(Some(8), 30_000));
    }
}
