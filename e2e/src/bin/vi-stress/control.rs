//! The owner of a slot: connects it, decides when and how the connection ends, and writes its record.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use e2e::sync::{AtomicU64, Ordering};
use vipl::{
    CompletionQueue, Descriptor, Discriminator, NetAddress, Nic, Ptag, Timeout, Vi, ViHandle,
    ViState, VipError,
};

use crate::accounting::{EndedBy, Record, RecordWriter, Wire};
use crate::events::Events;
use crate::header::PeerMemory;
use crate::pattern::Rng;
use crate::plan::{CompletionMode, Side, SlotConfig, Stream};
use crate::reap::SendReap;
use crate::receive::{ReceivePost, ReceiveReap};
use crate::slot::{NicContext, PostedQueue, Shared, Slot, SlotGuards, lock};
use crate::source::Source;
use crate::transmit::{RESERVE, SendPost};
use crate::window::Window;
use e2e::failure::Failure;

/// Upper limit for one step on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a side which has sent everything waits for the other side to disconnect.
const PEER_DISCONNECT_TIMEOUT: Duration = Duration::from_millis(100);
/// Time without progress after which an unreliable connection is ended: its credits are lost.
const CREDIT_LOSS_TIMEOUT: Duration = Duration::from_millis(500);
/// Time that a server waits for a request; its thread does not serve its other slots meanwhile.
const LISTEN_TIMEOUT: Duration = Duration::from_millis(2);
/// Time that a client waits for a response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a client usually waits on a lossy network: a wait for the retransmission of a request would block its
/// other slots, and the server listens only for [`LISTEN_TIMEOUT`].
const SHORT_CONNECT_TIMEOUT: Duration = Duration::from_millis(50);
/// Upper limit of the planned messages per connection and side.
const MAX_QUOTA: u64 = 600;

/// State that all threads of a side share.
pub(crate) struct Common {
    pub(crate) side: Side,
    pub(crate) seed: u64,
    pub(crate) context: NicContext,
    /// The host of the remote side.
    pub(crate) remote: vipl::HostAddress,
    pub(crate) events: Events,
    pub(crate) records: RecordWriter,
    pub(crate) directory: Mutex<HashMap<ViHandle, Arc<Slot>>>,
    /// Completions taken from the work queue, each of which leaves an entry on its completion queue.
    pub(crate) completions_without_entry: AtomicU64,
    /// Completion queue entries without a completion.
    pub(crate) stale_entries: AtomicU64,
}

impl Common {
    fn nic(&self) -> &Nic {
        &self.context.nic
    }

    fn ptag(&self) -> &Ptag {
        &self.context.ptag
    }

    /// Counts completions that are taken without their entries. The caller holds the guards of the slot, or the VI is
    /// still in the directory, so that no thread processes such an entry before it is counted.
    fn count_without_entry(&self, mode: CompletionMode, completions: usize) {
        if mode == CompletionMode::Queue {
            self.completions_without_entry
                .fetch_add(completions as u64, Ordering::SeqCst);
        }
    }
}

/// How this side ends a connection after its last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseMode {
    /// Immediately, with sends in flight.
    Immediate,
    /// After completion of its own sends.
    AfterSends,
    /// Waits for the remote side to disconnect.
    ByPeer,
    /// By an operation that the remote side must refuse.
    Unexpected,
}

enum Phase {
    Down,
    Up {
        mode: CloseMode,
        since: Instant,
    },
    /// All messages are sent, or the unexpected operation is posted.
    Waiting {
        since: Instant,
    },
}

/// A slot with the state of its owner.
pub(crate) struct Control {
    pub(crate) slot: Arc<Slot>,
    phase: Phase,
    connection: u32,
    source: Source,
    send_cq: Option<CompletionQueue>,
    receive_cq: Option<CompletionQueue>,
    progress: u64,
    progress_at: Instant,
}

fn build(
    common: &Common,
    config: &SlotConfig,
    cqs: (Option<&CompletionQueue>, Option<&CompletionQueue>),
) -> Result<Arc<Vi>, Failure> {
    let mut vi = common
        .nic()
        .vi(common.ptag())
        .reliability(config.level)
        .max_transfer_bytes(config.max_transfer_bytes as u64)
        .rdma_write(true)
        .rdma_read(config.reads);
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
    config: &SlotConfig,
    count: usize,
    rng: &mut Rng,
) -> Result<Vec<Descriptor>, Failure> {
    (0..count)
        .map(|_| common.context.descriptor(config, rng))
        .collect()
}

