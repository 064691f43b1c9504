//! The socket file of a datapath process, and a lock file beside it.
//!
//! A process that finds a socket file without a listener removes it. Of two processes that do so concurrently, one
//! would remove the file that the other has just created. So a process takes the lock first, and holds it as long as it
//! listens.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{geteuid, mkdtemp};

use crate::attach::self_attach::OwnSocket;
use crate::open::OpenError;
use vi_core::control_socket::{Listener, Socket};

/// The right to listen at a path: a lock on the file beside it.
#[derive(Debug)]
struct Lock {
    file: File,
    path: PathBuf,
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

impl Lock {
    /// Takes the lock; `None` if another process has it.
    fn take(path: PathBuf) -> io::Result<Option<Self>> {
        loop {
            // Mode 0600: no other user can lock it. Open for reading, too, so that a pipe does not block the open.
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
            // The process that had the lock may have removed the file: then the next process creates another.
            let found = fs::symlink_metadata(&path);
            if found.is_ok_and(|found| file.metadata().is_ok_and(|own| is_same(&own, &found))) {
                return Ok(Some(Self { file, path }));
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        let own = self.file.metadata();
        if found.is_ok_and(|found| own.is_ok_and(|own| is_same(&own, &found)))
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::warn!("{}: {error}", self.path.display());
        }
    }
}

/// The file of a socket at which this process listens; removed on drop.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    file: Metadata,
    own_socket: Option<OwnSocket>,
    _lock: Lock,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Before the file is removed: its inode may then be reused.
        self.own_socket = None;
        // Another file may have replaced it.
        let found = fs::symlink_metadata(&self.path);
        if !found.is_ok_and(|found| is_same(&found, &self.file)) {
            log::warn!(
                "socket {}: the file was removed or replaced",
                self.path.display()
            );
        } else if let Err(error) = fs::remove_file(&self.path) {
            log::warn!("socket {}: {error}", self.path.display());
        }
    }
}

/// Refuses a directory in which other users can replace files of `user`.
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

/// Creates a socket at a path of this directory at which no file is. Its permissions are set before it appears there:
/// until then no other user can access or replace it.
fn bind(path: &Path, directory: &Path) -> io::Result<(Listener, Metadata)> {
    let private = Private(mkdtemp(&directory.join(".XXXXXX"))?);
    let made = private.0.join("s");
    let listener = Listener::bind(&made)?;
    // The kernel's credentials of a peer decide whether it may attach, not the file.
    let ready = fs::set_permissions(&made, fs::Permissions::from_mode(0o666))
        .and_then(|()| fs::symlink_metadata(&made))
        // Unlike a rename, this fails if the path exists.
        .and_then(|file| fs::hard_link(&made, path).map(|()| file));
    fs::remove_file(&made)?;
    Ok((listener, ready?))
}

/// Listens at a path, and removes a socket file that an ended process has left there.
///
/// # Errors
/// The path cannot be used; the text names the remedy.
pub(super) fn listen(path: &Path) -> Result<(Listener, SocketFile), OpenError> {
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
            "socket {at}: its directory cannot be created ({error}): create it, or choose another \
             with socket in [process]"
        ))
    })?;
    let owned = fs::metadata(directory).map_err(failed)?;
    check_directory(owned.uid(), owned.mode(), geteuid().as_raw()).map_err(|why| {
        OpenError::new(format!(
            "socket {at}: its directory {why}: another user could replace the socket: change \
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
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(OpenError::new(format!(
                "socket {at}: the file is no socket: remove it, or choose another path"
            )));
        }
        if Socket::connect(path).is_ok() {
            return Err(taken());
        }
        fs::remove_file(path).map_err(failed)?;
    }
    let (listener, file) = bind(path, directory).map_err(failed)?;
    let own_socket = OwnSocket::register(path).map_err(failed)?;
    let socket_file = SocketFile {
        path: path.to_owned(),
        file,
        own_socket: Some(own_socket),
        _lock: lock,
    };
    Ok((listener, socket_file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path for a socket, and the path of its lock.
    fn paths(test: &str) -> (PathBuf, PathBuf) {
        let name = format!("viaduct-unit-{}-{test}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let lock = path.with_extension("sock.lock");
        (path, lock)
    }

    #[test]
    fn listen_fails_while_another_process_has_the_lock_although_it_does_not_accept() {
        let (path, lock) = paths("taken");
        let (listener, socket_file) = listen(&path).unwrap();
        listener.shut_down();
        assert!(Socket::connect(&path).is_err(), "as of an ended process");
        let refused = listen(&path).unwrap_err().to_string();
        assert!(refused.contains("another fcvi-pmd listens"), "{refused}");
        assert!(path.exists() && lock.exists());
        drop((listener, socket_file));
        assert!(!path.exists() && !lock.exists());
    }

    #[test]
    fn listen_creates_socket_and_lock_with_their_permissions_only() {
        let (path, _) = paths("mode");
        let directory = path.with_extension("d");
        fs::create_dir(&directory).unwrap();
        let path = directory.join("pmd.sock");
        let (_listener, socket_file) = listen(&path).unwrap();
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
        drop(socket_file);
        assert_eq!(names(), [] as [&str; 0]);
        fs::remove_dir(&directory).unwrap();
    }

    /// A file that appears between the check and the end of `bind` is not changed.
    #[test]
    fn bind_does_not_replace_or_change_an_existing_file() {
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
    fn directory_in_which_other_users_can_replace_files_is_refused() {
        let verdict = |owner, mode| check_directory(owner, mode, 1000);
        for (owner, mode) in [(0, 0o40755), (1000, 0o40700), (0, 0o41777), (1000, 0o41770)] {
            assert_eq!(verdict(owner, mode), Ok(()), "{owner} {mode:o}");
        }
        for (owner, mode, part) in [
            (1001, 0o40755, "belongs to user 1001"),
            (1001, 0o41777, "belongs to user 1001"),
            (0, 0o40777, "has mode 0777"),
            (1000, 0o40775, "has mode 0775"),
            (1000, 0o40702, "has mode 0702"),
        ] {
            let why = verdict(owner, mode).unwrap_err();
            assert!(why.contains(part), "{why}");
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
    fn listen_replaces_files_of_an_ended_process() {
        let (path, lock) = paths("left");
        drop(Listener::bind(&path).unwrap());
        drop(File::create(&lock).unwrap());
        let (_listener, socket_file) = listen(&path).unwrap();
        assert!(Socket::connect(&path).is_ok());
        drop(socket_file);
        assert!(!path.exists() && !lock.exists());
    }

    #[test]
    fn drop_does_not_remove_a_file_that_replaced_the_socket() {
        let (path, lock) = paths("other");
        let (_listener, socket_file) = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = Listener::bind(&path).unwrap();
        drop(socket_file);
        assert!(path.exists() && !lock.exists());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn one_of_several_concurrent_listens_succeeds() {
        let (path, _) = paths("at-once");
        for _ in 0..50 {
            // A socket file without a listener.
            drop(Listener::bind(&path).unwrap());
            let start = std::sync::Barrier::new(4);
            let try_listen = || {
                start.wait();
                let listened = listen(&path);
                // No socket is closed before all threads have tried.
                start.wait();
                listened.is_ok_and(|(_, socket_file)| {
                    is_same(&fs::symlink_metadata(&path).unwrap(), &socket_file.file)
                })
            };
            let listening: usize = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(try_listen));
                threads
                    .map(|thread| usize::from(thread.join().unwrap()))
                    .iter()
                    .sum()
            });
            assert_eq!(listening, 1);
            assert!(!path.exists());
        }
    }
}
