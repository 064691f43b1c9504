//! The calls of the guide on plain handles and raw descriptors.
//!
//! Every call may be made from any thread. A stale or invalid handle gives
//! [`VipError::InvalidParameter`]. Each function names the clause of the guide
//! that it implements.

mod peer;

pub use peer::{connect_peer_done, connect_peer_request, connect_peer_wait};

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use pmd::config::{
    NicConfig, Protection, from_environment, protection_from_environment, socket_of,
};
use pmd::nic;
use pmd::queue_calls::{self, WhenFull};
use vi_core::reap;
use vi_types::{CallError, QueueKind, ReliabilityLevel, ViParams};

use crate::name_service::{NameService, NameServiceError};
use crate::types::{
    ConnHandle, ConnectIndication, CqEntry, CqHandle, Done, ErrorDescriptor, ErrorHandler,
    HostAddress, MemAttributes, MemoryHandle, NetAddress, NicAttributes, NicHandle, PtagHandle,
    RawDescriptor, Result, Timeout, ViAttributes, ViHandle, ViInfo, VipError,
};

mod attributes;
mod connection_options;
mod failure;
mod management;
mod notify;
mod users;

pub use attributes::{set_mem_attributes, set_vi_attributes};
pub use connection_options::{
    connection_options, negotiated_options, request_security, set_connection_options,
};
pub use failure::last_error;
use failure::{explain, failed, vi_failed};
pub use management::autodiscovery;
pub(crate) use notify::queue_notify;
pub use notify::{cq_notify, recv_notify, send_notify};
pub use users::{peer_user, request_user};

/// The context of descriptors that were not posted by the safe API.
const NO_CONTEXT: usize = 0;

/// The name services of open NICs.
static NAME_SERVICES: LazyLock<Mutex<HashMap<NicHandle, Arc<NameService>>>> =
    LazyLock::new(|| Mutex::new(HashMap::new()));

impl From<CallError> for VipError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::InvalidParameter => Self::InvalidParameter,
            CallError::Resource(_) => Self::ErrorResource,
            CallError::InvalidState => Self::InvalidState,
            CallError::ReliabilityLevel => Self::InvalidReliabilityLevel,
            CallError::MaxTransferSize => Self::InvalidMtu,
            CallError::Qos => Self::InvalidQos,
            CallError::Ptag => Self::InvalidPtag,
            CallError::RdmaRead => Self::InvalidRdmaRead,
            CallError::Timeout => Self::Timeout,
            CallError::Rejected => Self::Reject,
            CallError::NoMatch => Self::NoMatch,
            CallError::NotReachable => Self::NotReachable,
            CallError::QueueEmpty => Self::DescriptorError,
        }
    }
}

/// Opens a NIC by device name (VIPL 3.1.1, 6.5), with the configuration of the environment.
///
/// # Errors
/// `InvalidParameter` for an unknown name, `ErrorResource` if the NIC cannot be opened
/// or the configuration cannot be used; [`last_error`] returns the reason.
pub fn open_nic(name: &str) -> Result<NicHandle> {
    let unusable = |e| explain(VipError::ErrorResource, format!("configuration: {e}"));
    let config = from_environment().map_err(unusable)?;
    if let Some(process) = &config.process {
        let protection = protection_from_environment().map_err(unusable)?;
        return attach(&socket_of(process), name, protection);
    }
    let Some(nic) = config.nic(name) else {
        let known: Vec<&str> = config.nic.iter().map(|n| n.name.as_str()).collect();
        return Err(explain(
            VipError::InvalidParameter,
            format!("no NIC is called {name:?}; there are {}", known.join(", ")),
        ));
    };
    open_nic_with(nic)
}

/// Opens a NIC of the datapath process that listens at `socket`, by a device name of that
/// process's configuration (VIPL 3.1.1).
///
/// # Errors
/// `InvalidParameter` for an unknown name, `ErrorResource` if no process listens there or it
/// refuses the application; [`last_error`] returns the reason.
pub fn attach_nic(socket: &Path, name: &str) -> Result<NicHandle> {
    attach(socket, name, None)
}

fn attach(socket: &Path, name: &str, protection: Option<Protection>) -> Result<NicHandle> {
    let attached = match protection {
        Some(protection) => nic::attach_as(socket, name, protection),
        None => nic::attach(socket, name),
    };
    attached.map(NicHandle::from_raw).map_err(|error| {
        let kind = if error.is_unknown_name() {
            VipError::InvalidParameter
        } else {
            VipError::ErrorResource
        };
        explain(kind, format!("NIC {name}: {error}"))
    })
}

