//! Changed attributes of existing VIs and memory: effect on transfers, and tags in use.

use crate::common;
use pmd::config::{Addressing, NeighbourConfig, Network, Progress, Static};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::common::raw::{
    PAGE_BYTES, Pages, RawEndpoint, attributes, connect, errors_of, mem_attributes, segment,
    set_mem_attributes,
};
use crate::common::{Endpoint, TIMEOUT, WRITABLE, config, open_as, wait_until};
use vi_types::status;
use vipl::{
    ErrorCode, MemoryHandle, RdmaAccess, ReliabilityLevel, ViHandle, ViState, VipError,
    provider as vip,
};

fn raw_endpoint() -> RawEndpoint {
    RawEndpoint::new(&config(|_| ()))
}

/// Collects all completed receives and returns their status words.
fn collect_receives(vi: ViHandle) -> Vec<u32> {
    let mut statuses = Vec::new();
    while let vipl::Done::Completed { status, .. } = vip::recv_done(vi).unwrap() {
        statuses.push(status);
    }
    statuses
}

/// A receive that was posted before the VI's tag changed is checked when a message claims it.
#[test]
fn posted_receive_is_checked_against_the_new_tag() {
    let retag = |end: &RawEndpoint, address: u64, handle: MemoryHandle, ptag| {
        let wanted = mem_attributes(Some(ptag), RdmaAccess::default());
        set_mem_attributes(end.nic, address, handle, &wanted).unwrap();
    };
    for (retag_descriptor, retag_buffer) in [(true, true), (true, false), (false, false)] {
        let (client, server) = (raw_endpoint(), raw_endpoint());
        let errors = errors_of(server.nic);
        let buffer = Pages::new(1);
        let handle = buffer.register(server.nic, server.ptag).unwrap();
        server.post_recv(0, &[segment(buffer.at(0), handle, 8)]);
        let ptag = vip::create_ptag(server.nic).unwrap();
        vip::set_vi_attributes(server.vi, &attributes(Some(ptag))).unwrap();
        if retag_descriptor {
            retag(&server, server.memory.at(0), server.handle, ptag);
        }
        if retag_buffer {
            retag(&server, buffer.at(0), handle, ptag);
        }
        connect(&client, &server);
        client.memory.write(PAGE_BYTES, b"message");
        client.post_send(0, &[client.segment(0, 7)]);
        if retag_descriptor {
            let received = server.received();
            let is_allowed = received & status::PROTECTION_ERROR == 0;
            assert_eq!(is_allowed, retag_buffer, "{received:#x}");
        } else {
            // The status cannot be written, either.
            let code = errors.recv_timeout(TIMEOUT).unwrap();
            assert_eq!(code, ErrorCode::CompProt);
            let [word] = collect_receives(server.vi)[..] else {
                panic!("one receive was posted");
            };
            assert_ne!(word & status::PROTECTION_ERROR, 0, "{word:#x}");
        }
        let expected = if retag_buffer { b'm' } else { 0 };
        assert_eq!(buffer.read(0), expected);
        vip::close_nic(server.nic).unwrap();
    }
}

#[test]
fn send_from_memory_of_another_tag_is_a_protection_error() {
    let (client, server) = (raw_endpoint(), raw_endpoint());
    connect(&client, &server);
    let source = Pages::new(1);
    let handle = source.register(client.nic, client.ptag).unwrap();
    let segment = segment(source.at(0), handle, 8);
    let tag = |ptag| {
        let wanted = mem_attributes(ptag, RdmaAccess::default());
        set_mem_attributes(client.nic, source.at(0), handle, &wanted).unwrap();
    };
    let other = vip::create_ptag(client.nic).unwrap();
    for round in 0..2 {
        server.post_recv(round, &[server.segment(0, 8)]);
        client.post_send(round, &[segment]);
        assert_eq!(client.sent() & status::ERROR_MASK, 0);
        assert_eq!(server.received() & status::ERROR_MASK, 0);
        tag(Some(other));
        tag(client.ptag);
    }
    tag(Some(other));
    client.post_send(2, &[segment]);
    assert_ne!(client.sent() & status::PROTECTION_ERROR, 0);
}

