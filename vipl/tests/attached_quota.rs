//! What a datapath process allows a program, as the program meets it.

mod common;

use std::sync::mpsc::channel;

use common::datapath::{DatapathProcess, has_served};
use common::raw::Pages;
use common::{PATIENCE, pair_on};
use vipl::{
    Done, ErrorCode, MemAttributes, Nic, RawDescriptor, ResourceCode, SharedMemory, ViState,
    VipError, provider,
};

const PAGE_BYTES: usize = 4096;

#[test]
fn a_post_beyond_the_quota_is_given_back_and_the_connection_lives() {
    if has_served() {
        return;
    }
    const MOST: usize = 6;
    let process = DatapathProcess::start(
        "a_post_beyond_the_quota_is_given_back_and_the_connection_lives",
        "[process.quota]\nmax_descriptors = 6",
    );
    let attach = || Nic::attach(&process.socket(), "VINIC0").unwrap();
    let (client, server) = pair_on(attach(), attach());
    for _ in 1..MOST {
        server.vi.post_recv(server.room(64)).unwrap();
    }
    // A send is the last one that is allowed, again and again.
    for message in 0..1000u32 {
        let bytes = message.to_ne_bytes();
        client.send(client.message(&bytes)).ok().unwrap();
        let arrived = server.recv().ok().unwrap();
        assert_eq!(arrived.first_bytes(), bytes);
        let mut descriptor = arrived.descriptor;
        descriptor.set_used_bytes(0, 64);
        server.vi.post_recv(descriptor).unwrap();
    }
    server.vi.post_recv(server.room(64)).unwrap();
    for _ in 0..3 {
        let refused = server.vi.post_recv(server.room(64)).unwrap_err();
        assert_eq!(refused.error, VipError::ErrorResource);
        let message = client.message(b"more");
        let refused = client.vi.post_send(message).unwrap_err();
        assert_eq!(refused.error, VipError::ErrorResource);
    }
    for end in [&client, &server] {
        assert_eq!(end.vi.state(), Ok(ViState::Connected));
    }
    // What comes back is there to be posted again.
    server.vi.disconnect().unwrap();
    for _ in 0..MOST {
        let flushed = server.vi.recv_done().unwrap().unwrap();
        assert!(flushed.ok().is_err());
    }
    for _ in 0..MOST {
        server.vi.post_recv(server.room(64)).unwrap();
    }
    assert!(server.vi.post_recv(server.room(64)).is_err());
    drop((client, server));
    process.stop();
}

#[test]
fn post_beyond_the_quota_by_handle_is_an_overrun_of_its_vi() {
    if has_served() {
        return;
    }
    const MOST: usize = 6;
    let process = DatapathProcess::start(
        "post_beyond_the_quota_by_handle_is_an_overrun_of_its_vi",
        "[process.quota]\nmax_descriptors = 6",
    );
    let nic = Nic::attach(&process.socket(), "VINIC0").unwrap();
    let ptag = nic.create_ptag().unwrap();
    let (vi, other) = (
        nic.vi(&ptag).build().unwrap(),
        nic.vi(&ptag).build().unwrap(),
    );
    let memory = Pages::new(1);
    let region = memory
        .register(nic.handle(), Some(ptag.handle()), false)
        .unwrap();
    let (sender, told) = channel();
    nic.set_error_handler(move |error| {
        let what = (error.code, error.resource, error.op_code);
        let told = (what, error.vi, error.descriptor as u64);
        sender.send(told).expect("the test waits");
    })
    .unwrap();
    let post = |slot: usize| {
        let at = memory.at(slot * 64) as *mut RawDescriptor;
        // SAFETY: the page stays mapped, and is left alone until the descriptors have come back.
        unsafe { provider::post_recv(vi.handle(), at, region) }
    };
    for slot in 0..MOST {
        post(slot).unwrap();
    }
    assert_eq!(vi.state(), Ok(ViState::Idle));
    assert_eq!(post(MOST), Ok(()), "as the guide has it (3.5.4)");
    let (what, of, descriptor) = told.recv_timeout(PATIENCE).expect("an error");
    assert_eq!(what, (ErrorCode::ViOverrun, ResourceCode::Vi, 1));
    assert_eq!((of, descriptor), (Some(vi.handle()), memory.at(MOST * 64)));
    assert_eq!(
        (vi.state(), other.state()),
        (Ok(ViState::Error), Ok(ViState::Idle))
    );
    // All that were posted come back, and are there to be posted again.
    vi.disconnect().unwrap();
    for _ in 0..MOST {
        let done = provider::recv_done(vi.handle()).unwrap();
        assert!(matches!(done, Done::Completed { .. }), "{done:?}");
    }
    for slot in 0..MOST {
        post(slot).unwrap();
    }
    assert_eq!(vi.state(), Ok(ViState::Idle));
    provider::close_nic(nic.handle()).unwrap();
    process.stop();
}

