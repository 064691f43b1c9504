//! The calls of the guide as a C program makes them: application memory, raw descriptors, plain handles.

use std::sync::mpsc::{Receiver, channel};
use std::thread;

use pmd::config::NicConfig;
use vi_core::descriptor::{ControlSegment, DataSegment, control};
use vipl::provider as vip;
use vipl::{
    Discriminator, Done, ErrorCode, HostAddress, MemAttributes, MemoryHandle, NetAddress,
    NicHandle, PtagHandle, RawDescriptor, RdmaAccess, ReliabilityLevel, Result, SharedMemory,
    ViAttributes, ViHandle,
};

use super::{MAX_TRANSFER_BYTES, WAIT, retry_accept, retry_no_match, unique_discriminator};

pub(crate) const PAGE_BYTES: usize = 4096;

/// Mapped pages, unmapped when dropped.
pub(crate) struct Pages {
    address: u64,
    bytes: usize,
    /// Of the library's allocator; `None` if they are private.
    shared: Option<SharedMemory>,
}

impl Pages {
    pub(crate) fn new(pages: usize) -> Self {
        let bytes = pages * PAGE_BYTES;
        // SAFETY: a fresh private mapping, placed by the kernel.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        Self {
            address: address as u64,
            bytes,
            shared: None,
        }
    }

    /// Pages of the library's allocator, which other programs of a segment can map.
    pub(crate) fn shared(pages: usize) -> Self {
        let memory = SharedMemory::allocate(pages * PAGE_BYTES).unwrap();
        Self {
            address: memory.address().as_ptr().expose_provenance() as u64,
            bytes: memory.len_bytes(),
            shared: Some(memory),
        }
    }

    pub(crate) fn make_read_only(&self) {
        // SAFETY: our own mapping, which nothing writes from here on.
        let failed = unsafe { libc::mprotect(self.address as *mut _, self.bytes, libc::PROT_READ) };
        assert_eq!(failed, 0);
    }

    pub(crate) fn at(&self, offset_bytes: usize) -> u64 {
        assert!(offset_bytes < self.bytes);
        self.address + offset_bytes as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn read(&self, offset_bytes: usize) -> u8 {
        // SAFETY: a readable byte of the mapping.
        unsafe { (self.at(offset_bytes) as *const u8).read_volatile() }
    }

    pub(crate) fn write(&self, offset_bytes: usize, bytes: &[u8]) {
        assert!(offset_bytes + bytes.len() <= self.bytes);
        // SAFETY: inside the mapping, which does not overlap the caller's slice.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.at(offset_bytes) as *mut u8,
                bytes.len(),
            )
        };
    }

    /// Registers all pages, without access of peers.
    pub(crate) fn register(
        &self,
        nic: NicHandle,
        ptag: Option<PtagHandle>,
    ) -> Result<MemoryHandle> {
        self.register_for(nic, ptag, RdmaAccess::default())
    }

    /// Registers all pages, with this access of peers.
    pub(crate) fn register_for(
        &self,
        nic: NicHandle,
        ptag: Option<PtagHandle>,
        access: RdmaAccess,
    ) -> Result<MemoryHandle> {
        register(nic, ptag, self.at(0), self.bytes, access)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.shared.is_none() {
            // SAFETY: our own mapping, which is no longer used.
            unsafe { libc::munmap(self.address as *mut _, self.bytes) };
        }
    }
}

/// A data segment.
pub(crate) fn segment(address: u64, handle: MemoryHandle, length: u32) -> DataSegment {
    DataSegment {
        address,
        handle: handle.0,
        length,
    }
}

pub(crate) fn mem_attributes(ptag: Option<PtagHandle>, access: RdmaAccess) -> MemAttributes {
    MemAttributes {
        ptag,
        rdma_write: access.write,
        rdma_read: access.read,
    }
}

