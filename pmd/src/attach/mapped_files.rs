//! Mapped files of applications, and the applications that are charged for them.
//!
//! A file is mapped once, as a whole, and cannot be mapped again ([`ClientFile`]). So it stays mapped while any
//! application that is charged for it may register it again: until the library reports that the application has freed
//! it, until the application's process ends, or until the application needs the bytes of its quota for another file. A
//! detached application keeps its files, and counts as one of its user's applications.

use std::collections::{HashMap, TryReserveError};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vi_core::memory::client_mapping::{ClientFile, FileId, MapError, MappedMemory};
use vi_core::sys;

use super::client_slots::SlotLimits;
use crate::config::Quota;
use vi_core::control_socket::Peer;

/// Identifies an application: a process that is or was attached, and the number of the NIC.
pub(super) type ApplicationId = (Peer, u16);

/// All mapped files, and all applications that are charged for some.
pub(super) struct MappedFiles {
    state: Mutex<State>,
    /// Notified when a file was mapped, or could not be.
    mapped: Condvar,
    /// Signalled when an application with files detaches, or the process stops.
    changed: sys::EventFd,
}

#[derive(Default)]
struct State {
    applications: HashMap<ApplicationId, Application>,
    files: HashMap<FileId, MappedFile>,
    /// A logical clock: orders uses.
    clock: u64,
}

struct Application {
    /// Readable when the process has ended.
    pidfd: Arc<OwnedFd>,
    /// Present attachments.
    sessions: u32,
    charges: HashMap<FileId, Charge>,
    /// Bytes of all its files.
    bytes: u64,
    /// When it attached or detached last.
    used_at: u64,
}

/// A file that an application is charged for.
struct Charge {
    bytes: u64,
    /// Regions in it that are registered or about to be.
    regions: u32,
    used_at: u64,
    /// The application has freed it.
    freed: bool,
}

struct MappedFile {
    /// `None` until it is mapped.
    memory: Option<MappedMemory>,
    is_being_mapped: bool,
    /// Applications that are charged for it.
    charges: u32,
    /// The user that may register it: a writable descriptor proves nothing for a file that was sealed before the
    /// descriptor was passed.
    uid: libc::uid_t,
}

