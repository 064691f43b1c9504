//! A VI whose memory belongs to an application: private to that process, or mapped in this one.

use std::sync::Arc;

use vi_core::memory::backing::{Backing, ClientMemory, Owner};
use vi_core::memory::client_mapping::MappedMemory;
use vi_core::memory::testkit::{Process, map_file, sealed_file};
use vi_core::memory::{RegionAttributes, RegionError};
use vi_types::ViState;

use super::*;
use crate::lookup::vi_of;

const TAG: u32 = 900;
const PAGES: u64 = 4;
const BYTES: u64 = PAGES * PAGE_BYTES as u64;
/// The address of the application's shared memory; this process maps nothing there.
const SHARED_AT: u64 = 0x20_0000_0000;
const MESSAGE_BYTES: u32 = 5000;

/// An application with the VI of `end`: a page of descriptors, then data.
struct Application {
    end: Endpoint,
    process: Process,
    private_region: u32,
    shared_region: u32,
    /// The application's shared memory as mapped in this process.
    shared: Pages,
}

impl Application {
    fn with_vi_of(end: Endpoint) -> Self {
        let owner = Owner::client(1).unwrap();
        let mut held = end.device.lock();
        let index = vi_of(end.vi).unwrap().index;
        held.as_mut()
            .unwrap()
            .state_mut()
            .unwrap()
            .path
            .vi(index)
            .unwrap()
            .tag = TagCheck::of(owner, TAG);
        drop(held);
        let process = Process::with_pages(PAGES);
        let backing = Backing::Foreign(Arc::new(process.client()));
        let private_region = register_for(&end, 1, backing, process.address);
        let fd = sealed_file(BYTES);
        let view = map_file(&fd, BYTES, libc::PROT_READ | libc::PROT_WRITE);
        let backing = Backing::Mapped(MappedMemory::map(fd, 0, BYTES).unwrap());
        let shared_region = register_for(&end, 1, backing, SHARED_AT);
        Self {
            end,
            process,
            private_region,
            shared_region,
            shared: Pages {
                address: view.as_ptr() as u64,
                bytes: BYTES as usize,
            },
        }
    }

    /// Returns a segment of the memory private to the application, behind its descriptors.
    fn private(&self, offset_bytes: usize, length: u32) -> DataSegment {
        DataSegment {
            address: self.process.address + (PAGE_BYTES + offset_bytes) as u64,
            handle: self.private_region,
            length,
        }
    }

    fn shared(&self, offset_bytes: usize, length: u32) -> DataSegment {
        DataSegment {
            address: SHARED_AT + offset_bytes as u64,
            handle: self.shared_region,
            length,
        }
    }

    /// Posts as a submission of the application does. The descriptor is in its first page.
    fn post(&self, queue: QueueKind, operation: u16, segments: &[DataSegment]) {
        let vi = vi_of(self.end.vi).unwrap();
        let data = &segments[usize::from(operation != control::OP_SEND_RECV)..];
        let fill = |slot: &mut Slot| {
            slot.address = self.process.address;
            slot.handle = self.private_region;
            slot.control = operation;
            (slot.fault, slot.status, slot.epoch) = (0, 0, 0);
            slot.length_bytes = data.iter().map(|s| s.length).sum();
            slot.remote_address = segments.first().map_or(0, |s| s.address);
            slot.remote_handle = segments.first().map_or(0, |s| s.handle);
            slot.segments_mut(data.len()).copy_from_slice(data);
        };
        let work = vi.queue(queue);
        assert!(work.post(&mut work.post_end.lock(), fill));
        if queue == QueueKind::Send {
            vi.device.kick(&vi);
        }
    }

    fn private_bytes(&self, offset_bytes: usize, bytes: usize) -> Vec<u8> {
        self.process.read((PAGE_BYTES + offset_bytes) as u64, bytes)
    }

    /// Checks that the provider did not write the application's descriptors.
    fn descriptors_are_untouched(&self) -> bool {
        self.process.read(0, PAGE_BYTES).iter().all(|b| *b == 0)
    }

