//! Poll-mode VI provider: NICs, the poll loop, and the calls by handle. Memory and queues are in `vi-core`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`nic`] | API by handle, for the front end |
//! | [`queue_calls`] | calls of the data path: post, done, wait |
//! | [`notify`] | calls that register a notify handler, and the threads that call it |
//! | [`config`] | the configuration file |
//! | [`attach`] | NICs of a datapath process, and that process |
//! | `datapath` | the I/O of the protocol engine: queues, memory, frames |
//! | `payload_buffer` | gathers the payload of a frame |
//! | `transport` | the protocol as traits, with FC-VI (`vi-engine`) and VI/TCP (`vi-tcp`) |
//! | `coalesce` | delays of frames and messages, which leave in bursts |
//! | `nic_backend`, `poller` | the backend of a NIC as a trait; one poll iteration in this process |
//! | `call_waiters` | calls of applications that wait in a datapath process |
//! | `progress`, `poll_thread` | polling by the calling threads or a pinned thread, and sleeping |
//! | `clock`, `yield_policy` | time while a NIC is polled; how long a polling thread keeps its core |
//! | `device`, `lookup` | NICs of this process, and their objects by handle |
//! | `open`, `check` | bring-up of a NIC, and whether it can be brought up |
//! | [`ports`] | the drivers of ports, by the tables of the configuration |
//! | `nic_handle`, `error_handlers` | handles of a NIC, and the thread that calls their error handlers |
//! | `control_calls` | control calls as traits: what a backend carries out |
//! | `control` | control calls of a NIC of this process: create, destroy, register, connect |
//! | `discovery`, `neighbours` | discovery of ports and their logins; host addresses to N_Port_IDs |
//! | `network_view` | the port of a NIC and the ports that it sees, for diagnostics |
//! | [`capture_file`], `tap` | captured frames: files, and copies of passing frames |
//! | [`logger`] | a logger for the C library and for programs |

pub mod attach;
mod call_waiters;
pub mod capture_file;
mod check;
mod clock;
mod coalesce;
mod control;
mod control_calls;
mod datapath;
mod device;
mod discovery;
mod error_handlers;
pub mod logger;
mod lookup;
mod neighbours;
mod network_view;
mod nic_backend;
mod nic_handle;
mod open;
mod payload_buffer;
mod poll_thread;
mod poller;
pub mod ports;
mod progress;
mod tap;
mod transport;
mod wait_policy;

pub mod config;
pub mod nic;
pub mod notify;
pub mod queue_calls;

pub use pmd_port::{environment, stderr};

pub use check::{check_nic, check_process};
pub use nic_handle::Handler;
pub use open::OpenError;
