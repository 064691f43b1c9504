//! The Unix socket of a shared listener: in a directory that is private to the user, with a lock file for the
//! owner.
//!
//! A name in the abstract namespace would be open to every user, who could occupy it or pass descriptors to it.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};
use pmd_port::shm::ShmError;
use pmd_port::shm::directory::{Directory, FileLock, runtime_directory};

use crate::socket::scope_of;
use vi_core::control_socket::{Listener, Socket};

/// Name of the directory, for [`Directory::of_user`].
const DIRECTORY_NAME: &str = "vi-tcp";
/// Suffix of the names of lock files.
const LOCK_SUFFIX: &str = ".lock";
/// Maximum files that one sweep checks.
const MAX_SWEPT: usize = 256;

/// Address of the Unix socket, which programs of one user, network namespace and port have in common.
#[derive(Debug)]
pub(super) struct LocalAddress {
    pub(super) directory: Directory,
    pub(super) name: String,
}

/// The owner's Unix listener at a [`LocalAddress`], until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct LocalListener {
    listener: Listener,
    address: LocalAddress,
    /// Held while the socket file exists.
    _lock: FileLock,
}

impl LocalAddress {
    /// Returns the address for a listener at `at`, in `base` or else the user's runtime directory; creates the
    /// directory.
    pub(super) fn of(base: Option<&Path>, at: SocketAddr) -> io::Result<Self> {
        let directory = Directory::of_user(&base_of(base), DIRECTORY_NAME).map_err(unusable)?;
        Ok(Self {
            directory,
            name: name_of(at)?,
        })
    }

    /// As [`Self::of`], but `None` if the directory does not exist. An error if it could not be created.
    pub(super) fn existing(base: Option<&Path>, at: SocketAddr) -> io::Result<Option<Self>> {
        let base = base_of(base);
        match Directory::existing_of_user(&base, DIRECTORY_NAME).map_err(unusable)? {
            Some(directory) => Ok(Some(Self {
                directory,
                name: name_of(at)?,
            })),
            None => {
                let rights = AccessFlags::W_OK | AccessFlags::X_OK;
                let (path, flags) = (base.as_path(), AtFlags::AT_EACCESS);
                faccessat(AT_FDCWD, path, rights, flags).map_err(|error| {
                    unusable(ShmError::Io {
                        action: "make a directory in",
                        path: base.clone(),
                        source: error.into(),
                    })
                })?;
                Ok(None)
            }
        }
    }

    /// Starts listening, and replaces the socket of a dead program; returns the address as `Err` if another program
    /// listens. Never blocks.
    pub(super) fn listen(self) -> io::Result<Result<LocalListener, Self>> {
        let Some(lock) = self.lock()? else {
            return Ok(Err(self));
        };
        self.sweep()?;
        self.directory.remove_file(&self.name)?;
        let listener = Listener::bind(&self.path())?.into_foreign();
        listener.set_nonblocking()?;
        Ok(Ok(LocalListener {
            listener,
            address: self,
            _lock: lock,
        }))
    }

    /// Connects to the owner. Never blocks.
    pub(super) fn connect(&self) -> io::Result<Socket> {
        Socket::connect_nonblocking(&self.path())
    }

    /// Takes the lock; `None` if another program holds it.
    pub(super) fn lock(&self) -> io::Result<Option<FileLock>> {
        let name = format!("{}{LOCK_SUFFIX}", self.name);
        self.directory.try_lock(&name).map_err(unusable)
    }

    /// Returns the directory, for messages.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.short_path(&self.name)
    }

    /// Removes socket and lock files of dead programs at other addresses: those whose lock no program holds.
    fn sweep(&self) -> io::Result<()> {
        for lock_name in self.directory.file_names()?.take(MAX_SWEPT) {
            let Some(name) = lock_name.strip_suffix(LOCK_SUFFIX) else {
                continue;
            };
            if name != self.name
                && let Some(_lock) = self.directory.try_lock(&lock_name).map_err(unusable)?
            {
                self.directory.remove_file(name)?;
                self.directory.remove_file(&lock_name)?;
            }
        }
        Ok(())
    }
}

impl LocalListener {
    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        let LocalAddress { directory, name } = &self.address;
        for name in [name.clone(), format!("{name}{LOCK_SUFFIX}")] {
            if let Err(error) = directory.remove_file(&name) {
                log::warn!(
                    "vi-tcp listener: {} not removed: {error}",
                    directory.path().join(name).display()
                );
            }
        }
    }
}

/// Returns the parent of the directory.
pub(super) fn base_of(base: Option<&Path>) -> PathBuf {
    base.map_or_else(runtime_directory, Path::to_path_buf)
}

fn name_of(at: SocketAddr) -> io::Result<String> {
    // Address and port belong to a network namespace, a path does not. It is that of the thread, since
    // each thread can have its own, in which it creates sockets.
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(match scope_of(at) {
        0 => format!("{namespace}-{}-{}", at.ip(), at.port()),
        scope => format!("{namespace}-{}%{scope}-{}", at.ip(), at.port()),
    })
}

/// Returns the error for a directory that cannot be used.
fn unusable(error: ShmError) -> io::Error {
    io::Error::other(format!(
        "programs of this user cannot share the port: {error}: remove what is there (another user's in /dev/shm: \
         its owner or root can), or name another directory with `directory` of the NIC or XDG_RUNTIME_DIR"
    ))
}
