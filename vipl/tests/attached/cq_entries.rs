//! Entries of completion queues whose descriptor was collected directly, whose VI is destroyed, or that overrun it.

use std::sync::mpsc::channel;

use crate::common::datapath::with_process_of;
use crate::common::{Endpoint, TIMEOUT, WAIT, connect, counter, open_as, pattern};
use vipl::{Completed, CqEntry, Nic, Timeout, Vi, VipError, provider as vip};

/// Maximum of posted descriptors on each work queue.
const DEPTH: usize = 8;
/// Keys of a NIC of a datapath process with the same limits as [`small_queues`].
const SMALL_QUEUES: &str = "shm.segment = \"attached\"\nshm.directory = DIRECTORY\n\
                            fc_vi.e_d_tov_ms = 60000\nfc_vi.silent_port_ms = 60000\n\
                            limits.max_descriptors_per_queue = 8\n";

/// Opens a NIC with small work queues. The name makes it different from the NICs of other tests.
fn small_queues(name: &str) -> Nic {
    open_as(|config| {
        config.name = name.to_owned();
        config.limits.max_descriptors_per_queue = DEPTH as u32;
    })
}

/// Number of entries that full completion queues of this NIC have dropped.
fn overruns(nic: &Nic) -> u64 {
    counter(nic.handle(), "cq_overruns")
}

fn entry_of(end: &Endpoint, recv_queue: bool) -> CqEntry {
    CqEntry {
        vi: end.vi.handle(),
        recv_queue,
    }
}

/// Polls until a descriptor is complete.
fn poll(done: impl Fn(&Vi) -> vipl::Result<Option<Completed>>, end: &Endpoint) -> Completed {
    loop {
        match done(&end.vi) {
            Err(VipError::NotDone) => std::thread::yield_now(),
            found => return found.unwrap().unwrap().ok().unwrap(),
        }
    }
}

/// Posts receives and completes them as flushed, without a connection.
fn flush(end: &Endpoint, receives: usize) {
    end.post_receives(receives, 8);
    end.vi.disconnect().unwrap();
}

fn collect_flushed(end: &Endpoint, receives: usize) {
    for _ in 0..receives {
        assert!(end.vi.recv_done().unwrap().unwrap().status.is_flushed());
    }
}

fn flush_and_collect(end: &Endpoint, receives: usize) {
    flush(end, receives);
    collect_flushed(end, receives);
}

/// Collects descriptors of both queues, some after their entries and others directly; all entries stay.
fn check_entries_stay(nic: &Nic) {
    let cq = nic.create_cq(64).unwrap();
    let client = Endpoint::on(nic.clone(), |vi| vi.send_cq(&cq));
    let server = Endpoint::on(nic.clone(), |vi| vi.recv_cq(&cq));
    connect(&client, &server);
    let mut entries = [0; 2];
    let mut count = |entry: CqEntry| {
        let end = if entry.recv_queue { &server } else { &client };
        assert_eq!(entry, entry_of(end, entry.recv_queue));
        entries[usize::from(entry.recv_queue)] += 1;
    };
    for message in 0..10 {
        server.vi.post_recv(server.descriptor(8)).unwrap();
        let sent = client.message(&pattern(message, 8));
        client.vi.post_send(sent).unwrap();
        if message % 3 == 0 {
            count(cq.wait(WAIT).unwrap());
        }
        poll(Vi::send_done, &client);
        let arrived = poll(Vi::recv_done, &server);
        assert_eq!(arrived.first_bytes(), pattern(message, 8));
    }
    server.vi.post_recv(server.descriptor(8)).unwrap();
    for _ in 4..20 {
        count(cq.wait(WAIT).unwrap());
        let found = client.vi.send_done();
        assert!(matches!(found, Ok(None)), "nothing is posted: {found:?}");
        let found = server.vi.recv_done().unwrap_err();
        assert_eq!(found, VipError::NotDone, "the next one is not complete");
    }
    assert_eq!(cq.done(), Err(VipError::NotDone));
    assert_eq!(cq.wait(Timeout::Immediate), Err(VipError::Timeout));
    assert_eq!(entries, [10, 10], "one entry for each descriptor");
}

/// Handlers are called for entries of collected descriptors.
fn check_handlers_are_called(nic: &Nic) {
    let cq = nic.create_cq(64).unwrap();
    let end = Endpoint::on(nic.clone(), |vi| vi.recv_cq(&cq));
    let (sender, entries) = channel();
    let notify = || {
        let sender = sender.clone();
        cq.notify(move |entry| sender.send(entry).unwrap()).unwrap();
    };
    notify();
    flush_and_collect(&end, 3);
    notify();
    notify();
    for _ in 0..3 {
        let entry = entries.recv_timeout(TIMEOUT);
        assert_eq!(entry, Ok(entry_of(&end, true)));
    }
    assert_eq!(cq.done(), Err(VipError::NotDone));
}

