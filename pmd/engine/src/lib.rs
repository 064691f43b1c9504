//! The VI provider's protocol core: FC-VI endpoints over one N_Port, sans-IO.
//!
//! The engine owns all protocol state of one port. It accesses no application memory, socket, clock
//! or thread: frames are passed in as bytes, time and randomness are arguments, and its effects are
//! calls of an [`EngineIo`].
//!
//! | module | contents |
//! | --- | --- |
//! | [`engine_io`] | [`EngineIo`]: what the engine calls for queues, memory and port |
//! | [`config`] | [`EngineConfig`]: identity, timers, limits |
//! | [`engine`] | [`Engine`]: the tables, and the verbs that the poll loop calls |
//! | `n_port`, `context` | what all endpoints share; what one endpoint needs of it during a call |
//! | `endpoint`, `connection` | one VI: its state, its two message streams, its connection |
//! | `transmit` | descriptors sent as frames; descriptors in flight, until they are answered |
//! | `receive` | frames checked, matched to endpoints, and placed |
//! | `reassembly` | order of received frames, in order and ahead of it |
//! | `recovery` | retransmission, on networks that lose frames |
//! | `responses` | responses of Reliable Reception, and the data of RDMA reads |
//! | `shortcut` | messages between two VIs of this engine, moved without frames |
//! | `connect`, `accept` | connection set-up: originator, responder |
//! | `disconnect`, `pending_disconnects` | ends of connections, loss of ports; disconnects retransmitted until answered |
//! | `connection_iu`, `connection_ids` | the frames of these procedures; the IDs of own requests |
//! | `logged_in_ports` | ports that may connect, with discovery; change of the own N_Port_ID |
//! | `liveness` | probes of idle peers |
//! | `quarantine` | connection requests that ended, until no frame of them can be in the network |
//! | `handles` | allocation of VI handles |
//! | `exchange` | allocation of OX_ID, SEQ_ID and SEQ_CNT |
//! | `timer` | the table of deadlines |
//! | [`counters`] | counters of every drop and event, by reason |
#![forbid(unsafe_code)]

mod accept;
mod connect;
mod connection;
mod connection_ids;
mod connection_iu;
mod context;
mod disconnect;
mod endpoint;
mod exchange;
mod handles;
mod liveness;
mod logged_in_ports;
mod n_port;
mod pending_disconnects;
mod quarantine;
mod reassembly;
mod receive;
mod recovery;
mod responses;
mod shortcut;
mod timer;
mod transmit;

pub mod config;
pub mod counters;
pub mod engine;
pub mod engine_io;

#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;

pub use config::{EngineConfig, MAX_UNANSWERED};
pub use connection::{ConnectCommand, RemoteVi, max_message_bytes};
pub use counters::{Counter, Counters};
pub use engine::Engine;
pub use engine_io::{CopyResult, DataFrame, Direct, DirectConnection, EngineIo, Moved, Transmit};
pub use handles::vi_of_handle;
pub use recovery::RecoveryConfig;
