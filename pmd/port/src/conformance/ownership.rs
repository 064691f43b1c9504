//! Checks of the memory of buffers.

use super::Pair;
use super::frames::{MIN_FRAME_BYTES, alloc_for, next_received, send, serial_of, write_frame};
use crate::mbuf::MbufBatch;

/// A buffer is exclusive memory of its holder until it is returned, even if its port is dropped: safe code does not
/// keep a port alive for its buffers.
pub(super) fn buffers_outlive_their_port(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    let group = [0x01, 0x10, 0x18, 0x01, 0x00, 0x02];
    let mut unknown = b_mac;
    unknown[4] ^= 0x33;
    send(&mut *a, b_mac, 0..1, MIN_FRAME_BYTES);
    let received = next_received(&mut *b, &mut MbufBatch::new());
    let mut kept = vec![(received, b_mac)];
    for (serial, dst) in (1..).zip([b_mac, unknown, group, a_mac]) {
        let mut mbuf = alloc_for(&mut *a, dst);
        write_frame(&mut mbuf, dst, a_mac, serial, MIN_FRAME_BYTES);
        kept.push((mbuf, dst));
    }
    drop(a);
    drop(b);
    for (serial, (mbuf, dst)) in (0..).zip(&mut kept) {
        assert_eq!(serial_of(mbuf.bytes(), *dst, a_mac), serial);
    }
    for (mbuf, _) in &mut kept {
        mbuf.buffer_mut().fill(0x5A);
    }
}
