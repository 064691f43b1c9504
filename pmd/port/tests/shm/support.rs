//! Segments for tests, verifiable frames, and child processes of the test binary.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pmd_port::shm::{ShmConfig, ShmPort};
use pmd_port::{BURST, MacBytes, Mbuf, MbufBatch, Neighbour, Port, PortEvent};

/// Environment variable with the role of a child process.
const ROLE: &str = "VIADUCT_TEST_SHM_ROLE";
/// Environment variable with the segment of a child process.
const SEGMENT: &str = "VIADUCT_TEST_SHM_SEGMENT";

/// Longer than any machine needs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Creates a configuration for a segment that no other test uses.
pub(crate) fn fresh(name: &str) -> ShmConfig {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the values need to differ.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    ShmConfig::new(format!("test-{name}-{}-{count}", std::process::id()))
}

pub(crate) fn open(config: &ShmConfig) -> ShmPort {
    ShmPort::open(config.clone()).expect("the segment can be joined")
}

/// Lists the files in the segment's directory; none if there is no directory.
pub(crate) fn files(config: &ShmConfig) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(config.segment_directory()) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.into_string().expect("a plain name"))
        .collect();
    names.sort();
    names
}

pub(crate) fn assert_gone(config: &ShmConfig) {
    let directory: PathBuf = config.segment_directory();
    assert!(!directory.exists(), "left behind: {:?}", files(config));
}

pub(crate) fn counter(port: &dyn Port, name: &str) -> u64 {
    let counters = port.stats().counters;
    let found = counters.iter().find(|counter| counter.name == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).value
}

/// Returns the role of this process if it is a child that a test started.
pub(crate) fn role() -> Option<(String, ShmConfig)> {
    let role = std::env::var(ROLE).ok()?;
    let segment = std::env::var(SEGMENT).expect("a child has a segment");
    Some((role, ShmConfig::new(segment)))
}

/// A child process that is killed if the test fails before waiting for it.
pub(crate) struct Process(Child);

impl Process {
    /// Runs the test `test` of this binary in a new process, in the given role.
    pub(crate) fn start(test: &str, role: &str, config: &ShmConfig) -> Self {
        let program = std::env::current_exe().expect("the test binary");
        let child = Command::new(program)
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(SEGMENT, &config.segment)
            .stdout(Stdio::null())
            .spawn()
            .expect("the test binary starts");
        Self(child)
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        self.0.wait().expect("a child to wait for")
    }

    pub(crate) fn assert_success(self) {
        let status = self.wait();
        assert!(status.success(), "a child failed: {status}");
    }

    /// Kills the child by SIGKILL, and waits until the kernel has cleaned up.
    pub(crate) fn kill(mut self) {
        self.0.kill().expect("a running child");
        let status = self.0.wait().expect("a child to wait for");
        assert!(status.code().is_none(), "it ended before: {status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail for a child that was already waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A polling loop that fails after [`TIMEOUT`].
pub(crate) struct Deadline {
    what: &'static str,
    end: Instant,
}

impl Deadline {
    /// Starts waiting for `what`.
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            end: Instant::now() + TIMEOUT,
        }
    }

    /// Fails if the timeout has expired; otherwise yields to other threads.
    pub(crate) fn check(&self) {
        assert!(
            Instant::now() < self.end,
            "timed out waiting for {}",
            self.what
        );
        std::thread::yield_now();
    }
}

/// The present and departed stations, from the events of a port.
#[derive(Default)]
pub(crate) struct Neighbours {
    pub(crate) present: Vec<Neighbour>,
    pub(crate) left: Vec<Neighbour>,
}

impl Neighbours {
    /// Applies the pending events, and checks that they are consistent.
    pub(crate) fn update(&mut self, port: &mut dyn Port) {
        let mut events = Vec::new();
        let any = port.events(&mut events);
        assert_eq!(any, !events.is_empty());
        for event in events {
            match event {
                PortEvent::Joined(neighbour) => {
                    assert!(!self.present.contains(&neighbour), "joined twice");
                    self.present.push(neighbour);
                }
                PortEvent::Left(neighbour) => {
                    let at = self.present.iter().position(|other| *other == neighbour);
                    self.present.remove(at.expect("a present station left"));
                    self.left.push(neighbour);
                }
                PortEvent::MtuChanged(_) => panic!("a segment has no MTU"),
                PortEvent::RingFailed(failure) => panic!("no ring: {failure:?}"),
                PortEvent::Unreachable(mac) => panic!("{mac:?} cannot be reached"),
                PortEvent::Failed(failure) => panic!("the port failed: {failure}"),
            }
        }
    }

