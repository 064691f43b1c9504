//! Why a call fails with VIP_ERROR_RESOURCE: which limit was reached, or what is missing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::memory::locked::NotLocked;

/// Why a call fails with VIP_ERROR_RESOURCE. Displayed with what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ResourceError {
    /// A limit of the configuration.
    Limit(LimitReached),
    /// A protection tag that a VI or a memory region has.
    TagInUse,
    /// A completion queue that a work queue reports to.
    CqInUse,
    /// A work queue whose completions are waited for on its completion queue.
    ReportsToCq,
    /// No memory, or no address space.
    OutOfMemory,
    /// Pages could not be locked: this error number.
    Lock(i32),
    /// Pages are not locked any more: that would take up the process's mappings, which are this many.
    LockMappings(u64),
    /// Memory could not be offered to the datapath process: this error number.
    Offer(i32),
    /// A thread could not be started: this error number.
    Thread(i32),
    /// The NIC has failed: VIP_ERROR_CATASTROPHIC was reported.
    NicFailed,
    /// The NIC cannot listen at its TCP address.
    Listen,
    /// Discovery looks for as many hosts as it can.
    Lookups,
    /// No handle, descriptor or memory for one more connection, at either end.
    Connection,
    /// A discriminator that another user's programs have used.
    Discriminator,
    /// The datapath process refused, for a reason that a log line gives.
    ProcessRefused,
    /// The datapath process has ended, or does not answer.
    ProcessGone,
    /// The datapath process answered something else than was asked.
    ProcessAnswer,
}

impl ResourceError {
    /// A thread could not be started.
    pub(crate) fn thread(error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOMEM) => Self::OutOfMemory,
            number => Self::Thread(number.unwrap_or(libc::EIO)),
        }
    }

    /// Memory could not be offered to the datapath process.
    pub(crate) fn offer(error: &std::io::Error) -> Self {
        Self::Offer(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<NotLocked> for ResourceError {
    fn from(why: NotLocked) -> Self {
        match why {
            NotLocked::Mappings(max_mappings) => Self::LockMappings(max_mappings),
            NotLocked::System(error) => Self::Lock(error),
        }
    }
}

/// A limit of the configuration, and what there was when it was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LimitReached {
    /// Which one.
    pub limit: Limit,
    /// Its value.
    pub value: u64,
    /// What counts against it.
    pub in_use: u64,
    /// What was asked for beyond that.
    pub wanted: u64,
    /// Whose use is counted.
    pub of: LimitOf,
}

impl LimitReached {
    /// A limit of which everything is in use.
    pub(crate) fn all_in_use(limit: Limit, value: impl Into<u64>, of: LimitOf) -> ResourceError {
        let value = value.into();
        ResourceError::Limit(Self {
            limit,
            value,
            in_use: value,
            wanted: 1,
            of,
        })
    }

    /// A limit on one object that was asked for.
    pub(crate) fn exceeded(limit: Limit, value: impl Into<u64>, wanted: u64) -> ResourceError {
        ResourceError::Limit(Self {
            limit,
            value: value.into(),
            in_use: 0,
            wanted,
            of: LimitOf::Nic,
        })
    }
}

/// Whose use a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LimitOf {
    /// Of all openings of the NIC, in a datapath process those of all programs.
    Nic,
    /// Of one program that is attached to a datapath process.
    Program,
    /// Of one queue.
    Queue,
}

/// A limit, by the key that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Limit {
    /// Connection requests that are not answered.
    MaxIncoming,
    /// Calls and openings of a program at a time.
    MaxCalls,
    /// Completion queues.
    MaxCq,
    /// Entries of a completion queue.
    MaxCqEntries,
    /// Descriptors that are posted and not complete.
    MaxDescriptors,
    /// Descriptors on a work queue.
    MaxDescriptorsPerQueue,
    /// Discriminators in use.
    MaxDiscriminators,
    /// Handlers that wait on a queue.
    MaxNotifiesPerQueue,
    /// Queues with a thread that calls handlers.
    MaxNotifyThreads,
    /// Protection tags.
    MaxPtags,
    /// Bytes of one memory region.
    MaxRegionBytes,
    /// Memory regions.
    MaxRegions,
    /// Registered bytes, in whole pages.
    MaxRegisteredBytes,
    /// VIs.
    MaxVi,
}

