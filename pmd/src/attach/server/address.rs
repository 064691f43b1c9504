//! Where a datapath process is found: the file of its socket, and a lock beside it.
//!
//! Who finds a socket at which nobody answers puts it away. Of two that do so at once, one would
//! put away what the other has just made. So only who has the lock looks, and keeps it for as
//! long as it listens.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{geteuid, mkdtemp};

use crate::attach::here::Here;
use crate::attach::socket::{Listener, Socket};
use crate::open::OpenError;

/// The right to listen at a path, by the lock on a file beside it.
#[derive(Debug)]
struct Lock {
    file: File,
    path: PathBuf,
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

impl Lock {
    /// `None` if another process has it.
    fn take(path: PathBuf) -> io::Result<Option<Self>> {
        loop {
            // For nobody else to lock; for reading too, so that a pipe does not make us wait.
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Who had it until now has put the file away: then the next one makes another.
            let there = fs::symlink_metadata(&path);
            if there.is_ok_and(|there| file.metadata().is_ok_and(|own| is_same(&own, &there))) {
                return Ok(Some(Self { file, path }));
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let there = fs::symlink_metadata(&self.path);
        let own = self.file.metadata();
        if there.is_ok_and(|there| own.is_ok_and(|own| is_same(&own, &there)))
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::warn!("{}: {error}", self.path.display());
        }
    }
}

/// The file of a socket at which this process listens, put away on drop.
#[derive(Debug)]
pub(super) struct Address {
    path: PathBuf,
    file: Metadata,
    here: Option<Here>,
    _lock: Lock,
}

impl Drop for Address {
    fn drop(&mut self) {
        // Before the file: its number may be another socket's then.
        self.here = None;
        // Somebody may have put another one there.
        let there = fs::symlink_metadata(&self.path);
        if !there.is_ok_and(|there| is_same(&there, &self.file)) {
            log::warn!("socket {}: it is not there any more", self.path.display());
        } else if let Err(error) = fs::remove_file(&self.path) {
            log::warn!("socket {}: {error}", self.path.display());
        }
    }
}

/// Refuses a directory in which others can replace files of `user`.
fn check_directory(owner: u32, mode: u32, user: u32) -> Result<(), String> {
    let sticky = mode & libc::S_ISVTX != 0;
    if owner != 0 && owner != user {
        Err(format!(
            "belongs to user {owner}, neither root nor user {user}"
        ))
    } else if mode & 0o022 != 0 && !sticky {
        let mode = mode & 0o7777;
        Err(format!(
            "has mode {mode:04o}: its group or others can write to it and it is not sticky"
        ))
    } else {
        Ok(())
    }
}

/// A directory that only this user can enter, removed on drop.
struct Private(PathBuf);

impl Drop for Private {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            log::warn!("{}: {error}", self.0.display());
        }
    }
}

/// Makes a socket at a path of this directory at which nothing is. Its permissions are set before
/// it is there: until then no other user can reach it, nor put anything in its place.
fn bind(path: &Path, directory: &Path) -> io::Result<(Listener, Metadata)> {
    let private = Private(mkdtemp(&directory.join(".XXXXXX"))?);
    let made = private.0.join("s");
    let listener = Listener::bind(&made)?;
    // The kernel's credentials of a peer decide whether it may attach, not the file.
    let ready = fs::set_permissions(&made, fs::Permissions::from_mode(0o666))
        .and_then(|()| fs::symlink_metadata(&made))
        // Unlike a rename, this fails if something is there now.
        .and_then(|file| fs::hard_link(&made, path).map(|()| file));
    fs::remove_file(&made)?;
    Ok((listener, ready?))
}

