//! Copies passing frames for a capture.
//!
//! The poller copies each frame, or each of one N_Port_ID, into a bounded ring, from which a [`TapReader`]
//! takes it. If the ring is full, the frame is counted as dropped and not captured; the poller never waits for the
//! reader and does not wake it. Buffers are recycled, so that no memory is allocated while
//! frames are captured.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fcvi_frame::NPortId;
use fcvi_frame::ethernet::{ETHERTYPE_FCOE, EthernetHeader};
use fcvi_frame::fc::FcHeader;
use fcvi_frame::fcoe::FCOE_HEADER_BYTES;
use pmd_port::layer::pcapng::format::Direction;
use pmd_port::ring::{Consumer, Producer, spsc};
use pmd_port::{BURST, Mbuf, MbufBatch, Port};
use vi_core::control_socket::Socket;
use vi_core::sync::{AtomicBool, AtomicU64, Ordering};

/// Approximate overhead of a frame in the ring, in bytes.
const SLOT_BYTES: usize = 64;
/// Maximum number of frames in the ring.
const MAX_SLOTS: usize = 1 << 16;

/// A captured frame.
#[derive(Debug)]
pub(crate) struct CapturedFrame {
    /// Its first bytes.
    kept: Vec<u8>,
    /// Its original length.
    pub(crate) original_bytes: u32,
    /// Its direction.
    pub(crate) direction: Direction,
    /// Its time, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
}

impl CapturedFrame {
    /// Returns the first bytes of the frame, up to the configured length.
    pub(crate) fn kept(&self) -> &[u8] {
        &self.kept
    }
}

/// State shared by the tap and its reader.
#[derive(Debug, Default)]
struct Shared {
    /// Number of frames that did not fit. Relaxed: a counter that only the poller writes.
    dropped: AtomicU64,
    /// The tap has been dropped.
    closed: AtomicBool,
}

/// Result of copying a frame before it is sent.
enum Staged {
    Unmatched,
    NoRoom,
    Copied(CapturedFrame),
}

/// Writing end of a tap, for the poller.
pub(crate) struct Tap {
    filled: Producer<CapturedFrame>,
    empty: Consumer<CapturedFrame>,
    /// Empty buffers, taken from the ring and not used.
    spare: Vec<CapturedFrame>,
    staged: Vec<Staged>,
    n_port_id: Option<NPortId>,
    snap_bytes: usize,
    operator: Arc<Socket>,
    shared: Arc<Shared>,
}

/// Reading end of a tap.
pub(crate) struct TapReader {
    filled: Consumer<CapturedFrame>,
    empty: Producer<CapturedFrame>,
    shared: Arc<Shared>,
}

/// Creates a tap for an operator: for all frames, or for FC frames from or to `n_port_id`, with the first `snap_bytes`
/// of each and about `capacity_bytes` of buffers.
pub(crate) fn tap(
    operator: Arc<Socket>,
    n_port_id: Option<NPortId>,
    snap_bytes: usize,
    capacity_bytes: usize,
) -> (Tap, TapReader) {
    let slots = (capacity_bytes / (snap_bytes + SLOT_BYTES)).clamp(BURST, MAX_SLOTS);
    let (filled, filled_reader) = spsc(slots);
    let (mut recycled, empty) = spsc(slots);
    let mut fresh = (0..slots).map(|_| CapturedFrame {
        kept: Vec::with_capacity(snap_bytes),
        original_bytes: 0,
        direction: Direction::Inbound,
        time_ns: 0,
    });
    recycled.push_batch(&mut fresh);
    let shared = Arc::new(Shared::default());
    let tap = Tap {
        filled,
        empty,
        spare: Vec::with_capacity(BURST),
        staged: Vec::with_capacity(BURST),
        n_port_id,
        snap_bytes,
        operator,
        shared: Arc::clone(&shared),
    };
    let reader = TapReader {
        filled: filled_reader,
        empty: recycled,
        shared,
    };
    (tap, reader)
}

impl Tap {
    /// Returns whether this is the reader of the tap.
    pub(crate) fn is_read_by(&self, reader: &TapReader) -> bool {
        Arc::ptr_eq(&self.shared, &reader.shared)
    }