#[test]
fn as_many_regions_as_the_quota_says_are_mapped_at_a_time() {
    if has_served() {
        return;
    }
    // More than a process could watch once, each mapped for itself.
    const MOST: usize = 6000;
    let process = DatapathProcess::start(
        "as_many_regions_as_the_quota_says_are_mapped_at_a_time",
        "foreign_memory = false\n[process.quota]\nmax_regions = 6000",
    );
    let nic = Nic::attach(&process.socket(), "VINIC0").unwrap();
    let ptag = nic.create_ptag().unwrap();
    let memory = SharedMemory::allocate((MOST + 1) * PAGE_BYTES).unwrap();
    let attributes = MemAttributes {
        ptag: Some(ptag.handle()),
        rdma_write: true,
        rdma_read: true,
    };
    let at = |page: usize| memory.address().as_ptr() as u64 + (page * PAGE_BYTES) as u64;
    let register = |page: usize| {
        let bytes = PAGE_BYTES as u64;
        // SAFETY: the memory outlives the registration.
        unsafe { provider::register_mem(nic.handle(), at(page), bytes, &attributes) }
    };
    let regions: Vec<_> = (0..MOST).map(|page| register(page).unwrap()).collect();
    assert_eq!(register(MOST).err(), Some(VipError::ErrorResource));
    for (page, region) in regions.into_iter().enumerate() {
        provider::deregister_mem(nic.handle(), at(page), region).unwrap();
    }
    let again = register(MOST).unwrap();
    provider::deregister_mem(nic.handle(), at(MOST), again).unwrap();
    drop((ptag, nic));
    process.stop();
}

#[test]
fn a_program_has_a_share_of_the_nic_by_default_and_is_told_how_much() {
    if has_served() {
        return;
    }
    const SHARE: usize = 16;
    let process = DatapathProcess::start_with(
        "a_program_has_a_share_of_the_nic_by_default_and_is_told_how_much",
        "port = \"shm\"\nsegment = \"attached\"\ndirectory = DIRECTORY\nmax_vi = 128\n",
        "",
    );
    let nic = Nic::attach(&process.socket(), "VINIC0").unwrap();
    let told = nic.attributes();
    assert_eq!(told.max_vi, SHARE as u64);
    assert_eq!((told.max_register_regions, told.max_ptags), (4096, 512));
    let ptag = nic.create_ptag().unwrap();
    let vis: Vec<_> = (0..SHARE).map(|_| nic.vi(&ptag).build().unwrap()).collect();
    let refused = nic.vi(&ptag).build().map(drop);
    assert_eq!(refused, Err(VipError::ErrorResource));
    drop((vis, ptag, nic));
    process.stop();
}

#[test]
fn one_user_has_so_many_places_and_no_more() {
    if has_served() {
        return;
    }
    let process = DatapathProcess::start(
        "one_user_has_so_many_places_and_no_more",
        "max_applications_per_user = 1\n[[nic]]\nname = \"OTHER\"\nport = \"shm\"\nsegment = \"other\"\ndirectory = DIRECTORY",
    );
    // A second opening is none of its own.
    let first = [(); 2].map(|()| Nic::attach(&process.socket(), "VINIC0").unwrap());
    let refused = Nic::attach(&process.socket(), "OTHER").map(drop);
    assert_eq!(refused, Err(VipError::ErrorResource));
    let why = provider::last_error().unwrap_or_default();
    assert!(why.contains("max_applications_per_user = 1"), "{why}");
    drop(first);
    common::persist_while(VipError::ErrorResource, || {
        Nic::attach(&process.socket(), "OTHER").map(drop)
    })
    .unwrap();
    process.stop();
}

#[test]
fn quota_that_is_used_up_is_named_with_its_value_and_use() {
    if has_served() {
        return;
    }
    let process = DatapathProcess::start(
        "quota_that_is_used_up_is_named_with_its_value_and_use",
        "[process.quota]\nmax_ptags = 2",
    );
    let nic = Nic::attach(&process.socket(), "VINIC0").unwrap();
    let tags = [(); 2].map(|()| nic.create_ptag().unwrap());
    assert_eq!(nic.create_ptag().err(), Some(VipError::ErrorResource));
    let expected = "VipCreatePtag: max_ptags = 2: 2 in use by this program, 1 wanted; raise \
                    max_ptags in [process.quota] of the datapath process";
    assert_eq!(provider::last_error().as_deref(), Some(expected));
    drop((tags, nic));
    process.stop();
}
