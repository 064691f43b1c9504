//! Memory that an application registers.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Once, PoisonError};

use nix::unistd::geteuid;

use super::Session;
use super::owned::Region;
use crate::attach::doors;
use crate::attach::mapped_files::FileUse;
use crate::attach::message::Reply;
use crate::control::{ControlError, Outcome, attributes};
use crate::memory::client::{Client, ClientError};
use crate::memory::mapped::{ClientFile, MapError};
use crate::memory::pages::page_range;
use crate::memory::place::{ClientMemory, Place};
use crate::nic::MemSettings;
use crate::resource_error::ResourceError;
use crate::sync::Ordering;
use crate::sys;

/// How memory is reached that is about to be registered.
struct Reached {
    place: Place,
    /// As in [`Region`].
    bytes: u64,
    file: Option<FileUse>,
}

/// A range of memory that the application shares.
pub(super) struct SharedRange {
    pub(super) memory: OwnedFd,
    /// Where the range begins.
    pub(super) offset_bytes: u64,
    /// It is a bounce buffer of the library for the registered range.
    pub(super) is_bounce_buffer: bool,
}

/// Logs once that the process has no mappings left; the application is always notified.
fn log_once(error: &MapError) {
    static TOLD: Once = Once::new();
    if matches!(error, MapError::TooMany { .. }) {
        TOLD.call_once(|| log::error!("{error}"));
    }
}

impl Session {
    pub(super) fn register(
        &self,
        nic: u64,
        (address, length_bytes): (u64, u64),
        attributes: (&MemSettings, bool),
        shared: Option<SharedRange>,
    ) -> Outcome<Reply> {
        let nic = self.nic(nic)?;
        self.tag(attributes.0.ptag)?;
        let (base, end) =
            page_range(address, length_bytes).ok_or(ControlError::InvalidParameter)?;
        let bytes = end - base;
        self.owned().expect_region(&self.quota)?;
        let range = (address, length_bytes);
        let is_bounce_buffer = shared
            .as_ref()
            .is_some_and(|shared| shared.is_bounce_buffer);
        if is_bounce_buffer && (attributes.0.rdma_write || attributes.0.rdma_read) {
            return Err(ControlError::InvalidParameter);
        }
        let reached = match shared {
            Some(shared) => self.map(shared, bytes, range),
            None => self.reach(range, bytes),
        };
        let (entered, region, refused) = match reached {
            Ok(reached) => (
                self.enter(nic, range, attributes, reached.place),
                (reached.bytes, reached.file),
                None,
            ),
            Err(reply) => {
                let refused = Err(ResourceError::ProcessRefused.into());
                (refused, (0, None), Some(reply))
            }
        };
        let (bytes, file) = region;
        let at = Region {
            nic,
            address,
            bytes,
            is_bounce_buffer,
            file,
        };
        let (made, unused) = self.owned().have_region(entered, at);
        drop(unused);
        match refused {
            Some(Reply::Failed(error)) => Err(error),
            Some(reply) => Ok(reply),
            None => made.map(Reply::Region),
        }
    }

    /// Maps the file that a range of the application's memory is in, of so many bytes from an
    /// offset on. Where a file cannot be mapped that another process had mapped, the range is
    /// reached by system calls if it may be.
    fn map(
        &self,
        SharedRange {
            memory,
            offset_bytes,
            is_bounce_buffer,
        }: SharedRange,
        bytes: u64,
        range: (u64, u64),
    ) -> Result<Reached, Reply> {
        let map = || -> Result<Reached, MapError> {
            let file = ClientFile::of(memory)?;
            // Counted before anything is mapped.
            let (charged, unmapped) = {
                let owned = self.owned();
                self.files.charge(&file, &self.quota, owned.other_bytes)?
            };
            drop(unmapped);
            let goes_on = || !self.over.load(Ordering::SeqCst);
            let whole = charged.map(&file, goes_on)?;
            Ok(Reached {
                place: Place::Mapped(whole.range(offset_bytes, bytes)?),
                bytes: 0,
                file: Some(charged),
            })
        };
        let error = match map() {
            Ok(reached) => return Ok(reached),
            Err(error) => error,
        };
        log_once(&error);
        if is_bounce_buffer || !error.leaves_system_calls() {
            return Err(Reply::Refused(error.to_string()));
        }
        let reached = self.reach(range, bytes).map_err(|reply| match reply {
            Reply::MemoryUnreachable(also) => Reply::MemoryUnreachable(format!("{error}; {also}")),
            reply => reply,
        })?;
        let (name, pid) = (&self.config.name, self.peer.pid);
        if !self.warned.swap(true, Ordering::Relaxed) {
            let line = format_args!(
                "NIC {name}: process {pid}: shared memory is reached by system calls: {error}"
            );
            doors::say(log::Level::Warn, line);
        }
        Ok(reached)
    }

