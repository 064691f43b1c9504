//! What all stations of a hub share, and the rings between each two.

use std::sync::Arc;

use super::config::{LoopbackConfig, LoopbackError};
use crate::mapping::Mapping;
use crate::mbuf::Mbuf;
use crate::mempool::{Mempool, MempoolConfig};
use crate::port::{MacBytes, Neighbour};
use crate::ring::{Consumer, Producer, spsc};
use crate::sync::mapped::{AtomicBool, AtomicU64, Ordering};
use crate::wake::Bell;

/// A station as the others see it.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) mac: MacBytes,
    present: AtomicBool,
    pub(super) bell: Arc<Bell>,
    /// The station's buffers, kept mapped while anyone may hold one of them.
    pub(super) buffers: Arc<Mapping>,
}

/// All stations. A port keeps it alive, and with it every buffer it may hold.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) stations: Vec<Station>,
    epoch: AtomicU64,
}

impl Hub {
    /// Changes whenever a station leaves.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        // Acquire: partner is the Release in `leave`; who sees the new epoch sees who is gone.
        self.epoch.load(Ordering::Acquire)
    }

    /// True until the station leaves.
    pub(super) fn is_present(&self, station: usize) -> bool {
        // Relaxed: ordered by the epoch, which is read first.
        self.stations[station].present.load(Ordering::Relaxed)
    }

    /// Takes a station off the hub and tells the others.
    pub(super) fn leave(&self, station: usize) {
        // Relaxed: ordered by the epoch.
        self.stations[station]
            .present
            .store(false, Ordering::Relaxed);
        // Release: partner is the Acquire in `epoch`.
        self.epoch.fetch_add(1, Ordering::Release);
        for other in &self.stations {
            other.bell.ring();
        }
    }

    /// How the station is called in events; no address is used twice in the life of a hub.
    pub(super) fn neighbour(&self, station: usize) -> Neighbour {
        Neighbour {
            mac: self.stations[station].mac,
            generation: 0,
        }
    }
}

/// The ends of one station's rings to and from one other station (or itself).
#[derive(Debug)]
pub(super) struct Link {
    /// Our buffers with frames, to them.
    pub(super) sent: Producer<Mbuf>,
    /// Our buffers, back from them.
    pub(super) returned: Consumer<Mbuf>,
    /// Their buffers with frames, to us.
    pub(super) received: Consumer<Mbuf>,
    /// Their buffers, back to them.
    pub(super) give_back: Producer<Mbuf>,
}

/// One direction between two stations: the ends at the sender, then those at the receiver.
type Way = (
    (Producer<Mbuf>, Consumer<Mbuf>),
    (Consumer<Mbuf>, Producer<Mbuf>),
);

fn way(frames: u32) -> Way {
    let (sent, received) = spsc(frames as usize);
    let (give_back, returned) = spsc(frames as usize);
    ((sent, returned), (received, give_back))
}

/// Makes the links of every station: `links[station][peer]`.
pub(super) fn links(count: usize, frames: u32) -> Vec<Vec<Link>> {
    let mut senders = Vec::new();
    let mut receivers: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for _ in 0..count {
        let (ours, theirs): (Vec<_>, Vec<_>) = (0..count).map(|_| way(frames)).unzip();
        senders.push(ours);
        for (station, end) in receivers.iter_mut().zip(theirs) {
            station.push(end);
        }
    }
    let join = |(senders, receivers): (Vec<_>, Vec<_>)| {
        let ends = senders.into_iter().zip(receivers);
        ends.map(
            |((sent, returned), (received, give_back)): ((_, _), (_, _))| Link {
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

/// The pool of one station: the full share of every receiver, one for
/// addresses that nobody has and one for group addresses, so that no receiver
/// can starve another.
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

/// Makes what the stations share.
pub(super) fn hub(config: &LoopbackConfig, pools: &[Mempool]) -> Hub {
    let stations = config.macs.iter().zip(pools).map(|(&mac, pool)| Station {
        mac,
        present: AtomicBool::new(true),
        bell: Arc::new(Bell::default()),
        buffers: Arc::clone(pool.mapping()),
    });
    Hub {
        stations: stations.collect(),
        epoch: AtomicU64::new(0),
    }
}
