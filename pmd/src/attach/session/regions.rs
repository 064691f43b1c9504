//! Registration of an application's memory.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Once, PoisonError};

use nix::unistd::geteuid;
use vi_core::memory::backing::{Backing, ClientMemory};
use vi_core::memory::client_mapping::{ClientFile, MapError, MappedMemory};
use vi_core::memory::client_process::{ClientError, ClientProcess};
use vi_core::memory::pages::page_range;
use vi_core::sync::Ordering;
use vi_core::sys;
use vi_types::{CallError, LockPolicy, MemAttributes, Outcome, ResourceError};

use super::owned::Region;
use super::{Owned, Session};
use crate::attach::limiters;
use crate::attach::mapped_files::FileUse;
use crate::attach::message::Reply;
use crate::control::attributes;

/// Access to memory that is about to be registered.
struct RegionAccess {
    backing: Backing,
    /// As in [`Region`].
    bytes: u64,
    file: Option<FileUse>,
}

/// A range of memory that the application shares.
pub(super) struct SharedRange {
    pub(super) memory: OwnedFd,
    /// The offset of the range in it.
    pub(super) offset_bytes: u64,
    /// It is a bounce buffer of the library for the registered range.
    pub(super) is_bounce_buffer: bool,
}

/// Logs once that the process has no mappings left; the application is always notified.
fn log_once(error: &MapError) {
    static LOGGED: Once = Once::new();
    if matches!(error, MapError::TooMany { .. }) {
        LOGGED.call_once(|| log::error!("{error}"));
    }
}

