//! The sockets at which this program itself is the datapath process.
//!
//! Opening a NIC lets no other opening in until it is done. Whoever attaches to itself would wait
//! for its own answer, which needs an opening.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A socket, by its file, and who listens there: after a fork that is not the child.
type Listening = (u64, u64, u32);

static HERE: Mutex<Vec<Listening>> = Mutex::new(Vec::new());

fn here() -> MutexGuard<'static, Vec<Listening>> {
    HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name_of(path: &Path) -> io::Result<Listening> {
    let file = fs::metadata(path)?;
    Ok((file.dev(), file.ino(), std::process::id()))
}

/// This program listens at a socket, until this is dropped.
#[derive(Debug)]
pub(super) struct Here(Listening);

impl Here {
    /// For who has just begun to listen there.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let name = name_of(path)?;
        here().push(name);
        Ok(Self(name))
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        here().retain(|name| *name != self.0);
    }
}

/// Does this program listen there?
pub(super) fn listens(path: &Path) -> bool {
    name_of(path).is_ok_and(|name| here().contains(&name))
}
