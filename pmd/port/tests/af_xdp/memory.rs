//! Memory of ports that are gone.

use super::again::{Again, task};
use super::*;

const NAME: &str = "memory::a_port_that_is_gone_leaves_no_memory";

/// How much this process has mapped.
fn mapped_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages = text.split(' ').next().expect("a number").parse::<usize>();
    pages.expect("a number") * 4096
}

fn open_and_close(port_bytes: usize) {
    let config = AfXdpConfig {
        rx_frames: 16,
        tx_frames: (port_bytes / 2048) as u32,
        ..left_config()
    };
    let mut left = AfXdpPort::open(config).unwrap_or_else(|error| panic!("{error}"));
    for _ in 0..3 {
        send(&mut left, &frame(LEFT, LEFT, &[FCOE], 60));
    }
    assert_eq!(counter(&left, "tx_self"), 3, "which nobody takes");
}

#[test]
fn a_port_that_is_gone_leaves_no_memory() {
    const PORT_BYTES: usize = 8 << 20;
    const PORTS: usize = 10;
    if task().is_none() {
        let wire = Wire::new(1500);
        // Where no other test maps anything meanwhile.
        return Again::start(&wire.left, NAME, "open and close").end();
    }
    open_and_close(PORT_BYTES);
    let before = mapped_bytes();
    for _ in 0..PORTS {
        open_and_close(PORT_BYTES);
    }
    let left_bytes = mapped_bytes().saturating_sub(before);
    assert!(left_bytes < PORT_BYTES, "{left_bytes} bytes are left");
}
