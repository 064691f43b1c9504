//! Messages step by step: NICs without threads of their own, which make progress only when a test
//! polls them.

use core::time::Duration;

use vi_core::descriptor::{DataSegment, RawDescriptor, control};
use vi_core::events::ErrorCode;
use vi_core::memory::copy;
use vi_core::reap::{self, Done};
use vi_core::sync::{AtomicBool, Ordering};
use vi_types::{
    CallError, Discriminator, MemAttributes, NetAddress, PtagHandle, QueueKind, ViAttributes,
};

mod coalesced;
mod forked;
mod lost_descriptor;
mod one_step;
mod shortcut;

use super::*;
use crate::config::{FcVi, Limits, Network, NicConfig};
use crate::device::Device;
use crate::nic;
use crate::queue_calls;

mod client_memory;

const TIMEOUT: Duration = Duration::from_secs(20);
const PAGE_BYTES: usize = 4096;
/// Descriptors are in the first page, one per cache line; data behind it.
const MEMORY_BYTES: usize = PAGE_BYTES + (1 << 20);
const UNTOUCHED: u8 = 0xEE;

const UNRELIABLE_DELIVERY: u16 = 1;
const RELIABLE_DELIVERY: u16 = 2;
const RELIABLE_RECEPTION: u16 = 4;

/// Pages of a test, filled with [`UNTOUCHED`]. They are never freed, so that the provider may use them
/// until the process ends.
#[derive(Clone, Copy)]
struct Pages {
    address: u64,
    bytes: usize,
}

impl Pages {
    fn new(bytes: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE_BYTES).unwrap();
        // SAFETY: the layout is not of size zero.
        let at = unsafe { std::alloc::alloc(layout) };
        assert!(!at.is_null());
        // SAFETY: all of the allocation.
        unsafe { at.write_bytes(UNTOUCHED, bytes) };
        Self {
            address: at as u64,
            bytes,
        }
    }

    fn read(&self, offset_bytes: usize, bytes: usize) -> Vec<u8> {
        assert!(offset_bytes + bytes <= self.bytes);
        let mut out = vec![0; bytes];
        // SAFETY: inside the allocation, which no other thread writes meanwhile.
        unsafe { copy::read(self.address + offset_bytes as u64, &mut out) };
        out
    }

    fn write(&self, offset_bytes: usize, bytes: &[u8]) {
        assert!(offset_bytes + bytes.len() <= self.bytes);
        // SAFETY: inside the allocation, which no other thread reads meanwhile.
        unsafe { copy::write(self.address + offset_bytes as u64, bytes) };
    }

    fn is_untouched(&self, offset_bytes: usize, bytes: usize) -> bool {
        self.read(offset_bytes, bytes)
            .iter()
            .all(|b| *b == UNTOUCHED)
    }
}

/// A NIC with a VI and registered memory.
struct Endpoint {
    device: &'static Device,
    nic: u64,
    ptag: u64,
    vi: u64,
    memory: Pages,
    region: u32,
}

impl Endpoint {
    fn new(config: &NicConfig, reliability: u16) -> Self {
        let (device, nic) = crate::open::open_without_threads(config).unwrap();
        device.shared.events.open(0);
        let ptag = nic::create_ptag(nic).unwrap();
        let settings = ViAttributes {
            reliability,
            max_transfer_bytes: 1 << 20,
            ptag: Some(PtagHandle::from_raw(ptag)),
            rdma_write: true,
            qos: 0,
            rdma_read: reliability != UNRELIABLE_DELIVERY,
        };
        let vi = nic::create_vi(nic, &settings, 0, 0).unwrap();
        let mut end = Self {
            device,
            nic,
            ptag,
            vi,
            memory: Pages::new(MEMORY_BYTES),
            region: 0,
        };
        end.region = end.register(end.memory);
        end
    }

    fn register(&self, pages: Pages) -> u32 {
        let settings = MemAttributes {
            ptag: Some(PtagHandle::from_raw(self.ptag)),
            rdma_write: true,
            rdma_read: true,
        };
        // SAFETY: pages of a test are never unmapped.
        unsafe { nic::register(self.nic, pages.address, pages.bytes as u64, &settings) }.unwrap()
    }

