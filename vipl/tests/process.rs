//! Processes that fork or execute another program, and leaks of processes that open a NIC a thousand times.

mod common;

use pmd::config::{Network, Progress};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::forked::{ForkedChild, in_forked_child};
use common::{
    Endpoint, SecondProcess, TIMEOUT, config, connect, deliver, is_child, open, pair, segment,
    unique_discriminator,
};
use vipl::{ErrorCode, Nic, RdmaAccess, ViState, VipError, provider as vip};

/// Checks that messages arrive in both directions.
fn check_messages(client: &Endpoint, server: &Endpoint) {
    deliver(client, server, b"unharmed");
    deliver(server, client, b"unharmed");
    assert!(client.errors.none() && server.errors.none());
}

#[test]
fn drops_in_a_forked_child_do_not_affect_the_parent() {
    let (client, server) = pair();
    server.post_receives(1, 8);
    // Bitwise copies of the parent's values, dropped in the child only.
    let (nic, vi) = (&server.nic, &server.vi);
    let cq = nic.create_cq(1).unwrap();
    let memory = server.region(64, RdmaAccess::default());
    in_forked_child(|| {
        // SAFETY: the child's copies of values that the child never uses or drops again.
        let nic = unsafe { std::ptr::read(nic) };
        // SAFETY: as above.
        let vi = unsafe { std::ptr::read(vi) };
        // SAFETY: as above.
        let cq = unsafe { std::ptr::read(&cq) };
        // SAFETY: as above.
        let memory = unsafe { std::ptr::read(&memory) };
        drop((vi, cq, memory, nic));
        true
    });
    client.send_bytes(b"message");
    server.expect_message(b"message");
    memory.store_u64(0, 1);
    assert_eq!(cq.done(), Err(VipError::NotDone));
    check_messages(&client, &server);
}

#[test]
fn handles_are_stale_in_a_forked_child() {
    let (client, server) = pair();
    client.post_receives(1, 8);
    let (nic, vi) = (client.nic.handle(), client.vi.handle());
    let cq = client.nic.create_cq(1).unwrap();
    let address = client.address(&unique_discriminator());
    let limit = vipl::Timeout::After(Duration::from_millis(10));
    in_forked_child(|| {
        let stale = VipError::InvalidParameter;
        // SAFETY: a stale handle: no memory is accessed.
        let posted = unsafe { vip::post_send(vi, std::ptr::null_mut(), vipl::MemoryHandle(1)) };
        posted == Err(stale)
            && vip::recv_done(vi) == Err(stale)
            && vip::recv_wait(vi, limit) == Err(stale)
            && vip::query_vi(vi).err() == Some(stale)
            && vip::disconnect(vi) == Err(stale)
            && vip::destroy_vi(vi) == Err(stale)
            && vip::cq_done(cq.handle()) == Err(stale)
            && vip::destroy_cq(cq.handle()) == Err(stale)
            && vip::query_nic(nic).err() == Some(stale)
            && vip::create_ptag(nic).err() == Some(stale)
            && vip::connect_wait(nic, &address, limit).err() == Some(stale)
            && vip::close_nic(nic) == Err(stale)
    });
    server.send_bytes(b"as usual");
    client.expect_message(b"as usual");
    assert_eq!(client.vi.state().unwrap(), ViState::Connected);
    check_messages(&client, &server);
}

#[test]
fn pending_handlers_survive_a_fork() {
    let (client, server) = pair();
    server.post_receives(1, 8);
    let (sender, calls) = channel();
    server
        .vi
        .recv_notify(move |found| sender.send(found).unwrap())
        .unwrap();
    let (vi, cq) = (server.vi.handle(), server.nic.create_cq(1).unwrap());
    cq.notify(|_| ()).unwrap();
    in_forked_child(|| {
        let stale = Err(VipError::InvalidParameter);
        vip::recv_notify(vi, |_, _| ()) == stale
            && vip::cq_notify(cq.handle(), |_, _| ()) == stale
            && vip::resize_cq(cq.handle(), 2) == stale
            && vip::destroy_cq(cq.handle()) == stale
            && vip::destroy_vi(vi) == stale
    });
    client.send_bytes(b"as usual");
    let found = calls.recv_timeout(TIMEOUT).unwrap().unwrap();
    assert_eq!(found.first_bytes(), b"as usual");
}

