//! The engine's promises, one room for each kind.

mod connect;
mod connect_faults;
mod connect_ports;
