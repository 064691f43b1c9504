//! Connections made and ended, in place of messages: how many in a second, and whether memory
//! stays as it is.
//!
//! A run has ten steps. In each the measuring end makes its tenth of the connections, one after
//! the other: first as a client, then as a peer; it ends each as soon as it is there. Then both
//! ends look at their resident memory.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `near` | the end that asks, ends, measures and reports |
//! | `far` | the end that accepts |
//! | [`report`] | the table and the JSON object |

pub mod report;

pub(crate) mod far;
mod near;

use serde::{Deserialize, Serialize};

use crate::endpoint::Shape;
use crate::error::{Error, Result};
use crate::plan::Level;

pub(crate) use near::run;

/// Steps of a run.
pub(crate) const STEPS: u32 = 10;

/// A round of connections, as both ends know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Round {
    /// The level of all connections.
    pub(crate) level: Level,
    /// Between two peers; else the measuring end is the client.
    pub(crate) peers: bool,
    /// How many.
    pub(crate) count: u32,
    /// The host part of the measuring end's address.
    pub(crate) host: [u8; 16],
}

/// What the answering end saw of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Admitted {
    /// Connections that it was in.
    pub(crate) made: u32,
    /// Its resident memory.
    pub(crate) resident_kib: u64,
    /// Why the round ended early, if it did.
    pub(crate) broken: Option<String>,
}

/// One receive descriptor, which comes back when the connection ends; nothing is sent.
fn shape(level: Level) -> Shape {
    const BYTES: u32 = 64;
    Shape {
        level,
        send_descriptors: 1,
        send_buffers: 1,
        send_bytes: BYTES,
        recv_descriptors: 1,
        recv_buffers: 1,
        recv_bytes: BYTES,
    }
}

/// Resident memory of this process.
fn resident_kib() -> Result<u64> {
    const STATUS: &str = "/proc/self/status";
    let status = std::fs::read_to_string(STATUS).map_err(|error| Error::io(STATUS, error))?;
    resident_in(&status).ok_or_else(|| Error::Usage(format!("{STATUS} tells no VmRSS")))
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
    fn resident_memory_is_found() {
        assert_eq!(
            resident_in("VmPeak:\t 9 kB\nVmRSS:\t    5432 kB\nx"),
            Some(5432)
        );
        assert_eq!(resident_in("VmRSS:\t many kB\n"), None);
        assert_eq!(resident_in(""), None);
        assert!(resident_kib().unwrap() > 0);
    }
}