    /// Returns the connection of the operator, which is closed when the operator has ended; the reader may not know yet.
    pub(crate) fn operator(&self) -> &Arc<Socket> {
        &self.operator
    }

    /// Captures received frames.
    #[cold]
    #[inline(never)]
    pub(crate) fn received(&mut self, frames: &MbufBatch) {
        let time_ns = now_ns();
        for mbuf in frames.iter() {
            let staged = self.stage(mbuf, Direction::Inbound, time_ns);
            self.commit(staged, true);
        }
    }

    /// Sends a batch, and captures the frames that the port accepts.
    #[cold]
    #[inline(never)]
    pub(crate) fn send(&mut self, port: &mut dyn Port, batch: &mut MbufBatch) {
        let time_ns = now_ns();
        // Copied first, since the port takes the frames that it accepts.
        let mut staged = core::mem::take(&mut self.staged);
        staged.extend(
            batch
                .iter()
                .map(|mbuf| self.stage(mbuf, Direction::Outbound, time_ns)),
        );
        let sent = port.tx_burst(batch);
        for (index, frame) in staged.drain(..).enumerate() {
            self.commit(frame, index < sent);
        }
        self.staged = staged;
    }

    fn stage(&mut self, mbuf: &Mbuf, direction: Direction, time_ns: u64) -> Staged {
        let bytes = mbuf.bytes();
        if self.n_port_id.is_some_and(|id| !is_from_or_to(bytes, id)) {
            return Staged::Unmatched;
        }
        let Some(mut frame) = self.spare.pop().or_else(|| self.empty.pop()) else {
            return Staged::NoRoom;
        };
        frame.kept.clear();
        // At most the capacity of the buffer, so that no memory is allocated.
        frame
            .kept
            .extend(bytes.iter().take(self.snap_bytes).copied());
        frame.original_bytes = bytes.len() as u32;
        frame.direction = direction;
        frame.time_ns = time_ns;
        Staged::Copied(frame)
    }

    fn commit(&mut self, staged: Staged, passed: bool) {
        match staged {
            // A frame that was not accepted is copied again when it is sent again.
            Staged::Copied(frame) if !passed => self.spare.push(frame),
            Staged::Copied(frame) => {
                if let Err(frame) = self.filled.push(frame) {
                    // Not expected: there are no more buffers than slots.
                    self.spare.push(frame);
                    self.count_dropped();
                }
            }
            Staged::NoRoom if passed => self.count_dropped(),
            Staged::NoRoom | Staged::Unmatched => {}
        }
    }

    fn count_dropped(&self) {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        self.shared.dropped.store(dropped + 1, Ordering::Relaxed);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // Release: partner of the Acquire in `is_closed`, which makes all earlier frames visible.
        self.shared.closed.store(true, Ordering::Release);
    }
}

impl TapReader {
    /// Returns whether the tap has been dropped: no frames are added to the ring any more.
    pub(crate) fn is_closed(&self) -> bool {
        // Acquire: partner of the Release in the drop of the tap.
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Calls `show` with the oldest frame and recycles its buffer; `None` if there is no frame.
    pub(crate) fn take<R>(&mut self, show: impl FnOnce(&CapturedFrame) -> R) -> Option<R> {
        let frame = self.filled.pop()?;
        let shown = show(&frame);
        // The ring has a slot for every buffer.
        let _pushed = self.empty.push(frame);
        Some(shown)
    }

    /// Returns the number of frames that did not fit.
    pub(crate) fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

/// Returns whether this is an FC frame with this source or destination.
fn is_from_or_to(frame: &[u8], id: NPortId) -> bool {
    let Ok((ethernet, ethernet_bytes)) = EthernetHeader::parse(frame) else {
        return false;
    };
    let fc = frame.get(ethernet_bytes + FCOE_HEADER_BYTES..);
    let fc = fc.and_then(|rest| rest.first_chunk::<{ FcHeader::BYTES }>());
    fc.filter(|_| ethernet.ethertype == ETHERTYPE_FCOE)
        .map(FcHeader::parse)
        .is_some_and(|fc| fc.s_id == id || fc.d_id == id)
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}
