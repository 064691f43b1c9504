//! Claims of programs on the N_Port_IDs of a wire.

use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use fcvi_frame::fc::NPortId;
use pmd_port::shm::directory::{Directory, FileLock};

use super::error::OpenError;

/// Approximate maximum length of the name of a wire in a file name, in bytes.
const MAX_WIRE_BYTES: usize = 200;

/// The N_Port_IDs of a wire that programs of this user have claimed, each by a file lock in a directory that is
/// private to the user. Not in `$XDG_RUNTIME_DIR`, which may differ between programs of one user.
pub(super) struct Claims {
    directory: Arc<Directory>,
    wire: String,
}

/// Claim of this process on an N_Port_ID of a wire; released on drop and when the process ends.
pub(crate) struct Claim {
    directory: Arc<Directory>,
    name: String,
    _lock: FileLock,
}

impl Claims {
    /// Opens the claims of a wire in the network namespace of this thread. Long names of wires are truncated, so that
    /// wires with similar names may share their N_Port_IDs.
    pub(super) fn of(wire: &str) -> Result<Self, Box<dyn Error>> {
        let directory = Directory::of_user(Path::new("/dev/shm"), "n-port")?;
        let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
        let mut name = format!("{namespace}-");
        let characters = wire
            .char_indices()
            .take_while(|(at, _)| *at < MAX_WIRE_BYTES);
        name.extend(characters.map(|(_, c)| if c == '/' { '_' } else { c }));
        Ok(Self {
            directory: Arc::new(directory),
            wire: name,
        })
    }

    /// Claims an N_Port_ID; `None` if another program of the user has claimed it.
    pub(super) fn claim(&self, id: NPortId) -> Result<Option<Claim>, OpenError> {
        let name = format!("{}-{id}", self.wire);
        let lock = self.directory.try_lock(&name);
        let lock = lock.map_err(|error| OpenError::new(error.to_string()))?;
        Ok(lock.map(|lock| Claim {
            directory: Arc::clone(&self.directory),
            name,
            _lock: lock,
        }))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Err(error) = self.directory.remove_file(&self.name) {
            log::warn!(
                "n_port_id claim: {} not removed: {error}",
                self.directory.path().join(&self.name).display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_port_id_is_claimed_once_and_released_on_drop() {
        let id = NPortId::new(0x01_02_03).unwrap();
        let long = format!(
            "net_memif{},socket=/run/{}",
            std::process::id(),
            "a".repeat(300)
        );
        let claims = || Claims::of(&long).unwrap();
        let first = claims().claim(id).unwrap().expect("unclaimed");
        assert!(claims().claim(id).unwrap().is_none(), "claimed");
        let next = NPortId::new(0x01_02_04).unwrap();
        assert!(claims().claim(next).unwrap().is_some(), "another ID");
        assert!(Claims::of("eth0").unwrap().claim(id).unwrap().is_some());
        let path = first.directory.path().join(&first.name);
        assert!(path.exists());
        drop(first);
        assert!(!path.exists());
        assert!(claims().claim(id).unwrap().is_some(), "released");
    }
}