    fn close(self) {
        self.end.close();
        // SAFETY: mapped in `with_vi_of` and no longer used.
        unsafe { libc::munmap(self.shared.address as *mut libc::c_void, BYTES as usize) };
    }
}

fn register_for(end: &Endpoint, owner: u32, backing: Backing, address: u64) -> u32 {
    let memory = ClientMemory {
        owner: Owner::client(owner).unwrap(),
        backing,
        writable: true,
    };
    let attributes = RegionAttributes {
        tag: TAG,
        rdma_write: true,
        rdma_read: true,
    };
    let regions = &end.device.shared.regions;
    let range = (address, BYTES);
    let admit = || Ok::<_, RegionError>(attributes);
    regions
        .register_for(end.nic, memory, range, 0, admit)
        .unwrap()
}

fn clients_pair(test: &str, reliability: u16) -> (Endpoint, Application) {
    let (local, remote) = pair(test, reliability, |_| ());
    (local, Application::with_vi_of(remote))
}

/// Polls both until a descriptor of this endpoint's queue completes; returns its status.
fn wait_for(end: &Endpoint, queue: QueueKind, peer: &Endpoint) -> u32 {
    let begun = std::time::Instant::now();
    loop {
        if let Done::Completed { status, .. } = queue_calls::done(end.vi, queue).unwrap() {
            return status;
        }
        peer.poll();
        assert!(
            begun.elapsed() < TIMEOUT,
            "the descriptor does not complete"
        );
    }
}

fn message() -> Vec<u8> {
    (0..MESSAGE_BYTES)
        .map(|i| (i * 13 + i / 256) as u8)
        .collect()
}

#[test]
fn messages_are_scattered_and_gathered_in_client_memory() {
    let (local, remote) = clients_pair("client-messages", RELIABLE_DELIVERY);
    let bytes = message();
    local.memory.write(PAGE_BYTES, &bytes);
    let pieces = [
        remote.private(3, 1000),
        remote.shared(5, 1500),
        remote.private(2000, 1),
        remote.shared(4000, 2499),
    ];
    remote.post(QueueKind::Receive, control::OP_SEND_RECV, &pieces);
    local.post_send(0, control::OP_SEND_RECV, &[local.segment(0, MESSAGE_BYTES)]);
    let status = wait_for(&remote.end, QueueKind::Receive, &local);
    assert_eq!(status, status::DONE | status::OP_RECEIVE);
    assert_eq!(local.wait_sent(&remote.end), status::DONE | status::OP_SEND);
    assert_eq!(
        remote.private_bytes(0, 1004),
        [&[0; 3], &bytes[..1000], &[0]].concat()
    );
    assert_eq!(remote.shared.read(5, 1500), bytes[1000..2500]);
    assert_eq!(remote.private_bytes(1999, 3), [0, bytes[2500], 0]);
    assert_eq!(
        remote.shared.read(4000, 2500),
        [&bytes[2501..], &[0]].concat()
    );
    // Back from the same segments.
    local.post_recv(1, local.segment(8192, MESSAGE_BYTES));
    remote.post(QueueKind::Send, control::OP_SEND_RECV, &pieces);
    let status = wait_for(&local, QueueKind::Receive, &remote.end);
    assert_eq!(status, status::DONE | status::OP_RECEIVE);
    assert_eq!(local.memory.read(PAGE_BYTES + 8192, bytes.len()), bytes);
    assert_eq!(
        wait_for(&remote.end, QueueKind::Send, &local),
        status::DONE | status::OP_SEND
    );
    assert!(remote.descriptors_are_untouched());
    local.close();
    remote.close();
}

