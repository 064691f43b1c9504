//! A queue of the interface: its socket and rings.

use std::io;
use std::os::fd::AsFd;

use libc::{xdp_desc, xdp_ring_offset};

use super::ring::{Consumer, Producer, ring_bytes};
use super::socket::XdpSocket;
use super::umem::Umem;
use crate::mapping::Mapping;

/// Returns the number of ring entries for `chunks` chunks: the kernel publishes late which entries it
/// took, after it has returned their chunks, and this process may be passing those again by then.
fn with_slack(chunks: u32) -> u32 {
    2 * chunks
}

/// The receiving side of a queue.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) socket: XdpSocket,
    /// Received frames.
    pub(super) rx: Consumer<xdp_desc>,
    /// Chunks for frames to receive.
    pub(super) fill: Producer<u64>,
}

/// The sending side, of the first queue only, which keeps frames in order.
#[derive(Debug)]
pub(super) struct Sender {
    /// Frames to send.
    pub(super) tx: Producer<xdp_desc>,
    /// Chunks whose frames were sent.
    pub(super) completion: Consumer<u64>,
}

fn map<T>(
    socket: &XdpSocket,
    page_offset: u64,
    offsets: &xdp_ring_offset,
    entries: u32,
) -> io::Result<Mapping> {
    Mapping::of_kernel(
        socket.as_fd(),
        page_offset,
        ring_bytes::<T>(offsets, entries),
    )
}

impl Receiver {
    /// Creates the rings for `chunks` chunks, of which each queue has that many, and passes those
    /// of the port's `index`-th queue to the kernel.
    pub(super) fn new(socket: XdpSocket, umem: &Umem, chunks: u32, index: u32) -> io::Result<Self> {
        let entries = with_slack(chunks);
        socket.make_ring(libc::XDP_UMEM_FILL_RING, entries)?;
        socket.make_ring(libc::XDP_RX_RING, entries)?;
        let offsets = socket.ring_offsets()?;
        let page_offset = libc::XDP_PGOFF_RX_RING as u64;
        let rx = map::<xdp_desc>(&socket, page_offset, &offsets.rx, entries)?;
        let page_offset = libc::XDP_UMEM_PGOFF_FILL_RING;
        let fill = map::<u64>(&socket, page_offset, &offsets.fr, entries)?;
        // SAFETY: the kernel's ring of received frames with its offsets and length, just mapped for this value.
        let rx = unsafe { Consumer::new(rx, &offsets.rx, entries) };
        // SAFETY: the kernel's fill ring with its offsets and length, just mapped for this value.
        let mut fill = unsafe { Producer::new(fill, &offsets.fr, entries) };
        for chunk in index * chunks..(index + 1) * chunks {
            fill.push(umem.address(chunk));
        }
        fill.publish();
        Ok(Self { socket, rx, fill })
    }

    /// Wakes the interface's driver if it stopped for lack of chunks; returns whether it did.
    #[inline]
    pub(super) fn wake_if_starved(&self) -> bool {
        let starved = self.fill.needs_wakeup() && self.fill.unread() > 0;
        if starved {
            self.socket.wake_receiver();
        }
        starved
    }

    /// As [`Self::wake_if_starved`], before a sleep: the driver may have stopped since its flag was read.
    pub(super) fn wake_before_sleep(&self) -> bool {
        let has_unread = self.fill.unread() > 0;
        if has_unread {
            self.socket.wake_receiver();
        }
        has_unread
    }
}

impl Sender {
    /// Creates the rings for `chunks` chunks.
    pub(super) fn new(socket: &XdpSocket, chunks: u32) -> io::Result<Self> {
        let entries = with_slack(chunks);
        socket.make_ring(libc::XDP_UMEM_COMPLETION_RING, entries)?;
        socket.make_ring(libc::XDP_TX_RING, entries)?;
        let offsets = socket.ring_offsets()?;
        let page_offset = libc::XDP_PGOFF_TX_RING as u64;
        let tx = map::<xdp_desc>(socket, page_offset, &offsets.tx, entries)?;
        let page_offset = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let completion = map::<u64>(socket, page_offset, &offsets.cr, entries)?;
        // SAFETY: the kernel's send ring with its offsets and length, just mapped for this value.
        let tx = unsafe { Producer::new(tx, &offsets.tx, entries) };
        // SAFETY: the kernel's completion ring with its offsets and length, just mapped for this value.
        let completion = unsafe { Consumer::new(completion, &offsets.cr, entries) };
        Ok(Self { tx, completion })
    }

    /// Creates the completion ring of a queue that does not send: the kernel requires one.
    pub(super) fn create_unused_ring(socket: &XdpSocket) -> io::Result<()> {
        socket.make_ring(libc::XDP_UMEM_COMPLETION_RING, 1)
    }
}
