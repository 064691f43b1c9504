//! The calls of the guide as a C program makes them: memory of one's own, raw descriptors, plain handles.

use std::thread;

use pmd::config::NicConfig;
use pmd::descriptor::{ControlSegment, DataSegment, control};
use vipl::provider as vip;
use vipl::{
    Done, MemAttributes, MemoryHandle, NicHandle, PtagHandle, RawDescriptor, ReliabilityLevel,
    Result, ViAttributes, ViHandle,
};

use super::{MAX_TRANSFER_BYTES, WAIT, persist, unique_discriminator, until_answered};

pub(crate) const PAGE_BYTES: usize = 4096;

/// Whole pages of their own, unmapped when dropped.
pub(crate) struct Pages {
    address: u64,
    bytes: usize,
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
        }
    }

    pub(crate) fn forbid_writing(&self) {
        // SAFETY: the mapping is ours, and nothing writes to it from here on.
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
        // SAFETY: inside the mapping, which does not overlap a slice of the caller's.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.at(offset_bytes) as *mut u8,
                bytes.len(),
            )
        };
    }

    /// Registers all of it.
    pub(crate) fn register(
        &self,
        nic: NicHandle,
        ptag: Option<PtagHandle>,
        rdma_write: bool,
    ) -> Result<MemoryHandle> {
        let attributes = MemAttributes {
            ptag,
            rdma_write,
            rdma_read: false,
        };
        // SAFETY: mapped until dropped; tests keep it longer than its registration, or close the NIC before.
        unsafe { vip::register_mem(nic, self.at(0), self.bytes as u64, &attributes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody uses it any more.
        unsafe { libc::munmap(self.address as *mut _, self.bytes) };
    }
}

/// Changes the attributes of memory of the tests, which is reached by volatile accesses only.
pub(crate) fn set_mem_attributes(
    nic: NicHandle,
    address: u64,
    handle: MemoryHandle,
    attributes: &MemAttributes,
) -> Result<()> {
    // SAFETY: no test has a reference to such memory.
    unsafe { vip::set_mem_attributes(nic, address, handle, attributes) }
}

/// Attributes of a VI as most tests want it.
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

/// A VI with memory of its own: the first page for descriptors of one line, the others for data.
pub(crate) struct RawEnd {
    pub(crate) nic: NicHandle,
    pub(crate) ptag: Option<PtagHandle>,
    pub(crate) vi: ViHandle,
    pub(crate) memory: Pages,
    pub(crate) handle: MemoryHandle,
}

impl RawEnd {
    pub(crate) fn new(config: &NicConfig) -> Self {
        let nic = vip::open_nic_with(config).unwrap();
        let ptag = vip::create_ptag(nic).unwrap();
        Self::of(nic, Some(ptag))
    }

    /// On an open NIC, with this tag for VI and memory.
    pub(crate) fn of(nic: NicHandle, ptag: Option<PtagHandle>) -> Self {
        let memory = Pages::new(4);
        let handle = memory.register(nic, ptag, false).unwrap();
        let vi = vip::create_vi(nic, &attributes(ptag), None, None).unwrap();
        Self {
            nic,
            ptag,
            vi,
            memory,
            handle,
        }
    }

    /// A segment of this end's own memory.
    pub(crate) fn segment(&self, offset_bytes: usize, length: u32) -> DataSegment {
        DataSegment {
            address: self.memory.at(PAGE_BYTES + offset_bytes),
            handle: self.handle.0,
            length,
        }
    }

    /// Writes a descriptor of up to two segments into slot `slot` of the first page.
    pub(crate) fn describe(
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
        // SAFETY: a line of the first page, which is ours while the slot is not posted.
        unsafe { at.write(descriptor) };
        at
    }

    pub(crate) fn post_recv(&self, slot: usize, segments: &[DataSegment]) {
        let at = self.describe(slot, ControlSegment::default(), segments);
        // SAFETY: the memory stays mapped and is left alone until the descriptor comes back.
        unsafe { vip::post_recv(self.vi, at, self.handle) }.unwrap();
    }

    pub(crate) fn post_send(&self, slot: usize, segments: &[DataSegment]) {
        let head = ControlSegment {
            length: segments.iter().map(|s| s.length).sum(),
            ..ControlSegment::default()
        };
        let at = self.describe(slot, head, segments);
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
        let at = self.describe(slot, head, &[remote, segment]);
        // SAFETY: as above.
        unsafe { vip::post_send(self.vi, at, self.handle) }.unwrap();
    }

    /// Waits for the next receive; its status word.
    pub(crate) fn received(&self) -> u32 {
        status_of(vip::recv_wait(self.vi, WAIT).unwrap())
    }

    /// Waits for the next send; its status word.
    pub(crate) fn sent(&self) -> u32 {
        status_of(vip::send_wait(self.vi, WAIT).unwrap())
    }
}

impl Drop for RawEnd {
    fn drop(&mut self) {
        // Before the memory goes. Fails if a test closed the NIC itself.
        let _ = vip::close_nic(self.nic);
    }
}

fn status_of(done: Done) -> u32 {
    match done {
        Done::Completed { descriptor, status } => {
            // SAFETY: a descriptor that a test posted, back with its memory.
            let written = unsafe { (*descriptor).control.status };
            assert_eq!(written, status, "the same in the descriptor");
            status
        }
        other => panic!("a descriptor was posted: {other:?}"),
    }
}

/// Connects two ends of this process, the second as server.
pub(crate) fn connect(client: &RawEnd, server: &RawEnd) {
    let address = |end: &RawEnd, discriminator: &[u8]| vipl::NetAddress {
        host: vipl::HostAddress(*vip::query_nic(end.nic).unwrap().local_nic_address),
        discriminator: vipl::Discriminator::new(discriminator).unwrap(),
    };
    let (own, remote) = (
        address(client, b"client"),
        address(server, &unique_discriminator()),
    );
    thread::scope(|scope| {
        scope.spawn(|| {
            until_answered(|| {
                let request = vip::connect_wait(server.nic, &remote, WAIT).unwrap();
                vip::connect_accept(request.conn, server.vi)
            });
        });
        persist(|| vip::connect_request(client.vi, &own, &remote, WAIT)).unwrap();
    });
}
