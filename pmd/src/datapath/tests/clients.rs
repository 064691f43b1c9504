//! A VI whose memory is an application's: in that process only, or mapped here.

use std::sync::Arc;

use super::*;
use crate::memory::RegionAttributes;
use crate::memory::RegionError;
use crate::memory::mapped::MappedMemory;
use crate::memory::place::{ClientMemory, Owner, Place};
use crate::memory::testkit::{Process, map_file, sealed_file};
use crate::vi::vi_of;
use vi_engine::EndpointState;

const TAG: u32 = 900;
const PAGES: u64 = 4;
const BYTES: u64 = PAGES * PAGE_BYTES as u64;
/// Where the application has its shared memory; nothing of this process is there.
const SHARED_AT: u64 = 0x20_0000_0000;
const MESSAGE_BYTES: u32 = 5000;

/// The application behind a VI of `end`: it has a page of descriptors, then data.
struct Application {
    end: End,
    process: Process,
    private_region: u32,
    shared_region: u32,
    /// Our view of the application's shared memory.
    shared: Pages,
}

impl Application {
    fn behind(end: End) -> Self {
        let owner = Owner::client(1).unwrap();
        let mut held = end.device.hold();
        let index = vi_of(end.vi).unwrap().index;
        held.as_mut()
            .unwrap()
            .engine_mut()
            .unwrap()
            .path
            .vi(index)
            .unwrap()
            .tag = TagCheck::of(owner, TAG);
        drop(held);
        let process = Process::with_pages(PAGES);
        let place = Place::Foreign(Arc::new(process.client()));
        let private_region = register_for(&end, 1, place, process.address);
        let fd = sealed_file(BYTES);
        let view = map_file(&fd, BYTES, libc::PROT_READ | libc::PROT_WRITE);
        let place = Place::Mapped(MappedMemory::map(fd, 0, BYTES).unwrap());
        let shared_region = register_for(&end, 1, place, SHARED_AT);
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

    /// A segment of the memory that only the application has, behind its descriptors.
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

    /// What a submission of the application becomes. Its descriptor is in its first page.
    fn post(&self, queue: Queue, operation: u16, segments: &[DataSegment]) {
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
        assert!(work.post(&mut work.post_end.hold(), fill));
        if queue == Queue::Send {
            vi.device.kick(vi);
        }
    }

    fn private_bytes(&self, offset_bytes: usize, bytes: usize) -> Vec<u8> {
        self.process.read((PAGE_BYTES + offset_bytes) as u64, bytes)
    }

    /// Nobody but the application writes its descriptors.
    fn descriptors_are_untouched(&self) -> bool {
        self.process.read(0, PAGE_BYTES).iter().all(|b| *b == 0)
    }

    fn close(self) {
        self.end.close();
        // SAFETY: mapped in `behind` and used by nobody any more.
        unsafe { libc::munmap(self.shared.address as *mut libc::c_void, BYTES as usize) };
    }
}

fn register_for(end: &End, owner: u32, place: Place, address: u64) -> u32 {
    let memory = ClientMemory {
        owner: Owner::client(owner).unwrap(),
        place,
        writable: true,
    };
    let attributes = RegionAttributes {
        tag: TAG,
        rdma_write: true,
        rdma_read: true,
    };
    let regions = &end.device.regions;
    let range = (address, BYTES);
    let admit = || Ok::<_, RegionError>(attributes);
    regions
        .register_for(end.nic, memory, range, 0, admit)
        .unwrap()
}

fn clients_pair(test: &str, reliability: u16) -> (End, Application) {
    let (near, far) = pair(test, reliability, |_| ());
    (near, Application::behind(far))
}

/// Polls both ends until the queue of this one gives a descriptor back.
fn wait_for(end: &End, queue: Queue, peer: &End) -> u32 {
    let begun = std::time::Instant::now();
    loop {
        if let Done::Completed { status, .. } = work::done(end.vi, queue).unwrap() {
            return status;
        }
        peer.poll();
        assert!(
            begun.elapsed() < PATIENCE,
            "the descriptor does not come back"
        );
    }
}

fn message() -> Vec<u8> {
    (0..MESSAGE_BYTES)
        .map(|i| (i * 13 + i / 256) as u8)
        .collect()
}

#[test]
fn messages_are_scattered_into_and_gathered_from_its_memory() {
    let (near, far) = clients_pair("client-messages", RELIABLE_DELIVERY);
    let bytes = message();
    near.memory.write(PAGE_BYTES, &bytes);
    let pieces = [
        far.private(3, 1000),
        far.shared(5, 1500),
        far.private(2000, 1),
        far.shared(4000, 2499),
    ];
    far.post(Queue::Receive, control::OP_SEND_RECV, &pieces);
    near.post_send(0, control::OP_SEND_RECV, &[near.segment(0, MESSAGE_BYTES)]);
    let status = wait_for(&far.end, Queue::Receive, &near);
    assert_eq!(status, status::DONE | status::OP_RECEIVE);
    assert_eq!(near.wait_sent(&far.end), status::DONE | status::OP_SEND);
    assert_eq!(
        far.private_bytes(0, 1004),
        [&[0; 3], &bytes[..1000], &[0]].concat()
    );
    assert_eq!(far.shared.read(5, 1500), bytes[1000..2500]);
    assert_eq!(far.private_bytes(1999, 3), [0, bytes[2500], 0]);
    assert_eq!(far.shared.read(4000, 2500), [&bytes[2501..], &[0]].concat());
    // And back from the same pieces.
    near.post_recv(1, near.segment(8192, MESSAGE_BYTES));
    far.post(Queue::Send, control::OP_SEND_RECV, &pieces);
    let status = wait_for(&near, Queue::Receive, &far.end);
    assert_eq!(status, status::DONE | status::OP_RECEIVE);
    assert_eq!(near.memory.read(PAGE_BYTES + 8192, bytes.len()), bytes);
    assert_eq!(
        wait_for(&far.end, Queue::Send, &near),
        status::DONE | status::OP_SEND
    );
    assert!(far.descriptors_are_untouched());
    near.close();
    far.close();
}

#[test]
fn peers_write_and_read_its_memory() {
    let (near, far) = clients_pair("client-rdma", RELIABLE_DELIVERY);
    let bytes = message();
    near.memory.write(PAGE_BYTES, &bytes);
    for (line, target) in [far.private(11, 0), far.shared(11, 0)]
        .into_iter()
        .enumerate()
    {
        let line = line as u64 * 2;
        let own = near.segment(0, MESSAGE_BYTES);
        near.post_send(line, control::OP_RDMA_WRITE, &[target, own]);
        assert_eq!(
            near.wait_sent(&far.end),
            status::DONE | status::OP_RDMA_WRITE
        );
        let back = near.segment(8192, MESSAGE_BYTES);
        near.memory
            .write(PAGE_BYTES + 8192, &[0; MESSAGE_BYTES as usize]);
        near.post_read(line + 1, back, target);
        assert_eq!(near.wait_sent(&far.end), READ_DONE);
        assert_eq!(near.memory.read(PAGE_BYTES + 8192, bytes.len()), bytes);
    }
    assert_eq!(far.private_bytes(11, bytes.len()), bytes);
    assert_eq!(far.shared.read(11, bytes.len()), bytes);
    // The application reads its peer's.
    let own = far.private(6000, MESSAGE_BYTES);
    far.post(
        Queue::Send,
        control::OP_RDMA_READ,
        &[near.segment(0, 0), own],
    );
    assert_eq!(wait_for(&far.end, Queue::Send, &near), READ_DONE);
    assert_eq!(far.private_bytes(6000, bytes.len()), bytes);
    assert!(far.descriptors_are_untouched());
    near.close();
    far.close();
}

#[test]
fn what_is_not_the_applications_is_refused() {
    let (near, far) = clients_pair("client-others", RELIABLE_DELIVERY);
    let others = MappedMemory::map(sealed_file(BYTES), 0, BYTES).unwrap();
    let others = register_for(&far.end, 2, Place::Mapped(others), SHARED_AT);
    refused(near, far, |far| DataSegment {
        handle: others,
        ..far.shared(0, 8)
    });
    let (near, far) = clients_pair("client-process", RELIABLE_DELIVERY);
    refused(near, far, |far| far.end.segment(0, 8));
}

/// A message for a receive descriptor with this segment.
fn refused(near: End, far: Application, segment: impl Fn(&Application) -> DataSegment) {
    let segment = segment(&far);
    far.post(Queue::Receive, control::OP_SEND_RECV, &[segment]);
    near.post_send(0, control::OP_SEND_RECV, &[near.segment(0, 8)]);
    near.wait_sent(&far.end);
    let status = wait_for(&far.end, Queue::Receive, &near);
    assert_ne!(status & status::PROTECTION_ERROR, 0, "{status:x}");
    assert!(far.end.memory.is_untouched(PAGE_BYTES, 8));
    assert_eq!(far.shared.read(0, 8), [0; 8]);
    near.close();
    far.close();
}

#[test]
fn an_application_that_is_killed_breaks_its_connection() {
    let (near, far) = clients_pair("client-killed", RELIABLE_RECEPTION);
    near.post_send(
        0,
        control::OP_RDMA_WRITE,
        &[far.private(0, 0), near.segment(0, 64)],
    );
    assert_eq!(
        near.wait_sent(&far.end),
        status::DONE | status::OP_RDMA_WRITE
    );
    far.process.kill();
    near.post_send(
        1,
        control::OP_RDMA_WRITE,
        &[far.private(0, 0), near.segment(0, 64)],
    );
    let status = near.wait_sent(&far.end);
    assert_ne!(status & status::ERROR_MASK, 0, "{status:x}");
    let begun = std::time::Instant::now();
    while vi_of(far.end.vi).unwrap().state() != EndpointState::Error {
        far.end.poll();
        assert!(begun.elapsed() < PATIENCE, "the connection does not break");
    }
    let counters = far.end.device.counters();
    let faults = counters
        .iter()
        .find(|(name, _)| name == "client_memory_faults");
    assert!(faults.is_some_and(|(_, faults)| *faults > 0), "{faults:?}");
    near.close();
    far.close();
}
