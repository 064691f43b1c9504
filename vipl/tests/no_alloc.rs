//! Nothing is allocated between posting a descriptor and taking it back.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use common::{PATIENCE, pair, pattern};
use vipl::{Completed, Descriptor, Result, VipError};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

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

#[test]
fn messages_allocate_nothing() {
    let (client, server) = pair();
    for size in [8, 4096, 65_536] {
        let mut send = Some(client.message(&pattern(0, size)));
        let mut recv = Some(server.room(size));
        let mut exchange = |messages| {
            for _ in 0..messages {
                server.vi.post_recv(recv.take().unwrap()).unwrap();
                client.vi.post_send(send.take().unwrap()).unwrap();
                recv = Some(poll(|| server.vi.recv_done()));
                send = Some(poll(|| client.vi.send_done()));
            }
        };
        exchange(10);
        let before = ALLOCATIONS.get();
        exchange(500);
        assert_eq!(ALLOCATIONS.get() - before, 0, "{size} bytes");
    }
}
