//! The status of a datapath process, for operators.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use fcvi_frame::fc::NPortId;
use vi_core::sync::Ordering;
use vi_types::{ViIndex, ViState};

use super::{Core, ServedNic, Session};
use crate::datapath::ClientId;
use crate::device::Device;
use crate::nic::{self, NeighbourPort, OwnPort};
use crate::nic_backend::Backend;
use crate::transport::Peer;

/// The status of a datapath process.
#[derive(Clone, Debug)]
pub struct Status {
    /// The poll threads.
    pub cores: Vec<CoreStatus>,
    /// The NICs.
    pub nics: Vec<NicStatus>,
    /// The attached applications, once for each NIC that they use.
    pub applications: Vec<ApplicationStatus>,
    /// The VIs of the applications.
    pub vis: Vec<ViStatus>,
}

/// A pinned poll thread.
#[derive(Clone, Debug)]
pub struct CoreStatus {
    /// Its core.
    pub core: usize,
    /// Rounds: one poll of each of its NICs.
    pub rounds: u64,
    /// Rounds in which there was work.
    pub busy_rounds: u64,
    /// Sleeps.
    pub sleeps: u64,
    /// True while it sleeps.
    pub sleeping: bool,
}

/// A NIC.
#[derive(Clone, Debug)]
pub struct NicStatus {
    /// Its name.
    pub name: String,
    /// The driver of its port.
    pub driver: String,
    /// The device of its port.
    pub device: String,
    /// Its own port.
    pub port: Option<OwnPort>,
    /// The neighbour ports.
    pub neighbours: Vec<NeighbourPort>,
    /// Its host address.
    pub host: [u8; 16],
    /// All counters by name: messages, frames, drops with their reasons.
    pub counters: Vec<(String, u64)>,
}

/// An application on one NIC.
#[derive(Clone, Debug)]
pub struct ApplicationStatus {
    /// Its process ID.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The NIC.
    pub nic: String,
    /// Number of VIs.
    pub vis: u32,
    /// Number of registered regions.
    pub regions: u32,
    /// Number of regions with a bounce buffer.
    pub bounce_buffer_regions: u32,
    /// Registered bytes.
    pub registered_bytes: u64,
    /// Descriptors submitted since it attached.
    pub posted: u64,
    /// Descriptors completed since it attached.
    pub completed: u64,
    /// Short messages of private memory that were passed in inline buffers, sent and received.
    pub inline_messages: u64,
    /// Calls in progress.
    pub waiting: u32,
    /// Submissions for VIs that did not exist.
    pub stale: u64,
    /// Asynchronous errors that could not be reported.
    pub errors_dropped: u64,
    /// Calls that failed because of a limit, and posts for which the process had no memory.
    pub refused_calls: u64,
    /// Quotas and their use.
    pub quotas: Vec<QuotaUse>,
}

/// A quota of an application and its use.
#[derive(Clone, Copy, Debug)]
pub struct QuotaUse {
    /// The key in `[process.quota]`.
    pub key: &'static str,
    /// The limit.
    pub value: u64,
    /// The amount in use.
    pub in_use: u64,
}

/// A VI of an application.
#[derive(Clone, Debug)]
pub struct ViStatus {
    /// The process ID of its application.
    pub pid: i32,
    /// The NIC.
    pub nic: String,
    /// Its index on the NIC.
    pub index: u32,
    /// Its state.
    pub state: ViState,
    /// Reliability level bit.
    pub reliability: u16,
    /// The N_Port_ID of the peer, and its host if known; `None` without a connection.
    pub peer: Option<(Option<NPortId>, Option<[u8; 16]>)>,
    /// Descriptors posted and not complete: sends, receives.
    pub depth: [u32; 2],
    /// Messages that completed without an error: sent, received.
    pub messages: [u64; 2],
    /// Bytes of these messages: sent, received.
    pub bytes: [u64; 2],
    /// RDMA accesses of the peer that were refused.
    pub refused_accesses: u32,
}

/// Collects the status.
pub(super) fn of(nics: &[ServedNic], cores: &[Arc<Core>], sessions: &[Arc<Session>]) -> Status {
    Status {
        cores: cores.iter().map(|core| core_status(core)).collect(),
        nics: nics.iter().map(nic_status).collect(),
        applications: sessions.iter().map(|session| session.status()).collect(),
        vis: nics
            .iter()
            .flat_map(|served| vi_statuses(served, sessions))
            .collect(),
    }
}

