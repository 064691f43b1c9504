//! Files of shared memory that this program has passed to datapath processes. A process keeps a file mapped, so that
//! memory in it can be registered again, until this program notifies it that the memory is freed.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vi_core::fork::{self, ForkHooks};
use vi_core::memory::client_mapping::{FileId, memfd_info};
use vi_core::memory::{mapped_file_ids, shared_allocator};
use vi_core::sys;

use super::message::{Reply, Request, VERSION};
use vi_core::control_socket::Socket;

/// Limit of the wait for a reply. A slower process unmaps the file later, at the latest when this program ends.
const TIMEOUT: Duration = Duration::from_secs(1);

static SHARED_FILES: Mutex<Vec<SharedFile>> = Mutex::new(Vec::new());

#[derive(Clone, Debug, PartialEq, Eq)]
struct SharedFile {
    file: FileId,
    /// The socket of the process.
    process: PathBuf,
    /// The name of the NIC.
    device: String,
}

type Guard = MutexGuard<'static, Vec<SharedFile>>;

/// No other thread shares or frees a file while a thread forks. The files of a child were passed by its parent.
static FORK_HOOKS: ForkHooks = ForkHooks {
    lock: || Box::new(shared_files()),
    in_child: || shared_files().clear(),
};

/// Prepares this program for sharing files; repeated calls have no effect.
pub(crate) fn install() -> io::Result<()> {
    shared_allocator::set_free_hook(free);
    fork::register(&FORK_HOOKS)
}

fn shared_files() -> Guard {
    SHARED_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a file that is about to be passed to a process.
pub(super) fn add(file: BorrowedFd<'_>, process: &Path, device: &str) {
    let Some(file) = id_of(file) else { return };
    let shared = SharedFile {
        file,
        process: process.to_owned(),
        device: device.to_owned(),
    };
    let mut shared_files = shared_files();
    if !shared_files.contains(&shared) {
        shared_files.push(shared);
    }
}

/// Notifies the processes that have a file that this program has unmapped it.
fn free(file: BorrowedFd<'_>) {
    if shared_files().is_empty() {
        return;
    }
    if let Some(file) = id_of(file) {
        notify(|shared| shared.file == file);
    }
}

/// Notifies the processes of all files that this program no longer maps: it cannot map them again.
pub(super) fn free_unmapped() {
    // Files that are added after this are not considered: the map is read later.
    let candidates = shared_files().clone();
    if candidates.is_empty() {
        return;
    }
    if let Some(mapped) = mapped_file_ids() {
        notify(|shared| candidates.contains(shared) && !mapped.contains(&shared.file));
    }
}

fn id_of(file: BorrowedFd<'_>) -> Option<FileId> {
    let info = memfd_info(file).ok()?;
    let (device, inode) = (info.device, info.inode);
    Some(FileId { device, inode })
}

fn notify(is_freed: impl Fn(&SharedFile) -> bool) {
    let freed: Vec<_> = shared_files()
        .extract_if(.., |shared| is_freed(shared))
        .collect();
    let mut unresponsive: Option<&Path> = None;
    for shared in &freed {
        // A process that does not reply is waited for once.
        if unresponsive != Some(&*shared.process)
            && let Err(error) = send(shared)
        {
            log::debug!("datapath process: freed memory not reported: {error}");
            unresponsive = Some(&shared.process);
        }
    }
}

fn send(shared: &SharedFile) -> io::Result<()> {
    let socket = Socket::connect_nonblocking(&shared.process)?;
    let free = Request::Free {
        version: VERSION,
        device: shared.device.clone(),
        file: (shared.file.device, shared.file.inode),
    };
    socket.send(&free, &[])?;
    sys::await_one(socket.as_fd(), TIMEOUT);
    socket.receive::<Reply>().map(drop)
}
