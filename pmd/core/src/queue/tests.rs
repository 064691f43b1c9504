use std::os::fd::AsFd;

use pmd_port::mapping::Mapping;

use super::*;
use crate::memory::testkit::sealed_file;

fn complete(queue: &WorkQueue, status: u32) -> u32 {
    // SAFETY: single-threaded test.
    unsafe { queue.head() }.unwrap().status = status;
    queue.complete_head()
}

#[test]
fn descriptors_are_reaped_in_order_and_full_queue_refuses() {
    let queue = WorkQueue::new(4).unwrap();
    for round in 0..5u64 {
        for i in 0..4 {
            let mut end = queue.post_end.lock();
            let context = 1 + i as usize;
            assert!(queue.post_with(&mut end, context, |slot| {
                slot.address = round * 10 + i;
                true
            }));
        }
        assert!(!queue.post(&mut queue.post_end.lock(), |_| panic!("no room")));
        let mut reap = queue.reap_end.lock();
        assert_eq!(queue.reap(&mut reap), Reaped::Pending);
        assert!(!queue.holds_one(&reap));
        for i in 0..4 {
            assert_eq!(queue.holds_one(&reap), i == 3);
            let sequence = complete(&queue, 1);
            assert!(!queue.was_reaped(sequence));
            let done = Reaped::Done {
                address: round * 10 + i,
                status: 1,
                context: 1 + i as usize,
            };
            assert_eq!(queue.reap(&mut reap), done);
            assert!(queue.was_reaped(sequence));
        }
        assert_eq!(queue.reap(&mut reap), Reaped::Empty);
        assert!(queue.is_empty());
    }
}

#[test]
fn ahead_finds_descriptors_by_distance_from_oldest() {
    let queue = WorkQueue::new(4).unwrap();
    let post = |address| {
        let mut end = queue.post_end.lock();
        assert!(queue.post(&mut end, |slot| slot.address = address));
    };
    // SAFETY: single-threaded test; the reference ends with the call.
    let address = |distance| unsafe { queue.ahead(distance) }.map(|slot| slot.address);
    assert_eq!(address(0), None);
    post(0);
    post(1);
    // The ring wraps twice, with three descriptors on it.
    for oldest in 0..8u64 {
        post(oldest + 2);
        for distance in 0..3 {
            assert_eq!(address(distance), Some(oldest + u64::from(distance)));
        }
        for beyond in [3, 4, 7, u32::MAX] {
            assert_eq!(address(beyond), None, "{beyond} behind {oldest}");
        }
        assert_eq!(queue.sequence(2), oldest as u32 + 2);
        assert_eq!(u64::from(complete(&queue, 1)), oldest);
        queue.reap(&mut queue.reap_end.lock());
    }
}

#[test]
fn queue_holds_exactly_the_requested_depth() {
    for limit in [1, 2, 3, 5, 8] {
        let queue = WorkQueue::new(limit).unwrap();
        for _ in 0..limit {
            assert!(queue.post(&mut queue.post_end.lock(), |_| ()));
        }
        assert!(!queue.post(&mut queue.post_end.lock(), |_| ()), "{limit}");
    }
}

#[test]
fn spilled_segments_are_allocated_once_and_kept() {
    let mut slot = Slot::default();
    for count in [3usize, 300, 2, 252] {
        for (i, s) in slot.segments_mut(count).iter_mut().enumerate() {
            s.length = i as u32;
        }
        assert_eq!(slot.data().len(), count);
        assert!(
            slot.data()
                .iter()
                .enumerate()
                .all(|(i, s)| s.length == i as u32)
        );
    }
    assert_eq!(slot.spill.as_ref().map(|s| s.len()), Some(300));
}

/// The number of a VI, and so its slots, are reused for other applications and for the program.
#[test]
fn mapped_address_is_reset_by_next_descriptor() {
    let file = sealed_file(4096);
    let memory = Mapping::shared(file.as_fd(), 0, 4096).unwrap();
    let address = memory.as_ptr().as_ptr().expose_provenance() as u64;
    let loss_flag = memory.loss_flag().unwrap();
    let mut slot = Slot::default();
    slot.begin(0, 0);
    slot.segments_mut(1)[0].length = 64;
    slot.length_bytes = 64;
    assert_eq!(slot.mapped_address(0, 64), None, "not set");
    slot.set_mapped_address(Some(MappedAddress { address, loss_flag }));
    assert_eq!(slot.mapped_address(0, 64), Some(address));
    assert_eq!(slot.mapped_address(60, 4), Some(address + 60));
    assert_eq!(slot.mapped_address(60, 5), None, "behind the data");
    assert_eq!(slot.mapped_address(u32::MAX, 2), None, "a sum that wraps");
    slot.begin(0x1000, 7);
    slot.segments_mut(1)[0].length = 64;
    assert_eq!(slot.mapped_address(0, 64), None, "another descriptor");
}

#[test]
fn slot_is_two_cache_lines() {
    assert!(size_of::<Slot>() <= 128, "{}", size_of::<Slot>());
}

#[test]
fn complete_descriptor_is_put_on_an_idle_queue_only() {
    let queue = WorkQueue::new(2).unwrap();
    let mut end = queue.post_end.lock();
    let mut reap = queue.reap_end.lock();
    for round in 0..3u32 {
        let address = u64::from(round) * 8;
        assert!(queue.post(&mut end, |slot| slot.address = address));
        assert!(queue.idle_slot(&mut end).is_none(), "one waits");
        complete(&queue, 1);
        let slot = queue.idle_slot(&mut end).expect("all are complete");
        // SAFETY: single-threaded test.
        let sequence = unsafe { slot.post_complete((address + 4, 5), 6) };
        assert_eq!((sequence, queue.depth()), (2 * round + 1, 0));
        // SAFETY: likewise.
        assert!(unsafe { queue.head() }.is_none(), "nothing to process");
        assert!(queue.idle_slot(&mut end).is_none(), "both are to be reaped");
        assert!(!queue.post(&mut end, |_| panic!("no room")));
        let done = |address, status, context| Reaped::Done {
            address,
            status,
            context,
        };
        assert_eq!(queue.reap(&mut reap), done(address, 1, 0));
        assert_eq!(queue.reap(&mut reap), done(address + 4, 5, 6));
        assert_eq!(queue.reap(&mut reap), Reaped::Empty);
    }
}
