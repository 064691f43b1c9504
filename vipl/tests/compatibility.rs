//! Behaviour that programs written for other providers rely on (docs/spec/vipl-rules.md), if no other test checks it.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::raw::{Pages, RawEndpoint, attributes};
use common::{
    Endpoint, SecondProcess, TIMEOUT, WAIT, config, connect, open, pair, retry_no_match, segment,
    unique_discriminator,
};
use vi_types::status;
use vipl::{
    Done, MemAttributes, Nic, ReliabilityLevel, Timeout, ViState, VipError, provider as vip,
};

#[test]
fn nic_attributes_fit_an_int_and_the_address_stays_valid() {
    let nic = vip::open_nic_with(&config(|_| ())).unwrap();
    let attributes = vip::query_nic(nic).unwrap();
    for number in [
        attributes.max_register_bytes,
        attributes.max_register_regions,
        attributes.max_register_block_bytes,
        attributes.max_vi,
        attributes.max_descriptors_per_queue,
        attributes.max_segments_per_desc,
        attributes.max_cq,
        attributes.max_cq_entries,
        attributes.max_transfer_size,
        attributes.native_mtu,
        attributes.max_ptags,
    ] {
        assert!((1..=i32::MAX as u64).contains(&number), "{attributes:?}");
    }
    assert!(attributes.max_transfer_size >= 128 * 1024 && attributes.nic_address_len <= 24);
    assert!(attributes.max_segments_per_desc >= 252 && attributes.max_discriminator_len >= 16);
    assert!(attributes.max_ptags >= attributes.max_vi);
    assert_eq!(
        usize::from(attributes.nic_address_len),
        attributes.local_nic_address.len()
    );
    let before = *attributes.local_nic_address;
    for _ in 0..10 {
        drop(open());
        assert_eq!(*attributes.local_nic_address, before);
    }
    vip::close_nic(nic).unwrap();
}

#[test]
fn advertised_reliability_levels_work() {
    let levels = [
        ReliabilityLevel::UnreliableDelivery,
        ReliabilityLevel::ReliableDelivery,
        ReliabilityLevel::ReliableReception,
    ];
    let nic = open();
    for level in levels {
        let advertised = nic.attributes().reliability_level_support & level as u16 != 0;
        let ptag = nic.create_ptag().unwrap();
        let made = nic.vi(&ptag).reliability(level).build();
        if !advertised {
            assert_eq!(made.unwrap_err(), VipError::InvalidReliabilityLevel);
            continue;
        }
        let (client, server) = (
            Endpoint::with(|vi| vi.reliability(level)),
            Endpoint::with(|vi| vi.reliability(level)),
        );
        connect(&client, &server);
        server.vi.post_recv(server.descriptor(8)).unwrap();
        client.send(client.message(b"12345678")).ok().unwrap();
        assert_eq!(server.recv().ok().unwrap().first_bytes(), b"12345678");
    }
}

#[test]
fn tags_and_regions_are_valid_for_vis_of_other_nic_handles() {
    let (first, second) = (
        vip::open_nic_with(&config(|_| ())).unwrap(),
        vip::open_nic_with(&config(|_| ())).unwrap(),
    );
    assert_ne!(first, second, "each open returns a different handle");
    // A tag of the first handle, a region of the second with it, a VI of the first, a peer of the second.
    let tag = vip::create_ptag(first).unwrap();
    let memory = Pages::new(1);
    let region = memory.register(second, Some(tag), false).unwrap();
    assert_ne!(region.0, 0);
    let (client, server) = (
        RawEndpoint::of(first, Some(tag)),
        RawEndpoint::of(second, Some(tag)),
    );
    common::raw::connect(&client, &server);
    memory.write(0, b"shared");
    server.post_recv(0, &[server.segment(0, 6)]);
    let source = pmd::descriptor::DataSegment {
        address: memory.at(0),
        handle: region.0,
        length: 6,
    };
    client.post_send(0, &[source]);
    assert_eq!(server.received() & status::ERROR_MASK, 0);
    let found = vip::query_mem(first, memory.at(0), region).unwrap();
    assert_eq!(found.ptag, Some(tag));
    vip::deregister_mem(first, memory.at(0), region).unwrap();
}

#[test]
fn repeated_request_without_listener_is_no_match_at_once() {
    const REQUESTS: u32 = 2000;
    let (client, server) = (
        Endpoint::new(),
        Endpoint::on(common::open_as(|config| config.takeover_us = 900), |vi| vi),
    );
    let remote = server.nic.local_address(&unique_discriminator()).unwrap();
    let own = client.nic.local_address(b"client").unwrap();
    let begun = Instant::now();
    for _ in 0..REQUESTS {
        let refused = client.vi.connect(&own, &remote, Timeout::Infinite);
        assert_eq!(refused.unwrap_err(), VipError::NoMatch);
        // The server polls, as a program before its wait call.
        assert_eq!(server.vi.recv_done().unwrap().map(drop), None);
    }
    assert!(begun.elapsed() < TIMEOUT / 2, "{:?}", begun.elapsed());
    thread::scope(|scope| {
        scope.spawn(|| {
            server
                .nic
                .connect_wait(&remote, WAIT)
                .unwrap()
                .accept(&server.vi)
                .unwrap()
        });
        retry_no_match(|| client.vi.connect(&own, &remote, Timeout::Infinite)).unwrap();
    });
}

