//! The rules of the guide, as an independent model: small, slow, and easy to read beside the clauses that it names.
//!
//! What a program knows for certain after each call (handles, attributes, regions) is in [`Tables`]. What may be one
//! way or another until it is looked at, because a provider works on while the program does, is in a [`State`]:
//! descriptors under way, states of VIs, entries of completion queues. The oracle keeps all states that there can be.
//!
//! | file | rules |
//! | --- | --- |
//! | `tables` | openings, tags, regions, limits [VIPL 3.1, 3.4] |
//! | `descriptor` | what is wrong with a descriptor [VIPL 5] |
//! | `state` | queues, completions, completion queues [VIPL 3.5, 6.1] |
//! | `transfer` | messages, breaks, disconnects [VIPL 2.4, 3.3.5, 3.8.1, 6.2, 6.3] |
//! | `sending` | descriptors in flight, answers, reads [VIPL 2.4, 5.2, 6.1] |
//! | `peers` | peer requests [VIPL 3.3.6 to 3.3.8] |
//! | `notices` | handlers that are called when something completes [VIPL 3.5.9 to 3.5.12] |
//! | `calls` | what each call returns and changes |
//! | `changes` | attributes and sizes that change [VIPL 3.6.3, 3.7.2, 3.7.4, 3.7.6] |
//! | `show` | states in words |

mod calls;
mod changes;
mod descriptor;
mod notices;
mod peers;
mod sending;
mod show;
mod state;
mod tables;
mod transfer;

pub(crate) use calls::{Seen, Verdict, completed_so};
pub(crate) use descriptor::{Judged, Posted, judge_post};
pub(crate) use notices::{Call, Place, Rung};
pub(crate) use peers::{Met, Peer, PeerRequest, Stage};
pub(crate) use state::{Bytes, Completion, Cq, State, Told};
pub(crate) use tables::{CqFacts, Limits, PAGE_BYTES, Region, Request, Tables, ViFacts};
