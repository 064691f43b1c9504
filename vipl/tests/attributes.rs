//! Changed attributes of existing VIs and memory: states, errors, atomicity, and the effect on transfers.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use common::raw::{PAGE_BYTES, Pages, RawEndpoint, attributes, connect, set_mem_attributes};
use common::{Endpoint, TIMEOUT, WAIT, config, open_as, unique_discriminator};
use pmd::descriptor::DataSegment;
use vi_types::status;
use vipl::{
    Discriminator, ErrorCode, HostAddress, MemAttributes, MemoryHandle, NetAddress, Operation,
    PtagHandle, RdmaAccess, ReliabilityLevel, ViAttributes, ViHandle, ViState, VipError,
    provider as vip,
};

fn raw_endpoint() -> RawEndpoint {
    RawEndpoint::new(&config(|_| ()))
}

fn errors_of(end: &RawEndpoint) -> Receiver<ErrorCode> {
    let (sender, errors) = channel();
    let report = move |error: &vipl::ErrorDescriptor| {
        // Fails if the test no longer uses the receiver.
        let _ = sender.send(error.code);
    };
    vip::error_callback(end.nic, Some(Box::new(report))).unwrap();
    errors
}

fn address(end: &RawEndpoint, discriminator: &[u8]) -> NetAddress {
    NetAddress {
        host: HostAddress(*vip::query_nic(end.nic).unwrap().local_nic_address),
        discriminator: Discriminator::new(discriminator).unwrap(),
    }
}

/// Collects all completed receives and returns their status words.
fn collect_receives(vi: ViHandle) -> Vec<u32> {
    let mut statuses = Vec::new();
    while let vipl::Done::Completed { status, .. } = vip::recv_done(vi).unwrap() {
        statuses.push(status);
    }
    statuses
}

#[test]
fn invalid_vi_attributes_change_nothing() {
    let end = raw_endpoint();
    let nic = vip::query_nic(end.nic).unwrap();
    let other = vip::create_ptag(end.nic).unwrap();
    let destroyed = vip::create_ptag(end.nic).unwrap();
    vip::destroy_ptag(end.nic, destroyed).unwrap();
    // Valid attributes that all differ from those of the VI; each case has one invalid attribute.
    let good = ViAttributes {
        reliability: ReliabilityLevel::UnreliableDelivery as u16,
        max_transfer_bytes: 1234,
        qos: 0,
        ptag: Some(other),
        rdma_write: false,
        rdma_read: false,
    };
    let level = |reliability| ViAttributes {
        reliability,
        ..good
    };
    let size = |max_transfer_bytes| ViAttributes {
        max_transfer_bytes,
        ..good
    };
    let tag = |ptag| ViAttributes { ptag, ..good };
    let wrong = [
        (level(0), VipError::InvalidReliabilityLevel),
        (level(3), VipError::InvalidReliabilityLevel),
        (level(8), VipError::InvalidReliabilityLevel),
        (size(0), VipError::InvalidMtu),
        (size(nic.max_transfer_size + 1), VipError::InvalidMtu),
        (size(u64::MAX), VipError::InvalidMtu),
        (ViAttributes { qos: 1, ..good }, VipError::InvalidQos),
        (tag(None), VipError::InvalidPtag),
        (tag(Some(destroyed)), VipError::InvalidPtag),
        (
            tag(Some(PtagHandle::from_raw(end.vi.into_raw()))),
            VipError::InvalidPtag,
        ),
        (
            // RDMA reads are never supported on unreliable connections.
            ViAttributes {
                rdma_read: true,
                ..good
            },
            VipError::InvalidRdmaRead,
        ),
    ];
    let before = vip::query_vi(end.vi).unwrap();
    for (wanted, error) in wrong {
        assert_eq!(
            vip::set_vi_attributes(end.vi, &wanted),
            Err(error),
            "{wanted:?}"
        );
        assert_eq!(vip::query_vi(end.vi).unwrap(), before, "{wanted:?}");
    }
    vip::set_vi_attributes(end.vi, &good).unwrap();
    assert_eq!(vip::query_vi(end.vi).unwrap().attributes, good);
    let invalid = ViHandle::from_raw(end.vi.into_raw() ^ 0x0100_0000);
    assert_eq!(
        vip::set_vi_attributes(invalid, &good),
        Err(VipError::InvalidParameter)
    );
    // The VI uses its new tag; only the memory uses the old one.
    assert_eq!(
        vip::destroy_ptag(end.nic, other),
        Err(VipError::ErrorResource)
    );
    vip::deregister_mem(end.nic, end.memory.at(0), end.handle).unwrap();
    vip::destroy_ptag(end.nic, end.ptag.unwrap()).unwrap();
}

