//! The connection that brought something last is likely to bring more: it is read with every look,
//! without being asked after. While it is the only one, the system is not even to tell of it.

use vi_engine::Host;

use super::ViTcp;
use crate::datapath::Datapath;

/// Looks in which a connection that brought something is read without being asked after.
pub(super) const WARM_LOOKS: u32 = 4096;
/// A connection that brought something so many times, and no other one meanwhile, is found by
/// reading alone: what the system does for those that it tells of, it does in the time of each message.
const TIMES_ALONE: u32 = 64;

impl ViTcp {
    /// The connection that brought something last is likely to bring more: it costs one system
    /// call to see, and not two.
    pub(super) fn look_at_warm(&mut self, now_ns: u64, path: &mut Datapath) -> bool {
        let Some((number, left)) = self.warm else {
            return false;
        };
        match left.checked_sub(1) {
            Some(left) => self.warm = Some((number, left)),
            None => {
                self.watch_all();
                self.warm = None;
            }
        }
        match self.connection_mut(number) {
            Some(connection) if !connection.queued => connection.may_read = true,
            Some(_) | None => return false,
        }
        self.serve(now_ns, number, path)
    }

    /// This connection brought something.
    pub(super) fn warmed(&mut self, number: u32) {
        if self.warm.is_none_or(|(warm, _)| warm != number) {
            self.watch_all();
        }
        self.warm = Some((number, WARM_LOOKS));
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row >= TIMES_ALONE
            && self.untold.is_none()
            && let Some(connection) = self.connection(number)
            && connection.may_write
        {
            self.watch.remove(&connection.stream);
            self.untold = Some(number);
        }
    }

    /// Has the system tell of all connections, and of what has happened on them.
    pub(super) fn watch_all(&mut self) {
        self.in_a_row = 0;
        let Some(number) = self.untold.take() else {
            return;
        };
        let Some(connection) = self.connection(number) else {
            return;
        };
        let watched = connection.watched_as(number);
        if let Err(error) = self.watch.add(&connection.stream, watched) {
            log::debug!("a connection that cannot be watched now: {error}");
            self.untold = Some(number);
        }
    }

    /// As [`ViTcp::watch_all`], if it is this one that is not watched.
    pub(super) fn watch_again(&mut self, number: u32) {
        if self.untold == Some(number) {
            self.watch_all();
        }
    }

    /// The connection of which the system does not tell is read with every look, unless it is cold
    /// and the system had no memory to watch it.
    pub(super) fn look_at_untold(&mut self, path: &mut Datapath) {
        let warm = self.warm.map(|(number, _)| number);
        let Some(number) = self.untold.filter(|number| Some(*number) != warm) else {
            return;
        };
        self.watch_all();
        if self.untold.is_some()
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
