//! The owner of a slot: connects it, decides when the connection ends and how, and closes its books.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use e2e::sync::{AtomicU64, Ordering};
use vipl::{
    CompletionQueue, Descriptor, Discriminator, NetAddress, Nic, Ptag, Timeout, Vi, ViHandle,
    ViState, VipError,
};

use crate::Failure;
use crate::books::{Books, EndedBy, Record, Wire};
use crate::events::Events;
use crate::header::PeerMemory;
use crate::pattern::Rng;
use crate::plan::{Reaping, Shape, Side, Stream};
use crate::reap::SendReap;
use crate::receive::{ReceivePost, ReceiveReap};
use crate::slot::{AllDuties, Place, Posted, Shared, Slot, lock};
use crate::source::Source;
use crate::transmit::{RESERVE, SendPost};
use crate::window::Window;

/// Longer than anything takes that does not hang, on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a side that has nothing more to say waits for the other to end the connection.
const LAST_WORD: Duration = Duration::from_millis(100);
/// An unreliable connection on which so long nothing moves has lost the news of its credits.
const QUIET: Duration = Duration::from_millis(500);
/// A server that waits for a client keeps its other slots waiting.
const LISTEN: Duration = Duration::from_millis(2);
/// How long a client waits for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a client mostly waits where a request may be lost: those that wait for its repetition keep their other slots
/// waiting, and a server listens for a moment only.
const HASTE: Duration = Duration::from_millis(50);
/// Planned messages of one connection and side, at most.
const LONGEST: u64 = 600;

/// What all threads of a side need.
pub(crate) struct Common {
    pub(crate) side: Side,
    pub(crate) seed: u64,
    pub(crate) place: Place,
    /// The host of the other side.
    pub(crate) remote: vipl::HostAddress,
    pub(crate) events: Events,
    pub(crate) books: Books,
    pub(crate) directory: Mutex<HashMap<ViHandle, Arc<Slot>>>,
    /// Completions that were taken past their completion queue, on which an entry is left of each.
    pub(crate) taken_past_cqs: AtomicU64,
    /// Entries that stood for no completion.
    pub(crate) idle_entries: AtomicU64,
}

impl Common {
    fn nic(&self) -> &Nic {
        &self.place.nic
    }

    fn ptag(&self) -> &Ptag {
        &self.place.ptag
    }

    /// Counts completions that are taken without their entries. The caller has the duties of the slot, or the VI in
    /// the directory, so that no thread looks for the completion of such an entry before it is counted.
    fn note_taken(&self, reaping: Reaping, completions: usize) {
        if reaping == Reaping::Queue {
            self.taken_past_cqs
                .fetch_add(completions as u64, Ordering::SeqCst);
        }
    }
}

/// How this side ends a connection when it has sent all it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// At once, with whatever is in flight.
    Abrupt,
    /// When all its own sends are complete.
    Orderly,
    /// The other side shall do it.
    Patient,
    /// By something that the other side must refuse.
    Stray,
}

enum Phase {
    Down,
    Up {
        ending: Ending,
        since: Instant,
    },
    /// Everything is sent, or the stray is posted.
    Waiting {
        since: Instant,
    },
}

/// A slot as its owner sees it.
pub(crate) struct Control {
    pub(crate) slot: Arc<Slot>,
    phase: Phase,
    connection: u32,
    source: Source,
    send_cq: Option<CompletionQueue>,
    receive_cq: Option<CompletionQueue>,
    moves: u64,
    moved_at: Instant,
}

fn build(
    common: &Common,
    shape: &Shape,
    cqs: (Option<&CompletionQueue>, Option<&CompletionQueue>),
) -> Result<Arc<Vi>, Failure> {
    let mut vi = common
        .nic()
        .vi(common.ptag())
        .reliability(shape.level)
        .max_transfer_bytes(shape.max_transfer_bytes as u64)
        .rdma_write(true)
        .rdma_read(shape.reads);
    if let Some(cq) = cqs.0 {
        vi = vi.send_cq(cq);
    }
    if let Some(cq) = cqs.1 {
        vi = vi.recv_cq(cq);
    }
    Ok(Arc::new(vi.build()?))
}

