//! NICs, VIs and completion queues by handle: what the front end calls.
//!
//! Every function takes handles as programs hold them and checks them: a stale
//! or made-up one gives [`ControlError::InvalidParameter`]. All of them may be
//! called from any thread.

mod choices;
mod neighbourhood;
mod users;

use std::path::Path;
use std::time::Duration;

use fcvi_frame::connect::{Attributes, HostAddress, NetAddress};
use vi_engine::EndpointState;

use crate::attach::calls;
use crate::config::{NicConfig, Protection};
use crate::control::{self, ControlError, Outcome, attributes};
use crate::device::{self, Device, device_of};
use crate::driver::Driver;
use crate::instance::{Conn, Handler};
use crate::memory::place::Owner;
use crate::open::OpenError;
use crate::sys;
use crate::vi::{Kind, RawHandle, ViSettings, ViShared, cq_of, vi_of};

pub use choices::{agreement, choices, request_security, set_choices};
pub use neighbourhood::{
    FoundPort, LoginState, NeighbourPort, Neighbourhood, OwnPort, OwnState, await_neighbourhood,
    neighbourhood,
};
pub use users::{peer_user, request_user};

fn nic(handle: u64) -> Outcome<&'static Device> {
    let raw = RawHandle::unpack(handle);
    if raw.kind != Kind::Nic as u8 {
        return Err(ControlError::InvalidParameter);
    }
    device_of(raw.device)
        .filter(|device| device.is_ours() && device.instances.is_open(handle))
        .ok_or(ControlError::InvalidParameter)
}

/// Logs a line about the NIC of an object, by the object's handle, unless there are too many.
pub fn log_limited(handle: u64, level: log::Level, line: core::fmt::Arguments<'_>) {
    if let Some(device) = device_of(RawHandle::unpack(handle).device) {
        device.log_limited(level, line);
    }
}

/// The longest message of the NIC of an object, by the object's handle.
pub fn max_transfer_bytes(handle: u64) -> Option<u32> {
    Some(device_of(RawHandle::unpack(handle).device)?.max_transfer_bytes())
}

#[inline]
fn vi(handle: u64) -> Outcome<&'static ViShared> {
    vi_of(handle).ok_or(ControlError::InvalidParameter)
}

/// Opens a NIC; each opening has its own handle (VIPL 3.1.1).
pub fn open(config: &NicConfig) -> Result<u64, OpenError> {
    device::open(config).map(|(_, instance)| instance)
}

/// Opens a NIC that a datapath process has, by the process's socket and a device name of its
/// configuration.
pub fn attach(socket: &Path, name: &str) -> Result<u64, OpenError> {
    device::attach(socket, name).map(|(_, instance)| instance)
}

/// As [`attach`], for a program that wants this of VIs without a protection tag. Strict protection
/// holds for it whatever the process allows others; lenient protection is not given where the
/// process is strict.
pub fn attach_as(socket: &Path, name: &str, protection: Protection) -> Result<u64, OpenError> {
    device::attach_as(socket, name, Some(protection)).map(|(_, instance)| instance)
}

/// Ends one opening and releases what it owns (VIPL 3.1.2). When this returns `Ok`, nothing
/// touches memory that was registered over it any more.
///
/// # Errors
/// `InvalidParameter` for a handle that is not open. `Resource` if a datapath process that lives has
/// not acknowledged it within 10 seconds: the NIC stays open and its memory registered.
pub fn close(handle: u64) -> Outcome<()> {
    device::close(nic(handle)?, handle)
}

/// What is fixed about an open NIC.
#[derive(Clone, Copy, Debug)]
pub struct NicInfo {
    /// Its configuration.
    pub config: &'static NicConfig,
    /// Its host address; valid for the life of the process.
    pub host: &'static [u8; 16],
    /// User bytes in a frame of a send.
    pub native_mtu_bytes: u32,
    /// Bytes of the longest message.
    pub max_transfer_bytes: u32,
    /// VIs that this program may have.
    pub max_vi: u32,
    /// Regions that it may have.
    pub max_regions: u32,
    /// A datapath process moves the bytes, not this program.
    pub attached: bool,
}

/// What is fixed about an open NIC (VIPL 3.7.1).
pub fn info(handle: u64) -> Outcome<NicInfo> {
    let device = nic(handle)?;
    let (max_vi, max_regions) = device.quota();
    Ok(NicInfo {
        max_vi,
        max_regions,
        config: &device.config,
        host: &device.host,
        native_mtu_bytes: native_mtu_bytes(device)?,
        max_transfer_bytes: device.max_transfer_bytes(),
        attached: device.is_attached(),
    })
}

