//! Applications attached to a datapath process.
//!
//! ```text
//!  application                                        process
//!    post -> work queue -+                         +-> work queue -> engine -> port
//!            attachment  +--- submission ring ---->+
//!    reap <- work queue <--- completion ring <-----+-- complete
//!    control call ---------- socket --------------->   the same call, and its reply
//! ```
//! The library keeps work queues, completion queues, handlers and waiters as it does when the engine is in its own
//! process. Posted descriptors are also submitted; the process reports each completion, and the library writes it into
//! the program's descriptor. Control calls are messages: each is carried out after everything submitted before it, and
//! everything that it completes is in the ring before its reply.
//!
//! | module | contents | side |
//! | --- | --- | --- |
//! | `shared_queues` | memory shared with one application: two rings and two sleep flags | both |
//! | `message` | control calls and their replies | both |
//! | `long_reply` | replies in several messages | process |
//! | `attachment` | the data path of an attached NIC | application |
//! | `bounce_buffers` | shared memory in place of memory that the process cannot access | application |
//! | `inline_data` | data of short messages, copied to and from the shared queues | application |
//! | `descriptor_quota` | limit on posted descriptors | application |
//! | `connection_epoch` | number of the current connection of a VI | application |
//! | `calls` | control calls | application |
//! | `control_connections` | control connections to the process | application |
//! | `handshake` | attach handshake | application |
//! | `shared_files` | files of shared memory that the process has mapped | application |
//! | `client` | an application as the poller serves it | process |
//! | `mapped_files` | mapped files of applications, and the applications charged for them | process |
//! | `session` | an application as the control side serves it | process |
//! | `server` | listening, attaching, status, shutdown | process |
//! | `limiters` | limits on pending connections, call rates and log lines | process |
//! | `reservations` | discriminators reserved for users | process |
//! | `client_slots` | limits on attached applications | process |
//! | `cores` | pinned poll threads | process |
//! | `self_attach` | sockets at which this program is the process | both |
//! | `listener_credentials` | which users may listen at a socket that a program attaches to | application, operator |
//! | `status_query` | status query | operator |
//! | `capture` | captured frames of a NIC | operator |

pub(crate) mod accounts;
mod attachment;
mod bounce_buffers;
pub(crate) mod calls;
pub mod capture;
pub(crate) mod client;
mod client_slots;
mod connection_epoch;
pub(crate) mod control_connections;
mod cores;
pub(crate) mod descriptor_quota;
pub(crate) mod handshake;
mod inline_data;
mod limiters;
mod listener_credentials;
mod long_reply;
mod mapped_files;
pub(crate) mod message;
mod releases;
mod reservations;
mod self_attach;
pub mod server;
mod session;
pub(crate) mod shared_files;
pub(crate) mod shared_queues;
mod status_query;
mod subordinate_users;
mod user_log_limiter;

pub(crate) use attachment::Attachment;
pub use status_query::query_status;
