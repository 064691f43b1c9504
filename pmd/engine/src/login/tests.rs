//! The login machine's promises, one room for each kind.

mod abort;
mod farp;
mod frames;
mod hostile;
mod logins;
mod net;
mod requests;
mod simulation;
mod states;
