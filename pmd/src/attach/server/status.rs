//! What a datapath process does, for operators.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use fcvi_frame::fc::NPortId;
use vi_engine::{EndpointState, ViIndex};

use super::{Core, Served, Session};
use crate::attach::client::ClientId;
use crate::device::Device;
use crate::driver::Driver;
use crate::nic::{self, NeighbourPort, OwnPort};
use crate::sync::Ordering;
use crate::transport::Peer;

/// A datapath process at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its pollers.
    pub cores: Vec<CoreStatus>,
    /// Its NICs.
    pub nics: Vec<NicStatus>,
    /// The applications that are attached, one for each NIC they have.
    pub applications: Vec<ApplicationStatus>,
    /// Their VIs.
    pub vis: Vec<ViStatus>,
}

/// A pinned thread.
#[derive(Clone, Debug)]
pub struct CoreStatus {
    /// Its core.
    pub core: usize,
    /// Rounds: one turn of each of its NICs.
    pub turns: u64,
    /// Of these, in which anything was done.
    pub busy_turns: u64,
    /// How often it went to sleep.
    pub sleeps: u64,
    /// It sleeps.
    pub sleeping: bool,
}

/// A NIC.
#[derive(Clone, Debug)]
pub struct NicStatus {
    /// Its name.
    pub name: String,
    /// Driver of its port.
    pub driver: String,
    /// Device of its port.
    pub device: String,
    /// Its own port.
    pub port: Option<OwnPort>,
    /// Those that it sees.
    pub neighbours: Vec<NeighbourPort>,
    /// Its host address.
    pub host: [u8; 16],
    /// Every counter by name: messages, frames, drops with their reasons.
    pub counters: Vec<(String, u64)>,
}

/// An application on one NIC.
#[derive(Clone, Debug)]
pub struct ApplicationStatus {
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The NIC.
    pub nic: String,
    /// VIs.
    pub vis: u32,
    /// Registered regions.
    pub regions: u32,
    /// Those of them with a bounce buffer.
    pub bounce_buffer_regions: u32,
    /// Registered bytes.
    pub registered_bytes: u64,
    /// Descriptors submitted since it attached.
    pub posted: u64,
    /// Of these, completed.
    pub completed: u64,
    /// Calls of it that are under way.
    pub waiting: u32,
    /// Submissions for VIs that were gone.
    pub stale: u64,
    /// Asynchronous errors that it could not be told.
    pub errors_dropped: u64,
    /// Calls that failed because of a limit.
    pub refused_calls: u64,
    /// What it may have, and has.
    pub quotas: Vec<QuotaUse>,
}

/// A quota of an application, and how much of it is used.
#[derive(Clone, Copy, Debug)]
pub struct QuotaUse {
    /// Its key in `[process.quota]`.
    pub key: &'static str,
    /// Its value.
    pub value: u64,
    /// What counts against it.
    pub in_use: u64,
}

/// A VI of an application.
#[derive(Clone, Debug)]
pub struct ViStatus {
    /// The application.
    pub pid: i32,
    /// The NIC.
    pub nic: String,
    /// Its number there.
    pub index: u32,
    /// Its state.
    pub state: EndpointState,
    /// Reliability level bit.
    pub reliability: u16,
    /// The N_Port at the other end, if there is one, and its host if that is known.
    pub peer: Option<(Option<NPortId>, Option<[u8; 16]>)>,
    /// Descriptors posted and not complete: sends, receives.
    pub depth: [u32; 2],
    /// Messages that completed without an error: sent, received.
    pub messages: [u64; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
    /// RDMA accesses of the peer that were refused.
    pub refused_accesses: u32,
}

pub(super) fn of(nics: &[Served], cores: &[Arc<Core>], sessions: &[Arc<Session>]) -> Status {
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

/// Numbers of VIs that are looked at while nobody else has the turn.
const VIS_IN_TURN: usize = 256;

/// What there is to see of a VI under the turn.
struct Seen {
    client: ClientId,
    peer: Option<Peer>,
    index: ViIndex,
    state: EndpointState,
    reliability: u16,
    depth: [u32; 2],
    messages: [u64; 2],
    bytes: [u64; 2],
    refused_accesses: u32,
}

/// The VIs of applications, and the hosts of ports, own one included. The poller goes on between
/// one look and the next.
fn look_at(device: &Device) -> (Vec<Seen>, HashMap<NPortId, [u8; 16]>) {
    let (mut seen, mut hosts) = (Vec::new(), Vec::new());
    for from in (0..device.config.max_vi as usize).step_by(VIS_IN_TURN) {
        seen.reserve(VIS_IN_TURN);
        let held = device.hold();
        let Some(poller) = held.as_ref().and_then(Driver::engine) else {
            break;
        };
        if from == 0 {
            if let Some(engine) = poller.engine.fc_vi() {
                hosts.push((engine.config().n_port_id, device.host));
            }
            hosts.extend(poller.neighbours.others().map(|(id, host)| (id, host.0)));
        }
        let vis = poller.path.vis.iter().skip(from).take(VIS_IN_TURN);
        seen.extend(vis.flatten().filter_map(|path| {
            let vi = path.shared;
            Some(Seen {
                client: path.client?,
                peer: poller.engine.peer(vi.index),
                index: vi.index,
                state: vi.state(),
                reliability: vi.settings().reliability,
                depth: [vi.send.depth(), vi.recv.depth()],
                messages: path.traffic.messages,
                bytes: path.traffic.bytes,
                refused_accesses: poller.engine.refused_accesses(vi.index),
            })
        }));
    }
    // The first word on a port counts.
    (seen, hosts.into_iter().rev().collect())
}

fn vi_statuses(served: &Served, sessions: &[Arc<Session>]) -> Vec<ViStatus> {
    let device = served.device;
    let (seen, hosts) = look_at(device);
    // Whoever is still served now was so while the VIs were looked at.
    let pids: HashMap<ClientId, i32> = sessions
        .iter()
        .filter(|session| core::ptr::eq(session.device, device))
        .filter_map(|session| Some((session.client()?, session.peer.pid)))
        .collect();
    seen.into_iter()
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
        turns: counters.rounds.load(Ordering::Relaxed),
        busy_turns: counters.busy_rounds.load(Ordering::Relaxed),
        sleeps: counters.sleeps.load(Ordering::Relaxed),
        sleeping: counters.sleeping.load(Ordering::Relaxed),
    }
}

fn nic_status(served: &Served) -> NicStatus {
    let (driver, device) = {
        let held = served.device.hold();
        let poller = held.as_ref().and_then(Driver::engine);
        poller.map_or_else(Default::default, |poller| {
            let port = poller.path.port.capabilities();
            (port.driver.to_string(), port.device.clone())
        })
    };
    let handle = *served.nic.lock().unwrap_or_else(PoisonError::into_inner);
    let neighbourhood = nic::neighbourhood(handle).ok();
    NicStatus {
        name: served.config.name.clone(),
        driver,
        device,
        port: neighbourhood.as_ref().map(|n| n.own),
        neighbours: neighbourhood.map(|n| n.ports).unwrap_or_default(),
        host: served.device.host,
        counters: nic::counters(handle).unwrap_or_default(),
    }
}
