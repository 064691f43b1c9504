//! The datapath process: the table `[process]`.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pmd_port::environment;
use serde::Deserialize;

use super::error::{Number, ValueError, number};

/// Maximum length of the path of a Unix socket in bytes, without the terminating 0.
const MAX_SOCKET_BYTES: usize = 107;

/// Settings of the datapath process `fcvi-pmd run`. A program whose configuration has this table attaches to that
/// process instead of opening NICs itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessConfig {
    /// The Unix socket at which applications attach: an absolute path of at most 107 bytes. Default:
    /// `$XDG_RUNTIME_DIR/viaduct/pmd.sock`, or `/run/viaduct/pmd.sock` where that variable is not set.
    pub socket: PathBuf,
    /// Users whose programs may attach, by name or number. Default: the process's own user.
    pub users: Option<Vec<Principal>>,
    /// Groups whose members may attach, by name or number. Default: none.
    pub groups: Vec<Principal>,
    /// Address and port of the Prometheus endpoint, which is readable without authentication. Default: no endpoint.
    pub metrics: Option<SocketAddr>,
    /// What an idle poll thread does.
    pub idle: Idle,
    /// `hybrid`: time that an idle poll thread spins before it sleeps, microseconds; 0 to 10,000,000.
    pub spin_us: u64,
    /// Programs of the process's own user may register private memory, which the process accesses by
    /// `process_vm_readv` and `process_vm_writev`. Without it, only memory of the library's allocator and shared
    /// mappings can be registered.
    pub foreign_memory: bool,
    /// Maximum number of attached applications; 1 to 4096. A program that attaches to two NICs counts twice.
    pub max_applications: u32,
    /// Maximum number of attached applications of one user; 1 to `max_applications`. Default: half of
    /// `max_applications`, or all if only the process's own user may attach.
    pub max_applications_per_user: Option<u32>,
    /// Maximum number of pending control connections (without a first request) of one process, which limits the threads
    /// that can make their first call at the same time; 1 to 4096.
    pub max_pending_per_process: u32,
    /// Maximum number of pending control connections of one user; 1 to 65536.
    pub max_pending_per_user: u32,
    /// Maximum number of pending control connections in all; 1 to 131072. A user has at most as many as remain free: a
    /// single one has half of them. Default: twice `max_pending_per_user`.
    pub max_pending: Option<u32>,
    /// Maximum number of log lines per second about applications; suppressed lines are counted. 1 to 1,000,000. A user
    /// causes at most as many as are left for others: a single one causes half of them.
    pub max_log_lines_per_second: u32,
    /// Divisor of the NIC's limits that gives the default quota of an application; 1 to 4096. A default quota is at
    /// least 16 VIs, protection tags and pending requests, 64 regions, 64 MiB and 1024 descriptors, and at most 1024
    /// VIs and tags, 256 pending requests, 8192 regions, 64 GiB and 65536 descriptors. The NIC's own limits apply, too.
    pub default_share: u32,
    /// Default quota of each application.
    pub quota: QuotaConfig,
    /// Quotas of particular users and groups.
    pub application: Vec<ApplicationConfig>,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self {
            socket: default_socket(
                environment::variable("XDG_RUNTIME_DIR")
                    .as_deref()
                    .map(Path::new),
            ),
            users: None,
            groups: Vec::new(),
            metrics: None,
            idle: Idle::Spin,
            spin_us: 50,
            foreign_memory: true,
            max_applications: 64,
            max_applications_per_user: None,
            max_pending_per_process: 128,
            max_pending_per_user: 512,
            max_pending: None,
            max_log_lines_per_second: 50,
            default_share: 8,
            quota: QuotaConfig::default(),
            application: Vec::new(),
        }
    }
}

/// What an idle poll thread of the process does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// It keeps polling: lowest latency, but its core is always busy.
    #[default]
    Spin,
    /// It polls for `spin_us`, then sleeps until a frame, a doorbell or a timer wakes it.
    Hybrid,
}

/// A user or group in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(untagged)]
pub enum Principal {
    /// By number.
    Id(u32),
    /// By name, which is looked up when an application attaches.
    Name(String),
}

