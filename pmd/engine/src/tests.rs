//! The engine's promises, one room for each kind.

mod answer_checks;
mod bounds;
mod connect;
mod connect_faults;
mod connect_ports;
mod data;
mod dead;
mod disconnect;
mod errors;
mod liveness;
mod logins;
mod peer;
mod peer_crossed;
mod peer_pool;
mod peer_simulation;
mod port_lost;
mod reads;
mod receive_checks;
mod reception;
mod recovery;
mod recovery_stream;
mod simulation;
mod stale;
mod states;
mod vn2vn;
mod vn_port;
