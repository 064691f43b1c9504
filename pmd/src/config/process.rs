//! The datapath process: the table `[process]`.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pmd_port::environment;
use serde::Deserialize;

use super::mistake::{Mistake, Number, number};

/// The longest path of a Unix socket, in bytes; one more ends it.
const MAX_SOCKET_BYTES: usize = 107;

/// How the process `fcvi-pmd run` serves applications. A program whose configuration has this table attaches to that
/// process instead of opening NICs itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessConfig {
    /// The Unix socket at which applications attach: an absolute path of at most 107 bytes. Default:
    /// `$XDG_RUNTIME_DIR/viaduct/pmd.sock`, or `/run/viaduct/pmd.sock` where that variable is not set.
    pub socket: PathBuf,
    /// Users whose programs may attach, by name or number. Default: the process's own user.
    pub users: Option<Vec<Who>>,
    /// Groups whose members may attach, by name or number. Default: none.
    pub groups: Vec<Who>,
    /// Address and port of the Prometheus endpoint; whoever reaches it may read. Default: no endpoint.
    pub metrics: Option<SocketAddr>,
    /// What a poller does that finds no work.
    pub idle: Idle,
    /// `hybrid`: how long a poller that finds no work spins before it sleeps, microseconds; 0 to 10,000,000.
    pub spin_us: u64,
    /// Programs of the process's own user may register memory that is not a shared mapping; the process reaches it by
    /// `process_vm_readv` and `process_vm_writev`. Without it, only memory of the library's allocator and shared
    /// mappings.
    pub foreign_memory: bool,
    /// Applications that are attached at a time; 1 to 4096. A program that attaches to two NICs is two of them.
    pub max_applications: u32,
    /// Of these, those of one user; 1 to `max_applications`. Default: half of them, or all where nobody but the
    /// process's own user may attach.
    pub max_applications_per_user: Option<u32>,
    /// Conversations of one process that have not said what they want, at a time: as many threads of it can make their
    /// first call at once; 1 to 4096.
    pub max_pending_per_process: u32,
    /// Those of one user; 1 to 65536.
    pub max_pending_per_user: u32,
    /// Lines about applications that are logged in a second, at most; what is left out is counted. 1 to 1,000,000.
    pub max_log_lines_per_second: u32,
    /// An application's share of what a NIC has, where its quota does not say otherwise: one part in so many; 1 to 4096.
    /// A share is not less than a program needs for a few connections (16 VIs, protection tags and waiting requests, 64
    /// regions, 64 MiB, 1024 descriptors), nor more than 1024 VIs and tags, 256 waiting requests, 8192 regions, 64 GiB
    /// and 65536 descriptors. The NIC's own limits hold beside it.
    pub default_share: u32,
    /// What each application may have.
    pub quota: QuotaConfig,
    /// Users and groups that may have more or less.
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
            max_log_lines_per_second: 50,
            default_share: 8,
            quota: QuotaConfig::default(),
            application: Vec::new(),
        }
    }
}

/// What a poller of the process does that finds no work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// It goes on looking: the lowest latency, and a core of its own always busy.
    #[default]
    Spin,
    /// It looks for `spin_us`, then sleeps until a frame, a doorbell or a timer wakes it.
    Hybrid,
}

/// A user or a group, as a configuration names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(untagged)]
pub enum Who {
    /// By number.
    Id(u32),
    /// By name, which is looked up when an application attaches.
    Name(String),
}

impl core::fmt::Display for Who {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// What one application may have at a time, on each NIC that it attaches to: see [`QuotaConfig::on`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// VIs.
    pub max_vi: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Protection tags.
    pub max_ptags: u32,
    /// Registered regions, and files of shared memory that are mapped.
    pub max_regions: u32,
    /// Registered bytes, counted in whole pages, of shared memory the whole files, each once.
    pub max_registered_bytes: u64,
    /// Descriptors that are posted and not complete, on all its work queues.
    pub max_descriptors: u32,
    /// Connection requests that it has taken and not answered.
    pub max_incoming: u32,
    /// Discriminators that are reserved for its user because it has used them, counted once for each opening.
    pub max_discriminators: u32,
    /// Its share of a busy poller, as a weight against the other applications'.
    pub rate_share: u32,
    /// Calls that block (a connection that is waited for), at a time.
    pub max_calls: u32,
    /// Calls in a second, on average, of all applications of its user together.
    pub max_calls_per_second: u32,
}

/// What an application has at most where the configuration does not say more.
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
        }
    }
}

