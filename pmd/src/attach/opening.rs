//! Attaching to a datapath process: what opening a NIC is when the process has it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::arena::Arena;
use super::attachment::Attachment;
use super::calls;
use super::here;
use super::link::Link;
use super::listener;
use super::message::{Description, Reply, Request, VERSION};
use super::socket::Socket;
use crate::config::{NicConfig, PROTECTION_VARIABLE, Protection};
use crate::device::Device;
use crate::open::OpenError;
use crate::sys;

/// The process answers who opens or closes a NIC within so long, or is taken for stuck: others
/// who open and close, and who fork, wait meanwhile.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What a process gives who attaches.
pub(crate) struct Attached {
    pub(crate) description: Box<Description>,
    link: Arc<Link>,
    arena: Arena,
    waker: sys::Waker,
}

impl Attached {
    /// The configuration of the NIC for a program that wants this of VIs without a tag.
    pub(crate) fn config(&self, protection: Option<Protection>) -> Result<NicConfig, OpenError> {
        let config = self.description.config();
        match protection {
            Some(Protection::Lenient) if config.protection == Protection::Strict => {
                Err(OpenError::new(format!(
                    "{PROTECTION_VARIABLE}=lenient: the datapath process keeps strict protection: \
                     take the variable out of the environment, or set protection = \"lenient\" for \
                     {} in the process's configuration",
                    config.name
                )))
            }
            wanted => Ok(NicConfig {
                protection: wanted.unwrap_or(config.protection),
                ..config
            }),
        }
    }

    /// The way to the process, for the turn of this device.
    pub(crate) fn into_attachment(self, device: &'static Device) -> (Attachment, Arc<Link>) {
        let link = Arc::clone(&self.link);
        let attachment = Attachment::new(device, self.link, self.arena, self.waker);
        (attachment, link)
    }
}

/// Attaches to the NIC that the process at this socket has under this device name.
pub(crate) fn attach(path: &Path, name: &str) -> Result<Attached, OpenError> {
    let at = path.display();
    if here::listens(path) {
        return Err(OpenError::new(format!(
            "fcvi-pmd at {at}: this program is that process itself: attach from another program, or \
             open the NIC by a configuration without [process]"
        )));
    }
    let failed = |error: io::Error| OpenError::new(format!("fcvi-pmd at {at}: {error}"));
    let life = Socket::connect(path).map_err(|error| {
        OpenError::new(format!(
            "no datapath process at {at} ({error}): start it with fcvi-pmd run --config FILE, \
             or take [process] out of the configuration to open the NIC in this program"
        ))
    })?;
    // Before it is sent anything.
    listener::verify(&life, path).map_err(failed)?;
    life.set_patience(Some(PATIENCE)).map_err(failed)?;
    let attach = Request::Attach {
        version: VERSION,
        device: name.to_owned(),
    };
    let other = || {
        OpenError::new(format!(
            "what listens at {at} is not a datapath process of this release"
        ))
    };
    let answer = |answer: io::Result<Option<(Reply, Vec<OwnedFd>)>>| match answer.map_err(failed)? {
        Some((Reply::Refused(why), _)) => Err(OpenError::new(why)),
        Some((Reply::UnknownNic(why), _)) => Err(OpenError::unknown_name(why)),
        answer => answer.ok_or_else(other),
    };
    let (Reply::Rings, fds) = answer(life.begin(&attach))? else {
        return Err(other());
    };
    let [arena, wakeup] =
        <[_; 2]>::try_from(fds).map_err(|_| failed(io::Error::other("no arena came")))?;
    let arena = Arena::open(arena).map_err(failed)?;
    life.send(&Request::RingsMapped, &[]).map_err(failed)?;
    let (Reply::Attached { key, nic }, _) = answer(life.receive())? else {
        return Err(other());
    };
    let description = nic;
    // Where Yama is in force, the process may reach memory that is not shared only if we say so.
    sys::allow_tracing_by(life.peer().map_err(failed)?.pid);
    let keeps_one = description.max_calls > 1;
    Ok(Attached {
        description,
        link: Arc::new(Link::new(path.to_owned(), key, life, keeps_one)),
        arena,
        waker: sys::Waker::new(wakeup),
    })
}

/// One more opening at the process; what it calls it.
pub(crate) fn open_remote(device: &'static Device, path: &Path) -> Result<u64, OpenError> {
    calls::open(device).map_err(|_| {
        OpenError::new(format!(
            "fcvi-pmd at {}: it is gone, does not answer, or its limits do not allow another opening",
            path.display()
        ))
    })
}
