//! Directories that are private to one user, and locks in them: for segments, and for other files
//! that the programs of one user share by name.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::ShmError;
use super::sys;
use crate::environment;
use crate::fork::Descriptor;

/// The file whose `flock` is held while a station joins or the last one removes the segment.
const LOCK_FILE: &str = "lock";
/// The file with the segment's header and station table.
pub(super) const SEGMENT_FILE: &str = "segment";
/// Prefix of the names of the stations' files.
const STATION_PREFIX: &str = "station-";

/// Timeout for the lock. Its holders do a few system calls, so only a stopped
/// process holds it longer, and that must not block others.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between attempts to take the lock; flock(2) has no call with a timeout.
const LOCK_RETRY: Duration = Duration::from_millis(1);

/// An open directory, verified to be accessible to this user only.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: File,
}

/// The held lock of a directory.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    file: File,
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Explicitly, since a child of a concurrent fork may hold a copy of the
        // descriptor. It cannot fail for an open descriptor of a local file.
        let _ = sys::unlock_flock(&self.file);
    }
}

/// The exclusive lock of a file, held until it is dropped. The system releases it when the process
/// ends, and a forked child does not keep it.
#[derive(Debug)]
pub struct FileLock(Descriptor);

impl Drop for FileLock {
    fn drop(&mut self) {
        // As for `DirectoryLock`.
        let _ = sys::unlock_flock(&self.0);
    }
}

