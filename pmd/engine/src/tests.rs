//! The engine's promises, one room for each kind.

mod bounds;
mod connect;
mod connect_faults;
mod connect_ports;
mod data;
mod disconnect;
mod errors;
mod liveness;
mod reads;
mod receive_checks;
mod reception;
mod refused_answers;
mod simulation;
mod states;
