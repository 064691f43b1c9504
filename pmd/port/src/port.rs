//! The [`Port`] trait: burst semantics and buffer ownership are stated here and nowhere else.

use core::fmt;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::mbuf::{Mbuf, MbufBatch};
use crate::sync::mapped::AtomicU32;

/// A MAC address as it stands in a frame.
pub type MacBytes = [u8; 6];

/// What a port can do; constant while the port is open, but for the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The driver's name: `shm`, `af_packet`, `loopback`, ...
    pub driver: &'static str,
    /// What is behind it: a segment name, an interface name.
    pub device: String,
    /// Our station address: that which the port was opened with, or got since by
    /// [`Port::change_address`].
    pub mac: MacBytes,
    /// The network interface's own address, if there is an interface.
    pub interface_mac: Option<MacBytes>,
    /// The longest frame in bytes, from destination address to the last byte before the FCS.
    pub max_frame_bytes: usize,
    /// A frame that `tx_burst` took is delivered while its receiver lives and reads.
    pub lossless: bool,
    /// A burst of one frame costs no more than its share of a larger burst.
    pub send_alone: bool,
}

/// One counter of a port with its name; names are stable and documented by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// `snake_case`; drops are called `drop_<reason>`.
    pub name: &'static str,
    /// Events since the port was opened.
    pub value: u64,
}

/// What went through a port since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames handed to the caller.
    pub rx_frames: u64,
    /// Bytes of those frames.
    pub rx_bytes: u64,
    /// Frames taken from the caller.
    pub tx_frames: u64,
    /// Bytes of those frames.
    pub tx_bytes: u64,
    /// Every drop with its reason, and what else the driver counts.
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

/// Something that happened on the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// A station joined; only ports that see this directly (`shm`) report it.
    Joined(Neighbour),
    /// A station left or died.
    Left(Neighbour),
    /// The network interface's MTU was lowered below the port's frames, or is high enough again.
    MtuChanged(MtuChange),
    /// Memory for frames to or from a station could not be had (`shm`).
    RingFailed(RingFailure),
    /// Frames to the station of this address were dropped since the last call, because of such a
    /// failure.
    Unreachable(MacBytes),
    /// The port itself failed and carries nothing any more; told once. Its buffers stay
    /// valid, and closing it works. To go on, open another one.
    Failed(PortFailure),
}

/// Why the ring of a station could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFailure {
    /// The error number.
    pub errno: i32,
    /// Memory that each ring takes.
    pub ring_bytes: u64,
    /// Size of the file system that the segment is in; 0 if it is not known.
    pub file_system_bytes: u64,
}

/// An MTU that is not the one that the port was opened with, or is again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtuChange {
    /// The one that the port was opened with; frames are as long as it allows.
    pub opened_bytes: u32,
    /// The one that it has now.
    pub now_bytes: u32,
    /// Frames are longer than it allows.
    pub is_too_low: bool,
}

/// Why a port carries nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortFailure {
    /// The network interface was removed.
    InterfaceRemoved,
    /// The network interface was taken down.
    InterfaceDown,
    /// The network interface sends nothing at the port's queue.
    NoSendQueue,
    /// The network interface left frames standing for so long that they must not be sent any more.
    SendStalled,
    /// The files of the shared segment were removed or cut short.
    SegmentRemoved,
    /// What the shared segment says of itself or of this station is not true any more.
    SegmentDamaged,
}

impl fmt::Display for PortFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InterfaceRemoved => "the network interface was removed",
            Self::InterfaceDown => "the network interface was taken down",
            Self::NoSendQueue => "the network interface sends nothing at the port's queue",
            Self::SendStalled => "the network interface has sent nothing for too long",
            Self::SegmentRemoved => "the files of the segment were removed or cut short",
            Self::SegmentDamaged => "the segment was damaged",
        })
    }
}

/// What a thread can sleep on until the port has something to receive.
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
    /// The port cannot wake anyone: sleep for a bounded time, then look.
    Poll,
}