fn descriptors(
    common: &Common,
    shape: &Shape,
    count: usize,
    rng: &mut Rng,
) -> Result<Vec<Descriptor>, Failure> {
    (0..count)
        .map(|_| common.place.descriptor(shape, rng))
        .collect()
}

impl Control {
    /// A slot with a VI that reports to `cq`, if it shall report at all.
    pub(crate) fn new(
        common: &Common,
        shape: Shape,
        reap_cq: &CompletionQueue,
        rng: &mut Rng,
    ) -> Result<Self, Failure> {
        let cq_for = |reaping| (reaping == Reaping::Queue).then(|| reap_cq.clone());
        let (send_cq, receive_cq) = (cq_for(shape.send_reaping), cq_for(shape.receive_reaping));
        let vi = build(common, &shape, (send_cq.as_ref(), receive_cq.as_ref()))?;
        let window = Window::new(common.nic(), common.ptag(), &shape)?;
        let source = Source::new(common.nic(), common.ptag())?;
        let memory = PeerMemory {
            window: window.remote(),
            source: source.remote(),
        };
        let stream = |from| Stream {
            seed: common.seed,
            slot: shape.slot,
            connection: 0,
            from,
        };
        let slot = Arc::new(Slot {
            shape,
            shared: Shared::default(),
            sends: Posted::default(),
            receives: Posted::default(),
            idle_sends: descriptors(common, &shape, shape.sends, rng)?.into(),
            idle_receives: descriptors(common, &shape, shape.receives, rng)?.into(),
            send_post: SendPost::new(Arc::clone(&vi), stream(common.side), memory).into(),
            send_reap: SendReap::new(Arc::clone(&vi)).into(),
            receive_post: ReceivePost {
                vi: Arc::clone(&vi),
            }
            .into(),
            receive_reap: ReceiveReap::new(Arc::clone(&vi), stream(common.side.other()), window)
                .into(),
        });
        lock(&common.directory).insert(vi.handle(), Arc::clone(&slot));
        Ok(Self {
            slot,
            phase: Phase::Down,
            connection: 1,
            source,
            send_cq,
            receive_cq,
            moves: 0,
            moved_at: Instant::now(),
        })
    }

    /// One look at the slot. True if something was done.
    pub(crate) fn step(&mut self, common: &Common, rng: &mut Rng) -> Result<bool, Failure> {
        match self.phase {
            Phase::Down => self.connect(common, rng),
            Phase::Up { ending, since } => self.watch(common, ending, since, rng),
            Phase::Waiting { since } => {
                if self.slot.shared.is_broken.load(Ordering::SeqCst) {
                    self.end(common, EndedBy::Peer, rng)?;
                } else if since.elapsed() >= LAST_WORD {
                    self.end(common, EndedBy::Us, rng)?;
                } else {
                    return Ok(false);
                }
                Ok(true)
            }
        }
    }

    fn watch(
        &mut self,
        common: &Common,
        ending: Ending,
        since: Instant,
        rng: &mut Rng,
    ) -> Result<bool, Failure> {
        let slot = Arc::clone(&self.slot);
        let shared = &slot.shared;
        if shared.is_broken.load(Ordering::SeqCst) {
            self.end(common, EndedBy::Peer, rng)?;
            return Ok(true);
        }
        // In the middle of everything.
        if rng.below(20_000) == 0 {
            self.end(common, EndedBy::Us, rng)?;
            return Ok(true);
        }
        self.expect_moves(since)?;
        let is_quiet = !slot.shape.is_reliable() && self.moved_at.elapsed() > QUIET;
        if shared.quota.load(Ordering::SeqCst) > 0 && !is_quiet {
            return Ok(false);
        }
        match ending {
            Ending::Abrupt => self.end(common, EndedBy::Us, rng)?,
            Ending::Orderly => {
                shared.is_closing.store(true, Ordering::SeqCst);
                // Whoever is about to post has the duty, and is seen.
                drop(lock(&slot.send_post));
                if !slot.sends.is_empty() && !is_quiet {
                    return Ok(false);
                }
                self.end(common, EndedBy::Us, rng)?;
            }
            Ending::Patient => {
                self.phase = Phase::Waiting {
                    since: Instant::now(),
                }
            }
            Ending::Stray => {
                shared.is_closing.store(true, Ordering::SeqCst);
                if !lock(&slot.send_post).post_stray(&slot, rng)? {
                    return Ok(false);
                }
                self.phase = Phase::Waiting {
                    since: Instant::now(),
                };
            }
        }
        Ok(true)
    }

