//! Stale frames: a network that keeps every frame for R_A_TOV and delivers it again when that does most harm, and the
//! checks of received frames [FCVI P-10].
//!
//! | module | contents |
//! | --- | --- |
//! | [`network`] | the network, which finds older frames similar to the expected one |
//! | [`contents`] | message contents that identify their message |
//! | [`model`] | connections over the network, with checks of every placed byte |
//! | [`scenarios`] | scenarios run in the model |
//! | [`rejected`] | no stale frame is accepted |
//! | [`requests`] | connections made and ended: late requests, responses and disconnects |
//! | [`probes`] | a late probe response does not make a lost port appear present |
//! | [`table`] | writes docs/spec/synonym-checks.md |

mod contents;
mod model;
mod network;
mod probes;
mod rejected;
mod requests;
mod scenarios;
mod setup;
mod table;