#[test]
fn a_forked_child_may_open_a_nic_of_its_own() {
    let server = Endpoint::new();
    let address = server.address(&unique_discriminator());
    server.post_receives(1, 8);
    // The name of the segment has the parent's process ID.
    let same = config(|_| ());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            server.accept(&address);
            server.expect_message(b"children");
        });
        in_forked_child(|| {
            let Ok(nic) = Nic::open_with(&same) else {
                return false;
            };
            let child = Endpoint::on(nic, |vi| vi);
            child.request(&address).is_ok() && child.send(child.message(b"children")).status.is_ok()
        });
    });
    // The child has exited: the parent's VI loses the connection, and can be connected again.
    server.expect_errors(&[ErrorCode::ConnLost]);
    server.vi.disconnect().unwrap();
    let client = Endpoint::new();
    connect(&client, &server);
    check_messages(&client, &server);
}

#[test]
fn running_forked_child_does_not_keep_a_closed_nic() {
    // No other test has this NIC open, or uses its address.
    let separate = config(|config| {
        config.network = Network::segment(format!("{}-separate", segment()));
        if common::is_over_tcp() {
            let host = common::own_host().to_bits() ^ 1 << 21;
            config.host = Some(std::net::Ipv4Addr::from_bits(host).into());
        }
    });
    let end = || Endpoint::on(Nic::open_with(&separate).unwrap(), |vi| vi);
    let before = end();
    let (mut exit_reader, mut exit_writer) = std::io::pipe().unwrap();
    let child = ForkedChild::start(move || exit_reader.read_exact(&mut [0]).is_ok());
    drop(before);
    let (client, server) = (end(), end());
    connect(&client, &server);
    check_messages(&client, &server);
    exit_writer.write_all(&[0]).unwrap();
    child.join();
}

#[test]
fn executed_program_inherits_nothing() {
    let (client, server) = pair();
    check_messages(&client, &server);
    let listed = Command::new("ls")
        .args(["-l", "/proc/self/fd"])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.lines().count() >= 3, "{listed}");
    assert!(
        !listed.contains(&segment()) && !listed.contains("eventfd"),
        "{listed}"
    );
    check_messages(&client, &server);
}

/// Bytes that are allocated from the heap and not freed.
static HEAP_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system allocator, with a count of the bytes in use.
struct Counting;

