//! Frames with verifiable contents, and bounded waiting.

use std::time::{Duration, Instant};

use crate::mbuf::{Mbuf, MbufBatch};
use crate::port::{MacBytes, Port};

/// The shortest frame that Ethernet carries, without FCS.
pub(super) const MIN_FRAME_BYTES: usize = 60;

const ETHERTYPE: [u8; 2] = [0x89, 0x06];
const SERIAL: core::ops::Range<usize> = 14..18;
const LENGTH: core::ops::Range<usize> = 18..22;
const PATTERN_AT: usize = 22;

/// Longer than any working port needs.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Limits the duration of a polling loop.
pub(super) struct Deadline {
    what: &'static str,
    end: Instant,
}

impl Deadline {
    /// Starts waiting for `what`.
    pub(super) fn new(what: &'static str) -> Self {
        Self {
            what,
            end: Instant::now() + TIMEOUT,
        }
    }

    /// Returns true if the timeout has expired.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Fails if the timeout has expired; otherwise yields to other threads.
    pub(super) fn check(&self) {
        assert!(
            !self.is_over(),
            "timed out after {TIMEOUT:?} waiting for {}",
            self.what
        );
        std::thread::yield_now();
    }
}

fn pattern(serial: u32, at: usize) -> u8 {
    let mixed = serial
        .wrapping_mul(0x9E37_79B9)
        .wrapping_add(at as u32 * 0x85EB);
    (mixed >> 16) as u8
}

/// Writes the frame with this serial number.
pub(super) fn write_frame(
    mbuf: &mut Mbuf,
    dst: MacBytes,
    src: MacBytes,
    serial: u32,
    len_bytes: usize,
) {
    assert!(len_bytes >= MIN_FRAME_BYTES && len_bytes <= mbuf.capacity());
    let frame = &mut mbuf.buffer_mut()[..len_bytes];
    frame[..6].copy_from_slice(&dst);
    frame[6..12].copy_from_slice(&src);
    frame[12..14].copy_from_slice(&ETHERTYPE);
    frame[SERIAL].copy_from_slice(&serial.to_be_bytes());
    frame[LENGTH].copy_from_slice(&(len_bytes as u32).to_be_bytes());
    for (at, byte) in frame.iter_mut().enumerate().skip(PATTERN_AT) {
        *byte = pattern(serial, at);
    }
    mbuf.set_len(len_bytes);
}

fn word(frame: &[u8], range: core::ops::Range<usize>) -> u32 {
    u32::from_be_bytes(frame[range].try_into().expect("a range of four bytes"))
}

/// Verifies every byte of a frame; returns its serial number.
pub(super) fn serial_of(frame: &[u8], dst: MacBytes, src: MacBytes) -> u32 {
    assert!(frame.len() >= MIN_FRAME_BYTES, "{} bytes", frame.len());
    assert_eq!(frame[..6], dst, "destination");
    assert_eq!(frame[6..12], src, "source");
    assert_eq!(frame[12..14], ETHERTYPE, "EtherType");
    let serial = word(frame, SERIAL);
    assert_eq!(
        word(frame, LENGTH) as usize,
        frame.len(),
        "length of frame {serial}"
    );
    for (at, &byte) in frame.iter().enumerate().skip(PATTERN_AT) {
        assert_eq!(byte, pattern(serial, at), "byte {at} of frame {serial}");
    }
    serial
}

/// Allocates a buffer towards `dst`, waiting until one is free.
pub(super) fn alloc_for(port: &mut dyn Port, dst: MacBytes) -> Mbuf {
    let deadline = Deadline::new("a free buffer");
    loop {
        if let Some(mbuf) = port.alloc(dst) {
            return mbuf;
        }
        deadline.check();
    }
}

/// Sends the whole batch.
pub(super) fn flush(port: &mut dyn Port, batch: &mut MbufBatch) {
    let deadline = Deadline::new("the port to take a batch");
    while !batch.is_empty() {
        if port.tx_burst(batch) == 0 {
            deadline.check();
        }
    }
}

/// Sends one frame per serial number, all of one length, in bursts as large as possible.
pub(super) fn send(
    port: &mut dyn Port,
    dst: MacBytes,
    serials: core::ops::Range<u32>,
    len_bytes: usize,
) {
    let src = port.capabilities().mac;
    let mut batch = MbufBatch::new();
    for serial in serials {
        let mut mbuf = alloc_for(port, dst);
        write_frame(&mut mbuf, dst, src, serial, len_bytes);
        batch
            .push(mbuf)
            .expect("a batch that was flushed when full");
        if batch.room() == 0 {
            flush(port, &mut batch);
        }
    }
    flush(port, &mut batch);
}

/// Receives frames with exactly these serial numbers from `src`, in order, and frees them.
pub(super) fn receive(port: &mut dyn Port, src: MacBytes, serials: core::ops::Range<u32>) {
    let dst = port.capabilities().mac;
    let mut batch = MbufBatch::new();
    for expected in serials {
        let mbuf = next_received(port, &mut batch);
        assert_eq!(serial_of(mbuf.bytes(), dst, src), expected, "order");
        port.free(mbuf);
    }
    assert!(batch.is_empty(), "more frames than were sent");
}

/// Waits for the next received frame.
pub(super) fn next_received(port: &mut dyn Port, batch: &mut MbufBatch) -> Mbuf {
    let deadline = Deadline::new("a frame");
    loop {
        if let Some(mbuf) = batch.pop() {
            return mbuf;
        }
        if port.rx_burst(batch, crate::BURST) == 0 {
            deadline.check();
        }
    }
}

/// Frees all buffers of the batch.
pub(super) fn free_all(port: &mut dyn Port, batch: &mut MbufBatch) {
    while let Some(mbuf) = batch.pop() {
        port.free(mbuf);
    }
}

/// Returns the sum of all drop counters.
pub(super) fn drops(port: &dyn Port) -> u64 {
    let counters = port.stats().counters;
    counters
        .iter()
        .filter(|counter| counter.name.starts_with("drop_"))
        .map(|counter| counter.value)
        .sum()
}
