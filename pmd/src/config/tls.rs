//! Who a NIC is to others, and whom it believes.

use std::path::PathBuf;

use serde::Deserialize;

use super::mistake::Mistake;

/// TLS of a NIC that speaks VI/TCP: version 1.3, and both ends show who they are.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Our certificate, then those up to its authority: PEM. Who asks us for a connection wants our host address among
    /// its subjectAltNames.
    pub certificate: PathBuf,
    /// Its private key: PEM, of this user or of root, and open to nobody else.
    pub private_key: PathBuf,
    /// Certificates of the authorities whose certificates other hosts must have: PEM.
    pub authorities: PathBuf,
}

impl TlsConfig {
    pub(super) fn mistakes(&self) -> Vec<Mistake> {
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
                Mistake::new(key, text)
            })
            .collect()
    }
}
