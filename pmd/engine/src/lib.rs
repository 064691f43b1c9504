//! The VI provider's protocol core: FC-VI endpoints over one N_Port, sans-IO.
//!
//! The engine owns all protocol state of one port and touches neither memory of
//! the application nor a socket, a clock or a thread: frames come in as bytes,
//! time and randomness are arguments, and everything it wants done goes to a
//! [`Host`].
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`host`] | [`Host`]: what the engine asks of queues, memory and port |
//! | [`config`] | [`EngineConfig`]: identity, timers, limits |
//! | [`engine`] | [`Engine`]: the tables, and the verbs that the poll loop calls |
//! | `endpoint` | one VI: its state, its two message streams |
//! | `transmit` | descriptors cut into frames; what is in flight, until it is answered |
//! | `receive` | frames checked, matched to endpoints, and put together |
//! | `recovery` | what is lost is sent again, on networks that lose frames |
//! | `answer` | what a peer is owed: responses of Reliable Reception, the data of its reads |
//! | `shortcut` | messages between two VIs of this engine, moved without frames |
//! | `connect`, `accept` | a connection made: the client's half, the server's half |
//! | `disconnect`, `closing` | a connection ended; the other end told until it answers |
//! | `connection_iu` | the frames of these procedures |
//! | `port_lost` | the port itself failed |
//! | `logins` | who may connect where ports find each other; another address for ourselves |
//! | `liveness` | are the N_Ports of our connections still there |
//! | `synonym` | the checks that tell stale frames, by name |
//! | `dead` | requests that are over, until no frame with them can be on its way |
//! | [`misses`] | how fast a peer can guess memory handles |
//! | `handles` | handles, none of which comes again before that |
//! | `exchange` | OX_ID, SEQ_ID and SEQ_CNT, and when they may be used again |
//! | `timer` | one table of deadlines |
//! | [`login`] | [`LoginMachine`](login::LoginMachine): logins with the neighbours, FARP; knows nothing of [`Engine`] |
//! | [`counters`] | every drop and every event, with its reason |
//! | [`vn_port`] | [`VnPort`](vn_port::VnPort): discovery and logins together |
//! | [`vn2vn`] | [`Vn2vn`]: FIP VN2VN, a machine of its own: our N_Port_ID, and the neighbours |
#![forbid(unsafe_code)]

mod accept;
mod answer;
mod closing;
mod connect;
mod connection_iu;
mod dead;
mod disconnect;
mod endpoint;
mod exchange;
mod handles;
mod liveness;
mod logins;
mod port_lost;
mod receive;
mod recovery;
mod shortcut;
mod synonym;
mod timer;
mod transmit;

pub mod config;
pub mod counters;
pub mod engine;
pub mod host;
pub mod login;
pub mod misses;
pub mod vn2vn;
pub mod vn_port;

#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;

pub use accept::{ConnId, Indication};
pub use config::{EngineConfig, MAX_UNANSWERED};
pub use connect::{ConnectCommand, ConnectError, RemoteVi};
pub use counters::{Counter, Counters};
pub use endpoint::{EndpointState, Level, ViParams};
pub use engine::{Engine, ViIndex};
pub use host::{
    AsyncError, Claim, Completion, Host, Moved, Operation, SendWork, Status, Transmit, Waiter,
};
pub use misses::MissLimits;
pub use recovery::RecoveryConfig;
pub use transmit::{Pumped, most_message_bytes};
pub use vn2vn::{Vn2vn, Vn2vnConfig, Vn2vnEvent};
