//! Stale frames: a network that keeps every frame for R_A_TOV and delivers it again when that does most harm, and the
//! necessity of each check of received frames [FCVI P-10].
//!
//! | module | contents |
//! | --- | --- |
//! | [`network`] | the network, which finds older frames similar to the expected one |
//! | [`contents`] | message contents that identify their message |
//! | [`model`] | connections over the network, with checks of every placed byte |
//! | [`scenarios`] | scenarios run in the model |
//! | [`check_necessity`] | no stale frame is accepted; without each check one is |
//! | [`requests`] | connections made and ended: late requests, responses and disconnects |
//! | [`probes`] | a late probe response does not make a lost port appear present |
//! | [`table`] | writes docs/spec/synonym-checks.md |

mod check_necessity;
mod contents;
mod model;
mod network;
mod probes;
mod requests;
mod scenarios;
mod table;