impl core::fmt::Display for Principal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

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
    /// That of one application: [`ProcessConfig::default_share`].
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

/// Quota of each application, from the configuration. The default of a resource that applications of a NIC share is the
/// limit of the NIC divided by [`ProcessConfig::default_share`]. The NIC's own limits apply, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaConfig {
    /// Maximum number of VIs; 1 to 4096. Default: a share.
    pub max_vi: Option<u32>,
    /// Maximum number of completion queues, which are in the application; 1 to 65536. Default: 1024.
    pub max_cq: Option<u32>,
    /// Maximum number of protection tags; 1 to 16,777,216. Default: a share.
    pub max_ptags: Option<u32>,
    /// Maximum number of registered regions; 1 to 65535. Default: a share.
    pub max_regions: Option<u32>,
    /// Maximum number of registered bytes, counted in whole pages; 4096 to 2^47. Default: a share.
    pub max_registered_bytes: Option<u64>,
    /// Maximum number of outstanding descriptors (posted and not complete) on all its work queues; 2 to 2^28. Default:
    /// a share.
    pub max_descriptors: Option<u32>,
    /// Maximum number of received connection requests that it has not answered; 1 to 65536. Default: a share. Calls
    /// that wait for a request may each receive one more.
    pub max_incoming: Option<u32>,
    /// Maximum number of discriminators reserved for its user because it has used them, counted per NIC handle; 1 to
    /// 65536. At the limit the least recently used one is evicted, unless a call waits on it or a VI uses it. Default:
    /// 1024.
    pub max_discriminators: Option<u32>,
    /// Weight of its share of a busy poll thread; 1 to 100. Default: 10.
    pub rate_share: Option<u32>,
    /// Maximum number of concurrent blocking calls (such as waits for a connection); 1 to 4096. Default: 64.
    pub max_calls: Option<u32>,
    /// Maximum average number of calls per second of all applications of its user together: each delays the
    /// poll thread, and attaching counts as one. The burst is that of a tenth of a second; further calls wait. 1 to
    /// 1,000,000. Default: 10000.
    pub max_calls_per_second: Option<u32>,
    /// Divisor of the limits of a NIC that gives what all applications of one user may have together, of VIs,
    /// protection tags, regions, registered bytes and pending requests; 1 to 4096. A user may always have the quota of
    /// one application. Default: 2, or 1 if only the process's own user may attach.
    pub user_share: Option<u32>,
}

/// Quota of the applications of one user or group. The default of each key is that of `[process.quota]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApplicationConfig {
    /// The user, by name or number.
    pub user: Option<Principal>,
    /// Or the group, by name or number.
    pub group: Option<Principal>,
    /// Overrides [`QuotaConfig::max_vi`].
    pub max_vi: Option<u32>,
    /// Overrides [`QuotaConfig::max_cq`].
    pub max_cq: Option<u32>,
    /// Overrides [`QuotaConfig::max_ptags`].
    pub max_ptags: Option<u32>,
    /// Overrides [`QuotaConfig::max_regions`].
    pub max_regions: Option<u32>,
    /// Overrides [`QuotaConfig::max_registered_bytes`].
    pub max_registered_bytes: Option<u64>,
    /// Overrides [`QuotaConfig::max_descriptors`].
    pub max_descriptors: Option<u32>,
    /// Overrides [`QuotaConfig::max_incoming`].
    pub max_incoming: Option<u32>,
    /// Overrides [`QuotaConfig::max_discriminators`].
    pub max_discriminators: Option<u32>,
    /// Overrides [`QuotaConfig::rate_share`].
    pub rate_share: Option<u32>,
    /// Overrides [`QuotaConfig::max_calls`].
    pub max_calls: Option<u32>,
    /// Overrides [`QuotaConfig::max_calls_per_second`].
    pub max_calls_per_second: Option<u32>,
    /// Overrides [`QuotaConfig::user_share`], for each of these users.
    pub user_share: Option<u32>,
}

/// Returns the default of `socket`.
pub(super) fn default_socket(runtime_directory: Option<&Path>) -> PathBuf {
    runtime_directory
        .filter(|directory| directory.is_absolute())
        .unwrap_or(Path::new("/run"))
        .join("viaduct/pmd.sock")
}