// SAFETY: each call is forwarded unchanged to the system allocator, which keeps the contract; counting neither
// allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        let address = unsafe { System.alloc(layout) };
        if !address.is_null() {
            // Relaxed: only the sum is used, no other access depends on it.
            HEAP_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        }
        address
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        HEAP_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`; the address is from the system allocator.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Permitted growth of the heap in a thousand rounds: less than one byte for each.
const HEAP_GROWTH_BYTES: usize = 999;
/// Permitted growth of resident memory in a thousand rounds: free lists of the heap, which depend on the schedule of
/// the threads. A leak of one page for each round is more.
const RESIDENT_GROWTH_KIB: u64 = 4000;

/// Resources of this process.
#[derive(Debug)]
struct Resources {
    descriptors: usize,
    threads: usize,
    mappings: usize,
    heap_bytes: usize,
    resident_kib: u64,
}

impl Resources {
    fn now() -> Self {
        // First: the following reads allocate memory, too.
        let heap_bytes = HEAP_BYTES.load(Ordering::Relaxed);
        let entries = |path| std::fs::read_dir(path).unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            // Mappings of thread stacks and of the allocator vary; those of the library have names.
            mappings: maps
                .lines()
                .filter(|line| line.contains("/dev/shm") || line.contains("viaduct"))
                .count(),
            heap_bytes,
            resident_kib: resident_kib(),
        }
    }

    /// Waits until this process has no more resources than these. A joined thread is still listed for a short time, and
    /// an open NIC handle keeps the ring of a station until it detects that the station has left.
    fn wait_for_release(&self) {
        let begun = Instant::now();
        loop {
            let now = Self::now();
            if now.descriptors <= self.descriptors
                && now.threads <= self.threads
                && now.mappings <= self.mappings
                && now.heap_bytes <= self.heap_bytes + HEAP_GROWTH_BYTES
                && now.resident_kib < self.resident_kib + RESIDENT_GROWTH_KIB
            {
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "{now:?}, before {self:?}");
            std::thread::yield_now();
        }
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Limits the system allocator to one arena, so that resident memory does not depend on the schedule of the threads.
fn with_one_arena(command: &mut Command) {
    command.env("MALLOC_ARENA_MAX", "1");
}

/// Opens a NIC, creates one object of each kind, and closes it, with or without a teardown of the objects.
fn open_and_close(in_order: bool) {
    let nic = vip::open_nic_with(&config(|_| ())).unwrap();
    let ptag = vip::create_ptag(nic).unwrap();
    let cq = vip::create_cq(nic, 100).unwrap();
    let vi = vip::create_vi(nic, &common::raw::attributes(Some(ptag)), Some(cq), None).unwrap();
    let memory = common::raw::Pages::new(1);
    let region = memory.register(nic, Some(ptag)).unwrap();
    vip::error_callback(nic, Some(Box::new(|_| ()))).unwrap();
    vip::ns_init(nic, None).unwrap();
    if in_order {
        vip::ns_shutdown(nic).unwrap();
        vip::deregister_mem(nic, memory.at(0), region).unwrap();
        vip::destroy_vi(vi).unwrap();
        vip::destroy_cq(cq).unwrap();
        vip::destroy_ptag(nic, ptag).unwrap();
    }
    vip::close_nic(nic).unwrap();
}

#[test]
fn repeated_open_and_close_leaks_nothing() {
    if !is_child() {
        const TEST: &str = "repeated_open_and_close_leaks_nothing";
        SecondProcess::start_with(TEST, with_one_arena).join();
        return;
    }
    for round in 0..50 {
        open_and_close(round % 2 == 0);
    }
    let before = Resources::now();
    for round in 0..1000 {
        open_and_close(round % 2 == 0);
    }
    before.wait_for_release();
    // A second handle keeps the NIC open: its objects must be released as well.
    let second_handle = open();
    open_and_close(false);
    let before = Resources::now();
    for round in 0..1000 {
        open_and_close(round % 2 == 0);
    }
    before.wait_for_release();
    drop(second_handle);
}

/// Opens two NICs with a VI each, connects them, sends, and closes both, with or without a teardown of the objects.
fn open_use_and_close(in_order: bool) {
    use common::raw::{RawEndpoint, connect};
    let end = |takeover_us| {
        RawEndpoint::new(&config(|config| {
            config.progress = Progress::inline(takeover_us);
            // Long enough for a server that is descheduled.
            config.fc_vi.silent_port_ms = Some(20_000);
        }))
    };
    let (client, server) = (end(1000), end(1001));
    for end in [&client, &server] {
        // The second one that is closed loses its connection.
        vip::error_callback(end.nic, Some(Box::new(|_| ()))).unwrap();
    }
    connect(&client, &server);
    for slot in 0..4 {
        server.post_recv(slot, &[server.segment(slot * 64, 64)]);
    }
    client.post_recv(1, &[client.segment(0, 8)]);
    client.post_send(0, &[client.segment(64, 64)]);
    assert_eq!((client.sent(), server.received()).0 & 0xFFFE, 0);
    if in_order {
        for end in [&client, &server] {
            vip::disconnect(end.vi).unwrap();
            while let vipl::Done::Completed { .. } = vip::recv_done(end.vi).unwrap() {}
            vip::destroy_vi(end.vi).unwrap();
            vip::deregister_mem(end.nic, end.memory.at(0), end.handle).unwrap();
            vip::destroy_ptag(end.nic, end.ptag.unwrap()).unwrap();
        }
    }
}

/// Number of files of a segment: its file, its lock, and one for each station.
fn segment_files(name: &str) -> usize {
    let Ok(shared) = std::fs::read_dir("/dev/shm") else {
        return 0;
    };
    let ends = format!("-{name}");
    shared
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_str().is_some_and(|path| path.ends_with(&ends)))
        .map(|path| std::fs::read_dir(path).map_or(0, |files| files.count()))
        .sum()
}

#[test]
fn repeated_open_use_and_close_leaks_nothing() {
    const TEST: &str = "repeated_open_use_and_close_leaks_nothing";
    if !is_child() {
        SecondProcess::start_with(TEST, |command| {
            with_one_arena(command);
            // Places the files in /dev/shm.
            command.env_remove("XDG_RUNTIME_DIR");
            command.env("VIPL_TEST_SEGMENT", format!("used-{}", std::process::id()));
        })
        .join();
        return;
    }
    // A third station keeps the segment, so that leaked files of the others would stay.
    let kept = open();
    let files = segment_files(&segment());
    assert!(files > 0, "the segment is found");
    // Warm-up of the heap.
    for round in 0..500 {
        open_use_and_close(round % 2 == 0);
    }
    let before = Resources::now();
    for round in 0..1000 {
        open_use_and_close(round % 2 == 0);
    }
    before.wait_for_release();
    assert_eq!(segment_files(&segment()), files);
    // Its poller may not have detected yet that the last station has left.
    common::wait_until("a station that has left is listed", || {
        kept.autodiscovery(1) == Ok(vec![])
    });
    drop(kept);
    assert_eq!(segment_files(&segment()), 0);
}
