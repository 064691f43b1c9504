//! Nothing is allocated between posting a descriptor and taking it back.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use common::{End, PATIENCE, connect, pattern};
use vipl::{Completed, Descriptor, Operation, RdmaAccess, ReliabilityLevel, Result, VipError};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// All opens of a NIC are served by whoever polls it: one test at a time, or the one would count what the other's
/// connections take.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Counts what each thread asks of the system's allocator.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; counting neither
// allocates nor unwinds: the cell is const-initialised and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; the address is of the system's allocator.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Polls a queue until its head has completed.
fn poll(mut done: impl FnMut() -> Result<Option<Completed>>) -> Descriptor {
    let deadline = Instant::now() + PATIENCE;
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

/// Two ends of this level that may read each other.
fn ends(level: ReliabilityLevel) -> (End, End) {
    let ends = [(); 2].map(|()| End::with(|vi| vi.reliability(level).rdma_read(true)));
    let [client, server] = ends;
    connect(&client, &server);
    (client, server)
}

const LEVELS: [ReliabilityLevel; 2] = [
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];

/// What this thread allocates while something is done often, after it was done a few times.
fn allocations_of(mut exchange: impl FnMut(usize)) -> u64 {
    exchange(10);
    let before = ALLOCATIONS.get();
    exchange(500);
    ALLOCATIONS.get() - before
}

#[test]
fn messages_allocate_nothing() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for level in LEVELS {
        let (client, server) = ends(level);
        for size in [8, 4096, 65_536] {
            let mut send = Some(client.message(&pattern(0, size)));
            let mut recv = Some(server.room(size));
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
    const AT_A_TIME: usize = 20;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for level in LEVELS {
        let (reader, target) = ends(level);
        let readable = RdmaAccess {
            write: false,
            read: true,
        };
        let memory = target
            .nic
            .create_rdma_region(65_536, &target.ptag, readable)
            .unwrap();
        for size in [8, 4096, 65_536] {
            // More at a time than the target serves.
            let mut reads = Vec::with_capacity(AT_A_TIME);
            for _ in 0..AT_A_TIME {
                let mut read = reader.room(size);
                read.set_operation(Operation::RdmaRead(memory.remote_buffer()));
                reads.push(read);
            }
            let counted = allocations_of(|messages| {
                for _ in 0..messages / 10 {
                    for read in reads.drain(..) {
                        reader.vi.post_send(read).unwrap();
                    }
                    while reads.len() < AT_A_TIME {
                        reads.push(poll(|| reader.vi.send_done()));
                    }
                }
            });
            assert_eq!(counted, 0, "{level:?}, {size} bytes");
        }
    }
}