/// Listens at a path. What a process left there that is gone is put away.
pub(super) fn listen(path: &Path) -> Result<(Listener, Address), OpenError> {
    let at = path.display();
    let failed = |error: io::Error| OpenError::new(format!("socket {at}: {error}"));
    let taken = || {
        OpenError::new(format!(
            "socket {at}: another fcvi-pmd listens there: end it, or choose another path"
        ))
    };
    let directory = match path.parent() {
        None => return Err(failed(io::ErrorKind::InvalidInput.into())),
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    let mut made = DirBuilder::new();
    made.recursive(true).mode(0o755);
    made.create(directory).map_err(|error| {
        OpenError::new(format!(
            "socket {at}: its directory cannot be made ({error}): make it, or choose another \
             with socket in [process]"
        ))
    })?;
    let owned = fs::metadata(directory).map_err(failed)?;
    check_directory(owned.uid(), owned.mode(), geteuid().as_raw()).map_err(|what| {
        OpenError::new(format!(
            "socket {at}: its directory {what}: another user could replace the socket: change \
             that, or choose another directory with socket in [process]"
        ))
    })?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    let lock = Lock::take(beside.into()).map_err(|error| {
        OpenError::new(format!(
            "socket {at}: its lock cannot be taken ({error}): remove the file {at}.lock if it is \
             another user's, or choose another path"
        ))
    })?;
    let lock = lock.ok_or_else(taken)?;
    if let Ok(there) = fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(OpenError::new(format!(
                "socket {at}: something else is there: remove it, or choose another path"
            )));
        }
        if Socket::connect(path).is_ok() {
            return Err(taken());
        }
        fs::remove_file(path).map_err(failed)?;
    }
    let (listener, file) = bind(path, directory).map_err(failed)?;
    let here = Here::at(path).map_err(failed)?;
    let address = Address {
        path: path.to_owned(),
        file,
        here: Some(here),
        _lock: lock,
    };
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path for a socket, and that of the lock beside it.
    fn paths(test: &str) -> (PathBuf, PathBuf) {
        let name = format!("viaduct-unit-{}-{test}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let lock = path.with_extension("sock.lock");
        (path, lock)
    }

    #[test]
    fn nobody_takes_the_path_of_one_who_has_not_ended_though_nobody_answers_there() {
        let (path, lock) = paths("taken");
        let (listener, address) = listen(&path).unwrap();
        listener.shut_down();
        assert!(Socket::connect(&path).is_err(), "as one that was left");
        let refused = listen(&path).unwrap_err().to_string();
        assert!(refused.contains("another fcvi-pmd listens"), "{refused}");
        assert!(path.exists() && lock.exists());
        drop((listener, address));
        assert!(!path.exists() && !lock.exists());
    }

    #[test]
    fn socket_has_its_permissions_and_nothing_else_is_left() {
        let (path, _) = paths("mode");
        let directory = path.with_extension("d");
        fs::create_dir(&directory).unwrap();
        let path = directory.join("pmd.sock");
        let (_listener, address) = listen(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().mode();
        assert_eq!(mode, libc::S_IFSOCK | 0o666);
        assert!(Socket::connect(&path).is_ok());
        let names = || {
            let entries = fs::read_dir(&directory).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["pmd.sock", "pmd.sock.lock"]);
        drop(address);
        assert_eq!(names(), [] as [&str; 0]);
        fs::remove_dir(&directory).unwrap();
    }

    /// The file that appears between the look and the end of `bind` stays as it is.
    #[test]
    fn bind_does_not_replace_or_change_what_is_there() {
        let (path, victim) = paths("swapped");
        fs::write(&victim, "kept").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let error = bind(&path, &std::env::temp_dir()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        assert_eq!(fs::metadata(&victim).unwrap().mode() & 0o7777, 0o600);
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
        fs::remove_file(&path).unwrap();
        fs::remove_file(&victim).unwrap();
    }

    #[test]
    fn directory_in_which_others_can_replace_files_is_refused() {
        let verdict = |owner, mode| check_directory(owner, mode, 1000);
        for (owner, mode) in [(0, 0o40755), (1000, 0o40700), (0, 0o41777), (1000, 0o41770)] {
            assert_eq!(verdict(owner, mode), Ok(()), "{owner} {mode:o}");
        }
        for (owner, mode, what) in [
            (1001, 0o40755, "belongs to user 1001"),
            (1001, 0o41777, "belongs to user 1001"),
            (0, 0o40777, "has mode 0777"),
            (1000, 0o40775, "has mode 0775"),
            (1000, 0o40702, "has mode 0702"),
        ] {
            let why = verdict(owner, mode).unwrap_err();
            assert!(why.contains(what), "{why}");
        }
        let (path, _) = paths("open");
        let directory = path.with_extension("d");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        let why = listen(&directory.join("pmd.sock")).unwrap_err().to_string();
        assert!(why.contains("has mode 0777"), "{why}");
        fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn what_was_left_behind_is_put_away() {
        let (path, lock) = paths("left");
        drop(Listener::bind(&path).unwrap());
        drop(File::create(&lock).unwrap());
        let (_listener, address) = listen(&path).unwrap();
        assert!(Socket::connect(&path).is_ok());
        drop(address);
        assert!(!path.exists() && !lock.exists());
    }

    #[test]
    fn what_another_one_put_there_is_left_alone() {
        let (path, lock) = paths("other");
        let (_listener, address) = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = Listener::bind(&path).unwrap();
        drop(address);
        assert!(path.exists() && !lock.exists());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn of_those_who_come_at_once_one_listens() {
        let (path, _) = paths("at-once");
        for _ in 0..50 {
            // Nobody is behind it.
            drop(Listener::bind(&path).unwrap());
            let start = std::sync::Barrier::new(4);
            let come = || {
                start.wait();
                let come = listen(&path);
                // Nobody leaves before all have come.
                start.wait();
                come.is_ok_and(|(_, address)| {
                    is_same(&fs::symlink_metadata(&path).unwrap(), &address.file)
                })
            };
            let listen: usize = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(come));
                threads
                    .map(|thread| usize::from(thread.join().unwrap()))
                    .iter()
                    .sum()
            });
            assert_eq!(listen, 1);
            assert!(!path.exists());
        }
    }
}
