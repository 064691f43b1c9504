//! TLS certificates of a NIC, and the authorities that it trusts.

use std::path::PathBuf;

use serde::Deserialize;

use super::error::ValueError;

/// TLS of a NIC with VI/TCP: version 1.3, with mutual authentication.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificate chain of this host: PEM, its own certificate first. Clients require the host address of this NIC
    /// among the subjectAltNames.
    pub certificate: PathBuf,
    /// Private key of the certificate: PEM, owned by this user or root, and not accessible to others.
    pub private_key: PathBuf,
    /// Certificates of the trusted authorities, which must have issued the certificates of other hosts: PEM.
    pub authorities: PathBuf,
}

impl TlsConfig {
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
            .collect()
    }
}