/// Locks mapped memory as the configuration requires, so that no poll thread waits for a page that was swapped out.
pub(super) fn lock_pages(memory: &MappedMemory, policy: LockPolicy) -> Result<(), MapError> {
    if policy == LockPolicy::Never {
        return Ok(());
    }
    match memory.lock_pages() {
        Err(number) if policy == LockPolicy::Required => Err(MapError::NotLocked(number)),
        // The region is counted as not locked.
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Session {
    pub(super) fn register(
        &self,
        nic: u64,
        (address, length_bytes): (u64, u64),
        attributes: (&MemAttributes, bool),
        shared: Option<SharedRange>,
    ) -> Outcome<Reply> {
        let nic = self.nic(nic)?;
        self.check_tag(attributes.0.ptag)?;
        let (base, end) = page_range(address, length_bytes).ok_or(CallError::InvalidParameter)?;
        let bytes = end - base;
        let range = (address, length_bytes);
        let is_bounce_buffer = shared
            .as_ref()
            .is_some_and(|shared| shared.is_bounce_buffer);
        if is_bounce_buffer && (attributes.0.rdma_write || attributes.0.rdma_read) {
            return Err(CallError::InvalidParameter);
        }
        self.reserve_owned(Owned::reserve_region)?;
        let access = match shared {
            Some(shared) => self.map(shared, bytes, range),
            None => self.access_private(range, bytes),
        };
        let (entered, region, refused) = match access {
            Ok(access) => (
                self.enter(nic, range, attributes, access.backing),
                (access.bytes, access.file),
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
        let (made, unused) = self.owned().commit_region(entered, at);
        drop(unused);
        match refused {
            Some(Reply::Failed(error)) => Err(error),
            Some(reply) => Ok(reply),
            None => made.map(Reply::Region),
        }
    }

    /// Maps the file that contains a range of the application's memory, `bytes` from the offset on. If the file cannot
    /// be mapped because another process had sealed it, the range is accessed by system calls if that is permitted.
    ///
    /// # Errors
    /// The reply that refuses the registration.
    fn map(
        &self,
        SharedRange {
            memory,
            offset_bytes,
            is_bounce_buffer,
        }: SharedRange,
        bytes: u64,
        range: (u64, u64),
    ) -> Result<RegionAccess, Reply> {
        let map = || -> Result<RegionAccess, MapError> {
            let file = ClientFile::of(memory)?;
            // Counted before anything is mapped.
            let (charged, unmapped) = self.charge(&file)?;
            drop(unmapped);
            let continues = || !self.ending.load(Ordering::SeqCst);
            let whole = charged.map(&file, continues)?;
            lock_pages(&whole, self.config.lock_memory)?;
            Ok(RegionAccess {
                backing: Backing::Mapped(whole.range(offset_bytes, bytes)?),
                bytes: 0,
                file: Some(charged),
            })
        };
        let error = match map() {
            Ok(access) => return Ok(access),
            Err(error) => error,
        };
        log_once(&error);
        if is_bounce_buffer || !error.allows_system_calls() {
            return Err(Reply::Refused(error.to_string()));
        }
        let access = self
            .access_private(range, bytes)
            .map_err(|reply| match reply {
                Reply::MemoryUnreachable(also) => {
                    Reply::MemoryUnreachable(format!("{error}; {also}"))
                }
                reply => reply,
            })?;
        let (name, pid) = (&self.config.name, self.peer.pid);
        if !self.is_mapping_logged.swap(true, Ordering::Relaxed) {
            let line = format_args!(
                "NIC {name}: shared memory is accessed by system calls: {error} pid={pid}"
            );
            limiters::log_of_user(self.account.uid, log::Level::Warn, line);
        }
        Ok(access)
    }

    /// Accesses private memory by system calls.
    ///
    /// # Errors
    /// The reply that refuses the registration.
    fn access_private(
        &self,
        (address, length_bytes): (u64, u64),
        bytes: u64,
    ) -> Result<RegionAccess, Reply> {
        let file_bytes = self.files.bytes();
        let counted =
            self.reserve_owned(|owned, quota| owned.reserve_bytes(bytes, quota, file_bytes));
        counted.map_err(Reply::Failed)?;
        match self.client_process(address, length_bytes) {
            Ok(client) => Ok(RegionAccess {
                backing: Backing::Foreign(client),
                bytes,
                file: None,
            }),
            Err(why) => {
                self.owned().release_bytes(bytes);
                Err(Reply::MemoryUnreachable(why))
            }
        }
    }

    /// Registers memory of the application for one of its NIC handles, with these settings; `writable`: the application
    /// may write the memory.
    pub(super) fn enter(
        &self,
        nic: u64,
        range: (u64, u64),
        (settings, writable): (&MemAttributes, bool),
        backing: Backing,
    ) -> Outcome<u32> {
        let memory = ClientMemory {
            owner: self.owner(),
            backing,
            writable,
        };
        let mut seed = [0; 2];
        sys::random_bytes(&mut seed);
        let seed = u16::from_ne_bytes(seed);
        // Under the lock of the table: a thread that closes the NIC handle either finds the region or is noticed here.
        let check = || {
            if !self.device.nic_handles.is_open(nic) {
                return Err(CallError::InvalidParameter);
            }
            attributes::check_region(self.device, settings)
        };
        let regions = &self.device.shared.regions;
        regions.register_for(nic, memory, range, seed, check)
    }

    /// Returns the access to private memory of the application, if it can access this range.
    ///
    /// # Errors
    /// The reason why it cannot.
    fn client_process(
        &self,
        address: u64,
        length_bytes: u64,
    ) -> Result<Arc<ClientProcess>, String> {
        if !self.foreign_memory {
            return Err(
                "private memory is not accessed (foreign_memory = false in [process])".to_owned(),
            );
        }
        // The kernel checks the present user of the process, which may have executed another program since it
        // attached; it does not check on whose behalf the access is made.
        if self.peer.uid != geteuid().as_raw() {
            return Err(format!(
                "private memory is accessed only in programs of the user of fcvi-pmd, and user \
                 {} is another one",
                self.peer.uid
            ));
        }
        let open = || -> Result<_, ClientError> {
            let pidfd = self.pidfd.try_clone().map_err(ClientError::NoProcess)?;
            ClientProcess::of_process(self.peer.pid, pidfd).map(Arc::new)
        };
        let mut client = self
            .client_process
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
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
            let _backend_lock = self.device.lock();
            let regions = &self.device.shared.regions;
            regions.deregister(self.owner(), address, region)
        };
        let ended = self.owned().remove_region(region);
        drop(ended);
        // Regions of applications are not exported to other stations.
        removed.map(drop).ok_or(CallError::InvalidParameter)
    }

    pub(super) fn set_region(
        &self,
        nic: u64,
        (address, region): (u64, u32),
        settings: &MemAttributes,
    ) -> Outcome<()> {
        self.region(nic, address, region)?;
        self.check_tag(settings.ptag)?;
        attributes::set_region(self.device, self.owner(), (address, region), settings)
    }

    /// Checks that the application owns a region.
    fn region(&self, nic: u64, address: u64, region: u32) -> Outcome<()> {
        let owned = self.owned();
        let is_owned = owned.nics.contains(&nic)
            && owned
                .regions
                .get(&region)
                .is_some_and(|region| region.address == address);
        is_owned.then_some(()).ok_or(CallError::InvalidParameter)
    }
}
