//! Tests of the submissions that the poller takes from an application beyond its limits.

use vi_core::descriptor::control;
use vi_core::events::ErrorCode;
use vi_core::handle::HandleKind;
use vi_core::memory::backing::Owner;
use vi_core::queue::Slot;
use vi_types::{AsyncError, Claim, Completion, PtagHandle, QueueIo, Status, ViAttributes};

use super::*;
use crate::attach::shared_queues::{CompletionConsumer, RingSizes, SubmissionProducer};
use crate::config::{Network, NicConfig};
use crate::device::Device;
use crate::lookup::vi_of;
use crate::nic;
use crate::nic_backend::Backend;
use crate::open;

mod inline_buffers;

/// Inline buffers of each direction.
const INLINE_BUFFERS: u32 = 2;

/// A NIC without threads and one attached application; the test acts as both.
struct TestNic {
    device: &'static Device,
    nic: u64,
    ptag: u64,
    id: ClientId,
    submissions: SubmissionProducer,
    /// The application's mapping.
    queues: SharedQueues,
    counters: Arc<ClientCounters>,
}

impl TestNic {
    fn new(test: &str, limits: Limits) -> Self {
        let config = NicConfig {
            network: Network::segment(format!("unit-{}-client-{test}", std::process::id())),
            ..NicConfig::default()
        };
        let (device, nic) = open::open_without_threads(&config).unwrap();
        let ptag = nic::create_ptag(nic).unwrap();
        let sizes = RingSizes::for_segments(limits.segments).with_inline_buffers(INLINE_BUFFERS);
        let (queues, fd) = SharedQueues::create(sizes).unwrap();
        let (attach_socket, _) = Socket::pair().unwrap();
        let (wakeup, _) = sys::WakeupSet::new().unwrap().add_client().unwrap();
        let counters = Arc::<ClientCounters>::default();
        let client = Client::new(
            0,
            queues,
            wakeup,
            Arc::new(attach_socket),
            Arc::clone(&counters),
            limits,
        );
        let id = with(device, |path| Clients::attach(path, client));
        Self {
            device,
            nic,
            ptag,
            id,
            submissions: SubmissionProducer::default(),
            queues: SharedQueues::open(fd).unwrap(),
            counters,
        }
    }

    /// Creates a VI of the application.
    fn vi(&self, nic: u64, ptag: u64) -> u64 {
        let settings = ViAttributes {
            reliability: 2,
            max_transfer_bytes: 4096,
            ptag: Some(PtagHandle::from_raw(ptag)),
            ..ViAttributes::default()
        };
        let vi = nic::create_vi(nic, &settings, 0, 0).unwrap();
        let index = vi_of(vi).unwrap().index;
        let owner = Owner::client(self.id.0 + 1).unwrap();
        with(self.device, |path| {
            path.vi(index).unwrap().serve(self.id, owner);
        });
        vi
    }

    fn submit(&mut self, vi: u64, kind: Submission) {
        assert!(self.try_submit(vi, kind), "the ring is full");
    }

    fn try_submit(&mut self, vi: u64, kind: Submission) -> bool {
        self.try_submit_slot(vi, kind, &Slot::default())
    }

    fn try_submit_slot(&mut self, vi: u64, kind: Submission, slot: &Slot) -> bool {
        self.try_submit_inline(vi, kind, slot, 0)
    }

    /// Submits a descriptor with the number of its inline buffer.
    fn try_submit_inline(&mut self, vi: u64, kind: Submission, slot: &Slot, number: u32) -> bool {
        let raw = RawHandle::unpack(vi);
        let id = ViId {
            index: raw.index as u16,
            generation: raw.generation,
        };
        let slot = (kind != Submission::Break).then_some(slot);
        self.submissions
            .submit(&self.queues, id, kind, slot, number)
    }

    /// Takes all completion entries, as the application does, and returns their number.
    fn take_completions(&self) -> usize {
        let mut completions = CompletionConsumer::default();
        let count = core::iter::from_fn(|| completions.pop(&self.queues)).count();
        completions.release(&self.queues);
        count
    }

    fn submitted(&self) -> u64 {
        self.counters.submitted.load(Ordering::Relaxed)
    }

    fn close(self) {
        with(self.device, |path| drop(clients(path).remove(self.id)));
        open::close(self.device, self.nic).unwrap();
    }
}

fn with<R>(device: &Device, run: impl FnOnce(&mut Datapath) -> R) -> R {
    let mut held = device.lock();
    run(&mut held.as_mut().and_then(Backend::state_mut).unwrap().path)
}