/// Memory to be unmapped by its drop, which may take long: the caller must not hold a lock then.
pub(super) type Unmapped = Vec<MappedMemory>;

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Removes a file from those of an application.
    fn discharge(&mut self, id: ApplicationId, file: FileId) -> Option<MappedMemory> {
        let application = self.applications.get_mut(&id)?;
        let charge = application.charges.remove(&file)?;
        application.bytes -= charge.bytes;
        let mapped = self.files.get_mut(&file)?;
        mapped.charges -= 1;
        if mapped.charges > 0 {
            return None;
        }
        self.files.remove(&file)?.memory
    }

    /// Removes an application without regions.
    fn remove(&mut self, id: ApplicationId) -> Unmapped {
        let files = self.applications.get(&id).map(|a| &a.charges);
        let files: Vec<_> = files.into_iter().flat_map(HashMap::keys).copied().collect();
        let unmapped = files.into_iter().filter_map(|f| self.discharge(id, f));
        let unmapped = unmapped.collect();
        self.applications.remove(&id);
        unmapped
    }

    /// Returns the detached applications, the one that detached first in front.
    fn detached(&self) -> Vec<ApplicationId> {
        let of =
            |(id, a): (&ApplicationId, &Application)| (a.sessions == 0).then_some((a.used_at, *id));
        let mut detached: Vec<_> = self.applications.iter().filter_map(of).collect();
        detached.sort_unstable_by_key(|(used_at, _)| *used_at);
        detached.into_iter().map(|(_, id)| id).collect()
    }

    /// Removes the detached applications whose process has ended.
    fn remove_ended(&mut self) -> Unmapped {
        let mut unmapped = Vec::new();
        for id in self.detached() {
            let has_ended = |a: &Application| sys::has_exited(&a.pidfd);
            if self.applications.get(&id).is_some_and(has_ended) {
                unmapped.extend(self.remove(id));
            }
        }
        unmapped
    }

    /// Charges an application for a region in a file; the file's bytes count once.
    fn charge(
        &mut self,
        id: ApplicationId,
        file: &ClientFile,
        (quota, other_bytes): (&Quota, u64),
    ) -> Result<Unmapped, MapError> {
        let used_at = self.tick();
        let interrupted = || MapError::Interrupted;
        self.files.try_reserve(1).map_err(no_memory)?;
        if let Some(mapped) = self.files.get(&file.id())
            && mapped.uid != id.0.uid
        {
            return Err(MapError::SealedBefore);
        }
        let application = self.applications.get_mut(&id).ok_or_else(interrupted)?;
        if let Some(charge) = application.charges.get_mut(&file.id()) {
            charge.regions += 1;
            charge.used_at = used_at;
            charge.freed = false;
            return Ok(Vec::new());
        }
        application.charges.try_reserve(1).map_err(no_memory)?;
        let idle = application.evict_for(file.bytes(), quota, other_bytes)?;
        let mut unmapped = Vec::new();
        unmapped.try_reserve_exact(idle.len()).map_err(no_memory)?;
        unmapped.extend(idle.into_iter().filter_map(|idle| self.discharge(id, idle)));
        let application = self.applications.get_mut(&id).ok_or_else(interrupted)?;
        let charge = Charge {
            bytes: file.bytes(),
            regions: 1,
            used_at,
            freed: false,
        };
        application.bytes += charge.bytes;
        application.charges.insert(file.id(), charge);
        let mapped = self.files.entry(file.id()).or_insert(MappedFile {
            memory: None,
            is_being_mapped: false,
            charges: 0,
            uid: id.0.uid,
        });
        mapped.charges += 1;
        Ok(unmapped)
    }
}

fn no_memory(_: TryReserveError) -> MapError {
    MapError::System(io::ErrorKind::OutOfMemory.into())
}

impl Application {
    /// Selects files without regions to be unmapped so that another file of this length fits into the quota; the least
    /// recently used first.
    ///
    /// # Errors
    /// [`MapError::TooLong`], [`MapError::TooManyFiles`].
    fn evict_for(
        &self,
        bytes: u64,
        quota: &Quota,
        other_bytes: u64,
    ) -> Result<Vec<FileId>, MapError> {
        let (quota_bytes, quota_files) = (quota.max_registered_bytes, quota.max_regions);
        let (mut files, mut used_bytes) = (self.charges.len(), self.bytes + other_bytes);
        let fits = bytes <= quota_bytes.saturating_sub(used_bytes);
        if fits && files < quota_files as usize {
            return Ok(Vec::new());
        }
        let mut idle = Vec::new();
        idle.try_reserve_exact(files).map_err(no_memory)?;
        idle.extend(self.charges.iter().filter(|(_, c)| c.regions == 0));
        idle.sort_unstable_by_key(|(_, charge)| charge.used_at);
        let mut evicted = Vec::new();
        evicted.try_reserve_exact(idle.len()).map_err(no_memory)?;
        let mut idle = idle.into_iter();
        loop {
            let left_bytes = quota_bytes.saturating_sub(used_bytes);
            let has_slot = files < quota_files as usize;
            if bytes <= left_bytes && has_slot {
                return Ok(evicted);
            }
            match idle.next() {
                Some((file, charge)) => {
                    evicted.push(*file);
                    files -= 1;
                    used_bytes -= charge.bytes;
                }
                None if has_slot => {
                    return Err(MapError::TooLong {
                        file_bytes: bytes,
                        left_bytes,
                        quota_bytes,
                    });
                }
                None => return Err(MapError::TooManyFiles { limit: quota_files }),
            }
        }
    }
}

