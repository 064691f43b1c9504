//! What the end-to-end tests share: namespaces, processes, and a judge of the frames between them.
//!
//! The tests in `tests/` run the programs that users run, as processes of their own, on shared memory
//! and on a wire between two network namespaces. Nothing of the stack is linked into them; `vi-peer`, the
//! program that counts what happens under faults and deaths, is a process like the others. So are `vi-hostile`, which
//! sends what no port should, and `vi-stress`, which `ci/stress` starts.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`wire`] | two network namespaces and a veth pair between them |
//! | [`segment`] | a bridge in a network namespace, and its taps |
//! | [`hosts`] | hosts on such a wire or segment that know nothing of each other |
//! | [`linux_peer`] | a Linux kernel as a Fibre Channel port on such a segment |
//! | [`own_port`] | a port of ours, which tells what it sees |
//! | [`datapath`] | a datapath process |
//! | [`confined`] | one whose poll threads may make the listed system calls only |
//! | [`delays`] | how long news took |
//! | [`holdings`] | what a datapath process has, of the system and of its applications |
//! | [`metrics`] | what a datapath process tells a Prometheus server |
//! | [`certificates`] | an authority, and certificates of hosts |
//! | [`process`] | a program that cannot outlive its test, and what it says |
//! | [`capture`] | every frame at one end of a wire, as tshark sees it |
//! | [`port_frames`] | the frames of discovery and login in such a capture |
//! | [`ports`] | every port of a wire, and what the wire of each is like |
//! | [`bulk`], [`echo`], [`suite`], [`faults`] | what is run over each: many messages one way, the C examples, the conformance suite, faults on purpose |
//! | [`huge_pages`] | huge pages for a while |
//! | [`installation`] | libvipl installed below a prefix, and the C examples built against it |
//! | [`nics`] | configuration files |
//! | [`scratch`] | directories that go with their test |
//! | [`strangers`] | the second implementation of VI/TCP, which tells lies, too |
//! | [`sync`] | atomics for the programs here |
//! | [`testpmd`] | a program of DPDK's that forwards frames or makes them |
//! | [`usage`] | what a process has of the system |
//! | [`report`] | what `vi-peer` tells at its end |
//!
//! Namespaces need root; `ci/test` starts the tests as the root of a user namespace when it is not run as root.

#![forbid(unsafe_code)]

pub mod bulk;
pub mod capture;
pub mod certificates;
pub mod confined;
pub mod datapath;
pub mod delays;
pub mod echo;
pub mod faults;
pub mod first_request;
pub mod holdings;
pub mod hosts;
pub mod huge_pages;
pub mod installation;
pub mod linux_peer;
pub mod metrics;
pub mod nics;
pub mod own_port;
pub mod port_frames;
pub mod ports;
pub mod preload;
pub mod process;
pub mod report;
pub mod scratch;
pub mod segment;
pub mod strangers;
pub mod suite;
pub mod sync;
pub mod testpmd;
pub mod usage;
pub mod wire;
