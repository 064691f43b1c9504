//! Tests of the login machine, one module per subject.

mod abort;
mod farp;
mod forged;
mod frames;
mod hostile;
mod late;
mod linux;
mod logins;
mod net;
mod query;
mod requests;
mod simulation;
mod stale;
mod states;
