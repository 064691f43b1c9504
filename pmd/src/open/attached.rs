//! Opens NICs of a datapath process: devices whose engine is in that process.

use std::path::Path;
use std::sync::Mutex;

use vi_core::fork::OpenCloseLock;
use vi_core::sync::AtomicU32;

use super::error::OpenError;
use super::{abort, check_memory, prepare_process, start};
use crate::attach::descriptor_quota::DescriptorQuota;
use crate::attach::{handshake, shared_files};
use crate::config::{NicConfig, Protection};
use crate::device::{self, Attached, Device, find_or_create};
use crate::nic_backend::Backend;

/// Attaches to a NIC of the datapath process at this socket, by name; returns its device and a new NIC
/// handle.
pub(crate) fn attach(path: &Path, name: &str) -> Result<(&'static Device, u64), OpenError> {
    attach_as(path, name, None)
}

/// As [`attach`], with the required access of VIs without a protection tag; `None` for that of the
/// process.
pub(crate) fn attach_as(
    path: &Path,
    name: &str,
    protection: Option<Protection>,
) -> Result<(&'static Device, u64), OpenError> {
    let _lock = OpenCloseLock::acquire();
    prepare_process()?;
    shared_files::install().map_err(|error| OpenError::new(error.to_string()))?;
    if let Some(device) = attached_device(path, name, protection) {
        return open_again(device, path);
    }
    check_memory(NicConfig::default().limits.max_vi)?;
    let found = handshake::attach(path, name)?;
    let config = found.config(protection)?;
    // The same NIC by another name of it is the same device (VIPL 3.1.1).
    if let Some(device) = attached_device(path, &config.name, protection) {
        drop(found);
        if let Some(attached) = &device.attached {
            attached.aliases().push(name.to_owned());
        }
        return open_again(device, path);
    }
    let description = &found.description;
    let fingerprint = format!("{path:?} {protection:?} {description:?}");
    let device = find_or_create(&config, fingerprint, || {
        Some(Attached {
            path: path.to_owned(),
            name: config.name.clone(),
            aliases: Mutex::default(),
            protection,
            control: Mutex::new(None),
            native_mtu_bytes: AtomicU32::new(description.native_mtu_bytes),
            quota: (description.quota_vis, description.quota_regions),
            descriptor_quota: DescriptorQuota::new(description.max_descriptors),
        })
    })?;
    let (attachment, control) = found.into_attachment(device);
    if let Some(attached) = &device.attached {
        // Aliases of an earlier epoch may belong to another NIC by now.
        *attached.aliases() = vec![name.to_owned()];
        *attached.control() = Some(control);
    }
    start(device, Backend::Attached(Box::new(attachment)))?;
    match handshake::open_remote(device, path) {
        Ok(remote) => Ok((
            device,
            device.nic_handles.open(device.shared.number, remote),
        )),
        Err(error) => {
            abort(device);
            Err(error)
        }
    }
}

/// Opens another handle of an attached NIC that is open.
fn open_again(device: &'static Device, path: &Path) -> Result<(&'static Device, u64), OpenError> {
    let is_lost = (device.lock().as_mut())
        .and_then(|backend| backend.attachment())
        .is_some_and(|attachment| attachment.is_lost());
    if is_lost {
        return Err(OpenError::new(
            "the datapath process has ended, or opened the failed NIC again: this program can open it \
             again when all its handles here are closed",
        ));
    }
    let remote = handshake::open_remote(device, path)?;
    Ok((
        device,
        device.nic_handles.open(device.shared.number, remote),
    ))
}

/// Finds the device of this NIC of the datapath process, if it is open.
fn attached_device(
    path: &Path,
    name: &str,
    protection: Option<Protection>,
) -> Option<&'static Device> {
    let is_it = |device: &&'static Device| {
        let attached = device.attached.as_ref();
        let has_name = |a: &Attached| a.name == name || a.aliases().iter().any(|one| one == name);
        let is_named = |a: &Attached| a.path == path && a.protection == protection && has_name(a);
        device.is_ours() && attached.is_some_and(is_named) && device.nic_handles.count() > 0
    };
    device::all().find(is_it)
}