/// Registers memory of the tests, which stays mapped until its deregistration or until the NIC is closed.
pub(crate) fn register(
    nic: NicHandle,
    ptag: Option<PtagHandle>,
    address: u64,
    bytes: usize,
    access: RdmaAccess,
) -> Result<MemoryHandle> {
    let attributes = mem_attributes(ptag, access);
    // SAFETY: as documented above.
    unsafe { vip::register_mem(nic, address, bytes as u64, &attributes) }
}

/// Writes an empty descriptor into a line of the tests' memory and posts it as a receive.
pub(crate) fn post_empty_recv(vi: ViHandle, address: u64, handle: MemoryHandle) -> Result<()> {
    let descriptor = address as *mut RawDescriptor;
    // SAFETY: mapped memory, which the provider does not use while it is not posted.
    unsafe { descriptor.write(RawDescriptor::default()) };
    // SAFETY: it stays mapped and is not accessed until the descriptor is returned.
    unsafe { vip::post_recv(vi, descriptor, handle) }
}

/// The codes of the asynchronous errors of a NIC handle.
pub(crate) fn errors_of(nic: NicHandle) -> Receiver<ErrorCode> {
    let (sender, errors) = channel();
    let report = move |error: &vipl::ErrorDescriptor| {
        // Fails if the test no longer uses the receiver.
        let _ = sender.send(error.code);
    };
    vip::error_callback(nic, Some(Box::new(report))).unwrap();
    errors
}

/// The address of a NIC with a discriminator.
pub(crate) fn address(nic: NicHandle, discriminator: &[u8]) -> NetAddress {
    NetAddress {
        host: HostAddress(*vip::query_nic(nic).unwrap().local_nic_address),
        discriminator: Discriminator::new(discriminator).unwrap(),
    }
}

/// Changes the attributes of memory of the tests, which only volatile accesses read and write.
pub(crate) fn set_mem_attributes(
    nic: NicHandle,
    address: u64,
    handle: MemoryHandle,
    attributes: &MemAttributes,
) -> Result<()> {
    // SAFETY: no test has a reference to such memory.
    unsafe { vip::set_mem_attributes(nic, address, handle, attributes) }
}

/// VI attributes of most tests.
pub(crate) fn attributes(ptag: Option<PtagHandle>) -> ViAttributes {
    ViAttributes {
        reliability: ReliabilityLevel::ReliableDelivery as u16,
        max_transfer_bytes: MAX_TRANSFER_BYTES as u64,
        qos: 0,
        ptag,
        rdma_write: true,
        rdma_read: false,
    }
}

/// A VI with its own memory: the first page for descriptors of one cache line, the others for data.
pub(crate) struct RawEndpoint {
    pub(crate) nic: NicHandle,
    pub(crate) ptag: Option<PtagHandle>,
    pub(crate) vi: ViHandle,
    pub(crate) memory: Pages,
    pub(crate) handle: MemoryHandle,
}

impl RawEndpoint {
    pub(crate) fn new(config: &NicConfig) -> Self {
        let nic = vip::open_nic_with(config).unwrap();
        let ptag = vip::create_ptag(nic).unwrap();
        Self::of(nic, Some(ptag))
    }

    /// A VI on an open NIC, with this tag for VI and memory.
    pub(crate) fn of(nic: NicHandle, ptag: Option<PtagHandle>) -> Self {
        Self::with_memory(nic, ptag, Pages::new(4), &attributes(ptag))
    }

    /// A VI with these attributes, and this memory, on an open NIC.
    pub(crate) fn with_memory(
        nic: NicHandle,
        ptag: Option<PtagHandle>,
        memory: Pages,
        attributes: &ViAttributes,
    ) -> Self {
        let handle = memory.register(nic, ptag).unwrap();
        let vi = vip::create_vi(nic, attributes, None, None).unwrap();
        Self {
            nic,
            ptag,
            vi,
            memory,
            handle,
        }
    }