#[test]
fn rdma_accesses_client_memory() {
    let (local, remote) = clients_pair("client-rdma", RELIABLE_DELIVERY);
    let bytes = message();
    local.memory.write(PAGE_BYTES, &bytes);
    for (line, target) in [remote.private(11, 0), remote.shared(11, 0)]
        .into_iter()
        .enumerate()
    {
        let line = line as u64 * 2;
        let own = local.segment(0, MESSAGE_BYTES);
        local.post_send(line, control::OP_RDMA_WRITE, &[target, own]);
        assert_eq!(
            local.wait_sent(&remote.end),
            status::DONE | status::OP_RDMA_WRITE
        );
        let back = local.segment(8192, MESSAGE_BYTES);
        local
            .memory
            .write(PAGE_BYTES + 8192, &[0; MESSAGE_BYTES as usize]);
        local.post_read(line + 1, back, target);
        assert_eq!(local.wait_sent(&remote.end), READ_DONE);
        assert_eq!(local.memory.read(PAGE_BYTES + 8192, bytes.len()), bytes);
    }
    assert_eq!(remote.private_bytes(11, bytes.len()), bytes);
    assert_eq!(remote.shared.read(11, bytes.len()), bytes);
    // The application reads memory of its peer.
    let own = remote.private(6000, MESSAGE_BYTES);
    remote.post(
        QueueKind::Send,
        control::OP_RDMA_READ,
        &[local.segment(0, 0), own],
    );
    assert_eq!(wait_for(&remote.end, QueueKind::Send, &local), READ_DONE);
    assert_eq!(remote.private_bytes(6000, bytes.len()), bytes);
    assert!(remote.descriptors_are_untouched());
    local.close();
    remote.close();
}

#[test]
fn receive_into_memory_of_another_owner_is_refused() {
    let (local, remote) = clients_pair("client-others", RELIABLE_DELIVERY);
    let others = MappedMemory::map(sealed_file(BYTES), 0, BYTES).unwrap();
    let others = register_for(&remote.end, 2, Backing::Mapped(others), SHARED_AT);
    assert_refused(local, remote, |remote| DataSegment {
        handle: others,
        ..remote.shared(0, 8)
    });
    let (local, remote) = clients_pair("client-process", RELIABLE_DELIVERY);
    assert_refused(local, remote, |remote| remote.end.segment(0, 8));
}

/// Checks that a message for a receive descriptor with this segment fails.
fn assert_refused(
    local: Endpoint,
    remote: Application,
    segment: impl Fn(&Application) -> DataSegment,
) {
    let segment = segment(&remote);
    remote.post(QueueKind::Receive, control::OP_SEND_RECV, &[segment]);
    local.post_send(0, control::OP_SEND_RECV, &[local.segment(0, 8)]);
    local.wait_sent(&remote.end);
    let status = wait_for(&remote.end, QueueKind::Receive, &local);
    assert_ne!(status & status::PROTECTION_ERROR, 0, "{status:x}");
    assert!(remote.end.memory.is_untouched(PAGE_BYTES, 8));
    assert_eq!(remote.shared.read(0, 8), [0; 8]);
    local.close();
    remote.close();
}

#[test]
fn killed_application_breaks_its_connection() {
    let (local, remote) = clients_pair("client-killed", RELIABLE_RECEPTION);
    local.post_send(
        0,
        control::OP_RDMA_WRITE,
        &[remote.private(0, 0), local.segment(0, 64)],
    );
    assert_eq!(
        local.wait_sent(&remote.end),
        status::DONE | status::OP_RDMA_WRITE
    );
    remote.process.kill();
    local.post_send(
        1,
        control::OP_RDMA_WRITE,
        &[remote.private(0, 0), local.segment(0, 64)],
    );
    let status = local.wait_sent(&remote.end);
    assert_ne!(status & status::ERROR_MASK, 0, "{status:x}");
    let begun = std::time::Instant::now();
    while vi_of(remote.end.vi).unwrap().state() != ViState::Error {
        remote.end.poll();
        assert!(begun.elapsed() < TIMEOUT, "the connection does not break");
    }
    let counters = remote.end.device.counters();
    let faults = counters
        .iter()
        .find(|(name, _)| name == "client_memory_faults");
    assert!(faults.is_some_and(|(_, faults)| *faults > 0), "{faults:?}");
    local.close();
    remote.close();
}
