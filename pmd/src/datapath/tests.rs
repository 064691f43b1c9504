//! What is under way, step by step: NICs without threads of their own, which move on only when a
//! test polls them.

use core::time::Duration;

use fcvi_frame::connect::{Discriminator, NetAddress};

mod coalesced;
mod forked;
mod lost_descriptor;
mod shortcut;

use super::*;
use crate::config::NicConfig;
use crate::control::ControlError;
use crate::descriptor::{DataSegment, RawDescriptor, control};
use crate::device::Device;
use crate::events::ErrorCode;
use crate::memory::copy;
use crate::nic::{self, MemSettings};
use crate::sync::AtomicBool;
use crate::sync::Ordering;
use crate::vi::ViSettings;
use crate::work::{self, Done, Queue};

mod clients;

const PATIENCE: Duration = Duration::from_secs(20);
const PAGE_BYTES: usize = 4096;
/// Descriptors lie in the first page, one a line; data behind it.
const MEMORY_BYTES: usize = PAGE_BYTES + (1 << 20);
const BEFORE: u8 = 0xEE;

const UNRELIABLE_DELIVERY: u16 = 1;
const RELIABLE_DELIVERY: u16 = 2;
const RELIABLE_RECEPTION: u16 = 4;

/// Pages of a test, filled with [`BEFORE`]. They are never freed: no test ends before they are
/// of no use to a provider.
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
        unsafe { at.write_bytes(BEFORE, bytes) };
        Self {
            address: at as u64,
            bytes,
        }
    }

    fn read(&self, offset_bytes: usize, bytes: usize) -> Vec<u8> {
        assert!(offset_bytes + bytes <= self.bytes);
        let mut out = vec![0; bytes];
        // SAFETY: inside the allocation, which nobody writes meanwhile.
        unsafe { copy::read(self.address + offset_bytes as u64, &mut out) };
        out
    }

    fn write(&self, offset_bytes: usize, bytes: &[u8]) {
        assert!(offset_bytes + bytes.len() <= self.bytes);
        // SAFETY: inside the allocation, which nobody reads meanwhile.
        unsafe { copy::write(self.address + offset_bytes as u64, bytes) };
    }

    fn is_untouched(&self, offset_bytes: usize, bytes: usize) -> bool {
        self.read(offset_bytes, bytes).iter().all(|b| *b == BEFORE)
    }
}

struct End {
    device: &'static Device,
    nic: u64,
    ptag: u64,
    vi: u64,
    memory: Pages,
    region: u32,
}

