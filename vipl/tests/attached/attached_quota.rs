//! Quotas of a datapath process, as its applications observe them.

use crate::common;
use std::sync::mpsc::channel;

use crate::common::datapath::{SHM, with_process, with_process_of};
use crate::common::raw::{self, Pages};
use crate::common::{READ_WRITE, TIMEOUT, pair_on};
use vipl::{
    Done, ErrorCode, Nic, RawDescriptor, ResourceCode, SharedMemory, ViState, VipError, provider,
};

const PAGE_BYTES: usize = 4096;

#[test]
fn post_beyond_the_quota_returns_the_descriptor_and_keeps_connected() {
    const LIMIT: usize = 6;
    let test = "post_beyond_the_quota_returns_the_descriptor_and_keeps_connected";
    with_process(test, "[process.quota]\nmax_descriptors = 6", |process| {
        let (client, server) = pair_on(process.attach(), process.attach());
        server.post_receives(LIMIT - 1, 64);
        // Each send uses the last descriptor of the quota.
        for message in 0..1000u32 {
            let bytes = message.to_ne_bytes();
            client.send_bytes(&bytes);
            let mut descriptor = server.expect_message(&bytes);
            descriptor.set_used_bytes(0, 64);
            server.vi.post_recv(descriptor).unwrap();
        }
        server.post_receives(1, 64);
        for _ in 0..3 {
            let refused = server.vi.post_recv(server.descriptor(64)).unwrap_err();
            assert_eq!(refused.error, VipError::ErrorResource);
            let message = client.message(b"more");
            let refused = client.vi.post_send(message).unwrap_err();
            assert_eq!(refused.error, VipError::ErrorResource);
        }
        for end in [&client, &server] {
            assert_eq!(end.vi.state(), Ok(ViState::Connected));
        }
        // Returned descriptors can be posted again.
        server.vi.disconnect().unwrap();
        for _ in 0..LIMIT {
            let flushed = server.vi.recv_done().unwrap().unwrap();
            assert!(flushed.ok().is_err());
        }
        server.post_receives(LIMIT, 64);
        assert!(server.vi.post_recv(server.descriptor(64)).is_err());
    });
}

/// Otherwise descriptors of many segments would take memory of the process that no quota bounds.
#[test]
fn descriptor_counts_once_for_each_four_of_its_segments() {
    const SEGMENTS: usize = 250;
    let test = "descriptor_counts_once_for_each_four_of_its_segments";
    with_process(test, "[process.quota]\nmax_descriptors = 70", |process| {
        let nic = process.attach();
        let ptag = nic.create_ptag().unwrap();
        let vi = nic.vi(&ptag).build().unwrap();
        let descriptor = |segments: usize| {
            let mut made = nic.create_descriptors(1, SEGMENTS, &ptag).unwrap();
            let mut descriptor = made.pop().unwrap();
            for buffer in nic.create_buffers(segments, 64, &ptag).unwrap() {
                assert!(descriptor.push(buffer).is_ok());
            }
            descriptor
        };
        for _ in 0..2 {
            // They count as 63, 6 and 1.
            for segments in [SEGMENTS, 24, 4] {
                vi.post_recv(descriptor(segments)).unwrap();
            }
            for segments in [1, SEGMENTS] {
                let refused = vi.post_recv(descriptor(segments)).unwrap_err();
                assert_eq!(refused.error, VipError::ErrorResource);
            }
            vi.disconnect().unwrap();
            for _ in 0..3 {
                assert!(vi.recv_done().unwrap().unwrap().status.is_flushed());
            }
        }
    });
}

#[test]
fn post_beyond_the_quota_by_handle_is_an_overrun_of_its_vi() {
    const LIMIT: usize = 6;
    let test = "post_beyond_the_quota_by_handle_is_an_overrun_of_its_vi";
    with_process(test, "[process.quota]\nmax_descriptors = 6", |process| {
        let nic = process.attach();
        let ptag = nic.create_ptag().unwrap();
        let (vi, other) = (
            nic.vi(&ptag).build().unwrap(),
            nic.vi(&ptag).build().unwrap(),
        );
        let memory = Pages::new(1);
        let region = memory.register(nic.handle(), Some(ptag.handle()));
        let region = region.unwrap();
        let (sender, reports) = channel();
        nic.set_error_handler(move |error| {
            let what = (error.code, error.resource, error.op_code);
            let report = (what, error.vi, error.descriptor as u64);
            sender.send(report).expect("the test waits");
        })
        .unwrap();
        let post = |slot: usize| {
            let at = memory.at(slot * 64) as *mut RawDescriptor;
            // SAFETY: the page stays mapped, and is not accessed until the descriptors are returned.
            unsafe { provider::post_recv(vi.handle(), at, region) }
        };
        for slot in 0..LIMIT {
            post(slot).unwrap();
        }
        assert_eq!(vi.state(), Ok(ViState::Idle));
        assert_eq!(post(LIMIT), Ok(()), "VIPL 3.5.4");
        let (what, of, descriptor) = reports.recv_timeout(TIMEOUT).expect("an error");
        assert_eq!(what, (ErrorCode::ViOverrun, ResourceCode::Vi, 1));
        assert_eq!((of, descriptor), (Some(vi.handle()), memory.at(LIMIT * 64)));
        assert_eq!(
            (vi.state(), other.state()),
            (Ok(ViState::Error), Ok(ViState::Idle))
        );
        // All posted descriptors are returned, and can be posted again.
        vi.disconnect().unwrap();
        for _ in 0..LIMIT {
            let done = provider::recv_done(vi.handle()).unwrap();
            assert!(matches!(done, Done::Completed { .. }), "{done:?}");
        }
        for slot in 0..LIMIT {
            post(slot).unwrap();
        }
        assert_eq!(vi.state(), Ok(ViState::Idle));
        provider::close_nic(nic.handle()).unwrap();
    });
}

