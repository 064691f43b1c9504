//! Shared memory that this program has offered to datapath processes. They keep it mapped, so
//! that it can be registered again, until they are notified that the program has freed it.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::message::{Reply, Request, VERSION};
use super::socket::Socket;
use crate::memory::mapped::{FileId, facts_of};
use crate::memory::mapped_files;
use crate::sys;

/// A process that takes longer to answer unmaps the memory later, or when this program ends.
const TIMEOUT: Duration = Duration::from_secs(1);

static OFFERS: Mutex<Vec<Offer>> = Mutex::new(Vec::new());

#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    file: FileId,
    /// The socket of the process.
    process: PathBuf,
    /// The name of the NIC.
    device: String,
}

type Guard = MutexGuard<'static, Vec<Offer>>;

/// Keeps every other thread from offering and freeing.
pub(crate) struct Quiet(#[allow(dead_code, reason = "held until dropped")] Guard);

pub(crate) fn hold() -> Quiet {
    Quiet(offers())
}

fn offers() -> Guard {
    OFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets all offers, in a child that was forked: they are the parent's.
pub(crate) fn forget() {
    offers().clear();
}

/// Notes that a file is about to be offered.
pub(super) fn add(file: BorrowedFd<'_>, process: &Path, device: &str) {
    let Some(file) = id_of(file) else { return };
    let offer = Offer {
        file,
        process: process.to_owned(),
        device: device.to_owned(),
    };
    let mut offers = offers();
    if !offers.contains(&offer) {
        offers.push(offer);
    }
}

/// Notifies the processes that a file was offered to: the program has unmapped it.
pub(crate) fn free(file: BorrowedFd<'_>) {
    if offers().is_empty() {
        return;
    }
    if let Some(file) = id_of(file) {
        notify(|offer| offer.file == file);
    }
}

/// Notifies the processes of all files that the program has not mapped any more: it cannot map
/// them again.
pub(super) fn free_unmapped() {
    // Files that are offered after this are not looked up: the map is read later.
    let candidates = offers().clone();
    if candidates.is_empty() {
        return;
    }
    if let Some(mapped) = mapped_files() {
        notify(|offer| candidates.contains(offer) && !mapped.contains(&offer.file));
    }
}

fn id_of(file: BorrowedFd<'_>) -> Option<FileId> {
    let facts = facts_of(file).ok()?;
    let (device, inode) = (facts.device, facts.inode);
    Some(FileId { device, inode })
}

fn notify(is_freed: impl Fn(&Offer) -> bool) {
    let freed: Vec<_> = offers().extract_if(.., |offer| is_freed(offer)).collect();
    let mut silent: Option<&Path> = None;
    for offer in &freed {
        // One that does not answer is waited for once.
        if silent != Some(&*offer.process)
            && let Err(error) = send(offer)
        {
            log::debug!("datapath process: freed memory is not reported: {error}");
            silent = Some(&offer.process);
        }
    }
}

fn send(offer: &Offer) -> std::io::Result<()> {
    let socket = Socket::connect_at_once(&offer.process)?;
    let free = Request::Free {
        version: VERSION,
        device: offer.device.clone(),
        file: (offer.file.device, offer.file.inode),
    };
    socket.send(&free, &[])?;
    sys::await_one(socket.fd(), TIMEOUT);
    socket.receive::<Reply>().map(drop)
}
