//! Work queues and completion queues: limits, overruns, stale handles, reused slots, and malformed descriptors.

mod common;

use std::collections::BTreeSet;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use common::raw::{Pages, RawEndpoint, attributes};
use common::{Endpoint, TIMEOUT, WAIT, config, connect, open, open_as};
use pmd::descriptor::{ControlSegment, control};
use vi_types::status;
use vipl::{
    Done, ErrorCode, MemoryHandle, RawDescriptor, ResourceCode, ViState, VipError, provider as vip,
};

#[test]
fn completion_queue_of_one_entry_holds_all_entries_of_its_work_queues() {
    let nic = open_as(|config| config.max_descriptors_per_queue = 64);
    let cq = nic.create_cq(1).unwrap();
    let servers: Vec<Endpoint> = (0..3)
        .map(|_| Endpoint::on(nic.clone(), |vi| vi.send_cq(&cq).recv_cq(&cq)))
        .collect();
    let clients: Vec<Endpoint> = servers.iter().map(|_| Endpoint::new()).collect();
    for (client, server) in clients.iter().zip(&servers) {
        connect(client, server);
        for _ in 0..64 {
            server.vi.post_recv(server.descriptor(8)).unwrap();
            client.vi.post_recv(client.descriptor(8)).unwrap();
        }
        for message in 0..64_u64 {
            client
                .send(client.message(&message.to_le_bytes()))
                .ok()
                .unwrap();
        }
        for message in 0..64_u64 {
            server
                .vi
                .post_send(server.message(&message.to_le_bytes()))
                .unwrap();
        }
        for message in 0..64_u64 {
            assert_eq!(
                client.recv().ok().unwrap().first_bytes(),
                message.to_le_bytes()
            );
        }
    }
    let mut next = [[0_u64; 2]; 3];
    for _ in 0..3 * 2 * 64 {
        let entry = cq.wait(WAIT).unwrap();
        let at = servers
            .iter()
            .position(|end| end.vi.handle() == entry.vi)
            .unwrap();
        let done = if entry.recv_queue {
            servers[at].vi.recv_done()
        } else {
            servers[at].vi.send_done()
        };
        let count = &mut next[at][usize::from(entry.recv_queue)];
        let done = done
            .expect("the descriptor of the entry")
            .unwrap()
            .ok()
            .unwrap();
        assert_eq!(
            done.descriptor.buffer(0),
            count.to_le_bytes(),
            "in the order of the queue"
        );
        *count += 1;
    }
    assert_eq!(next, [[64; 2]; 3]);
    assert_eq!(cq.done(), Err(VipError::NotDone));
    let overruns = vip::counters(nic.handle()).unwrap();
    assert!(
        overruns.contains(&("cq_overruns".to_owned(), 0)),
        "{overruns:?}"
    );
}

