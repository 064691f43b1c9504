//! The [`Port`] trait: defines burst semantics and buffer ownership for all drivers.

use core::fmt;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::mbuf::{Mbuf, MbufBatch};
use crate::shm::SegmentStation;
use crate::sync::mapped::AtomicU32;

/// A MAC address in the byte order of a frame.
pub type MacBytes = [u8; 6];

/// Properties of a port; constant while the port is open, except for the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The driver's name: `shm`, `af_packet`, `loopback`, ...
    pub driver: &'static str,
    /// The underlying segment or interface name.
    pub device: String,
    /// The port's station address: the one it was opened with, or set since by
    /// [`Port::change_address`].
    pub mac: MacBytes,
    /// The network interface's own address, if there is an interface.
    pub interface_mac: Option<MacBytes>,
    /// Maximum frame length in bytes, from the destination address to the last byte before the FCS.
    pub max_frame_bytes: usize,
    /// A frame that `tx_burst` took is delivered as long as its receiver exists and reads.
    pub lossless: bool,
    /// A burst of one frame costs no more per frame than a larger burst.
    pub send_alone: bool,
    /// Distance in bytes from a buffer for sending to the one that is allocated next, if it is the
    /// same for nearly all buffers and another processor reads them; else 0.
    pub next_buffer_bytes: usize,
}

/// A named counter of a port; names are stable and documented by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// `snake_case`; counters of dropped frames are called `drop_<reason>`.
    pub name: &'static str,
    /// Events since the port was opened.
    pub value: u64,
}

/// Statistics of a port since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received by the caller.
    pub rx_frames: u64,
    /// Bytes of those frames.
    pub rx_bytes: u64,
    /// Frames taken from the caller.
    pub tx_frames: u64,
    /// Bytes of those frames.
    pub tx_bytes: u64,
    /// Drops by reason, and further counters of the driver.
    pub counters: Vec<Counter>,
}

/// Another station on the same segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its MAC address.
    pub mac: MacBytes,
    /// Changes when another process takes the same MAC address.
    pub generation: u64,
}

/// A change of the segment or of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// A station joined; reported only by ports that observe it directly (`shm`).
    Joined(Neighbour),
    /// A station left or died.
    Left(Neighbour),
    /// The network interface's MTU was lowered below the port's frames, or is high enough again.
    MtuChanged(MtuChange),
    /// Memory for frames to or from a station could not be allocated (`shm`).
    RingFailed(RingFailure),
    /// Frames to the station of this address were dropped since the last call, because of such a
    /// failure.
    Unreachable(MacBytes),
    /// The port failed and carries no more frames; reported once. Its buffers stay
    /// valid, and it can be closed. To continue, open another port.
    Failed(PortFailure),
}

/// Why the ring of a station could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFailure {
    /// The error number.
    pub errno: i32,
    /// Memory of each ring in bytes.
    pub ring_bytes: u64,
    /// Size of the segment's file system in bytes; 0 if unknown.
    pub file_system_bytes: u64,
}

/// A change of the MTU against the one that the port was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtuChange {
    /// MTU when the port was opened; it limits the frame length.
    pub opened_bytes: u32,
    /// Current MTU.
    pub now_bytes: u32,
    /// The port's frames exceed the current MTU.
    pub is_too_low: bool,
}

/// Why a port failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortFailure {
    /// The network interface was removed.
    InterfaceRemoved,
    /// The network interface was taken down.
    InterfaceDown,
    /// The network interface sends nothing on the port's queue.
    NoSendQueue,
    /// Frames were queued at the network interface for too long to be sent any more.
    SendStalled,
    /// The files of the shared segment were removed or truncated.
    SegmentRemoved,
    /// The shared segment's header or the state of this station was overwritten.
    SegmentDamaged,
}

