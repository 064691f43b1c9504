//! An open NIC, which creates tags, memory, queues and VIs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::connect::ConnectionRequest;
use crate::cq::CompletionQueue;
use crate::descriptor::Descriptor;
use crate::memory::{Buffer, MemoryRegion, RdmaAccess, RdmaRegion, RegionShared};
use crate::vi::ViBuilder;
use crate::{
    Discriminator, ErrorDescriptor, HostAddress, NetAddress, NicAttributes, NicHandle, PtagHandle,
    Result, Timeout, VipError, provider,
};

/// The handle of an open NIC, closed with its last owner.
pub(crate) struct NicShared {
    handle: NicHandle,
    attributes: NicAttributes,
    attached: bool,
    exports_memory: bool,
    /// ID of the process that opened it; forked children do not use it.
    process: u32,
}

impl NicShared {
    /// Reports whether this is a forked child of the process that opened the NIC.
    pub(crate) fn is_in_forked_child(&self) -> bool {
        self.process != std::process::id()
    }

    /// Reports whether a datapath process serves the NIC.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached
    }

    /// Reports whether other programs access memory of the NIC that can be shared without copies.
    pub(crate) fn exports_memory(&self) -> bool {
        self.exports_memory
    }

    pub(crate) fn handle(&self) -> NicHandle {
        self.handle
    }

    pub(crate) fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }
}

impl Drop for NicShared {
    fn drop(&mut self) {
        if let Err(error) = provider::close_nic(self.handle) {
            log::warn!("NIC {}: close failed: {error}", self.attributes.name);
        }
    }
}

/// A handle of an open NIC [VIPL 3.1].
///
/// Clones share the handle. All objects created from it keep it open; it is closed when the last of them is dropped. A
/// process may open a NIC several times; the handles may use each other's memory and tags.
///
/// ```
/// use pmd::config::{Network, NicConfig};
/// use std::time::Duration;
/// use vipl::{Nic, Timeout, VipError};
///
/// // A private shared-memory segment; `Nic::open("VINIC0")` opens the segment that all programs share.
/// let segment = format!("doc-{}", std::process::id());
/// let nic = Nic::open_with(&NicConfig { network: Network::segment(segment), ..NicConfig::default() })?;
/// let ptag = nic.create_ptag()?;
/// let vi = nic.vi(&ptag).build()?;
///
/// // The two VIs of a connection may be in one program, in two programs or on two hosts.
/// let server = nic.clone();
/// let listener = std::thread::spawn(move || -> Result<_, VipError> {
///     let vi = server.vi(&server.create_ptag()?).build()?;
///     let address = server.local_address(b"greeter")?;
///     server.connect_wait(&address, Timeout::After(Duration::from_secs(10)))?.accept(&vi)?;
///     Ok(vi)
/// });
/// let (local, remote) = (nic.local_address(b"client")?, nic.local_address(b"greeter")?);
/// // While the server does not wait yet, the result is `NoMatch`: retry.
/// while let Err(error) = vi.connect(&local, &remote, Timeout::After(Duration::from_secs(10))) {
///     assert_eq!(error, VipError::NoMatch);
/// }
/// let peer = listener.join().unwrap()?;
/// assert_eq!(vi.state()?, vipl::ViState::Connected);
/// # drop(peer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Nic {
    shared: Arc<NicShared>,
}

impl Nic {
    /// Opens a NIC by name: `"VINIC0"`, a port's own name, or an alias of the configuration. The configuration is the
    /// file that `VIADUCT_CONFIG` names; without one, `VINIC0` is a shared-memory segment of this user.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] for an unknown name, [`VipError::ErrorResource`] when it cannot be opened;
    /// [`provider::last_error`] returns the reason as text.
    pub fn open(name: &str) -> Result<Self> {
        Self::from_handle(provider::open_nic(name)?)
    }