/// What each application may have, as the configuration says it. Of what applications of a NIC share, a key that is
/// absent is one part in [`ProcessConfig::default_share`] of what the NIC has. The NIC's own limits hold beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaConfig {
    /// VIs; 1 to 4096. Default: a share.
    pub max_vi: Option<u32>,
    /// Completion queues, which are in the application; 1 to 65536. Default: 1024.
    pub max_cq: Option<u32>,
    /// Protection tags; 1 to 16,777,216. Default: a share.
    pub max_ptags: Option<u32>,
    /// Registered regions; 1 to 65535. Default: a share.
    pub max_regions: Option<u32>,
    /// Registered bytes, counted in whole pages; 4096 to 2^47. Default: a share.
    pub max_registered_bytes: Option<u64>,
    /// Descriptors that are posted and not complete, on all its work queues; 2 to 2^28. Default: a share.
    pub max_descriptors: Option<u32>,
    /// Connection requests that it has taken and not answered; 1 to 65536. Default: a share. Beyond them, as many as
    /// calls wait for one.
    pub max_incoming: Option<u32>,
    /// Discriminators that are reserved for its user because it has used them, counted once for each opening; 1 to
    /// 65536. At the limit the one used longest ago makes room, unless a call waits by it or a VI has it. Default:
    /// 1024.
    pub max_discriminators: Option<u32>,
    /// Its share of a busy poller, as a weight against the other applications'; 1 to 100. Default: 10.
    pub rate_share: Option<u32>,
    /// Calls that block (a connection that is waited for), at a time; 1 to 4096. Default: 64.
    pub max_calls: Option<u32>,
    /// Calls in a second, on average, of all applications of its user together: each takes a turn of the poller, and
    /// attaching is one. Those of a tenth of a second may come at once; what comes faster waits. 1 to 1,000,000.
    /// Default: 10000.
    pub max_calls_per_second: Option<u32>,
}

/// What the applications of one user, or of one group, may have. A key that is absent is that of `[process.quota]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApplicationConfig {
    /// The user, by name or number.
    pub user: Option<Who>,
    /// Or the group, by name or number.
    pub group: Option<Who>,
    /// Takes the place of [`QuotaConfig::max_vi`].
    pub max_vi: Option<u32>,
    /// Takes the place of [`QuotaConfig::max_cq`].
    pub max_cq: Option<u32>,
    /// Takes the place of [`QuotaConfig::max_ptags`].
    pub max_ptags: Option<u32>,
    /// Takes the place of [`QuotaConfig::max_regions`].
    pub max_regions: Option<u32>,
    /// Takes the place of [`QuotaConfig::max_registered_bytes`].
    pub max_registered_bytes: Option<u64>,
    /// Takes the place of [`QuotaConfig::max_descriptors`].
    pub max_descriptors: Option<u32>,
    /// Takes the place of [`QuotaConfig::max_incoming`].
    pub max_incoming: Option<u32>,
    /// Takes the place of [`QuotaConfig::max_discriminators`].
    pub max_discriminators: Option<u32>,
    /// Takes the place of [`QuotaConfig::rate_share`].
    pub rate_share: Option<u32>,
    /// Takes the place of [`QuotaConfig::max_calls`].
    pub max_calls: Option<u32>,
    /// Takes the place of [`QuotaConfig::max_calls_per_second`].
    pub max_calls_per_second: Option<u32>,
}

