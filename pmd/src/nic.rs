//! API of NICs, VIs and completion queues by handle, for the front end.
//!
//! Every function validates the handles of programs: a stale or invalid handle gives
//! [`CallError::InvalidParameter`]. All functions may be called from any thread.

mod connection_options;
mod network_view;
mod peer_user;

use std::path::Path;
use std::time::Duration;

use vi_core::handle::{HandleKind, RawHandle};
use vi_core::memory::backing::Owner;
use vi_types::{
    CallError, HostAddress, MemAttributes, NetAddress, Outcome, PtagHandle, ViAttributes, ViInfo,
    ViParams,
};

use crate::config::{NicConfig, Protection};
use crate::control;
use crate::device::{Device, device_of};
use crate::lookup::{Vi, cq_of, vi_of};
use crate::nic_handle::{Conn, Handler};
use crate::open::{self, OpenError};

pub use crate::network_view::{
    DiscoveredPort, LoginState, NeighbourPort, NetworkView, OwnPort, OwnState,
};
pub use connection_options::{
    connection_options, negotiated_options, request_security, set_connection_options,
};
pub use network_view::{await_network_change, network_view};
pub use peer_user::{peer_user, request_user};

fn nic(handle: u64) -> Outcome<&'static Device> {
    let raw = RawHandle::unpack(handle);
    if raw.kind != HandleKind::Nic as u8 {
        return Err(CallError::InvalidParameter);
    }
    device_of(raw.device)
        .filter(|device| device.is_ours() && device.nic_handles.is_open(handle))
        .ok_or(CallError::InvalidParameter)
}

/// Logs a line about the NIC of an object, by the object's handle, within the rate limit.
pub fn log_limited(handle: u64, level: log::Level, line: core::fmt::Arguments<'_>) {
    if let Some(device) = device_of(RawHandle::unpack(handle).device) {
        device.shared.log_limited(level, line);
    }
}

/// Returns the maximum message length in bytes of the NIC of an object, by the object's handle.
pub fn max_transfer_bytes(handle: u64) -> Option<u32> {
    Some(device_of(RawHandle::unpack(handle).device)?.max_transfer_bytes())
}

#[inline]
fn vi(handle: u64) -> Outcome<Vi> {
    vi_of(handle).ok_or(CallError::InvalidParameter)
}

/// Opens a NIC; each call returns a new handle (VIPL 3.1.1).
pub fn open(config: &NicConfig) -> Result<u64, OpenError> {
    open::open(config).map(|(_, nic_handle)| nic_handle)
}

/// Opens a NIC of a datapath process, by the socket of the process and a device name of its
/// configuration.
pub fn attach(socket: &Path, name: &str) -> Result<u64, OpenError> {
    open::attach(socket, name).map(|(_, nic_handle)| nic_handle)
}

/// As [`attach`], with the required access of VIs without a protection tag. Strict protection
/// is always available; lenient protection fails if the process is strict.
pub fn attach_as(socket: &Path, name: &str, protection: Protection) -> Result<u64, OpenError> {
    open::attach_as(socket, name, Some(protection)).map(|(_, nic_handle)| nic_handle)
}

/// Closes a NIC handle and releases what it owns (VIPL 3.1.2). After this returns `Ok`,
/// memory that was registered with the handle is not accessed any more.
///
/// # Errors
/// `InvalidParameter` for a handle that is not open. `Resource` if a running datapath process has
/// not acknowledged the close within 10 seconds: the NIC stays open and its memory registered.
pub fn close(handle: u64) -> Outcome<()> {
    open::close(nic(handle)?, handle)
}

