//! The datapath process: the table `[process]`.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::ValueError;
use crate::file::read_table;
use crate::nic::TEN_SECONDS_US;
use crate::quota::{ApplicationConfig, QuotaConfig, Shares};
use crate::table::{self, Form, Table as _, Value, range, table, table_form, value};

/// Maximum length of the path of a Unix socket in bytes, without the terminating 0.
const MAX_SOCKET_BYTES: usize = 107;

table! {
    /// Settings of the datapath process `fcvi-pmd run`. A program whose configuration has this table attaches to that
    /// process instead of opening NICs itself.
    pub struct ProcessConfig in "[process]" {
        /// The Unix socket at which applications attach: an absolute path of at most 107 bytes. Default:
        /// `$XDG_RUNTIME_DIR/viaduct/pmd.sock`, or `/run/viaduct/pmd.sock` where that variable is not set.
        pub socket: Option<PathBuf> = None, value("an absolute path of at most 107 bytes, in quotes");
        /// Users whose programs may attach, by name or number. Default: the process's own user.
        pub users: Option<Vec<Principal>> = None,
            value("a list of users, names in quotes or numbers: [\"alice\", 1001]");
        /// Groups whose members may attach, by name or number. Default: none.
        pub groups: Vec<Principal> = Vec::new(),
            value("a list of groups, names in quotes or numbers: [\"users\", 100]");
        /// Address and port of the Prometheus endpoint, which is readable without authentication. Default: no endpoint.
        pub metrics: Option<SocketAddr> = None, value("an IP address and a port, in quotes: \"127.0.0.1:9464\"");
        /// What an idle poll thread does.
        pub idle: Idle = Idle::Spin, value("\"spin\" or \"hybrid\"");
        /// `hybrid`: time that an idle poll thread spins before it sleeps, microseconds.
        pub spin_us: u64 = 50, range(0, TEN_SECONDS_US);
        /// Programs of the process's own user may register private memory, which the process accesses by
        /// `process_vm_readv` and `process_vm_writev`. Without it, only memory of the library's allocator and shared
        /// mappings can be registered.
        pub foreign_memory: bool = true, value("true or false");
        /// Short messages, of at most 4096 bytes, of the private memory of an application that are passed to the process, and
        /// as many that are passed from it, without system calls: buffers of 4 KiB. 0: none.
        pub inline_buffers: u32 = 64, range(0, 4096);
        /// Maximum number of attached applications. A program that attaches to two NICs counts twice.
        pub max_applications: u32 = 64, range(1, 4096);
        /// Maximum number of attached applications of one user, at most `max_applications`. Default: half of
        /// `max_applications`, or all if only the process's own user may attach.
        pub max_applications_per_user: Option<u32> = None, range(1, 4096);
        /// Maximum number of pending control connections (without a first request) of one process, which limits the
        /// threads that can make their first call at the same time.
        pub max_pending_per_process: u32 = 128, range(1, 4096);
        /// Maximum number of pending control connections of one user.
        pub max_pending_per_user: u32 = 512, range(1, 65536);
        /// Maximum number of pending control connections in all. A user has at most as many as remain free: a single one
        /// has half of them. Default: twice `max_pending_per_user`.
        pub max_pending: Option<u32> = None, range(1, 131_072);
        /// Maximum number of log lines per second about applications; suppressed lines are counted. A user causes at
        /// most as many as are left for others: a single one causes half of them.
        pub max_log_lines_per_second: u32 = 50, range(1, 1_000_000);
        /// Divisor of the NIC's limits that gives the default quota of an application. A default quota is at least 16
        /// VIs, protection tags and pending requests, 64 regions, 64 MiB and 1024 descriptors, and at most 1024 VIs and
        /// tags, 256 pending requests, 8192 regions, 64 GiB and 65536 descriptors. The NIC's own limits apply, too.
        pub default_share: u32 = 8, range(1, 4096);
        /// Default quota of each application.
        pub quota: QuotaConfig = QuotaConfig::default(), table::subtable::<QuotaConfig>();
        /// Quotas of particular users and groups.
        pub application: Vec<ApplicationConfig> = Vec::new(), Form::Tables(table_form::<ApplicationConfig>(
            ", each with user or group",
            read_table::<ApplicationConfig>,
        ));
    }
}

impl Value for SocketAddr {}

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

impl Value for Idle {
    fn text(&self) -> String {
        table::word(self, '_')
    }
}

impl core::fmt::Display for Principal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

impl ProcessConfig {
    /// Returns the socket; without one in the file, that of a user with this runtime directory.
    #[must_use]
    pub fn socket_in(&self, runtime_directory: Option<&Path>) -> PathBuf {
        let default = || {
            runtime_directory
                .filter(|directory| directory.is_absolute())
                .unwrap_or(Path::new("/run"))
                .join("viaduct/pmd.sock")
        };
        self.socket.clone().unwrap_or_else(default)
    }

    /// Returns the maximum number of attached applications of one user.
    #[must_use]
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
    #[must_use]
    pub fn pending_connections(&self) -> u32 {
        let default = self.max_pending_per_user.saturating_mul(2);
        self.max_pending.unwrap_or(default)
    }

    /// Returns the divisors that give the quotas that are not set.
    #[must_use]
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
    pub(crate) fn errors(&self) -> Vec<ValueError> {
        let mut found = self.range_errors();
        let (of_user, all) = (self.applications_per_user(), self.max_applications);
        if of_user > all && found.is_empty() {
            let text = format!(
                "max_applications_per_user = {of_user}: must be at most max_applications = {all}: \
                 lower this, or raise that"
            );
            found.push(ValueError::new("max_applications_per_user", text));
        }
        found.extend(self.socket.as_deref().and_then(socket_error));
        if self.users.as_ref().is_some_and(Vec::is_empty) && self.groups.is_empty() {
            found.push(ValueError::new(
                "users",
                "users = []: no user may attach: list users, set groups, or remove this key for the process's own user",
            ));
        }
        found
    }

    /// Validates the entry `index` of `application`.
    pub(crate) fn application_errors(&self, index: usize) -> Vec<ValueError> {
        let Some(entry) = self.application.get(index) else {
            return Vec::new();
        };
        let mut found = entry.range_errors();
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

fn socket_error(socket: &Path) -> Option<ValueError> {
    let bytes = socket.as_os_str().as_bytes().len();
    let problem = if !socket.is_absolute() {
        "must be an absolute path, which begins with /".to_owned()
    } else if bytes > MAX_SOCKET_BYTES {
        format!(
            "has {bytes} bytes, but the path of a socket must have at most {MAX_SOCKET_BYTES}: \
             choose a shorter one"
        )
    } else if socket.file_name().is_none() {
        "must name a file in a directory".to_owned()
    } else {
        return None;
    };
    let text = format!("socket = {socket:?}: {problem}");
    Some(ValueError::new("socket", text))
}
