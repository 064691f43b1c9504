//! Engines joined by a simulated wire, with a model of everything they ask for.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`nodes`] | the N_Ports of a net, by their roles |
//! | [`rng`] | numbers from a seed |
//! | [`host`] | queues, memory and a log of everything a consumer would see |
//! | [`wire`] | frames on their way: lost, doubled, damaged, late |
//! | [`way`] | how the two ends of a connection are joined |
//! | [`without`] | checks left out, to show what they are for |
//! | [`document`] | tables in `docs/spec`, written and compared |
//! | [`net`] | engines, hosts and wire under one injected clock |

pub(crate) mod document;
pub(crate) mod host;
pub(crate) mod net;
pub(crate) mod nodes;
pub(crate) mod rng;
pub(crate) mod way;
pub(crate) mod wire;
pub(crate) mod without;