impl ProcessConfig {
    pub(super) fn numbers(&self) -> Vec<Number> {
        vec![
            number("spin_us", self.spin_us, 0, 10_000_000),
            number("max_applications", self.max_applications, 1, 4096),
            number("default_share", self.default_share, 1, 4096),
            number(
                "max_applications_per_user",
                self.max_applications_per_user.unwrap_or(1),
                1,
                4096,
            ),
            number(
                "max_pending_per_process",
                self.max_pending_per_process,
                1,
                4096,
            ),
            number("max_pending_per_user", self.max_pending_per_user, 1, 65536),
            number("max_pending", self.pending_connections(), 1, 131_072),
            number(
                "max_log_lines_per_second",
                self.max_log_lines_per_second,
                1,
                1_000_000,
            ),
        ]
    }

    /// Returns the maximum number of attached applications of one user.
    pub fn applications_per_user(&self) -> u32 {
        let max = self.max_applications;
        let default = if self.is_for_own_user_only() {
            max
        } else {
            max.div_ceil(2)
        };
        self.max_applications_per_user.unwrap_or(default)
    }

    /// Returns the maximum number of pending control connections in all.
    pub fn pending_connections(&self) -> u32 {
        let default = self.max_pending_per_user.saturating_mul(2);
        self.max_pending.unwrap_or(default)
    }

    /// Returns the divisors that give the quotas that are not set.
    pub fn shares(&self) -> Shares {
        Shares {
            application: self.default_share,
            user: if self.is_for_own_user_only() { 1 } else { 2 },
        }
    }

    fn is_for_own_user_only(&self) -> bool {
        self.users.is_none() && self.groups.is_empty()
    }

    /// Validates the values of this table; its quotas are validated separately.
    pub(super) fn errors(&self) -> Vec<ValueError> {
        let mut found: Vec<ValueError> = self.numbers().iter().filter_map(Number::error).collect();
        let (of_user, all) = (self.applications_per_user(), self.max_applications);
        if of_user > all && found.is_empty() {
            let text = format!(
                "max_applications_per_user = {of_user}: must be at most max_applications = {all}: \
                 lower this, or raise that"
            );
            found.push(ValueError::new("max_applications_per_user", text));
        }
        let bytes = self.socket.as_os_str().as_bytes().len();
        if !self.socket.is_absolute() {
            let text = format!(
                "socket = {:?}: must be an absolute path, which begins with /",
                self.socket
            );
            found.push(ValueError::new("socket", text));
        } else if bytes > MAX_SOCKET_BYTES {
            let text = format!(
                "socket = {:?}: has {bytes} bytes, but the path of a socket must have at most {MAX_SOCKET_BYTES}: \
                 choose a shorter one",
                self.socket
            );
            found.push(ValueError::new("socket", text));
        } else if self.socket.file_name().is_none() {
            let text = format!(
                "socket = {:?}: must name a file in a directory",
                self.socket
            );
            found.push(ValueError::new("socket", text));
        }
        if self.users.as_ref().is_some_and(Vec::is_empty) && self.groups.is_empty() {
            found.push(ValueError::new(
                "users",
                "users = []: no user may attach: list users, set groups, or remove this key for the process's own user",
            ));
        }
        found
    }

