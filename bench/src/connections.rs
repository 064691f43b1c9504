//! Connection setup and teardown (`vibench connect`): connections per second, and growth of memory.
//!
//! A run has ten steps. In each step the client makes a tenth of the connections, one after the other: first
//! client/server, then peer to peer; it disconnects each as soon as it is established. Then both ends read their
//! resident memory.
//!
//! | module | contents |
//! | --- | --- |
//! | `client` | requests and closes connections, measures and reports |
//! | `server` | accepts connections |
//! | [`report`] | the table and the JSON object |

pub mod report;

mod client;
pub(crate) mod server;

use serde::{Deserialize, Serialize};
use vi_types::ReliabilityLevel;

use crate::endpoint::EndpointLayout;
use crate::error::{Error, Result};

pub(crate) use client::run;

/// Number of steps of a run.
pub(crate) const STEPS: u32 = 10;

/// Parameters of a round of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConnectionRound {
    /// Reliability level of all connections.
    pub(crate) level: ReliabilityLevel,
    /// Whether the connections are peer to peer; else client/server.
    pub(crate) peers: bool,
    /// Number of connections.
    pub(crate) count: u32,
    /// Host part of the client's address.
    pub(crate) host: [u8; 16],
}

/// Result of a round at the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AcceptResult {
    /// Connections established at the server.
    pub(crate) made: u32,
    /// Resident memory of the server.
    pub(crate) resident_kib: u64,
    /// Reason for which the round ended early.
    pub(crate) broken: Option<String>,
}

/// Returns the layout of the endpoints: one receive descriptor, which is flushed when the connection ends; nothing is
/// sent.
fn layout(level: ReliabilityLevel) -> EndpointLayout {
    const BYTES: u32 = 64;
    EndpointLayout {
        level,
        send_descriptors: 1,
        send_buffers: 1,
        send_bytes: BYTES,
        recv_descriptors: 1,
        recv_buffers: 1,
        recv_bytes: BYTES,
    }
}

/// Returns the resident memory of this process in KiB.
fn resident_kib() -> Result<u64> {
    const STATUS: &str = "/proc/self/status";
    let status = std::fs::read_to_string(STATUS).map_err(|error| Error::io(STATUS, error))?;
    resident_in(&status).ok_or_else(|| Error::Usage(format!("{STATUS}: no VmRSS")))
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_parsed() {
        assert_eq!(
            resident_in("VmPeak:\t 9 kB\nVmRSS:\t    5432 kB\nx"),
            Some(5432)
        );
        assert_eq!(resident_in("VmRSS:\t many kB\n"), None);
        assert_eq!(resident_in(""), None);
        assert!(resident_kib().unwrap() > 0);
    }
}