/// Returns the base directory for the private directories of this user's programs: `$XDG_RUNTIME_DIR`
/// if that is a tmpfs, else `/dev/shm`.
pub fn runtime_directory() -> PathBuf {
    environment::variable("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && sys::is_tmpfs(path))
        .unwrap_or_else(|| Path::new("/dev/shm").to_path_buf())
}

/// Returns the name of the file with a station's receive rings.
pub(super) fn station_file(slot: usize, generation: u64) -> String {
    format!("{STATION_PREFIX}{slot}.{generation}")
}

/// Rejects a directory that `user` does not own exclusively.
fn verify(path: &Path, owner: u32, mode: u32, user: u32) -> Result<(), ShmError> {
    if owner != user {
        return Err(ShmError::WrongOwner {
            path: path.to_path_buf(),
            owner,
            expected: user,
        });
    }
    if mode & 0o777 != 0o700 {
        return Err(ShmError::WrongMode {
            path: path.to_path_buf(),
            mode: mode & 0o7777,
        });
    }
    Ok(())
}

impl Directory {
    /// Opens the directory, creating it if necessary, and takes its lock.
    pub(super) fn open_locked(path: &Path) -> Result<(Self, DirectoryLock), ShmError> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            let Some(directory) = Self::open(path)? else {
                continue;
            };
            // None: the last station removed the directory between open and lock.
            if let Some(lock) = directory.lock(libc::O_CREAT, deadline)? {
                return Ok((directory, lock));
            }
            if Instant::now() > deadline {
                return Err(directory.busy());
            }
        }
    }

    /// Takes the lock of an open directory; `None` if the directory was removed meanwhile.
    pub(super) fn lock_again(&self) -> Result<Option<DirectoryLock>, ShmError> {
        self.lock(0, Instant::now() + LOCK_TIMEOUT)
    }

    /// Opens the directory `viaduct-NAME-UID` in `base`, creating it with mode 0700 if necessary. No segment has
    /// a directory of this name if `name` begins with a letter.
    ///
    /// # Errors
    /// It cannot be created, or is not private to this user.
    pub fn of_user(base: &Path, name: &str) -> Result<Self, ShmError> {
        let path = Self::path_of_user(base, name);
        loop {
            if let Some(directory) = Self::open(&path)? {
                return Ok(directory);
            }
        }
    }

    /// As [`Self::of_user`], for an existing directory; `None` if it does not exist.
    ///
    /// # Errors
    /// It is not private to this user.
    pub fn existing_of_user(base: &Path, name: &str) -> Result<Option<Self>, ShmError> {
        Self::open_existing(&Self::path_of_user(base, name))
    }

    fn path_of_user(base: &Path, name: &str) -> PathBuf {
        base.join(format!("viaduct-{name}-{}", sys::user()))
    }

    /// Takes the lock of a file of this directory, creating it if necessary; `None` if it is held. Never waits.
    ///
    /// # Errors
    /// The file cannot be created or locked.
    pub fn try_lock(&self, name: &str) -> Result<Option<FileLock>, ShmError> {
        let failed = |error| self.failed("lock", name, error);
        loop {
            let open = || sys::open_at(&self.handle, name, libc::O_CREAT).map(Into::into);
            let file = Descriptor::make(open).map_err(|error| self.failed("open", name, error))?;
            if !sys::try_flock(&file).map_err(failed)? {
                return Ok(None);
            }
            // Its last holder may have removed the file after it was opened here: then the next call creates another.
            if sys::is_linked(&file).map_err(failed)? {
                return Ok(Some(FileLock(file)));
            }
        }
    }

    /// Returns a path to a file of exactly this directory, independent of the length of the directory's path: for
    /// sockets, whose paths have at most 107 bytes. Valid while `self` exists.
    pub fn short_path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd()))
    }

    /// Returns the path of the directory, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lists the names of the directory's files that are valid UTF-8.
    ///
    /// # Errors
    /// What the system reports.
    pub fn file_names(&self) -> io::Result<impl Iterator<Item = String>> {
        let entries = std::fs::read_dir(&self.path)?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()))
    }

    /// Creates and opens the directory; `None` if it vanished in between.
    fn open(path: &Path) -> Result<Option<Self>, ShmError> {
        let failed = |action, source| ShmError::Io {
            action,
            path: path.to_path_buf(),
            source,
        };
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("create directory", error)),
        }
        Self::open_existing(path)
    }

    fn open_existing(path: &Path) -> Result<Option<Self>, ShmError> {
        let failed = |action, source| ShmError::Io {
            action,
            path: path.to_path_buf(),
            source,
        };
        let handle = match sys::open_directory(path) {
            Ok(handle) => handle,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => return Ok(None),
                Some(libc::ENOTDIR | libc::ELOOP) => {
                    return Err(ShmError::NotADirectory {
                        path: path.to_path_buf(),
                    });
                }
                _ => return Err(failed("open directory", error)),
            },
        };
        let metadata = handle
            .metadata()
            .map_err(|error| failed("examine directory", error))?;
        verify(path, metadata.uid(), metadata.mode(), sys::user())?;
        Ok(Some(Self {
            path: path.to_path_buf(),
            handle,
        }))
    }

    /// Takes the lock; `None` if the lock file was removed from the directory.
    fn lock(&self, extra_flags: i32, deadline: Instant) -> Result<Option<DirectoryLock>, ShmError> {
        let file = match sys::open_at(&self.handle, LOCK_FILE, extra_flags) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("open", LOCK_FILE, error)),
        };
        loop {
            let taken =
                sys::try_flock(&file).map_err(|error| self.failed("lock", LOCK_FILE, error))?;
            if taken {
                break;
            }
            if Instant::now() > deadline {
                return Err(self.busy());
            }
            std::thread::sleep(LOCK_RETRY);
        }
        let links = file
            .metadata()
            .map_err(|error| self.failed("examine", LOCK_FILE, error))?
            .nlink();
        let lock = DirectoryLock { file };
        Ok((links > 0).then_some(lock))
    }

    fn busy(&self) -> ShmError {
        ShmError::Busy {
            path: self.path.join(LOCK_FILE),
        }
    }

    /// Wraps the error of a system call on a file of this directory.
    pub(super) fn failed(&self, action: &'static str, name: &str, source: io::Error) -> ShmError {
        ShmError::Io {
            action,
            path: self.path.join(name),
            source,
        }
    }

    /// Returns the path of a file, for messages.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens an existing file.
    pub(super) fn open_file(&self, name: &str) -> io::Result<File> {
        sys::open_at(&self.handle, name, 0)
    }

    /// Creates a file that must not exist.
    pub(super) fn create_file(&self, name: &str) -> io::Result<File> {
        sys::open_at(&self.handle, name, libc::O_CREAT | libc::O_EXCL)
    }

    /// Removes a file if it exists.
    ///
    /// # Errors
    /// What the system reports.
    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        sys::unlink_at(&self.handle, name)
    }

    /// Removes the files of all stations except those for which `keep` is true. The caller
    /// holds the lock, so that no station creates one meanwhile.
    pub(super) fn sweep(
        &self,
        keep: impl Fn(&str) -> bool,
        _lock: &DirectoryLock,
    ) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            // Names that are not UTF-8 are not station files.
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(STATION_PREFIX) && !keep(name) {
                self.remove_file(name)?;
            }
        }
        Ok(())
    }

    /// Removes all files of the segment, and the directory unless it holds
    /// other files. The caller holds the lock and found no station.
    pub(super) fn remove(&self, lock: DirectoryLock) -> io::Result<()> {
        self.sweep(|_| false, &lock)?;
        self.remove_file(SEGMENT_FILE)?;
        self.remove_file(LOCK_FILE)?;
        match std::fs::remove_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_lock_is_exclusive_and_ignores_removed_files() {
        let base = std::env::temp_dir();
        let directory = Directory::of_user(&base, &format!("unit-{}", std::process::id()));
        let directory = directory.expect("a directory");
        let lock = || directory.try_lock("a").expect("a lock or none");
        let first = lock().expect("the lock is free");
        assert!(lock().is_none());
        assert!(directory.try_lock("b").expect("another file").is_some());
        let opened = directory.open_file("a").expect("the file");
        directory.remove_file("a").expect("it is there");
        drop(first);
        assert!(sys::try_flock(&opened).expect("a lock"));
        assert!(!sys::is_linked(&opened).expect("a file"));
        assert!(lock().is_some(), "a new file");
        std::fs::remove_dir_all(directory.path()).expect("it is there");
    }

    #[test]
    fn directory_must_be_private_to_the_user() {
        let verdict = |owner, mode| verify(Path::new("/somewhere"), owner, mode, 1000);
        assert!(verdict(1000, 0o40700).is_ok());
        let error = verdict(1001, 0o40700).expect_err("another owner");
        let error = error.to_string();
        for part in [
            "/somewhere belongs to user 1001, not to user 1000: ",
            "directory in [nic.shm]",
            "XDG_RUNTIME_DIR",
        ] {
            assert!(error.contains(part), "{error}");
        }
        // Not even root's: the owner can put files into it.
        assert!(matches!(
            verdict(0, 0o40700),
            Err(ShmError::WrongOwner { .. })
        ));
        for mode in [0o40701, 0o40710, 0o40704, 0o41777, 0o40500] {
            assert!(matches!(
                verdict(1000, mode),
                Err(ShmError::WrongMode { .. })
            ));
        }
    }
}