/// Opens the NIC that `config` describes.
///
/// # Errors
/// `ErrorResource` if the NIC cannot be opened; [`last_error`] returns the reason.
pub fn open_nic_with(config: &NicConfig) -> Result<NicHandle> {
    nic::open(config)
        .map(NicHandle::from_raw)
        .map_err(|e| explain(VipError::ErrorResource, format!("NIC {}: {e}", config.name)))
}

/// Closes a NIC handle and releases everything that it owns (VIPL 3.1.2).
///
/// Objects of the safe API that were created from the handle return errors afterwards. Their registered memory and the
/// descriptors posted on their VIs are then leaked.
///
/// # Errors
/// `InvalidParameter` for a handle that is not open; `ErrorResource` if a live datapath process has not acknowledged
/// the call within 10 seconds: the NIC stays open and its memory registered, and the call can be repeated. Also
/// `ErrorResource` for a NIC of a shared-memory segment if another program is stopped while it accesses the memory, after
/// 5 seconds: the handle is closed, but the memory must not be reused before that program continues or ends.
pub fn close_nic(nic_handle: NicHandle) -> Result<()> {
    let nic = nic_handle.into_raw();
    nic::close(nic).map_err(|error| failed("VipCloseNic", nic, error))?;
    name_services().remove(&nic_handle);
    Ok(())
}

/// Returns the attributes of a NIC (VIPL 3.7.1, 4.5).
pub fn query_nic(nic_handle: NicHandle) -> Result<NicAttributes> {
    /// Programs store these numbers in an `int`.
    const MAX_INT: u64 = i32::MAX as u64;
    let info = nic::info(nic_handle.into_raw())?;
    let config = info.config;
    Ok(NicAttributes {
        name: config.name.clone(),
        hardware_version: 0,
        provider_version: provider_version(),
        nic_address_len: info.host.len() as u16,
        local_nic_address: info.host,
        thread_safe: true,
        max_discriminator_len: config.limits.max_discriminator_bytes,
        max_register_bytes: config.limits.max_registered_bytes.min(MAX_INT),
        max_register_regions: u64::from(info.max_regions),
        max_register_block_bytes: config
            .limits
            .max_region_bytes
            .min(config.limits.max_registered_bytes)
            .min(MAX_INT),
        max_vi: u64::from(info.max_vi),
        max_descriptors_per_queue: u64::from(config.limits.max_descriptors_per_queue),
        max_segments_per_desc: u64::from(config.limits.max_segments_per_descriptor),
        max_cq: u64::from(config.limits.max_cq),
        max_cq_entries: u64::from(config.limits.max_cq_entries),
        max_transfer_size: u64::from(info.max_transfer_bytes),
        native_mtu: u64::from(info.native_mtu_bytes),
        max_ptags: u64::from(config.limits.max_ptags),
        reliability_level_support: ReliabilityLevel::ALL_BITS,
        rdma_read_support: ReliabilityLevel::RDMA_READ_BITS,
    })
}

fn provider_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0) & 0xFF;
    (part(env!("CARGO_PKG_VERSION_MAJOR")) << 16)
        | (part(env!("CARGO_PKG_VERSION_MINOR")) << 8)
        | part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// Returns the counters of a NIC by name: messages, frames, and drops by reason.
pub fn counters(nic_handle: NicHandle) -> Result<Vec<(String, u64)>> {
    Ok(nic::counters(nic_handle.into_raw())?)
}

/// Creates a protection tag (VIPL 3.4.1).
pub fn create_ptag(nic_handle: NicHandle) -> Result<PtagHandle> {
    let nic = nic_handle.into_raw();
    let created = nic::create_ptag(nic);
    let created = created.map_err(|error| failed("VipCreatePtag", nic, error))?;
    Ok(PtagHandle::from_raw(created))
}

/// Destroys a protection tag that no VI and no region uses (VIPL 3.4.2).
pub fn destroy_ptag(nic_handle: NicHandle, ptag: PtagHandle) -> Result<()> {
    let nic = nic_handle.into_raw();
    let destroyed = nic::destroy_ptag(nic, ptag.into_raw());
    destroyed.map_err(|error| failed("VipDestroyPtag", nic, error))
}