    /// Returns a segment of this endpoint's memory at an offset behind its descriptors.
    fn segment(&self, offset_bytes: usize, length: u32) -> DataSegment {
        DataSegment {
            address: self.memory.address + (PAGE_BYTES + offset_bytes) as u64,
            handle: self.region,
            length,
        }
    }

    /// Writes a descriptor to cache line `line` of `pages` and posts it.
    fn post_at(
        &self,
        queue: QueueKind,
        (pages, region): (Pages, u32),
        line: u64,
        operation: u16,
        segments: &[DataSegment],
    ) {
        let at = (pages.address + line * 64) as *mut RawDescriptor;
        let mut descriptor = RawDescriptor::default();
        descriptor.control.control = operation;
        descriptor.control.segment_count = segments.len() as u16;
        let is_rdma = operation & control::OP_MASK != control::OP_SEND_RECV;
        let local = &segments[usize::from(is_rdma)..];
        descriptor.control.immediate_data = line as u32;
        descriptor.control.length = local.iter().map(|s| s.length).sum();
        descriptor.segments[..segments.len()].copy_from_slice(segments);
        // SAFETY: a line of the test's memory that is not posted.
        unsafe { at.write(descriptor) };
        // SAFETY: registered, and not changed until the test ends.
        unsafe { queue_calls::post(self.vi, queue, at, region, queue_calls::WhenFull::Break, 0) }
            .unwrap();
    }

    fn post_send(&self, line: u64, operation: u16, segments: &[DataSegment]) {
        let own = (self.memory, self.region);
        self.post_at(QueueKind::Send, own, line, operation, segments);
    }

    fn post_recv(&self, line: u64, segment: DataSegment) {
        let own = (self.memory, self.region);
        let operation = control::OP_SEND_RECV;
        self.post_at(QueueKind::Receive, own, line, operation, &[segment]);
    }

    /// Posts an RDMA read of the peer's segment into an own one of the same length.
    fn post_read(&self, line: u64, own: DataSegment, peers: DataSegment) {
        self.post_send(line, control::OP_RDMA_READ, &[remote(peers), own]);
    }

    /// Polls the NIC once; returns the status of the next send.
    fn sent(&self) -> Option<u32> {
        match queue_calls::done(self.vi, QueueKind::Send).unwrap() {
            Done::Completed { status, .. } => Some(status),
            Done::NotDone => None,
            Done::Empty => panic!("nothing is posted"),
        }
    }

    fn poll(&self) {
        self.device.poll();
    }

    /// Polls both until a send of this endpoint completes; returns its status.
    fn wait_sent(&self, peer: &Endpoint) -> u32 {
        let begun = std::time::Instant::now();
        loop {
            if let Some(status) = self.sent() {
                return status;
            }
            peer.poll();
            assert!(begun.elapsed() < TIMEOUT, "the send does not complete");
        }
    }

    fn in_flight(&self) -> u32 {
        let mut held = self.device.lock();
        let index = crate::lookup::vi_of(self.vi).unwrap().index;
        held.as_mut()
            .unwrap()
            .state_mut()
            .unwrap()
            .path
            .vi(index)
            .unwrap()
            .in_flight
    }

    /// Takes the asynchronous errors since the last call.
    fn take_errors(&self) -> Vec<(ErrorCode, u64)> {
        self.device.shared.events.take_pending()
    }

    fn close(self) {
        crate::open::close(self.device, self.nic).unwrap();
    }
}

/// Returns the address segment for memory of the peer.
fn remote(peers: DataSegment) -> DataSegment {
    DataSegment { length: 0, ..peers }
}