/// A futex word in memory that outlives every holder of this value.
#[derive(Clone)]
pub struct FutexWord {
    /// Keeps the mapping alive.
    owner: Arc<dyn AsFutexWord + Send + Sync>,
}

/// Memory that holds a futex word.
pub trait AsFutexWord {
    /// The word.
    fn futex_word(&self) -> &AtomicU32;
}

impl FutexWord {
    /// Wraps the owner of a futex word.
    pub fn new(owner: Arc<dyn AsFutexWord + Send + Sync>) -> Self {
        Self { owner }
    }

    /// The word.
    pub fn word(&self) -> &AtomicU32 {
        self.owner.futex_word()
    }
}

impl fmt::Debug for FutexWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FutexWord")
    }
}

/// Frames in and out, in bursts, by one thread at a time.
///
/// # Ownership
/// Every [`Mbuf`] comes from this port and goes back to it. `alloc` lends a
/// buffer for sending; `tx_burst` takes buffers back from the front of the
/// batch, in the order in which they were allocated for one destination;
/// `rx_burst` lends received frames; `free` takes back whatever the caller
/// holds, sent or not. Received buffers may be freed in any order, but a driver
/// may keep their ring slots until all earlier ones are free.
///
/// A buffer that does not come back is still memory of its holder's alone: when a port is dropped
/// meanwhile, what it lent stays mapped for the life of the process. A buffer that is given
/// to another port than its own is counted there and stays lent.
///
/// # Bursts
/// `tx_burst` returns how many buffers it took; the rest stay in the batch with
/// the caller, who tries again later. `rx_burst` adds at most `max` frames (and
/// at most the batch's room) and may add fewer than are waiting. Neither
/// blocks. Errors of a single frame are counters, never a return value.
///
/// # Cost
/// No call but `arm`, `events` and `stats` allocates, locks or (on `shm` and
/// `loopback`) enters the kernel, save to wake a receiver that sleeps.
pub trait Port: Send {
    /// What the port can do.
    fn capabilities(&self) -> &Capabilities;

    /// Lends an empty buffer for one frame to `dst`; `None` means no room towards
    /// that station for now (back-pressure, not an error). A station that does
    /// not exist has room: its frames are dropped and counted by `tx_burst`.
    fn alloc(&mut self, dst: MacBytes) -> Option<Mbuf>;

    /// Takes frames from the front of the batch; unsent ones stay with the caller.
    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize;

    /// Adds received frames to the batch, oldest first.
    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize;

    /// Takes back a buffer that was received, or allocated and not sent.
    fn free(&mut self, mbuf: Mbuf);

    /// Hands out stations that joined or left since the last call, and a failure of the port
    /// itself; `false` at once if there is nothing to tell.
    fn events(&mut self, out: &mut Vec<PortEvent>) -> bool;

    /// Asks to be woken by the next frame or event. After `arm` the caller must
    /// look once more (`rx_burst`, `events`) before it sleeps on the source:
    /// whatever arrived before `arm` wakes nobody.
    fn arm(&mut self) -> WakeSource;

    /// Ends the wish of `arm`; cheap when it was not armed.
    fn disarm(&mut self);

    /// What went through the port.
    fn stats(&self) -> PortStats;

    /// Takes another station address in place of the present one. Frames to the old one that
    /// came before are still handed out. May block shortly; never called from the data path.
    ///
    /// # Errors
    /// Why the port keeps the address that it has; `Unsupported` if its driver gives it one.
    fn change_address(&mut self, mac: MacBytes) -> io::Result<()> {
        let _ = mac;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Upkeep that needs the kernel: liveness of other processes, statistics of a
    /// socket. Called a few times a second from a thread that may block shortly,
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
    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        (**self).rx_burst(batch, max)
    }

    #[inline]
    fn free(&mut self, mbuf: Mbuf) {
        (**self).free(mbuf);
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

    fn upkeep(&mut self) {
        (**self).upkeep();
    }
}