impl MappedFiles {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            state: Mutex::default(),
            mapped: Condvar::new(),
            changed: sys::EventFd::new()?,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an application, which is attached until the result is dropped. Removes detached applications if the user,
    /// or all users together, would exceed the limits.
    pub(super) fn attach(
        self: &Arc<Self>,
        id: ApplicationId,
        pidfd: OwnedFd,
        limits: SlotLimits,
    ) -> ApplicationFiles {
        let mut unmapped = Vec::new();
        {
            let mut state = self.state();
            unmapped.extend(state.remove_ended());
            let used_at = state.tick();
            let application = state.applications.entry(id).or_insert(Application {
                pidfd: Arc::new(pidfd),
                sessions: 0,
                charges: HashMap::new(),
                bytes: 0,
                used_at,
            });
            application.sessions += 1;
            for old in state.detached() {
                let of_user = |(peer, _): &&ApplicationId| peer.uid == old.0.uid;
                let (all, user) = (
                    state.applications.len(),
                    state.applications.keys().filter(of_user).count(),
                );
                if all > limits.per_process as usize
                    || (old.0.uid == id.0.uid && user > limits.per_user as usize)
                {
                    unmapped.extend(state.remove(old));
                }
            }
        }
        drop(unmapped);
        ApplicationFiles {
            files: Arc::clone(self),
            id,
        }
    }

    /// Notes that an application has freed a file: it is unmapped with its last region.
    pub(super) fn free(&self, id: ApplicationId, file: FileId) {
        let unmapped = {
            let mut state = self.state();
            let application = state.applications.get_mut(&id);
            match application.and_then(|a| a.charges.get_mut(&file)) {
                Some(charge) if charge.regions > 0 => {
                    charge.freed = true;
                    None
                }
                Some(_) => {
                    let unmapped = state.discharge(id, file);
                    state.remove_if_unused(id);
                    unmapped
                }
                None => None,
            }
        };
        drop(unmapped);
    }

    /// Unmaps files of detached applications when their processes end, until `is_stopping` returns true.
    pub(super) fn unmap_ended(&self, is_stopping: impl Fn() -> bool) {
        const LONG: Duration = Duration::from_secs(3600);
        while !is_stopping() {
            let (unmapped, pidfds) = {
                let mut state = self.state();
                let unmapped = state.remove_ended();
                let of = |id| state.applications.get(&id).map(|a| Arc::clone(&a.pidfd));
                let detached: Vec<_> = state.detached().into_iter().filter_map(of).collect();
                (unmapped, detached)
            };
            drop(unmapped);
            let fds: Vec<_> = pidfds.iter().map(|fd| fd.as_raw_fd()).collect();
            self.changed.sleep_with(&fds, LONG);
        }
    }

    /// Makes [`Self::unmap_ended`] check again.
    pub(super) fn wake(&self) {
        self.changed.signal();
    }
}

impl State {
    fn remove_if_unused(&mut self, id: ApplicationId) {
        let is_unused = |a: &Application| a.sessions == 0 && a.charges.is_empty();
        if self.applications.get(&id).is_some_and(is_unused) {
            self.applications.remove(&id);
        }
    }
}

/// The files of an attached application.
pub(super) struct ApplicationFiles {
    files: Arc<MappedFiles>,
    id: ApplicationId,
}

impl ApplicationFiles {
    /// Charges the application for a region in a file; `other_bytes` count against the quota besides its files. Also
    /// returns the memory of evicted files.
    ///
    /// # Errors
    /// [`MapError::TooLong`], [`MapError::TooManyFiles`], [`MapError::SealedBefore`] for a file of another user.
    pub(super) fn charge(
        &self,
        file: &ClientFile,
        quota: &Quota,
        other_bytes: u64,
    ) -> Result<(FileUse, Unmapped), MapError> {
        let mut state = self.files.state();
        let unmapped = state.charge(self.id, file, (quota, other_bytes))?;
        let charged = FileUse {
            files: Arc::clone(&self.files),
            id: self.id,
            file: file.id(),
        };
        Ok((charged, unmapped))
    }

