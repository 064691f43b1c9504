//! Discovery and N_Port_IDs over a simulated link.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`segment`] | stations on a link that loses, doubles, delays and limits frames |
//! | [`rules`] | one test for each rule of VN2VN |
//! | [`neighbours`] | the table: paths, age, conflicts, limits |
//! | [`hostile`] | frames that are wrong, forged, or too many |
//! | [`linux`] | frames of a Linux kernel |
//! | [`states`] | every event in every state |
//! | [`simulation`] | many stations on bad links, and what must hold in the end |

mod hostile;
mod linux;
mod neighbours;
mod rules;
mod segment;
mod simulation;
mod states;
