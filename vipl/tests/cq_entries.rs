//! Entries of completion queues whose descriptor was taken without them, whose VI is gone, or for which there is no room.

mod common;

use std::sync::mpsc::channel;

use common::datapath::{DatapathProcess, has_served};
use common::{End, PATIENCE, WAIT, connect, open_as, pattern};
use vipl::{Completed, CqEntry, Nic, Timeout, Vi, VipError, provider as vip};

/// Descriptors that can be posted on each work queue.
const DEPTH: usize = 8;
/// Keys of a datapath process's NIC that is like those of [`small_queues`].
const SMALL_QUEUES: &str = "port = \"shm\"\nsegment = \"attached\"\ndirectory = DIRECTORY\n\
                            e_d_tov_ms = 60000\nsilent_port_ms = 60000\n\
                            max_descriptors_per_queue = 8\n";

/// A NIC of this program whose work queues are small. The name makes it another one than those of other tests.
fn small_queues(name: &str) -> Nic {
    open_as(|config| {
        config.name = name.to_owned();
        config.max_descriptors_per_queue = DEPTH as u32;
    })
}

/// Entries that full completion queues of this NIC have dropped.
fn overruns(nic: &Nic) -> u64 {
    let counters = vip::counters(nic.handle()).unwrap();
    let found = counters.iter().find(|(name, _)| name == "cq_overruns");
    found.expect("it is counted").1
}

fn entry_of(end: &End, recv_queue: bool) -> CqEntry {
    CqEntry {
        vi: end.vi.handle(),
        recv_queue,
    }
}

/// Takes a descriptor as a program does that polls.
fn poll(done: impl Fn(&Vi) -> vipl::Result<Option<Completed>>, end: &End) -> Completed {
    loop {
        match done(&end.vi) {
            Err(VipError::NotDone) => std::thread::yield_now(),
            found => return found.unwrap().unwrap().ok().unwrap(),
        }
    }
}

/// Completes receives of a VI without a connection.
fn flush(end: &End, receives: usize) {
    for _ in 0..receives {
        end.vi.post_recv(end.room(8)).unwrap();
    }
    end.vi.disconnect().unwrap();
}

fn take_flushed(end: &End, receives: usize) {
    for _ in 0..receives {
        assert!(end.vi.recv_done().unwrap().unwrap().status.is_flushed());
    }
}

fn flush_and_take(end: &End, receives: usize) {
    flush(end, receives);
    take_flushed(end, receives);
}

/// Descriptors of both queues, some of which are taken with their entries and the others without.
fn entries_stay(nic: &Nic) {
    let cq = nic.create_cq(64).unwrap();
    let client = End::on(nic.clone(), |vi| vi.send_cq(&cq));
    let server = End::on(nic.clone(), |vi| vi.recv_cq(&cq));
    connect(&client, &server);
    let mut entries = [0; 2];
    let mut count = |entry: CqEntry| {
        let end = if entry.recv_queue { &server } else { &client };
        assert_eq!(entry, entry_of(end, entry.recv_queue));
        entries[usize::from(entry.recv_queue)] += 1;
    };
    for message in 0..10 {
        server.vi.post_recv(server.room(8)).unwrap();
        let sent = client.message(&pattern(message, 8));
        client.vi.post_send(sent).unwrap();
        if message % 3 == 0 {
            count(cq.wait(WAIT).unwrap());
        }
        poll(Vi::send_done, &client);
        let arrived = poll(Vi::recv_done, &server);
        assert_eq!(arrived.first_bytes(), pattern(message, 8));
    }
    server.vi.post_recv(server.room(8)).unwrap();
    for _ in 4..20 {
        count(cq.wait(WAIT).unwrap());
        let found = client.vi.send_done();
        assert!(matches!(found, Ok(None)), "nothing is posted: {found:?}");
        let found = server.vi.recv_done().unwrap_err();
        assert_eq!(found, VipError::NotDone, "the next one is not complete");
    }
    assert_eq!(cq.done(), Err(VipError::NotDone));
    assert_eq!(cq.wait(Timeout::Immediate), Err(VipError::Timeout));
    assert_eq!(entries, [10, 10], "one for each descriptor");
}

/// Handlers are called for entries of descriptors that were taken.
fn handlers_are_called(nic: &Nic) {
    let cq = nic.create_cq(64).unwrap();
    let end = End::on(nic.clone(), |vi| vi.recv_cq(&cq));
    let (sender, entries) = channel();
    let ask = || {
        let sender = sender.clone();
        cq.notify(move |entry| sender.send(entry).unwrap()).unwrap();
    };
    ask();
    flush_and_take(&end, 3);
    ask();
    ask();
    for _ in 0..3 {
        let entry = entries.recv_timeout(PATIENCE);
        assert_eq!(entry, Ok(entry_of(&end, true)));
    }
    assert_eq!(cq.done(), Err(VipError::NotDone));
}

