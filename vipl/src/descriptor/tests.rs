//! Descriptors whose registered memory is overwritten while they are posted.

use std::thread;
use std::time::Duration;

use pmd::config::{Network, NicConfig};

use super::*;
use crate::{MemAttributes, Nic, ReliabilityLevel, Timeout, Vi, provider};

const TIMEOUT: Timeout = Timeout::After(Duration::from_secs(20));

fn connect(nic: &Nic, client: &Vi, server: &Vi) {
    let (local, remote) = (
        nic.local_address(b"client").unwrap(),
        nic.local_address(b"server").unwrap(),
    );
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut request = nic.connect_wait(&remote, TIMEOUT).unwrap();
            request.accept(server).unwrap();
        });
        while let Err(error) = client.connect(&local, &remote, TIMEOUT) {
            assert_eq!(error, VipError::NoMatch);
        }
    });
}

fn with_buffer(nic: &Nic, ptag: &Ptag, buffer_bytes: usize) -> Descriptor {
    let mut descriptor = nic.create_descriptors(1, 1, ptag).unwrap().remove(0);
    let buffer = nic.create_region(buffer_bytes, ptag).unwrap().into_buffer();
    descriptor.push(buffer).unwrap();
    descriptor
}

/// A program that allows peers to write its descriptors violates the contract of an unsafe call and damages its
/// messages. The library still does not dereference an address that a peer has written.
#[test]
fn posted_descriptor_overwritten_by_rdma_write_completes_with_its_buffer() {
    let nic = Nic::open_with(&NicConfig {
        network: Network::segment(format!("descriptor-test-{}", std::process::id())),
        ..NicConfig::default()
    })
    .unwrap();
    let ptag = nic.create_ptag().unwrap();
    let vi = || {
        nic.vi(&ptag)
            .reliability(ReliabilityLevel::ReliableReception)
    };
    let (writer, target) = (
        vi().build().unwrap(),
        vi().rdma_write(true).build().unwrap(),
    );
    let idle = vi().build().unwrap();
    connect(&nic, &writer, &target);

    let posted = with_buffer(&nic, &ptag, 100);
    let (page, handle) = (posted.owner.slot.address_bits(), posted.owner.slot.handle());
    let attributes = MemAttributes {
        ptag: Some(ptag.handle()),
        rdma_write: true,
        rdma_read: false,
    };
    // SAFETY: no reference to the memory of descriptors is ever created.
    unsafe { provider::set_mem_attributes(nic.handle(), page, handle, &attributes) }.unwrap();
    idle.post_recv(posted).unwrap();

    // The whole registered page: before and after the descriptor, and the descriptor itself.
    let mut write = with_buffer(&nic, &ptag, 4096);
    write.buffer_mut(0).fill(0x41);
    write.set_operation(Operation::RdmaWrite(RemoteBuffer {
        address: page,
        handle,
    }));
    writer.post_send(write).unwrap();
    let written = writer
        .send_wait(TIMEOUT)
        .unwrap()
        .expect("a write was posted");
    assert!(written.status.is_ok(), "{:?}", written.status);

    idle.disconnect().unwrap();
    let flushed = idle.recv_done().unwrap().expect("a receive was posted");
    assert!(flushed.status.is_flushed());
    assert_eq!(flushed.descriptor.buffer(0), [0; 100]);
    assert_eq!(flushed.descriptor.max_segments(), 1);
    idle.post_recv(flushed.descriptor).unwrap();
    idle.disconnect().unwrap();
    assert!(idle.recv_done().unwrap().is_some(), "usable again");
}