/// Constant properties of an open NIC.
#[derive(Clone, Copy, Debug)]
pub struct NicInfo {
    /// Its configuration.
    pub config: &'static NicConfig,
    /// Its host address; valid for the life of the process.
    pub host: &'static [u8; 16],
    /// User bytes in a frame of a send.
    pub native_mtu_bytes: u32,
    /// Maximum message length in bytes.
    pub max_transfer_bytes: u32,
    /// Maximum number of VIs of this program.
    pub max_vi: u32,
    /// Maximum number of regions of this program.
    pub max_regions: u32,
    /// The engine is in a datapath process, which accesses memory of `viaduct_alloc` without copies.
    pub attached: bool,
    /// Other programs of the segment access memory of `viaduct_alloc` directly.
    pub exports_memory: bool,
}

/// Returns the constant properties of an open NIC (VIPL 3.7.1).
pub fn info(handle: u64) -> Outcome<NicInfo> {
    let device = nic(handle)?;
    let (max_vi, max_regions) = device.calls.quota(device);
    Ok(NicInfo {
        max_vi,
        max_regions,
        config: &device.config,
        host: &device.host,
        native_mtu_bytes: device.calls.native_mtu_bytes(device)?,
        max_transfer_bytes: device.max_transfer_bytes(),
        attached: device.attached.is_some(),
        exports_memory: device.shared.regions.exported().is_some(),
    })
}

/// Returns all counters of a NIC by name.
pub fn counters(handle: u64) -> Outcome<Vec<(String, u64)>> {
    let device = nic(handle)?;
    device.calls.counters(device, handle)
}

/// Sets the error handler of a NIC handle; `None` for the default one (VIPL 3.8.1).
pub fn set_error_handler(handle: u64, handler: Option<Handler>) -> Outcome<()> {
    if nic(handle)?.nic_handles.set_handler(handle, handler) {
        Ok(())
    } else {
        Err(CallError::InvalidParameter)
    }
}

/// Creates a protection tag (VIPL 3.4.1).
pub fn create_ptag(handle: u64) -> Outcome<u64> {
    let device = nic(handle)?;
    device.calls.create_ptag(device, handle)
}

/// Destroys an unused protection tag (VIPL 3.4.2).
pub fn destroy_ptag(handle: u64, ptag: u64) -> Outcome<()> {
    let device = nic(handle)?;
    device.calls.destroy_ptag(device, handle, ptag)
}

/// Registers memory; returns its handle (VIPL 3.4.3).
///
/// # Safety
/// The range stays mapped until [`deregister`] or [`close`] has returned `Ok` for it; after any other result, including
/// `InvalidParameter`, it may still be used. The program allows the provider and, as far as `settings` permit, peers to
/// read and write it.
pub unsafe fn register(
    handle: u64,
    address: u64,
    length_bytes: u64,
    settings: &MemAttributes,
) -> Outcome<u32> {
    let device = nic(handle)?;
    let range = (address, length_bytes);
    // SAFETY: guaranteed by the caller.
    unsafe { device.calls.register(device, handle, range, settings) }
}

/// Deregisters memory (VIPL 3.4.4). After this returns, the memory is not accessed any more,
/// except by a concurrent post of a descriptor in it by another thread.
pub fn deregister(handle: u64, address: u64, region: u32) -> Outcome<()> {
    let device = nic(handle)?;
    device.calls.deregister(device, handle, (address, region))
}

/// Returns the attributes of a region (VIPL 3.7.5).
pub fn query_region(handle: u64, address: u64, region: u32) -> Outcome<MemAttributes> {
    let device = nic(handle)?;
    let found = device
        .shared
        .regions
        .query(Owner::PROGRAM, address, region)
        .ok_or(CallError::InvalidParameter)?;
    Ok(MemAttributes {
        ptag: (found.tag != 0).then(|| {
            PtagHandle::from_raw(RawHandle::pack(
                HandleKind::Ptag,
                device.shared.number,
                1,
                found.tag,
            ))
        }),
        rdma_write: found.rdma_write,
        rdma_read: found.rdma_read,
    })
}

