//! NICs of a datapath process: devices whose engine is elsewhere.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{DEVICES, Device, find_or_make};
use crate::attach::Attachment;
use crate::attach::link::Link;
use crate::attach::opening;
use crate::attach::posting::Posting;
use crate::config::{NicConfig, Protection};
use crate::driver::Driver;
use crate::fork::{self, Opening};
use crate::main_thread;
use crate::open::{self, OpenError};
use crate::sync::{AtomicU32, Ordering};
use crate::vi::ViShared;

/// A datapath process that makes no room for a submission within so long is taken for stopped.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);

/// A NIC of a datapath process.
pub(super) struct Attached {
    path: PathBuf,
    /// As the process calls it.
    name: String,
    /// Other names that the process knows it by.
    aliases: Mutex<Vec<String>>,
    /// What the program wants of VIs without a tag, if it wants anything.
    protection: Option<Protection>,
    link: Mutex<Option<Arc<Link>>>,
    native_mtu_bytes: AtomicU32,
    /// VIs and regions that this program may have.
    quota: (u32, u32),
    posting: Posting,
}

impl Attached {
    /// The conversation ends for this program.
    pub(super) fn take_link(&self) -> Option<Arc<Link>> {
        self.link().take()
    }

    fn link(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aliases(&self) -> MutexGuard<'_, Vec<String>> {
        self.aliases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device {
    /// The conversation with the datapath process, while the NIC is open.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.attached.as_ref()?.link().clone()
    }

    /// User bytes in a frame of a send, where the engine is another process's.
    pub(crate) fn native_mtu_bytes(&self) -> Option<u32> {
        let attached = self.attached.as_ref()?;
        Some(attached.native_mtu_bytes.load(Ordering::Relaxed))
    }

    /// VIs and regions that this program may have.
    pub(crate) fn quota(&self) -> (u32, u32) {
        let own = (self.config.max_vi, self.config.max_regions);
        self.attached.as_ref().map_or(own, |there| there.quota)
    }

    /// What is posted, where the engine is another process's, which allows so much.
    #[inline]
    pub(crate) fn posting(&self) -> Option<&Posting> {
        Some(&self.attached.as_ref()?.posting)
    }

    /// Has what was posted on this VI's receive queue submitted to the datapath process before
    /// this returns.
    #[inline]
    pub(crate) fn submit(&'static self, vi: &ViShared) {
        self.note_activity();
        let posted = vi.recv.posted();
        if let Some(driver) = self.hold().as_mut() {
            self.rest.leave(driver);
            driver.kick(vi.index, &self.doorbells);
            self.announce(driver);
            if !driver.has_unsent() {
                return;
            }
        }
        self.submit_with_room(|attachment| attachment.has_submitted(vi.index, posted));
    }

    /// Takes turns until something is submitted that there was no room for; gives up on a
    /// process that makes none.
    #[cold]
    pub(crate) fn submit_with_room(&'static self, is_submitted: impl Fn(&Attachment) -> bool) {
        let begun = Instant::now();
        loop {
            {
                let mut held = self.hold();
                let Some(driver) = held.as_mut() else {
                    return;
                };
                self.rest.leave(driver);
                driver.turn(&self.doorbells);
                self.announce(driver);
                if driver.attachment().is_none_or(|there| is_submitted(there)) {
                    return;
                }
            }
            if begun.elapsed() >= ROOM_PATIENCE {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Another opening of an attached NIC that is open.
    fn open_again(&'static self, path: &Path) -> Result<(&'static Self, u64), OpenError> {
        let is_lost = (self.hold().as_mut())
            .and_then(Driver::attachment)
            .is_some_and(|attachment| attachment.is_lost());
        if is_lost {
            return Err(OpenError::new(
                "the datapath process is gone: the NIC can be opened again when all its \
                 openings in this program are closed",
            ));
        }
        let remote = opening::open_remote(self, path)?;
        Ok((self, self.instances.open(self.number, remote)))
    }
}

/// The device of a NIC that the datapath process at this socket has under this name, and one
/// opening of it.
pub(crate) fn attach(path: &Path, name: &str) -> Result<(&'static Device, u64), OpenError> {
    attach_as(path, name, None)
}

/// As [`attach`], for a program that wants this of VIs without a tag; `None`: what the process
/// says.
pub(crate) fn attach_as(
    path: &Path,
    name: &str,
    protection: Option<Protection>,
) -> Result<(&'static Device, u64), OpenError> {
    let _opening = Opening::begin();
    crate::sync::register_barrier();
    fork::watch()?;
    main_thread::watch();
    if let Some(device) = attached_device(path, name, protection) {
        return device.open_again(path);
    }
    open::check_memory(NicConfig::default().max_vi)?;
    let found = opening::attach(path, name)?;
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
    let device = find_or_make(&config, fingerprint, || {
        Some(Attached {
            path: path.to_owned(),
            name: config.name.clone(),
            aliases: Mutex::default(),
            protection,
            link: Mutex::new(None),
            native_mtu_bytes: AtomicU32::new(description.native_mtu_bytes),
            quota: (description.quota_vis, description.quota_regions),
            posting: Posting::new(description.max_descriptors),
        })
    })?;
    let (attachment, link) = found.into_attachment(device);
    if let Some(attached) = &device.attached {
        // Those of an earlier time may be another NIC's by now.
        *attached.aliases() = vec![name.to_owned()];
        *attached.link() = Some(link);
    }
    device.start(Driver::Process(Box::new(attachment)))?;
    match opening::open_remote(device, path) {
        Ok(remote) => Ok((device, device.instances.open(device.number, remote))),
        Err(error) => {
            device.abandon();
            Err(error)
        }
    }
}

/// The device of this NIC of this process, if it is open.
fn attached_device(
    path: &Path,
    name: &str,
    protection: Option<Protection>,
) -> Option<&'static Device> {
    let is_it = |device: &&&'static Device| {
        let attached = device.attached.as_ref();
        let has_name = |a: &Attached| a.name == name || a.aliases().iter().any(|one| one == name);
        let is_named = |a: &Attached| a.path == path && a.protection == protection && has_name(a);
        device.is_ours() && attached.is_some_and(is_named) && device.instances.count() > 0
    };
    DEVICES.iter().map_while(OnceLock::get).find(is_it).copied()
}