#[test]
fn vi_in_a_reused_slot_inherits_nothing() {
    let nic = open_as(|config| config.max_vi = 2);
    let cq = nic.create_cq(4).unwrap();
    let peer = Endpoint::new();
    let mut handles = BTreeSet::new();
    for round in 0..50_u64 {
        let end = Endpoint::on(nic.clone(), |vi| vi.send_cq(&cq).recv_cq(&cq));
        assert!(
            handles.insert(end.vi.handle().into_raw()),
            "handles are unique"
        );
        assert!(end.vi.info().unwrap().recv_queue_empty && end.vi.info().unwrap().send_queue_empty);
        for _ in 0..=round % 5 {
            end.vi.post_recv(end.descriptor(8)).unwrap();
        }
        connect(&end, &peer);
        peer.send(peer.message(&round.to_le_bytes())).ok().unwrap();
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
    for stale in handles.iter().map(|raw| vipl::ViHandle::from_raw(*raw)) {
        assert_eq!(
            vip::query_vi(stale).unwrap_err(),
            VipError::InvalidParameter
        );
        assert_eq!(vip::recv_done(stale), Err(VipError::InvalidParameter));
        assert_eq!(vip::disconnect(stale), Err(VipError::InvalidParameter));
        assert_eq!(vip::destroy_vi(stale), Err(VipError::InvalidParameter));
        let memory = MemoryHandle(1);
        // SAFETY: nothing is posted on a destroyed VI.
        let posted = unsafe { vip::post_send(stale, ptr::null_mut(), memory) };
        assert_eq!(posted, Err(VipError::InvalidParameter));
    }
}

/// Checks the error message of the last failed call of this thread.
fn assert_message(expected: &str) {
    assert_eq!(vip::last_error().as_deref(), Some(expected));
}

#[test]
fn objects_are_created_up_to_their_limits_and_again_after_destruction() {
    let nic = open_as(|config| {
        config.max_vi = 5;
        config.max_cq = 3;
        config.max_ptags = 6;
        config.max_regions = 4;
        config.max_registered_bytes = 64 * 1024;
    });
    let handle = nic.handle();
    for _ in 0..3 {
        let mut tags: Vec<_> = (0..6).map(|_| vip::create_ptag(handle).unwrap()).collect();
        assert_eq!(vip::create_ptag(handle), Err(VipError::ErrorResource));
        assert_message(
            "VipCreatePtag: max_ptags = 6: 6 in use on this NIC, 1 requested; raise max_ptags in [[nic]]",
        );
        let cqs: Vec<_> = (0..3).map(|_| vip::create_cq(handle, 1).unwrap()).collect();
        assert_eq!(vip::create_cq(handle, 1), Err(VipError::ErrorResource));
        assert_message(
            "VipCreateCQ: max_cq = 3: 3 in use on this NIC, 1 requested; raise max_cq in [[nic]]",
        );
        let vi = || {
            vip::create_vi(
                handle,
                &attributes(Some(tags[0])),
                Some(cqs[0]),
                Some(cqs[1]),
            )
        };
        let vis: Vec<_> = (0..5).map(|_| vi().unwrap()).collect();
        assert_eq!(vi(), Err(VipError::ErrorResource));
        assert_message(
            "VipCreateVi: max_vi = 5: 5 in use on this NIC, 1 requested; raise max_vi in [[nic]]",
        );
        let pages: Vec<_> = (0..4).map(|_| Pages::new(1)).collect();
        let regions: Vec<_> = pages
            .iter()
            .map(|pages| pages.register(handle, Some(tags[1]), false).unwrap())
            .collect();
        assert!(regions.iter().all(|region| region.0 != 0));
        let one_more = Pages::new(1).register(handle, Some(tags[1]), false);
        assert_eq!(one_more, Err(VipError::ErrorResource));
        assert_message(
            "VipRegisterMem: max_regions = 4: 4 in use on this NIC, 1 requested; raise max_regions in [[nic]]",
        );

        // Objects in use are not destroyed.
        assert_eq!(vip::destroy_cq(cqs[0]), Err(VipError::ErrorResource));
        assert_eq!(vip::destroy_cq(cqs[1]), Err(VipError::ErrorResource));
        assert_message("VipDestroyCQ: a work queue reports to the completion queue");
        assert_eq!(
            vip::destroy_ptag(handle, tags[0]),
            Err(VipError::ErrorResource)
        );
        assert_eq!(
            vip::destroy_ptag(handle, tags[1]),
            Err(VipError::ErrorResource)
        );
        assert_message("VipDestroyPtag: a VI or a memory region uses the protection tag");
        for vi in vis {
            vip::destroy_vi(vi).unwrap();
            assert_eq!(vip::destroy_vi(vi), Err(VipError::InvalidParameter));
        }
        for (pages, region) in pages.iter().zip(regions) {
            vip::deregister_mem(handle, pages.at(0), region).unwrap();
            let again = vip::deregister_mem(handle, pages.at(0), region);
            assert_eq!(again, Err(VipError::InvalidParameter));
        }
        for cq in cqs {
            vip::destroy_cq(cq).unwrap();
            assert_eq!(vip::destroy_cq(cq), Err(VipError::InvalidParameter));
        }
        let large = Pages::new(17);
        assert_eq!(
            large.register(handle, Some(tags[0]), false),
            Err(VipError::ErrorResource)
        );
        assert_message(
            "VipRegisterMem: max_registered_bytes = 65536: 69632 requested; raise max_registered_bytes in [[nic]]",
        );
        for tag in tags.drain(..) {
            vip::destroy_ptag(handle, tag).unwrap();
            assert_eq!(
                vip::destroy_ptag(handle, tag),
                Err(VipError::InvalidParameter)
            );
        }
    }
    assert_eq!(vip::create_cq(handle, 0), Err(VipError::InvalidParameter));
    let limit = nic.attributes().max_cq_entries;
    vip::destroy_cq(vip::create_cq(handle, limit).unwrap()).unwrap();
    assert_eq!(
        vip::create_cq(handle, limit + 1),
        Err(VipError::ErrorResource)
    );
    let more = limit + 1;
    assert_message(&format!(
        "VipCreateCQ: max_cq_entries = {limit}: {more} requested; raise max_cq_entries in [[nic]]"
    ));
}

#[test]
fn transfer_size_error_names_the_limit() {
    let nic = open_as(|config| config.max_transfer_bytes = 65536);
    let handle = nic.handle();
    let ptag = vip::create_ptag(handle).unwrap();
    let mut wanted = attributes(Some(ptag));
    wanted.max_transfer_bytes = 65537;
    let refused = vip::create_vi(handle, &wanted, None, None);
    assert_eq!(refused, Err(VipError::InvalidMtu));
    assert_message(
        "VipCreateVi: MaxTransferSize = 65537: must be 1 to 65536; raise max_transfer_bytes in \
         [[nic]], or the MTU if a message already has 65536 frames",
    );
}

#[test]
fn completion_queue_outlives_its_nic_handle_while_a_vi_uses_it() {
    let (of_vi, of_cq) = (open(), open());
    let cq = vip::create_cq(of_cq.handle(), 1).unwrap();
    let ptag = vip::create_ptag(of_vi.handle()).unwrap();
    let vi = vip::create_vi(of_vi.handle(), &attributes(Some(ptag)), None, Some(cq)).unwrap();
    drop(of_cq);
    assert_eq!(vip::cq_done(cq), Err(VipError::NotDone), "still valid");
    vip::destroy_vi(vi).unwrap();
    assert_eq!(
        vip::cq_done(cq),
        Err(VipError::InvalidParameter),
        "destroyed with its last VI"
    );
}

#[test]
fn a_vi_with_uncollected_descriptors_is_not_destroyed() {
    let end = RawEndpoint::new(&config(|_| ()));
    end.post_recv(0, &[end.segment(0, 8)]);
    assert_eq!(vip::destroy_vi(end.vi), Err(VipError::InvalidState));
    vip::disconnect(end.vi).unwrap();
    assert_eq!(
        vip::destroy_vi(end.vi),
        Err(VipError::InvalidState),
        "flushed, not collected"
    );
    assert_ne!(end.received() & status::DESC_FLUSHED_ERROR, 0);
    vip::destroy_vi(end.vi).unwrap();
}

/// An endpoint and the receiver of its asynchronous errors.
fn endpoint_with_errors() -> (
    RawEndpoint,
    std::sync::mpsc::Receiver<(ErrorCode, ResourceCode, u64, u32)>,
) {
    let end = RawEndpoint::new(&config(|config| config.max_descriptors_per_queue = 4));
    let (sender, errors) = channel();
    let handler = move |error: &vipl::ErrorDescriptor| {
        sender
            .send((
                error.code,
                error.resource,
                error.descriptor as u64,
                error.op_code,
            ))
            .unwrap();
    };
    vip::error_callback(end.nic, Some(Box::new(handler))).unwrap();
    (end, errors)
}

#[test]
fn work_queue_overrun_breaks_the_vi() {
    let (end, errors) = endpoint_with_errors();
    for slot in 0..5 {
        end.post_recv(slot, &[]);
    }
    let report = errors.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(
        report,
        (
            ErrorCode::ViOverrun,
            ResourceCode::Vi,
            end.memory.at(4 * 64),
            1
        )
    );
    assert_eq!(vip::query_vi(end.vi).unwrap().state, ViState::Error);
    for _ in 0..4 {
        assert_ne!(end.received() & status::DESC_FLUSHED_ERROR, 0);
    }
    assert_eq!(vip::recv_done(end.vi), Ok(Done::Empty));
    vip::disconnect(end.vi).unwrap();
    assert_eq!(vip::query_vi(end.vi).unwrap().state, ViState::Idle);
    vip::destroy_vi(end.vi).unwrap();
}

/// Also while calls of other threads keep the poll thread from polling the NIC.
#[test]
fn error_of_a_post_is_reported_after_the_vi_is_in_error() {
    let is_over = AtomicBool::new(false);
    for _ in 0..100 {
        let (end, errors) = endpoint_with_errors();
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
            assert_eq!(reported.unwrap().0, ErrorCode::PostDesc);
            assert_eq!(state, ViState::Error);
        });
    }
}

