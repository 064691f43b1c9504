//! The configuration of this program: the file of `vi-config`, and what needs this host or the parts below.

mod admission;
mod privileged;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use fcvi_frame::fc::NPortId;
use pmd_port::environment;
use vi_core::sys::interface_index;
use vi_engine::RecoveryConfig;
use vi_types::{HostAddress, MissLimits};

pub use admission::{Refusal, admit};
pub use privileged::PRIVILEGED_CONFIG;
pub use vi_config::*;

/// Environment variable with the path of the configuration file, which is read when a NIC is opened by name.
pub const CONFIG_VARIABLE: &str = "VIADUCT_CONFIG";

/// Environment variable that overrides `protection` of every NIC that is opened by name: `strict` or
/// `lenient`.
pub const PROTECTION_VARIABLE: &str = "VIPL_PROTECTION";

/// Error text where a program that was built without DPDK is to open a DPDK port.
pub const WITHOUT_DPDK: &str =
    "[nic.dpdk]: this program was built without DPDK: build it with --features dpdk";

/// One hour.
const HOUR_NS: u64 = 3_600_000_000_000;
const NS_PER_US: u64 = 1_000;

/// Reads a file for a process that serves applications: the users and groups in it must exist on this host.
///
/// # Errors
/// Those of [`Config::read`], and unknown names.
pub fn read_to_serve(path: &Path) -> Result<Config, ConfigError> {
    Config::read_with(path, Some(&admission::SystemUserDatabase))
}

/// Returns the configuration of this program: from the file named by [`CONFIG_VARIABLE`], in a privileged program from
/// [`PRIVILEGED_CONFIG`], or the built-in one with the single NIC VINIC0 on shared memory; with `protection` from
/// [`PROTECTION_VARIABLE`].
///
/// # Errors
/// The file cannot be used, or a variable has an invalid value.
pub fn from_environment() -> Result<Config, ConfigError> {
    let mut config = match privileged::config_path()? {
        Some(path) => Config::read(&path)?,
        None => Config::built_in(),
    };
    if let Some(protection) = environment::variable(PROTECTION_VARIABLE) {
        override_protection(&mut config, &protection)?;
    }
    Ok(config)
}

fn override_protection(config: &mut Config, value: &OsStr) -> Result<(), ConfigError> {
    if let Some(protection) = parse_protection(value)? {
        for nic in &mut config.nic {
            nic.protection = protection;
        }
    }
    Ok(())
}

/// Reads [`PROTECTION_VARIABLE`]; `None` if it is not set.
///
/// # Errors
/// It has an invalid value.
pub fn protection_from_environment() -> Result<Option<Protection>, ConfigError> {
    let value = environment::variable(PROTECTION_VARIABLE).unwrap_or_default();
    parse_protection(&value)
}

fn parse_protection(value: &OsStr) -> Result<Option<Protection>, ConfigError> {
    match value.to_str() {
        Some("") => Ok(None),
        Some("strict") => Ok(Some(Protection::Strict)),
        Some("lenient") => Ok(Some(Protection::Lenient)),
        Some(_) | None => Err(ConfigError::new(format!(
            "{PROTECTION_VARIABLE}={value:?}: must be strict or lenient"
        ))),
    }
}

/// Returns the socket of a datapath process: that of its table, or the default of this user.
#[must_use]
pub fn socket_of(process: &ProcessConfig) -> PathBuf {
    let runtime_directory = environment::variable("XDG_RUNTIME_DIR");
    process.socket_in(runtime_directory.as_deref().map(Path::new))
}

/// Returns the N_Port_IDs of a text of the configuration: one, or a range.
///
/// # Errors
/// The text has another form.
pub fn n_port_ids(text: &str) -> Result<Vec<NPortId>, ConfigError> {
    let (first, last) = parse_range(text).map_err(ConfigError::new)?;
    Ok((first..=last).filter_map(NPortId::new).collect())
}

/// Returns the configured neighbours of a NIC: host addresses and their N_Port_IDs.
pub(crate) fn neighbours(nic: &NicConfig) -> Result<Vec<(HostAddress, Vec<NPortId>)>, ConfigError> {
    let ids = nic.addressing.r#static();
    let neighbours = ids.into_iter().flat_map(|ids| &ids.neighbour);
    neighbours
        .map(|neighbour| {
            let ids = n_port_ids(&neighbour.n_port_ids)?;
            Ok((host_address(neighbour.host), ids))
        })
        .collect()
}