fn clients(path: &mut Datapath) -> &mut Clients {
    Clients::of(path).unwrap()
}

fn limits() -> Limits {
    Limits {
        segments: 4,
        descriptors: 1000,
        share: 1,
    }
}

/// Changes the oldest descriptor of a queue; the caller holds the backend lock.
fn with_head(queue: &WorkQueue, change: impl FnOnce(&mut Slot)) {
    // SAFETY: no other thread uses the VI; the reference ends here.
    change(unsafe { queue.head() }.unwrap());
}

/// The number of posted receives of a VI.
fn receives(vi: u64) -> u32 {
    vi_of(vi).unwrap().recv.depth()
}

#[test]
fn submissions_beyond_max_descriptors_wait_in_the_ring() {
    let mut served = TestNic::new(
        "beyond",
        Limits {
            descriptors: 3,
            ..limits()
        },
    );
    let vi = served.vi(served.nic, served.ptag);
    for _ in 0..5 {
        served.submit(vi, Submission::Receive);
    }
    let device = served.device;
    assert!(with(device, Datapath::take_submissions));
    assert_eq!((receives(vi), served.submitted()), (3, 3));
    assert!(!with(device, Datapath::take_submissions), "they wait");
    // A completed descriptor no longer counts, whether its completion was reported or not.
    let index = vi_of(vi).unwrap().index;
    let done = Completion {
        status: Status::default(),
        length_bytes: 0,
        immediate: None,
        remote_write: false,
    };
    with(device, |path| path.complete_receive(index, done));
    assert!(with(device, Datapath::take_submissions));
    assert_eq!((receives(vi), served.submitted()), (3, 4));
    with(device, |path| path.flush_queue(index, QueueKind::Receive));
    assert!(with(device, Datapath::take_submissions));
    assert_eq!((receives(vi), served.submitted()), (1, 5));
    assert_eq!(served.take_completions(), 4);
    served.close();
}

#[test]
fn long_descriptors_count_once_for_each_four_segments() {
    let limits = Limits {
        segments: 64,
        descriptors: 6,
        ..limits()
    };
    let mut served = TestNic::new("long", limits);
    let vi = served.vi(served.nic, served.ptag);
    let index = vi_of(vi).unwrap().index;
    let (device, id) = (served.device, served.id);
    let extra = || {
        with(device, |path| {
            clients(path).get(id).unwrap().segment_pool.extra_units()
        })
    };
    // Together they count as seven.
    for segments in [8, 4, 5, 0, 1] {
        assert!(served.try_submit_slot(vi, Submission::Receive, &long(segments)));
    }
    assert!(with(device, Datapath::take_submissions));
    assert_eq!((receives(vi), extra()), (4, 2), "the fifth waits");
    let done = || Completion {
        status: Status::default(),
        length_bytes: 0,
        immediate: None,
        remote_write: false,
    };
    with(device, |path| path.complete_receive(index, done()));
    assert_eq!(extra(), 1);
    assert!(with(device, Datapath::take_submissions));
    assert_eq!(receives(vi), 4);
    with(device, |path| path.flush_queue(index, QueueKind::Receive));
    assert_eq!(extra(), 0);
    // One that counts as more than the limit is taken alone.
    for segments in [64, 1] {
        assert!(served.try_submit_slot(vi, Submission::Receive, &long(segments)));
    }
    assert!(with(device, Datapath::take_submissions));
    assert_eq!((receives(vi), spilled(vi), extra()), (1, 1, 15));
    with(device, |path| path.flush_queue(index, QueueKind::Receive));
    assert!(with(device, Datapath::take_submissions));
    assert_eq!((receives(vi), spilled(vi), extra()), (1, 0, 0));
    served.close();
}