#[test]
fn unreadable_descriptor_breaks_the_vi() {
    type Address = fn(&RawEndpoint) -> (u64, MemoryHandle);
    let cases: [(&str, Address); 5] = [
        ("misaligned", |end| (end.memory.at(32), end.handle)),
        ("null", |end| (0, end.handle)),
        ("no handle", |end| (end.memory.at(0), MemoryHandle(0))),
        ("another handle", |end| {
            (end.memory.at(0), MemoryHandle(end.handle.0 ^ 0x0001_0000))
        }),
        ("past the region", |end| {
            (end.memory.at(0) + end.memory.bytes() as u64, end.handle)
        }),
    ];
    for (name, address_of) in cases {
        let (end, errors) = endpoint_with_errors();
        end.post_recv(1, &[end.segment(0, 8)]);
        let (address, handle) = address_of(&end);
        // SAFETY: an invalid descriptor is not accessed, which is tested.
        unsafe { vip::post_send(end.vi, address as *mut RawDescriptor, handle) }.unwrap();
        let report = errors.recv_timeout(TIMEOUT).unwrap();
        let expected = (ErrorCode::PostDesc, ResourceCode::Descriptor, address, 0);
        assert_eq!(report, expected, "{name}");
        assert_eq!(
            vip::query_vi(end.vi).unwrap().state,
            ViState::Error,
            "{name}"
        );
        assert_ne!(end.received() & status::DESC_FLUSHED_ERROR, 0, "{name}");
    }
}