#[test]
fn empty_queue_is_reported_and_teardown_succeeds_at_once() {
    let nic = vip::open_nic_with(&config(|_| ())).unwrap();
    let ptag = vip::create_ptag(nic).unwrap();
    let cq = vip::create_cq(nic, 1).unwrap();
    let vi = vip::create_vi(nic, &attributes(Some(ptag)), None, Some(cq)).unwrap();
    assert_eq!(vip::send_done(vi), Ok(Done::Empty));
    assert_eq!(vip::recv_done(vi), Ok(Done::Empty));
    assert_eq!(vip::send_wait(vi, Timeout::Infinite), Ok(Done::Empty));
    vip::disconnect(vi).unwrap();
    vip::disconnect(vi).unwrap();
    vip::destroy_vi(vi).unwrap();
    vip::destroy_cq(cq).unwrap();
    vip::destroy_ptag(nic, ptag).unwrap();
    vip::close_nic(nic).unwrap();
    assert_eq!(
        vip::close_nic(nic),
        Err(VipError::InvalidParameter),
        "already closed"
    );
}

#[test]
fn close_nic_releases_all_its_objects() {
    let config = config(|config| {
        config.max_vi = 2;
        config.max_cq = 1;
        config.max_ptags = 2;
        config.max_regions = 2;
    });
    // A second handle keeps the NIC open, so that objects must be released by the close of the first.
    let second_handle = vip::open_nic_with(&config).unwrap();
    for _ in 0..5 {
        let nic = vip::open_nic_with(&config).unwrap();
        let ptag = vip::create_ptag(nic).unwrap();
        let cq = vip::create_cq(nic, 1).unwrap();
        let end = RawEndpoint::of(nic, Some(ptag));
        vip::create_vi(nic, &attributes(Some(ptag)), Some(cq), None).unwrap();
        end.post_recv(0, &[end.segment(0, 8)]);
        vip::close_nic(nic).unwrap();
        assert_eq!(
            vip::query_vi(end.vi).unwrap_err(),
            VipError::InvalidParameter
        );
        assert_eq!(vip::cq_done(cq), Err(VipError::InvalidParameter));
        let old = vip::query_mem(second_handle, end.memory.at(0), end.handle);
        assert_eq!(old.unwrap_err(), VipError::InvalidParameter);
        // The memory is no longer used by the library.
        end.memory.make_read_only();
    }
    vip::close_nic(second_handle).unwrap();
}

#[test]
fn registration_is_cheap_of_any_alignment_and_may_overlap() {
    const ROUNDS: u32 = 5000;
    let nic = vip::open_nic_with(&config(|_| ())).unwrap();
    let ptag = vip::create_ptag(nic).unwrap();
    let attributes = MemAttributes {
        ptag: Some(ptag),
        rdma_write: false,
        rdma_read: false,
    };
    let memory = Pages::new(8);
    let whole = memory.register(nic, Some(ptag), false).unwrap();
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let at = memory.at(round as usize % 8000);
        let length = u64::from(1 + round % 5000);
        // SAFETY: the memory stays mapped to the end of the test.
        let part = unsafe { vip::register_mem(nic, at, length, &attributes) }.unwrap();
        assert!(part.0 != 0 && part != whole);
        vip::deregister_mem(nic, at, part).unwrap();
    }
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "{ROUNDS} registrations in {took:?}"
    );
    assert_eq!(
        vip::query_mem(nic, memory.at(0), whole),
        Ok(attributes),
        "the first registration is unchanged"
    );
    // SAFETY: as above.
    let empty = unsafe { vip::register_mem(nic, memory.at(0), 0, &attributes) };
    assert_eq!(empty, Err(VipError::InvalidParameter));
    vip::close_nic(nic).unwrap();
}

#[test]
fn the_name_service_may_be_shut_down_while_the_nic_is_used() {
    let hosts = std::env::temp_dir().join(format!("viaduct-rules-hosts-{}", std::process::id()));
    std::fs::write(&hosts, "192.0.2.9 in-no-other-file\n").unwrap();
    let (client, server) = pair();
    client.nic.name_service(Some(&hosts)).unwrap();
    std::fs::remove_file(&hosts).unwrap();
    assert!(client.nic.host_by_name("in-no-other-file", 0).is_ok());
    client.nic.shut_down_name_service().unwrap();
    server.vi.post_recv(server.descriptor(8)).unwrap();
    client.send(client.message(b"in order")).ok().unwrap();
    assert_eq!(server.recv().ok().unwrap().first_bytes(), b"in order");
    assert_eq!(client.vi.state().unwrap(), ViState::Connected);
}

#[test]
fn nic_is_found_by_index_name_or_alias_only() {
    const MARK: &str = "VIPL_TEST_NAMES";
    if std::env::var_os(MARK).is_some() {
        for known in ["VINIC", "VINIC0", "VINIC1", "second", "clan0"] {
            drop(Nic::open(known).unwrap_or_else(|error| panic!("{known}: {error}")));
        }
        // Programs increment the number until a name is unknown.
        for unknown in ["VINIC2", "clan1", "", "vinic0"] {
            let refused = Nic::open(unknown).unwrap_err();
            assert_eq!(refused, VipError::InvalidParameter, "{unknown}");
        }
        return;
    }
    let file = std::env::temp_dir().join(format!("viaduct-rules-{}.toml", std::process::id()));
    let text = format!(
        "[[nic]]\nsegment = \"{0}\"\n[[nic]]\nname = \"second\"\nsegment = \"{0}\"\n[alias]\nclan0 = \"second\"\n",
        segment()
    );
    std::fs::write(&file, text).unwrap();
    SecondProcess::start_with("nic_is_found_by_index_name_or_alias_only", |command| {
        command.env("VIADUCT_CONFIG", &file).env(MARK, "1");
    })
    .join();
    std::fs::remove_file(&file).unwrap();
}