impl Control {
    /// Creates a slot. Queues with [`CompletionMode::Queue`] use `reap_cq`.
    pub(crate) fn new(
        common: &Common,
        config: SlotConfig,
        reap_cq: &CompletionQueue,
        rng: &mut Rng,
    ) -> Result<Self, Failure> {
        let cq_for = |mode| (mode == CompletionMode::Queue).then(|| reap_cq.clone());
        let (send_cq, receive_cq) = (cq_for(config.send_mode), cq_for(config.receive_mode));
        let vi = build(common, &config, (send_cq.as_ref(), receive_cq.as_ref()))?;
        let window = Window::new(common.nic(), common.ptag(), &config)?;
        let source = Source::new(common.nic(), common.ptag())?;
        let memory = PeerMemory {
            window: window.remote(),
            source: source.remote(),
        };
        let stream = |from| Stream {
            seed: common.seed,
            slot: config.slot,
            connection: 0,
            from,
        };
        let slot = Arc::new(Slot {
            config,
            shared: Shared::default(),
            sends: PostedQueue::default(),
            receives: PostedQueue::default(),
            idle_sends: descriptors(common, &config, config.sends, rng)?.into(),
            idle_receives: descriptors(common, &config, config.receives, rng)?.into(),
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
            progress: 0,
            progress_at: Instant::now(),
        })
    }

