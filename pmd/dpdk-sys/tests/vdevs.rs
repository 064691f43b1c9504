//! Tests of the bindings and the shim with DPDK's virtual devices (vdevs). EAL runs without huge pages, PCI and shared
//! files, so that the tests need no privileges; `--in-memory` would be an error together with `--no-huge`.
#![cfg(feature = "system")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;

use dpdk_sys::*;

const EAL_ARGUMENTS: [&CStr; 8] = [
    c"dpdk-sys",
    c"--no-huge",
    c"-m",
    c"64",
    c"--no-shconf",
    c"--no-pci",
    c"--no-telemetry",
    c"--log-level=lib.eal:info",
];

const BUFFERS: u32 = 2047;
const ROOM_BYTES: u16 = 2048;
const DESCRIPTORS: u16 = 64;
const BURST: u16 = 8;

/// DPDK's log messages and their levels.
static LOG: Mutex<Vec<(i32, String)>> = Mutex::new(Vec::new());

extern "C" fn keep_message(_: *mut c_void, level: c_int, text: *const c_char, bytes: usize) {
    // SAFETY: the shim passes `bytes` bytes that are not written while this function runs.
    let text = unsafe { slice::from_raw_parts(text.cast::<u8>(), bytes) };
    let text = String::from_utf8_lossy(text).into_owned();
    if let Ok(mut log) = LOG.lock() {
        log.push((level, text));
    }
}

/// Initializes EAL once, and serializes the tests of this process: only one thread at a time may control devices.
fn eal() -> MutexGuard<'static, ()> {
    static STARTED: OnceLock<()> = OnceLock::new();
    static CONTROL: Mutex<()> = Mutex::new(());
    let control = CONTROL
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    STARTED.get_or_init(|| {
        // SAFETY: the sink is safe to call from any thread, and its context is not used.
        let result = unsafe { dpdk_sys_log_to(Some(keep_message), ptr::null_mut()) };
        assert_eq!(result, 0);
        // EAL permutes the pointers and may keep them, but does not write to the texts.
        let arguments: Vec<*mut c_char> = EAL_ARGUMENTS
            .iter()
            .map(|argument| argument.as_ptr().cast_mut())
            .collect();
        let arguments = arguments.leak();
        // SAFETY: the array and its texts are never freed, and this is the only call.
        let parsed = unsafe { rte_eal_init(arguments.len() as c_int, arguments.as_mut_ptr()) };
        assert!(parsed >= 0, "EAL: {}; {:?}", last_error(), LOG.lock());
    });
    control
}

fn last_error() -> String {
    // SAFETY: reads a variable of the calling thread.
    error_text(unsafe { dpdk_sys_errno() })
}

