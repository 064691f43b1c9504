//! NICs of datapath processes, alone and beside NICs of this process.

#[path = "../common/mod.rs"]
mod common;

mod attached_bounce_buffers;
mod attached_quota;
mod cq_entries;
mod handle_guesses;
mod inline_data;
mod peer_user;
