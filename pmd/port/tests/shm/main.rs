//! The `shm` driver through its public interface: many ports, many processes, crashes and damage.

mod conformance;
mod damage;
mod join;
mod killed_processes;
mod memory;
mod port;
mod processes;
mod support;
mod wake;