    /// A reliable connection that stands still is what this program looks for.
    fn expect_moves(&mut self, since: Instant) -> Result<(), Failure> {
        let moves = self.slot.shared.moves.load(Ordering::Relaxed);
        if moves != self.moves {
            self.moves = moves;
            self.moved_at = Instant::now();
        }
        let still = self.moved_at.max(since).elapsed();
        if still < TIMEOUT {
            return Ok(());
        }
        let slot = &self.slot;
        let (sends, receives) = (slot.sends.len(), slot.receives.len());
        let number = lock(&slot.send_post).messages;
        Err(format!(
            "connection {} of {:?} stands still since {still:?}: {sends} sends and {receives} receives posted, \
             next message {number}, {:?}",
            self.connection, slot.shape, slot.shared
        )
        .into())
    }

    fn connect(&mut self, common: &Common, rng: &mut Rng) -> Result<bool, Failure> {
        let is_up = if self.slot.shape.client == common.side {
            self.ask(common, rng)?
        } else {
            self.listen(common, rng)?
        };
        if is_up {
            let ending = match rng.below(10) {
                0..4 => Ending::Abrupt,
                4..7 => Ending::Orderly,
                7..9 => Ending::Patient,
                _ if self.slot.shape.is_reliable() => Ending::Stray,
                _ => Ending::Abrupt,
            };
            self.moved_at = Instant::now();
            self.phase = Phase::Up {
                ending,
                since: Instant::now(),
            };
            self.slot.shared.is_up.store(true, Ordering::SeqCst);
        }
        Ok(is_up)
    }

    /// As the client: asks the server of this slot once.
    fn ask(&mut self, common: &Common, rng: &mut Rng) -> Result<bool, Failure> {
        self.begin(common, self.connection, rng)?;
        let name = slot_name(self.slot.shape.slot);
        let own = client_name(self.slot.shape.slot, self.connection);
        let local = common.nic().local_address(&own)?;
        let remote = NetAddress {
            host: common.remote,
            discriminator: Discriminator::new(&name).ok_or("a name that is too long")?,
        };
        let vi = Arc::clone(&lock(&self.slot.send_post).vi);
        let timeout = match common.place.wire {
            Wire::Lossy if rng.chance(800) => HASTE,
            Wire::Lossy | Wire::Lossless => ANSWER,
        };
        match vi.connect(&local, &remote, Timeout::After(timeout)) {
            Ok(_) => Ok(true),
            // Nobody has heard of this connection.
            Err(VipError::NoMatch) => Ok(false),
            Err(VipError::NotReachable) => {
                self.take_back(common, rng)?;
                Ok(false)
            }
            // The server did not want it, or did not come round to it in time: it may know of it.
            Err(VipError::Reject | VipError::Timeout) => {
                self.connection += 1;
                Ok(false)
            }
            Err(error) => {
                Err(format!("slot {} cannot connect: {error}", self.slot.shape.slot).into())
            }
        }
    }

    /// As the server: waits a moment for the client of this slot.
    fn listen(&mut self, common: &Common, rng: &mut Rng) -> Result<bool, Failure> {
        let number = self.slot.shape.slot;
        let local = common.nic().local_address(&slot_name(number))?;
        let mut request = match common.nic().connect_wait(&local, Timeout::After(LISTEN)) {
            Ok(request) => request,
            Err(VipError::Timeout) => return Ok(false),
            Err(error) => return Err(format!("slot {number} cannot listen: {error}").into()),
        };
        let name = request.remote().discriminator;
        self.connection = connection_of(name.as_bytes(), number)
            .ok_or_else(|| format!("slot {number} is asked by {name:?}"))?;
        match rng.below(64) {
            0 => {
                // The client may have given up.
                match request.reject() {
                    Ok(()) | Err(VipError::Timeout) => return Ok(false),
                    Err(error) => {
                        return Err(format!("slot {number} cannot reject: {error}").into());
                    }
                }
            }
            1 => return Ok(false),
            _ => {}
        }
        self.begin(common, self.connection, rng)?;
        let vi = Arc::clone(&lock(&self.slot.send_post).vi);
        match request.accept(&vi) {
            Ok(()) => Ok(true),
            Err(VipError::Timeout) => Ok(false),
            Err(error) => Err(format!("slot {number} cannot accept: {error}").into()),
        }
    }

