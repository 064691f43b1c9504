//! Poll-mode VI provider: registered memory, work queues,
//! completion queues, and the poll loop.
//!
//! | module | contents |
//! | --- | --- |
//! | [`nic`] | API by handle, for the front end |
//! | [`queue_calls`] | calls of the data path: post, done, wait |
//! | [`notify`] | calls that register a notify handler, and the threads that call it |
//! | [`config`] | the configuration file |
//! | [`descriptor`] | the layout of descriptors in application memory |
//! | `posted_descriptor` | validated copies of descriptors, and iteration over their data segments |
//! | `queue`, `cq` | work queues and completion queues |
//! | `memory` | registered regions, protection, copies, also for served applications; shared memory |
//! | `datapath` | the I/O of the protocol engine: queues, memory, frames |
//! | `transport` | the protocol: FC-VI (`vi-engine`) or VI/TCP |
//! | `vitcp` | VI/TCP: connections, messages, sockets |
//! | `frame_buffer` | the buffer in which a frame is built |
//! | `poller` | one poll iteration: receive frames, timers, doorbells, send frames |
//! | `progress` | polling by the calling threads or a pinned thread, and sleeping |
//! | `yield_policy` | how long a polling thread keeps its core |
//! | `device`, `open`, `nic_handle` | a NIC of this process, its bring-up, and its handles |
//! | `log_limiter` | rate limiter for log lines that peers can cause |
//! | `fork` | fork(2) in a program with an open NIC |
//! | [`logger`] | a logger for the C library and for programs |
//! | `main_thread` | signal handling after the main thread has ended |
//! | `control` | control calls: create, destroy, register, connect |
//! | [`reserve`] | memory reserve for when the system is out of memory |
//! | `vi` | handles, VIs and completion queues |
//! | `events` | queue of asynchronous errors for the consumer |
//! | `discovery` | discovery of ports and their logins |
//! | `capture_file` | files for captured frames |
//! | `tap` | copies of passing frames, for a capture |
//! | `neighbours` | host addresses to N_Port_IDs |
//! | `biased_lock`, `sync`, `sys`, `clock`, `doorbell` | utilities |

pub mod attach;
mod biased_lock;
pub mod capture_file;
mod clock;
mod coalesce;
mod completion;
mod control;
mod cq;
mod datapath;
mod device;
mod discovery;
mod doorbell;
mod fork;
mod frame_buffer;
mod log_limiter;
pub mod logger;
mod main_thread;
mod memory;
mod neighbours;
mod nic_backend;
mod nic_handle;
mod open;
mod poller;
mod posted_descriptor;
mod progress;
mod queue;
pub mod reserve;
mod sync;
mod sys;
mod tap;
#[cfg(test)]
mod testkit;
mod transport;
mod vi;
mod vitcp;
mod waiters;
mod yield_policy;

pub mod config;
pub mod descriptor;
pub mod events;
pub mod nic;
pub mod notify;
pub mod queue_calls;

pub use pmd_port::{environment, stderr};

pub use memory::{SharedMemory, obey_ptrace_rules};
pub use nic_handle::Handler;
pub use open::{OpenError, check_nic, check_process};
pub use sys::raise_descriptor_limit;
