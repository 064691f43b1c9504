//! What becomes of the interface while a port on it is open.

use super::driver::frame_bytes;
use super::socket::{Link, Socket};
use crate::port::{MtuChange, PortEvent, PortFailure};

/// An interface that is looked at now and then.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    index: i32,
    link: Link,
    changes: u64,
    /// A failure that was not told yet.
    untold: Option<PortFailure>,
    /// The MTU that the port was opened with.
    opened_mtu_bytes: u32,
    /// The one below it that was reported.
    reported_low_mtu: Option<u32>,
}

impl LinkWatch {
    /// Watches the interface of this index, whose link is as given.
    pub(crate) fn new(index: i32, link: Link) -> Self {
        Self {
            index,
            link,
            changes: 0,
            untold: None,
            opened_mtu_bytes: link.mtu_bytes,
            reported_low_mtu: None,
        }
    }

    /// The link as of the last look.
    #[inline]
    pub(crate) fn now(&self) -> Link {
        self.link
    }

    /// How often the link was found up or down when it was not before.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Asks the interface for its state. One that is gone is down, and one that was taken
    /// down has failed; that its other end is silent is the network's business.
    pub(crate) fn look(&mut self, socket: &Socket) {
        let (link, failure) = match socket.link(self.index) {
            Ok(link) => (link, PortFailure::InterfaceDown),
            Err(_) => {
                let gone = Link {
                    up: false,
                    running: false,
                    ..self.link
                };
                (gone, PortFailure::InterfaceRemoved)
            }
        };
        if self.link.up && !link.up {
            self.untold = Some(failure);
        }
        if link.running != self.link.running {
            self.changes += 1;
        }
        self.link = link;
    }

    /// Has a failure told that the interface's state does not show.
    pub(crate) fn fail(&mut self, failure: PortFailure) {
        self.untold = Some(failure);
    }

    /// Reports a failure, and a change of the MTU that matters, each once; false if there is neither.
    pub(crate) fn tell(&mut self, out: &mut Vec<PortEvent>) -> bool {
        let before = out.len();
        out.extend(self.untold.take().map(PortEvent::Failed));
        let (opened, now) = (self.opened_mtu_bytes, self.link.mtu_bytes);
        let is_too_low = frame_bytes(now) < frame_bytes(opened);
        let is_news = match is_too_low {
            true => self.reported_low_mtu != Some(now),
            false => self.reported_low_mtu.is_some(),
        };
        if is_news {
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