/// Changes the attributes of a region, all of them or none (VIPL 3.7.4). Later accesses
/// are checked against the new ones.
///
/// # Safety
/// The owner of the registered memory permits what `settings` allow peers, as for [`register`].
pub unsafe fn set_region(
    handle: u64,
    address: u64,
    region: u32,
    settings: &MemAttributes,
) -> Outcome<()> {
    let device = nic(handle)?;
    device
        .calls
        .set_region(device, handle, (address, region), settings)
}

/// Creates a completion queue of at least `entries` entries (VIPL 3.6.1).
pub fn create_cq(handle: u64, entries: u64) -> Outcome<u64> {
    control::create_cq(nic(handle)?, handle, entries)
}

/// Destroys a completion queue (VIPL 3.6.2).
pub fn destroy_cq(handle: u64) -> Outcome<()> {
    control::destroy_cq(cq_of(handle).ok_or(CallError::InvalidParameter)?, handle)
}

/// Resizes a completion queue to at least `entries` entries (VIPL 3.6.3).
pub fn resize_cq(handle: u64, entries: u64) -> Outcome<()> {
    let cq = cq_of(handle).ok_or(CallError::InvalidParameter)?;
    control::resize_cq(cq, handle, entries)
}

/// Creates a VI (VIPL 3.2.1); 0 for a completion queue means none.
pub fn create_vi(handle: u64, settings: &ViAttributes, send_cq: u64, recv_cq: u64) -> Outcome<u64> {
    let device = nic(handle)?;
    device
        .calls
        .create_vi(device, handle, settings, (send_cq, recv_cq))
}

/// Destroys a VI (VIPL 3.2.2).
pub fn destroy_vi(handle: u64) -> Outcome<()> {
    let vi = vi(handle)?;
    vi.device.calls.destroy_vi(vi, handle)
}

/// Returns state and attributes of a VI.
pub fn query_vi(handle: u64) -> Outcome<ViInfo> {
    let vi = vi(handle)?;
    vi.device.calls.query_vi(vi, handle)
}

/// Changes the attributes of an Idle VI, all of them or none (VIPL 3.7.2).
pub fn set_vi(handle: u64, settings: &ViAttributes) -> Outcome<()> {
    let vi = vi(handle)?;
    vi.device.calls.set_vi(vi, handle, settings)
}

/// Returns the hosts of other programs that the NIC can reach, each once: with discovery, or on a shared-memory
/// segment, those that are present; otherwise the configured ones (VIPL 3.7.6). All of them are one hop away.
pub fn discovered_hosts(handle: u64) -> Outcome<Vec<HostAddress>> {
    let device = nic(handle)?;
    device.calls.discovered_hosts(device, handle)
}

/// A matched connection request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Handle for accepting or rejecting it.
    pub conn: u64,
    /// The client's address.
    pub remote: NetAddress,
    /// ViParams of the client's VI.
    pub attributes: ViParams,
}

/// Returns whether the NIC supports the discriminator length of this address.
fn fits(device: &Device, address: &NetAddress) -> bool {
    address.discriminator.as_bytes().len() <= device.config.limits.max_discriminator_bytes.into()
}

/// Waits for a connection request (VIPL 3.3.1).
pub fn connect_wait(handle: u64, local: &NetAddress, limit: Option<Duration>) -> Outcome<Request> {
    let device = nic(handle)?;
    if local.host.0 != device.host || !fits(device, local) {
        return Err(CallError::InvalidParameter);
    }
    let (found, remote, attributes) = device.calls.connect_wait(device, handle, local, limit)?;
    let Some(conn) = device
        .nic_handles
        .add_conn(device.shared.number, handle, found)
    else {
        // The NIC handle was closed meanwhile. The rejection fails if the client has given up.
        let _withdrawn = device.calls.connect_reject(device, found);
        return Err(CallError::InvalidParameter);
    };
    Ok(Request {
        conn,
        remote,
        attributes,
    })
}

