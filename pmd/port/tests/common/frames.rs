//! Frames for tests on interfaces, and bounded waiting for them.

use std::time::{Duration, Instant};

use pmd_port::{BURST, MacBytes, Mbuf, MbufBatch, Port};

pub(crate) const LEFT: MacBytes = [0x0e, 0xfd, 0, 0, 1, 1];
pub(crate) const RIGHT: MacBytes = [0x0e, 0xfd, 0, 0, 1, 2];
pub(crate) const THIRD: MacBytes = [0x0e, 0xfd, 0, 0, 1, 3];
pub(crate) const UNUSED: MacBytes = [0x0e, 0xfd, 0, 0, 1, 9];
pub(crate) const ALL_VN2VN: MacBytes = [0x01, 0x10, 0x18, 0x01, 0x00, 0x04];
pub(crate) const FCOE: u16 = 0x8906;
pub(crate) const FIP: u16 = 0x8914;
pub(crate) const VLAN: u16 = 0x8100;

/// Long enough for a busy machine, short enough to detect a failure.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Calls `poll` until it returns a value.
pub(crate) fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "timed out waiting for {what}");
        std::thread::yield_now();
    }
}

pub(crate) fn frame(dst: MacBytes, src: MacBytes, words: &[u16], len_bytes: usize) -> Vec<u8> {
    let mut bytes = [dst, src].concat();
    bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    bytes.resize(len_bytes, 0x5a);
    bytes
}

pub(crate) fn filled(port: &mut dyn Port, bytes: &[u8]) -> Mbuf {
    let dst = *bytes.first_chunk().expect("a destination");
    let mut mbuf = wait_for("room to send", || port.alloc(dst));
    mbuf.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
    mbuf.set_len(bytes.len());
    mbuf
}

pub(crate) fn send(port: &mut dyn Port, bytes: &[u8]) {
    let mut batch = MbufBatch::new();
    batch.push(filled(port, bytes)).expect("an empty batch");
    assert_eq!(port.tx_burst(&mut batch), 1);
}

pub(crate) fn receive_some(port: &mut dyn Port) -> Vec<Vec<u8>> {
    let mut batch = MbufBatch::new();
    port.rx_burst(&mut batch, BURST);
    let mut frames = Vec::new();
    while let Some(mbuf) = batch.pop() {
        frames.push(mbuf.bytes().to_vec());
        port.free(mbuf);
    }
    frames
}

pub(crate) fn receive(port: &mut dyn Port) -> Vec<u8> {
    let mut frames = wait_for("a frame", || {
        let frames = receive_some(port);
        (!frames.is_empty()).then_some(frames)
    });
    assert_eq!(frames.len(), 1, "{frames:02x?}");
    frames.remove(0)
}

pub(crate) fn counter(port: &dyn Port, name: &str) -> u64 {
    let counters = port.stats().counters;
    let found = counters.iter().find(|counter| counter.name == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).value
}

/// Sends frames until they arrive in both directions, and drains the surplus.
pub(crate) fn wait_until_connected(a: &mut dyn Port, b: &mut dyn Port) {
    wait_for_direction(a, b);
    wait_for_direction(b, a);
}

fn wait_for_direction(from: &mut dyn Port, to: &mut dyn Port) {
    let (dst, src) = (to.capabilities().mac, from.capabilities().mac);
    wait_for("the link", || {
        from.upkeep();
        (counter(from, "link_up") == 1).then_some(())
    });
    wait_for("a frame over a new wire", || {
        send(from, &frame(dst, src, &[FCOE, 0], 60));
        (!receive_some(to).is_empty()).then_some(())
    });
    let last = frame(dst, src, &[FCOE, 1], 60);
    send(from, &last);
    wait_for("the last frame over a new wire", || {
        receive_some(to).contains(&last).then_some(())
    });
}

/// Sends one frame without the driver, through a socket without rings.
pub(crate) fn send_raw(interface: &str, bytes: &[u8]) {
    let name = std::ffi::CString::new(interface).expect("a name without NUL");
    // SAFETY: the name is a terminated string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    // SAFETY: takes three integers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
    assert!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
    // SAFETY: a C struct of integers, valid when zeroed.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = index as i32;
    // SAFETY: pointers and lengths describe live values.
    let sent = unsafe {
        libc::sendto(
            fd,
            bytes.as_ptr().cast(),
            bytes.len(),
            0,
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    assert_eq!(
        sent,
        bytes.len() as isize,
        "{}",
        std::io::Error::last_os_error()
    );
    // SAFETY: the descriptor was opened above and is not used any more.
    unsafe { libc::close(fd) };
}
