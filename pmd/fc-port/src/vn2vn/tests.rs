//! VN2VN discovery and N_Port_ID allocation over a simulated link.
//!
//! | module | contents |
//! | --- | --- |
//! | [`segment`] | stations on a link that loses, duplicates, delays and length-limits frames |
//! | [`rules`] | one test for each rule of VN2VN |
//! | [`neighbours`] | the neighbour table: paths, age, conflicts, limits |
//! | [`hostile`] | invalid, forged and excessive frames |
//! | [`linux`] | frames of a Linux kernel |
//! | [`states`] | every event in every state |
//! | [`simulation`] | many stations on faulty links |

mod hostile;
mod linux;
mod neighbours;
mod rules;
mod segment;
mod simulation;
mod states;