/// VIs that end leave their entries behind, and those of others stay in their order.
fn entries_outlive_their_vi(nic: &Nic) {
    let cq = nic.create_cq(64).unwrap();
    let ends = [(); 3].map(|()| End::on(nic.clone(), |vi| vi.recv_cq(&cq)));
    let mut gone = Vec::new();
    for end in ends.iter().chain(&ends) {
        flush_and_take(end, 1);
        gone.push(entry_of(end, true));
    }
    // One of them has descriptors that nobody has taken.
    flush(&ends[1], 2);
    gone.extend([entry_of(&ends[1], true); 2]);
    drop(ends);
    // In the place of one that has ended.
    let end = End::on(nic.clone(), |vi| vi.recv_cq(&cq));
    flush_and_take(&end, 1);
    for entry in gone {
        assert_eq!(cq.done(), Ok(entry));
        assert_eq!(vip::recv_done(entry.vi), Err(VipError::InvalidParameter));
    }
    assert_eq!(cq.done(), Ok(entry_of(&end, true)));
    assert_eq!(cq.done(), Err(VipError::NotDone));
}

/// A completion queue holds what was asked for, also of descriptors that were taken, however it is resized then.
fn entries_stay_as_asked(nic: &Nic) {
    let cq = nic.create_cq(64).unwrap();
    let end = End::on(nic.clone(), |vi| vi.recv_cq(&cq));
    for _ in 0..64 / DEPTH {
        flush_and_take(&end, DEPTH);
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

/// A program that never takes an entry loses none whose descriptor waits; what is lost is counted.
fn overrun_spares_waiting_descriptors(nic: &Nic) {
    /// Entries whose descriptors are taken; the first of them at once, so that they fill the queue.
    const TAKEN: usize = 812;
    const WAITING: usize = 5;
    const FULL: usize = 2 * DEPTH - WAITING;
    let before = overruns(nic);
    let dropped = || overruns(nic) - before;
    let cq = nic.create_cq(1).unwrap();
    // Two work queues, so that the completion queue has room for the descriptors of both.
    let [waiting, taken] = [(); 2].map(|()| End::on(nic.clone(), |vi| vi.recv_cq(&cq)));
    flush(&waiting, WAITING);
    for _ in 0..FULL {
        flush_and_take(&taken, 1);
    }
    assert_eq!(dropped(), 0, "all have a place");
    for _ in FULL..TAKEN {
        flush_and_take(&taken, 1);
    }
    let lost = (TAKEN - 1) / FULL * FULL;
    assert_eq!(dropped(), lost as u64);
    for _ in 0..WAITING {
        assert_eq!(cq.done(), Ok(entry_of(&waiting, true)), "it is not lost");
        take_flushed(&waiting, 1);
    }
    for _ in lost..TAKEN {
        assert_eq!(cq.done(), Ok(entry_of(&taken, true)));
    }
    assert_eq!(cq.done(), Err(VipError::NotDone));
}

#[test]
fn entry_stays_when_its_descriptor_is_taken_directly() {
    let nic = small_queues("stays");
    entries_stay(&nic);
    assert_eq!(overruns(&nic), 0);
}

#[test]
fn handler_is_called_for_the_entry_of_a_taken_descriptor() {
    handlers_are_called(&small_queues("handlers"));
}

#[test]
fn entries_of_a_destroyed_vi_stay_on_the_completion_queue() {
    let nic = small_queues("destroyed");
    entries_outlive_their_vi(&nic);
    assert_eq!(overruns(&nic), 0);
}

#[test]
fn completion_queue_keeps_as_many_entries_as_were_asked_for() {
    let nic = small_queues("asked");
    entries_stay_as_asked(&nic);
    assert_eq!(overruns(&nic), 0);
}

#[test]
fn full_completion_queue_drops_entries_of_taken_descriptors_alone() {
    overrun_spares_waiting_descriptors(&small_queues("full"));
}

#[test]
fn entries_stay_on_a_nic_of_a_datapath_process() {
    const NAME: &str = "entries_stay_on_a_nic_of_a_datapath_process";
    if has_served() {
        return;
    }
    let process = DatapathProcess::start_with(NAME, SMALL_QUEUES, "");
    let nic = Nic::attach(&process.socket(), "VINIC0").unwrap();
    entries_stay(&nic);
    handlers_are_called(&nic);
    entries_outlive_their_vi(&nic);
    entries_stay_as_asked(&nic);
    assert_eq!(overruns(&nic), 0);
    overrun_spares_waiting_descriptors(&nic);
    drop(nic);
    process.stop();
}
