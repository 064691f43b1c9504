//! No memory is allocated from the post of a descriptor to the collection of its completion.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use common::{Endpoint, READABLE, RELIABLE, TIMEOUT, connect, pattern};
use vipl::{Completed, Descriptor, ReliabilityLevel, Result, VipError};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Serialises the tests: each poller of a NIC serves all its handles, so that a test would count allocations for the
/// connections of another one.
static SERIAL: Mutex<()> = Mutex::new(());

/// An allocator that counts the allocations of each thread.
struct Counting;

// SAFETY: each call is forwarded unchanged to the system allocator, which keeps the contract; counting neither
// allocates nor unwinds: the cell is const-initialised and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; the address is from the system allocator.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Polls a queue until its head has completed.
fn poll(mut done: impl FnMut() -> Result<Option<Completed>>) -> Descriptor {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match done() {
            Err(VipError::NotDone) if Instant::now() < deadline => {}
            outcome => {
                let completed = outcome.unwrap().unwrap();
                assert!(completed.status.is_ok(), "{}", completed.status);
                return completed.descriptor;
            }
        }
    }
}

/// Connects two VIs of this level that allow RDMA reads.
fn endpoints(level: ReliabilityLevel) -> (Endpoint, Endpoint) {
    let ends = [(); 2].map(|()| Endpoint::with(|vi| vi.reliability(level).rdma_read(true)));
    let [client, server] = ends;
    connect(&client, &server);
    (client, server)
}

/// Counts the allocations of this thread during many exchanges, after a few exchanges for warm-up.
fn allocations_of(mut exchange: impl FnMut(usize)) -> u64 {
    exchange(10);
    let before = ALLOCATIONS.get();
    exchange(500);
    ALLOCATIONS.get() - before
}

#[test]
fn messages_allocate_nothing() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    for level in RELIABLE {
        let (client, server) = endpoints(level);
        for size in [8, 4096, 65_536] {
            let mut send = Some(client.message(&pattern(0, size)));
            let mut recv = Some(server.descriptor(size));
            let counted = allocations_of(|messages| {
                for _ in 0..messages {
                    server.vi.post_recv(recv.take().unwrap()).unwrap();
                    client.vi.post_send(send.take().unwrap()).unwrap();
                    recv = Some(poll(|| server.vi.recv_done()));
                    send = Some(poll(|| client.vi.send_done()));
                }
            });
            assert_eq!(counted, 0, "{level:?}, {size} bytes");
        }
    }
}

#[test]
fn reads_allocate_nothing() {
    const READS: usize = 20;
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    for level in RELIABLE {
        let (reader, target) = endpoints(level);
        let memory = target.region(65_536, READABLE);
        for size in [8, 4096, 65_536] {
            let read = |_| reader.read_of(memory.remote_buffer(), size);
            let mut reads: Vec<_> = (0..READS).map(read).collect();
            let counted = allocations_of(|messages| {
                // One read at a time during the warm-up, then more than the target serves at once.
                let outstanding = if messages > READS { READS } else { 1 };
                for _ in 0..messages / outstanding {
                    for read in reads.drain(READS - outstanding..) {
                        reader.vi.post_send(read).unwrap();
                    }
                    while reads.len() < READS {
                        reads.push(poll(|| reader.vi.send_done()));
                    }
                }
            });
            assert_eq!(counted, 0, "{level:?}, {size} bytes");
        }
    }
}