    /// Validates the entry `index` of `application`.
    pub(super) fn application_errors(&self, index: usize) -> Vec<ValueError> {
        let Some(entry) = self.application.get(index) else {
            return Vec::new();
        };
        let quota = entry.over(&QuotaConfig::default());
        let numbers = quota.numbers();
        let mut found: Vec<ValueError> = numbers.iter().filter_map(Number::error).collect();
        let is_duplicate = |same: &dyn Fn(&ApplicationConfig) -> bool| {
            self.application.iter().take(index).any(same)
        };
        match (&entry.user, &entry.group) {
            (None, None) => found.push(ValueError::new(
                "user",
                "missing key `user` or `group`: set one of them to a name or number",
            )),
            (Some(user), Some(group)) => found.push(ValueError::new(
                "group",
                format!(
                    "group = {group}: cannot be combined with user = {user}: remove one of them"
                ),
            )),
            (Some(user), None) if is_duplicate(&|other| other.user.as_ref() == Some(user)) => {
                found.push(ValueError::new(
                    "user",
                    format!("user = {user}: has a table already: merge the two tables"),
                ));
            }
            (None, Some(group)) if is_duplicate(&|other| other.group.as_ref() == Some(group)) => {
                found.push(ValueError::new(
                    "group",
                    format!("group = {group}: has a table already: merge the two tables"),
                ));
            }
            (Some(user), None) if self.never_attaches(user) => found.push(ValueError::new(
                "user",
                format!("user = {user}: may not attach: add it to users of [process]"),
            )),
            (Some(_), None) | (None, Some(_)) => {}
        }
        found
    }

    /// Returns whether this user can never attach: only `users` admits applications, and does not contain this one.
    fn never_attaches(&self, user: &Principal) -> bool {
        let is_same_kind =
            |other: &&Principal| core::mem::discriminant(*other) == core::mem::discriminant(user);
        self.groups.is_empty()
            && self.users.as_ref().is_some_and(|users| {
                // A name and a number may be the same user, which only the user database can tell.
                users.iter().filter(is_same_kind).count() == users.len() && !users.contains(user)
            })
    }
}

impl QuotaConfig {
    pub(super) fn numbers(&self) -> Vec<Number> {
        let default = Quota::default();
        let or = |key: Option<u32>, default: u32| key.unwrap_or(default);
        vec![
            number("max_vi", or(self.max_vi, default.max_vi), 1, 4096),
            number("max_cq", or(self.max_cq, default.max_cq), 1, 65536),
            number(
                "max_ptags",
                or(self.max_ptags, default.max_ptags),
                1,
                1 << 24,
            ),
            number(
                "max_regions",
                or(self.max_regions, default.max_regions),
                1,
                65535,
            ),
            number(
                "max_registered_bytes",
                self.max_registered_bytes
                    .unwrap_or(default.max_registered_bytes),
                4096,
                1 << 47,
            ),
            number(
                "max_descriptors",
                or(self.max_descriptors, default.max_descriptors),
                2,
                1 << 28,
            ),
            number(
                "max_incoming",
                or(self.max_incoming, default.max_incoming),
                1,
                65536,
            ),
            number(
                "max_discriminators",
                or(self.max_discriminators, default.max_discriminators),
                1,
                65536,
            ),
            number(
                "rate_share",
                or(self.rate_share, default.rate_share),
                1,
                100,
            ),
            number("max_calls", or(self.max_calls, default.max_calls), 1, 4096),
            number(
                "max_calls_per_second",
                or(self.max_calls_per_second, default.max_calls_per_second),
                1,
                1_000_000,
            ),
            number("user_share", or(self.user_share, 1), 1, 4096),
        ]
    }

    pub(super) fn errors(&self) -> Vec<ValueError> {
        self.numbers().iter().filter_map(Number::error).collect()
    }
}

impl ApplicationConfig {
    /// Returns `quota` with the keys of this entry overridden.
    pub(super) fn over(&self, quota: &QuotaConfig) -> QuotaConfig {
        QuotaConfig {
            max_vi: self.max_vi.or(quota.max_vi),
            max_cq: self.max_cq.or(quota.max_cq),
            max_ptags: self.max_ptags.or(quota.max_ptags),
            max_regions: self.max_regions.or(quota.max_regions),
            max_registered_bytes: self.max_registered_bytes.or(quota.max_registered_bytes),
            max_descriptors: self.max_descriptors.or(quota.max_descriptors),
            max_incoming: self.max_incoming.or(quota.max_incoming),
            max_discriminators: self.max_discriminators.or(quota.max_discriminators),
            rate_share: self.rate_share.or(quota.rate_share),
            max_calls: self.max_calls.or(quota.max_calls),
            max_calls_per_second: self.max_calls_per_second.or(quota.max_calls_per_second),
            user_share: self.user_share.or(quota.user_share),
        }
    }
}