/// The process continues; the VI fails as it does at a post beyond the limit.
#[test]
fn descriptor_without_memory_for_its_segments_fails_its_vi_only() {
    let limits = Limits {
        segments: 64,
        ..limits()
    };
    let mut served = TestNic::new("no-memory", limits);
    let [vi, other] = [(); 2].map(|()| served.vi(served.nic, served.ptag));
    let (device, id) = (served.device, served.id);
    let set_out_of_memory = |is_out_of_memory| {
        with(device, |path| {
            let client = clients(path).get(id).unwrap();
            client.segment_pool.set_out_of_memory(is_out_of_memory);
        });
    };
    let poll = || {
        let mut held = device.lock();
        held.as_mut().unwrap().poll(&device.shared.doorbells)
    };
    set_out_of_memory(true);
    assert!(served.try_submit_slot(vi, Submission::Receive, &long(64)));
    assert!(served.try_submit_slot(other, Submission::Receive, &long(4)));
    while poll() {}
    set_out_of_memory(false);
    let state = |vi| vi_of(vi).unwrap().state();
    assert_eq!((state(vi), state(other)), (ViState::Error, ViState::Idle));
    assert_eq!((receives(vi), receives(other)), (0, 1));
    let counters = &served.counters;
    assert_eq!(counters.out_of_memory.load(Ordering::Relaxed), 1);
    let mut completions = CompletionConsumer::default();
    let entries: Vec<_> = core::iter::from_fn(|| completions.pop(&served.queues)).collect();
    let flushed = status::DESC_FLUSHED_ERROR | status::OP_RECEIVE | status::DONE;
    let is_flushed = |entry: &CompletionEntry| matches!(entry, CompletionEntry::Received(done) if done.status & !status::DONE == flushed & !status::DONE);
    let is_overrun = |entry: &CompletionEntry| matches!(entry, CompletionEntry::Error { code, resource, .. } if (*code, *resource) == (3, 1));
    let has =
        |fits: &dyn Fn(&CompletionEntry) -> bool| entries.iter().any(|(_, entry)| fits(entry));
    assert!(has(&is_flushed) && has(&is_overrun), "{entries:?}");
    served.close();
}

#[test]
fn descriptors_of_a_destroyed_vi_no_longer_count() {
    let mut served = TestNic::new(
        "ends",
        Limits {
            descriptors: 2,
            ..limits()
        },
    );
    let device = served.device;
    let stays = served.vi(served.nic, served.ptag);
    for _ in 0..3 {
        let nic = device.nic_handles.open(device.shared.number, 0);
        let ptag = nic::create_ptag(nic).unwrap();
        let ends = served.vi(nic, ptag);
        served.submit(ends, Submission::Receive);
        served.submit(ends, Submission::Receive);
        assert!(with(device, Datapath::take_submissions));
        served.submit(stays, Submission::Receive);
        assert!(!with(device, Datapath::take_submissions));
        open::close(device, nic).unwrap();
        // A submission for the destroyed VI.
        served.submit(ends, Submission::Receive);
        assert!(with(device, Datapath::take_submissions));
        assert_eq!(receives(stays), 1);
        let index = vi_of(stays).unwrap().index;
        with(device, |path| path.flush_queue(index, QueueKind::Receive));
    }
    served.close();
}

/// The number of submissions taken from the application.
fn taken(served: &TestNic) -> u64 {
    served.submitted() + served.counters.stale.load(Ordering::Relaxed)
}

/// Fills the ring with submissions for a VI that never existed: the cheapest ones.
fn fill(served: &mut TestNic) {
    let unknown_vi = RawHandle::pack(HandleKind::Vi, 0, 1, 77);
    while served.try_submit(unknown_vi, Submission::Receive) {}
}

#[test]
fn flood_is_limited_to_its_share_and_to_one_ring_for_messages_without_a_receive() {
    for share in [1, 10] {
        let name = format!("flood-{share}");
        let mut served = TestNic::new(&name, Limits { share, ..limits() });
        let (device, ring) = (served.device, u64::from(served.queues.submissions()));
        let vi = served.vi(served.nic, served.ptag);
        let index = vi_of(vi).unwrap().index;
        for poll in 1..=3 {
            let before = taken(&served);
            fill(&mut served);
            assert!(with(device, Datapath::take_submissions));
            let in_share = taken(&served) - before;
            assert_eq!(in_share, u64::from(8 * share), "poll {poll}");
            // However many messages arrive for it, and however fast it writes.
            for _ in 0..5 {
                let found = with(device, |path| path.claim_receive(index));
                assert_eq!(found, Claim::Empty);
                fill(&mut served);
            }
            assert_eq!(taken(&served) - before, in_share + ring, "poll {poll}");
        }
        served.close();
    }
}

#[test]
fn message_finds_the_receive_at_the_end_of_a_full_ring() {
    let mut served = TestNic::new("end-of-ring", limits());
    let device = served.device;
    let [receiver, other] = [(); 2].map(|()| served.vi(served.nic, served.ptag));
    for _ in 1..served.queues.submissions() {
        served.submit(other, Submission::Break);
    }
    served.submit(receiver, Submission::Receive);
    let index = vi_of(receiver).unwrap().index;
    with(device, |path| {
        path.take_submissions();
        let claimed = path.claim_receive(index);
        assert!(matches!(claimed, Claim::Ready { .. }), "{claimed:?}");
    });
    served.close();
}

