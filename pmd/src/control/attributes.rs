//! Attributes of VIs and regions changed after they were made: all of them or none.

use std::sync::PoisonError;

use vi_engine::{EndpointState, Level, ViParams};

use super::{ControlError, Outcome, RDMA_READ_LEVELS, check_settings, poller_of, tell_leniency};
use crate::config::Protection;
use crate::device::Device;
use crate::memory::place::Owner;
use crate::memory::{RegionAttributes, TagCheck};
use crate::nic::MemSettings;
use crate::sync::Ordering;
use crate::vi::{ViSettings, ViShared};

/// What the engine has to know of a VI's attributes, which were checked.
pub(super) fn params(level: Level, settings: &ViSettings) -> ViParams {
    ViParams {
        level,
        max_transfer_bytes: settings.max_transfer_bytes as u32,
        rdma_write: settings.rdma_write,
        rdma_read: settings.rdma_read,
    }
}

/// Notes the attributes of a VI for those who post on it and ask for them. The caller holds
/// the turn, and nobody posts on the VI meanwhile.
pub(super) fn note(vi: &ViShared, settings: &ViSettings, tag: TagCheck) {
    *vi.settings.lock().unwrap_or_else(PoisonError::into_inner) = *settings;
    vi.tag.store(tag.number(), Ordering::Relaxed);
    vi.max_transfer_bytes
        .store(settings.max_transfer_bytes as u32, Ordering::Relaxed);
    vi.reads.store(
        settings.reliability & RDMA_READ_LEVELS != 0,
        Ordering::Relaxed,
    );
}

/// A VI has its protection tag no more.
pub(super) fn give_tag_back(vi: &ViShared) {
    let tag = vi.tag.load(Ordering::Relaxed);
    vi.device.regions.release_tag(tag);
}

/// Changes the attributes of a VI, which must be Idle (VIPL 3.7.2). Receives that are posted
/// already are held against the new tag when they are used.
pub(crate) fn set_vi(vi: &'static ViShared, handle: u64, settings: &ViSettings) -> Outcome<()> {
    let mut held = vi.device.hold();
    let poller = poller_of(&mut held, vi, handle)?;
    if poller.engine.state(vi.index) != Some(EndpointState::Idle) {
        return Err(ControlError::InvalidState);
    }
    let (level, tag) = check_settings(vi.device, settings)?;
    // A post meets the old attributes or the new ones, never some of both.
    let no_posts = [vi.send.post_end.hold(), vi.recv.post_end.hold()];
    if !poller.engine.set_params(vi.index, params(level, settings)) {
        return Err(ControlError::InvalidState);
    }
    let regions = &vi.device.regions;
    give_tag_back(vi);
    regions.use_tag(tag.number());
    note(vi, settings, tag);
    if let Some(path) = poller.path.vi(vi.index) {
        path.show(tag);
    }
    regions.begin_epoch();
    drop((no_posts, held));
    tell_leniency(vi.device, tag);
    Ok(())
}

/// As [`set_vi`] where the engine is elsewhere and has changed it: the library's part follows.
pub(crate) fn note_changed(vi: &ViShared, handle: u64, settings: &ViSettings) -> Outcome<()> {
    let held = vi.device.hold();
    if held.is_none() || !vi.is_live(handle) {
        return Err(ControlError::InvalidParameter);
    }
    let (_, tag) = check_settings(vi.device, settings)?;
    let no_posts = [vi.send.post_end.hold(), vi.recv.post_end.hold()];
    give_tag_back(vi);
    vi.device.regions.use_tag(tag.number());
    note(vi, settings, tag);
    vi.device.regions.begin_epoch();
    drop((no_posts, held));
    tell_leniency(vi.device, tag);
    Ok(())
}

/// The attributes of a region as the table holds them, if the NIC can give them.
pub(crate) fn check_region(device: &Device, settings: &MemSettings) -> Outcome<RegionAttributes> {
    let tag = match (settings.ptag, device.config.protection) {
        (0, Protection::Strict) => return Err(ControlError::Ptag),
        (0, Protection::Lenient) => 0,
        (ptag, _) => device
            .instances
            .tag(device.number(), ptag)
            .ok_or(ControlError::Ptag)?,
    };
    Ok(RegionAttributes {
        tag,
        rdma_write: settings.rdma_write,
        rdma_read: settings.rdma_read,
    })
}

/// Changes the attributes of a region (VIPL 3.7.4). When this returns, nothing is read or
/// written any more by a right that was taken away, also for a message that is half here.
pub(crate) fn set_region(
    device: &Device,
    owner: Owner,
    (address, region): (u64, u32),
    settings: &MemSettings,
) -> Outcome<()> {
    let _no_turn_runs = device.hold();
    // The guide's order: a wrong region comes before wrong attributes.
    if device.regions.query(owner, address, region).is_none() {
        return Err(ControlError::InvalidParameter);
    }
    let attributes = check_region(device, settings)?;
    // Nobody ends a registration without the turn.
    if device.regions.set(owner, address, region, attributes) {
        Ok(())
    } else {
        Err(ControlError::InvalidParameter)
    }
}
