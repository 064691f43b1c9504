//! Engines joined by a simulated wire, with a model of everything that they call.
//!
//! | module | contents |
//! | --- | --- |
//! | [`nodes`] | the N_Ports of a net, by their roles |
//! | [`io`] | queues, memory and a log of everything that a consumer sees |
//! | [`wire`] | frames in transit: lost, duplicated, corrupted, delayed |
//! | [`topology`] | how the two sides of a connection are joined |
//! | [`net`] | engines, their I/O models and the wire under one injected clock |
//! | [`expected_events`] | the events that tests expect of an endpoint |

pub(crate) use protocol_testkit::{check_table, document, rng};

pub(crate) mod expected_events;
pub(crate) mod io;
pub(crate) mod net;
pub(crate) mod nodes;
pub(crate) mod topology;
pub(crate) mod wire;
