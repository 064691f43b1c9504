//! TLS certificates of a NIC, and the authorities that it trusts.

use std::path::PathBuf;

use serde::Deserialize;

use super::error::{Number, ValueError, number};
use crate::vitcp::HandshakeLimits;

const MAX_PER_SECOND: u64 = 1_000_000;

/// TLS of a NIC with VI/TCP: version 1.3, with mutual authentication.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificate chain of this host: PEM, its own certificate first, and at most three others. Clients require the host address of this NIC
    /// among the subjectAltNames.
    pub certificate: PathBuf,
    /// Private key of the certificate: PEM, owned by this user or root, and not accessible to others.
    pub private_key: PathBuf,
    /// Certificates of the trusted authorities, which must have issued the certificates of other hosts: PEM.
    pub authorities: PathBuf,
    /// Maximum number of handshakes that peers start per second; further ones wait. 1 to 1000000.
    #[serde(default = "default_per_second")]
    pub max_handshakes_per_second: u32,
    /// Of these, maximum number of one source: an IPv4 address, or an IPv6 /64. 1 to 1000000.
    #[serde(default = "default_per_source")]
    pub max_handshakes_per_source: u32,
}

fn default_per_second() -> u32 {
    TlsConfig::default().max_handshakes_per_second
}

fn default_per_source() -> u32 {
    TlsConfig::default().max_handshakes_per_source
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            certificate: PathBuf::new(),
            private_key: PathBuf::new(),
            authorities: PathBuf::new(),
            max_handshakes_per_second: 400,
            max_handshakes_per_source: 200,
        }
    }
}

impl TlsConfig {
    /// Returns the limits on handshakes for the transport.
    pub(crate) fn handshake_limits(&self) -> HandshakeLimits {
        HandshakeLimits {
            total: self.max_handshakes_per_second,
            per_source: self.max_handshakes_per_source,
        }
    }

    pub(super) fn numbers(&self) -> [Number; 2] {
        [
            ("max_handshakes_per_second", self.max_handshakes_per_second),
            ("max_handshakes_per_source", self.max_handshakes_per_source),
        ]
        .map(|(key, value)| number(key, value, 1, MAX_PER_SECOND))
    }

    pub(super) fn errors(&self) -> Vec<ValueError> {
        let paths = [
            ("certificate", &self.certificate),
            ("private_key", &self.private_key),
            ("authorities", &self.authorities),
        ];
        paths
            .into_iter()
            .filter(|(_, path)| path.as_os_str().is_empty())
            .map(|(key, _)| {
                let text = format!("{key} = \"\": must be the path of a PEM file");
                ValueError::new(key, text)
            })
            .chain(self.numbers().iter().filter_map(Number::error))
            .collect()
    }
}
