//! The configuration file as types: NICs, their networks, timers and limits, and the datapath process.
//!
//! TOML. Each table is declared once, with the meaning, type, default and range of each key; unknown keys are errors. What
//! connects a NIC, how it gets its N_Port_ID and which thread polls it are sum types: a file has exactly one of their
//! tables. Every error of a file is reported, with its line and what to do. See `configs/` and
//! [`reference`](reference::reference).
#![forbid(unsafe_code)]

mod address;
mod addressing;
mod check;
mod conflicts;
mod error;
mod file;
mod flat;
mod keys;
mod network;
mod nic;
mod process;
mod progress;
mod quota;
mod quota_shares;
mod recovery;
pub mod reference;
mod table;

use std::collections::BTreeMap;
use std::path::Path;

use file::{File, TablePath, default_nic_name, read_aliases, read_table};
use table::{Form, TableForm, table, table_form};

pub use address::{OwnHost, host_address, ip_address};
pub use addressing::{Addressing, Discovery, NeighbourConfig, Static, parse_range};
pub use conflicts::UserDatabase;
pub use error::ConfigError;
pub use network::*;
pub use nic::{FaultConfig, FcVi, Limits, NicConfig, Protection};
pub use process::{Idle, Principal, ProcessConfig};
pub use progress::{Inline, MAX_COALESCE_FRAMES, Pinned, Progress};
pub use quota::{ApplicationConfig, Quota, QuotaConfig, Shares, UserQuota};
pub use recovery::{Recovery, RecoveryParameters};

table! {
    /// The file.
    pub struct Config in "" {
        /// The NICs, in order: VINIC0, VINIC1, ... unless they have a `name`.
        pub nic: Vec<NicConfig> = Vec::new(), Form::Tables(table_form::<NicConfig>("", read_table::<NicConfig>));
        /// Other names of NICs: `alias = "VINIC0"`.
        pub alias: BTreeMap<String, String> = BTreeMap::new(), Form::Table(ALIASES);
        /// The datapath process that opens these NICs and serves applications; without it, each program opens the NICs
        /// itself.
        pub process: Option<ProcessConfig> = None, table::subtable::<ProcessConfig>();
    }
}

const ALIASES: TableForm = TableForm {
    must_have: ", of other names of NICs",
    header: "[alias]",
    doc: &[" Other names of NICs: each key is a name, its value that of a NIC."],
    keys: &[],
    defaults: Vec::new,
    read: read_aliases,
};

impl Config {
    /// Reads a file. With a user database, for a process that serves applications: the users and groups in it must exist
    /// on this host.
    ///
    /// # Errors
    /// The file cannot be read, or contains errors: all of them, each with its line.
    pub fn read_with(path: &Path, users: Option<&dyn UserDatabase>) -> Result<Self, ConfigError> {
        std::fs::read(path)
            .map_err(|e| ConfigError::new(format!("cannot be read: {e}")))
            .and_then(ConfigError::decode)
            .and_then(|text| Self::parse_with(&text, users))
            .map_err(|e| e.in_file(path))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Those of [`Self::read_with`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_with(path, None)
    }

    /// Parses the text of a file and checks every value.
    ///
    /// # Errors
    /// All errors of the text, each with its line.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(text, None)
    }

    fn parse_with(text: &str, users: Option<&dyn UserDatabase>) -> Result<Self, ConfigError> {
        let (mut file, mut config) = File::read::<Self>(text, flat::explain)?;
        let is_served = config.process.is_some();
        for (index, nic) in config.nic.iter_mut().enumerate() {
            if nic.name.is_empty() {
                nic.name = default_nic_name(index);
            }
            let at = TablePath::nic(index, &nic.name);
            if is_served && file.value(&at, "progress").is_none() {
                nic.progress = Progress::pinned(None);
            }
            if is_served && file.value(&at.subtable("fc_vi"), "shortcut").is_none() {
                nic.fc_vi.shortcut = true;
            }
        }
        conflicts::check(&mut file, &config);
        if let Some(users) = users {
            conflicts::check_to_serve(&mut file, &config, users);
        }
        file.finish()?;
        Ok(config)
    }

    /// Returns the configuration without a file: the single NIC VINIC0 on shared memory.
    #[must_use]
    pub fn built_in() -> Self {
        let name = default_nic_name(0);
        let nic = NicConfig {
            name,
            ..NicConfig::default()
        };
        Self {
            nic: vec![nic],
            ..Self::default()
        }
    }

    /// Finds a NIC by device name (VIPL 6.5): its name, an alias, `VINIC` for the first one, `VINICn` by index, or its
    /// [`Network::wire_name`].
    #[must_use]
    pub fn nic(&self, device: &str) -> Option<&NicConfig> {
        let device = self.alias.get(device).map_or(device, String::as_str);
        if let Some(nic) = self.nic.iter().find(|nic| nic.name == device) {
            return Some(nic);
        }
        if device == "VINIC" {
            return self.nic.first();
        }
        if let Some(number) = device.strip_prefix("VINIC") {
            return self.nic.get(number.parse::<usize>().ok()?);
        }
        let mut nics = self.nic.iter();
        nics.find(|nic| nic.network.wire_name() == Some(device))
    }
}

#[cfg(test)]
mod tests;