impl fmt::Display for PortFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InterfaceRemoved => "the network interface was removed",
            Self::InterfaceDown => "the network interface was taken down",
            Self::NoSendQueue => "the network interface sends nothing on the port's queue",
            Self::SendStalled => "the network interface has sent nothing for too long",
            Self::SegmentRemoved => "the files of the segment were removed or truncated",
            Self::SegmentDamaged => "the segment was damaged",
        })
    }
}

/// What a thread can sleep on until the port has frames or events.
#[derive(Clone, Debug)]
pub enum WakeSource {
    /// Sleep with FUTEX_WAIT (shared, not private) while the word holds `expected`.
    Futex {
        /// The word; kept alive by the owner's mapping.
        word: FutexWord,
        /// Sleep only while the word has this value.
        expected: u32,
    },
    /// Sleep with poll(2) until the descriptor is readable.
    Fd(RawFd),
    /// The port cannot wake the caller: sleep for a bounded time, then poll.
    Poll,
}

/// A futex word in memory that stays mapped while this value exists.
#[derive(Clone)]
pub struct FutexWord {
    /// Keeps the mapping alive.
    owner: Arc<dyn AsFutexWord + Send + Sync>,
}

/// Memory that holds a futex word.
pub trait AsFutexWord {
    /// Returns the word.
    fn futex_word(&self) -> &AtomicU32;

    /// Returns the time of the last wake-up ([`monotonic_ns`](crate::wake::monotonic_ns)), if it is recorded. Another
    /// process may have written it.
    fn woken_at_ns(&self) -> Option<u64> {
        None
    }
}

impl FutexWord {
    /// Wraps the owner of a futex word.
    pub fn new(owner: Arc<dyn AsFutexWord + Send + Sync>) -> Self {
        Self { owner }
    }

    /// Returns the word.
    pub fn word(&self) -> &AtomicU32 {
        self.owner.futex_word()
    }

    /// As [`AsFutexWord::woken_at_ns`].
    pub fn woken_at_ns(&self) -> Option<u64> {
        self.owner.woken_at_ns()
    }
}

impl fmt::Debug for FutexWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FutexWord")
    }
}

/// Sends and receives Ethernet frames in bursts; used by one thread at a time.
///
/// # Ownership
/// Every [`Mbuf`] belongs to one port and must be returned to it. `alloc` lends a
/// buffer for sending; `tx_burst` takes buffers from the front of the batch, in
/// the order in which they were allocated for one destination, `tx_one` a single
/// one; `rx_burst` lends received frames; `free` takes back any buffer that the
/// caller holds, sent or not, `free_burst` a batch. Received buffers may be freed
/// in any order, but a driver may keep their ring slots until all earlier ones are
/// free.
///
/// A buffer that is never returned remains exclusive memory of its holder: if its port is dropped,
/// the memory of lent buffers stays mapped until the process exits. A buffer that is returned to
/// another port is counted there and stays lent.
///
/// # Bursts
/// `tx_burst` returns how many buffers it took; the others stay in the batch, and
/// the caller retries later. `rx_burst` adds at most `max` frames (and at most the
/// batch's free slots) and may add fewer than are pending. Neither blocks. Errors
/// of a single frame are counted, never returned.
///
/// # Cost
/// No call except `arm`, `events` and `stats` allocates, locks or (on `shm` and
/// `loopback`) enters the kernel, unless it wakes a sleeping receiver.
pub trait Port: Send {
    /// Returns the properties of the port.
    fn capabilities(&self) -> &Capabilities;

    /// Allocates an empty buffer for one frame to `dst`. `None` means that no buffer
    /// towards that station is free now (back-pressure, not an error). For a station
    /// that does not exist buffers are available: `tx_burst` drops and counts its frames.
    fn alloc(&mut self, dst: MacBytes) -> Option<Mbuf>;

    /// Sends frames from the front of the batch; unsent ones stay with the caller.
    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize;