#[test]
fn deregistered_memory_of_a_posted_descriptor_breaks_the_vi() {
    let (end, errors) = endpoint_with_errors();
    let peer = RawEndpoint::new(&config(|_| ()));
    common::raw::connect(&end, &peer);
    let other = Pages::new(1);
    let region = other.register(end.nic, end.ptag, false).unwrap();
    let descriptor = other.at(0) as *mut RawDescriptor;
    // SAFETY: our own page, not posted yet.
    unsafe { descriptor.write(RawDescriptor::default()) };
    // SAFETY: the page stays mapped to the end of the test.
    unsafe { vip::post_recv(end.vi, descriptor, region) }.unwrap();
    vip::deregister_mem(end.nic, other.at(0), region).unwrap();
    other.write(0, &[0xAA; 64]);
    peer.post_send(0, &[]);
    let report = errors.recv_timeout(TIMEOUT).unwrap();
    assert_eq!((report.0, report.2), (ErrorCode::CompProt, other.at(0)));
    assert_eq!(errors.recv_timeout(TIMEOUT).unwrap().0, ErrorCode::ConnLost);
    assert_eq!(vip::query_vi(end.vi).unwrap().state, ViState::Error);
    assert!(
        (0..64).all(|at| other.read(at) == 0xAA),
        "no write after the deregistration"
    );
    // The teardown succeeds: the descriptor is returned without a write to it.
    assert!(matches!(vip::recv_done(end.vi), Ok(Done::Completed { .. })));
    vip::disconnect(end.vi).unwrap();
    vip::destroy_vi(end.vi).unwrap();
}

