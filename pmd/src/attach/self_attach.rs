//! Detects a program that attaches to its own socket: the sockets at which this program is the datapath process.
//!
//! Opening a NIC excludes every other opening until it is done. A program that attaches to itself would wait for its
//! own reply, for which it opens a NIC: a deadlock.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A socket: device and inode of its file, and the process that listens. A forked child is another process.
type SocketId = (u64, u64, u32);

static OWN_SOCKETS: Mutex<Vec<SocketId>> = Mutex::new(Vec::new());

fn own_sockets() -> MutexGuard<'static, Vec<SocketId>> {
    OWN_SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn id_of(path: &Path) -> io::Result<SocketId> {
    let file = fs::metadata(path)?;
    Ok((file.dev(), file.ino(), std::process::id()))
}

/// A registered socket of this program; removed on drop.
#[derive(Debug)]
pub(super) struct OwnSocket(SocketId);

impl OwnSocket {
    /// Registers the socket at a path, at which this program listens.
    pub(super) fn register(path: &Path) -> io::Result<Self> {
        let id = id_of(path)?;
        own_sockets().push(id);
        Ok(Self(id))
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        own_sockets().retain(|id| *id != self.0);
    }
}

/// Checks whether this program listens at a path.
pub(super) fn is_own_socket(path: &Path) -> bool {
    id_of(path).is_ok_and(|id| own_sockets().contains(&id))
}