    /// A data segment in the data pages of this endpoint.
    pub(crate) fn segment(&self, offset_bytes: usize, length: u32) -> DataSegment {
        segment(
            self.memory.at(PAGE_BYTES + offset_bytes),
            self.handle,
            length,
        )
    }

    /// Writes a descriptor of up to two segments into a slot of the first page.
    pub(crate) fn write_descriptor(
        &self,
        slot: usize,
        mut head: ControlSegment,
        segments: &[DataSegment],
    ) -> *mut RawDescriptor {
        let at = self.memory.at(slot * 64) as *mut RawDescriptor;
        head.segment_count = segments.len() as u16;
        let mut descriptor = RawDescriptor {
            control: head,
            ..RawDescriptor::default()
        };
        descriptor.segments[..segments.len()].copy_from_slice(segments);
        // SAFETY: a line of the first page, which the provider does not use while the slot is not posted.
        unsafe { at.write(descriptor) };
        at
    }

    pub(crate) fn post_recv(&self, slot: usize, segments: &[DataSegment]) {
        let at = self.write_descriptor(slot, ControlSegment::default(), segments);
        // SAFETY: the memory stays mapped and is not accessed until the descriptor is returned.
        unsafe { vip::post_recv(self.vi, at, self.handle) }.unwrap();
    }

    pub(crate) fn post_send(&self, slot: usize, segments: &[DataSegment]) {
        let head = ControlSegment {
            length: segments.iter().map(|s| s.length).sum(),
            ..ControlSegment::default()
        };
        let at = self.write_descriptor(slot, head, segments);
        // SAFETY: as above.
        unsafe { vip::post_send(self.vi, at, self.handle) }.unwrap();
    }

    /// Posts an RDMA write of one segment.
    pub(crate) fn post_write(&self, slot: usize, segment: DataSegment, remote: DataSegment) {
        let head = ControlSegment {
            control: control::OP_RDMA_WRITE,
            length: segment.length,
            ..ControlSegment::default()
        };
        let at = self.write_descriptor(slot, head, &[remote, segment]);
        // SAFETY: as above.
        unsafe { vip::post_send(self.vi, at, self.handle) }.unwrap();
    }

    /// Waits for the next receive and returns its status word.
    pub(crate) fn received(&self) -> u32 {
        status_of(vip::recv_wait(self.vi, WAIT).unwrap())
    }

    /// Waits for the next send and returns its status word.
    pub(crate) fn sent(&self) -> u32 {
        status_of(vip::send_wait(self.vi, WAIT).unwrap())
    }
}

impl Drop for RawEndpoint {
    fn drop(&mut self) {
        // Before the memory is unmapped. Fails if the test closed the NIC itself.
        let _ = vip::close_nic(self.nic);
    }
}

fn status_of(done: Done) -> u32 {
    match done {
        Done::Completed { descriptor, status } => {
            // SAFETY: a descriptor that a test posted; the provider has returned it.
            let written = unsafe { (*descriptor).control.status };
            assert_eq!(written, status, "status word of the descriptor");
            status
        }
        other => panic!("a descriptor was posted: {other:?}"),
    }
}

/// Connects two endpoints of this process, the second as server.
pub(crate) fn connect(client: &RawEndpoint, server: &RawEndpoint) {
    connect_vis((client.nic, client.vi), (server.nic, server.vi));
}

/// Connects two VIs of this process, the second as server.
pub(crate) fn connect_vis(client: (NicHandle, ViHandle), server: (NicHandle, ViHandle)) {
    let own = address(client.0, b"client");
    let remote = address(server.0, &unique_discriminator());
    thread::scope(|scope| {
        scope.spawn(|| {
            retry_accept(|| {
                let request = vip::connect_wait(server.0, &remote, WAIT).unwrap();
                vip::connect_accept(request.conn, server.1)
            });
        });
        retry_no_match(|| vip::connect_request(client.1, &own, &remote, WAIT)).unwrap();
    });
}
