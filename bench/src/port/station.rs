//! An open port, whom it talks to, frames in and out.

use std::time::{Duration, Instant};

use pmd_port::{BURST, MacBytes, Mbuf, MbufBatch, Port, PortEvent, PortStats};

use super::cli::PortOptions;
use super::contents::Contents;
use crate::control::{HEADER_BYTES, Header, Idle};
use crate::error::{Error, Result};
use crate::nic::{self, MemoryKind, Selection};
use crate::process::Stop;

/// A port that takes nothing for so long has lost its other end.
const STUCK: Duration = Duration::from_secs(2);

/// How often a port is tended,
const TENDED_EVERY: Duration = Duration::from_millis(100);

/// and after how many calls the clock is read for that.
const CALLS_PER_CLOCK: u32 = 4096;

/// How long frames may take to leave after the last one was handed over.
const LEAVING: Duration = Duration::from_secs(2);

/// How long another station may take to join.
const JOINING: Duration = Duration::from_secs(10);

/// One end of the raw traffic.
pub(super) struct Station {
    port: Box<dyn Port>,
    ethertype: u16,
    peer: MacBytes,
    received: MbufBatch,
    unsent: MbufBatch,
    calls: u32,
    tended: Instant,
}

impl Station {
    /// Opens the port of a NIC for this run alone.
    pub(super) fn open(options: &PortOptions) -> Result<Self> {
        let selection = Selection {
            config: options.config.clone(),
            device: options.device.clone(),
            segment: Some(options.segment.clone()),
            memory: MemoryKind::default(),
        };
        let config = selection.load()?.config;
        let asked = options.mac.map(|mac| mac.0);
        let mac = asked.unwrap_or_else(|| nic::raw_mac(true));
        let port = nic::open_station(&config, mac, options.ethertype)?;
        if asked.is_some_and(|asked| asked != port.capabilities().mac) {
            return Err(Error::Usage(format!(
                "--mac: a {} port gives its stations addresses of its own",
                port.capabilities().driver
            )));
        }
        Ok(Self::new(port, options.ethertype))
    }

    /// A station on a port that nobody else uses.
    pub(super) fn new(port: Box<dyn Port>, ethertype: u16) -> Self {
        Self {
            port,
            ethertype,
            peer: [0; 6],
            received: MbufBatch::new(),
            unsent: MbufBatch::new(),
            calls: 0,
            tended: Instant::now(),
        }
    }

    /// The upkeep of the port, now and then.
    #[inline]
    fn tend(&mut self) -> Result<()> {
        self.calls += 1;
        if self.calls < CALLS_PER_CLOCK {
            return Ok(());
        }
        self.calls = 0;
        if self.tended.elapsed() < TENDED_EVERY {
            return Ok(());
        }
        self.tended = Instant::now();
        self.port.upkeep();
        let mut events = Vec::new();
        self.port.events(&mut events);
        refuse_failure(&events)
    }