/// Connects two endpoints: of two NICs, or of one with the shortcut.
fn pair(test: &str, reliability: u16, change: impl Fn(&mut NicConfig)) -> (Endpoint, Endpoint) {
    let open = |max_cq| {
        let mut config = NicConfig {
            // A test that is stepped through may be slow, and so may the peer's thread.
            ulp_timeout_ms: Some(600_000),
            limits: Limits {
                max_cq,
                ..Limits::default()
            },
            fc_vi: FcVi {
                silent_port_ms: Some(20_000),
                ..FcVi::default()
            },
            network: Network::segment(format!("unit-{}-{test}", std::process::id())),
            ..NicConfig::default()
        };
        change(&mut config);
        if config.fc_vi.shortcut {
            config.limits.max_cq = 16;
        }
        Endpoint::new(&config, reliability)
    };
    let (near, far) = (open(16), open(17));
    let address = |endpoint: &Endpoint, name: &[u8]| NetAddress {
        host: vi_types::HostAddress(endpoint.device.host),
        discriminator: Discriminator::new(name).unwrap(),
    };
    let (own, there) = (address(&near, b"near"), address(&far, b"far"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| poll_devices(&[near.device, far.device], &stop));
        let server = scope.spawn(|| {
            loop {
                let request = nic::connect_wait(far.nic, &there, Some(TIMEOUT)).unwrap();
                match nic::connect_accept(request.conn, far.vi) {
                    Ok(()) => break,
                    // An earlier request, which the client has given up as unanswered.
                    Err(CallError::Timeout) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
        let _stop_on_drop = OnDrop(&stop);
        loop {
            match nic::connect_request(near.vi, &own, &there, Some(TIMEOUT)) {
                Ok(_) => break,
                Err(CallError::NoMatch) => {
                    assert!(!server.is_finished(), "the server gave up");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        server.join().unwrap();
    });
    (near, far)
}

/// Sets a flag on drop.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls the NICs in place of their threads until `stop` is set.
fn poll_devices(devices: &[&'static Device], stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for device in devices {
            if let Some(backend) = device.backend.lock_unbiased().as_mut() {
                drop(backend.upkeep());
                backend.poll_thoroughly(&device.shared.doorbells);
                device.wake_waiters(backend);
            }
        }
        std::thread::yield_now();
    }
}

const READ_DONE: u32 = status::DONE | status::OP_RDMA_READ;

#[test]
fn rdma_read_places_nothing_before_target_polls() {
    let (near, far) = pair("read-steps", RELIABLE_DELIVERY, |_| ());
    far.memory.write(PAGE_BYTES, b"12345678");
    near.post_read(0, near.segment(0, 8), far.segment(0, 8));
    near.post_send(1, control::OP_SEND_RECV, &[]);
    for _ in 0..100 {
        assert_eq!(near.sent(), None, "the send waits behind the read");
    }
    assert_eq!(near.in_flight(), 2);
    far.post_recv(0, far.segment(64, 8));
    assert_eq!(near.wait_sent(&far), READ_DONE);
    assert_eq!(near.wait_sent(&far), status::DONE | status::OP_SEND);
    assert_eq!(near.in_flight(), 0);
    assert_eq!(near.memory.read(PAGE_BYTES, 8), b"12345678");
    assert!(near.memory.is_untouched(PAGE_BYTES + 8, 64));
    near.close();
    far.close();
}

#[test]
fn reliable_reception_send_completes_when_peer_has_placed_it() {
    let (near, far) = pair("rr-steps", RELIABLE_RECEPTION, |_| ());
    far.post_recv(0, far.segment(0, 8));
    near.memory.write(PAGE_BYTES, b"12345678");
    near.post_send(0, control::OP_SEND_RECV, &[near.segment(0, 8)]);
    for _ in 0..100 {
        assert_eq!(near.sent(), None);
    }
    assert!(far.memory.is_untouched(PAGE_BYTES, 8));
    assert_eq!(near.wait_sent(&far), status::DONE | status::OP_SEND);
    assert_eq!(far.memory.read(PAGE_BYTES, 8), b"12345678");
    near.close();
    far.close();
}

#[test]
fn in_flight_descriptors_stay_within_configured_limit() {
    const POSTED: u64 = 20;
    for (test, reliability, operation) in [
        ("bound-rr", RELIABLE_RECEPTION, control::OP_RDMA_WRITE),
        ("bound-read", RELIABLE_DELIVERY, control::OP_RDMA_READ),
    ] {
        let (near, far) = pair(test, reliability, |config| {
            (config.limits.max_in_flight, config.limits.max_rdma_reads) = (4, 3);
        });
        let bound = if operation == control::OP_RDMA_READ {
            3
        } else {
            4
        };
        for line in 0..POSTED {
            let segments = [remote(far.segment(0, 8)), near.segment(0, 8)];
            near.post_send(line, operation, &segments);
        }
        for _ in 0..100 {
            assert_eq!(near.sent(), None);
            assert_eq!(near.in_flight(), bound, "{test}");
        }
        for _ in 0..POSTED {
            assert_eq!(near.wait_sent(&far) & status::ERROR_MASK, 0, "{test}");
            assert!(near.in_flight() <= bound, "{test}");
        }
        near.close();
        far.close();
    }
}

#[test]
fn region_deregistered_while_peer_reads_refuses_remaining_bytes() {
    const BYTES: u32 = 512 << 10;
    for reliability in [RELIABLE_DELIVERY, RELIABLE_RECEPTION] {
        let (near, far) = pair(&format!("source-goes-{reliability}"), reliability, |_| ());
        let source = Pages::new(BYTES as usize);
        let region = far.register(source);
        let peers = DataSegment {
            address: source.address,
            handle: region,
            length: BYTES,
        };
        near.post_read(0, near.segment(0, BYTES), peers);
        near.post_read(1, near.segment(0, 8), far.segment(0, 8));
        // The read is longer than one poll sends.
        far.poll();
        nic::deregister(far.nic, source.address, region).unwrap();
        source.write(0, &vec![0x11; BYTES as usize]);
        let refused = near.wait_sent(&far);
        let expected = READ_DONE | status::RDMA_PROT_ERROR;
        assert_eq!(refused & !status::PARTIAL_ERROR, expected);
        let flushed = near.wait_sent(&far);
        assert_eq!(flushed, READ_DONE | status::DESC_FLUSHED_ERROR);
        let of_near = [(ErrorCode::ConnLost, 0)];
        assert_eq!(near.take_errors(), of_near);
        let of_far = [(ErrorCode::RdmarProt, 0), (ErrorCode::ConnLost, 0)];
        assert_eq!(far.take_errors(), of_far);
        let end = PAGE_BYTES + BYTES as usize;
        let tail = near.memory.read(end - 4096, 4096);
        assert!(
            tail.iter().all(|b| *b == UNTOUCHED),
            "the remaining bytes were not sent"
        );
        near.close();
        far.close();
    }
}

#[test]
fn region_deregistered_while_read_into_is_not_written() {
    const BYTES: u32 = 512 << 10;
    for reliability in [RELIABLE_DELIVERY, RELIABLE_RECEPTION] {
        for polls in [0, 1] {
            let (near, far) = pair(
                &format!("sink-goes-{reliability}-{polls}"),
                reliability,
                |_| (),
            );
            let sink = Pages::new(BYTES as usize);
            let region = near.register(sink);
            let own = DataSegment {
                address: sink.address,
                handle: region,
                length: BYTES,
            };
            near.post_read(0, own, far.segment(0, BYTES));
            near.post_read(1, near.segment(0, 8), far.segment(0, 8));
            for _ in 0..polls {
                far.poll();
                near.poll();
            }
            nic::deregister(near.nic, sink.address, region).unwrap();
            sink.write(0, &vec![0x11; BYTES as usize]);
            let failed = near.wait_sent(&far);
            let expected = READ_DONE | status::PROTECTION_ERROR;
            assert_eq!(failed & !status::PARTIAL_ERROR, expected);
            let flushed = near.wait_sent(&far);
            assert_eq!(flushed, READ_DONE | status::DESC_FLUSHED_ERROR);
            assert_eq!(near.take_errors(), [(ErrorCode::ConnLost, 0)]);
            for _ in 0..100 {
                far.poll();
                near.poll();
            }
            assert_eq!(far.take_errors(), [(ErrorCode::ConnLost, 0)]);
            let seen = sink.read(0, BYTES as usize);
            assert!(seen.iter().all(|b| *b == 0x11), "late data is not written");
            near.close();
            far.close();
        }
    }
}

#[test]
fn descriptor_memory_deregistered_in_flight_fails_vi() {
    for (test, reliability, operation) in [
        ("gone-read", RELIABLE_DELIVERY, control::OP_RDMA_READ),
        ("gone-write", RELIABLE_RECEPTION, control::OP_RDMA_WRITE),
    ] {
        let (near, far) = pair(test, reliability, |_| ());
        let pages = Pages::new(PAGE_BYTES);
        let region = near.register(pages);
        let segments = [remote(far.segment(0, 8)), near.segment(0, 8)];
        near.post_at(QueueKind::Send, (pages, region), 0, operation, &segments);
        near.post_send(0, operation, &segments);
        assert_eq!(near.in_flight(), 2, "{test}");
        nic::deregister(near.nic, pages.address, region).unwrap();
        pages.write(0, &[0x11; 64]);
        near.wait_sent(&far);
        near.wait_sent(&far);
        let errors = near.take_errors();
        let expected = [
            (ErrorCode::CompProt, pages.address),
            (ErrorCode::ConnLost, 0),
        ];
        assert_eq!(errors, expected, "{test}");
        assert_eq!(pages.read(0, 64), [0x11; 64], "{test}");
        near.close();
        far.close();
    }
}

/// Another thread may run every poll that follows the post.
#[test]
fn send_posted_on_idle_vi_is_flushed_while_vi_is_queued() {
    let config = NicConfig {
        network: Network::segment(format!("unit-{}-flushed-post", std::process::id())),
        ..NicConfig::default()
    };
    let end = Endpoint::new(&config, RELIABLE_DELIVERY);
    let index = crate::lookup::vi_of(end.vi).unwrap().index;
    {
        let mut held = end.device.lock();
        let poller = held.as_mut().unwrap().state_mut().unwrap();
        poller.path.enqueue(index);
    }
    end.post_send(0, control::OP_SEND_RECV, &[]);
    let vi = crate::lookup::vi_of(end.vi).unwrap();
    let flushed = status::DONE | status::DESC_FLUSHED_ERROR | status::OP_SEND;
    let found = reap::reap(&vi, end.vi, QueueKind::Send).unwrap();
    assert!(matches!(found, Done::Completed { status, .. } if status == flushed));
    end.close();
}

#[test]
fn disconnect_flushes_in_flight_and_late_data_is_dropped() {
    const BYTES: u32 = 512 << 10;
    let (near, far) = pair("late-data", RELIABLE_DELIVERY, |_| ());
    for line in 0..3 {
        near.post_read(line, near.segment(0, BYTES), far.segment(0, BYTES));
    }
    near.post_send(3, control::OP_SEND_RECV, &[]);
    far.post_recv(0, far.segment(0, 8));
    far.memory.write(PAGE_BYTES, &vec![0x22; BYTES as usize]);
    // Data was sent, and not received yet.
    far.poll();
    nic::disconnect(near.vi).unwrap();
    for line in 0..4 {
        let operation = if line < 3 {
            status::OP_RDMA_READ
        } else {
            status::OP_SEND
        };
        let expected = status::DONE | status::DESC_FLUSHED_ERROR | operation;
        assert_eq!(near.sent(), Some(expected));
    }
    assert_eq!(near.in_flight(), 0);
    for _ in 0..100 {
        far.poll();
        near.poll();
    }
    assert!(near.memory.is_untouched(PAGE_BYTES, BYTES as usize));
    assert_eq!(near.take_errors(), []);
    assert_eq!(far.take_errors(), [(ErrorCode::ConnLost, 0)]);
    near.close();
    far.close();
}