/// VIs that are read while the backend lock is held.
const VIS_PER_HOLD: usize = 256;

/// State of a VI, read while the backend lock is held.
struct ViSample {
    client: ClientId,
    peer: Option<Peer>,
    index: ViIndex,
    state: ViState,
    reliability: u16,
    depth: [u32; 2],
    messages: [u64; 2],
    bytes: [u64; 2],
    refused_accesses: u32,
}

/// Reads the VIs of applications, and the hosts of all known ports including the own one. The backend lock is
/// released at intervals, so that the poller can continue.
fn sample_vis(device: &Device) -> (Vec<ViSample>, HashMap<NPortId, [u8; 16]>) {
    let (mut samples, mut hosts) = (Vec::new(), Vec::new());
    for from in (0..device.config.limits.max_vi as usize).step_by(VIS_PER_HOLD) {
        samples.reserve(VIS_PER_HOLD);
        let held = device.lock();
        let Some((transport, state)) = held.as_ref().and_then(|backend| backend.local()) else {
            break;
        };
        if from == 0 {
            let known = transport.known_ports().into_iter();
            hosts.extend(known.map(|(id, host)| (id, host.0)));
        }
        let vis = state.path.vis.iter().skip(from).take(VIS_PER_HOLD);
        samples.extend(vis.flatten().filter_map(|path| {
            let vi = path.shared;
            Some(ViSample {
                client: path.client?,
                peer: transport.peer(vi.index),
                index: vi.index,
                state: vi.state(),
                reliability: vi.settings().reliability,
                depth: [vi.send.depth(), vi.recv.depth()],
                messages: path.traffic.messages,
                bytes: path.traffic.bytes,
                refused_accesses: transport.refused_accesses(vi.index),
            })
        }));
    }
    // The first entry of a port is used.
    (samples, hosts.into_iter().rev().collect())
}

fn vi_statuses(served: &ServedNic, sessions: &[Arc<Session>]) -> Vec<ViStatus> {
    let device = served.device;
    let (samples, hosts) = sample_vis(device);
    // An application that is attached now was attached while its VIs were read.
    let pids: HashMap<ClientId, i32> = sessions
        .iter()
        .filter(|session| core::ptr::eq(session.device, device))
        .filter_map(|session| Some((session.client()?, session.peer.pid)))
        .collect();
    samples
        .into_iter()
        .filter_map(|vi| {
            Some(ViStatus {
                pid: *pids.get(&vi.client)?,
                nic: served.config.name.clone(),
                index: vi.index.0,
                state: vi.state,
                reliability: vi.reliability,
                peer: vi.peer.map(|peer| match peer {
                    Peer::Port(id) => (Some(id), hosts.get(&id).copied()),
                    Peer::Host(host) => (None, Some(host.0)),
                }),
                depth: vi.depth,
                messages: vi.messages,
                bytes: vi.bytes,
                refused_accesses: vi.refused_accesses,
            })
        })
        .collect()
}

fn core_status(core: &Core) -> CoreStatus {
    let counters = &core.counters;
    CoreStatus {
        core: core.number,
        rounds: counters.rounds.load(Ordering::Relaxed),
        busy_rounds: counters.busy_rounds.load(Ordering::Relaxed),
        sleeps: counters.sleeps.load(Ordering::Relaxed),
        sleeping: counters.sleeping.load(Ordering::Relaxed),
    }
}

fn nic_status(served: &ServedNic) -> NicStatus {
    let (driver, device) = {
        let held = served.device.lock();
        let poller = held.as_ref().and_then(Backend::state);
        poller.map_or_else(Default::default, |poller| {
            let port = poller.path.port.capabilities();
            (port.driver.to_string(), port.device.clone())
        })
    };
    let handle = *served.nic.lock().unwrap_or_else(PoisonError::into_inner);
    let network_view = nic::network_view(handle).ok();
    NicStatus {
        name: served.config.name.clone(),
        driver,
        device,
        port: network_view.as_ref().map(|n| n.own),
        neighbours: network_view.map(|n| n.ports).unwrap_or_default(),
        host: served.device.host,
        counters: nic::counters(handle).unwrap_or_default(),
    }
}
