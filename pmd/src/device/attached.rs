//! NICs of a datapath process: devices whose engine is in that process.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{DEVICES, Device, find_or_create, prepare_process};
use crate::attach::Attachment;
use crate::attach::control_connections::ControlConnections;
use crate::attach::descriptor_quota::DescriptorQuota;
use crate::attach::{handshake, shared_files};
use crate::config::{NicConfig, Protection};
use crate::fork::OpenCloseLock;
use crate::nic_backend::Backend;
use crate::open::{self, OpenError};
use crate::sync::{AtomicU32, Ordering};
use crate::vi::ViShared;

/// Timeout for free space in the submission queue, after which the datapath process is regarded as stopped.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A NIC of a datapath process.
pub(super) struct Attached {
    path: PathBuf,
    /// Name of the NIC in the process.
    name: String,
    /// Other names of the NIC in the process.
    aliases: Mutex<Vec<String>>,
    /// Access of VIs without a protection tag that the program requires, if it does.
    protection: Option<Protection>,
    control: Mutex<Option<Arc<ControlConnections>>>,
    native_mtu_bytes: AtomicU32,
    /// Maximum number of VIs and regions of this program.
    quota: (u32, u32),
    descriptor_quota: DescriptorQuota,
}

impl Attached {
    /// Takes the control connections, which ends the attachment of this program.
    pub(super) fn take_control(&self) -> Option<Arc<ControlConnections>> {
        self.control().take()
    }

    fn control(&self) -> MutexGuard<'_, Option<Arc<ControlConnections>>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aliases(&self) -> MutexGuard<'_, Vec<String>> {
        self.aliases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device {
    /// Returns the control connections to the datapath process, while the NIC is open.
    pub(crate) fn control(&self) -> Option<Arc<ControlConnections>> {
        self.attached.as_ref()?.control().clone()
    }

    /// Returns the user bytes in a frame of a send, for an attached NIC.
    pub(crate) fn native_mtu_bytes(&self) -> Option<u32> {
        let attached = self.attached.as_ref()?;
        Some(attached.native_mtu_bytes.load(Ordering::Relaxed))
    }

    /// Returns the maximum number of VIs and regions of this program.
    pub(crate) fn quota(&self) -> (u32, u32) {
        let own = (self.config.max_vi, self.config.max_regions);
        self.attached.as_ref().map_or(own, |there| there.quota)
    }

    /// Returns the quota of outstanding descriptors, for an attached NIC.
    #[inline]
    pub(crate) fn descriptor_quota(&self) -> Option<&DescriptorQuota> {
        Some(&self.attached.as_ref()?.descriptor_quota)
    }

    /// Submits all descriptors posted on the receive queue of this VI to the datapath process before
    /// this returns.
    #[inline]
    pub(crate) fn submit(&'static self, vi: &ViShared) {
        self.note_activity();
        let posted = vi.recv.posted();
        if let Some(backend) = self.lock().as_mut() {
            self.poll_thread.wake_if_armed(backend);
            backend.kick(vi.index, &self.doorbells);
            self.wake_waiters(backend);
            if !backend.has_unsent() {
                return;
            }
        }
        self.submit_with_room(|attachment| attachment.has_submitted(vi.index, posted));
    }

    /// Polls until a submission succeeds that did not fit into the queue; gives up after
    /// [`SUBMIT_TIMEOUT`].
    #[cold]
    pub(crate) fn submit_with_room(&'static self, is_submitted: impl Fn(&Attachment) -> bool) {
        let start = Instant::now();
        loop {
            {
                let mut held = self.lock();
                let Some(backend) = held.as_mut() else {
                    return;
                };
                self.poll_thread.wake_if_armed(backend);
                backend.poll(&self.doorbells);
                self.wake_waiters(backend);
                if backend.attachment().is_none_or(|there| is_submitted(there)) {
                    return;
                }
            }
            if start.elapsed() >= SUBMIT_TIMEOUT {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Opens another handle of an attached NIC that is open.
    fn open_again(&'static self, path: &Path) -> Result<(&'static Self, u64), OpenError> {
        let is_lost = (self.lock().as_mut())
            .and_then(Backend::attachment)
            .is_some_and(|attachment| attachment.is_lost());
        if is_lost {
            return Err(OpenError::new(
                "the datapath process has ended: the NIC can be opened again when all its \
                 handles in this program are closed",
            ));
        }
        let remote = handshake::open_remote(self, path)?;
        Ok((self, self.nic_handles.open(self.number, remote)))
    }
}

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
        return device.open_again(path);
    }
    open::check_memory(NicConfig::default().max_vi)?;
    let found = handshake::attach(path, name)?;
    let config = found.config(protection)?;
    // The same NIC by another name of it is the same device (VIPL 3.1.1).
    if let Some(device) = attached_device(path, &config.name, protection) {
        drop(found);
        if let Some(attached) = &device.attached {
            attached.aliases().push(name.to_owned());
        }
        return device.open_again(path);
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
    device.start(Backend::Attached(Box::new(attachment)))?;
    match handshake::open_remote(device, path) {
        Ok(remote) => Ok((device, device.nic_handles.open(device.number, remote))),
        Err(error) => {
            device.abort_open();
            Err(error)
        }
    }
}

/// Finds the device of this NIC of the datapath process, if it is open.
fn attached_device(
    path: &Path,
    name: &str,
    protection: Option<Protection>,
) -> Option<&'static Device> {
    let is_it = |device: &&&'static Device| {
        let attached = device.attached.as_ref();
        let has_name = |a: &Attached| a.name == name || a.aliases().iter().any(|one| one == name);
        let is_named = |a: &Attached| a.path == path && a.protection == protection && has_name(a);
        device.is_ours() && attached.is_some_and(is_named) && device.nic_handles.count() > 0
    };
    DEVICES.iter().map_while(OnceLock::get).find(is_it).copied()
}