#[test]
fn regions_up_to_the_quota_are_mapped_at_once() {
    // More than a process can monitor if each is mapped separately.
    const LIMIT: usize = 6000;
    let test = "regions_up_to_the_quota_are_mapped_at_once";
    let quota = "foreign_memory = false\n[process.quota]\nmax_regions = 6000";
    with_process(test, quota, |process| {
        let nic = process.attach();
        let ptag = nic.create_ptag().unwrap();
        let memory = SharedMemory::allocate((LIMIT + 1) * PAGE_BYTES).unwrap();
        let at = |page: usize| memory.address().as_ptr() as u64 + (page * PAGE_BYTES) as u64;
        let register = |page: usize| {
            let (nic, ptag) = (nic.handle(), Some(ptag.handle()));
            raw::register(nic, ptag, at(page), PAGE_BYTES, READ_WRITE)
        };
        let regions: Vec<_> = (0..LIMIT).map(|page| register(page).unwrap()).collect();
        assert_eq!(register(LIMIT).err(), Some(VipError::ErrorResource));
        for (page, region) in regions.into_iter().enumerate() {
            provider::deregister_mem(nic.handle(), at(page), region).unwrap();
        }
        let again = register(LIMIT).unwrap();
        provider::deregister_mem(nic.handle(), at(LIMIT), again).unwrap();
    });
}

#[test]
fn default_quota_is_a_share_of_the_nic_and_is_reported() {
    const SHARE: usize = 16;
    let test = "default_quota_is_a_share_of_the_nic_and_is_reported";
    with_process_of(
        test,
        &format!("{SHM}limits.max_vi = 128\n"),
        "",
        |process| {
            let nic = process.attach();
            let attributes = nic.attributes();
            assert_eq!(attributes.max_vi, SHARE as u64);
            assert_eq!(
                (attributes.max_register_regions, attributes.max_ptags),
                (4096, 512)
            );
            let ptag = nic.create_ptag().unwrap();
            let _vis: Vec<_> = (0..SHARE).map(|_| nic.vi(&ptag).build().unwrap()).collect();
            let refused = nic.vi(&ptag).build().map(drop);
            assert_eq!(refused, Err(VipError::ErrorResource));
        },
    );
}

#[test]
fn attach_above_max_applications_per_user_is_refused() {
    let test = "attach_above_max_applications_per_user_is_refused";
    let other = format!("max_applications_per_user = 1\n[[nic]]\nname = \"OTHER\"\n{SHM}");
    with_process(test, &other, |process| {
        // A second NIC handle of one process is the same application.
        let first = [(); 2].map(|()| process.attach());
        let refused = Nic::attach(&process.socket(), "OTHER").map(drop);
        assert_eq!(refused, Err(VipError::ErrorResource));
        let message = provider::last_error().unwrap_or_default();
        assert!(
            message.contains("max_applications_per_user = 1"),
            "{message}"
        );
        drop(first);
        common::retry_while(VipError::ErrorResource, || {
            Nic::attach(&process.socket(), "OTHER").map(drop)
        })
        .unwrap();
    });
}

#[test]
fn exhausted_quota_error_names_key_value_and_use() {
    let test = "exhausted_quota_error_names_key_value_and_use";
    with_process(test, "[process.quota]\nmax_ptags = 2", |process| {
        let nic = process.attach();
        let _tags = [(); 2].map(|()| nic.create_ptag().unwrap());
        assert_eq!(nic.create_ptag().err(), Some(VipError::ErrorResource));
        let expected = "VipCreatePtag: max_ptags = 2: 2 in use by this program, 1 requested; raise \
                        max_ptags in [process.quota] of the datapath process";
        assert_eq!(provider::last_error().as_deref(), Some(expected));
    });
}
