//! Checks that nothing is allocated between post and reap, with an allocator that counts allocations per thread during
//! exchanges over shared memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use vi_types::{Discriminator, ReliabilityLevel};
use vibench::endpoint::{Endpoint, EndpointLayout, Reaped, RemoteAddress, RemoteMemory, mark_of};
use vibench::nic::{MemoryKind, Nic, NicOptions, NicSettings};
use vibench::plan::Op;
use vipl::{Timeout, VipError, provider};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct CountingAllocator;

fn count() {
    // An exiting thread has no counter any more, and measures nothing.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is forwarded unchanged to the system's allocator; counting accesses only a
// constant-initialised thread-local variable and does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller meets the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller meets the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller meets the contract of `realloc`.
        unsafe { System.realloc(at, layout, new_bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller meets the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

const DESCRIPTORS: u32 = 8;
const MESSAGES: u64 = 2_000;
const WARM_UP: u64 = 200;
const TIMEOUT: Duration = Duration::from_secs(30);

fn settings(name: &str) -> NicSettings {
    NicOptions {
        config: None,
        device: "VINIC0".into(),
        segment: Some(format!("vibench-{name}-{}", std::process::id())),
        memory: MemoryKind::default(),
    }
    .load()
    .unwrap()
}

fn layout(level: ReliabilityLevel, bytes: u32) -> EndpointLayout {
    EndpointLayout {
        level,
        send_descriptors: DESCRIPTORS,
        send_buffers: DESCRIPTORS,
        send_bytes: bytes,
        recv_descriptors: DESCRIPTORS,
        recv_buffers: DESCRIPTORS,
        recv_bytes: bytes,
    }
}

/// One end of an exchange.
struct TestSide {
    endpoint: Endpoint,
    peer: RemoteMemory,
    op: Op,
    bytes: u32,
}

impl TestSide {
    /// Sends message `sequence`, counted from 0.
    fn send(&mut self, sequence: u64) {
        let index = (sequence % u64::from(DESCRIPTORS)) as u32;
        if self.op != Op::Read {
            let mark = mark_of(sequence, DESCRIPTORS, self.bytes);
            self.endpoint.stamp(index, self.bytes, mark);
        }
        match self.op {
            Op::Send => self.endpoint.post_send(index, self.bytes).unwrap(),
            Op::Write => {
                let target = RemoteAddress {
                    handle: self.peer.handle,
                    address: self.peer.buffer(index),
                };
                self.endpoint
                    .post_write(index, self.bytes, target, None)
                    .unwrap();
            }
            Op::Read => {
                let source = RemoteAddress {
                    handle: self.peer.handle,
                    address: self.peer.source(index),
                };
                self.endpoint.wipe(index, self.bytes);
                self.endpoint.post_read(index, self.bytes, source).unwrap();
            }
        }
        let start = Instant::now();
        loop {
            match self.endpoint.reap_send().unwrap() {
                Reaped::Done { .. } => break,
                Reaped::Nothing => assert!(start.elapsed() < TIMEOUT, "the send is not complete"),
                Reaped::Failed { status, .. } => panic!("send failed: {status:#x}"),
            }
        }
        if self.op == Op::Read {
            let mark = self.endpoint.mark(index, self.bytes);
            assert_eq!(mark, mark_of(0, 1, self.bytes), "read {sequence}");
        }
    }

    /// Receives message `sequence` and checks its mark.
    fn receive(&mut self, sequence: u64) {
        if self.op == Op::Read {
            return;
        }
        let index = (sequence % u64::from(DESCRIPTORS)) as u32;
        let mark = mark_of(sequence, DESCRIPTORS, self.bytes);
        let start = Instant::now();
        loop {
            let reaped = self.endpoint.reap_recv().unwrap();
            let has_arrived = match (self.op, reaped) {
                (Op::Send, Reaped::Done { index: got, .. }) => {
                    assert_eq!(got, index, "out of order");
                    true
                }
                (Op::Write, Reaped::Nothing) => self.endpoint.mark(index, self.bytes) == mark,
                (Op::Send, Reaped::Nothing) => false,
                (_, other) => panic!("message {sequence}: {other:?}"),
            };
            if has_arrived {
                assert_eq!(self.endpoint.mark(index, self.bytes), mark);
                break;
            }
            assert!(
                start.elapsed() < TIMEOUT,
                "message {sequence} does not arrive"
            );
        }
        if self.op == Op::Send {
            self.endpoint.post_recv(index).unwrap();
        }
    }
}

/// Runs both ends, each in a thread with its own NIC, and returns the number of allocations of each.
fn exchange(op: Op, level: ReliabilityLevel, bytes: u32) -> [u64; 2] {
    let settings = settings(&format!("no-alloc-{op:?}-{level:?}-{bytes}"));
    let listener = Discriminator::new(b"no-alloc").unwrap();
    let requester = Discriminator::new(b"no-alloc from").unwrap();
    let barrier = Barrier::new(2);
    let (client_memory, server_memory) = (std::sync::OnceLock::new(), std::sync::OnceLock::new());

    let run = |is_client: bool| {
        let nic = Nic::open(&settings).unwrap();
        let mut endpoint = Endpoint::new(&nic, &layout(level, bytes)).unwrap();
        for index in 0..DESCRIPTORS {
            match op {
                Op::Send => endpoint.post_recv(index).unwrap(),
                Op::Read => endpoint.stamp(index, bytes, mark_of(0, 1, bytes)),
                Op::Write => {}
            }
        }
        let (own, remote_memory) = if is_client {
            (&client_memory, &server_memory)
        } else {
            (&server_memory, &client_memory)
        };
        own.set(endpoint.remote_memory()).unwrap();
        barrier.wait();
        if is_client {
            let start = Instant::now();
            let (local, remote) = (nic.local(requester), nic.local(listener));
            while let Err(error) = endpoint.request(&local, &remote, Timeout::After(TIMEOUT)) {
                assert_eq!(error, VipError::NoMatch);
                assert!(start.elapsed() < TIMEOUT, "no listener");
                std::thread::yield_now();
            }
        } else {
            let local = nic.local(listener);
            let indication =
                provider::connect_wait(nic.handle(), &local, Timeout::After(TIMEOUT)).unwrap();
            endpoint.accept(indication.conn).unwrap();
        }
        barrier.wait();
        let peer = *remote_memory.get().unwrap();
        let mut side = TestSide {
            endpoint,
            peer,
            op,
            bytes,
        };
        let mut before = 0;
        for sequence in 0..WARM_UP + MESSAGES {
            if sequence == WARM_UP {
                before = allocations();
            }
            if is_client {
                side.send(sequence);
                side.receive(sequence);
            } else {
                side.receive(sequence);
                side.send(sequence);
            }
        }
        let counted = allocations() - before;
        barrier.wait();
        counted
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(|| run(false));
        let client = run(true);
        [client, server.join().unwrap()]
    })
}

#[test]
fn allocator_counts_allocation_and_deallocation() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(7_u64)));
    assert_eq!(allocations() - before, 2);
}

fn check_no_allocations(op: Op) {
    for level in [
        ReliabilityLevel::ReliableDelivery,
        ReliabilityLevel::ReliableReception,
    ] {
        for bytes in [8, 4096, 65536] {
            let counted = exchange(op, level, bytes);
            assert_eq!(counted, [0, 0], "{bytes} bytes at {level}");
        }
    }
}

#[test]
fn sends_allocate_nothing() {
    check_no_allocations(Op::Send);
}

#[test]
fn writes_allocate_nothing() {
    check_no_allocations(Op::Write);
}

#[test]
fn reads_allocate_nothing() {
    check_no_allocations(Op::Read);
}
