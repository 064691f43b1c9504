//! The hot connection: the one with the most recent data is likely to receive more, so every poll reads
//! it directly, without epoll. While it is the only active one, it is not even registered with epoll.

use vi_engine::EngineIo;

use super::ViTcp;
use crate::datapath::Datapath;

/// Polls after its last data in which a connection is read without epoll.
pub(super) const HOT_POLLS: u32 = 4096;
/// Consecutive polls with data, from this connection only, after which it is unregistered from epoll: the
/// kernel's wakeup of a registered socket adds to the latency of each message.
const UNREGISTER_AFTER: u32 = 64;

impl ViTcp {
    /// Reads the hot connection: one system call instead of two. Returns its number if it was read, and
    /// whether it had data.
    pub(super) fn poll_hot(&mut self, now_ns: u64, path: &mut Datapath) -> Option<(u32, bool)> {
        let (number, left) = self.hot?;
        match left.checked_sub(1) {
            Some(left) => self.hot = Some((number, left)),
            None => {
                self.register_all();
                self.hot = None;
            }
        }
        match self.connection_mut(number) {
            Some(connection) if !connection.queued => connection.may_read = true,
            Some(_) | None => return None,
        }
        Some((number, self.serve(now_ns, number, path)))
    }

    /// Makes a connection with new data the hot one.
    pub(super) fn note_activity(&mut self, number: u32) {
        if self.hot.is_none_or(|(hot, _)| hot != number) {
            self.register_all();
        }
        self.hot = Some((number, HOT_POLLS));
        self.consecutive_hits = self.consecutive_hits.saturating_add(1);
        if self.consecutive_hits >= UNREGISTER_AFTER
            && self.unregistered.is_none()
            && let Some(connection) = self.connection(number)
            && connection.may_write
        {
            self.epoll.remove(&connection.stream);
            self.unregistered = Some(number);
        }
    }

    /// Registers the unregistered connection with epoll, which then reports its pending events, too.
    pub(super) fn register_all(&mut self) {
        self.consecutive_hits = 0;
        let Some(number) = self.unregistered.take() else {
            return;
        };
        let Some(connection) = self.connection(number) else {
            return;
        };
        let data = connection.epoll_data(number);
        if let Err(error) = self.epoll.add(&connection.stream, data) {
            log::debug!("vi-tcp: epoll registration failed: {error}");
            self.unregistered = Some(number);
        }
    }

    /// As [`ViTcp::register_all`], if this connection is the unregistered one.
    pub(super) fn reregister(&mut self, number: u32) {
        if self.unregistered == Some(number) {
            self.register_all();
        }
    }

    /// Queues the unregistered connection if it is not hot any more and its registration fails for want
    /// of memory. A hot one is read with every poll.
    pub(super) fn poll_unregistered(&mut self, path: &mut Datapath) {
        let hot = self.hot.map(|(number, _)| number);
        let Some(number) = self.unregistered.filter(|number| Some(*number) != hot) else {
            return;
        };
        self.register_all();
        if self.unregistered.is_some()
            && let Some(connection) = self.connection_mut(number)
        {
            (connection.may_read, connection.may_write) = (true, true);
            if let Some(vi) = connection.vi() {
                path.resume(vi);
            }
            self.queue(number);
        }
    }
}
