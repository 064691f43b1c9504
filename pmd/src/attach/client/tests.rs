//! What the poller takes of an application that submits more than it may.

use vi_engine::{Completion, Status};

use super::*;
use crate::attach::arena::{Listener, RingSizes, Submitter};
use crate::config::NicConfig;
use crate::device::{self, Device};
use crate::driver::Driver;
use crate::memory::place::Owner;
use crate::nic;
use crate::vi::{ViSettings, vi_of};

/// A NIC without threads, which serves one application; a test plays both.
struct Served {
    device: &'static Device,
    nic: u64,
    ptag: u64,
    id: ClientId,
    submitter: Submitter,
    /// The application's view.
    arena: Arena,
    counters: Arc<ClientCounters>,
}

impl Served {
    fn new(test: &str, limits: Limits) -> Self {
        let config = NicConfig {
            segment: format!("unit-{}-client-{test}", std::process::id()),
            ..NicConfig::default()
        };
        let (device, nic) = device::open_unattended(&config).unwrap();
        let ptag = nic::create_ptag(nic).unwrap();
        let (arena, fd) = Arena::create(RingSizes::for_segments(limits.segments)).unwrap();
        let (life, _) = Socket::pair().unwrap();
        let (wakeup, _) = sys::WakeupSet::new().unwrap().add_client().unwrap();
        let counters = Arc::<ClientCounters>::default();
        let client = Client::new(
            0,
            arena,
            wakeup,
            Arc::new(life),
            Arc::clone(&counters),
            limits,
        );
        let id = with(device, |path| path.add_client(client));
        Self {
            device,
            nic,
            ptag,
            id,
            submitter: Submitter::default(),
            arena: Arena::open(fd).unwrap(),
            counters,
        }
    }

    /// A VI of the application's.
    fn vi(&self, nic: u64, ptag: u64) -> u64 {
        let settings = ViSettings {
            reliability: 2,
            max_transfer_bytes: 4096,
            ptag,
            ..ViSettings::default()
        };
        let vi = nic::create_vi(nic, &settings, 0, 0).unwrap();
        let index = vi_of(vi).unwrap().index;
        let owner = Owner::client(self.id.0 + 1).unwrap();
        with(self.device, |path| {
            path.vi(index).unwrap().serve(self.id, owner);
        });
        vi
    }

    fn submit(&mut self, vi: u64, what: Submission) {
        assert!(self.try_submit(vi, what), "the ring is full");
    }

    fn try_submit(&mut self, vi: u64, what: Submission) -> bool {
        self.try_submit_slot(vi, what, &Slot::default())
    }

    fn try_submit_slot(&mut self, vi: u64, what: Submission, slot: &Slot) -> bool {
        let raw = RawHandle::unpack(vi);
        let name = ViName {
            index: raw.index as u16,
            generation: raw.generation,
        };
        let slot = (what != Submission::Break).then_some(slot);
        self.submitter.submit(&self.arena, name, what, slot)
    }

    /// The application takes what it is told.
    fn listen(&self) -> usize {
        let mut listener = Listener::default();
        let told = core::iter::from_fn(|| listener.take(&self.arena)).count();
        listener.give_back(&self.arena);
        told
    }

    fn submitted(&self) -> u64 {
        self.counters.submitted.load(Ordering::Relaxed)
    }

    fn close(self) {
        with(self.device, |path| drop(path.clients.remove(self.id)));
        device::close(self.device, self.nic).unwrap();
    }
}

fn with<R>(device: &Device, run: impl FnOnce(&mut Datapath) -> R) -> R {
    let mut held = device.hold();
    run(&mut held.as_mut().and_then(Driver::engine_mut).unwrap().path)
}

fn limits() -> Limits {
    Limits {
        segments: 4,
        descriptors: 1000,
        share: 1,
    }
}

/// How many receives of a VI are posted.
fn receives(vi: u64) -> u32 {
    vi_of(vi).unwrap().recv.depth()
}