#[test]
fn set_vi_attributes_requires_the_idle_state() {
    let (client, server) = (raw_endpoint(), raw_endpoint());
    let wanted = ViAttributes {
        max_transfer_bytes: 5000,
        ..attributes(client.ptag)
    };
    let refused = |state| {
        let before = vip::query_vi(client.vi).unwrap();
        assert_eq!(before.state, state);
        assert_eq!(
            vip::set_vi_attributes(client.vi, &wanted),
            Err(VipError::InvalidState)
        );
        // The state is checked before the attributes.
        let invalid = ViAttributes {
            reliability: 0,
            ..wanted
        };
        assert_eq!(
            vip::set_vi_attributes(client.vi, &invalid),
            Err(VipError::InvalidState)
        );
        assert_eq!(vip::query_vi(client.vi).unwrap(), before);
    };
    let (own, remote) = (
        address(&client, b"client"),
        address(&server, &unique_discriminator()),
    );
    thread::scope(|scope| {
        let request = scope.spawn(|| {
            common::retry_no_match(|| vip::connect_request(client.vi, &own, &remote, WAIT))
                .map(drop)
        });
        let incoming = vip::connect_wait(server.nic, &remote, WAIT).unwrap();
        refused(ViState::ConnectPending);
        vip::connect_reject(incoming.conn).unwrap();
        assert_eq!(request.join().unwrap(), Err(VipError::Reject));
    });
    connect(&client, &server);
    refused(ViState::Connected);
    vip::disconnect(server.vi).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while vip::query_vi(client.vi).unwrap().state == ViState::Connected {
        assert!(Instant::now() < deadline, "the disconnect is not detected");
    }
    refused(ViState::Error);
    vip::disconnect(client.vi).unwrap();
    vip::set_vi_attributes(client.vi, &wanted).unwrap();
    assert_eq!(vip::query_vi(client.vi).unwrap().attributes, wanted);
}

#[test]
fn next_connection_uses_the_changed_attributes() {
    let (client, server) = (raw_endpoint(), raw_endpoint());
    let changed = |end: &RawEndpoint| ViAttributes {
        reliability: ReliabilityLevel::UnreliableDelivery as u16,
        max_transfer_bytes: 100,
        rdma_write: false,
        ..attributes(end.ptag)
    };
    vip::set_vi_attributes(client.vi, &changed(&client)).unwrap();
    let (own, remote) = (
        address(&client, b"client"),
        address(&server, &unique_discriminator()),
    );
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = vip::connect_wait(server.nic, &remote, WAIT).unwrap();
            let expected = ViAttributes {
                ptag: None,
                ..changed(&client)
            };
            assert_eq!(request.attributes, expected);
            // The attributes must match, so the server changes those of its VI before it accepts.
            assert_eq!(
                vip::connect_accept(request.conn, server.vi),
                Err(VipError::InvalidReliabilityLevel)
            );
            vip::set_vi_attributes(server.vi, &changed(&server)).unwrap();
            vip::connect_accept(request.conn, server.vi).unwrap();
        });
        common::retry_no_match(|| vip::connect_request(client.vi, &own, &remote, WAIT)).unwrap();
    });
    server.post_recv(0, &[server.segment(0, 100)]);
    client.post_send(0, &[client.segment(0, 101)]);
    assert_ne!(client.sent() & status::LENGTH_ERROR, 0, "the new limit");
    client.post_send(1, &[client.segment(0, 100)]);
    assert_eq!(client.sent() & status::ERROR_MASK, 0);
    assert_eq!(server.received() & status::ERROR_MASK, 0);
}

