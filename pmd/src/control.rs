//! Control calls of a NIC whose engine is in this process: create, destroy, register, connect. Each holds the NIC's
//! backend lock briefly; none blocks while holding it.

use vi_core::biased_lock::BiasedGuard;
use vi_core::memory::TagCheck;
use vi_core::sync::Ordering;
use vi_types::{CallError, Outcome, PtagHandle, ReliabilityLevel, ResourceError, ViAttributes};

use crate::config::Protection;
use crate::device::Device;
use crate::lookup::Vi;
use crate::nic_backend::Backend;
use crate::poller::PollState;
use crate::progress::TimedOut;
use crate::transport::Transport;

pub(crate) mod attributes;
mod connecting;
mod cq;
mod memory;
mod nics;
mod release;
mod tags;
mod vis;

pub(crate) use cq::{create_cq, destroy_cq, resize_cq};
pub(crate) use memory::deregister;
pub(crate) use release::release_nic_handle;
pub(crate) use tags::destroy_ptag;
pub(crate) use vis::{adopt_vi, check_vi, detach};

/// The control calls of a NIC whose engine is in this process.
pub(crate) struct LocalCalls;

/// A poller of this process.
type Local<'a> = (&'a mut dyn Transport, &'a mut PollState);

impl From<TimedOut> for CallError {
    fn from(_: TimedOut) -> Self {
        Self::Timeout
    }
}

/// Returns the poller, for a call on a VI. While the backend lock is held, the VI is neither destroyed nor its slot
/// reused.
fn poller_of<'a>(
    held: &'a mut BiasedGuard<'_, Option<Backend>>,
    vi: Vi,
    handle: u64,
) -> Outcome<Local<'a>> {
    held.as_mut()
        .and_then(|backend| backend.local_mut())
        .filter(|_| vi.is_live(handle))
        .ok_or(CallError::InvalidParameter)
}

/// Returns the poller, for a call on a NIC handle that needs a working port.
fn working_poller_for<'a>(
    held: &'a mut BiasedGuard<'_, Option<Backend>>,
    device: &Device,
    nic_handle: u64,
) -> Outcome<Local<'a>> {
    let (transport, state) = poller_for(held, device, nic_handle)?;
    match state.failure {
        None => Ok((transport, state)),
        Some(_) => Err(ResourceError::NicFailed.into()),
    }
}

/// Returns the poller, for a call on a NIC handle.
fn poller_for<'a>(
    held: &'a mut BiasedGuard<'_, Option<Backend>>,
    device: &Device,
    nic_handle: u64,
) -> Outcome<Local<'a>> {
    held.as_mut()
        .and_then(|backend| backend.local_mut())
        .filter(|_| device.nic_handles.is_open(nic_handle))
        .ok_or(CallError::InvalidParameter)
}

/// Returns the number of a protection tag; 0 for none, if protection is lenient.
fn tag_number(device: &Device, ptag: Option<PtagHandle>) -> Outcome<u32> {
    match (ptag, device.config.protection) {
        (None, Protection::Strict) => Err(CallError::Ptag),
        (None, Protection::Lenient) => Ok(0),
        (Some(ptag), _) => device
            .nic_handles
            .tag(device.shared.number, ptag.into_raw())
            .ok_or(CallError::Ptag),
    }
}

/// Validates the attributes of a VI in the order in which the guide lists their errors. The caller
/// holds the backend lock, so that the tag exists until the VI uses it.
fn check_settings(
    device: &Device,
    settings: &ViAttributes,
) -> Outcome<(ReliabilityLevel, TagCheck)> {
    let level =
        ReliabilityLevel::from_bit(settings.reliability).ok_or(CallError::ReliabilityLevel)?;
    let limit = u64::from(device.max_transfer_bytes());
    if settings.max_transfer_bytes == 0 || settings.max_transfer_bytes > limit {
        return Err(CallError::MaxTransferSize);
    }
    if settings.qos != 0 {
        return Err(CallError::Qos);
    }
    let tag = match tag_number(device, settings.ptag)? {
        0 => TagCheck::LENIENT,
        tag => TagCheck::tag(tag),
    };
    if settings.rdma_read && settings.reliability & ReliabilityLevel::RDMA_READ_BITS == 0 {
        return Err(CallError::RdmaRead);
    }
    Ok((level, tag))
}

/// Logs once that a VI has no protection tag. Called without the backend lock, since the logger is code of the program.
fn warn_lenient_protection(device: &Device, tag: TagCheck) {
    if tag == TagCheck::LENIENT && !device.lenient_warned.swap(true, Ordering::Relaxed) {
        log::warn!(
            "NIC {}: protection is lenient: VIs without a tag may use every region of this process",
            device.config.name
        );
    }
}