impl Limit {
    /// The key.
    pub fn key(self) -> &'static str {
        match self {
            Self::MaxIncoming => "max_incoming",
            Self::MaxCalls => "max_calls",
            Self::MaxCq => "max_cq",
            Self::MaxCqEntries => "max_cq_entries",
            Self::MaxDescriptors => "max_descriptors",
            Self::MaxDescriptorsPerQueue => "max_descriptors_per_queue",
            Self::MaxDiscriminators => "max_discriminators",
            Self::MaxNotifiesPerQueue => "max_notifies_per_queue",
            Self::MaxNotifyThreads => "max_notify_threads",
            Self::MaxPtags => "max_ptags",
            Self::MaxRegionBytes => "max_region_bytes",
            Self::MaxRegions => "max_regions",
            Self::MaxRegisteredBytes => "max_registered_bytes",
            Self::MaxVi => "max_vi",
        }
    }
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whose, table) = match self.of {
            LimitOf::Nic => ("on this NIC", "[[nic]]"),
            LimitOf::Program => ("by this program", "[process.quota] of the datapath process"),
            LimitOf::Queue => ("on this queue", "[[nic]]"),
        };
        let key = self.limit.key();
        write!(f, "{key} = {}: ", self.value)?;
        if self.in_use > 0 {
            write!(f, "{} in use {whose}, ", self.in_use)?;
        }
        write!(f, "{} wanted; raise {key} in {table}", self.wanted)
    }
}

impl fmt::Display for ResourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Limit(limit) => return limit.fmt(f),
            Self::Lock(error) => {
                return write!(
                    f,
                    "mlock: {}; raise RLIMIT_MEMLOCK",
                    std::io::Error::from_raw_os_error(*error)
                );
            }
            Self::LockMappings(max_mappings) => {
                return write!(
                    f,
                    "locked regions make up half of the memory mappings that the process may have \
                     (vm.max_map_count = {max_mappings}): register fewer and longer regions, or \
                     raise it"
                );
            }
            Self::Offer(error) => {
                return write!(
                    f,
                    "the memory cannot be offered to the datapath process: {}",
                    std::io::Error::from_raw_os_error(*error)
                );
            }
            Self::Thread(error) => {
                return write!(
                    f,
                    "no thread can be started: {}; look at RLIMIT_NPROC and the limits of its \
                     control group",
                    std::io::Error::from_raw_os_error(*error)
                );
            }
            Self::TagInUse => "a VI or a memory region has the protection tag",
            Self::CqInUse => "a work queue reports to the completion queue",
            Self::ReportsToCq => {
                "the work queue reports to a completion queue: wait for, or be notified by, that"
            }
            Self::OutOfMemory => "no memory or address space is left; look at RLIMIT_AS",
            Self::NicFailed => "the NIC has failed: close all its handles and open it again",
            Self::Listen => {
                "the NIC cannot listen at its TCP address: another program does, the address is not \
                 one of this host, or descriptors or memory are short; the log of the program or \
                 datapath process that has the NIC says which"
            }
            Self::Lookups => "too many hosts are being looked for; ask again later",
            Self::Connection => {
                "no handle, descriptor or memory is left for the connection, here or at the other \
                 end"
            }
            Self::Discriminator => {
                "a program of another user has used the discriminator: use another one"
            }
            Self::ProcessRefused => "the datapath process refused; a line before this one says why",
            Self::ProcessGone => {
                "the datapath process has ended or does not answer: close the NIC and open it again"
            }
            Self::ProcessAnswer => {
                "the datapath process gave an unexpected answer: library and process must be of \
                 one release"
            }
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_reached_display_names_key_value_use_and_remedy() {
        let text = |error: ResourceError| error.to_string();
        let tags = LimitReached::all_in_use(Limit::MaxPtags, 4u32, LimitOf::Program);
        assert_eq!(
            text(tags),
            "max_ptags = 4: 4 in use by this program, 1 wanted; raise max_ptags in \
             [process.quota] of the datapath process"
        );
        let entries = LimitReached::exceeded(Limit::MaxCqEntries, 64u32, 65);
        assert_eq!(
            text(entries),
            "max_cq_entries = 64: 65 wanted; raise max_cq_entries in [[nic]]"
        );
    }
}