#[test]
fn what_is_submitted_beyond_the_descriptors_that_are_allowed_waits() {
    let mut served = Served::new(
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
    // One completes; it counts no more, whether it was told or not.
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
    with(device, |path| path.flush_queue(index, Side::Receive));
    assert!(with(device, Datapath::take_submissions));
    assert_eq!((receives(vi), served.submitted()), (1, 5));
    assert_eq!(served.listen(), 4);
    served.close();
}

#[test]
fn a_vi_that_ends_counts_no_more() {
    let mut served = Served::new(
        "ends",
        Limits {
            descriptors: 2,
            ..limits()
        },
    );
    let device = served.device;
    let stays = served.vi(served.nic, served.ptag);
    for _ in 0..3 {
        let nic = device.instances.open(device.number(), 0);
        let ptag = nic::create_ptag(nic).unwrap();
        let ends = served.vi(nic, ptag);
        served.submit(ends, Submission::Receive);
        served.submit(ends, Submission::Receive);
        assert!(with(device, Datapath::take_submissions));
        served.submit(stays, Submission::Receive);
        assert!(!with(device, Datapath::take_submissions));
        device::close(device, nic).unwrap();
        // With what is submitted for it too late.
        served.submit(ends, Submission::Receive);
        assert!(with(device, Datapath::take_submissions));
        assert_eq!(receives(stays), 1);
        let index = vi_of(stays).unwrap().index;
        with(device, |path| path.flush_queue(index, Side::Receive));
    }
    served.close();
}

/// What was taken of the application until now.
fn taken(served: &Served) -> u64 {
    served.submitted() + served.counters.stale.load(Ordering::Relaxed)
}

/// Submissions for a VI that never was: the cheapest ones.
fn fill(served: &mut Served) {
    let nobody = RawHandle::pack(crate::vi::Kind::Vi, 0, 1, 77);
    while served.try_submit(nobody, Submission::Receive) {}
}

#[test]
fn a_flood_is_taken_by_its_share_and_once_round_the_ring_for_messages_that_find_nothing() {
    for share in [1, 10] {
        let name = format!("flood-{share}");
        let mut served = Served::new(&name, Limits { share, ..limits() });
        let (device, ring) = (served.device, u64::from(served.arena.submissions()));
        let vi = served.vi(served.nic, served.ptag);
        let index = vi_of(vi).unwrap().index;
        for turn in 1..=3 {
            let before = taken(&served);
            fill(&mut served);
            assert!(with(device, Datapath::take_submissions));
            let in_share = taken(&served) - before;
            assert_eq!(in_share, u64::from(8 * share), "turn {turn}");
            // Whatever comes for it, and however fast it writes.
            for _ in 0..5 {
                let found = with(device, |path| path.claim_receive(index));
                assert_eq!(found, Claim::Empty);
                fill(&mut served);
            }
            assert_eq!(taken(&served) - before, in_share + ring, "turn {turn}");
        }
        served.close();
    }
}

#[test]
fn a_message_finds_the_receive_at_the_end_of_a_full_ring() {
    let mut served = Served::new("end-of-ring", limits());
    let device = served.device;
    let [near, far] = [(); 2].map(|()| served.vi(served.nic, served.ptag));
    for _ in 1..served.arena.submissions() {
        served.submit(far, Submission::Break);
    }
    served.submit(near, Submission::Receive);
    let index = vi_of(near).unwrap().index;
    with(device, |path| {
        path.take_submissions();
        let claimed = path.claim_receive(index);
        assert!(matches!(claimed, Claim::Ready { .. }), "{claimed:?}");
    });
    served.close();
}

#[test]
fn a_ring_is_empty_after_its_turns_and_a_flood_never() {
    let mut served = Served::new("turns", limits());
    let (device, id) = (served.device, served.id);
    let turn = || {
        with(device, |path| {
            path.take_submissions();
            path.clients.is_taken(id)
        })
    };
    assert!(turn(), "nothing was there");
    let turns = with(device, |path| path.clients.turns_of_ring(id));
    assert_eq!(turns, served.arena.submissions() / 8);
    fill(&mut served);
    let needed = (1..=turns + 1).find(|_| turn()).unwrap();
    assert_eq!(needed, turns + 1, "the last one finds nothing");
    for _ in 0..2 * turns {
        fill(&mut served);
        assert!(!turn());
    }
    served.close();
}

/// A receive of so many segments.
fn long(segments: usize) -> Slot {
    let mut slot = Slot::default();
    slot.segments_mut(segments);
    slot
}

/// Slots of a VI's receive queue that hold room for segments beyond themselves.
fn spilled(vi: u64) -> usize {
    // SAFETY: the NIC has no threads, and the test is one.
    unsafe { vi_of(vi).unwrap().recv.spilled() }
}

#[test]
fn room_for_segments_is_had_by_descriptors_that_are_posted_and_by_no_others() {
    let limits = Limits {
        segments: 16,
        ..limits()
    };
    let mut served = Served::new("spills", limits);
    let (device, id) = (served.device, served.id);
    let spare = || with(device, |path| path.clients.get(id).unwrap().spills.spare());
    let vis = [(); 3].map(|()| served.vi(served.nic, served.ptag));
    let mut submit = |vi, slot: &Slot| {
        assert!(served.try_submit_slot(vi, Submission::Receive, slot));
        assert!(with(device, Datapath::take_submissions));
    };
    // Told at once.
    for vi in vis {
        let index = vi_of(vi).unwrap().index;
        for round in 1..=3 {
            submit(vi, &long(16));
            submit(vi, &long(4));
            assert_eq!(spilled(vi), 1, "round {round}");
            with(device, |path| path.flush_queue(index, Side::Receive));
            assert_eq!((spilled(vi), spare()), (0, 1), "round {round}");
        }
    }
    // Wrong ones wait for their end without it.
    let vi = vis[0];
    let index = vi_of(vi).unwrap().index;
    for (fault, control) in [(status::FORMAT_ERROR, 0), (0, control::OP_RDMA_READ)] {
        let mut wrong = long(16);
        (wrong.fault, wrong.control) = (fault, control);
        submit(vi, &wrong);
        with(device, |path| path.flush_queue(index, Side::Receive));
        assert_eq!(spilled(vi), 0);
    }
    served.close();
}

#[test]
fn room_for_segments_goes_with_what_is_told_late_or_never() {
    let limits = Limits {
        segments: 16,
        ..limits()
    };
    let mut served = Served::new("late", limits);
    let device = served.device;
    let nic = device.instances.open(device.number(), 0);
    let ptag = nic::create_ptag(nic).unwrap();
    let told_late = served.vi(served.nic, served.ptag);
    let told_never = served.vi(nic, ptag);
    let mut listener = Listener::default();
    // What there is no room for waits, without its segments.
    let queue = |vi| &vi_of(vi).unwrap().recv;
    let mut rounds = 0;
    while !queue(told_late).has_complete() || !queue(told_never).has_complete() {
        rounds += 1;
        assert!(rounds < 10_000, "the ring has no end");
        for vi in [told_late, told_never] {
            let index = vi_of(vi).unwrap().index;
            assert!(served.try_submit_slot(vi, Submission::Receive, &long(16)));
            assert!(with(device, Datapath::take_submissions));
            with(device, |path| path.flush_queue(index, Side::Receive));
            assert_eq!(spilled(vi), 0, "round {rounds}");
        }
    }
    assert!(served.try_submit_slot(told_never, Submission::Receive, &long(16)));
    assert!(with(device, Datapath::take_submissions));
    assert_eq!(spilled(told_never), 1);
    let never = queue(told_never);
    device::close(device, nic).unwrap();
    // SAFETY: the NIC has no threads, and the test is one.
    assert_eq!(unsafe { never.spilled() }, 0, "it ended");
    while listener.take(&served.arena).is_some() {}
    listener.give_back(&served.arena);
    with(device, Datapath::settle_clients);
    assert!(!queue(told_late).has_complete());
    served.close();
}

/// What the application sees of its end means that the process reaches nothing of it any more.
#[test]
fn given_up_client_keeps_its_connection_until_it_is_removed() {
    let (arena, _) = Arena::create(RingSizes::for_segments(1)).unwrap();
    let (life, application) = Socket::pair().unwrap();
    let life = Arc::new(life);
    let (wakeup, _) = sys::WakeupSet::new().unwrap().add_client().unwrap();
    let mut client = Client::new(
        0,
        arena,
        wakeup,
        Arc::clone(&life),
        Arc::default(),
        limits(),
    );
    client.give_up(Nonsense("a test"));
    assert!(life.is_over(), "the thread that waits for it goes on");
    assert!(!application.is_over());
    drop((client, life));
    assert!(application.is_over());
}