    /// Sends one frame, as `tx_burst` sends a batch of one; returns it if the port does not take it now.
    #[inline]
    fn tx_one(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        let mut batch = MbufBatch::new();
        batch.push(mbuf)?;
        self.tx_burst(&mut batch);
        batch.pop().map_or(Ok(()), Err)
    }

    /// Adds received frames to the batch, oldest first.
    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize;

    /// Frees a buffer that was received, or allocated and not sent.
    fn free(&mut self, mbuf: Mbuf);

    /// Frees all buffers of the batch.
    #[inline]
    fn free_burst(&mut self, batch: &mut MbufBatch) {
        while let Some(mbuf) = batch.pop() {
            self.free(mbuf);
        }
    }

    /// Reports stations that joined or left since the last call, and a failure of the port
    /// itself; returns `false` at once if there are no events.
    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool;

    /// Requests a wakeup by the next frame or event. After `arm` the caller must
    /// poll once more (`rx_burst`, `events`) before it sleeps on the source:
    /// frames and events from before `arm` cause no wakeup.
    fn arm(&mut self) -> WakeSource;

    /// Cancels `arm`; cheap if not armed.
    fn disarm(&mut self);

    /// Returns the statistics of the port.
    fn stats(&self) -> PortStats;

    /// Replaces the station address. Frames to the old address that arrived before are still
    /// delivered. May block briefly; never called from the data path.
    ///
    /// # Errors
    /// Why the address is unchanged; `Unsupported` if the driver assigns the address.
    fn change_address(&mut self, mac: MacBytes) -> io::Result<()> {
        let _ = mac;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the station that this port is in a shared-memory segment, if the processes of its stations may map each
    /// other's memory: nothing between them has to see, delay or drop their messages.
    fn segment_station(&self) -> Option<SegmentStation> {
        None
    }

    /// Returns the position after the last frame that was sent to a station, for [`Port::has_freed`]; `None` if it is
    /// not known, or while a buffer to that station is lent.
    #[inline]
    fn sent_to(&self, dst: MacBytes) -> Option<u64> {
        let _ = dst;
        None
    }

    /// Returns whether the receiver has handled and freed all frames to it before this position.
    #[inline]
    fn has_freed(&self, dst: MacBytes, position: u64) -> bool {
        let _ = (dst, position);
        false
    }

    /// Performs housekeeping that needs system calls: liveness of other processes, socket
    /// statistics. Called a few times a second from a thread that may block briefly,
    /// never from the data path.
    fn upkeep(&mut self) {}
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn capabilities(&self) -> &Capabilities {
        (**self).capabilities()
    }

    #[inline]
    fn alloc(&mut self, dst: MacBytes) -> Option<Mbuf> {
        (**self).alloc(dst)
    }

    #[inline]
    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        (**self).tx_burst(batch)
    }

    #[inline]
    fn tx_one(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        (**self).tx_one(mbuf)
    }

    #[inline]
    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        (**self).rx_burst(batch, max)
    }

    #[inline]
    fn free(&mut self, mbuf: Mbuf) {
        (**self).free(mbuf);
    }

    #[inline]
    fn free_burst(&mut self, batch: &mut MbufBatch) {
        (**self).free_burst(batch);
    }

    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool {
        (**self).events(out)
    }

    fn arm(&mut self) -> WakeSource {
        (**self).arm()
    }

    fn disarm(&mut self) {
        (**self).disarm();
    }

    fn stats(&self) -> PortStats {
        (**self).stats()
    }

    fn change_address(&mut self, mac: MacBytes) -> io::Result<()> {
        (**self).change_address(mac)
    }

    fn segment_station(&self) -> Option<SegmentStation> {
        (**self).segment_station()
    }

    #[inline]
    fn sent_to(&self, dst: MacBytes) -> Option<u64> {
        (**self).sent_to(dst)
    }

    #[inline]
    fn has_freed(&self, dst: MacBytes, position: u64) -> bool {
        (**self).has_freed(dst, position)
    }

    fn upkeep(&mut self) {
        (**self).upkeep();
    }
}
