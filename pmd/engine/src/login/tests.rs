//! The login machine's promises, one room for each kind.

mod abort;
mod farp;
mod frames;
mod hostile;
mod late;
mod linux;
mod logins;
mod net;
mod query;
mod requests;
mod simulation;
mod states;
