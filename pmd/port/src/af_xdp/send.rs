//! Frames on their way out: the send ring, and what becomes of frames that stand in it.
//!
//! Where frames are copied the kernel takes them in our system calls. A call ends with the first
//! frame that the interface's driver drops, and says so: the next call follows until the ring is
//! empty, so that every such frame is counted, and none stands in the ring of an interface that
//! has lost its other end. Without copies the driver takes frames when it can, and what stands in
//! the ring cannot be had back; if it stands for too long, the port has failed.

use std::io;
use std::time::{Duration, Instant};

use super::driver::AfXdpPort;
use crate::af_packet::{ETHERNET_HEADER_BYTES, frame_bytes};
use crate::mbuf::Mbuf;
use crate::port::PortFailure;

/// What it means that the kernel refused to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The driver dropped a copied frame; those behind it stand.
    Dropped,
    /// There is no room for now.
    NoRoom,
    /// The interface is down or gone, or has another reason.
    Other,
}

impl Refusal {
    fn of(error: &io::Error, zero_copy: bool) -> Self {
        match error.raw_os_error() {
            Some(libc::EBUSY) if !zero_copy => Self::Dropped,
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Self::NoRoom,
            _ => Self::Other,
        }
    }
}

/// Since when the kernel has taken nothing although frames stand in the send ring.
#[derive(Debug)]
pub(super) struct Standstill {
    limit: Duration,
    /// The kernel's index then.
    since: Option<(u32, Instant)>,
}

impl Standstill {
    /// For frames that may stand so long.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: None }
    }

    /// Looks at the kernel's index, `None` while nothing stands; true if frames stood too long.
    fn is_too_long(&mut self, standing: Option<u32>, now: Instant) -> bool {
        match (standing, self.since) {
            (Some(taken), Some((before, since))) if taken == before => {
                now.saturating_duration_since(since) >= self.limit
            }
            _ => {
                self.since = standing.map(|taken| (taken, now));
                false
            }
        }
    }
}

impl AfXdpPort {
    /// Puts one buffer into the send ring, or drops and counts it.
    #[inline]
    pub(super) fn submit(&mut self, mbuf: Mbuf) {
        let bytes = mbuf.bytes();
        let len_bytes = bytes.len() as u32;
        self.counts.tx_frames += 1;
        self.counts.tx_bytes += u64::from(len_bytes);
        let reason = if len_bytes < ETHERNET_HEADER_BYTES {
            &mut self.counts.drop_tx_runt
        } else if len_bytes > frame_bytes(self.link.now().mtu_bytes) {
            &mut self.counts.drop_tx_too_long
        } else if !self.umem.is_to_send(&mbuf) {
            &mut self.counts.drop_tx_not_lent
        } else if bytes.starts_with(&self.capabilities.mac) {
            self.counts.tx_self += 1;
            // Never grows: no more buffers than the queue's capacity exist.
            return self.to_self.push_back(mbuf);
        } else if self.blocked {
            &mut self.counts.drop_tx_link_down
        } else {
            self.pending = true;
            return self.sender.tx.push(libc::xdp_desc {
                addr: self.umem.hand_over(&mbuf),
                len: len_bytes,
                options: 0,
            });
        };
        *reason += 1;
        self.give_back(mbuf);
    }

    /// Makes the kernel take what stands in the send ring, if it does not do so by itself.
    pub(super) fn kick(&mut self) {
        if self.sender.tx.needs_wakeup() {
            self.make_kernel_send();
        }
        self.look_at_ring();
    }

    /// The same before a sleep, in which nobody sees that the kernel did not notice by itself
    /// what was published.
    pub(super) fn kick_before_sleep(&mut self) {
        self.make_kernel_send();
        self.look_at_ring();
    }

    fn look_at_ring(&mut self) {
        self.pending = self.sender.tx.unread() > 0;
        self.counts.tx_busy += u64::from(self.pending);
    }

    fn make_kernel_send(&mut self) {
        let mut drops = 0;
        // One call for each frame that is dropped, and one that finds the ring empty.
        for _ in 0..=self.sender.tx.unread() {
            self.counts.tx_kicks += 1;
            let Err(error) = self.receivers[0].socket.wake_sender() else {
                // A call that copies goes on until nothing stands, unless nothing can be sent at
                // this queue.
                if !self.path.zero_copy && self.sender.tx.unread() > 0 {
                    self.fail(PortFailure::NoSendQueue);
                }
                break;
            };
            match Refusal::of(&error, self.path.zero_copy) {
                Refusal::Dropped => drops += 1,
                Refusal::NoRoom => break,
                Refusal::Other => {
                    self.note_refusal();
                    break;
                }
            }
        }
        if drops > 0 {
            self.count_drops(drops);
        }
    }

    /// Copied frames that the driver dropped: for want of another end, or of room.
    #[cold]
    fn count_drops(&mut self, frames: u64) {
        self.look_at_link();
        if self.link.now().running {
            self.counts.drop_tx_refused += frames;
        } else {
            self.counts.drop_tx_link_down += frames;
        }
    }

    #[cold]
    fn note_refusal(&mut self) {
        self.look_at_link();
        self.counts.tx_refusals += u64::from(self.link.now().running);
    }

    /// Nothing is sent while the interface is down or alone.
    pub(super) fn look_at_link(&mut self) {
        self.link.look(&self.control);
        self.blocked = self.failed || !self.link.now().running;
    }

    /// Nothing is sent any more.
    #[cold]
    fn fail(&mut self, failure: PortFailure) {
        if !self.failed {
            self.link.fail(failure);
        }
        (self.failed, self.blocked) = (true, true);
    }

    /// What stands in the send ring without anybody sending.
    pub(super) fn tend_ring(&mut self) {
        // Copied frames are sent or dropped by the call. Without copies the driver takes them
        // when the link is back, before which it only refuses.
        if self.pending && !(self.blocked && self.path.zero_copy) {
            self.kick();
        }
        let standing = self.pending.then(|| self.sender.tx.taken());
        // An interface that is down was told already.
        if self.standstill.is_too_long(standing, Instant::now()) && self.link.now().up {
            self.fail(PortFailure::SendStalled);
        }
    }

    /// Takes chunks back that were sent.
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
    fn only_want_of_room_passes_by_itself() {
        for (error, zero_copy, expected) in [
            (libc::EBUSY, false, Refusal::Dropped),
            (libc::EBUSY, true, Refusal::Other),
            (libc::EAGAIN, false, Refusal::NoRoom),
            (libc::ENOBUFS, true, Refusal::NoRoom),
            (libc::ENOMEM, false, Refusal::NoRoom),
            (libc::EINTR, true, Refusal::NoRoom),
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
    fn frames_that_stand_too_long_are_noticed() {
        let start = Instant::now();
        let mut standstill = Standstill::new(Duration::from_secs(5));
        let mut is_too_long = |standing, after_ms| {
            standstill.is_too_long(standing, start + Duration::from_millis(after_ms))
        };
        assert!(!is_too_long(Some(7), 0));
        assert!(!is_too_long(Some(7), 4_999));
        // Another frame is the first one now.
        assert!(!is_too_long(Some(8), 6_000));
        assert!(!is_too_long(Some(8), 10_999));
        // Nothing stands for a while, and then something at the same index.
        assert!(!is_too_long(None, 12_000));
        assert!(!is_too_long(Some(8), 13_000));
        assert!(!is_too_long(Some(8), 17_999));
        assert!(is_too_long(Some(8), 18_000));
        assert!(is_too_long(Some(8), 30_000));
    }
}
