//! Memory of closed ports.

use super::child_process::{TestProcess, task};
use super::*;

const NAME: &str = "memory::closed_port_frees_its_memory";

/// Returns the number of bytes that this process has mapped.
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
    assert_eq!(counter(&left, "tx_self"), 3, "not received by any call");
}

#[test]
fn closed_port_frees_its_memory() {
    const PORT_BYTES: usize = 8 << 20;
    const PORTS: usize = 10;
    if task().is_none() {
        let wire = Wire::new(1500);
        // In a process in which no other test maps memory.
        return TestProcess::start(&wire.left, NAME, "open and close").wait_for_success();
    }
    open_and_close(PORT_BYTES);
    let before = mapped_bytes();
    for _ in 0..PORTS {
        open_and_close(PORT_BYTES);
    }
    let left_bytes = mapped_bytes().saturating_sub(before);
    assert!(left_bytes < PORT_BYTES, "{left_bytes} bytes are left");
}
