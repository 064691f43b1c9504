//! The `shm` driver from outside: many ports, many processes, deaths and damage.

mod conformance;
mod damage;
mod deaths;
mod join;
mod memory;
mod port;
mod processes;
mod support;
mod wake;