/// Where the socket is if nobody says so.
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
            number(
                "max_log_lines_per_second",
                self.max_log_lines_per_second,
                1,
                1_000_000,
            ),
        ]
    }

    /// Applications of one user that are attached at a time.
    pub fn applications_per_user(&self) -> u32 {
        let is_alone = self.users.is_none() && self.groups.is_empty();
        let most = self.max_applications;
        let otherwise = if is_alone { most } else { most.div_ceil(2) };
        self.max_applications_per_user.unwrap_or(otherwise)
    }

    /// What is wrong with the table itself; its quotas have mistakes of their own.
    pub(super) fn mistakes(&self) -> Vec<Mistake> {
        let mut found: Vec<Mistake> = self.numbers().iter().filter_map(Number::mistake).collect();
        let (of_user, all) = (self.applications_per_user(), self.max_applications);
        if of_user > all && found.is_empty() {
            let text = format!(
                "max_applications_per_user = {of_user}: must be at most max_applications = {all}: lower this, or raise that"
            );
            found.push(Mistake::new("max_applications_per_user", text));
        }
        let bytes = self.socket.as_os_str().as_bytes().len();
        if !self.socket.is_absolute() {
            let text = format!(
                "socket = {:?}: must be an absolute path, which begins with /",
                self.socket
            );
            found.push(Mistake::new("socket", text));
        } else if bytes > MAX_SOCKET_BYTES {
            let text = format!(
                "socket = {:?}: has {bytes} bytes, and a socket's path must have at most {MAX_SOCKET_BYTES}: \
                 choose a shorter one",
                self.socket
            );
            found.push(Mistake::new("socket", text));
        } else if self.socket.file_name().is_none() {
            let text = format!(
                "socket = {:?}: must name a file in a directory",
                self.socket
            );
            found.push(Mistake::new("socket", text));
        }
        if self.users.as_ref().is_some_and(Vec::is_empty) && self.groups.is_empty() {
            found.push(Mistake::new(
                "users",
                "users = []: nobody may attach: name users here or in groups, or remove it for the process's own user",
            ));
        }
        found
    }

    /// What is wrong with the entry `index` of `application`, beside its numbers.
    pub(super) fn application_mistakes(&self, index: usize) -> Vec<Mistake> {
        let Some(entry) = self.application.get(index) else {
            return Vec::new();
        };
        let quota = entry.over(&QuotaConfig::default());
        let numbers = quota.numbers();
        let mut found: Vec<Mistake> = numbers.iter().filter_map(Number::mistake).collect();
        let twice = |same: &dyn Fn(&ApplicationConfig) -> bool| {
            self.application.iter().take(index).any(same)
        };
        match (&entry.user, &entry.group) {
            (None, None) => found.push(Mistake::new(
                "user",
                "needs user = \"NAME\" or group = \"NAME\": whose applications are these?",
            )),
            (Some(user), Some(group)) => found.push(Mistake::new(
                "group",
                format!("group = {group}: user = {user} is there already: remove one of them"),
            )),
            (Some(user), None) if twice(&|other| other.user.as_ref() == Some(user)) => {
                found.push(Mistake::new(
                    "user",
                    format!("user = {user}: is there twice: join the two tables"),
                ));
            }
            (None, Some(group)) if twice(&|other| other.group.as_ref() == Some(group)) => {
                found.push(Mistake::new(
                    "group",
                    format!("group = {group}: is there twice: join the two tables"),
                ));
            }
            (Some(user), None) if self.never_attaches(user) => found.push(Mistake::new(
                "user",
                format!("user = {user}: may not attach: add it to users of [process]"),
            )),
            (Some(_), None) | (None, Some(_)) => {}
        }
        found
    }

    /// No other way than `users` lets anybody in, and this one is not among them.
    fn never_attaches(&self, user: &Who) -> bool {
        let is_same_kind =
            |other: &&Who| core::mem::discriminant(*other) == core::mem::discriminant(user);
        self.groups.is_empty()
            && self.users.as_ref().is_some_and(|users| {
                // A name and a number may be the same user: only the user database knows.
                users.iter().filter(is_same_kind).count() == users.len() && !users.contains(user)
            })
    }
}

impl QuotaConfig {
    pub(super) fn numbers(&self) -> Vec<Number> {
        let most = Quota::default();
        let or = |key: Option<u32>, most: u32| key.unwrap_or(most);
        vec![
            number("max_vi", or(self.max_vi, most.max_vi), 1, 4096),
            number("max_cq", or(self.max_cq, most.max_cq), 1, 65536),
            number("max_ptags", or(self.max_ptags, most.max_ptags), 1, 1 << 24),
            number(
                "max_regions",
                or(self.max_regions, most.max_regions),
                1,
                65535,
            ),
            number(
                "max_registered_bytes",
                self.max_registered_bytes
                    .unwrap_or(most.max_registered_bytes),
                4096,
                1 << 47,
            ),
            number(
                "max_descriptors",
                or(self.max_descriptors, most.max_descriptors),
                2,
                1 << 28,
            ),
            number(
                "max_incoming",
                or(self.max_incoming, most.max_incoming),
                1,
                65536,
            ),
            number(
                "max_discriminators",
                or(self.max_discriminators, most.max_discriminators),
                1,
                65536,
            ),
            number("rate_share", or(self.rate_share, most.rate_share), 1, 100),
            number("max_calls", or(self.max_calls, most.max_calls), 1, 4096),
            number(
                "max_calls_per_second",
                or(self.max_calls_per_second, most.max_calls_per_second),
                1,
                1_000_000,
            ),
        ]
    }

    pub(super) fn mistakes(&self) -> Vec<Mistake> {
        self.numbers().iter().filter_map(Number::mistake).collect()
    }
}

impl ApplicationConfig {
    /// `quota`, with what this entry says otherwise.
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
        }
    }
}