/// Registers memory (VIPL 3.4.3).
///
/// # Safety
/// The range stays mapped until [`deregister_mem`] or [`close_nic`] has returned `Ok` for it; after any other result of
/// these, including `InvalidParameter`, it may still be in use. The program allows the provider, and peers according to
/// `attributes`, to read and write it.
pub unsafe fn register_mem(
    nic_handle: NicHandle,
    address: u64,
    length_bytes: u64,
    attributes: &MemAttributes,
) -> Result<MemoryHandle> {
    let nic = nic_handle.into_raw();
    // SAFETY: the caller's obligation.
    let handle = unsafe { nic::register(nic, address, length_bytes, attributes) };
    let handle = handle.map_err(|error| failed("VipRegisterMem", nic, error))?;
    Ok(MemoryHandle(handle))
}

/// Reports whether `protection` of the NIC is lenient: memory and VIs may have no tag.
pub fn is_lenient(nic_handle: NicHandle) -> Result<bool> {
    let config = nic::info(nic_handle.into_raw())?.config;
    Ok(config.protection == Protection::Lenient)
}

/// Deregisters memory (VIPL 3.4.4). When it returns `Ok`, the memory is no longer accessed.
///
/// # Errors
/// `InvalidParameter` if no memory is registered so. `ErrorResource` if another program of the shared-memory segment is
/// stopped while it accesses the memory, after 5 seconds: the memory is not registered any more, but must not be reused
/// before that program continues or ends.
pub fn deregister_mem(nic_handle: NicHandle, address: u64, handle: MemoryHandle) -> Result<()> {
    let nic = nic_handle.into_raw();
    let deregistered = nic::deregister(nic, address, handle.0);
    deregistered.map_err(|error| failed("VipDeregisterMem", nic, error))
}

/// Returns the attributes of a registration (VIPL 3.7.5).
pub fn query_mem(
    nic_handle: NicHandle,
    address: u64,
    handle: MemoryHandle,
) -> Result<MemAttributes> {
    Ok(nic::query_region(nic_handle.into_raw(), address, handle.0)?)
}

/// Creates a completion queue of at least `entries` entries (VIPL 3.6.1).
pub fn create_cq(nic_handle: NicHandle, entries: u64) -> Result<CqHandle> {
    let nic = nic_handle.into_raw();
    let created = nic::create_cq(nic, entries);
    let created = created.map_err(|error| failed("VipCreateCQ", nic, error))?;
    Ok(CqHandle::from_raw(created))
}

/// Destroys a completion queue to which no work queue reports (VIPL 3.6.2).
pub fn destroy_cq(cq: CqHandle) -> Result<()> {
    let cq = cq.into_raw();
    nic::destroy_cq(cq).map_err(|error| failed("VipDestroyCQ", cq, error))
}

/// Changes the minimum capacity of a completion queue (VIPL 3.6.3). Its entries stay, in their
/// order; the queue always has room for every descriptor that can be posted on its work queues.
pub fn resize_cq(cq: CqHandle, entries: u64) -> Result<()> {
    let cq = cq.into_raw();
    nic::resize_cq(cq, entries).map_err(|error| failed("VipResizeCQ", cq, error))
}

/// Creates a VI (VIPL 3.2.1).
pub fn create_vi(
    nic_handle: NicHandle,
    attributes: &ViAttributes,
    send_cq: Option<CqHandle>,
    recv_cq: Option<CqHandle>,
) -> Result<ViHandle> {
    let nic = nic_handle.into_raw();
    let cq = |cq: Option<CqHandle>| cq.map_or(0, CqHandle::into_raw);
    let created = nic::create_vi(nic, attributes, cq(send_cq), cq(recv_cq));
    let created = created.map_err(|error| vi_failed("VipCreateVi", nic, attributes, error))?;
    Ok(ViHandle::from_raw(created))
}

/// Destroys a VI that is Idle and has empty queues (VIPL 3.2.2).
pub fn destroy_vi(vi: ViHandle) -> Result<()> {
    let vi = vi.into_raw();
    nic::destroy_vi(vi).map_err(|error| failed("VipDestroyVi", vi, error))
}

/// Returns state and attributes of a VI (VIPL 3.7.3).
pub fn query_vi(vi: ViHandle) -> Result<ViInfo> {
    let vi = vi.into_raw();
    nic::query_vi(vi).map_err(|error| failed("VipQueryVi", vi, error))
}

/// Posts a descriptor on the send queue (VIPL 3.5.1). Errors in it are reported by its completion
/// status, or by an asynchronous error if it cannot be read.
///
/// # Safety
/// The descriptor and its buffers belong to the provider until the descriptor is taken off
/// the queue, and its memory stays mapped while this call runs, also if another thread deregisters
/// it. A [`Vi`](crate::Vi) discards descriptors that were posted to it by its handle when it takes them.
#[inline]
pub unsafe fn post_send(
    vi: ViHandle,
    descriptor: *mut RawDescriptor,
    handle: MemoryHandle,
) -> Result<()> {
    // SAFETY: the caller's obligation.
    unsafe { post(vi, QueueKind::Send, descriptor, handle) }
}

