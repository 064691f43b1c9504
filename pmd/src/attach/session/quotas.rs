//! Quotas of an application, their use, and calls that fail because of them.

use std::fmt;

use std::sync::Weak;

use vi_core::memory::client_mapping::{ClientFile, MapError};
use vi_core::sync::Ordering;
use vi_types::{CallError, Limit, LimitOf, LimitReached, Outcome, ResourceError};

use super::owned::InUse;
use super::{Owned, Session};
use crate::attach::limiters;
use crate::attach::mapped_files::{FileUse, Unmapped};
use crate::attach::message::Reply;
use crate::attach::server::QuotaUse;
use crate::config::Quota;
use vi_core::control_socket::Peer;

/// Reduces the quota of an application to what others of its user leave.
fn beside(quota: &Quota, others: &InUse) -> Quota {
    let of_user = &quota.of_user;
    let left = |quota: u32, of_user: u32, others: u64| {
        let left = u64::from(of_user).saturating_sub(others);
        // At most a number that fits.
        u64::from(quota).min(left) as u32
    };
    let left_bytes = of_user.max_registered_bytes.saturating_sub(others.bytes);
    Quota {
        max_vi: left(quota.max_vi, of_user.max_vi, others.vis),
        max_ptags: left(quota.max_ptags, of_user.max_ptags, others.tags),
        max_regions: left(quota.max_regions, of_user.max_regions, others.regions),
        max_registered_bytes: quota.max_registered_bytes.min(left_bytes),
        max_incoming: left(quota.max_incoming, of_user.max_incoming, others.conns),
        ..*quota
    }
}

/// The error of a call that exceeds a quota `beside` others: names the limit of the user if that is the reason.
fn of_user(error: CallError, quota: &Quota, others: &InUse) -> CallError {
    let CallError::Resource(ResourceError::Limit(reached)) = error else {
        return error;
    };
    let user = &quota.of_user;
    let (of_application, of_user, others) = match reached.limit {
        Limit::MaxVi => (quota.max_vi.into(), user.max_vi.into(), others.vis),
        Limit::MaxPtags => (quota.max_ptags.into(), user.max_ptags.into(), others.tags),
        Limit::MaxRegions => (
            quota.max_regions.into(),
            user.max_regions.into(),
            others.regions,
        ),
        Limit::MaxRegisteredBytes => (
            quota.max_registered_bytes,
            user.max_registered_bytes,
            others.bytes,
        ),
        Limit::MaxIncoming => (
            quota.max_incoming.into(),
            user.max_incoming.into(),
            others.conns,
        ),
        _ => return error,
    };
    if reached.value >= of_application {
        return error;
    }
    CallError::Resource(ResourceError::Limit(LimitReached {
        value: of_user,
        in_use: reached.in_use.saturating_add(others),
        of: LimitOf::User,
        ..reached
    }))
}

impl Session {
    /// Calls `reserve` with the resources of the application and its quota, reduced to what others of its user leave.
    pub(super) fn reserve_owned<T>(
        &self,
        reserve: impl FnOnce(&mut Owned, &Quota) -> Outcome<T>,
    ) -> Outcome<T> {
        self.reserve_within(&self.quota, reserve)
    }

    /// As [`Self::reserve_owned`], with another quota of the application.
    pub(super) fn reserve_within<T>(
        &self,
        quota: &Quota,
        reserve: impl FnOnce(&mut Owned, &Quota) -> Outcome<T>,
    ) -> Outcome<T> {
        self.with_others(|others| {
            let reserved = reserve(&mut self.owned(), &beside(quota, others));
            reserved.map_err(|error| of_user(error, quota, others))
        })
    }

    /// Charges the application for a region in a file, before anything is mapped. Also returns the memory of evicted
    /// files.
    pub(super) fn charge(&self, file: &ClientFile) -> Result<(FileUse, Unmapped), MapError> {
        self.with_others(|others| {
            let quota = beside(&self.quota, others);
            let owned = self.owned();
            let charged = self.files.charge(file, &quota, owned.other_bytes);
            charged.map_err(|error| match error {
                MapError::TooLong {
                    file_bytes,
                    left_bytes,
                    quota_bytes,
                } if quota_bytes < self.quota.max_registered_bytes => MapError::TooLongForUser {
                    file_bytes,
                    left_bytes,
                    of_user_bytes: self.quota.of_user.max_registered_bytes,
                },
                error => error,
            })
        })
    }

    /// Calls `reserve` with what other applications of the user have on this NIC, while these cannot reserve more.
    fn with_others<T>(&self, reserve: impl FnOnce(&InUse) -> T) -> T {
        // Dropped without the lock: one of them may have ended meanwhile.
        let mut others = Vec::new();
        let sessions = self.account.lock();
        let is_other = |session: &Session| {
            // The resources of a removed one were released, except for its files.
            !core::ptr::eq(session, self) && !session.removed.load(Ordering::SeqCst)
        };
        others.extend(sessions.iter().filter_map(Weak::upgrade));
        let mut in_use = InUse::default();
        for session in others.iter().filter(|session| is_other(session)) {
            let of_session = session.owned().in_use();
            in_use.vis += of_session.vis;
            in_use.tags += of_session.tags;
            in_use.regions += of_session.regions;
            in_use.bytes += of_session.bytes;
            in_use.conns += of_session.conns;
        }
        let (files, bytes) = self.files.of_others(|uid| self.account.includes(uid));
        in_use.regions = in_use.regions.max(files);
        in_use.bytes += bytes;
        let reserved = reserve(&in_use);
        drop(sessions);
        reserved
    }

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
        limiters::log_of_user(self.account.uid, log::Level::Warn, line);
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
