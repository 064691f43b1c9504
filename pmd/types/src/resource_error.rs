//! Reasons of VIP_ERROR_RESOURCE: the limit that was reached, or the missing resource.

use core::fmt;

/// Reason why a call fails with VIP_ERROR_RESOURCE. Displayed with what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ResourceError {
    /// A limit of the configuration.
    Limit(LimitReached),
    /// A VI or a memory region uses the protection tag.
    TagInUse,
    /// A work queue reports to the completion queue.
    CqInUse,
    /// The work queue reports to a completion queue, on which to wait instead.
    ReportsToCq,
    /// Out of memory or address space.
    OutOfMemory,
    /// Pages could not be locked; the error number.
    Lock(i32),
    /// Pages are not locked, since locking would use up the mappings of the process; their limit.
    LockMappings(u64),
    /// Memory could not be shared with the datapath process; the error number.
    Offer(i32),
    /// A thread could not be started; the error number.
    Thread(i32),
    /// The NIC has failed: VIP_ERROR_CATASTROPHIC was reported.
    NicFailed,
    /// The NIC cannot listen at its TCP address.
    Listen,
    /// Discovery has reached its limit of pending host lookups.
    Lookups,
    /// No handle, file descriptor or memory for one more connection, on this host or at the peer.
    Connection,
    /// The discriminator is reserved for another user.
    Discriminator,
    /// The datapath process refused; a log line contains the reason.
    ProcessRefused,
    /// The datapath process has ended, or does not respond.
    ProcessGone,
    /// The datapath process sent an unexpected response.
    ProcessAnswer,
    /// Another process of the segment has begun an access to the memory that does not end.
    AccessInProgress,
}

#[cfg(feature = "std")]
impl ResourceError {
    /// Makes the error of a thread that could not be started.
    #[must_use]
    pub fn thread(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::OutOfMemory => Self::OutOfMemory,
            _ => Self::Thread(number_of(error)),
        }
    }

    /// Makes the error of memory that could not be shared with the datapath process.
    #[must_use]
    pub fn offer(error: &std::io::Error) -> Self {
        Self::Offer(number_of(error))
    }
}

/// Returns the error number, or EIO if the system did not report one.
#[cfg(feature = "std")]
fn number_of(error: &std::io::Error) -> i32 {
    const EIO: i32 = 5;
    error.raw_os_error().unwrap_or(EIO)
}

/// An error number of the system, displayed with its text where the standard library has it.
struct SystemError(i32);

impl fmt::Display for SystemError {
    #[cfg(feature = "std")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }

    #[cfg(not(feature = "std"))]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error number {}", self.0)
    }
}

/// A limit of the configuration that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LimitReached {
    /// The limit.
    pub limit: Limit,
    /// Its value.
    pub value: u64,
    /// The current use.
    pub in_use: u64,
    /// The additional request.
    pub wanted: u64,
    /// The scope whose use is counted.
    pub of: LimitOf,
}

impl LimitReached {
    /// Makes the error of a limit that is fully used.
    #[must_use]
    pub fn all_in_use(limit: Limit, value: impl Into<u64>, of: LimitOf) -> ResourceError {
        let value = value.into();
        ResourceError::Limit(Self {
            limit,
            value,
            in_use: value,
            wanted: 1,
            of,
        })
    }

    /// Makes the error of a request for one object beyond a limit.
    #[must_use]
    pub fn exceeded(limit: Limit, value: impl Into<u64>, wanted: u64) -> ResourceError {
        ResourceError::Limit(Self {
            limit,
            value: value.into(),
            in_use: 0,
            wanted,
            of: LimitOf::Nic,
        })
    }
}

/// The scope of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LimitOf {
    /// All handles of the NIC; in a datapath process those of all programs.
    Nic,
    /// One program that is attached to a datapath process.
    Program,
    /// One queue.
    Queue,
    /// All programs of one user that are attached to a NIC of a datapath process.
    User,
}

/// A limit, by the key that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Limit {
    /// Pending connection requests.
    MaxIncoming,
    /// Concurrent calls and NIC handles of a program.
    MaxCalls,
    /// Completion queues.
    MaxCq,
    /// Entries of a completion queue.
    MaxCqEntries,
    /// Outstanding descriptors.
    MaxDescriptors,
    /// Descriptors on a work queue.
    MaxDescriptorsPerQueue,
    /// Discriminators in use.
    MaxDiscriminators,
    /// Pending handlers of a queue.
    MaxNotifiesPerQueue,
    /// Threads that call handlers, one per queue.
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
    /// Returns the configuration key.
    #[must_use]
    pub const fn key(self) -> &'static str {
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

