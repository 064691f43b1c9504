//! The `dpdk` driver over DPDK's virtual devices, and over interfaces in network namespaces.
//!
//! EAL is initialised once per process: all tests here share it, without huge pages. Root is needed for the interfaces.
#![cfg(feature = "dpdk")]

mod driver;
#[path = "../common/frames.rs"]
mod frames;
mod kills;
mod memif;
#[path = "../common/netns.rs"]
mod netns;
mod tap;
mod victim_process;

use std::net::UdpSocket;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use frames::*;
use netns::{Namespace, Wire, command, keep_capabilities_of_this_thread};
use pmd_port::dpdk::{DpdkConfig, DpdkPort, EalConfig};
use pmd_port::{MacBytes, MbufBatch, Port, PortEvent, PortFailure, conformance};

/// Some tests close ports whose buffers are still lent, which leaks their memory: about 90 MB each.
const MEMORY_MB: u32 = 2048;

fn config(device: &str, mac: MacBytes) -> DpdkConfig {
    DpdkConfig {
        eal: EalConfig {
            memory_mb: MEMORY_MB,
            ..EalConfig::default()
        },
        tx_frames: 512,
        ..DpdkConfig::new(device, mac)
    }
}

fn open(config: DpdkConfig) -> DpdkPort {
    DpdkPort::open(config).unwrap_or_else(|error| panic!("{error}"))
}

/// Waits until both ports have a link and exchange frames.
fn wait_for_link(mut left: DpdkPort, mut right: DpdkPort) -> (DpdkPort, DpdkPort) {
    // A memif client has buffers for frames after its first receive call.
    receive_some(&mut left);
    wait_for("the link", || {
        right.upkeep();
        receive_some(&mut right);
        right.link_up().then_some(())
    });
    wait_until_connected(&mut left, &mut right);
    (left, right)
}

fn conformance_of(name: &str, mut make: impl FnMut() -> (DpdkPort, DpdkPort)) {
    conformance::run_all(name, &mut || {
        let (left, right) = make();
        (Box::new(left), Box::new(right))
    });
}

#[test]
fn conforms_over_a_pair_of_rings() {
    conformance_of("dpdk, rings", || {
        let left = open(config("ring:conformance", LEFT));
        let right = open(config("ring:conformance", RIGHT));
        wait_for_link(left, right)
    });
}

/// Runs the suite with a wire for each pair, both interfaces in one namespace: net_af_xdp keeps its socket open when it
/// closes, and identifies its interface by number.
fn over_wires(name: &str, mtu_bytes: u32, driver: &str, keys: &str) {
    let namespace = Namespace::new();
    let mut count = 0;
    let mut wire = || {
        count += 1;
        let ends = [format!("left{count}"), format!("right{count}")];
        namespace.ip(&format!(
            "link add {} type veth peer name {}",
            ends[0], ends[1]
        ));
        for end in &ends {
            namespace.ip(&format!("link set {end} mtu {mtu_bytes} up"));
        }
        ends
    };
    let device = |number: u32, interface: &str| format!("{driver}{number},iface={interface}{keys}");
    namespace.run(|| {
        conformance_of(name, || {
            let [left, right] = wire();
            let left = open(config(&device(0, &left), LEFT));
            wait_for_link(left, open(config(&device(1, &right), RIGHT)))
        });
    });
}

#[test]
fn conforms_over_af_packet() {
    let keys = ",framesz=2560,blocksz=20480,framecnt=2048";
    over_wires("dpdk, af_packet", 2500, "net_af_packet1", keys);
}

#[test]
fn conforms_over_af_packet_with_short_slots() {
    let keys = ",framecnt=2048";
    over_wires("dpdk, af_packet, short", 2500, "net_af_packet2", keys);
}

#[test]
fn conforms_over_af_xdp() {
    over_wires("dpdk, af_xdp", 1500, "net_af_xdp", "");
}

/// Interval of the frames of other protocols that both taps receive.
const OTHER_FRAMES: Duration = Duration::from_millis(20);

/// With frames of other protocols, as on any network. net_tap reads a tap only after a signal, which its handler counts
/// without an atomic operation: if two threads of the program handle signals at the same time, a frame may stay in the
/// tap until the next one arrives.
#[test]
fn conforms_over_tap() {
    let namespace = Namespace::new();
    namespace.ip("link add bridge type bridge forward_delay 0");
    namespace.ip("link set bridge up mtu 2500");
    namespace.ip("address add 192.0.2.1/24 dev bridge");
    let socket = namespace.run(|| UdpSocket::bind("192.0.2.1:0").expect("a socket"));
    socket.set_broadcast(true).expect("a UDP socket");
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Dropped at the end, also by a failure.
        let _end = end;
        scope.spawn(move || {
            while ended.recv_timeout(OTHER_FRAMES) == Err(RecvTimeoutError::Timeout) {
                socket
                    .send_to(b"", "192.0.2.255:9")
                    .expect("a broadcast address");
            }
        });
        conformance_of("dpdk, tap", || {
            let tap = |number: u32, name: &str, mac| {
                let device = format!("net_tap{number},iface={name}");
                let port = namespace.run(|| open(config(&device, mac)));
                // As many frames as a port's ring, since frames to other stations are queued in it, too.
                namespace.ip(&format!("link set {name} master bridge txqueuelen 4096"));
                port
            };
            let left = tap(0, "tapleft", LEFT);
            let right = tap(1, "tapright", RIGHT);
            wait_for_link(left, right)
        });
    });
}