fn conn(handle: u64) -> Outcome<(&'static Device, Conn)> {
    let raw = RawHandle::unpack(handle);
    if raw.kind != HandleKind::Conn as u8 {
        return Err(CallError::InvalidParameter);
    }
    let device = device_of(raw.device)
        .filter(|device| device.is_ours())
        .ok_or(CallError::InvalidParameter)?;
    let id = device
        .nic_handles
        .conn(handle)
        .ok_or(CallError::InvalidParameter)?;
    Ok((device, id))
}

/// Returns whether a request is pending.
pub(crate) fn is_pending(conn_handle: u64) -> bool {
    conn(conn_handle).is_ok()
}

/// Accepts a request (VIPL 3.3.2). Its handle stays valid only if the attributes conflict or the
/// VI is not Idle.
pub fn connect_accept(conn_handle: u64, vi_handle: u64) -> Outcome<()> {
    let (device, id) = conn(conn_handle)?;
    let vi = vi(vi_handle)?;
    if !core::ptr::eq(vi.device, device) {
        return Err(CallError::InvalidParameter);
    }
    let outcome = device.calls.connect_accept(id, vi, vi_handle);
    let is_retryable = matches!(
        outcome,
        Err(CallError::InvalidState
            | CallError::ReliabilityLevel
            | CallError::MaxTransferSize
            | CallError::Qos)
    );
    if !is_retryable {
        device.nic_handles.remove_conn(conn_handle);
    }
    outcome
}

/// Rejects a request (VIPL 3.3.3) and invalidates its handle.
pub fn connect_reject(conn_handle: u64) -> Outcome<()> {
    let (device, id) = conn(conn_handle)?;
    device.nic_handles.remove_conn(conn_handle);
    match device.calls.connect_reject(device, id) {
        // The client has given up: there is no connection on either side (VIPL 6.7).
        Ok(()) | Err(CallError::InvalidParameter) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Requests a connection (VIPL 3.3.4); `None` for no timeout.
pub fn connect_request(
    vi_handle: u64,
    local: &NetAddress,
    remote: &NetAddress,
    limit: Option<Duration>,
) -> Outcome<ViParams> {
    let vi = vi(vi_handle)?;
    let is_valid = fits(vi.device, local) && fits(vi.device, remote);
    if !is_valid || local.host.0 != vi.device.host || limit == Some(Duration::ZERO) {
        return Err(CallError::InvalidParameter);
    }
    vi.device
        .calls
        .connect_request(vi, vi_handle, local, remote, limit)
}

/// Requests a peer-to-peer connection (VIPL 3.3.6); `None` for no timeout.
pub fn connect_peer_request(
    vi_handle: u64,
    local: &NetAddress,
    remote: &NetAddress,
    limit: Option<Duration>,
) -> Outcome<()> {
    let vi = vi(vi_handle)?;
    let is_valid = fits(vi.device, local) && fits(vi.device, remote);
    if !is_valid || local.host.0 != vi.device.host || limit == Some(Duration::ZERO) {
        return Err(CallError::InvalidParameter);
    }
    vi.device
        .calls
        .connect_peer_request(vi, vi_handle, local, remote, limit)
}

/// Takes the outcome of a peer request; `None` while it is in progress (VIPL 3.3.7).
pub fn connect_peer_done(vi_handle: u64) -> Outcome<Option<ViParams>> {
    let vi = vi(vi_handle)?;
    vi.device.calls.connect_peer_done(vi, vi_handle)
}

/// Waits for the outcome of a peer request (VIPL 3.3.8).
pub fn connect_peer_wait(vi_handle: u64) -> Outcome<ViParams> {
    let vi = vi(vi_handle)?;
    vi.device.calls.connect_peer_wait(vi, vi_handle)
}

/// Disconnects a VI and flushes both queues (VIPL 3.3.5).
pub fn disconnect(handle: u64) -> Outcome<()> {
    let vi = vi(handle)?;
    vi.device.calls.disconnect(vi, handle)
}