const PROCESS_QUOTA: &str = "[process.quota] of the datapath process";

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.limit.key();
        let (scope, raised, table) = match self.of {
            LimitOf::Nic => ("on this NIC", key, "[nic.limits]"),
            LimitOf::Program => ("by this program", key, PROCESS_QUOTA),
            LimitOf::Queue => ("on this queue", key, "[nic.limits]"),
            // A divisor.
            LimitOf::User => ("by programs of this user", "user_share", PROCESS_QUOTA),
        };
        let change = if raised == key { "raise" } else { "lower" };
        write!(f, "{key} = {}: ", self.value)?;
        if self.in_use > 0 {
            write!(f, "{} in use {scope}, ", self.in_use)?;
        }
        write!(f, "{} requested; {change} {raised} in {table}", self.wanted)
    }
}

impl fmt::Display for ResourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Limit(limit) => return limit.fmt(f),
            Self::Lock(error) => {
                return write!(f, "mlock: {}; raise RLIMIT_MEMLOCK", SystemError(*error));
            }
            Self::LockMappings(max_mappings) => {
                return write!(
                    f,
                    "locked regions account for half of the memory mappings of the process \
                     (vm.max_map_count = {max_mappings}): register fewer and longer regions, or \
                     raise it"
                );
            }
            Self::Offer(error) => {
                return write!(
                    f,
                    "the memory cannot be shared with the datapath process: {}",
                    SystemError(*error)
                );
            }
            Self::Thread(error) => {
                return write!(
                    f,
                    "no thread can be started: {}; check RLIMIT_NPROC and the limits of its \
                     control group",
                    SystemError(*error)
                );
            }
            Self::TagInUse => "a VI or a memory region uses the protection tag",
            Self::CqInUse => "a work queue reports to the completion queue",
            Self::ReportsToCq => {
                "the work queue reports to a completion queue: wait on that, or register the handler there"
            }
            Self::OutOfMemory => "out of memory or address space; check RLIMIT_AS",
            Self::NicFailed => "the NIC has failed: close all its handles and open it again",
            Self::Listen => {
                "the NIC cannot listen at its TCP address: another program listens there, the address is not \
                 one of this host, or file descriptors or memory are exhausted; see the log of the program or \
                 datapath process that has opened the NIC"
            }
            Self::Lookups => "too many pending host lookups; try again later",
            Self::Connection => {
                "no handle, file descriptor or memory is left for the connection, on this host or at the \
                 peer"
            }
            Self::Discriminator => {
                "the discriminator is reserved for another user: use another one"
            }
            Self::ProcessRefused => {
                "the datapath process refused; an earlier log line contains the reason"
            }
            Self::ProcessGone => {
                "the datapath process has ended or does not respond: close the NIC and open it again"
            }
            Self::ProcessAnswer => {
                "unexpected response of the datapath process: library and process must be of \
                 the same release"
            }
            Self::AccessInProgress => {
                "another process of the segment is stopped while it accesses the memory, which is not registered any \
                 more: do not reuse the memory before that process continues or ends"
            }
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};

    #[test]
    fn limit_reached_display_contains_key_value_use_and_remedy() {
        let text = |error: ResourceError| -> String { error.to_string() };
        let tags = LimitReached::all_in_use(Limit::MaxPtags, 4u32, LimitOf::Program);
        assert_eq!(
            text(tags),
            "max_ptags = 4: 4 in use by this program, 1 requested; raise max_ptags in \
             [process.quota] of the datapath process"
        );
        let vis = LimitReached::all_in_use(Limit::MaxVi, 512u32, LimitOf::User);
        assert_eq!(
            text(vis),
            "max_vi = 512: 512 in use by programs of this user, 1 requested; lower user_share in \
             [process.quota] of the datapath process"
        );
        let entries = LimitReached::exceeded(Limit::MaxCqEntries, 64u32, 65);
        assert_eq!(
            text(entries),
            "max_cq_entries = 64: 65 requested; raise max_cq_entries in [nic.limits]"
        );
    }
}
