//! State shared by all stations of a hub, and the rings between each pair.

use std::sync::Arc;

use super::config::{LoopbackConfig, LoopbackError};
use crate::mapping::Mapping;
use crate::mbuf::Mbuf;
use crate::mempool::{Mempool, MempoolConfig};
use crate::port::{MacBytes, Neighbour};
use crate::ring::{Consumer, Producer, spsc};
use crate::sync::mapped::{AtomicBool, AtomicU64, Ordering};
use crate::wake::WakeSignal;

/// A station as seen by the others.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) mac: MacBytes,
    present: AtomicBool,
    pub(super) wake: Arc<WakeSignal>,
    /// The station's buffers, kept mapped while any port may hold one of them.
    pub(super) buffers: Arc<Mapping>,
}

/// All stations. Each port keeps the hub alive, and with it every buffer that the port may hold.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) stations: Vec<Station>,
    epoch: AtomicU64,
}

impl Hub {
    /// Returns a number that changes whenever a station leaves.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        // Acquire: partner is the Release in `leave`; a reader of the new epoch sees which station left.
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns whether the station has not left.
    pub(super) fn is_present(&self, station: usize) -> bool {
        // Relaxed: ordered by the epoch, which is read first.
        self.stations[station].present.load(Ordering::Relaxed)
    }

    /// Removes a station from the hub and wakes the others.
    pub(super) fn leave(&self, station: usize) {
        // Relaxed: ordered by the epoch.
        self.stations[station]
            .present
            .store(false, Ordering::Relaxed);
        // Release: partner is the Acquire in `epoch`.
        self.epoch.fetch_add(1, Ordering::Release);
        for other in &self.stations {
            other.wake.notify();
        }
    }

    /// Returns the station as named in events; no address is used twice in the lifetime of a hub.
    pub(super) fn neighbour(&self, station: usize) -> Neighbour {
        Neighbour {
            mac: self.stations[station].mac,
            generation: 0,
        }
    }
}

/// One station's ends of the rings to and from one peer station (or itself).
#[derive(Debug)]
pub(super) struct PeerRings {
    /// Own buffers with frames, to the peer.
    pub(super) sent: Producer<Mbuf>,
    /// Own buffers, returned by the peer.
    pub(super) returned: Consumer<Mbuf>,
    /// The peer's buffers with frames, to this station.
    pub(super) received: Consumer<Mbuf>,
    /// The peer's buffers, to be returned to it.
    pub(super) give_back: Producer<Mbuf>,
}

/// The rings of one direction between two stations: the sender's ends, then the receiver's.
type DirectionRings = (
    (Producer<Mbuf>, Consumer<Mbuf>),
    (Consumer<Mbuf>, Producer<Mbuf>),
);

fn direction_rings(frames: u32) -> DirectionRings {
    let (sent, received) = spsc(frames as usize);
    let (give_back, returned) = spsc(frames as usize);
    ((sent, returned), (received, give_back))
}

/// Creates the rings of every station: `[station][peer]`.
pub(super) fn peer_rings(count: usize, frames: u32) -> Vec<Vec<PeerRings>> {
    let mut senders = Vec::new();
    let mut receivers: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for _ in 0..count {
        let rings = (0..count).map(|_| direction_rings(frames));
        let (sending, receiving): (Vec<_>, Vec<_>) = rings.unzip();
        senders.push(sending);
        for (station, end) in receivers.iter_mut().zip(receiving) {
            station.push(end);
        }
    }
    let join = |(senders, receivers): (Vec<_>, Vec<_>)| {
        let ends = senders.into_iter().zip(receivers);
        ends.map(
            |((sent, returned), (received, give_back)): ((_, _), (_, _))| PeerRings {
                sent,
                returned,
                received,
                give_back,
            },
        )
        .collect()
    };
    senders.into_iter().zip(receivers).map(join).collect()
}

/// Creates the buffer pool of one station: a full share for every receiver, one for
/// unknown addresses and one for group addresses, so that no receiver can starve
/// another.
pub(super) fn pool(config: &LoopbackConfig, station: usize) -> Result<Mempool, LoopbackError> {
    let shares = config.macs.len() as u32 + 2;
    Mempool::new(MempoolConfig {
        buffers: config.frames_per_ring * shares,
        buffer_bytes: config.max_frame_bytes,
        huge_pages: config.huge_pages,
        tag: station as u8,
    })
    .map_err(LoopbackError::Memory)
}

/// Creates the shared state of the stations.
pub(super) fn hub(config: &LoopbackConfig, pools: &[Mempool]) -> Hub {
    let stations = config.macs.iter().zip(pools).map(|(&mac, pool)| Station {
        mac,
        present: AtomicBool::new(true),
        wake: Arc::new(WakeSignal::default()),
        buffers: Arc::clone(pool.mapping()),
    });
    Hub {
        stations: stations.collect(),
        epoch: AtomicU64::new(0),
    }
}