/// Posts a descriptor on the receive queue (VIPL 3.5.4).
///
/// # Safety
/// As for [`post_send`].
#[inline]
pub unsafe fn post_recv(
    vi: ViHandle,
    descriptor: *mut RawDescriptor,
    handle: MemoryHandle,
) -> Result<()> {
    // SAFETY: the caller's obligation.
    unsafe { post(vi, QueueKind::Receive, descriptor, handle) }
}

/// Posts a descriptor on a queue.
///
/// # Safety
/// As for [`post_send`].
#[inline]
unsafe fn post(
    vi: ViHandle,
    queue: QueueKind,
    descriptor: *mut RawDescriptor,
    handle: MemoryHandle,
) -> Result<()> {
    let (vi, region, when_full) = (vi.into_raw(), handle.0, WhenFull::Break);
    // SAFETY: the caller's obligation.
    let posted = unsafe { queue_calls::post(vi, queue, descriptor, region, when_full, NO_CONTEXT) };
    posted.map_err(|error| match queue {
        QueueKind::Send => failed("VipPostSend", vi, error),
        QueueKind::Receive => failed("VipPostRecv", vi, error),
    })
}

#[inline]
fn done(found: reap::Done) -> Done {
    match found {
        reap::Done::Completed {
            descriptor, status, ..
        } => Done::Completed { descriptor, status },
        reap::Done::NotDone => Done::NotDone,
        reap::Done::Empty => Done::Empty,
    }
}

/// Takes the descriptor at the head of the send queue if it has completed (VIPL 3.5.2).
#[inline]
pub fn send_done(vi: ViHandle) -> Result<Done> {
    Ok(done(queue_calls::done(vi.into_raw(), QueueKind::Send)?))
}

/// Takes the descriptor at the head of the receive queue if it has completed (VIPL 3.5.5).
#[inline]
pub fn recv_done(vi: ViHandle) -> Result<Done> {
    Ok(done(queue_calls::done(vi.into_raw(), QueueKind::Receive)?))
}

/// Waits for the descriptor at the head of the send queue and takes it (VIPL 3.5.3).
pub fn send_wait(vi: ViHandle, timeout: Timeout) -> Result<Done> {
    let vi = vi.into_raw();
    let found = queue_calls::wait_done(vi, QueueKind::Send, timeout.limit());
    let found = found.map_err(|error| failed("VipSendWait", vi, error))?;
    Ok(done(found))
}

/// Waits for the descriptor at the head of the receive queue and takes it (VIPL 3.5.6).
pub fn recv_wait(vi: ViHandle, timeout: Timeout) -> Result<Done> {
    let vi = vi.into_raw();
    let found = queue_calls::wait_done(vi, QueueKind::Receive, timeout.limit());
    let found = found.map_err(|error| failed("VipRecvWait", vi, error))?;
    Ok(done(found))
}

/// Takes the oldest entry of a completion queue (VIPL 3.5.7).
#[inline]
pub fn cq_done(cq: CqHandle) -> Result<CqEntry> {
    queue_calls::cq_done(cq.into_raw())?.ok_or(VipError::NotDone)
}

/// Waits for an entry of a completion queue and takes it (VIPL 3.5.8).
pub fn cq_wait(cq: CqHandle, timeout: Timeout) -> Result<CqEntry> {
    Ok(queue_calls::cq_wait(cq.into_raw(), timeout.limit())?)
}

fn remote_attributes(attributes: &ViParams) -> ViAttributes {
    ViAttributes {
        reliability: attributes.level.bit(),
        max_transfer_bytes: u64::from(attributes.max_transfer_bytes),
        qos: 0,
        ptag: None,
        rdma_write: attributes.rdma_write,
        rdma_read: attributes.rdma_read,
    }
}

/// Waits for a connection request to the discriminator of `local` (VIPL 3.3.1).
pub fn connect_wait(
    nic_handle: NicHandle,
    local: &NetAddress,
    timeout: Timeout,
) -> Result<ConnectIndication> {
    let nic = nic_handle.into_raw();
    let request = nic::connect_wait(nic, local, timeout.limit());
    let request = request.map_err(|error| failed("VipConnectWait", nic, error))?;
    Ok(ConnectIndication {
        remote: request.remote,
        attributes: remote_attributes(&request.attributes),
        conn: ConnHandle::from_raw(request.conn),
    })
}

