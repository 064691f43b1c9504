//! The address of a server, on the command line.

use clap::Args;

/// The address of a server.
#[derive(Args)]
pub(crate) struct ServerAddress {
    /// The host of the server.
    pub(crate) host: String,
    /// The discriminator of the server.
    pub(crate) name: String,
}
