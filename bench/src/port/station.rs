//! An open port and its peer: sends and receives frames.

use std::time::{Duration, Instant};

use pmd_port::{BURST, MacBytes, Mbuf, MbufBatch, Port, PortEvent, PortStats};

use super::cli::PortOptions;
use super::payload::Payload;
use crate::error::{Error, Result};
use crate::nic::{self, MemoryKind, NicOptions};
use crate::process::StopFlag;
use crate::raw_control::{FrameHeader, HEADER_BYTES, LOST_AFTER, PollTimer};

/// Time without a transmitted frame after which a port fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Minimum interval between upkeep calls of a port.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Calls per reading of the clock for upkeep.
const CALLS_PER_CLOCK: u32 = 4096;

/// Timeout for the transmission of pending frames at the end of a run.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout for the discovery of the other station.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A station: one side of the raw traffic.
pub(super) struct Station {
    port: Box<dyn Port>,
    ethertype: u16,
    peer: MacBytes,
    received: MbufBatch,
    unsent: MbufBatch,
    calls: u32,
    last_upkeep: Instant,
    /// Time after which a frame of a ping counts as lost.
    pub(super) lost_after: Duration,
}

impl Station {
    /// Opens the port of a NIC configuration.
    pub(super) fn open(options: &PortOptions) -> Result<Self> {
        let nic_options = NicOptions {
            config: options.config.clone(),
            device: options.device.clone(),
            segment: Some(options.segment.clone()),
            memory: MemoryKind::default(),
        };
        let config = nic_options.load()?.config;
        let requested = options.mac.map(|mac| mac.0);
        let mac = requested.unwrap_or_else(|| nic::raw_mac(true));
        let port = nic::open_station(&config, mac, options.ethertype)?;
        if requested.is_some_and(|requested| requested != port.capabilities().mac) {
            return Err(Error::Usage(format!(
                "--mac: the {} driver assigns station addresses and supports no choice",
                port.capabilities().driver
            )));
        }
        Ok(Self::new(port, options.ethertype))
    }

    /// Creates a station on a port that has no other user.
    pub(super) fn new(port: Box<dyn Port>, ethertype: u16) -> Self {
        Self {
            port,
            ethertype,
            peer: [0; 6],
            received: MbufBatch::new(),
            unsent: MbufBatch::new(),
            calls: 0,
            last_upkeep: Instant::now(),
            lost_after: LOST_AFTER,
        }
    }

    /// Runs the upkeep of the port, at most once per interval.
    #[inline]
    fn run_upkeep(&mut self) -> Result<()> {
        self.calls += 1;
        if self.calls < CALLS_PER_CLOCK {
            return Ok(());
        }
        self.calls = 0;
        if self.last_upkeep.elapsed() < UPKEEP_INTERVAL {
            return Ok(());
        }
        self.last_upkeep = Instant::now();
        self.port.upkeep();
        let mut events = Vec::new();
        self.port.events(&mut events);
        check_port_failure(&events)
    }

