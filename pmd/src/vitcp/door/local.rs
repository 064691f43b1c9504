//! Where the programs of one user at one port find each other: a Unix socket in a directory that is
//! private to the user, and a lock beside it for the one that accepts there.
//!
//! A name in the abstract namespace would be open to every user: to occupy, and to pass descriptors to.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};
use pmd_port::shm::ShmError;
use pmd_port::shm::directory::{Directory, FileLock, runtime_directory};

use crate::attach::socket::{Listener, Socket};
use crate::vitcp::socket::End;

/// The directory's, by [`Directory::of_user`].
const DIRECTORY_NAME: &str = "vi-tcp";
/// The end of the names of lock files.
const LOCK_SUFFIX: &str = ".lock";
/// Files that one sweep looks at, at most.
const MAX_SWEPT: usize = 256;

/// The name that programs of one user, network namespace and port have in common.
#[derive(Debug)]
pub(super) struct LocalAddress {
    pub(super) directory: Directory,
    pub(super) name: String,
}

/// The right to accept other programs at a [`LocalAddress`], until it is dropped or the process dies.
#[derive(Debug)]
pub(super) struct LocalListener {
    listener: Listener,
    address: LocalAddress,
    /// Held while the socket's file is made and removed.
    _lock: FileLock,
}

impl LocalAddress {
    /// Names the programs at `at`, in `base` or else the user's runtime directory.
    pub(super) fn of(base: Option<&Path>, at: End) -> io::Result<Self> {
        let directory = Directory::of_user(&base_of(base), DIRECTORY_NAME).map_err(unusable)?;
        Ok(Self {
            directory,
            name: name_of(at)?,
        })
    }

    /// As [`Self::of`], where the directory exists. Where it does not, an error unless it can be made.
    pub(super) fn existing(base: Option<&Path>, at: End) -> io::Result<Option<Self>> {
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

    /// Begins to accept, in the place of a program that died; `Err` of the address itself if another program
    /// accepts. Never waits.
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

    /// Connects to the program that accepts. Never waits.
    pub(super) fn connect(&self) -> io::Result<Socket> {
        Socket::connect_at_once(&self.path())
    }

    /// Takes the lock, if no program holds it.
    pub(super) fn lock(&self) -> io::Result<Option<FileLock>> {
        let name = format!("{}{LOCK_SUFFIX}", self.name);
        self.directory.try_lock(&name).map_err(unusable)
    }

    /// The directory, for messages.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.short_path(&self.name)
    }

    /// Removes what programs left that died, which other names than this one have: those whose lock nobody
    /// holds.
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

/// Where the directory is.
pub(super) fn base_of(base: Option<&Path>) -> PathBuf {
    base.map_or_else(runtime_directory, Path::to_path_buf)
}

fn name_of(at: End) -> io::Result<String> {
    // A path is not of a network namespace, but an address and port are. The thread's, since
    // each thread can have its own, and its sockets are of that one.
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    let address = at.address();
    Ok(match at.scope {
        0 => format!("{namespace}-{}-{}", address.ip(), address.port()),
        scope => format!("{namespace}-{}%{scope}-{}", address.ip(), address.port()),
    })
}

/// What to do about a directory that is not private.
fn unusable(error: ShmError) -> io::Error {
    io::Error::other(format!(
        "programs of this user cannot share the port: {error}: remove what is there (another user's in /dev/shm: \
         its owner or root can), or name another directory with `directory` of the NIC or XDG_RUNTIME_DIR"
    ))
}