/// User bytes in a frame of a send.
pub(crate) fn native_mtu_bytes(device: &Device) -> Outcome<u32> {
    if let Some(bytes) = device.native_mtu_bytes() {
        return Ok(bytes);
    }
    let held = device.hold();
    let poller = held.as_ref().and_then(Driver::engine);
    let poller = poller.ok_or(ControlError::InvalidParameter)?;
    Ok(poller.engine.native_mtu_bytes())
}

/// All counters of a NIC by name.
pub fn counters(handle: u64) -> Outcome<Vec<(String, u64)>> {
    let device = nic(handle)?;
    if device.is_attached() {
        return calls::counters(device, handle);
    }
    Ok(device.counters())
}

/// Sets the error handler of an opening; `None` for the default one (VIPL 3.8.1).
pub fn set_error_handler(handle: u64, handler: Option<Handler>) -> Outcome<()> {
    if nic(handle)?.instances.set_handler(handle, handler) {
        Ok(())
    } else {
        Err(ControlError::InvalidParameter)
    }
}

/// Makes a protection tag (VIPL 3.4.1).
pub fn create_ptag(handle: u64) -> Outcome<u64> {
    let device = nic(handle)?;
    if device.is_attached() {
        return calls::create_ptag(device, handle);
    }
    device
        .instances
        .create_tag(device.number(), handle, device.config.max_ptags)
}

/// Ends a protection tag that nothing uses (VIPL 3.4.2).
pub fn destroy_ptag(handle: u64, ptag: u64) -> Outcome<()> {
    let device = nic(handle)?;
    if device.is_attached() {
        return calls::destroy_ptag(device, handle, ptag);
    }
    control::destroy_ptag(device, ptag)
}

/// Attributes of a region, with the tag as a handle; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MemSettings {
    /// Protection tag.
    pub ptag: u64,
    /// Peers may write.
    pub rdma_write: bool,
    /// Peers may read.
    pub rdma_read: bool,
}

/// Registers memory; returns its handle (VIPL 3.4.3).
///
/// # Safety
/// The range stays mapped until [`deregister`] or [`close`] returned `Ok` for it; any other result
/// of these, `InvalidParameter` included, does not show that it is not used any more. The program
/// allows the provider and, if `settings` say so, peers to read and write it.
pub unsafe fn register(
    handle: u64,
    address: u64,
    length_bytes: u64,
    settings: &MemSettings,
) -> Outcome<u32> {
    let device = nic(handle)?;
    if device.is_attached() {
        let range = (address, length_bytes);
        // SAFETY: passed on from our caller.
        return unsafe { calls::register(device, handle, range, settings) };
    }
    attributes::check_region(device, settings)?;
    let mut random = [0u8; 2];
    sys::random_bytes(&mut random);
    let random = u16::from_ne_bytes(random);
    // Once more, where whoever closes the opening or ends the tag finds the region, or is found.
    let admit = || {
        nic(handle)?;
        attributes::check_region(device, settings)
    };
    let regions = &device.regions;
    regions.register(handle, address, length_bytes, random, admit)
}

/// Ends a registration (VIPL 3.4.4). When this returns, nothing touches the memory any more,
/// save a post that another thread makes of a descriptor in it at the same moment.
pub fn deregister(handle: u64, address: u64, region: u32) -> Outcome<()> {
    let device = nic(handle)?;
    if device.is_attached() {
        return calls::deregister(device, handle, address, region);
    }
    let removed = {
        let _no_turn_runs = device.hold();
        let regions = &device.regions;
        regions.deregister(Owner::PROGRAM, address, region)
    };
    removed.map(drop).ok_or(ControlError::InvalidParameter)
}

/// Attributes of a registration (VIPL 3.7.5).
pub fn query_region(handle: u64, address: u64, region: u32) -> Outcome<MemSettings> {
    let device = nic(handle)?;
    let found = device
        .regions
        .query(Owner::PROGRAM, address, region)
        .ok_or(ControlError::InvalidParameter)?;
    Ok(MemSettings {
        ptag: if found.tag == 0 {
            0
        } else {
            RawHandle::pack(Kind::Ptag, device.number(), 1, found.tag)
        },
        rdma_write: found.rdma_write,
        rdma_read: found.rdma_read,
    })
}

/// Changes the attributes of a registration, all of them or none (VIPL 3.7.4). What the tag
/// and the rights do not allow any more is refused from then on.
///
/// # Safety
/// The owner of the registered memory allows whatever `settings` allow peers, as for [`register`].
pub unsafe fn set_region(
    handle: u64,
    address: u64,
    region: u32,
    settings: &MemSettings,
) -> Outcome<()> {
    let device = nic(handle)?;
    if device.is_attached() {
        return calls::set_region(device, handle, (address, region), settings);
    }
    attributes::set_region(device, Owner::PROGRAM, (address, region), settings)
}