    /// Puts everything in order for a connection: the receives of its first messages are posted.
    fn begin(&mut self, common: &Common, connection: u32, rng: &mut Rng) -> Result<(), Failure> {
        let slot = &self.slot;
        let mut all = slot.all();
        let stream = |from| Stream {
            seed: common.seed,
            slot: slot.shape.slot,
            connection,
            from,
        };
        all.receive_reap.begin(stream(common.side.other()));
        all.receive_reap.window.expect_untouched()?;
        // What is posted here counts as posted before: the count starts below.
        slot.shared.is_broken.store(false, Ordering::SeqCst);
        while all.receive_post.step(slot)? {}
        self.source.renew(stream(common.side).source_key())?;
        let memory = PeerMemory {
            window: all.receive_reap.window.remote(),
            source: self.source.remote(),
        };
        *all.send_post = SendPost::new(Arc::clone(&all.send_post.vi), stream(common.side), memory);
        *all.send_reap = SendReap::new(Arc::clone(&all.send_post.vi));
        // Short ones more often than long ones.
        let longest = rng.below(LONGEST);
        let quota = rng.below(1 + longest) as u32;
        slot.shared.reset(slot.receives.len(), RESERVE, quota);
        Ok(())
    }

    /// Leads a VI that reached nobody back to Idle; a reliable one is in Error.
    fn take_back(&self, common: &Common, rng: &mut Rng) -> Result<(), Failure> {
        let vi = Arc::clone(&lock(&self.slot.send_post).vi);
        vi.disconnect()
            .map_err(|error| format!("a disconnect: {error}"))?;
        drain(&self.slot, common, &mut self.slot.all(), rng)
    }

    /// Ends the connection, takes everything back, checks it, and enters it into the books.
    fn end(&mut self, common: &Common, by: EndedBy, rng: &mut Rng) -> Result<(), Failure> {
        let slot = Arc::clone(&self.slot);
        let vi = Arc::clone(&lock(&slot.send_post).vi);
        if by == EndedBy::Peer {
            self.expect_loss(common, &vi)?;
        }
        // The other threads may be in the middle of posting and reaping.
        vi.disconnect()
            .map_err(|error| format!("a disconnect: {error}"))?;
        {
            let mut all = slot.all();
            slot.shared.is_up.store(false, Ordering::SeqCst);
            drain(&slot, common, &mut all, rng)?;
            common.books.enter(&record(&slot, &all, by))?;
            all.receive_reap.window.reset()?;
            if rng.chance(200) {
                all.receive_reap.window = Window::new(common.nic(), common.ptag(), &slot.shape)?;
                self.source = Source::new(common.nic(), common.ptag())?;
            }
            if rng.chance(250) {
                drop(vi);
                self.replace(common, &mut all, rng)?;
            }
        }
        self.connection += 1;
        self.phase = Phase::Down;
        Ok(())
    }

    /// Whose connection was ended by the other side is told so [VIPL 6.2].
    fn expect_loss(&self, common: &Common, vi: &Vi) -> Result<(), Failure> {
        if !common.events.await_loss(vi.handle(), TIMEOUT) {
            return Err(format!(
                "{:?}: descriptors are flushed, but no loss is reported",
                self.slot.shape
            )
            .into());
        }
        match vi.state()? {
            ViState::Error => Ok(()),
            other => Err(format!(
                "{:?} is {other:?} after its connection was lost",
                self.slot.shape
            )
            .into()),
        }
    }