    /// The driver's name.
    pub(super) fn driver(&self) -> &'static str {
        self.port.capabilities().driver
    }

    /// What is behind the port.
    pub(super) fn device(&self) -> &str {
        &self.port.capabilities().device
    }

    /// Its address.
    pub(super) fn mac(&self) -> MacBytes {
        self.port.capabilities().mac
    }

    /// What went through it.
    pub(super) fn stats(&mut self) -> PortStats {
        self.port.upkeep();
        self.port.stats()
    }

    /// How many frames the port took and did not send.
    pub(super) fn dropped(&self) -> u64 {
        let counters = self.port.stats().counters;
        let drops = counters.iter().filter(|it| it.name.starts_with("drop_tx"));
        drops.map(|counter| counter.value).sum()
    }

    /// Waits until everything has left that was handed over, as far as the driver tells: what is
    /// still there when the port is closed is lost.
    ///
    /// # Errors
    /// The port failed.
    pub(super) fn finish(&mut self) -> Result<()> {
        let (mut events, start) = (Vec::new(), Instant::now());
        let mut busy = self.counter("tx_busy");
        while start.elapsed() < LEAVING {
            // An empty burst makes the driver look at what it has.
            self.port.tx_burst(&mut MbufBatch::new());
            self.port.upkeep();
            self.port.events(&mut events);
            refuse_failure(&events)?;
            let before = core::mem::replace(&mut busy, self.counter("tx_busy"));
            if busy == before && self.counter("tx_under_way") == 0 {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// One of the driver's counters; 0 for one that it does not have.
    fn counter(&self, name: &str) -> u64 {
        let counters = self.port.stats().counters;
        let found = counters.iter().find(|counter| counter.name == name);
        found.map_or(0, |counter| counter.value)
    }

    /// Talks to the station that is named, or else to the first one that the port sees.
    pub(super) fn find_peer(&mut self, named: Option<MacBytes>, stop: &Stop) -> Result<()> {
        let sees_others = self.driver() == "shm";
        if named.is_none() && !sees_others {
            return Err(Error::Usage(format!(
                "--to is missing: a {} port does not see who is there",
                self.driver()
            )));
        }
        let (mut events, start) = (Vec::new(), Instant::now());
        let mut found = named.filter(|_| !sees_others);
        while found.is_none() && start.elapsed() < JOINING {
            if stop.is_asked() {
                return Err(Error::Broken("interrupted".into()));
            }
            self.port.upkeep();
            self.port.events(&mut events);
            refuse_failure(&events)?;
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
                "the other station is not on {} {}: start that end first",
                self.driver(),
                self.device()
            ))
        })?;
        Ok(())
    }

    /// Refuses frames that the port does not carry.
    pub(super) fn check(&self, frame_bytes: usize) -> Result<()> {
        let longest_bytes = self.port.capabilities().max_frame_bytes;
        if frame_bytes > longest_bytes {
            return Err(Error::Usage(format!(
                "--size {frame_bytes}: {} {} carries frames of {longest_bytes} bytes at most",
                self.driver(),
                self.device()
            )));
        }
        Ok(())
    }

    /// Prepares frames until so many wait to be sent, or the port has no room. `header` is that of
    /// the next one, `contents` what is behind it.
    #[inline]
    pub(super) fn prepare(
        &mut self,
        wanted: u64,
        header: &mut Header,
        bytes: usize,
        contents: &mut Option<Contents>,
    ) {
        let wanted = wanted.min(BURST as u64) as usize;
        while self.unsent.len() < wanted {
            let Some(mut mbuf) = self.port.alloc(self.peer) else {
                break;
            };
            self.emit(header, &mut mbuf, bytes);
            if let Some(contents) = contents {
                contents.fill(&mut mbuf.buffer_mut()[..bytes]);
            }
            header.message = header.message.wrapping_add(1);
            if let Err(mbuf) = self.unsent.push(mbuf) {
                self.port.free(mbuf);
                break;
            }
        }
    }

    /// Hands what waits to the port; gives how many frames it took.
    #[inline]
    ///
    /// # Errors
    /// The port failed.
    pub(super) fn flush(&mut self) -> Result<u64> {
        self.tend()?;
        Ok(self.port.tx_burst(&mut self.unsent) as u64)
    }

    /// Sends one frame to the peer, however long the port is full.
    #[inline]
    pub(super) fn send(&mut self, header: &Header, bytes: usize) -> Result<()> {
        let mut mbuf = self.wait_for_buffer(self.peer)?;
        self.emit(header, &mut mbuf, bytes);
        self.put(mbuf)?;
        self.flush_all()
    }

    #[inline]
    fn emit(&self, header: &Header, mbuf: &mut Mbuf, bytes: usize) {
        let src = self.port.capabilities().mac;
        if let Some(head) = mbuf.buffer_mut().first_chunk_mut::<HEADER_BYTES>() {
            header.emit(self.peer, src, self.ethertype, head);
        }
        mbuf.set_len(bytes);
    }

    /// Takes a burst of frames, tells of each, with its header if one of us sent it, and gives how
    /// many there were.
    #[inline]
    ///
    /// # Errors
    /// The port failed.
    pub(super) fn take(&mut self, mut tell: impl FnMut(&[u8], Option<Header>)) -> Result<u64> {
        self.tend()?;
        let count = self.port.rx_burst(&mut self.received, BURST);
        while let Some(mbuf) = self.received.pop() {
            tell(mbuf.bytes(), Header::parse(mbuf.bytes(), self.ethertype));
            self.port.free(mbuf);
        }
        Ok(count as u64)
    }

    /// Sends a burst of frames back to where they came from, tells how long each is, and gives how
    /// many there were.
    #[inline]
    ///
    /// # Errors
    /// The port failed, or takes nothing.
    pub(super) fn send_back(&mut self, mut tell: impl FnMut(usize)) -> Result<u64> {
        self.tend()?;
        let count = self.port.rx_burst(&mut self.received, BURST);
        while let Some(mbuf) = self.received.pop() {
            let answered = self.answer(mbuf.bytes());
            tell(mbuf.len());
            self.port.free(mbuf);
            answered?;
        }
        self.flush_all()?;
        Ok(count as u64)
    }

    #[inline]
    fn answer(&mut self, frame: &[u8]) -> Result<()> {
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
            .map_err(|_| Error::Port("a flushed batch has no room".into()))
    }

    #[inline]
    fn wait_for_buffer(&mut self, to: MacBytes) -> Result<Mbuf> {
        let mut idle = Idle::default();
        loop {
            if let Some(mbuf) = self.port.alloc(to) {
                return Ok(mbuf);
            }
            self.port.tx_burst(&mut self.unsent);
            if idle.is_longer_than(STUCK) {
                return Err(stuck());
            }
        }
    }

    #[inline]
    fn flush_all(&mut self) -> Result<()> {
        let mut idle = Idle::default();
        while !self.unsent.is_empty() {
            if self.port.tx_burst(&mut self.unsent) == 0 && idle.is_longer_than(STUCK) {
                return Err(stuck());
            }
        }
        Ok(())
    }

    /// Whether a stream that made no progress since is stuck.
    pub(super) fn check_progress(idle: &mut Idle) -> Result<()> {
        if idle.is_longer_than(STUCK) {
            return Err(stuck());
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

fn refuse_failure(events: &[PortEvent]) -> Result<()> {
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
fn stuck() -> Error {
    Error::Port(format!(
        "took no frame for {} s: the other end takes nothing",
        STUCK.as_secs()
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use pmd_port::shm::{ShmConfig, ShmPort};

    use super::*;
    use crate::control::ETHERTYPE;
    use crate::latency::Limit;

    /// Two ends on a segment of their own, which know each other.
    pub(in crate::port) fn pair(name: &str) -> (Station, Station) {
        let config = ShmConfig::new(format!("vibench-{name}-{}", std::process::id()));
        let open = || {
            let port = ShmPort::open(config.clone()).unwrap();
            Station::new(Box::new(port), ETHERTYPE)
        };
        let (mut near, mut far) = (open(), open());
        near.find_peer(Some(far.mac()), &Stop::never()).unwrap();
        far.find_peer(None, &Stop::never()).unwrap();
        assert_eq!((near.peer, far.peer), (far.mac(), near.mac()));
        (near, far)
    }

    /// So many frames, however long they take.
    pub(in crate::port) fn limit(frames: u64) -> Limit {
        Limit {
            duration: Duration::MAX,
            messages: Some(frames),
            stop: Stop::never(),
        }
    }

    #[test]
    fn frames_of_strangers_come_back_with_their_addresses_exchanged() {
        let (mut near, mut far) = pair("port-stranger");
        let (src, dst) = (near.mac(), far.mac());
        let mut mbuf = near.wait_for_buffer(dst).unwrap();
        let frame = [&dst[..], &src, &[0x08, 0x00], &[0x45; 50]].concat();
        mbuf.buffer_mut()[..frame.len()].copy_from_slice(&frame);
        mbuf.set_len(frame.len());
        near.put(mbuf).unwrap();
        near.flush_all().unwrap();
        while far.send_back(|_| ()).unwrap() == 0 {}
        while near.port.rx_burst(&mut near.received, 1) == 0 {}
        let came = near.received.pop().unwrap();
        assert_eq!(came.bytes(), [&src[..], &dst, &frame[12..]].concat());
        near.port.free(came);
    }
}