#[test]
fn full_ring_is_drained_after_polls_per_ring_and_a_flooded_one_is_not() {
    let mut served = TestNic::new("polls", limits());
    let (device, id) = (served.device, served.id);
    let poll = || {
        with(device, |path| {
            path.take_submissions();
            clients(path).is_drained(id)
        })
    };
    assert!(poll(), "the ring is empty");
    let polls = with(device, |path| clients(path).polls_per_ring(id));
    assert_eq!(polls, served.queues.submissions() / 8);
    fill(&mut served);
    let needed = (1..=polls + 1).find(|_| poll()).unwrap();
    assert_eq!(needed, polls + 1, "the last one finds nothing");
    for _ in 0..2 * polls {
        fill(&mut served);
        assert!(!poll());
    }
    served.close();
}

/// A receive with this number of segments.
fn long(segments: usize) -> Slot {
    let mut slot = Slot::default();
    slot.segments_mut(segments);
    slot
}

/// The number of slots of a VI's receive queue with segments in memory of the pool.
fn spilled(vi: u64) -> usize {
    // SAFETY: the NIC has no threads, and the test is one.
    unsafe { vi_of(vi).unwrap().recv.spilled() }
}

#[test]
fn segment_pool_memory_is_used_by_posted_descriptors_only() {
    let limits = Limits {
        segments: 16,
        ..limits()
    };
    let mut served = TestNic::new("spills", limits);
    let (device, id) = (served.device, served.id);
    let spare = || {
        with(device, |path| {
            clients(path).get(id).unwrap().segment_pool.spare()
        })
    };
    let vis = [(); 3].map(|()| served.vi(served.nic, served.ptag));
    let mut submit = |vi, slot: &Slot| {
        assert!(served.try_submit_slot(vi, Submission::Receive, slot));
        assert!(with(device, Datapath::take_submissions));
    };
    // Completions that are reported at once.
    for vi in vis {
        let index = vi_of(vi).unwrap().index;
        for round in 1..=3 {
            submit(vi, &long(16));
            submit(vi, &long(4));
            assert_eq!(spilled(vi), 1, "round {round}");
            with(device, |path| path.flush_queue(index, QueueKind::Receive));
            assert_eq!((spilled(vi), spare()), (0, 1), "round {round}");
        }
    }
    // Invalid descriptors use none.
    let vi = vis[0];
    let index = vi_of(vi).unwrap().index;
    for (fault, control) in [(status::FORMAT_ERROR, 0), (0, control::OP_RDMA_READ)] {
        let mut invalid = long(16);
        (invalid.fault, invalid.control) = (fault, control);
        submit(vi, &invalid);
        with(device, |path| path.flush_queue(index, QueueKind::Receive));
        assert_eq!(spilled(vi), 0);
    }
    served.close();
}

#[test]
fn segment_pool_memory_is_freed_although_completions_are_reported_late_or_never() {
    let limits = Limits {
        segments: 16,
        ..limits()
    };
    let mut served = TestNic::new("late", limits);
    let device = served.device;
    let nic = device.nic_handles.open(device.shared.number, 0);
    let ptag = nic::create_ptag(nic).unwrap();
    let reported_late = served.vi(served.nic, served.ptag);
    let never_reported = served.vi(nic, ptag);
    let mut completions = CompletionConsumer::default();
    // Completions for which the ring has no space wait without the segments.
    let queue = |vi| &vi_of(vi).unwrap().shared.recv;
    let mut rounds = 0;
    while !queue(reported_late).has_complete() || !queue(never_reported).has_complete() {
        rounds += 1;
        assert!(rounds < 10_000, "the ring has no end");
        for vi in [reported_late, never_reported] {
            let index = vi_of(vi).unwrap().index;
            assert!(served.try_submit_slot(vi, Submission::Receive, &long(16)));
            assert!(with(device, Datapath::take_submissions));
            with(device, |path| path.flush_queue(index, QueueKind::Receive));
            with(device, Datapath::deliver_completions);
            assert_eq!(spilled(vi), 0, "round {rounds}");
        }
    }
    assert!(served.try_submit_slot(never_reported, Submission::Receive, &long(16)));
    assert!(with(device, Datapath::take_submissions));
    assert_eq!(spilled(never_reported), 1);
    let never = queue(never_reported);
    open::close(device, nic).unwrap();
    // SAFETY: the NIC has no threads, and the test is one.
    assert_eq!(unsafe { never.spilled() }, 0, "it ended");
    while completions.pop(&served.queues).is_some() {}
    completions.release(&served.queues);
    while with(device, Datapath::deliver_completions) {}
    assert!(!queue(reported_late).has_complete());
    served.close();
}

