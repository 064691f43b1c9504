//! Applications attached to a datapath process.
//!
//! ```text
//!  application                                        process
//!    post -> work queue -+                         +-> work queue -> engine -> port
//!            attachment  +--- submission ring ---->+
//!    reap <- work queue <--- completion ring <-----+-- complete
//!    control call ---------- socket --------------->   the same call, answered
//! ```
//! The library keeps work queues, completion queues, handlers and sleepers as it does when the
//! engine is in its own process. What it posts it also submits; what the process completes it
//! writes into the program's descriptors. Control calls are messages; each is carried out after
//! everything submitted before it, and everything it completes is in the ring before its answer.
//!
//! | room | what is in it | whose |
//! | --- | --- | --- |
//! | `arena` | the shared memory of one application: two rings and two wake-ups | both |
//! | `message` | control calls and their answers | both |
//! | `socket` | messages and descriptors over a Unix socket | both |
//! | `attachment` | the turn of an attached NIC | application |
//! | `bounce_buffers` | memory that the process cannot reach | application |
//! | `posting` | how many descriptors it may have posted | application |
//! | `standing` | at which of its connections a VI is | application |
//! | `calls` | its control calls | application |
//! | `link` | the conversations that carry them | application |
//! | `opening` | attaching | application |
//! | `client` | an application as the poller sees it | process |
//! | `mapped_files` | files of applications that are mapped, and which application each is charged to | process |
//! | `offers` | memory that the program has offered, until it is freed | application |
//! | `session` | an application as the control side sees it | process |
//! | `look` | an operator's question | operator |
//! | `server` | who may attach; listening, statistics, ending | process |
//! | `capture` | frames of a NIC for an operator | operator |
//! | `here` | at which sockets this program is the process | both |
//! | `listener` | which users may listen at a socket that a program attaches to | application, operator |
//! | `doors` | how many conversations may wait to begin, and how much is logged of them | process |
//! | `reservations` | which discriminators belong to which user | process |
//! | `places` | how many are attached, and of whom | process |
//! | `cores` | the pinned threads, which poll NICs and sleep when nothing is to be done | process |

pub(crate) mod arena;
pub(crate) mod attachment;
mod bounce_buffers;
pub(crate) mod calls;
pub mod capture;
pub(crate) mod client;
mod cores;
mod doors;
mod here;
pub(crate) mod link;
mod listener;
mod look;
mod mapped_files;
pub(crate) mod message;
pub(crate) mod offers;
pub(crate) mod opening;
mod places;
pub(crate) mod posting;
mod reservations;
pub mod server;
mod session;
pub(crate) mod socket;
mod standing;

pub(crate) use attachment::Attachment;
pub use look::look;
