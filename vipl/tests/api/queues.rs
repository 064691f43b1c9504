//! Work queues and completion queues: entries of several VIs, reused slots, and errors of posts.

use std::collections::BTreeSet;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::raw::{RawEndpoint, errors_of};
use crate::common::{Endpoint, TIMEOUT, WAIT, config, connect, counter, open_as, pair, pattern};
use vipl::{ErrorCode, ViState, VipError, provider as vip};

#[test]
fn completion_queue_of_one_entry_holds_all_entries_of_its_work_queues() {
    const EACH: u64 = 64;
    let nic = open_as(|config| config.limits.max_descriptors_per_queue = EACH as u32);
    let cq = nic.create_cq(1).unwrap();
    let servers = [(); 3].map(|()| Endpoint::on(nic.clone(), |vi| vi.send_cq(&cq).recv_cq(&cq)));
    let clients = [(); 3].map(|()| Endpoint::new());
    for (client, server) in clients.iter().zip(&servers) {
        connect(client, server);
        client.post_receives(EACH as usize, 8);
        server.post_receives(EACH as usize, 8);
        for message in 0..EACH {
            client.send_bytes(&message.to_le_bytes());
            server.post_message(&message.to_le_bytes());
        }
        for message in 0..EACH {
            client.expect_message(&message.to_le_bytes());
        }
    }
    let mut next = [[0_u64; 2]; 3];
    for _ in 0..3 * 2 * EACH {
        let entry = cq.wait(WAIT).unwrap();
        let at = servers.iter().position(|end| end.vi.handle() == entry.vi);
        let (at, is_recv) = (at.unwrap(), entry.recv_queue);
        let done = match is_recv {
            true => servers[at].vi.recv_done(),
            false => servers[at].vi.send_done(),
        };
        let done = done.expect("the descriptor of the entry").unwrap();
        let count = &mut next[at][usize::from(is_recv)];
        let bytes = done.ok().unwrap().descriptor.buffer(0).to_vec();
        assert_eq!(bytes, count.to_le_bytes(), "in the order of the queue");
        *count += 1;
    }
    assert_eq!(next, [[EACH; 2]; 3]);
    assert_eq!(cq.done(), Err(VipError::NotDone));
    assert_eq!(counter(nic.handle(), "cq_overruns"), 0);
}

#[test]
fn vi_in_a_reused_slot_inherits_nothing() {
    let nic = open_as(|config| config.limits.max_vi = 2);
    let cq = nic.create_cq(4).unwrap();
    let peer = Endpoint::new();
    let mut handles = BTreeSet::new();
    for round in 0..50_u64 {
        let end = Endpoint::on(nic.clone(), |vi| vi.send_cq(&cq).recv_cq(&cq));
        let is_new = handles.insert(end.vi.handle().into_raw());
        assert!(is_new, "handles are unique");
        let info = end.vi.info().unwrap();
        assert!(info.recv_queue_empty && info.send_queue_empty);
        end.post_receives(1 + round as usize % 5, 8);
        connect(&end, &peer);
        peer.send_bytes(&round.to_le_bytes());
        loop {
            let entry = cq.wait(WAIT).unwrap();
            assert!(handles.contains(&entry.vi.into_raw()));
            if entry.vi == end.vi.handle() {
                break;
            }
            // An entry of a destroyed VI.
            assert_eq!(vip::recv_done(entry.vi), Err(VipError::InvalidParameter));
        }
        let arrived = end.vi.recv_done().unwrap().unwrap().ok().unwrap();
        assert_eq!(arrived.first_bytes(), round.to_le_bytes());
        peer.vi.disconnect().unwrap();
        // Dropped with descriptors posted; their entries stay on the completion queue.
    }
}

/// Also while calls of other threads keep the poll thread from polling the NIC.
#[test]
fn error_of_a_post_is_reported_after_the_vi_is_in_error() {
    let is_over = AtomicBool::new(false);
    for _ in 0..100 {
        let end = RawEndpoint::new(&config(|config| {
            config.limits.max_descriptors_per_queue = 4
        }));
        let errors = errors_of(end.nic);
        is_over.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        vip::query_vi(end.vi).unwrap();
                    }
                });
            }
            // SAFETY: an invalid descriptor is not accessed.
            unsafe { vip::post_send(end.vi, ptr::null_mut(), end.handle) }.unwrap();
            let reported = errors.recv_timeout(TIMEOUT);
            let state = vip::query_vi(end.vi).unwrap().state;
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(reported.unwrap(), ErrorCode::PostDesc);
            assert_eq!(state, ViState::Error);
        });
    }
}

#[test]
fn segments_are_gathered_and_scattered_in_order() {
    let (client, server) = pair();
    let bytes = pattern(1, 10_000);
    let mut receive = server.empty(4);
    for size in [1, 0, 4999, 6000] {
        let mut buffer = server.buffer(size.max(1));
        buffer.truncate(size);
        receive.push(buffer).unwrap();
    }
    let fifth = receive.push(server.buffer(1));
    assert!(fifth.is_err(), "max_segments");
    // Ignored on a receive.
    receive.set_immediate(Some(7));
    server.vi.post_recv(receive).unwrap();

    let mut send = client.empty(252);
    let mut rest = client.buffer(bytes.len());
    rest.copy_from_slice(&bytes);
    for _ in 0..251 {
        let tail = rest.split_off(37);
        send.push(rest).unwrap();
        rest = tail;
    }
    send.push(rest).unwrap();
    send.set_immediate(Some(u32::MAX));
    assert_eq!(send.used_bytes(), bytes.len());
    assert_eq!(client.send(send).ok().unwrap().length_bytes(), bytes.len());

    let arrived = server.recv().ok().unwrap();
    assert_eq!(arrived.length_bytes(), bytes.len());
    assert_eq!(arrived.immediate(), Some(u32::MAX));
    let buffers = (0..4).flat_map(|index| arrived.descriptor.buffer(index));
    assert!(buffers.take(bytes.len()).eq(&bytes));
}