/// Returns the parameters of message recovery for the engine; `None` if it is not offered.
pub(crate) fn recovery(nic: &NicConfig) -> Option<RecoveryConfig> {
    let RecoveryParameters {
        ack_messages,
        ack_bytes,
        ack_us,
        timeout_us,
        tries,
        min_window_frames,
        window_frames,
        received_ranges,
    } = nic.recovery()?;
    Some(RecoveryConfig {
        ack_messages,
        ack_bytes,
        ack_delay_ns: ack_us * NS_PER_US,
        min_timeout_ns: timeout_us * NS_PER_US,
        tries,
        min_window_frames,
        max_window_frames: window_frames,
        max_received_ranges: received_ranges,
    })
}

/// Returns the limits on refused RDMA accesses (ADR 0041) for the transports.
pub(crate) fn miss_limits(limits: &Limits) -> MissLimits {
    MissLimits {
        burst: limits.rdma_miss_burst,
        interval_ns: HOUR_NS / u64::from(limits.rdma_misses_per_hour.max(1)),
        per_connection: limits.rdma_misses_per_connection,
    }
}

/// Returns the index of the interface of a host address, which is the scope ID of socket addresses; 0 without one.
///
/// # Errors
/// There is no such interface.
pub(crate) fn scope(host: &OwnHost) -> Result<u32, ConfigError> {
    let Some(interface) = host.interface() else {
        return Ok(0);
    };
    let index = interface_index(interface);
    index.or_else(|| interface.parse().ok()).ok_or_else(|| {
        ConfigError::new(format!(
            "host = \"{host}\": no interface \"{interface}\": `ip link` lists interfaces"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_parts() {
        let nic = NicConfig {
            recovery: Some(Recovery::Switch(true)),
            ..NicConfig::default()
        };
        assert_eq!(recovery(&nic), Some(RecoveryConfig::default()));
        assert_eq!(miss_limits(&nic.limits), MissLimits::default());
        assert_eq!(ViTcp::default().port, vitcp_lite::profile::TCP_PORT);
        let on_wire = NicConfig {
            network: Network::AfPacket(AfPacket::default()),
            ..NicConfig::default()
        };
        let r_a_tov_ms = u64::from(fcvi_frame::profile::R_A_TOV_MS);
        assert_eq!(on_wire.r_a_tov_ms(), r_a_tov_ms);
    }

    #[test]
    fn ranges_are_those_of_the_parts() {
        let check = |change: &dyn Fn(&mut NicConfig)| {
            let mut nic = NicConfig::default();
            change(&mut nic);
            nic.check()
        };
        let most = vi_engine::MAX_UNANSWERED;
        assert!(check(&|nic| nic.limits.max_in_flight = most).is_ok());
        assert!(check(&|nic| nic.limits.max_in_flight = most + 1).is_err());
        let most = vitcp_lite::profile::MAX_DISCRIMINATOR_BYTES as u16;
        let with_tcp = |bytes| {
            check(&|nic| {
                nic.network = Network::ViTcp(ViTcp::default());
                nic.limits.max_discriminator_bytes = bytes;
            })
        };
        assert!(with_tcp(most).is_ok() && with_tcp(most + 1).is_err());
    }

    #[test]
    fn environment_overrides_protection() {
        let file = "[[nic]]\nshm = {}\nprotection = \"lenient\"\n[[nic]]\nshm = {}";
        let protections = |value: &str| {
            let mut config = Config::parse(file).unwrap();
            override_protection(&mut config, OsStr::new(value)).map(|()| {
                config
                    .nic
                    .iter()
                    .map(|nic| nic.protection)
                    .collect::<Vec<_>>()
            })
        };
        use Protection::{Lenient, Strict};
        assert_eq!(protections("").unwrap(), [Lenient, Strict], "not set");
        assert_eq!(protections("lenient").unwrap(), [Lenient, Lenient]);
        assert_eq!(protections("strict").unwrap(), [Strict, Strict]);
        let error = protections("Lenient").unwrap_err().to_string();
        assert!(
            error.contains("VIPL_PROTECTION") && error.contains("Lenient"),
            "{error}"
        );
    }

    #[test]
    fn neighbours_have_the_ids_of_their_ranges() {
        let config = Config::parse(
            "[[nic]]\naf_packet.interface = \"a\"\nhost = \"10.0.0.1\"\nstatic.n_port_ids = \"00.01.01\"\n\
             [[nic.static.neighbour]]\nhost = \"10.0.0.2\"\nn_port_ids = \"00.01.10-00.01.11\"\n",
        );
        let neighbours = neighbours(&config.unwrap().nic[0]).unwrap();
        let ids = [0x0110, 0x0111].map(|id| NPortId::new(id).unwrap());
        let host = host_address("10.0.0.2".parse().unwrap());
        assert_eq!(neighbours, [(host, ids.to_vec())]);
    }
}