#[test]
fn malformed_descriptor_completes_with_an_error_status() {
    type Change = fn(&mut ControlSegment);
    let changes: [(&str, u32, Change); 5] = [
        ("reserved control bits", status::FORMAT_ERROR, |head| {
            head.control = 0x10
        }),
        ("reserved word", status::FORMAT_ERROR, |head| {
            head.reserved = 1
        }),
        ("an undefined operation", status::FORMAT_ERROR, |head| {
            head.control = 3
        }),
        ("a fence and an operation", status::FORMAT_ERROR, |head| {
            head.control = control::QFENCE | 3
        }),
        (
            "a length that is not the sum",
            status::LENGTH_ERROR,
            |head| head.length = 9,
        ),
    ];
    for (name, expected, change) in changes {
        let (end, peer) = (
            RawEndpoint::new(&config(|_| ())),
            RawEndpoint::new(&config(|_| ())),
        );
        common::raw::connect(&end, &peer);
        let mut head = ControlSegment {
            length: 8,
            ..ControlSegment::default()
        };
        change(&mut head);
        let descriptor = end.write_descriptor(0, head, &[end.segment(0, 8)]);
        // SAFETY: the memory stays mapped, and is not accessed until the descriptor is returned.
        unsafe { vip::post_send(end.vi, descriptor, end.handle) }.unwrap();
        let sent = end.sent();
        assert_eq!(sent & status::ERROR_MASK, expected, "{name}: {sent:#x}");
        assert_eq!(
            vip::query_vi(end.vi).unwrap().state,
            ViState::Error,
            "{name}"
        );
    }
}

#[test]
fn receive_ignores_its_link_flags_and_immediate_data() {
    let (client, server) = (
        RawEndpoint::new(&config(|_| ())),
        RawEndpoint::new(&config(|_| ())),
    );
    common::raw::connect(&client, &server);
    let head = ControlSegment {
        next: u64::MAX,
        next_handle: u32::MAX,
        control: control::IMMEDIATE | control::QFENCE,
        immediate_data: 0xDEAD_BEEF,
        length: 77,
        status: u32::MAX,
        ..ControlSegment::default()
    };
    let descriptor = server.write_descriptor(0, head, &[server.segment(0, 8)]);
    // SAFETY: as above.
    unsafe { vip::post_recv(server.vi, descriptor, server.handle) }.unwrap();
    client.post_send(0, &[client.segment(0, 3)]);
    let expected = status::DONE | status::OP_RECEIVE;
    assert_eq!(server.received(), expected, "without immediate data");
    // SAFETY: returned from the queue.
    let after = unsafe { (*descriptor).control };
    assert_eq!(after.length, 3);
    for immediate in [0x8000_0001, u32::MAX] {
        let descriptor = server.write_descriptor(1, head, &[]);
        // SAFETY: as above.
        unsafe { vip::post_recv(server.vi, descriptor, server.handle) }.unwrap();
        let head = ControlSegment {
            control: control::IMMEDIATE,
            immediate_data: immediate,
            ..ControlSegment::default()
        };
        let send = client.write_descriptor(1, head, &[]);
        // SAFETY: as above.
        unsafe { vip::post_send(client.vi, send, client.handle) }.unwrap();
        assert_eq!(server.received(), expected | status::IMMEDIATE);
        // SAFETY: returned from the queue.
        assert_eq!(unsafe { (*descriptor).control.immediate_data }, immediate);
        assert_eq!(client.sent() & status::ERROR_MASK, 0);
    }
}
