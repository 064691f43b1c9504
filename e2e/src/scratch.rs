//! Temporary directories.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::process::unprivileged_user;

/// A temporary directory, readable by all users, removed on drop.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory for files.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    /// Creates a directory in `/dev/shm`, for shared memory segments.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn in_memory(name: &str) -> Self {
        Self::below(Path::new("/dev/shm"), name)
    }

    /// Creates the runtime directory of the user of [`crate::process::unprivileged`] programs.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn of_unprivileged_user(name: &str) -> Self {
        let directory = Self::in_memory(name);
        let user = unprivileged_user();
        chown(directory.path(), Some(user), Some(user)).expect("root may do that");
        directory
    }

    fn below(parent: &Path, name: &str) -> Self {
        let id = std::process::id();
        let path = (0..u32::MAX)
            .map(|number| parent.join(format!("viaduct-e2e-{id}-{name}-{number}")))
            .find(|path| match fs::create_dir(path) {
                Ok(()) => true,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
                Err(e) => panic!("{}: {e}", path.display()),
            })
            .expect("fewer directories than numbers");
        let this = Self(path);
        fs::set_permissions(this.path(), fs::Permissions::from_mode(0o755))
            .unwrap_or_else(|e| panic!("{}: {e}", this.path().display()));
        this
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file with mode 644.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Remaining files are in a directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