    /// Polls until this number of stations is present.
    pub(crate) fn wait_for(&mut self, port: &mut dyn Port, count: usize) {
        let deadline = Deadline::new("stations to join or leave");
        self.update(port);
        while self.present.len() != count {
            deadline.check();
            port.upkeep();
            self.update(port);
        }
    }
}

/// Length of a test frame's header: two addresses, serial number, checksum.
const HEAD_BYTES: usize = 6 + 6 + 8 + 4;
pub(crate) const FRAME_BYTES_MIN: usize = HEAD_BYTES + 1;

fn pattern(serial: u64, at: usize) -> u8 {
    (serial as u8).wrapping_mul(31).wrapping_add(at as u8)
}

fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(17, |sum: u32, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(*byte))
    })
}

/// Writes a frame with a serial number, a pattern and a checksum.
pub(crate) fn write_frame(
    mbuf: &mut Mbuf,
    dst: MacBytes,
    src: MacBytes,
    serial: u64,
    len_bytes: usize,
) {
    let buffer = &mut mbuf.buffer_mut()[..len_bytes];
    buffer[..6].copy_from_slice(&dst);
    buffer[6..12].copy_from_slice(&src);
    buffer[12..20].copy_from_slice(&serial.to_be_bytes());
    for (at, byte) in buffer[HEAD_BYTES..].iter_mut().enumerate() {
        *byte = pattern(serial, at);
    }
    let sum = checksum(&buffer[HEAD_BYTES..]);
    buffer[20..24].copy_from_slice(&sum.to_be_bytes());
    mbuf.set_len(len_bytes);
}

/// Verifies a frame; returns its sender and serial number.
pub(crate) fn read_frame(frame: &[u8], dst: MacBytes) -> (MacBytes, u64) {
    assert!(frame.len() >= FRAME_BYTES_MIN, "a frame of {}", frame.len());
    assert_eq!(frame[..6], dst, "delivered to the wrong station");
    let src: MacBytes = frame[6..12].try_into().expect("six bytes");
    let serial = u64::from_be_bytes(frame[12..20].try_into().expect("eight bytes"));
    let sum = u32::from_be_bytes(frame[20..24].try_into().expect("four bytes"));
    assert_eq!(sum, checksum(&frame[HEAD_BYTES..]), "a damaged frame");
    (src, serial)
}

/// Returns a frame length that varies with the serial number.
pub(crate) fn length_of(serial: u64) -> usize {
    FRAME_BYTES_MIN + (serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as usize
}

/// Sends one frame if a buffer is free.
pub(crate) fn try_send(port: &mut dyn Port, dst: MacBytes, serial: u64) -> bool {
    let src = port.capabilities().mac;
    let Some(mut mbuf) = port.alloc(dst) else {
        return false;
    };
    write_frame(&mut mbuf, dst, src, serial, length_of(serial));
    let mut batch = MbufBatch::new();
    batch.push(mbuf).expect("an empty batch");
    assert_eq!(port.tx_burst(&mut batch), 1);
    true
}

/// Sends one frame, waiting for a free buffer.
pub(crate) fn send(port: &mut dyn Port, dst: MacBytes, serial: u64) {
    let deadline = Deadline::new("a free buffer");
    while !try_send(port, dst, serial) {
        deadline.check();
    }
}

/// Receives one burst; returns senders and serial numbers.
pub(crate) fn receive(port: &mut dyn Port) -> Vec<(MacBytes, u64)> {
    let own = port.capabilities().mac;
    let mut batch = MbufBatch::new();
    port.rx_burst(&mut batch, BURST);
    let mut frames = Vec::new();
    while let Some(mbuf) = batch.pop() {
        frames.push(read_frame(mbuf.bytes(), own));
        port.free(mbuf);
    }
    frames
}

/// Receives until at least `count` frames have arrived.
pub(crate) fn receive_at_least(port: &mut dyn Port, count: usize) -> Vec<(MacBytes, u64)> {
    let deadline = Deadline::new("frames to arrive");
    let mut frames = receive(port);
    while frames.len() < count {
        deadline.check();
        frames.extend(receive(port));
    }
    frames
}

/// A small pseudo-random number generator; tests print its seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        eprintln!("seed {seed:#x}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
