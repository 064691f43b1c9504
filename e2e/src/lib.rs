//! Common parts of the end-to-end tests: network namespaces, child processes, captures checked by tshark.
//!
//! The tests in `tests/` run the installed programs as separate processes, on shared memory and on a wire between two
//! network namespaces. They link nothing of the stack. Their own programs are processes, too: `vi-peer` counts
//! messages, losses and events under faults and kills; `vi-hostile` sends malformed, forged and replayed frames;
//! `vi-stress` is started by `ci/stress`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`wire`] | two network namespaces with a veth pair between them |
//! | [`segment`] | a bridge in a network namespace, with taps |
//! | [`hosts`] | hosts on such a wire or segment that find each other by discovery |
//! | [`linux_peer`] | a Linux kernel as a Fibre Channel port on such a segment |
//! | [`own_port`] | a Viaduct port that reports its neighbours |
//! | [`datapath`] | a datapath process |
//! | [`confined`] | a seccomp filter for the poll threads of a datapath process |
//! | [`latencies`] | times from an event to its report |
//! | [`resource_usage`] | resources of a datapath process and of its applications |
//! | [`metrics`] | the Prometheus endpoint of a datapath process |
//! | [`certificates`] | a certificate authority, and certificates of hosts |
//! | [`process`] | child processes that are killed with their test, and their output |
//! | [`capture`] | all frames at an interface, dissected by tshark |
//! | [`port_frames`] | the frames of discovery and login in such a capture |
//! | [`ports`] | all ports for physical links, and the network that each needs |
//! | [`echo`], [`conformance_suite`], [`faults`] | workloads for each port: the C examples, the conformance suite, many messages one way, also with injected faults |
//! | [`failure`] | errors that end a program of the tests |
//! | [`huge_pages`] | temporary reservations of huge pages |
//! | [`installation`] | libvipl installed below a prefix, and the C examples built against it |
//! | [`nics`] | configuration files of NICs |
//! | [`scratch`] | temporary directories |
//! | [`interop`] | the independent Python implementation of VI/TCP, with its malformed messages |
//! | [`sync`] | atomics for the programs of this crate |
//! | [`testpmd`] | `dpdk-testpmd`, which forwards or generates frames |
//! | [`procfs`] | descriptors, threads and memory of a process |
//! | [`vi_peer`] | the program `vi-peer` as echo server and client |
//! | [`report`] | the counters that it prints |
//!
//! Namespaces need root; without it, `ci/test` starts the tests as root of a user namespace.

#![forbid(unsafe_code)]

pub mod capture;
pub mod certificates;
pub mod confined;
pub mod conformance_suite;
pub mod datapath;
pub mod echo;
pub mod failure;
pub mod faults;
pub mod first_request;
pub mod hosts;
pub mod huge_pages;
pub mod installation;
pub mod interop;
pub mod latencies;
pub mod linux_peer;
pub mod metrics;
pub mod nics;
pub mod own_port;
pub mod port_frames;
pub mod ports;
pub mod preload;
pub mod process;
pub mod procfs;
pub mod report;
pub mod resource_usage;
pub mod scratch;
pub mod segment;
pub mod sync;
pub mod testpmd;
pub mod vi_peer;
pub mod wire;