    /// Opens the NIC that `config` describes.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(config: &pmd::config::NicConfig) -> Result<Self> {
        Self::from_handle(provider::open_nic_with(config)?)
    }

    /// Opens the NIC `name` of the datapath process that listens at `socket`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn attach(socket: &Path, name: &str) -> Result<Self> {
        Self::from_handle(provider::attach_nic(socket, name)?)
    }

    fn from_handle(handle: NicHandle) -> Result<Self> {
        let query = || -> Result<_> {
            let info = pmd::nic::info(handle.into_raw())?;
            Ok((provider::query_nic(handle)?, info))
        };
        match query() {
            Ok((attributes, info)) => Ok(Self {
                shared: Arc::new(NicShared {
                    handle,
                    attributes,
                    attached: info.attached,
                    exports_memory: info.exports_memory,
                    process: std::process::id(),
                }),
            }),
            Err(error) => {
                provider::close_nic(handle)?;
                Err(error)
            }
        }
    }

    /// Returns the attributes and limits of this NIC [VIPL 4.5].
    pub fn attributes(&self) -> &NicAttributes {
        self.shared.attributes()
    }

    /// Returns the provider's handle of this NIC, as in error descriptors.
    pub fn handle(&self) -> NicHandle {
        self.shared.handle()
    }

    /// Returns the host address of this NIC.
    pub fn host_address(&self) -> HostAddress {
        HostAddress(*self.attributes().local_nic_address)
    }

    /// Returns the address of this NIC with a discriminator, for [`Self::connect_wait`] or as a client's local address.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the discriminator is longer than `max_discriminator_len`.
    pub fn local_address(&self, discriminator: &[u8]) -> Result<NetAddress> {
        self.net_address(self.host_address(), discriminator)
    }

    /// Returns the first address of a named host, with a discriminator. The name service must have been started with
    /// [`Self::name_service`].
    ///
    /// # Errors
    /// [`VipError::ErrorNameservice`] for an unknown name, [`VipError::InvalidParameter`] when the discriminator is
    /// longer than `max_discriminator_len`.
    pub fn remote_address(&self, host: &str, discriminator: &[u8]) -> Result<NetAddress> {
        self.net_address(self.host_by_name(host, 0)?, discriminator)
    }

    fn net_address(&self, host: HostAddress, discriminator: &[u8]) -> Result<NetAddress> {
        let fits = discriminator.len() <= self.attributes().max_discriminator_len.into();
        let discriminator = Discriminator::new(discriminator).filter(|_| fits);
        Ok(NetAddress {
            host,
            discriminator: discriminator.ok_or(VipError::InvalidParameter)?,
        })
    }

    /// Creates a protection tag: a VI can use memory with the same tag [VIPL 3.4.1].
    ///
    /// # Errors
    /// [`VipError::ErrorResource`] when `max_ptags` tags exist already.
    pub fn create_ptag(&self) -> Result<Ptag> {
        let handle = provider::create_ptag(self.handle())?;
        Ok(Ptag {
            shared: Arc::new(PtagShared {
                nic: Arc::clone(&self.shared),
                handle,
            }),
        })
    }

    /// Allocates and registers memory that only this program and its posted descriptors use [VIPL 3.4.3].
    ///
    /// For a NIC of a datapath process each region is a [`SharedMemory`](crate::SharedMemory) that the process maps; a
    /// child after fork(2) shares the same bytes. If the limit of open file descriptors is reached, the region is on
    /// the heap, as for any other NIC, and the process accesses it by system calls or through a bounce buffer. For a NIC
    /// of a shared-memory segment regions of at least 64 KiB are such memory, from which receivers copy long sends: create
    /// few large ones, since each holds a file descriptor open.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] for 0 bytes, [`VipError::ErrorResource`] when memory is short or a limit of the
    /// NIC is reached.
    pub fn create_region(&self, len_bytes: usize, ptag: &Ptag) -> Result<MemoryRegion> {
        self.allocate(len_bytes, ptag, RdmaAccess::default())
            .map(MemoryRegion::new)
    }

    /// Allocates one region for `count` buffers of `buffer_bytes` each, which share no cache line.
    ///
    /// # Errors
    /// As [`Self::create_region`].
    pub fn create_buffers(
        &self,
        count: usize,
        buffer_bytes: usize,
        ptag: &Ptag,
    ) -> Result<Vec<Buffer>> {
        if buffer_bytes == 0 {
            return Err(VipError::InvalidParameter);
        }
        let len_bytes = MemoryRegion::stride_bytes(buffer_bytes)
            .checked_mul(count)
            .ok_or(VipError::InvalidParameter)?;
        Ok(self.create_region(len_bytes, ptag)?.split(buffer_bytes))
    }

    /// Allocates and registers memory that peers may write or read according to `access`, over VIs that allow it too.
    ///
    /// # Errors
    /// As [`Self::create_region`].
    pub fn create_rdma_region(
        &self,
        len_bytes: usize,
        ptag: &Ptag,
        access: RdmaAccess,
    ) -> Result<RdmaRegion> {
        self.allocate(len_bytes, ptag, access).map(RdmaRegion::new)
    }

    fn allocate(
        &self,
        len_bytes: usize,
        ptag: &Ptag,
        access: RdmaAccess,
    ) -> Result<Arc<RegionShared>> {
        RegionShared::allocate(Arc::clone(&self.shared), ptag, len_bytes, access)
    }

    /// Creates `count` descriptors of up to `max_segments` data segments each, in one registered region. They can be
    /// posted repeatedly, to any VI with the same tag.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] for 0 descriptors or more segments than `max_segments_per_desc` allows;
    /// otherwise as [`Self::create_region`].
    pub fn create_descriptors(
        &self,
        count: usize,
        max_segments: usize,
        ptag: &Ptag,
    ) -> Result<Vec<Descriptor>> {
        // An RDMA descriptor has an address segment, which counts too.
        if max_segments as u64 >= self.attributes().max_segments_per_desc {
            return Err(VipError::InvalidParameter);
        }
        let slots = self.create_buffers(count, Descriptor::slot_bytes(max_segments), ptag)?;
        Ok(slots
            .into_iter()
            .map(|slot| Descriptor::new(slot, max_segments))
            .collect())
    }

    /// Creates a completion queue of `entries` entries [VIPL 3.6.1].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] for 0 entries or more than `max_cq_entries`, [`VipError::ErrorResource`] when
    /// `max_cq` queues exist already.
    pub fn create_cq(&self, entries: u64) -> Result<CompletionQueue> {
        CompletionQueue::create(Arc::clone(&self.shared), entries)
    }

    /// Returns a builder of a VI whose descriptors and buffers have the tag `ptag` [VIPL 3.2.1].
    pub fn vi(&self, ptag: &Ptag) -> ViBuilder {
        ViBuilder::new(Arc::clone(&self.shared), ptag.clone())
    }

    /// Waits for a connection request to the discriminator of `local` [VIPL 3.3.1].
    ///
    /// # Errors
    /// [`VipError::Timeout`] when no request arrived within the timeout, [`VipError::InvalidParameter`] when `local`
    /// has another host address.
    pub fn connect_wait(&self, local: &NetAddress, timeout: Timeout) -> Result<ConnectionRequest> {
        let indication = provider::connect_wait(self.handle(), local, timeout)?;
        Ok(ConnectionRequest::new(Arc::clone(&self.shared), indication))
    }

    /// Registers `handler` for asynchronous errors, which no descriptor reports [VIPL 3.8.1]. It is called on the NIC's
    /// error thread. It replaces the previous handler, which has returned when this call returns, unless this is called
    /// from a handler; the default handler writes a log line. A handler that owns a clone of this NIC keeps it open
    /// forever.
    ///
    /// # Errors
    /// [`VipError::ErrorResource`] when memory is short.
    pub fn set_error_handler(
        &self,
        handler: impl FnMut(&ErrorDescriptor) + Send + 'static,
    ) -> Result<()> {
        provider::error_callback(self.handle(), Some(Box::new(handler)))
    }

    /// Restores the default handler of asynchronous errors, which writes a log line.
    ///
    /// # Errors
    /// As [`Self::set_error_handler`].
    pub fn reset_error_handler(&self) -> Result<()> {
        provider::error_callback(self.handle(), None)
    }

    /// Returns the host addresses of the other nodes on the network within `number_of_hops` hops [VIPL 3.7.6]; all
    /// nodes are one hop away. On shared memory the local host is listed while another of its programs has joined the
    /// segment; without discovery the configured neighbours are listed.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC was closed by its handle.
    pub fn autodiscovery(&self, number_of_hops: u64) -> Result<Vec<HostAddress>> {
        provider::autodiscovery(self.handle(), number_of_hops)
    }

    /// Starts the name service with the hosts file `file`, by default that of the configuration or `/etc/hosts`
    /// [VIPL 3.9.1].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the file cannot be used, [`VipError::ErrorNameservice`] when the service
    /// is started already.
    pub fn name_service(&self, file: Option<&Path>) -> Result<()> {
        provider::ns_init(self.handle(), file)
    }

    /// Returns the address of a host with number `index`, from 0 [VIPL 3.9.2].
    ///
    /// # Errors
    /// [`VipError::ErrorNameservice`] when the name is unknown, has no such address, or the service is not started.
    pub fn host_by_name(&self, name: &str, index: u64) -> Result<HostAddress> {
        provider::ns_get_host_by_name(self.handle(), name, index)
    }

    /// Returns the name of a host [VIPL 3.9.3].
    ///
    /// # Errors
    /// [`VipError::ErrorNameservice`] when the address is unknown or the service is not started.
    pub fn host_by_address(&self, address: &HostAddress) -> Result<String> {
        provider::ns_get_host_by_addr(self.handle(), address)
    }

    /// Stops the name service; the NIC stays open [VIPL 3.9.4].
    ///
    /// # Errors
    /// [`VipError::ErrorNameservice`] when it is not started.
    pub fn shut_down_name_service(&self) -> Result<()> {
        provider::ns_shutdown(self.handle())
    }
}

