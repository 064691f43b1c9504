//! Quotas of applications of a datapath process.

use crate::process::Principal;
use crate::table::{Value, range, table, value};

/// Quota of one application on each NIC that it attaches to: see [`QuotaConfig::on`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Maximum number of VIs.
    pub max_vi: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of protection tags.
    pub max_ptags: u32,
    /// Maximum number of registered regions, and of mapped files of shared memory.
    pub max_regions: u32,
    /// Maximum number of registered bytes, counted in whole pages; shared memory counts as whole files, each once.
    pub max_registered_bytes: u64,
    /// Maximum number of outstanding descriptors (posted and not complete) on all its work queues; one of more than four
    /// data segments counts once for each four.
    pub max_descriptors: u32,
    /// Maximum number of received connection requests that it has not answered.
    pub max_incoming: u32,
    /// Maximum number of discriminators reserved for its user because it has used them, counted per NIC handle.
    pub max_discriminators: u32,
    /// Weight of its share of a busy poll thread.
    pub rate_share: u32,
    /// Maximum number of concurrent blocking calls (such as waits for a connection).
    pub max_calls: u32,
    /// Maximum average number of calls per second of all applications of its user together.
    pub max_calls_per_second: u32,
    /// Limits of all applications of its user together.
    pub of_user: UserQuota,
}

/// Limits of all applications of one user together on one NIC: its share of the NIC, or the quota of one application
/// if that is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserQuota {
    /// Maximum number of VIs.
    pub max_vi: u32,
    /// Maximum number of protection tags.
    pub max_ptags: u32,
    /// Maximum number of registered regions, and of mapped files of shared memory.
    pub max_regions: u32,
    /// Maximum number of registered bytes.
    pub max_registered_bytes: u64,
    /// Maximum number of received connection requests that they have not answered.
    pub max_incoming: u32,
}

/// No limit besides those of each application.
impl Default for UserQuota {
    fn default() -> Self {
        Self {
            max_vi: u32::MAX,
            max_ptags: u32::MAX,
            max_regions: u32::MAX,
            max_registered_bytes: u64::MAX,
            max_incoming: u32::MAX,
        }
    }
}

/// Divisors of a NIC's limits, for quotas that are not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// That of one application: [`ProcessConfig::default_share`](crate::ProcessConfig::default_share).
    pub application: u32,
    /// That of all applications of one user, unless [`QuotaConfig::user_share`] is set.
    pub user: u32,
}

/// Maximum of the default quotas.
impl Default for Quota {
    fn default() -> Self {
        Self {
            max_vi: 1024,
            max_cq: 1024,
            max_ptags: 1024,
            max_regions: 8192,
            max_registered_bytes: 1 << 36,
            max_descriptors: 65536,
            max_incoming: 256,
            max_discriminators: 1024,
            rate_share: 10,
            max_calls: 64,
            max_calls_per_second: 10_000,
            of_user: UserQuota::default(),
        }
    }
}

/// Declares the table of the default quota and that of a user or group, which have the same keys.
macro_rules! quotas {
    ($($(#[doc = $doc:literal])* $key:ident: $type:ty, $range:expr;)*) => {
        table! {
            /// Quota of each application, from the configuration. The default of a resource that applications of a NIC
            /// share is the limit of the NIC divided by `default_share`. The NIC's own limits apply, too.
            pub struct QuotaConfig in "[process.quota]" {
                $($(#[doc = $doc])* pub $key: Option<$type> = None, $range;)*
            }
        }

        table! {
            /// Quota of the applications of one user or group. The default of each key is that of `[process.quota]`.
            pub struct ApplicationConfig in "[[process.application]]" {
                /// The user, by name or number.
                pub user: Option<Principal> = None, value("a user, its name in quotes or its number");
                /// Or the group, by name or number.
                pub group: Option<Principal> = None, value("a group, its name in quotes or its number");
                $($(#[doc = $doc])* pub $key: Option<$type> = None, $range;)*
            }
        }

        impl ApplicationConfig {
            /// Returns `quota` with the keys of this entry overridden.
            #[must_use]
            pub fn over(&self, quota: &QuotaConfig) -> QuotaConfig {
                QuotaConfig {
                    $($key: self.$key.or(quota.$key),)*
                }
            }
        }
    };
}

quotas! {
    /// Maximum number of VIs. Default: a share.
    max_vi: u32, range(1, 4096);
    /// Maximum number of completion queues, which are in the application. Default: 1024.
    max_cq: u32, range(1, 65536);
    /// Maximum number of protection tags. Default: a share.
    max_ptags: u32, range(1, 1 << 24);
    /// Maximum number of registered regions. Default: a share.
    max_regions: u32, range(1, 65535);
    /// Maximum number of registered bytes, counted in whole pages. Default: a share.
    max_registered_bytes: u64, range(4096, 1 << 47);
    /// Maximum number of outstanding descriptors (posted and not complete) on all its work queues; one of more than four
    /// data segments counts once for each four. Default: a share.
    max_descriptors: u32, range(2, 1 << 28);
    /// Maximum number of received connection requests that it has not answered. Default: a share. Calls that wait for a
    /// request may each receive one more.
    max_incoming: u32, range(1, 65536);
    /// Maximum number of discriminators reserved for its user because it has used them, counted per NIC handle. At the
    /// limit the least recently used one is evicted, unless a call waits on it or a VI uses it. Default: 1024.
    max_discriminators: u32, range(1, 65536);
    /// Weight of its share of a busy poll thread. Default: 10.
    rate_share: u32, range(1, 100);
    /// Maximum number of concurrent blocking calls (such as waits for a connection). Default: 64.
    max_calls: u32, range(1, 4096);
    /// Maximum average number of calls per second of all applications of its user together: each delays the poll thread,
    /// and attaching counts as one. The burst is that of a tenth of a second; further calls wait. Default: 10000.
    max_calls_per_second: u32, range(1, 1_000_000);
    /// Divisor of the limits of a NIC that gives what all applications of one user may have together, of VIs, protection
    /// tags, regions, registered bytes and pending requests. A user may always have the quota of one application.
    /// Default: 2, or 1 if only the process's own user may attach.
    user_share: u32, range(1, 4096);
}

impl Value for Principal {}
