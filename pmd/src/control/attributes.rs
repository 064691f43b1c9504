//! Changes attributes of existing VIs and regions, all of them or none.

use std::sync::PoisonError;

use vi_core::memory::backing::Owner;
use vi_core::memory::{RegionAttributes, TagCheck};
use vi_core::sync::Ordering;
use vi_core::vi::ViShared;

use vi_types::{CallError, MemAttributes, Outcome, ReliabilityLevel, ViAttributes, ViParams};

use super::{check_settings, memory, tag_number, warn_lenient_protection};
use crate::device::Device;
use crate::lookup::Vi;

/// Returns the parameters of the engine for validated attributes of a VI.
pub(super) fn params(level: ReliabilityLevel, settings: &ViAttributes) -> ViParams {
    ViParams {
        level,
        max_transfer_bytes: settings.max_transfer_bytes as u32,
        rdma_write: settings.rdma_write,
        rdma_read: settings.rdma_read,
    }
}

/// Stores the attributes of a VI for posts and queries. The caller holds
/// the backend lock and prevents concurrent posts.
pub(super) fn store(vi: &ViShared, settings: &ViAttributes, tag: TagCheck) {
    *vi.settings.lock().unwrap_or_else(PoisonError::into_inner) = *settings;
    vi.tag.store(tag.number(), Ordering::Relaxed);
    vi.max_transfer_bytes
        .store(settings.max_transfer_bytes as u32, Ordering::Relaxed);
    vi.reads.store(
        settings.reliability & ReliabilityLevel::RDMA_READ_BITS != 0,
        Ordering::Relaxed,
    );
}

/// Releases the protection tag of a VI.
pub(super) fn release_tag(vi: &ViShared) {
    let tag = vi.tag.load(Ordering::Relaxed);
    vi.nic.regions.release_tag(tag);
}

/// Stores the attributes of a VI after the datapath process has changed them in its engine.
pub(crate) fn store_changed(vi: Vi, handle: u64, settings: &ViAttributes) -> Outcome<()> {
    let held = vi.device.lock();
    if held.is_none() || !vi.is_live(handle) {
        return Err(CallError::InvalidParameter);
    }
    let (_, tag) = check_settings(vi.device, settings)?;
    let no_posts = [vi.send.post_end.lock(), vi.recv.post_end.lock()];
    release_tag(&vi);
    vi.nic.regions.use_tag(tag.number());
    store(&vi, settings, tag);
    vi.nic.regions.begin_epoch();
    drop((no_posts, held));
    warn_lenient_protection(vi.device, tag);
    Ok(())
}

/// Validates the attributes of a region; returns them in the form of the region table.
pub(crate) fn check_region(device: &Device, settings: &MemAttributes) -> Outcome<RegionAttributes> {
    Ok(RegionAttributes {
        tag: tag_number(device, settings.ptag)?,
        rdma_write: settings.rdma_write,
        rdma_read: settings.rdma_read,
    })
}

/// Changes the attributes of a region (VIPL 3.7.4). After this returns, no access uses a revoked
/// right, not even for a partially received message, unless it returns
/// [`AccessInProgress`](vi_types::ResourceError::AccessInProgress) after the change.
pub(crate) fn set_region(
    device: &Device,
    owner: Owner,
    (address, region): (u64, u32),
    settings: &MemAttributes,
) -> Outcome<()> {
    let backend_lock = device.lock();
    // The order of the guide: an invalid region is reported before invalid attributes.
    if device
        .shared
        .regions
        .query(owner, address, region)
        .is_none()
    {
        return Err(CallError::InvalidParameter);
    }
    let attributes = check_region(device, settings)?;
    // Regions are deregistered under the backend lock only.
    let regions = &device.shared.regions;
    let reduced = regions.set(owner, address, region, attributes);
    drop(backend_lock);
    memory::finish(reduced.ok_or(CallError::InvalidParameter)?)
}
