//! What the provider's protocols share: registered memory, descriptors, work and completion queues, the
//! objects of a NIC, and the means by which threads exclude and wake each other.
//!
//! No protocol, port or configuration is named here. A NIC is [`NicShared`](nic_shared::NicShared); what
//! happens with a posted descriptor is up to the crate that takes it off its work queue.
//!
//! | module | contents |
//! | --- | --- |
//! | [`nic_shared`] | the part of a NIC that its queues and its backend use |
//! | [`vi`] | VIs and completion queues |
//! | [`handle`], [`object_table`] | handles of objects, and tables of the objects |
//! | [`memory`] | registered regions, protection, copies, also for served applications; shared memory |
//! | [`descriptor`] | the layout of descriptors in application memory |
//! | [`posted_descriptor`] | validated copies of descriptors, and iteration over their data segments |
//! | [`queue`], [`cq`] | work queues and completion queues |
//! | [`post`], [`completion`], [`reap`] | a descriptor's way: posted, completed, reaped |
//! | [`events`], [`error_backlog`] | queue of asynchronous errors for the consumer; its limits |
//! | [`notify_slot`], [`handler_thread`] | notify requests, and threads that call handlers |
//! | [`doorbell`], [`waiters`] | VIs with posted work, and threads that sleep until an event |
//! | [`control_socket`] | messages with file descriptors between programs of a host |
//! | [`biased_lock`], [`sync`], [`sys`] | locks, atomics, system calls |
//! | [`fork`], [`main_thread`] | fork(2) and the end of the main thread in a program with an open NIC |
//! | [`log_limiter`] | rate limiter for log lines that peers can cause |
//! | [`reserve`] | memory reserve for when the system is out of memory |

pub mod biased_lock;
pub mod completion;
pub mod control_socket;
pub mod cq;
pub mod descriptor;
pub mod doorbell;
pub mod error_backlog;
pub mod events;
pub mod fork;
pub mod handle;
pub mod handler_thread;
pub mod log_limiter;
pub mod main_thread;
pub mod memory;
pub mod nic_shared;
pub mod notify_slot;
pub mod object_table;
pub mod post;
pub mod posted_descriptor;
pub mod queue;
pub mod reap;
pub mod reserve;
pub mod sync;
pub mod sys;
pub mod vi;
pub mod waiters;
