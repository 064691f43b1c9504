//! Sends without a place on the send queue have the same effects as those that are posted on it.

use vi_core::descriptor::ControlSegment;

use super::*;

const IMMEDIATE: u16 = control::IMMEDIATE;
const SEND: u16 = control::OP_SEND_RECV;
const WRITE: u16 = control::OP_RDMA_WRITE;
/// Data of a message longer than a frame.
const MANY_FRAMES: u32 = 10_000;
/// The descriptors, whose immediate data is the number of their line.
const SEND_LINE: u64 = 5;
const RECEIVE_LINE: u64 = 6;

impl Endpoint {
    fn control_of(&self, line: u64) -> ControlSegment {
        let at = (self.memory.address + line * 64) as *const ControlSegment;
        // SAFETY: a descriptor of the test, which is complete.
        unsafe { at.read() }
    }

    fn sent_in_one_step(&self) -> u64 {
        let held = self.device.lock();
        let state = held.as_ref().unwrap().state().unwrap();
        state.path.counters.sent_in_one_step
    }

    /// Posts a message, which is offered to be sent without a place on the queue, or not.
    fn send_data(&self, offered: bool, operation: u16, bytes: u32, to: DataSegment) {
        if !offered {
            let vi = crate::lookup::vi_of(self.vi).unwrap();
            vi.one_step_below_bytes.store(0, Ordering::Relaxed);
            vi.one_step_rdma_below_bytes.store(0, Ordering::Relaxed);
        }
        let own = self.segment(0, bytes);
        match operation & control::OP_MASK {
            WRITE => self.post_send(SEND_LINE, operation, &[remote(to), own]),
            _ => self.post_send(SEND_LINE, operation, &[own]),
        }
    }
}

#[test]
fn send_without_place_on_queue_has_the_effects_of_any_other() {
    for reliability in [UNRELIABLE_DELIVERY, RELIABLE_DELIVERY, RELIABLE_RECEPTION] {
        let (near, far) = pair(&format!("one-step-{reliability}"), reliability, |_| ());
        let data: Vec<u8> = (0..MANY_FRAMES).map(|i| (i % 201) as u8).collect();
        near.memory.write(PAGE_BYTES, &data);
        for operation in [SEND, SEND | IMMEDIATE, WRITE, WRITE | IMMEDIATE] {
            for bytes in [0, 1, 64, 2080, 2096, 2097, MANY_FRAMES] {
                let before = near.sent_in_one_step();
                let effects =
                    [true, false].map(|offered| effects(&near, &far, offered, operation, bytes));
                let in_one_step = near.sent_in_one_step() - before;
                let what = format!("level {reliability}, operation {operation}, {bytes} bytes");
                assert_eq!(effects[0].received, data[..bytes as usize], "{what}");
                assert_eq!(effects[0], effects[1], "{what}");
                let room = if operation & control::OP_MASK == WRITE {
                    2080
                } else {
                    2096
                };
                // The first message finds no hint yet.
                let expected = reliability != RELIABLE_RECEPTION && bytes <= room;
                let is_first = operation == SEND && bytes == 0;
                assert_eq!(in_one_step, u64::from(expected && !is_first), "{what}");
            }
        }
        near.close();
        far.close();
    }
}

/// What the two programs see of a message.
#[derive(Debug, PartialEq, Eq)]
struct Effects {
    sent: (u32, ControlSegment),
    /// The receive descriptor, if the message takes one.
    receive: Option<ControlSegment>,
    received: Vec<u8>,
    /// Bytes behind the message are unchanged.
    is_untouched_behind: bool,
}

fn effects(near: &Endpoint, far: &Endpoint, offered: bool, operation: u16, bytes: u32) -> Effects {
    let to = far.segment(64, bytes);
    far.memory
        .write(PAGE_BYTES, &vec![UNTOUCHED; 64 + bytes as usize + 64]);
    let takes_receive = operation != WRITE;
    if takes_receive {
        far.post_recv(RECEIVE_LINE, to);
    }
    near.send_data(offered, operation, bytes, to);
    let status = near.wait_sent(far);
    let sent = near.control_of(SEND_LINE);
    let receive = takes_receive.then(|| {
        let received = queue_calls::wait_done(far.vi, QueueKind::Receive, Some(TIMEOUT));
        assert!(
            matches!(received, Ok(Done::Completed { .. })),
            "{received:?}"
        );
        far.control_of(RECEIVE_LINE)
    });
    let behind = PAGE_BYTES + 64 + bytes as usize;
    // A write without immediate data is seen in memory only.
    let begun = std::time::Instant::now();
    while bytes > 0 && far.memory.is_untouched(behind - 1, 1) {
        far.poll();
        near.poll();
        assert!(begun.elapsed() < TIMEOUT, "the write does not arrive");
    }
    Effects {
        sent: (status, sent),
        receive,
        received: far.memory.read(PAGE_BYTES + 64, bytes as usize),
        is_untouched_behind: far.memory.is_untouched(behind, 64),
    }
}
