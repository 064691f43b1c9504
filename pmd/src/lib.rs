//! The poll-mode side of a VI provider: registered memory, work queues,
//! completion queues, and the one poll loop.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`nic`] | calls by handle: what the front end is made of |
//! | [`work`] | of these, the calls of the data path: post, done, wait |
//! | [`notify`] | of these, the calls that have a handler called, and its threads |
//! | [`config`] | the configuration file |
//! | [`descriptor`] | the layout of descriptors in application memory |
//! | `post` | a descriptor parsed and copied once |
//! | `queue`, `cq` | work queues and completion queues |
//! | `memory` | registered regions, protection, copies in and out, also for applications that are served; memory that can be shared |
//! | `datapath` | what the protocol engine asks for, done; RDMA reads and applications' memory in rooms of their own |
//! | `transport` | the protocol behind it all: `vi-engine`, or VI/TCP |
//! | `vitcp` | VI/TCP: connections, messages, sockets |
//! | `workbench` | where a frame is put together |
//! | `poller` | one turn: frames in, timers, doorbells, frames out |
//! | `progress` | who takes turns when: inline, pinned, asleep |
//! | `patience` | how long a thread that polls keeps its core |
//! | `device`, `open`, `instance` | a NIC of this process, brought up and owned |
//! | `log_limiter` | log lines that peers can cause, limited for each second |
//! | `fork` | a NIC stays with the process that opened it |
//! | [`logger`] | a logger for the C library and for programs |
//! | `main_thread` | the signals of a program whose main thread has ended |
//! | `control` | calls that are not on the data path |
//! | [`reserve`] | memory for when the system gives no more |
//! | `resource_error` | why a call fails with VIP_ERROR_RESOURCE |
//! | `vi` | handles and the objects they name |
//! | `choices` | what a VI may want of its connections beyond the guide |
//! | `events` | asynchronous errors on their way to the consumer |
//! | `discovery` | a network whose ports find each other |
//! | `capture_file` | the files that captured frames are written to |
//! | `tap` | frames copied for an operator who looks at them |
//! | `neighbours` | which N_Ports a host address means |
//! | `token`, `sync`, `sys`, `clock`, `doorbell` | small tools of the above |

pub mod attach;
pub mod capture_file;
mod choices;
mod clock;
mod coalesce;
mod completion;
mod control;
mod cq;
mod datapath;
mod device;
mod discovery;
mod doorbell;
mod driver;
mod fork;
mod instance;
mod log_limiter;
pub mod logger;
mod main_thread;
mod memory;
mod neighbours;
mod open;
mod patience;
mod poller;
mod post;
mod progress;
mod queue;
pub mod reserve;
mod resource_error;
mod sleepers;
mod sync;
mod sys;
mod tap;
#[cfg(test)]
mod testkit;
mod token;
mod transport;
mod vi;
mod vitcp;
mod workbench;

pub mod config;
pub mod descriptor;
pub mod events;
pub mod nic;
pub mod notify;
pub mod work;

pub use pmd_port::{environment, stderr};

pub use choices::{Agreement, ViChoices};
pub use control::{ControlError, LEVELS_SUPPORTED, RDMA_READ_LEVELS};
pub use instance::Handler;
pub use memory::{LockPolicy, SharedMemory, obey_ptrace_rules};
pub use open::{OpenError, check_nic, check_process};
pub use resource_error::{Limit, LimitOf, LimitReached, ResourceError};
pub use sys::raise_descriptor_limit;
pub use vi::ViSettings;
pub use vi_engine::EndpointState;