/// Entries of destroyed VIs stay, and those of other VIs keep their order.
fn check_entries_outlive_their_vi(nic: &Nic) {
    let cq = nic.create_cq(64).unwrap();
    let ends = [(); 3].map(|()| Endpoint::on(nic.clone(), |vi| vi.recv_cq(&cq)));
    let mut destroyed = Vec::new();
    for end in ends.iter().chain(&ends) {
        flush_and_collect(end, 1);
        destroyed.push(entry_of(end, true));
    }
    // One VI has uncollected descriptors.
    flush(&ends[1], 2);
    destroyed.extend([entry_of(&ends[1], true); 2]);
    drop(ends);
    // Reuses the slot of a destroyed VI.
    let end = Endpoint::on(nic.clone(), |vi| vi.recv_cq(&cq));
    flush_and_collect(&end, 1);
    for entry in destroyed {
        assert_eq!(cq.done(), Ok(entry));
        assert_eq!(vip::recv_done(entry.vi), Err(VipError::InvalidParameter));
    }
    assert_eq!(cq.done(), Ok(entry_of(&end, true)));
    assert_eq!(cq.done(), Err(VipError::NotDone));
}

/// A completion queue keeps the requested number of entries, also of collected descriptors and after resizes.
fn check_requested_capacity(nic: &Nic) {
    let cq = nic.create_cq(64).unwrap();
    let end = Endpoint::on(nic.clone(), |vi| vi.recv_cq(&cq));
    for _ in 0..64 / DEPTH {
        flush_and_collect(&end, DEPTH);
    }
    for entries in [1, 100, 3] {
        assert_eq!(cq.resize(entries), Ok(()));
    }
    for _ in 0..64 {
        assert_eq!(cq.done(), Ok(entry_of(&end, true)));
        assert_eq!(cq.resize(1), Ok(()));
    }
    assert_eq!(cq.done(), Err(VipError::NotDone));
}

/// An overrun drops only entries of collected descriptors; dropped entries are counted.
fn check_overrun(nic: &Nic) {
    /// Entries whose descriptors are collected immediately.
    const COLLECTED: usize = 812;
    /// Entries whose descriptors are not collected.
    const UNCOLLECTED: usize = 5;
    const FULL: usize = 2 * DEPTH - UNCOLLECTED;
    let before = overruns(nic);
    let dropped = || overruns(nic) - before;
    let cq = nic.create_cq(1).unwrap();
    // Two work queues, so that the completion queue has capacity for the descriptors of both.
    let [uncollected, collected] =
        [(); 2].map(|()| Endpoint::on(nic.clone(), |vi| vi.recv_cq(&cq)));
    flush(&uncollected, UNCOLLECTED);
    for _ in 0..FULL {
        flush_and_collect(&collected, 1);
    }
    assert_eq!(dropped(), 0, "all fit");
    for _ in FULL..COLLECTED {
        flush_and_collect(&collected, 1);
    }
    let lost = (COLLECTED - 1) / FULL * FULL;
    assert_eq!(dropped(), lost as u64);
    for _ in 0..UNCOLLECTED {
        let entry = entry_of(&uncollected, true);
        assert_eq!(cq.done(), Ok(entry), "it is not dropped");
        collect_flushed(&uncollected, 1);
    }
    for _ in lost..COLLECTED {
        assert_eq!(cq.done(), Ok(entry_of(&collected, true)));
    }
    assert_eq!(cq.done(), Err(VipError::NotDone));
}

#[test]
fn entry_stays_when_its_descriptor_is_collected_directly() {
    let nic = small_queues("entries");
    check_entries_stay(&nic);
    assert_eq!(overruns(&nic), 0);
}

#[test]
fn handler_is_called_for_the_entry_of_a_collected_descriptor() {
    check_handlers_are_called(&small_queues("handlers"));
}

#[test]
fn entries_of_a_destroyed_vi_stay_on_the_completion_queue() {
    let nic = small_queues("destroyed");
    check_entries_outlive_their_vi(&nic);
    assert_eq!(overruns(&nic), 0);
}

#[test]
fn completion_queue_keeps_the_requested_number_of_entries() {
    let nic = small_queues("capacity");
    check_requested_capacity(&nic);
    assert_eq!(overruns(&nic), 0);
}

#[test]
fn full_completion_queue_drops_only_entries_of_collected_descriptors() {
    check_overrun(&small_queues("full"));
}

#[test]
fn entries_stay_on_a_nic_of_a_datapath_process() {
    let test = "entries_stay_on_a_nic_of_a_datapath_process";
    with_process_of(test, SMALL_QUEUES, "", |process| {
        let nic = process.attach();
        check_entries_stay(&nic);
        check_handlers_are_called(&nic);
        check_entries_outlive_their_vi(&nic);
        check_requested_capacity(&nic);
        assert_eq!(overruns(&nic), 0);
        check_overrun(&nic);
    });
}