/// Writes of many frames arrive continuously while the write right is revoked and restored.
#[test]
fn revoked_write_right_is_effective_on_return() {
    const BYTES: usize = 60_000;
    let unreliable = |vi: vipl::ViBuilder| vi.reliability(ReliabilityLevel::UnreliableDelivery);
    let writer = Endpoint::with(unreliable);
    let target = Endpoint::with(|vi| unreliable(vi).rdma_write(true));
    common::connect(&writer, &target);
    let access = |write| RdmaAccess { write, read: false };
    let memory = target.region(BYTES, access(true));
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut message = 0;
            while !stop.load(Ordering::Relaxed) {
                message += 1;
                let bytes = common::pattern(message, BYTES);
                let sent = writer.send(writer.write_of(&bytes, memory.remote_buffer()));
                assert!(sent.status.is_ok(), "{}", sent.status);
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        let more_writes = |count| {
            let from = written.load(Ordering::Relaxed);
            wait_until("further writes", || {
                // Polls the target.
                target.vi.state().unwrap();
                written.load(Ordering::Relaxed) >= from + count
            });
        };
        let bytes = || {
            let mut seen = vec![0; BYTES];
            memory.read(0, &mut seen);
            seen
        };
        for round in 0..40 {
            let before = bytes();
            wait_until("a write arrives", || {
                target.vi.state().unwrap();
                bytes() != before
            });
            memory.set_access(access(false)).unwrap();
            let revoked = bytes();
            more_writes(3);
            assert!(bytes() == revoked, "round {round}: written without a right");
            target.expect_errors(&[ErrorCode::RdmawProt]);
            memory.set_access(access(true)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(target.vi.state().unwrap(), ViState::Connected);
}

#[test]
fn safe_api_changes_attributes_and_keeps_tags_alive() {
    let (mut client, mut server) = (Endpoint::new(), Endpoint::new());
    let tag = server.nic.create_ptag().unwrap();
    let mut memory = server.region(100, RdmaAccess::default());
    server.post_receives(1, 10);
    assert_eq!(
        server.vi.change().ptag(&tag).apply(),
        Err(VipError::InvalidState),
        "a receive is posted with the old tag"
    );
    server.vi.change().rdma_write(true).apply().unwrap();
    server.vi.disconnect().unwrap();
    drop(server.recv());
    let too_long = server.nic.attributes().max_transfer_size + 1;
    let change = server.vi.change().ptag(&tag).max_transfer_bytes(too_long);
    assert_eq!(change.apply(), Err(VipError::InvalidMtu));
    // Still with the old tag.
    server.post_receives(1, 1);
    server.vi.disconnect().unwrap();
    drop(server.recv());
    for vi in [&mut client.vi, &mut server.vi] {
        vi.change()
            .reliability(ReliabilityLevel::UnreliableDelivery)
            .max_transfer_bytes(5000)
            .apply()
            .unwrap();
    }
    server.vi.change().ptag(&tag).apply().unwrap();
    memory.set_ptag(&tag).unwrap();
    memory.set_access(WRITABLE).unwrap();
    let info = server.vi.info().unwrap().attributes;
    let found = (info.ptag, info.max_transfer_bytes, info.rdma_write);
    assert_eq!(found, (Some(tag.handle()), 5000, true));
    // VI and memory keep the tag after the program drops it.
    let mut plain = server.nic.create_region(64, &server.ptag).unwrap();
    plain.set_ptag(&tag).unwrap();
    assert_eq!(plain.attributes().unwrap().ptag, Some(tag.handle()));
    drop((tag, plain));
    let refused = server.vi.post_recv(server.descriptor(1)).unwrap_err();
    assert_eq!(refused.error, VipError::InvalidPtag, "now the new tag");
    common::connect(&client, &server);
    let long = client.send(client.message(&[0; 5001]));
    assert!(long.status.is_length_error(), "the new limit");
    let write = client.write_of(b"written", memory.remote_buffer());
    assert!(client.send(write).status.is_ok());
    let mut seen = [0; 7];
    wait_until("the write arrives", || {
        server.vi.state().unwrap();
        memory.read(0, &mut seen);
        seen == *b"written"
    });
}

#[test]
fn other_hosts_are_discovered_within_the_given_hops() {
    let other = "192.0.2.9".parse().unwrap();
    let named = |takeover_us| {
        open_as(|config| {
            config.network = Network::segment(format!("discovery-{}", std::process::id()));
            config.progress = Progress::inline(takeover_us);
            config.addressing = Addressing::Static(Static {
                n_port_ids: String::new(),
                neighbour: vec![NeighbourConfig {
                    host: other,
                    n_port_ids: "00.05.01".into(),
                }],
            });
        })
    };
    let nic = named(1000);
    let own = nic.host_address();
    let other = pmd::config::host_address(other);
    assert_eq!(
        nic.autodiscovery(1),
        Ok(vec![other]),
        "alone in the segment"
    );
    let (second, third) = (named(2000), named(3000));
    assert_eq!(nic.autodiscovery(1), Ok(vec![own, other]), "each host once");
    assert_eq!(second.autodiscovery(u64::MAX), Ok(vec![own, other]));
    assert_eq!(nic.autodiscovery(0), Ok(vec![]), "no host within 0 hops");
    drop((second, third));
    assert_eq!(nic.autodiscovery(1), Ok(vec![other]));
    let handle = nic.handle();
    drop(nic);
    assert_eq!(
        vip::autodiscovery(handle, 1),
        Err(VipError::InvalidParameter)
    );
}
