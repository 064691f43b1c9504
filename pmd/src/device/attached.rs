//! What a NIC of a datapath process has: its name there, control connections and quotas.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vi_core::sync::AtomicU32;
use vi_core::vi::ViShared;

use super::Device;
use crate::attach::Attachment;
use crate::attach::control_connections::ControlConnections;
use crate::attach::descriptor_quota::DescriptorQuota;
use crate::config::Protection;

/// Timeout for free space in the submission queue, after which the datapath process is regarded as stopped.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A NIC of a datapath process.
pub(crate) struct Attached {
    pub(crate) path: PathBuf,
    /// Name of the NIC in the process.
    pub(crate) name: String,
    /// Other names of the NIC in the process.
    pub(crate) aliases: Mutex<Vec<String>>,
    /// Access of VIs without a protection tag that the program requires, if it does.
    pub(crate) protection: Option<Protection>,
    pub(crate) control: Mutex<Option<Arc<ControlConnections>>>,
    pub(crate) native_mtu_bytes: AtomicU32,
    /// Maximum number of VIs and regions of this program.
    pub(crate) quota: (u32, u32),
    pub(crate) descriptor_quota: DescriptorQuota,
}

impl Attached {
    /// Takes the control connections, which ends the attachment of this program.
    pub(crate) fn take_control(&self) -> Option<Arc<ControlConnections>> {
        self.control().take()
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Option<Arc<ControlConnections>>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn aliases(&self) -> MutexGuard<'_, Vec<String>> {
        self.aliases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device {
    /// Returns the control connections to the datapath process, while the NIC is open.
    pub(crate) fn control(&self) -> Option<Arc<ControlConnections>> {
        self.attached.as_ref()?.control().clone()
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
            backend.kick(vi.index, &self.shared.doorbells);
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
                backend.poll(&self.shared.doorbells);
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
}