/// Makes a completion queue of at least so many entries (VIPL 3.6.1).
pub fn create_cq(handle: u64, entries: u64) -> Outcome<u64> {
    control::create_cq(nic(handle)?, handle, entries)
}

/// Ends a completion queue (VIPL 3.6.2).
pub fn destroy_cq(handle: u64) -> Outcome<()> {
    control::destroy_cq(cq_of(handle).ok_or(ControlError::InvalidParameter)?, handle)
}

/// Changes how many entries a completion queue holds at least (VIPL 3.6.3).
pub fn resize_cq(handle: u64, entries: u64) -> Outcome<()> {
    let cq = cq_of(handle).ok_or(ControlError::InvalidParameter)?;
    control::resize_cq(cq, handle, entries)
}

/// Makes a VI (VIPL 3.2.1); 0 for a completion queue means none.
pub fn create_vi(handle: u64, settings: &ViSettings, send_cq: u64, recv_cq: u64) -> Outcome<u64> {
    let device = nic(handle)?;
    if device.is_attached() {
        return calls::create_vi(device, handle, settings, (send_cq, recv_cq));
    }
    control::create_vi(device, handle, settings, (send_cq, recv_cq))
}

/// Ends a VI (VIPL 3.2.2).
pub fn destroy_vi(handle: u64) -> Outcome<()> {
    let vi = vi(handle)?;
    if vi.device.is_attached() {
        return calls::destroy_vi(vi, handle);
    }
    control::destroy_vi(vi, handle)
}

/// What VipQueryVi tells (VIPL 3.7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViInfo {
    /// State.
    pub state: EndpointState,
    /// Attributes as given.
    pub settings: ViSettings,
    /// Nothing on the send queue.
    pub send_empty: bool,
    /// Nothing on the receive queue.
    pub recv_empty: bool,
}

/// State and attributes of a VI.
pub fn query_vi(handle: u64) -> Outcome<ViInfo> {
    let vi = vi(handle)?;
    if vi.device.is_attached() {
        return calls::query_vi(vi, handle);
    }
    vi.device.poll();
    // Before the state: a descriptor may be reaped at any time, but what came after a state does not
    // stand beside it.
    let (send_empty, recv_empty) = (vi.send.is_empty(), vi.recv.is_empty());
    Ok(ViInfo {
        state: control::state(vi, handle)?,
        settings: vi.settings(),
        send_empty,
        recv_empty,
    })
}

/// Changes the attributes of an Idle VI, all of them or none (VIPL 3.7.2).
pub fn set_vi(handle: u64, settings: &ViSettings) -> Outcome<()> {
    let vi = vi(handle)?;
    if vi.device.is_attached() {
        return calls::set_vi(vi, handle, settings);
    }
    attributes::set_vi(vi, handle, settings)
}

/// Hosts of other programs that the NIC can reach, each once: with discovery, or where a
/// segment shows its stations, those that are there; else the configured ones (VIPL 3.7.6).
/// All of them are one hop away.
pub fn discovered_hosts(handle: u64) -> Outcome<Vec<HostAddress>> {
    let device = nic(handle)?;
    if device.is_attached() {
        return calls::discovered_hosts(device, handle);
    }
    let mut held = device.hold();
    let driver = held.as_mut().ok_or(ControlError::InvalidParameter)?;
    device.rest.leave(driver);
    // Who joined or left just now counts.
    driver.long_turn(&device.doorbells);
    device.announce(driver);
    let poller = driver.engine().ok_or(ControlError::InvalidParameter)?;
    Ok(poller.neighbours.discovered())
}

/// A request that was matched.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Handle to accept or reject it.
    pub conn: u64,
    /// The client's name for the connection.
    pub remote: NetAddress,
    /// Attributes of the client's VI.
    pub attributes: Attributes,
}

/// Can this NIC say the discriminator of this address?
fn fits(device: &Device, address: &NetAddress) -> bool {
    address.discriminator.as_bytes().len() <= device.config.max_discriminator_bytes.into()
}

/// Waits for a connection request (VIPL 3.3.1).
pub fn connect_wait(handle: u64, local: &NetAddress, limit: Option<Duration>) -> Outcome<Request> {
    let device = nic(handle)?;
    if local.host.0 != device.host || !fits(device, local) {
        return Err(ControlError::InvalidParameter);
    }
    let (found, remote, attributes) = if device.is_attached() {
        calls::connect_wait(device, handle, local, limit)?
    } else {
        let found = control::connect_wait(device, handle, local, limit)?;
        (Conn::Engine(found.conn), found.remote, found.attributes)
    };
    let Some(conn) = device.instances.add_conn(device.number(), handle, found) else {
        // Closed meanwhile: the client need not wait. One that is gone needs no answer.
        let _gone = reject(device, found);
        return Err(ControlError::InvalidParameter);
    };
    Ok(Request {
        conn,
        remote,
        attributes,
    })
}

