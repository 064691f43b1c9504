//! Quotas of an application, their use, and calls that fail because of them.

use std::fmt;

use vi_core::sync::Ordering;
use vi_types::{CallError, Limit, ResourceError};

use super::{Owned, Session};
use crate::attach::limiters;
use crate::attach::message::Reply;
use crate::attach::server::QuotaUse;
use crate::attach::socket::Peer;

impl Session {
    /// Counts and logs a call that fails because of a limit.
    pub(super) fn note_limit(&self, reply: &Reply) {
        if let Reply::Failed(CallError::Resource(ResourceError::Limit(limit))) = reply {
            self.note_refused(limit);
        }
    }

    /// Counts and logs a call that fails for this reason.
    pub(super) fn note_refused(&self, why: &dyn fmt::Display) {
        self.refused_calls.fetch_add(1, Ordering::Relaxed);
        let (name, Peer { pid, uid, .. }) = (&self.config.name, self.peer);
        let line = format_args!("NIC {name}: call refused: {why} pid={pid} uid={uid}");
        limiters::log_limited(log::Level::Warn, line);
    }

    /// Returns all quotas and their use.
    pub(super) fn quotas(&self, owned: &Owned, file_bytes: u64) -> Vec<QuotaUse> {
        let quota = &self.quota;
        let posted = self.counters.submitted.load(Ordering::Relaxed);
        let completed = self.counters.completed.load(Ordering::Relaxed);
        let extra_units = self.counters.extra_units.load(Ordering::Relaxed);
        let discriminators = self.names().count();
        [
            (Limit::MaxVi, quota.max_vi.into(), owned.vis.len() as u64),
            (
                Limit::MaxPtags,
                quota.max_ptags.into(),
                owned.tags.len() as u64,
            ),
            (
                Limit::MaxRegions,
                quota.max_regions.into(),
                owned.regions.len() as u64,
            ),
            (
                Limit::MaxRegisteredBytes,
                quota.max_registered_bytes,
                owned.other_bytes + file_bytes,
            ),
            (
                Limit::MaxDescriptors,
                quota.max_descriptors.into(),
                posted.saturating_sub(completed) + extra_units,
            ),
            (
                Limit::MaxIncoming,
                quota.max_incoming.into(),
                owned.conns.len() as u64,
            ),
            (
                Limit::MaxDiscriminators,
                quota.max_discriminators.into(),
                discriminators,
            ),
        ]
        .map(|(limit, value, in_use)| QuotaUse {
            key: limit.key(),
            value,
            in_use,
        })
        .to_vec()
    }
}
