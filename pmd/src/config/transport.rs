//! Transport of a NIC.

use serde::Deserialize;

use super::NicConfig;

/// Transport of the messages of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportKind {
    /// FC-VI frames over a port.
    #[default]
    FcVi,
    /// VI/TCP: a TCP connection for each VI.
    ViTcp,
}

impl NicConfig {
    /// Returns whether this NIC sends FC-VI frames over a wire.
    pub(crate) fn is_on_wire(&self) -> bool {
        self.transport == TransportKind::FcVi && self.port.is_on_wire()
    }
}