fn reject(device: &'static Device, conn: Conn) -> Outcome<()> {
    match conn {
        Conn::Engine(id) => control::connect_reject(device, id),
        Conn::Process(conn) => calls::connect_reject(device, conn),
    }
}

fn conn(handle: u64) -> Outcome<(&'static Device, Conn)> {
    let raw = RawHandle::unpack(handle);
    if raw.kind != Kind::Conn as u8 {
        return Err(ControlError::InvalidParameter);
    }
    let device = device_of(raw.device)
        .filter(|device| device.is_ours())
        .ok_or(ControlError::InvalidParameter)?;
    let id = device
        .instances
        .conn(handle)
        .ok_or(ControlError::InvalidParameter)?;
    Ok((device, id))
}

/// Is this a request that can still be answered?
pub(crate) fn is_pending(conn_handle: u64) -> bool {
    conn(conn_handle).is_ok()
}

/// Accepts a request (VIPL 3.3.2). The handle stays valid if the attributes conflict or the
/// VI is not Idle; else it is used up.
pub fn connect_accept(conn_handle: u64, vi_handle: u64) -> Outcome<()> {
    let (device, id) = conn(conn_handle)?;
    let vi = vi(vi_handle)?;
    if !core::ptr::eq(vi.device, device) {
        return Err(ControlError::InvalidParameter);
    }
    let outcome = match id {
        Conn::Engine(id) => control::connect_accept(id, vi, vi_handle),
        Conn::Process(conn) => calls::connect_accept(conn, vi, vi_handle),
    };
    let again = matches!(
        outcome,
        Err(ControlError::InvalidState
            | ControlError::ReliabilityLevel
            | ControlError::Mtu
            | ControlError::Qos)
    );
    if !again {
        device.instances.remove_conn(conn_handle);
    }
    outcome
}

/// Rejects a request (VIPL 3.3.3); the handle is used up.
pub fn connect_reject(conn_handle: u64) -> Outcome<()> {
    let (device, id) = conn(conn_handle)?;
    device.instances.remove_conn(conn_handle);
    match reject(device, id) {
        // The client gave up before: both sides agree that there is no connection (VIPL 6.7).
        Ok(()) | Err(ControlError::InvalidParameter) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Requests a connection (VIPL 3.3.4); `None` for no time-out.
pub fn connect_request(
    vi_handle: u64,
    local: &NetAddress,
    remote: &NetAddress,
    limit: Option<Duration>,
) -> Outcome<Attributes> {
    let vi = vi(vi_handle)?;
    let named = fits(vi.device, local) && fits(vi.device, remote);
    if !named || local.host.0 != vi.device.host || limit == Some(Duration::ZERO) {
        return Err(ControlError::InvalidParameter);
    }
    if vi.device.is_attached() {
        return calls::connect_request(vi, vi_handle, local, remote, limit);
    }
    control::connect_request(vi, vi_handle, local, remote, limit)
}

/// Asks a peer for a connection (VIPL 3.3.6); `None` for no time-out.
pub fn connect_peer_request(
    vi_handle: u64,
    local: &NetAddress,
    remote: &NetAddress,
    limit: Option<Duration>,
) -> Outcome<()> {
    let vi = vi(vi_handle)?;
    let named = fits(vi.device, local) && fits(vi.device, remote);
    if !named || local.host.0 != vi.device.host || limit == Some(Duration::ZERO) {
        return Err(ControlError::InvalidParameter);
    }
    if vi.device.is_attached() {
        return calls::connect_peer_request(vi, vi_handle, local, remote, limit);
    }
    control::connect_peer_request(vi, vi_handle, local, remote, limit)
}

/// The outcome of a peer request, once; `None` while it is in progress (VIPL 3.3.7).
pub fn connect_peer_done(vi_handle: u64) -> Outcome<Option<Attributes>> {
    let vi = vi(vi_handle)?;
    if vi.device.is_attached() {
        return calls::connect_peer_done(vi, vi_handle);
    }
    vi.device.poll();
    control::connect_peer_done(vi, vi_handle)
}

/// Waits for the outcome of a peer request (VIPL 3.3.8).
pub fn connect_peer_wait(vi_handle: u64) -> Outcome<Attributes> {
    let vi = vi(vi_handle)?;
    if vi.device.is_attached() {
        return calls::connect_peer_wait(vi, vi_handle);
    }
    control::connect_peer_wait(vi, vi_handle)
}

/// Ends a connection and flushes both queues (VIPL 3.3.5).
pub fn disconnect(handle: u64) -> Outcome<()> {
    let vi = vi(handle)?;
    if vi.device.is_attached() {
        return calls::disconnect(vi, handle);
    }
    control::disconnect(vi, handle)
}