/// A receive that was posted before the VI's tag changed is checked when a message claims it.
#[test]
fn posted_receive_is_checked_against_the_new_tag() {
    let retag = |end: &RawEndpoint, address: u64, handle: MemoryHandle, ptag| {
        let wanted = MemAttributes {
            ptag: Some(ptag),
            rdma_write: false,
            rdma_read: false,
        };
        set_mem_attributes(end.nic, address, handle, &wanted).unwrap();
    };
    for (retag_descriptor, retag_buffer) in [(true, true), (true, false), (false, false)] {
        let (client, server) = (raw_endpoint(), raw_endpoint());
        let errors = errors_of(&server);
        let buffer = Pages::new(1);
        let handle = buffer.register(server.nic, server.ptag, false).unwrap();
        server.post_recv(
            0,
            &[DataSegment {
                address: buffer.at(0),
                handle: handle.0,
                length: 8,
            }],
        );
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
            assert_eq!(
                received & status::PROTECTION_ERROR == 0,
                retag_buffer,
                "{received:#x}"
            );
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
fn invalid_memory_attributes_change_nothing() {
    let end = raw_endpoint();
    let at = end.memory.at(0);
    let destroyed = vip::create_ptag(end.nic).unwrap();
    vip::destroy_ptag(end.nic, destroyed).unwrap();
    let other = vip::create_ptag(end.nic).unwrap();
    let good = MemAttributes {
        ptag: Some(other),
        rdma_write: true,
        rdma_read: false,
    };
    let tag = |ptag| MemAttributes { ptag, ..good };
    let before = vip::query_mem(end.nic, at, end.handle).unwrap();
    let unchanged = || assert_eq!(vip::query_mem(end.nic, at, end.handle).unwrap(), before);
    for ptag in [
        None,
        Some(destroyed),
        Some(PtagHandle::from_raw(end.vi.into_raw())),
    ] {
        assert_eq!(
            set_mem_attributes(end.nic, at, end.handle, &tag(ptag)),
            Err(VipError::InvalidPtag)
        );
        unchanged();
    }
    if vip::query_nic(end.nic).unwrap().rdma_read_support == 0 {
        let readable = MemAttributes {
            rdma_read: true,
            ..good
        };
        assert_eq!(
            set_mem_attributes(end.nic, at, end.handle, &readable),
            Err(VipError::InvalidRdmaRead)
        );
        unchanged();
    }
    let other_handle = MemoryHandle(end.handle.0 ^ 0x0001_0000);
    for (address, handle) in [
        (at + 1, end.handle),
        (end.memory.at(PAGE_BYTES), end.handle),
        (0, end.handle),
        (at, other_handle),
        (at, MemoryHandle(0)),
        (at, MemoryHandle(u32::MAX)),
    ] {
        // The region is checked before the attributes.
        for wanted in [good, tag(None)] {
            assert_eq!(
                set_mem_attributes(end.nic, address, handle, &wanted),
                Err(VipError::InvalidParameter)
            );
        }
        unchanged();
    }
    let closed = vip::open_nic_with(&config(|_| ())).unwrap();
    vip::close_nic(closed).unwrap();
    assert_eq!(
        set_mem_attributes(closed, at, end.handle, &good),
        Err(VipError::InvalidParameter)
    );
    set_mem_attributes(end.nic, at, end.handle, &good).unwrap();
    assert_eq!(vip::query_mem(end.nic, at, end.handle).unwrap(), good);
    vip::deregister_mem(end.nic, at, end.handle).unwrap();
    assert_eq!(
        set_mem_attributes(end.nic, at, end.handle, &good),
        Err(VipError::InvalidParameter)
    );
}

#[test]
fn send_from_memory_of_another_tag_is_a_protection_error() {
    let (client, server) = (raw_endpoint(), raw_endpoint());
    connect(&client, &server);
    let source = Pages::new(1);
    let handle = source.register(client.nic, client.ptag, false).unwrap();
    let segment = DataSegment {
        address: source.at(0),
        handle: handle.0,
        length: 8,
    };
    let tag = |ptag| {
        let wanted = MemAttributes {
            ptag,
            rdma_write: false,
            rdma_read: false,
        };
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
    let memory = target
        .nic
        .create_rdma_region(BYTES, &target.ptag, access(true))
        .unwrap();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut message = 0;
            while !stop.load(Ordering::Relaxed) {
                message += 1;
                let mut descriptor = writer.message(&common::pattern(message, BYTES));
                descriptor.set_operation(Operation::RdmaWrite(memory.remote_buffer()));
                let sent = writer.send(descriptor);
                assert!(sent.status.is_ok(), "{}", sent.status);
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        let more_writes = |count| {
            let (from, deadline) = (written.load(Ordering::Relaxed), Instant::now() + TIMEOUT);
            while written.load(Ordering::Relaxed) < from + count {
                assert!(Instant::now() < deadline, "the writer stalls");
                // Polls the target.
                target.vi.state().unwrap();
            }
        };
        let bytes = || {
            let mut seen = vec![0; BYTES];
            memory.read(0, &mut seen);
            seen
        };
        for round in 0..40 {
            let before = bytes();
            let deadline = Instant::now() + TIMEOUT;
            while bytes() == before {
                assert!(Instant::now() < deadline, "round {round}: no write arrives");
                target.vi.state().unwrap();
            }
            memory.set_access(access(false)).unwrap();
            let revoked = bytes();
            more_writes(3);
            assert!(bytes() == revoked, "round {round}: written without a right");
            assert_eq!(target.errors.next_of(&target.vi), ErrorCode::RdmawProt);
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
    let mut memory = server
        .nic
        .create_rdma_region(100, &server.ptag, RdmaAccess::default())
        .unwrap();
    server.vi.post_recv(server.descriptor(10)).unwrap();
    assert_eq!(
        server.vi.change().ptag(&tag).apply(),
        Err(VipError::InvalidState),
        "a receive is posted with the old tag"
    );
    server.vi.change().rdma_write(true).apply().unwrap();
    server.vi.disconnect().unwrap();
    drop(server.recv());
    let too_long = server.nic.attributes().max_transfer_size + 1;
    assert_eq!(
        server
            .vi
            .change()
            .ptag(&tag)
            .max_transfer_bytes(too_long)
            .apply(),
        Err(VipError::InvalidMtu)
    );
    assert!(
        server.vi.post_recv(server.descriptor(1)).is_ok(),
        "still the old tag"
    );
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
    memory
        .set_access(RdmaAccess {
            write: true,
            read: false,
        })
        .unwrap();
    let info = server.vi.info().unwrap().attributes;
    assert_eq!(
        (info.ptag, info.max_transfer_bytes),
        (Some(tag.handle()), 5000)
    );
    assert!(info.rdma_write);
    // VI and memory keep the tag after the program drops it.
    let mut plain = server.nic.create_region(64, &server.ptag).unwrap();
    plain.set_ptag(&tag).unwrap();
    assert_eq!(plain.attributes().unwrap().ptag, Some(tag.handle()));
    drop((tag, plain));
    let refused = server.vi.post_recv(server.descriptor(1)).unwrap_err();
    assert_eq!(refused.error, VipError::InvalidPtag, "now the new tag");
    common::connect(&client, &server);
    let mut descriptor = client.message(b"written");
    descriptor.set_operation(Operation::RdmaWrite(memory.remote_buffer()));
    assert!(client.send(descriptor).status.is_ok());
    let deadline = Instant::now() + TIMEOUT;
    let mut seen = [0; 7];
    while seen != *b"written" {
        assert!(Instant::now() < deadline, "the write does not arrive");
        server.vi.state().unwrap();
        memory.read(0, &mut seen);
    }
}

#[test]
fn other_hosts_are_discovered_within_the_given_hops() {
    let other = "192.0.2.9".parse().unwrap();
    let named = |takeover_us| {
        open_as(|config| {
            config.segment = format!("discovery-{}", std::process::id());
            config.takeover_us = takeover_us;
            config.neighbour = vec![pmd::config::NeighbourConfig {
                host: other,
                n_port_ids: "00.05.01".into(),
            }];
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