    /// Runs one step of the owner; returns true if anything changed.
    pub(crate) fn step(&mut self, common: &Common, rng: &mut Rng) -> Result<bool, Failure> {
        match self.phase {
            Phase::Down => self.connect(common, rng),
            Phase::Up { mode, since } => self.watch(common, mode, since, rng),
            Phase::Waiting { since } => {
                if self.slot.shared.is_broken.load(Ordering::SeqCst) {
                    self.end(common, EndedBy::Peer, rng)?;
                } else if since.elapsed() >= PEER_DISCONNECT_TIMEOUT {
                    self.end(common, EndedBy::Local, rng)?;
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
        mode: CloseMode,
        since: Instant,
        rng: &mut Rng,
    ) -> Result<bool, Failure> {
        let slot = Arc::clone(&self.slot);
        let shared = &slot.shared;
        if shared.is_broken.load(Ordering::SeqCst) {
            self.end(common, EndedBy::Peer, rng)?;
            return Ok(true);
        }
        // A disconnect at a random time.
        if rng.below(20_000) == 0 {
            self.end(common, EndedBy::Local, rng)?;
            return Ok(true);
        }
        self.check_progress(since)?;
        let is_stuck =
            !slot.config.is_reliable() && self.progress_at.elapsed() > CREDIT_LOSS_TIMEOUT;
        if shared.quota.load(Ordering::SeqCst) > 0 && !is_stuck {
            return Ok(false);
        }
        match mode {
            CloseMode::Immediate => self.end(common, EndedBy::Local, rng)?,
            CloseMode::AfterSends => {
                shared.is_closing.store(true, Ordering::SeqCst);
                // Waits for a thread that is posting now.
                drop(lock(&slot.send_post));
                if !slot.sends.is_empty() && !is_stuck {
                    return Ok(false);
                }
                self.end(common, EndedBy::Local, rng)?;
            }
            CloseMode::ByPeer => {
                self.phase = Phase::Waiting {
                    since: Instant::now(),
                }
            }
            CloseMode::Unexpected => {
                shared.is_closing.store(true, Ordering::SeqCst);
                if !lock(&slot.send_post).post_unexpected(&slot, rng)? {
                    return Ok(false);
                }
                self.phase = Phase::Waiting {
                    since: Instant::now(),
                };
            }
        }
        Ok(true)
    }

    /// Fails if the connection has made no progress within [`TIMEOUT`].
    fn check_progress(&mut self, since: Instant) -> Result<(), Failure> {
        let progress = self.slot.shared.progress.load(Ordering::Relaxed);
        if progress != self.progress {
            self.progress = progress;
            self.progress_at = Instant::now();
        }
        let stalled = self.progress_at.max(since).elapsed();
        if stalled < TIMEOUT {
            return Ok(());
        }
        let slot = &self.slot;
        let (sends, receives) = (slot.sends.len(), slot.receives.len());
        let number = lock(&slot.send_post).messages;
        Err(format!(
            "connection {} of {:?}: no progress for {stalled:?}: {sends} sends and {receives} receives posted, \
             next message {number}, {:?}",
            self.connection, slot.config, slot.shared
        )
        .into())
    }

    fn connect(&mut self, common: &Common, rng: &mut Rng) -> Result<bool, Failure> {
        let is_up = if self.slot.config.client == common.side {
            self.request(common, rng)?
        } else {
            self.listen(common, rng)?
        };
        if is_up {
            let mode = match rng.below(10) {
                0..4 => CloseMode::Immediate,
                4..7 => CloseMode::AfterSends,
                7..9 => CloseMode::ByPeer,
                _ if self.slot.config.is_reliable() => CloseMode::Unexpected,
                _ => CloseMode::Immediate,
            };
            self.progress_at = Instant::now();
            self.phase = Phase::Up {
                mode,
                since: Instant::now(),
            };
            self.slot.shared.is_up.store(true, Ordering::SeqCst);
        }
        Ok(is_up)
    }

    /// As client, requests a connection once. Returns true if it is established.
    fn request(&mut self, common: &Common, rng: &mut Rng) -> Result<bool, Failure> {
        self.begin(common, self.connection, rng)?;
        let name = slot_name(self.slot.config.slot);
        let own = client_name(self.slot.config.slot, self.connection);
        let local = common.nic().local_address(&own)?;
        let remote = NetAddress {
            host: common.remote,
            discriminator: Discriminator::new(&name).ok_or("the discriminator is too long")?,
        };
        let vi = Arc::clone(&lock(&self.slot.send_post).vi);
        let timeout = match common.context.wire {
            Wire::Lossy if rng.chance(800) => SHORT_CONNECT_TIMEOUT,
            Wire::Lossy | Wire::Lossless => CONNECT_TIMEOUT,
        };
        match vi.connect(&local, &remote, Timeout::After(timeout)) {
            Ok(_) => Ok(true),
            // The server is not listening.
            Err(VipError::NoMatch) => Ok(false),
            Err(VipError::NotReachable) => {
                self.recover_idle(common, rng)?;
                Ok(false)
            }
            // The server may have seen the request.
            Err(VipError::Reject | VipError::Timeout) => {
                self.connection += 1;
                Ok(false)
            }
            Err(error) => {
                Err(format!("slot {} cannot connect: {error}", self.slot.config.slot).into())
            }
        }
    }

    /// As server, waits for the client of this slot. Returns true if a connection is established.
    fn listen(&mut self, common: &Common, rng: &mut Rng) -> Result<bool, Failure> {
        let number = self.slot.config.slot;
        let local = common.nic().local_address(&slot_name(number))?;
        let mut request = match common
            .nic()
            .connect_wait(&local, Timeout::After(LISTEN_TIMEOUT))
        {
            Ok(request) => request,
            Err(VipError::Timeout) => return Ok(false),
            Err(error) => return Err(format!("slot {number} cannot listen: {error}").into()),
        };
        let name = request.remote().discriminator;
        self.connection = connection_of(name.as_bytes(), number)
            .ok_or_else(|| format!("slot {number}: request from {name:?}"))?;
        match rng.below(64) {
            0 => {
                // The client may have timed out.
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

    /// Prepares the slot for a connection, and posts the receives of its first messages.
    fn begin(&mut self, common: &Common, connection: u32, rng: &mut Rng) -> Result<(), Failure> {
        let slot = &self.slot;
        let mut all = slot.lock_all();
        let stream = |from| Stream {
            seed: common.seed,
            slot: slot.config.slot,
            connection,
            from,
        };
        all.receive_reap.begin(stream(common.side.other()));
        all.receive_reap.window.expect_untouched()?;
        // These receives are not counted here, but by `reset` below.
        slot.shared.is_broken.store(false, Ordering::SeqCst);
        while all.receive_post.step(slot)? {}
        self.source.renew(stream(common.side).source_key())?;
        let memory = PeerMemory {
            window: all.receive_reap.window.remote(),
            source: self.source.remote(),
        };
        *all.send_post = SendPost::new(Arc::clone(&all.send_post.vi), stream(common.side), memory);
        *all.send_reap = SendReap::new(Arc::clone(&all.send_post.vi));
        // Short connections are more frequent than long ones.
        let longest = rng.below(MAX_QUOTA);
        let quota = rng.below(1 + longest) as u32;
        slot.shared.reset(slot.receives.len(), RESERVE, quota);
        Ok(())
    }

    /// Disconnects a VI after VIP_NOT_REACHABLE: a reliable one is in the state Error.
    fn recover_idle(&self, common: &Common, rng: &mut Rng) -> Result<(), Failure> {
        let vi = Arc::clone(&lock(&self.slot.send_post).vi);
        vi.disconnect()
            .map_err(|error| format!("a disconnect: {error}"))?;
        drain(&self.slot, common, &mut self.slot.lock_all(), rng)
    }

    /// Ends the connection, takes and checks all descriptors, and writes the record.
    fn end(&mut self, common: &Common, by: EndedBy, rng: &mut Rng) -> Result<(), Failure> {
        let slot = Arc::clone(&self.slot);
        let vi = Arc::clone(&lock(&slot.send_post).vi);
        if by == EndedBy::Peer {
            self.expect_loss(common, &vi)?;
        }
        // Other threads may be posting and reaping concurrently.
        vi.disconnect()
            .map_err(|error| format!("a disconnect: {error}"))?;
        {
            let mut all = slot.lock_all();
            slot.shared.is_up.store(false, Ordering::SeqCst);
            drain(&slot, common, &mut all, rng)?;
            common.records.append(&record(&slot, &all, by))?;
            all.receive_reap.window.reset()?;
            if rng.chance(200) {
                all.receive_reap.window = Window::new(common.nic(), common.ptag(), &slot.config)?;
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

    /// Checks that the loss of the connection is reported and the VI is in the state Error [VIPL 6.2].
    fn expect_loss(&self, common: &Common, vi: &Vi) -> Result<(), Failure> {
        if !common.events.await_loss(vi.handle(), TIMEOUT) {
            return Err(format!(
                "{:?}: descriptors are flushed, but no loss is reported",
                self.slot.config
            )
            .into());
        }
        match vi.state()? {
            ViState::Error => Ok(()),
            other => Err(format!(
                "{:?} is {other:?} after its connection was lost",
                self.slot.config
            )
            .into()),
        }
    }

    /// Replaces the VI by a new one; the caller has drained its send queue.
    fn replace(
        &self,
        common: &Common,
        all: &mut SlotGuards<'_>,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let slot = &self.slot;
        let vi = build(
            common,
            &slot.config,
            (self.send_cq.as_ref(), self.receive_cq.as_ref()),
        )?;
        let old = all.replace(&vi);
        // The posted receives are taken by Done or lost with the VI.
        common.count_without_entry(slot.config.receive_mode, slot.receives.len());
        if rng.chance(500) {
            old.disconnect()?;
            while let Some(completed) = old.recv_done()? {
                slot.receives.take(&completed)?;
                lock(&slot.idle_receives).push(completed.descriptor);
            }
        } else {
            let lost = slot.receives.len();
            slot.receives.clear();
            let fresh = descriptors(common, &slot.config, lost, rng)?;
            lock(&slot.idle_receives).extend(fresh);
        }
        let mut directory = lock(&common.directory);
        directory.remove(&old.handle());
        directory.insert(vi.handle(), Arc::clone(slot));
        drop(directory);
        let old_handle = old.handle();
        if let Err(kept) = Arc::try_unwrap(old) {
            return Err(format!(
                "{kept:?}: {} other references",
                Arc::strong_count(&kept) - 1
            )
            .into());
        }
        common.events.forget(old_handle);
        Ok(())
    }

    /// Ends the connection at the end of the run.
    pub(crate) fn finish(mut self, common: &Common, rng: &mut Rng) -> Result<(), Failure> {
        if !matches!(self.phase, Phase::Down) {
            self.end(common, EndedBy::Local, rng)?;
        }
        Ok(())
    }
}

/// Takes all descriptors that were posted before the disconnect, in order.
fn drain(
    slot: &Slot,
    common: &Common,
    all: &mut SlotGuards<'_>,
    rng: &mut Rng,
) -> Result<(), Failure> {
    while all.send_reap.step(slot, &common.context, None, rng)? {
        common.count_without_entry(slot.config.send_mode, 1);
    }
    if !slot.sends.is_empty() {
        return Err(format!("{} sends were not flushed", slot.sends.len()).into());
    }
    // Receives that other threads have posted meanwhile belong to the next connection.
    while all.receive_reap.step(slot, &common.context, None, rng)? {
        common.count_without_entry(slot.config.receive_mode, 1);
    }
    let all_sends = lock(&slot.idle_sends).len();
    let all_receives = lock(&slot.idle_receives).len() + slot.receives.len();
    if (all_sends, all_receives) != (slot.config.sends, slot.config.receives) {
        return Err(format!(
            "{all_sends} sends and {all_receives} receives instead of all: {:?}",
            slot.config
        )
        .into());
    }
    Ok(())
}

fn record(slot: &Slot, all: &SlotGuards<'_>, ended_by: EndedBy) -> Record {
    let (post, outcome, receive) = (&all.send_post, &all.send_reap.outcome, &all.receive_reap);
    Record {
        slot: slot.config.slot,
        connection: post.stream.connection,
        ended_by,
        posted: post.messages,
        sent: outcome.messages,
        plain_writes: outcome.plain_writes,
        reads: outcome.reads,
        read_bytes: outcome.read_bytes,
        unexpected_reads: post.unexpected_reads,
        unexpected_writes: post.unexpected_writes,
        refused_reads: outcome.refused_reads,
        refused_writes: outcome.refused_writes,
        sends_without_response: outcome.without_response,
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

/// Parses the number of the connection in the discriminator of a client of this slot.
fn connection_of(name: &[u8], slot: u16) -> Option<u32> {
    let rest = name.strip_prefix(&slot.to_le_bytes())?;
    Some(u32::from_le_bytes(rest.try_into().ok()?))
}
