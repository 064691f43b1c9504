//! Inline buffers that an application names or holds.

use super::*;
use crate::attach::shared_queues::INLINE_BYTES;

/// A descriptor of one segment of this length.
fn descriptor(operation: u16, bytes: u32) -> Slot {
    let mut slot = Slot::default();
    (slot.control, slot.length_bytes) = (operation, bytes);
    slot.segments_mut(1)[0].length = bytes;
    slot
}

#[test]
fn application_that_names_an_impossible_inline_buffer_is_cut_off() {
    let send = descriptor(control::OP_SEND_RECV, 8);
    let long = descriptor(control::OP_SEND_RECV, INLINE_BYTES + 1);
    let read = descriptor(control::OP_RDMA_READ, 8);
    for (name, kind, slot, number, is_cut_off) in [
        ("no-such", Submission::Send, &send, INLINE_BUFFERS + 1, true),
        ("long", Submission::Send, &long, 1, true),
        ("read", Submission::Send, &read, 1, true),
        ("receive", Submission::Receive, &send, 1, true),
        ("possible", Submission::Send, &send, INLINE_BUFFERS, false),
    ] {
        let mut served = TestNic::new(&format!("inline-{name}"), limits());
        let vi = served.vi(served.nic, served.ptag);
        with(served.device, |path| {
            let vi = path.vi(vi_of(vi).unwrap().index).unwrap();
            vi.shared.reads.store(true, Ordering::Relaxed);
            let longest = &vi.shared.max_transfer_bytes;
            longest.store(2 * INLINE_BYTES, Ordering::Relaxed);
        });
        assert!(served.try_submit_inline(vi, kind, slot, number));
        with(served.device, |path| {
            path.take_submissions();
            let client = clients(path).get(served.id).unwrap();
            assert_eq!(client.violation.is_some(), is_cut_off, "{name}");
        });
        served.close();
    }
}

/// Completes a receive of a VI that passes a buffer on; false if no buffer is free.
fn receive_inline(served: &mut TestNic, vi: u64) -> bool {
    served.submit(vi, Submission::Receive);
    let (id, index) = (served.id, vi_of(vi).unwrap().index);
    with(served.device, |path| {
        path.take_submissions();
        let buffer = clients(path).inline_buffer(id, INLINE_BYTES);
        if let Some(buffer) = &buffer {
            with_head(&path.vi(index).unwrap().shared.recv, |slot| {
                slot.receive_in(buffer)
            });
        }
        path.complete_receive(index, Completion::received(8, None));
        buffer.is_some()
    })
}

#[test]
fn buffers_of_receives_are_free_again_when_the_application_has_taken_their_completions() {
    let mut served = TestNic::new("inline-taken", limits());
    let vi = served.vi(served.nic, served.ptag);
    let mut completions = CompletionConsumer::default();
    // More rounds than the ring has entries.
    for round in 0..600 {
        for _ in 0..INLINE_BUFFERS {
            assert!(receive_inline(&mut served, vi), "round {round}");
        }
        assert!(!receive_inline(&mut served, vi), "all are in use");
        let mut numbers: Vec<_> = core::iter::from_fn(|| completions.pop(&served.queues))
            .map(|(_, entry)| match entry {
                CompletionEntry::Received(completed) => completed.inline_buffer,
                other => panic!("{other:?}"),
            })
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2], "round {round}");
        assert!(!receive_inline(&mut served, vi), "not before it says so");
        completions.release(&served.queues);
        completions.pop(&served.queues).unwrap();
        completions.release(&served.queues);
        with(served.device, Datapath::deliver_completions);
    }
    served.close();
}

#[test]
fn longer_message_gets_no_inline_buffer() {
    let served = TestNic::new("inline-longer", limits());
    with(served.device, |path| {
        let clients = clients(path);
        assert!(clients.inline_buffer(served.id, INLINE_BYTES + 1).is_none());
        assert!(clients.inline_buffer(served.id, INLINE_BYTES).is_some());
    });
    served.close();
}

#[test]
fn receive_that_cannot_be_reported_at_once_gets_no_inline_buffer() {
    let mut served = TestNic::new("inline-later", limits());
    let (device, id) = (served.device, served.id);
    let vi = served.vi(served.nic, served.ptag);
    with(device, |path| {
        clients(path).get(id).unwrap().report_budget = 1
    });
    assert!(receive_inline(&mut served, vi));
    assert!(!receive_inline(&mut served, vi), "no budget is left");
    with(device, |path| {
        clients(path).get(id).unwrap().report_budget = 8;
        assert!(clients(path).inline_buffer(id, 8).is_none(), "one waits");
        path.deliver_completions();
        assert!(clients(path).inline_buffer(id, 8).is_some());
    });
    served.close();
}
