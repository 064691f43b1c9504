//! A port that writes all sent and received frames to a pcapng file.
//!
//! This is a layer for debugging: it reads the clock, copies every frame
//! and writes files in the data path, which no other port does. If the file
//! cannot be written, only the capture is incomplete; the traffic is unaffected.

pub mod format;
#[cfg(test)]
mod tests;

use core::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::mbuf::{Mbuf, MbufBatch};
use crate::port::{Capabilities, Counter, MacBytes, Port, PortEvent, PortStats, WakeSource};
use format::Direction;

/// Initial size of the buffer for the blocks of one burst, which are written once it is known how many were sent.
const BURST_BYTES: usize = 96 * 1024;

/// A port that captures the frames of another port.
///
/// The file opens in Wireshark: one interface with the name of the device,
/// Ethernet, nanoseconds, and the direction of each frame in its flags.
/// It is complete after a drop, or an [`PcapngTee::flush`].
///
/// Counters: `capture_frames` (frames written), `capture_errors` (frames that
/// could not be written, which includes all after the first such frame, and failed
/// flushes); then those of the inner port.
pub struct PcapngTee<P: Port, W: Write + Send = BufWriter<File>> {
    inner: P,
    sink: W,
    block: Vec<u8>,
    /// End offset of each frame of a burst in `block`.
    ends: Vec<usize>,
    /// A block may be incomplete: a reader could not parse anything after it.
    broken: bool,
    frames: u64,
    errors: u64,
}

impl<P: Port, W: Write + Send> PcapngTee<P, W> {
    /// Writes the file header to `sink`, and all frames from now on.
    ///
    /// # Errors
    /// The error of writing the header.
    pub fn new(inner: P, mut sink: W) -> io::Result<Self> {
        let mut block = Vec::with_capacity(BURST_BYTES);
        format::head(&mut block, inner.capabilities(), 0);
        sink.write_all(&block)?;
        sink.flush()?;
        Ok(Self {
            inner,
            sink,
            block,
            ends: Vec::with_capacity(crate::BURST),
            broken: false,
            frames: 0,
            errors: 0,
        })
    }

    /// Flushes the sink.
    ///
    /// # Errors
    /// The error of the sink; it is counted as well.
    pub fn flush(&mut self) -> io::Result<()> {
        let result = self.sink.flush();
        self.errors += u64::from(result.is_err());
        result
    }

    /// Returns the wrapped port.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Writes the first `count` frames of those in `block`.
    fn write(&mut self, count: usize) {
        let mut start = 0;
        for &end in &self.ends[..count] {
            self.broken = self.broken || self.sink.write_all(&self.block[start..end]).is_err();
            self.frames += u64::from(!self.broken);
            self.errors += u64::from(self.broken);
            start = end;
        }
    }

    /// Formats frames into `block`.
    fn collect<'a>(&mut self, frames: impl Iterator<Item = &'a Mbuf>, direction: Direction) {
        let now_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        self.block.clear();
        self.ends.clear();
        for mbuf in frames {
            let bytes = mbuf.bytes();
            format::frame(
                &mut self.block,
                bytes,
                bytes.len() as u32,
                direction,
                now_ns,
            );
            self.ends.push(self.block.len());
        }
    }
}

impl<P: Port, W: Write + Send> Port for PcapngTee<P, W> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn alloc(&mut self, dst: MacBytes) -> Option<Mbuf> {
        self.inner.alloc(dst)
    }

    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        if batch.is_empty() {
            return self.inner.tx_burst(batch);
        }
        // Copied before: frames that the port takes leave the batch.
        self.collect(batch.iter(), Direction::Outbound);
        let taken = self.inner.tx_burst(batch);
        self.write(taken);
        taken
    }

    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        let before = batch.len();
        let added = self.inner.rx_burst(batch, max);
        if added > 0 {
            self.collect(batch.iter().skip(before), Direction::Inbound);
            self.write(added);
        }
        added
    }

    fn free(&mut self, mbuf: Mbuf) {
        self.inner.free(mbuf);
    }

    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool {
        self.inner.events(out)
    }

    fn arm(&mut self) -> WakeSource {
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn stats(&self) -> PortStats {
        let mut stats = self.inner.stats();
        let own = [
            ("capture_frames", self.frames),
            ("capture_errors", self.errors),
        ];
        let own = own.map(|(name, value)| Counter { name, value });
        stats.counters.splice(0..0, own);
        stats
    }

    fn change_address(&mut self, mac: MacBytes) -> io::Result<()> {
        self.inner.change_address(mac)
    }

    fn upkeep(&mut self) {
        self.inner.upkeep();
    }
}

impl<P: Port, W: Write + Send> Drop for PcapngTee<P, W> {
    fn drop(&mut self) {
        if self.flush().is_err() {
            // The counter cannot be read any more.
            let device = &self.inner.capabilities().device;
            crate::stderr::write_line(format_args!(
                "viaduct: {device}: capture: writing the last frames failed"
            ));
        }
    }
}

impl<P: Port, W: Write + Send> fmt::Debug for PcapngTee<P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PcapngTee")
            .field("capabilities", self.inner.capabilities())
            .field("frames", &self.frames)
            .field("errors", &self.errors)
            .finish_non_exhaustive()
    }
}