    /// Returns number and bytes of the files of other applications on this NIC, attached or not, of users for whom
    /// `includes` returns true.
    pub(super) fn of_others(&self, includes: impl Fn(libc::uid_t) -> bool) -> (u64, u64) {
        let state = self.files.state();
        let is_other = |(id, _): &(&ApplicationId, &Application)| {
            **id != self.id && id.1 == self.id.1 && includes(id.0.uid)
        };
        let others = state.applications.iter().filter(is_other);
        others.fold((0, 0), |(files, bytes), (_, other)| {
            (files + other.charges.len() as u64, bytes + other.bytes)
        })
    }

    /// The bytes of all its files.
    pub(super) fn bytes(&self) -> u64 {
        let state = self.files.state();
        state.applications.get(&self.id).map_or(0, |a| a.bytes)
    }
}

impl Drop for ApplicationFiles {
    fn drop(&mut self) {
        let mut state = self.files.state();
        let used_at = state.tick();
        if let Some(application) = state.applications.get_mut(&self.id) {
            application.sessions -= 1;
            application.used_at = used_at;
        }
        state.remove_if_unused(self.id);
        drop(state);
        self.files.wake();
    }
}

/// A region in a file that an application is charged for. Dropping it may unmap the file, which
/// may take long.
pub(super) struct FileUse {
    files: Arc<MappedFiles>,
    id: ApplicationId,
    file: FileId,
}

impl FileUse {
    /// Maps the file unless it is mapped, and returns the mapping; stops when `continues` returns false.
    ///
    /// # Errors
    /// [`MapError`], whose text names the remedy.
    pub(super) fn map(
        &self,
        file: &ClientFile,
        continues: impl Fn() -> bool,
    ) -> Result<MappedMemory, MapError> {
        let mut state = self.files.state();
        loop {
            // The entry exists as long as the file is charged.
            let mapped = state.files.get_mut(&self.file);
            let mapped = mapped.ok_or(MapError::Interrupted)?;
            match &mapped.memory {
                Some(memory) => return Ok(memory.clone()),
                None if mapped.is_being_mapped => {
                    let waited = self.files.mapped.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
                None => {
                    mapped.is_being_mapped = true;
                    break;
                }
            }
        }
        drop(state);
        let mapping = Mapping { of: self };
        let memory = file.map(continues)?;
        let mut state = self.files.state();
        if let Some(mapped) = state.files.get_mut(&self.file) {
            mapped.memory = Some(memory.clone());
        }
        drop(state);
        drop(mapping);
        Ok(memory)
    }
}

/// Marks a file as being mapped; resets the mark on drop.
struct Mapping<'a> {
    of: &'a FileUse,
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        if let Some(mapped) = self.of.files.state().files.get_mut(&self.of.file) {
            mapped.is_being_mapped = false;
        }
        self.of.files.mapped.notify_all();
    }
}

impl Drop for FileUse {
    fn drop(&mut self) {
        let unmapped = {
            let mut state = self.files.state();
            let was_mapped = state
                .files
                .get(&self.file)
                .is_some_and(|f| f.memory.is_some());
            let application = state.applications.get_mut(&self.id);
            let charge = application.and_then(|a| a.charges.get_mut(&self.file));
            let is_last = charge.is_some_and(|charge| {
                charge.regions -= 1;
                charge.regions == 0 && (charge.freed || !was_mapped)
            });
            let unmapped = if is_last {
                state.discharge(self.id, self.file)
            } else {
                None
            };
            state.remove_if_unused(self.id);
            unmapped
        };
        drop(unmapped);
    }
}

#[cfg(test)]
mod tests;