    /// Memory that is reached by system calls.
    fn reach(&self, (address, length_bytes): (u64, u64), bytes: u64) -> Result<Reached, Reply> {
        let file_bytes = self.files.bytes();
        let counted = self.owned().expect_bytes(bytes, &self.quota, file_bytes);
        counted.map_err(Reply::Failed)?;
        match self.foreign(address, length_bytes) {
            Ok(client) => Ok(Reached {
                place: Place::Foreign(client),
                bytes,
                file: None,
            }),
            Err(why) => {
                self.owned().give_up(bytes);
                Err(Reply::MemoryUnreachable(why))
            }
        }
    }

    /// Registers memory of the application's for one of its openings, with these settings and
    /// whether the application may write it.
    pub(super) fn enter(
        &self,
        nic: u64,
        range: (u64, u64),
        (settings, writable): (&MemSettings, bool),
        place: Place,
    ) -> Outcome<u32> {
        let memory = ClientMemory {
            owner: self.owner(),
            place,
            writable,
        };
        let mut seed = [0; 2];
        sys::random_bytes(&mut seed);
        let seed = u16::from_ne_bytes(seed);
        // Where whoever closes the opening finds the region, or is found.
        let admit = || {
            if !self.device.instances.is_open(nic) {
                return Err(ControlError::InvalidParameter);
            }
            attributes::check_region(self.device, settings)
        };
        let regions = &self.device.regions;
        regions.register_for(nic, memory, range, seed, admit)
    }

    /// What reaches memory of the application that is not shared, if it can reach this range.
    fn foreign(&self, address: u64, length_bytes: u64) -> Result<Arc<Client>, String> {
        if !self.foreign_memory {
            return Err(
                "private memory is not accessed (foreign_memory = false in [process])".to_owned(),
            );
        }
        // The kernel asks whose the process is now, which may run another program than the one that
        // attached; whose the calls are, it does not.
        if self.peer.uid != geteuid().as_raw() {
            return Err(format!(
                "private memory is accessed only in programs of the user of fcvi-pmd, and user \
                 {} is another one",
                self.peer.uid
            ));
        }
        let open = || -> Result<_, ClientError> {
            let lives = self.lives.try_clone().map_err(ClientError::NoProcess)?;
            Client::of_process(self.peer.pid, lives).map(Arc::new)
        };
        let mut client = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match &*client {
            Some(client) => Arc::clone(client),
            None => Arc::clone(client.insert(open().map_err(|error| error.to_string())?)),
        };
        client
            .probe(address, length_bytes)
            .map_err(|error| error.to_string())?;
        Ok(client)
    }

    pub(super) fn deregister(&self, nic: u64, address: u64, region: u32) -> Outcome<()> {
        self.region(nic, address, region)?;
        let removed = {
            let _no_turn_runs = self.device.hold();
            let regions = &self.device.regions;
            regions.deregister(self.owner(), address, region)
        };
        let ended = self.owned().remove_region(region);
        drop(ended);
        removed.map(drop).ok_or(ControlError::InvalidParameter)
    }

    pub(super) fn set_region(
        &self,
        nic: u64,
        (address, region): (u64, u32),
        settings: &MemSettings,
    ) -> Outcome<()> {
        self.region(nic, address, region)?;
        self.tag(settings.ptag)?;
        attributes::set_region(self.device, self.owner(), (address, region), settings)
    }

    /// Is this a region of the application's?
    fn region(&self, nic: u64, address: u64, region: u32) -> Outcome<()> {
        let owned = self.owned();
        let is_owned = owned.nics.contains(&nic)
            && owned
                .regions
                .get(&region)
                .is_some_and(|region| region.address == address);
        is_owned.then_some(()).ok_or(ControlError::InvalidParameter)
    }
}