    /// Returns the name of the driver.
    pub(super) fn driver(&self) -> &'static str {
        self.port.capabilities().driver
    }

    /// Returns the device or segment of the port.
    pub(super) fn device(&self) -> &str {
        &self.port.capabilities().device
    }

    /// Returns the MAC address.
    pub(super) fn mac(&self) -> MacBytes {
        self.port.capabilities().mac
    }

    /// Returns the counters of the port.
    pub(super) fn stats(&mut self) -> PortStats {
        self.port.upkeep();
        self.port.stats()
    }

    /// Returns the number of frames that the port accepted and did not transmit.
    pub(super) fn dropped(&self) -> u64 {
        let counters = self.port.stats().counters;
        let drops = counters.iter().filter(|it| it.name.starts_with("drop_tx"));
        drops.map(|counter| counter.value).sum()
    }

    /// Waits for the transmission of pending frames, as far as the driver reports them: closing the port drops them.
    ///
    /// # Errors
    /// [`Error::Port`] if the port has failed.
    pub(super) fn finish(&mut self) -> Result<()> {
        let (mut events, start) = (Vec::new(), Instant::now());
        let mut busy = self.counter("tx_busy");
        while start.elapsed() < DRAIN_TIMEOUT {
            // An empty burst makes the driver process its pending frames.
            self.port.tx_burst(&mut MbufBatch::new());
            self.port.upkeep();
            self.port.events(&mut events);
            check_port_failure(&events)?;
            let before = core::mem::replace(&mut busy, self.counter("tx_busy"));
            if busy == before && self.counter("tx_under_way") == 0 {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Returns a counter of the driver; 0 if it has no such counter.
    fn counter(&self, name: &str) -> u64 {
        let counters = self.port.stats().counters;
        let found = counters.iter().find(|counter| counter.name == name);
        found.map_or(0, |counter| counter.value)
    }

    /// Sets the peer: the named station, or else the first one that the port discovers.
    pub(super) fn find_peer(&mut self, named: Option<MacBytes>, stop: &StopFlag) -> Result<()> {
        let discovers_stations = self.driver() == "shm";
        if named.is_none() && !discovers_stations {
            return Err(Error::Usage(format!(
                "--to is missing: the {} driver does not discover stations",
                self.driver()
            )));
        }
        let (mut events, start) = (Vec::new(), Instant::now());
        let mut found = named.filter(|_| !discovers_stations);
        while found.is_none() && start.elapsed() < JOIN_TIMEOUT {
            if stop.is_set() {
                return Err(Error::Interrupted);
            }
            self.port.upkeep();
            self.port.events(&mut events);
            check_port_failure(&events)?;
            found = events.drain(..).find_map(|event| match event {
                PortEvent::Joined(it) if named.is_none_or(|named| named == it.mac) => Some(it.mac),
                PortEvent::Joined(_)
                | PortEvent::Left(_)
                | PortEvent::MtuChanged(_)
                | PortEvent::RingFailed(_)
                | PortEvent::Unreachable(_)
                | PortEvent::Failed(_) => None,
            });
            std::thread::yield_now();
        }
        self.peer = found.ok_or_else(|| {
            Error::Port(format!(
                "timed out: no other station on {} {}: start the other side first",
                self.driver(),
                self.device()
            ))
        })?;
        Ok(())
    }

    /// Rejects frames above the limit of the port.
    pub(super) fn check(&self, frame_bytes: usize) -> Result<()> {
        let longest_bytes = self.port.capabilities().max_frame_bytes;
        if frame_bytes > longest_bytes {
            return Err(Error::Usage(format!(
                "--size {frame_bytes}: {} {} supports frames of up to {longest_bytes} bytes",
                self.driver(),
                self.device()
            )));
        }
        Ok(())
    }

    /// Prepares frames until `wanted` frames, at most a burst, are pending, or the port has no free buffer. `header` is
    /// the header of the next frame; with `payload` frames are filled.
    #[inline]
    pub(super) fn prepare(
        &mut self,
        wanted: u64,
        header: &mut FrameHeader,
        bytes: usize,
        payload: &mut Option<Payload>,
    ) {
        let wanted = wanted.min(BURST as u64) as usize;
        while self.unsent.len() < wanted {
            let Some(mut mbuf) = self.port.alloc(self.peer) else {
                break;
            };
            self.emit(header, &mut mbuf, bytes);
            if let Some(payload) = payload {
                payload.fill(&mut mbuf.buffer_mut()[..bytes]);
            }
            header.message = header.message.wrapping_add(1);
            if let Err(mbuf) = self.unsent.push(mbuf) {
                self.port.free(mbuf);
                break;
            }
        }
    }

    /// Passes pending frames to the port; returns the number of frames that it accepted.
    ///
    /// # Errors
    /// [`Error::Port`] if the port has failed.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<u64> {
        self.run_upkeep()?;
        Ok(self.port.tx_burst(&mut self.unsent) as u64)
    }

    /// Sends one frame to the peer; waits while the port is full.
    #[inline]
    pub(super) fn send(&mut self, header: &FrameHeader, bytes: usize) -> Result<()> {
        let mut mbuf = self.wait_for_buffer(self.peer)?;
        self.emit(header, &mut mbuf, bytes);
        self.put(mbuf)?;
        self.flush_all()
    }

    #[inline]
    fn emit(&self, header: &FrameHeader, mbuf: &mut Mbuf, bytes: usize) {
        let src = self.port.capabilities().mac;
        if let Some(head) = mbuf.buffer_mut().first_chunk_mut::<HEADER_BYTES>() {
            header.emit(self.peer, src, self.ethertype, head);
        }
        mbuf.set_len(bytes);
    }

    /// Receives a burst of frames and calls `inspect` for each, with its header if vibench sent it; returns the number
    /// of frames.
    ///
    /// # Errors
    /// [`Error::Port`] if the port has failed.
    #[inline]
    pub(super) fn receive_burst(
        &mut self,
        mut inspect: impl FnMut(&[u8], Option<FrameHeader>),
    ) -> Result<u64> {
        self.run_upkeep()?;
        let count = self.port.rx_burst(&mut self.received, BURST);
        while let Some(mbuf) = self.received.pop() {
            inspect(
                mbuf.bytes(),
                FrameHeader::parse(mbuf.bytes(), self.ethertype),
            );
            self.port.free(mbuf);
        }
        Ok(count as u64)
    }

    /// Receives a burst of frames, sends each back to its sender, and calls `inspect` with its length; returns the
    /// number of frames.
    ///
    /// # Errors
    /// [`Error::Port`] if the port has failed or transmits nothing.
    #[inline]
    pub(super) fn echo_burst(&mut self, mut inspect: impl FnMut(usize)) -> Result<u64> {
        self.run_upkeep()?;
        let count = self.port.rx_burst(&mut self.received, BURST);
        while let Some(mbuf) = self.received.pop() {
            let echoed = self.echo_frame(mbuf.bytes());
            inspect(mbuf.len());
            self.port.free(mbuf);
            echoed?;
        }
        self.flush_all()?;
        Ok(count as u64)
    }

    #[inline]
    fn echo_frame(&mut self, frame: &[u8]) -> Result<()> {
        let Some((_, from)) = frame.split_first_chunk::<6>() else {
            return Ok(());
        };
        let Some(&to) = from.first_chunk::<6>() else {
            return Ok(());
        };
        let mut mbuf = self.wait_for_buffer(to)?;
        let src = self.port.capabilities().mac;
        let out = &mut mbuf.buffer_mut()[..frame.len()];
        out.copy_from_slice(frame);
        out[..6].copy_from_slice(&to);
        out[6..12].copy_from_slice(&src);
        mbuf.set_len(frame.len());
        self.put(mbuf)
    }

    fn put(&mut self, mbuf: Mbuf) -> Result<()> {
        if self.unsent.room() == 0 {
            self.flush_all()?;
        }
        self.unsent
            .push(mbuf)
            .map_err(|_| Error::Port("transmit batch is full after a flush".into()))
    }

    #[inline]
    fn wait_for_buffer(&mut self, to: MacBytes) -> Result<Mbuf> {
        let mut idle = PollTimer::default();
        loop {
            if let Some(mbuf) = self.port.alloc(to) {
                return Ok(mbuf);
            }
            self.port.tx_burst(&mut self.unsent);
            if idle.exceeds(STALL_TIMEOUT) {
                return Err(stall_error());
            }
        }
    }

    #[inline]
    fn flush_all(&mut self) -> Result<()> {
        let mut idle = PollTimer::default();
        while !self.unsent.is_empty() {
            if self.port.tx_burst(&mut self.unsent) == 0 && idle.exceeds(STALL_TIMEOUT) {
                return Err(stall_error());
            }
        }
        Ok(())
    }

    /// Records a poll without progress; fails after `STALL_TIMEOUT`.
    pub(super) fn check_progress(idle: &mut PollTimer) -> Result<()> {
        if idle.exceeds(STALL_TIMEOUT) {
            return Err(stall_error());
        }
        Ok(())
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        for batch in [&mut self.unsent, &mut self.received] {
            while let Some(mbuf) = batch.pop() {
                self.port.free(mbuf);
            }
        }
    }
}

fn check_port_failure(events: &[PortEvent]) -> Result<()> {
    let failure = events.iter().find_map(|event| match event {
        PortEvent::Failed(failure) => Some(failure),
        PortEvent::Joined(_)
        | PortEvent::Left(_)
        | PortEvent::MtuChanged(_)
        | PortEvent::RingFailed(_)
        | PortEvent::Unreachable(_) => None,
    });
    failure.map_or(Ok(()), |failure| Err(Error::Port(failure.to_string())))
}

#[cold]
fn stall_error() -> Error {
    Error::Port(format!(
        "timed out: no frame transmitted for {} s: is the other side receiving?",
        STALL_TIMEOUT.as_secs()
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use pmd_port::shm::{ShmConfig, ShmPort};

    use super::*;
    use crate::latency::RoundLimit;
    use crate::nic::ETHERTYPE;

    /// Opens two stations on a private segment, as peers.
    pub(in crate::port) fn pair(name: &str) -> (Station, Station) {
        let config = ShmConfig::new(format!("vibench-{name}-{}", std::process::id()));
        let open = || {
            let port = ShmPort::open(config.clone()).unwrap();
            let mut station = Station::new(Box::new(port), ETHERTYPE);
            // On a busy host the peer may not run for a while, and nothing is lost.
            station.lost_after = Duration::from_secs(60);
            station
        };
        let (mut local, mut remote) = (open(), open());
        local
            .find_peer(Some(remote.mac()), &StopFlag::never())
            .unwrap();
        remote.find_peer(None, &StopFlag::never()).unwrap();
        assert_eq!((local.peer, remote.peer), (remote.mac(), local.mac()));
        (local, remote)
    }

    /// Returns a limit of this number of frames, without a time limit.
    pub(in crate::port) fn limit(frames: u64) -> RoundLimit {
        RoundLimit {
            duration: Duration::MAX,
            messages: Some(frames),
            stop: StopFlag::never(),
        }
    }

    #[test]
    fn echo_burst_swaps_addresses_of_foreign_frames() {
        let (mut local, mut remote) = pair("port-foreign");
        let (src, dst) = (local.mac(), remote.mac());
        let mut mbuf = local.wait_for_buffer(dst).unwrap();
        let frame = [&dst[..], &src, &[0x08, 0x00], &[0x45; 50]].concat();
        mbuf.buffer_mut()[..frame.len()].copy_from_slice(&frame);
        mbuf.set_len(frame.len());
        local.put(mbuf).unwrap();
        local.flush_all().unwrap();
        while remote.echo_burst(|_| ()).unwrap() == 0 {}
        while local.port.rx_burst(&mut local.received, 1) == 0 {}
        let echoed = local.received.pop().unwrap();
        assert_eq!(echoed.bytes(), [&src[..], &dst, &frame[12..]].concat());
        local.port.free(echoed);
    }
}
