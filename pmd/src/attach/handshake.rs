//! The attach handshake with a datapath process, by which a program opens a NIC of the process.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vi_core::sys;

use super::attachment::Attachment;
use super::calls;
use super::control_connections::ControlConnections;
use super::listener_credentials;
use super::message::{Description, Reply, Request, VERSION};
use super::self_attach;
use super::shared_queues::SharedQueues;
use crate::config::{NicConfig, PROTECTION_VARIABLE, Protection};
use crate::device::Device;
use crate::open::OpenError;
use vi_core::control_socket::Socket;

/// Limit of the wait for a reply while a NIC is opened or closed: other threads that open, close or fork are blocked.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// The result of a successful handshake.
pub(crate) struct Attached {
    pub(crate) description: Box<Description>,
    control: Arc<ControlConnections>,
    queues: SharedQueues,
    waker: sys::Waker,
}

impl Attached {
    /// The configuration of the NIC; `protection` is what the program requires of VIs without a protection tag.
    ///
    /// # Errors
    /// The program requires less protection than the process does.
    pub(crate) fn config(&self, protection: Option<Protection>) -> Result<NicConfig, OpenError> {
        let config = self.description.config();
        match protection {
            Some(Protection::Lenient) if config.protection == Protection::Strict => {
                Err(OpenError::new(format!(
                    "{PROTECTION_VARIABLE}=lenient: the datapath process requires strict protection: \
                     remove the variable from the environment, or set protection = \"lenient\" \
                     for {} in the process's configuration",
                    config.name
                )))
            }
            required => Ok(NicConfig {
                protection: required.unwrap_or(config.protection),
                ..config
            }),
        }
    }

    /// Splits the result into the data path of a device and its control connections.
    pub(crate) fn into_attachment(
        self,
        device: &'static Device,
    ) -> (Attachment, Arc<ControlConnections>) {
        let control = Arc::clone(&self.control);
        let attachment = Attachment::new(
            (&device.shared, device.descriptor_quota()),
            self.control,
            self.queues,
            self.waker,
        );
        (attachment, control)
    }
}

/// Attaches to the NIC of this device name at the process that listens at `path`.
pub(crate) fn attach(path: &Path, name: &str) -> Result<Attached, OpenError> {
    let at = path.display();
    if self_attach::is_own_socket(path) {
        return Err(OpenError::new(format!(
            "fcvi-pmd at {at}: this program is that process itself: attach from another program, \
             or open the NIC with a configuration without [process]"
        )));
    }
    let failed = |error: io::Error| OpenError::new(format!("fcvi-pmd at {at}: {error}"));
    let socket = Socket::connect(path).map_err(|error| {
        OpenError::new(format!(
            "no datapath process at {at} ({error}): start it with fcvi-pmd run --config FILE, \
             or remove [process] from the configuration to open the NIC in this program"
        ))
    })?;
    // Before anything is sent.
    listener_credentials::verify(&socket, path).map_err(failed)?;
    socket.set_timeout(Some(TIMEOUT)).map_err(failed)?;
    let attach = Request::Attach {
        version: VERSION,
        device: name.to_owned(),
    };
    let not_a_process = || {
        OpenError::new(format!(
            "what listens at {at} is not a datapath process of this release"
        ))
    };
    let accepted = |reply: io::Result<Option<(Reply, Vec<OwnedFd>)>>| match reply.map_err(failed)? {
        Some((Reply::Refused(why), _)) => Err(OpenError::new(why)),
        Some((Reply::UnknownNic(why), _)) => Err(OpenError::unknown_name(why)),
        reply => reply.ok_or_else(not_a_process),
    };
    let (Reply::Rings, fds) = accepted(socket.send_first(&attach))? else {
        return Err(not_a_process());
    };
    let [memory, wakeup] =
        <[_; 2]>::try_from(fds).map_err(|_| failed(io::Error::other("no rings received")))?;
    let queues = SharedQueues::open(memory).map_err(failed)?;
    socket.send(&Request::RingsMapped, &[]).map_err(failed)?;
    let (Reply::Attached { key, nic }, _) = accepted(socket.receive())? else {
        return Err(not_a_process());
    };
    let description = nic;
    // With Yama, the process can access private memory only with this permission.
    sys::allow_tracing_by(socket.peer().map_err(failed)?.pid);
    let keeps_one = description.max_calls > 1;
    Ok(Attached {
        description,
        control: Arc::new(ControlConnections::new(
            path.to_owned(),
            key,
            socket,
            keeps_one,
        )),
        queues,
        waker: sys::Waker::new(wakeup),
    })
}

/// Opens another NIC handle at the process, and returns its number there.
pub(crate) fn open_remote(device: &'static Device, path: &Path) -> Result<u64, OpenError> {
    calls::open(device).map_err(|_| {
        OpenError::new(format!(
            "fcvi-pmd at {}: it has ended, does not reply, or its limits do not allow another NIC \
             handle",
            path.display()
        ))
    })
}
