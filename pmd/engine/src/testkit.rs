//! Engines joined by a simulated wire, with a model of everything that they call.
//!
//! | module | contents |
//! | --- | --- |
//! | [`nodes`] | the N_Ports of a net, by their roles |
//! | [`rng`] | random numbers from a seed |
//! | [`io`] | queues, memory and a log of everything that a consumer sees |
//! | [`wire`] | frames in transit: lost, duplicated, corrupted, delayed |
//! | [`topology`] | how the two sides of a connection are joined |
//! | [`disabled_checks`] | checks disabled, to show what they are for |
//! | [`document`] | tables in `docs/spec`, written and compared |
//! | [`net`] | engines, their I/O models and the wire under one injected clock |

pub(crate) mod disabled_checks;
pub(crate) mod document;
pub(crate) mod io;
pub(crate) mod net;
pub(crate) mod nodes;
pub(crate) mod rng;
pub(crate) mod topology;
pub(crate) mod wire;