/// An application with many completed descriptors that takes its completions at once gets a part of them in each poll.
#[test]
fn one_poll_reports_limited_completions_and_later_ones_the_rest_in_order() {
    const POSTED: u32 = 100;
    let mut served = TestNic::new("reports", limits());
    let device = served.device;
    let vi = served.vi(served.nic, served.ptag);
    for _ in 0..POSTED {
        served.submit(vi, Submission::Receive);
    }
    while with(device, Datapath::take_submissions) {}
    assert_eq!(receives(vi), POSTED);
    let index = vi_of(vi).unwrap().index;
    for length_bytes in 0..POSTED {
        let done = Completion {
            status: Status::default(),
            length_bytes,
            immediate: None,
            remote_write: false,
        };
        with(device, |path| path.complete_receive(index, done));
    }
    let error = AsyncEvent::of_vi(vi, 0, AsyncError::ConnectionLost);
    with(device, |path| clients(path).report(served.id, &error));
    let mut completions = CompletionConsumer::default();
    let mut lengths = Vec::new();
    let mut errors = 0;
    for left in [true, true, true, false] {
        assert_eq!(with(device, Datapath::deliver_completions), left);
        assert_eq!(with(device, |path| path.has_undelivered), left);
        let mut reported = 0;
        while let Some((_, entry)) = completions.pop(&served.queues) {
            reported += 1;
            match entry {
                CompletionEntry::Received(completed) => lengths.push(completed.length_bytes),
                CompletionEntry::Error { .. } => errors += 1,
                CompletionEntry::Sent(_) => panic!("nothing was sent"),
            }
        }
        completions.release(&served.queues);
        assert!(reported <= limits::REPORT_BUDGET, "{reported} in one poll");
    }
    assert_eq!(lengths, (0..POSTED).collect::<Vec<_>>(), "in order");
    assert_eq!(errors, 1);
    served.close();
}

/// When the application detects the end, the process must no longer access its memory.
#[test]
fn cut_off_client_keeps_its_connection_until_it_is_removed() {
    let (queues, _) = SharedQueues::create(RingSizes::for_segments(1)).unwrap();
    let (attach_socket, application) = Socket::pair().unwrap();
    let attach_socket = Arc::new(attach_socket);
    let (wakeup, _) = sys::WakeupSet::new().unwrap().add_client().unwrap();
    let mut client = Client::new(
        0,
        queues,
        wakeup,
        Arc::clone(&attach_socket),
        Arc::default(),
        limits(),
    );
    client.cut_off(ProtocolViolation("a test"));
    assert!(
        attach_socket.is_closed(),
        "for the thread that waits for it"
    );
    assert!(!application.is_closed());
    drop((client, attach_socket));
    assert!(application.is_closed());
}

/// Errors that a peer causes on some VIs, and that the application does not read, leave room for the loss of another
/// VI's connection.
#[test]
fn unread_errors_of_some_vis_displace_no_connection_loss_of_another() {
    const LOST: u32 = 200;
    let served = TestNic::new("unread-errors", limits());
    let report = |index, error| {
        let vi = RawHandle::pack(HandleKind::Vi, 0, 1, index);
        let event = AsyncEvent::of_vi(vi, served.nic, error);
        with(served.device, |path| {
            clients(path).report(served.id, &event)
        });
    };
    for n in 0..10_000 {
        report(n % 100, AsyncError::ReceiveQueueEmpty);
    }
    report(LOST, AsyncError::ConnectionLost);
    let mut completions = CompletionConsumer::default();
    let mut lost = Vec::new();
    loop {
        with(served.device, Datapath::deliver_completions);
        let entries = core::iter::from_fn(|| completions.pop(&served.queues));
        let entries: Vec<_> = entries.collect();
        completions.release(&served.queues);
        if entries.is_empty() {
            break;
        }
        lost.extend(entries.iter().filter_map(|(vi, entry)| match entry {
            CompletionEntry::Error { code, .. } if *code == ErrorCode::ConnLost as u32 => {
                Some(u32::from(vi.index))
            }
            _ => None,
        }));
    }
    assert_eq!(lost, [LOST]);
    served.close();
}