fn error_text(number: c_int) -> String {
    // SAFETY: accepts any number.
    let text = unsafe { rte_strerror(number) };
    // SAFETY: a NUL-terminated text of the calling thread, valid until its next call.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Context of a thread without an lcore, whose bursts are not guarded.
const CALLER: dpdk_sys_caller = dpdk_sys_caller {
    lcore: DPDK_SYS_NO_LCORE,
    guarded: 0,
    multi_segment_drops: 0,
    given_up: 0,
};

/// A started port with one receive and one send queue and its own pool.
struct Device {
    port: u16,
    pool: *mut rte_mempool,
}

impl Device {
    /// Adds a device by its name and keys (`devargs`), and starts its port.
    fn open(name: &str, keys: &str, room_bytes: u16) -> Self {
        let pool_name = CString::new(format!("pool-{name}")).expect("no NUL");
        // SAFETY: EAL runs (callers hold its control lock), and the name is copied.
        let pool = unsafe {
            rte_pktmbuf_pool_create(
                pool_name.as_ptr(),
                BUFFERS,
                32,
                0,
                room_bytes + RTE_PKTMBUF_HEADROOM as u16,
                0,
            )
        };
        assert!(!pool.is_null(), "{}", last_error());

        let devargs = CString::new(format!("{name}{keys}")).expect("no NUL");
        // SAFETY: EAL runs, and no other thread adds devices.
        let probed = unsafe { rte_dev_probe(devargs.as_ptr()) };
        assert_eq!(probed, 0, "{}; {:?}", error_text(-probed), LOG.lock());
        let device = Self {
            port: find_port(name).expect("a port for the device"),
            pool,
        };
        device.start();
        device
    }

    fn start(&self) {
        let configuration = rte_eth_conf::default();
        // SAFETY: the port exists, and the configuration is copied.
        let result = unsafe { rte_eth_dev_configure(self.port, 1, 1, &configuration) };
        assert_eq!(result, 0, "{}", error_text(-result));
        // SAFETY: the port is configured, and the pool outlives it.
        let result =
            unsafe { rte_eth_rx_queue_setup(self.port, 0, DESCRIPTORS, 0, ptr::null(), self.pool) };
        assert_eq!(result, 0, "{}", error_text(-result));
        // SAFETY: the port is configured.
        let result = unsafe { rte_eth_tx_queue_setup(self.port, 0, DESCRIPTORS, 0, ptr::null()) };
        assert_eq!(result, 0, "{}", error_text(-result));
        // SAFETY: the port has its queues.
        let result = unsafe { rte_eth_dev_start(self.port) };
        assert_eq!(result, 0, "{}", error_text(-result));
    }

    fn info(&self) -> rte_eth_dev_info {
        let mut info = MaybeUninit::uninit();
        // SAFETY: the port exists, and the pointer is valid for the record.
        let result = unsafe { rte_eth_dev_info_get(self.port, info.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", error_text(-result));
        // SAFETY: the call succeeded, so the whole record is written.
        unsafe { info.assume_init() }
    }

    fn stats(&self) -> rte_eth_stats {
        let mut stats = rte_eth_stats::default();
        // SAFETY: the port exists, and the pointer is valid for the record.
        let result = unsafe { rte_eth_stats_get(self.port, &mut stats) };
        assert_eq!(result, 0, "{}", error_text(-result));
        stats
    }

    fn alloc(&self, count: u16) -> Vec<dpdk_sys_frame> {
        let mut frames = vec![no_frame(); usize::from(count)];
        // SAFETY: the pool lives, and the pointer is valid for `count` records.
        let lent = unsafe { dpdk_sys_alloc_bulk(&CALLER, self.pool, frames.as_mut_ptr(), count) };
        frames.truncate(usize::from(lent));
        frames
    }

    fn send(&self, frames: &[dpdk_sys_frame]) -> u16 {
        // SAFETY: the port is started, this thread alone has its queue, and the frames are ours.
        unsafe {
            dpdk_sys_tx_burst(
                &mut CALLER.clone(),
                self.port,
                0,
                frames.as_ptr(),
                frames.len() as u16,
            )
        }
    }

    fn receive(&self, max: u16, drops: &mut u64) -> Vec<dpdk_sys_frame> {
        let mut frames = vec![no_frame(); usize::from(max)];
        let mut caller = CALLER;
        // SAFETY: the port is started, this thread alone has its queue, and the pointer is valid for `max` records.
        let got = unsafe { dpdk_sys_rx_burst(&mut caller, self.port, 0, frames.as_mut_ptr(), max) };
        *drops += caller.multi_segment_drops;
        frames.truncate(usize::from(got));
        frames
    }

    fn free_buffers(&self) -> u32 {
        // SAFETY: the pool lives.
        unsafe { rte_mempool_avail_count(self.pool) }
    }

    /// Removes the device, as a closing port does. All buffers must be back.
    fn close(self) {
        let device = self.info().device;
        // SAFETY: the port exists, and its queues are not used any more.
        let stopped = unsafe { rte_eth_dev_stop(self.port) };
        assert_eq!(stopped, 0, "{}", error_text(-stopped));
        // SAFETY: the port is stopped and returns its buffers to the pool.
        let removed = unsafe { rte_dev_remove(device) };
        assert_eq!(removed, 0, "{}", error_text(-removed));
        assert_eq!(self.free_buffers(), BUFFERS);
        // SAFETY: all buffers are back and no port uses the pool.
        unsafe { rte_mempool_free(self.pool) };
    }
}

fn find_port(name: &str) -> Option<u16> {
    let name = CString::new(name).expect("no NUL");
    let mut port = 0;
    // SAFETY: the name is NUL-terminated, and the pointer is valid for a port number.
    let found = unsafe { rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) };
    (found == 0).then_some(port)
}

fn no_frame() -> dpdk_sys_frame {
    dpdk_sys_frame::default()
}

fn bytes_of(frame: &dpdk_sys_frame) -> &[u8] {
    // SAFETY: the shim reports the range of the frame's bytes, and the frame belongs to the caller.
    unsafe { slice::from_raw_parts(frame.data, frame.len_bytes as usize) }
}

fn fill(frame: &mut dpdk_sys_frame, bytes: &[u8]) {
    assert!(bytes.len() <= frame.room_bytes as usize);
    // SAFETY: the length was checked, and the buffer belongs to the caller alone.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), frame.data, bytes.len()) };
    frame.len_bytes = bytes.len() as u32;
}

fn free(frames: &[dpdk_sys_frame]) {
    // SAFETY: the frames belong to the caller, and are not used after this.
    unsafe { dpdk_sys_free_bulk(&CALLER, frames.as_ptr(), frames.len() as u16) };
}

/// Returns a frame whose length and contents depend on the number.
fn sample(number: u16) -> Vec<u8> {
    (0..60 + 17 * number)
        .map(|at| (at ^ number << 5) as u8)
        .collect()
}

#[test]
fn a_burst_is_sent_and_received_in_the_same_buffers() {
    let _control = eal();
    let device = Device::open("net_ring0", "", ROOM_BYTES);
    let mut frames = device.alloc(BURST);
    assert_eq!(frames.len(), usize::from(BURST));
    for (number, frame) in (0..).zip(&mut frames) {
        assert_eq!(
            (frame.len_bytes, frame.room_bytes),
            (0, u32::from(ROOM_BYTES))
        );
        fill(frame, &sample(number));
    }
    assert_eq!(device.send(&frames), BURST);

    let mut drops = 0;
    let first = device.receive(3, &mut drops);
    let rest = device.receive(32, &mut drops);
    assert_eq!((first.len(), rest.len(), drops), (3, 5, 0));
    for (number, (got, sent)) in (0..).zip(first.iter().chain(&rest).zip(&frames)) {
        assert_eq!(bytes_of(got), sample(number));
        assert_eq!((got.mbuf, got.data), (sent.mbuf, sent.data));
        assert_eq!(got.room_bytes, u32::from(ROOM_BYTES));
    }
    let stats = device.stats();
    assert_eq!((stats.ipackets, stats.opackets), (8, 8));
    free(&first);
    free(&rest);
    device.close();
    assert_eq!(find_port("net_ring0"), None);
}

#[test]
fn frames_that_a_full_queue_rejects_stay_with_the_sender() {
    let _control = eal();
    let device = Device::open("net_ring1", "", ROOM_BYTES);
    let mut accepted = 0;
    let left = loop {
        let mut frames = device.alloc(32);
        assert_eq!(frames.len(), 32, "the queue accepted all buffers");
        for frame in &mut frames {
            fill(frame, &sample(0));
        }
        let sent = usize::from(device.send(&frames));
        accepted += sent;
        if sent < frames.len() {
            break frames.split_off(sent);
        }
    };
    assert_eq!(
        device.free_buffers() as usize + accepted + left.len(),
        BUFFERS as usize
    );
    free(&left);

    let mut drops = 0;
    let mut received = 0;
    loop {
        let frames = device.receive(32, &mut drops);
        if frames.is_empty() {
            break;
        }
        received += frames.len();
        free(&frames);
    }
    assert_eq!((received, drops), (accepted, 0));
    device.close();
}

#[test]
fn rx_burst_reports_frame_lengths() {
    let _control = eal();
    let device = Device::open("net_null0", ",size=1500,copy=1", ROOM_BYTES);
    let mut drops = 0;
    let frames = device.receive(BURST, &mut drops);
    assert_eq!((frames.len(), drops), (usize::from(BURST), 0));
    assert!(frames.iter().all(|frame| frame.len_bytes == 1500));
    // net_null accepts all frames and returns them to the pool.
    assert_eq!(device.send(&frames), BURST);
    device.close();
}

#[test]
fn multi_segment_frame_is_dropped_and_counted() {
    let _control = eal();
    let path = std::env::temp_dir().join(format!("dpdk-sys-{}.pcap", std::process::id()));
    fs::write(&path, capture(&[&sample(1), &vec![7; 3000], &sample(2)])).expect("a capture file");
    let device = Device::open("net_pcap0", &format!(",rx_pcap={}", path.display()), 1024);
    let mut drops = 0;
    let frames = device.receive(BURST, &mut drops);
    fs::remove_file(&path).expect("the capture file");
    let lengths: Vec<u32> = frames.iter().map(|frame| frame.len_bytes).collect();
    assert_eq!((lengths.as_slice(), drops), ([77, 94].as_slice(), 1));
    assert_eq!(bytes_of(&frames[1]), sample(2));
    free(&frames);
    device.close();
}

/// A capture file of Ethernet frames, in the classic format and this machine's byte order.
fn capture(frames: &[&[u8]]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xA1B2_C3D4_u32, 2 | 4 << 16, 0, 0, 65535, 1] {
        file.extend_from_slice(&word.to_ne_bytes());
    }
    for frame in frames {
        let bytes = frame.len() as u32;
        for word in [0, 0, bytes, bytes] {
            file.extend_from_slice(&word.to_ne_bytes());
        }
        file.extend_from_slice(frame);
    }
    file
}

#[test]
fn pool_frames_lists_the_addresses_of_allocated_buffers() {
    let _control = eal();
    let device = Device::open("net_null1", ",no-rx=1", ROOM_BYTES);
    let mut listed = vec![no_frame(); BUFFERS as usize];
    // SAFETY: the pool lives and no buffer is allocated; the pointer is valid for all of them.
    let count = unsafe { dpdk_sys_pool_frames(device.pool, listed.as_mut_ptr(), BUFFERS) };
    assert_eq!(count, BUFFERS);
    // SAFETY: as above, with a smaller limit.
    let count = unsafe { dpdk_sys_pool_frames(device.pool, listed.as_mut_ptr(), 1) };
    assert_eq!(count, BUFFERS);

    let mut lent = device.alloc(BURST);
    lent.extend(device.alloc(BURST));
    for frame in &lent {
        let listed = listed.iter().find(|listed| listed.mbuf == frame.mbuf);
        let listed = listed.expect("every buffer is listed");
        assert_eq!(
            (listed.data, listed.len_bytes, listed.room_bytes),
            (frame.data, frame.len_bytes, frame.room_bytes)
        );
    }
    free(&lent[..8]);
    free(&lent[8..]);
    device.close();
}

#[test]
fn alloc_bulk_allocates_all_or_none() {
    let _control = eal();
    let device = Device::open("net_null2", ",no-rx=1", ROOM_BYTES);
    let mut lent = Vec::new();
    for _ in 0..BUFFERS / 32 {
        lent.push(device.alloc(32));
    }
    assert_eq!(device.free_buffers(), 31);
    assert!(device.alloc(32).is_empty());
    lent.push(device.alloc(31));
    assert!(device.alloc(1).is_empty());
    let lent_buffers: usize = lent.iter().map(Vec::len).sum();
    assert_eq!(lent_buffers, BUFFERS as usize);
    lent.iter().for_each(|frames| free(frames));
    device.close();
}

#[test]
fn registered_thread_has_an_lcore_until_unregistered() {
    let _control = eal();
    let seen = thread::spawn(|| {
        // SAFETY: reads a variable of the calling thread.
        let lcore = || unsafe { dpdk_sys_lcore_id() };
        let before = lcore();
        // SAFETY: EAL runs, and this thread was not registered.
        let registered = unsafe { rte_thread_register() };
        let between = lcore();
        // SAFETY: the thread is registered.
        unsafe { rte_thread_unregister() };
        (before, registered, between < u32::MAX, lcore())
    });
    let seen = seen.join().expect("the thread");
    assert_eq!(seen, (u32::MAX, 0, true, u32::MAX));
}

#[test]
fn bursts_run_as_a_leased_lcore_on_any_thread() {
    let _control = eal();
    let device = Device::open("net_ring2", "", ROOM_BYTES);
    // SAFETY: EAL runs, and no other process joins it.
    let leased = unsafe { dpdk_sys_lease_lcore() };
    assert_ne!(leased, DPDK_SYS_NO_LCORE);
    // SAFETY: as above.
    let other = unsafe { dpdk_sys_lease_lcore() };
    assert_ne!(other, leased);
    let mut caller = dpdk_sys_caller {
        lcore: leased,
        ..CALLER
    };
    let mut frames = vec![no_frame(); usize::from(BURST)];
    // SAFETY: the pool lives, the pointer is valid for the records, and this thread alone runs as this lcore.
    let lent = unsafe { dpdk_sys_alloc_bulk(&caller, device.pool, frames.as_mut_ptr(), BURST) };
    assert_eq!(lent, BURST);
    frames.iter_mut().for_each(|frame| fill(frame, &sample(1)));
    let count = frames.len() as u16;
    // SAFETY: the port is started, this thread alone has its queue, and the frames are ours.
    let sent = unsafe { dpdk_sys_tx_burst(&mut caller, device.port, 0, frames.as_ptr(), count) };
    assert_eq!(sent, BURST);
    let port = device.port;
    let left = thread::spawn(move || {
        let mut frames = vec![no_frame(); usize::from(BURST)];
        // SAFETY: the port is started, this thread alone has its queue and runs as this lcore.
        let got = unsafe { dpdk_sys_rx_burst(&mut caller, port, 0, frames.as_mut_ptr(), BURST) };
        // SAFETY: the frames belong to the caller, and are not used after this.
        unsafe { dpdk_sys_free_bulk(&caller, frames.as_ptr(), got) };
        // SAFETY: reads a variable of the calling thread.
        (got, unsafe { dpdk_sys_lcore_id() })
    });
    assert_eq!(left.join().expect("the thread"), (BURST, DPDK_SYS_NO_LCORE));
    // SAFETY: reads a variable of the calling thread.
    assert_eq!(unsafe { dpdk_sys_lcore_id() }, DPDK_SYS_NO_LCORE);
    for lcore in [leased, other] {
        // SAFETY: it was leased, and no thread runs as it any more.
        unsafe { dpdk_sys_return_lcore(lcore) };
    }
    // SAFETY: EAL runs, and no other process joins it.
    let again = unsafe { dpdk_sys_lease_lcore() };
    assert_eq!(again, leased.min(other), "the lease was returned");
    // SAFETY: as above.
    unsafe { dpdk_sys_return_lcore(again) };
    device.close();
}

#[test]
fn lost_buffers_are_recovered() {
    let _control = eal();
    let device = Device::open("net_null3", ",no-rx=1", ROOM_BYTES);
    let lost = device.alloc(BURST);
    assert_eq!(device.free_buffers(), BUFFERS - u32::from(BURST));
    // SAFETY: the frames belong to the caller, and are not used after this.
    unsafe { dpdk_sys_recover(&CALLER, lost.as_ptr(), BURST) };
    assert_eq!(device.free_buffers(), BUFFERS);
    let again = device.alloc(BURST);
    assert!(
        again
            .iter()
            .all(|frame| frame.room_bytes == u32::from(ROOM_BYTES))
    );
    free(&again);
    device.close();
}

/// Counts messages in its context, a `Mutex<u32>`.
extern "C" fn count_message(context: *mut c_void, _: c_int, _: *const c_char, _: usize) {
    // SAFETY: the sink is installed with a static `Mutex<u32>`.
    let count = unsafe { &*context.cast::<Mutex<u32>>() };
    if let Ok(mut count) = count.lock() {
        *count += 1;
    }
}

fn probe_unknown_device() {
    // SAFETY: EAL runs (callers hold its control lock), and no other thread adds devices.
    let probed = unsafe { rte_dev_probe(c"net_nosuch0".as_ptr()) };
    assert!(probed < 0);
}

#[test]
fn log_to_replaces_the_previous_sink() {
    static COUNT: Mutex<u32> = Mutex::new(0);
    let _control = eal();
    let kept = || LOG.lock().expect("the log").len();
    let counted = || *COUNT.lock().expect("the count");
    let before = kept();
    let context = ptr::from_ref(&COUNT).cast_mut().cast();
    // SAFETY: the sink may be called by any thread, and its context is static.
    assert_eq!(unsafe { dpdk_sys_log_to(Some(count_message), context) }, 0);
    probe_unknown_device();
    assert_eq!(kept(), before);
    let messages = counted();
    assert!(messages > 0);

    // SAFETY: the sink may be called by any thread, and its context is not used.
    let back = unsafe { dpdk_sys_log_to(Some(keep_message), ptr::null_mut()) };
    assert_eq!(back, 0);
    probe_unknown_device();
    assert_eq!((kept() - before, counted()), (messages as usize, messages));
}

#[test]
fn probing_an_unknown_device_logs_an_error() {
    let _control = eal();
    probe_unknown_device();
    let log = LOG.lock().expect("the log");
    let (level, _) = log
        .iter()
        .find(|(_, text)| text.contains("net_nosuch0"))
        .expect("a message about the device");
    assert_eq!(*level, RTE_LOG_ERR as i32);
    assert!(log.iter().all(|(_, text)| text.ends_with('\n')));
}