impl fmt::Debug for NicShared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Nic")
            .field("name", &self.attributes.name)
            .field("handle", &self.handle)
            .finish()
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Nic")
            .field("name", &self.attributes().name)
            .field("handle", &self.handle())
            .finish()
    }
}

struct PtagShared {
    nic: Arc<NicShared>,
    handle: PtagHandle,
}

impl Drop for PtagShared {
    fn drop(&mut self) {
        if let Err(error) = provider::destroy_ptag(self.nic.handle(), self.handle) {
            log::warn!("protection tag: destroy failed: {error}");
        }
    }
}

/// A protection tag: a VI can use only memory with its own tag [VIPL 3.4.1].
///
/// Clones refer to the same tag. Memory and VIs with the tag own a clone; it is destroyed with the last clone.
#[derive(Clone)]
pub struct Ptag {
    shared: Arc<PtagShared>,
}

impl Ptag {
    /// Returns the provider's handle of this tag.
    pub fn handle(&self) -> PtagHandle {
        self.shared.handle
    }
}

impl PartialEq for Ptag {
    fn eq(&self, other: &Self) -> bool {
        self.handle() == other.handle()
    }
}

impl Eq for Ptag {}

impl fmt::Debug for Ptag {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Ptag").field(&self.handle()).finish()
    }
}