    /// Destroys the VI and makes a new one; the caller has drained its send queue.
    fn replace(
        &self,
        common: &Common,
        all: &mut AllDuties<'_>,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let slot = &self.slot;
        let vi = build(
            common,
            &slot.shape,
            (self.send_cq.as_ref(), self.receive_cq.as_ref()),
        )?;
        let old = all.replace(&vi);
        // The receives that are posted go down with it, by one way or the other.
        common.note_taken(slot.shape.receive_reaping, slot.receives.len());
        if rng.chance(500) {
            old.disconnect()?;
            while let Some(completed) = old.recv_done()? {
                slot.receives.take(&completed)?;
                lock(&slot.idle_receives).push(completed.descriptor);
            }
        } else {
            let lost = slot.receives.len();
            slot.receives.clear();
            let fresh = descriptors(common, &slot.shape, lost, rng)?;
            lock(&slot.idle_receives).extend(fresh);
        }
        let mut directory = lock(&common.directory);
        directory.remove(&old.handle());
        directory.insert(vi.handle(), Arc::clone(slot));
        drop(directory);
        let old_handle = old.handle();
        if let Err(kept) = Arc::try_unwrap(old) {
            return Err(format!(
                "{kept:?} is kept by {} others",
                Arc::strong_count(&kept) - 1
            )
            .into());
        }
        common.events.forget(old_handle);
        Ok(())
    }

    /// The end of the run.
    pub(crate) fn finish(mut self, common: &Common, rng: &mut Rng) -> Result<(), Failure> {
        if !matches!(self.phase, Phase::Down) {
            self.end(common, EndedBy::Us, rng)?;
        }
        Ok(())
    }
}

/// Takes back everything that was posted before the disconnect, each descriptor in its turn.
fn drain(
    slot: &Slot,
    common: &Common,
    all: &mut AllDuties<'_>,
    rng: &mut Rng,
) -> Result<(), Failure> {
    while all.send_reap.step(slot, &common.place, None, rng)? {
        common.note_taken(slot.shape.send_reaping, 1);
    }
    if !slot.sends.is_empty() {
        return Err(format!(
            "{} sends stay on a queue that was flushed",
            slot.sends.len()
        )
        .into());
    }
    // Receives that another thread has posted since are for the next connection.
    while all.receive_reap.step(slot, &common.place, None, rng)? {
        common.note_taken(slot.shape.receive_reaping, 1);
    }
    let all_sends = lock(&slot.idle_sends).len();
    let all_receives = lock(&slot.idle_receives).len() + slot.receives.len();
    if (all_sends, all_receives) != (slot.shape.sends, slot.shape.receives) {
        return Err(format!(
            "{all_sends} sends and {all_receives} receives are left: {:?}",
            slot.shape
        )
        .into());
    }
    Ok(())
}

fn record(slot: &Slot, all: &AllDuties<'_>, ended_by: EndedBy) -> Record {
    let (post, outcome, receive) = (&all.send_post, &all.send_reap.outcome, &all.receive_reap);
    Record {
        slot: slot.shape.slot,
        connection: post.stream.connection,
        ended_by,
        posted: post.messages,
        sent: outcome.messages,
        silent_writes: outcome.silent_writes,
        reads: outcome.reads,
        read_bytes: outcome.read_bytes,
        stray_reads: post.stray_reads,
        stray_writes: post.stray_writes,
        refused_reads: outcome.refused_reads,
        refused_writes: outcome.refused_writes,
        sends_unanswered: outcome.unanswered,
        sends_flushed: outcome.flushed,
        received: receive.messages,
        next: receive.next,
        receives_flushed: receive.flushed,
        bytes: receive.bytes,
    }
}

fn slot_name(slot: u16) -> Vec<u8> {
    format!("slot-{slot}").into_bytes()
}

fn client_name(slot: u16, connection: u32) -> Vec<u8> {
    let mut name = slot.to_le_bytes().to_vec();
    name.extend(connection.to_le_bytes());
    name
}

/// The connection that a client of this slot means.
fn connection_of(name: &[u8], slot: u16) -> Option<u32> {
    let rest = name.strip_prefix(&slot.to_le_bytes())?;
    Some(u32::from_le_bytes(rest.try_into().ok()?))
}
