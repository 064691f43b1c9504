//! Stale frames: a network that keeps every frame for R_A_TOV and lets it arrive again when that
//! does most harm, and what each check of received frames is for [FCVI P-10].
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`network`] | the network, which looks for what resembles the frame that is expected |
//! | [`contents`] | bytes that name the message that they are of |
//! | [`model`] | connections, messages that name themselves, and a judge of every byte that is placed |
//! | [`scenes`] | what is played in the model |
//! | [`needed`] | no stale frame is taken; without each check one is |
//! | [`requests`] | connections made and ended: requests, responses and disconnects that are late |
//! | [`probes`] | a port that went does not seem to be there because an old answer comes |
//! | [`logins`] | logins: no late FLOGI, PLOGI, LOGO or answer to one is believed |
//! | [`table`] | docs/spec/synonym-checks.md |

mod contents;
mod logins;
mod model;
mod needed;
mod network;
mod probes;
mod requests;
mod scenes;
mod table;