impl End {
    fn new(config: &NicConfig, reliability: u16) -> Self {
        let (device, nic) = crate::device::open_unattended(config).unwrap();
        device.events.open(0);
        let ptag = nic::create_ptag(nic).unwrap();
        let settings = ViSettings {
            reliability,
            max_transfer_bytes: 1 << 20,
            ptag,
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
        let settings = MemSettings {
            ptag: self.ptag,
            rdma_write: true,
            rdma_read: true,
        };
        // SAFETY: pages of a test are never unmapped.
        unsafe { nic::register(self.nic, pages.address, pages.bytes as u64, &settings) }.unwrap()
    }

    /// A segment of this end's memory, from so many bytes behind its descriptors on.
    fn segment(&self, offset_bytes: usize, length: u32) -> DataSegment {
        DataSegment {
            address: self.memory.address + (PAGE_BYTES + offset_bytes) as u64,
            handle: self.region,
            length,
        }
    }

    /// Lays a descriptor into line `line` of `pages` and posts it.
    fn post_at(
        &self,
        queue: Queue,
        (pages, region): (Pages, u32),
        line: u64,
        operation: u16,
        segments: &[DataSegment],
    ) {
        let at = (pages.address + line * 64) as *mut RawDescriptor;
        let mut descriptor = RawDescriptor::default();
        descriptor.control.control = operation;
        descriptor.control.segment_count = segments.len() as u16;
        let local = &segments[usize::from(operation != control::OP_SEND_RECV)..];
        descriptor.control.length = local.iter().map(|s| s.length).sum();
        descriptor.segments[..segments.len()].copy_from_slice(segments);
        // SAFETY: a line of the test's own that is not posted.
        unsafe { at.write(descriptor) };
        // SAFETY: registered, and left alone until the test is over.
        unsafe { work::post(self.vi, queue, at, region, work::WhenFull::Break, 0) }.unwrap();
    }

    fn post_send(&self, line: u64, operation: u16, segments: &[DataSegment]) {
        let own = (self.memory, self.region);
        self.post_at(Queue::Send, own, line, operation, segments);
    }

    fn post_recv(&self, line: u64, segment: DataSegment) {
        let own = (self.memory, self.region);
        let operation = control::OP_SEND_RECV;
        self.post_at(Queue::Receive, own, line, operation, &[segment]);
    }

    /// Posts a read of the peer's segment into an own one of its length.
    fn post_read(&self, line: u64, own: DataSegment, peers: DataSegment) {
        self.post_send(line, control::OP_RDMA_READ, &[remote(peers), own]);
    }

    /// The status of the next send, after the NIC moved on by a turn.
    fn sent(&self) -> Option<u32> {
        match work::done(self.vi, Queue::Send).unwrap() {
            Done::Completed { status, .. } => Some(status),
            Done::NotDone => None,
            Done::Empty => panic!("nothing is posted"),
        }
    }

    fn poll(&self) {
        self.device.poll();
    }

    /// Polls both until a send of this end comes back.
    fn wait_sent(&self, peer: &End) -> u32 {
        let begun = std::time::Instant::now();
        loop {
            if let Some(status) = self.sent() {
                return status;
            }
            peer.poll();
            assert!(begun.elapsed() < PATIENCE, "the send does not end");
        }
    }

    fn in_flight(&self) -> u32 {
        let mut held = self.device.hold();
        let index = crate::vi::vi_of(self.vi).unwrap().index;
        held.as_mut()
            .unwrap()
            .engine_mut()
            .unwrap()
            .path
            .vi(index)
            .unwrap()
            .in_flight
    }

    /// What was reported since the last look.
    fn told(&self) -> Vec<(ErrorCode, u64)> {
        self.device.events.waiting()
    }

    fn close(self) {
        crate::device::close(self.device, self.nic).unwrap();
    }
}

/// The address segment for memory of the other end.
fn remote(peers: DataSegment) -> DataSegment {
    DataSegment { length: 0, ..peers }
}

/// Two ends, connected: of two NICs, or of one with the shortcut.
fn pair(test: &str, reliability: u16, change: impl Fn(&mut NicConfig)) -> (End, End) {
    let open = |max_cq| {
        let mut config = NicConfig {
            segment: format!("unit-{}-{test}", std::process::id()),
            // What is stepped through may take its time, and so may the other end's thread.
            ulp_timeout_ms: Some(600_000),
            silent_port_ms: Some(20_000),
            max_cq,
            ..NicConfig::default()
        };
        change(&mut config);
        if config.shortcut {
            config.max_cq = 16;
        }
        End::new(&config, reliability)
    };
    let (near, far) = (open(16), open(17));
    let address = |end: &End, name: &[u8]| NetAddress {
        host: fcvi_frame::connect::HostAddress(end.device.host),
        discriminator: Discriminator::new(name).unwrap(),
    };
    let (own, there) = (address(&near, b"near"), address(&far, b"far"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| attend(&[near.device, far.device], &over));
        let server = scope.spawn(|| {
            loop {
                let request = nic::connect_wait(far.nic, &there, Some(PATIENCE)).unwrap();
                match nic::connect_accept(request.conn, far.vi) {
                    Ok(()) => break,
                    // A request of before, of which the client thinks that nobody heard it.
                    Err(ControlError::Timeout) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
        let _ends_however_this_does = OnDrop(&over);
        loop {
            match nic::connect_request(near.vi, &own, &there, Some(PATIENCE)) {
                Ok(_) => break,
                Err(ControlError::NoMatch) => {
                    assert!(!server.is_finished(), "the server gave up");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        server.join().unwrap();
    });
    (near, far)
}

/// Sets a flag.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Plays the NICs' threads until it is over.
fn attend(devices: &[&'static Device], over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        for device in devices {
            if let Some(driver) = device.turn.hold_as_guest().as_mut() {
                driver.upkeep();
                driver.long_turn(&device.doorbells);
                device.announce(driver);
            }
        }
        std::thread::yield_now();
    }
}

const READ_DONE: u32 = status::DONE | status::OP_RDMA_READ;

#[test]
fn nothing_of_a_read_is_there_before_the_target_polls() {
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
fn at_reliable_reception_a_send_is_complete_when_the_peer_has_placed_it() {
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
fn no_more_is_in_flight_than_the_configuration_allows() {
    const POSTED: u64 = 20;
    for (test, reliability, operation) in [
        ("bound-rr", RELIABLE_RECEPTION, control::OP_RDMA_WRITE),
        ("bound-read", RELIABLE_DELIVERY, control::OP_RDMA_READ),
    ] {
        let (near, far) = pair(test, reliability, |config| {
            (config.max_in_flight, config.max_rdma_reads) = (4, 3);
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
fn a_region_that_goes_while_it_is_read_refuses_the_rest() {
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
        // More than a turn can send.
        far.poll();
        nic::deregister(far.nic, source.address, region).unwrap();
        source.write(0, &vec![0x11; BYTES as usize]);
        let refused = near.wait_sent(&far);
        let expected = READ_DONE | status::RDMA_PROT_ERROR;
        assert_eq!(refused & !status::PARTIAL_ERROR, expected);
        let flushed = near.wait_sent(&far);
        assert_eq!(flushed, READ_DONE | status::DESC_FLUSHED_ERROR);
        let of_near = [(ErrorCode::ConnLost, 0)];
        assert_eq!(near.told(), of_near);
        let of_far = [(ErrorCode::RdmarProt, 0), (ErrorCode::ConnLost, 0)];
        assert_eq!(far.told(), of_far);
        let end = PAGE_BYTES + BYTES as usize;
        let tail = near.memory.read(end - 4096, 4096);
        assert!(tail.iter().all(|b| *b == BEFORE), "the rest never came");
        near.close();
        far.close();
    }
}

#[test]
fn a_region_that_goes_while_it_is_read_into_is_left_alone() {
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
            assert_eq!(near.told(), [(ErrorCode::ConnLost, 0)]);
            for _ in 0..100 {
                far.poll();
                near.poll();
            }
            assert_eq!(far.told(), [(ErrorCode::ConnLost, 0)]);
            let seen = sink.read(0, BYTES as usize);
            assert!(seen.iter().all(|b| *b == 0x11), "nothing comes late");
            near.close();
            far.close();
        }
    }
}

#[test]
fn a_descriptor_whose_memory_goes_while_it_is_in_flight_breaks_the_vi() {
    for (test, reliability, operation) in [
        ("gone-read", RELIABLE_DELIVERY, control::OP_RDMA_READ),
        ("gone-write", RELIABLE_RECEPTION, control::OP_RDMA_WRITE),
    ] {
        let (near, far) = pair(test, reliability, |_| ());
        let pages = Pages::new(PAGE_BYTES);
        let region = near.register(pages);
        let segments = [remote(far.segment(0, 8)), near.segment(0, 8)];
        near.post_at(Queue::Send, (pages, region), 0, operation, &segments);
        near.post_send(0, operation, &segments);
        assert_eq!(near.in_flight(), 2, "{test}");
        nic::deregister(near.nic, pages.address, region).unwrap();
        pages.write(0, &[0x11; 64]);
        near.wait_sent(&far);
        near.wait_sent(&far);
        let told = near.told();
        let expected = [
            (ErrorCode::CompProt, pages.address),
            (ErrorCode::ConnLost, 0),
        ];
        assert_eq!(told, expected, "{test}");
        assert_eq!(pages.read(0, 64), [0x11; 64], "{test}");
        near.close();
        far.close();
    }
}

/// Another thread may have every turn that follows the post.
#[test]
fn send_on_idle_vi_is_flushed_by_its_post_though_the_vi_waits_to_be_served() {
    let config = NicConfig {
        segment: format!("unit-{}-flushed-post", std::process::id()),
        ..NicConfig::default()
    };
    let end = End::new(&config, RELIABLE_DELIVERY);
    let index = crate::vi::vi_of(end.vi).unwrap().index;
    {
        let mut held = end.device.hold();
        let poller = held.as_mut().unwrap().engine_mut().unwrap();
        poller.path.enqueue(index);
    }
    end.post_send(0, control::OP_SEND_RECV, &[]);
    let vi = crate::vi::vi_of(end.vi).unwrap();
    let flushed = status::DONE | status::DESC_FLUSHED_ERROR | status::OP_SEND;
    let found = work::reap(vi, end.vi, Queue::Send).unwrap();
    assert!(matches!(found, Done::Completed { status, .. } if status == flushed));
    end.close();
}

#[test]
fn a_disconnect_flushes_what_is_in_flight_and_what_comes_late_touches_nothing() {
    const BYTES: u32 = 512 << 10;
    let (near, far) = pair("late-data", RELIABLE_DELIVERY, |_| ());
    for line in 0..3 {
        near.post_read(line, near.segment(0, BYTES), far.segment(0, BYTES));
    }
    near.post_send(3, control::OP_SEND_RECV, &[]);
    far.post_recv(0, far.segment(0, 8));
    far.memory.write(PAGE_BYTES, &vec![0x22; BYTES as usize]);
    // Data is on its way, and was not looked at.
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
    assert_eq!(near.told(), []);
    assert_eq!(far.told(), [(ErrorCode::ConnLost, 0)]);
    near.close();
    far.close();
}