/// Accepts a connection request with an Idle VI (VIPL 3.3.2). If the attributes of the two VIs
/// differ, the request stays pending and can be accepted with another VI.
pub fn connect_accept(conn: ConnHandle, vi: ViHandle) -> Result<()> {
    let vi = vi.into_raw();
    let accepted = nic::connect_accept(conn.into_raw(), vi);
    accepted.map_err(|error| failed("VipConnectAccept", vi, error))
}

/// Rejects a connection request (VIPL 3.3.3).
pub fn connect_reject(conn: ConnHandle) -> Result<()> {
    Ok(nic::connect_reject(conn.into_raw())?)
}

/// Requests a connection; returns the attributes of the peer's VI (VIPL 3.3.4).
pub fn connect_request(
    vi: ViHandle,
    local: &NetAddress,
    remote: &NetAddress,
    timeout: Timeout,
) -> Result<ViAttributes> {
    let vi = vi.into_raw();
    let attributes = nic::connect_request(vi, local, remote, timeout.limit());
    let attributes = attributes.map_err(|error| failed("VipConnectRequest", vi, error))?;
    Ok(remote_attributes(&attributes))
}

/// Disconnects a VI and flushes both queues; legal in every state (VIPL 3.3.5).
pub fn disconnect(vi: ViHandle) -> Result<()> {
    let vi = vi.into_raw();
    nic::disconnect(vi).map_err(|error| failed("VipDisconnect", vi, error))
}

/// Sets the error handler of a NIC handle; `None` restores the default, which logs (VIPL 3.8.1).
pub fn error_callback(nic_handle: NicHandle, handler: Option<ErrorHandler>) -> Result<()> {
    let handler = handler.map(|mut handler| -> pmd::Handler {
        Box::new(move |event| {
            handler(&ErrorDescriptor {
                nic: nic_handle,
                vi: (event.vi != 0).then(|| ViHandle::from_raw(event.vi)),
                cq: (event.cq != 0).then(|| CqHandle::from_raw(event.cq)),
                descriptor: event.descriptor as *mut RawDescriptor,
                op_code: event.op_code,
                resource: event.resource,
                code: event.code,
            });
        })
    });
    Ok(nic::set_error_handler(nic_handle.into_raw(), handler)?)
}

fn name_services() -> std::sync::MutexGuard<'static, HashMap<NicHandle, Arc<NameService>>> {
    NAME_SERVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name_service(nic_handle: NicHandle) -> Result<Arc<NameService>> {
    nic::info(nic_handle.into_raw())?;
    name_services()
        .get(&nic_handle)
        .cloned()
        .ok_or(VipError::ErrorNameservice)
}

/// Starts the name service of a NIC from a hosts file (VIPL 3.9.1).
///
/// # Errors
/// `ErrorNameservice` if it is started already; `InvalidParameter` for a file that cannot be used;
/// `ErrorResource` if memory or file descriptors are exhausted.
pub fn ns_init(nic_handle: NicHandle, file: Option<&Path>) -> Result<()> {
    let info = nic::info(nic_handle.into_raw())?;
    if name_services().contains_key(&nic_handle) {
        return Err(VipError::ErrorNameservice);
    }
    let file = file.or(info.config.hosts_file.as_deref());
    let service =
        NameService::open(file, HostAddress(*info.host)).map_err(|error: NameServiceError| {
            let code = match error.is_out_of_resources() {
                true => VipError::ErrorResource,
                false => VipError::InvalidParameter,
            };
            explain(code, format!("name service: {error}"))
        })?;
    name_services().insert(nic_handle, Arc::new(service));
    Ok(())
}

/// Returns the host address of a name with number `index`, from 0 (VIPL 3.9.2).
pub fn ns_get_host_by_name(nic_handle: NicHandle, name: &str, index: u64) -> Result<HostAddress> {
    name_service(nic_handle)?
        .by_name(name, index)
        .ok_or(VipError::ErrorNameservice)
}

/// Returns the name of a host address (VIPL 3.9.3).
pub fn ns_get_host_by_addr(nic_handle: NicHandle, host: &HostAddress) -> Result<String> {
    name_service(nic_handle)?
        .by_address(host)
        .map(str::to_owned)
        .ok_or(VipError::ErrorNameservice)
}

/// Stops the name service of a NIC (VIPL 3.9.4).
pub fn ns_shutdown(nic_handle: NicHandle) -> Result<()> {
    nic::info(nic_handle.into_raw())?;
    name_services()
        .remove(&nic_handle)
        .map(|_| ())
        .ok_or(VipError::ErrorNameservice)
}
