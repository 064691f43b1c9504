//! The rules of the guide as an independent model: small, slow, and easy to compare with the named clauses.
//!
//! [`Tables`] has what is certain after each call: handles, attributes, regions. A [`State`] has what the provider
//! changes concurrently, and what is uncertain until it is observed: descriptors in flight, states of VIs, entries of
//! completion queues. The oracle keeps all possible states.
//!
//! | file | rules |
//! | --- | --- |
//! | `tables` | NIC handles, tags, regions, limits [VIPL 3.1, 3.4] |
//! | `descriptor` | decoding and errors of descriptors [VIPL 5] |
//! | `state` | queues, completions, completion queues [VIPL 3.5, 6.1] |
//! | `transfer` | messages, breaks, disconnects [VIPL 2.4, 3.3.5, 3.8.1, 6.2, 6.3] |
//! | `send_queue` | descriptors in flight, responses, reads [VIPL 2.4, 5.2, 6.1] |
//! | `peers` | peer requests [VIPL 3.3.6 to 3.3.8] |
//! | `notify` | notify handlers [VIPL 3.5.9 to 3.5.12] |
//! | `calls` | results and effects of each call |
//! | `attributes` | changes of attributes and sizes [VIPL 3.6.3, 3.7.2, 3.7.4, 3.7.6] |
//! | `display` | text of states |

mod attributes;
mod calls;
mod descriptor;
mod display;
mod notify;
mod peers;
mod send_queue;
mod state;
mod tables;
mod transfer;

pub(crate) use calls::{DoneResult, Verdict, completion_matches};
pub(crate) use descriptor::{DecodedPost, Posted, decode_post};
pub(crate) use notify::{ExpectedCall, HandlerArgument, NotifyQueue};
pub(crate) use peers::{Peer, PeerOutcome, PeerRequest, Stage};
pub(crate) use state::{AsyncError, Bytes, Completion, Cq, State};
pub(crate) use tables::{CqFacts, Limits, PAGE_BYTES, Region, Request, Tables, ViFacts};
