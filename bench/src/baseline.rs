//! Control of a datapath process: its work, done by plain threads on the same cores; a lower bound of its cost.
//!
//! Latency: the client passes a word to a relay thread on the process's core, which passes it on to the server, and
//! back the same way, each hop through a cache line of its own. Bandwidth: the relay's core copies the messages from
//! one buffer to another.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::channel::RoundResult;
use crate::cli::{CommonOptions, Cores};
use crate::error::{Error, Result};
use crate::latency::{PingResult, RoundLimit};
use crate::nic::NicSettings;
use crate::output;
use crate::plan::Test;
use crate::process::pin;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Unsuccessful polls before a thread that shares its core yields.
const POLLS_BEFORE_YIELD: u32 = 16;

/// A word on a cache line of its own; the adjacent line, which may be prefetched, is unused too.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct CacheLine(pub(crate) AtomicU64);

/// The control of a run through a datapath process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baseline {
    /// Cores of client and server.
    pub(crate) cores: Cores,
    /// Core of the datapath process.
    pub(crate) relay: usize,
}

/// The words by which the threads of a round communicate, and the flag that ends the round.
#[derive(Default)]
struct RelayWords {
    client_to_relay: CacheLine,
    relay_to_server: CacheLine,
    server_to_relay: CacheLine,
    relay_to_client: CacheLine,
    is_over: AtomicBool,
}

impl RelayWords {
    fn relay(&self) {
        let (mut last_request, mut last_response) = (0, 0);
        while !self.is_over.load(Ordering::Relaxed) {
            let word = self.client_to_relay.0.load(Ordering::Acquire);
            if word != last_request {
                last_request = word;
                publish(&self.relay_to_server, word);
            }
            let word = self.server_to_relay.0.load(Ordering::Acquire);
            if word != last_response {
                last_response = word;
                publish(&self.relay_to_client, word);
            }
        }
    }
}

/// Waits until the word differs from `last`, and returns it; `None` if the round is over.
#[inline]
pub(crate) fn wait_for_change(
    line: &CacheLine,
    last: u64,
    is_over: &AtomicBool,
    yields: bool,
) -> Option<u64> {
    let mut polls = 0;
    loop {
        // Acquire: partner of the Release in `publish`.
        let word = line.0.load(Ordering::Acquire);
        if word != last {
            return Some(word);
        }
        polls += 1;
        if polls == POLLS_BEFORE_YIELD {
            polls = 0;
            // Relaxed: the flag carries no data.
            if is_over.load(Ordering::Relaxed) {
                return None;
            }
            if yields {
                thread::yield_now();
            }
        }
        spin_loop();
    }
}

/// Stores the next word for the waiting thread.
#[inline]
pub(crate) fn publish(line: &CacheLine, word: u64) {
    // Release: partner of the Acquire loads in `wait_for_change` and `relay`.
    line.0.store(word, Ordering::Release);
}

/// Ends the round on drop, also on errors: the other threads wait for it.
pub(crate) struct EndRoundOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for EndRoundOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Baseline {
    /// Creates the control of a run through a datapath process; `None` unless client and server are on this host and
    /// the process yields its core when idle.
    pub(crate) fn for_run(
        common: &CommonOptions,
        settings: &NicSettings,
        cores: Option<Cores>,
    ) -> Option<Self> {
        let relay = settings.process_core()?;
        let cores = cores.filter(|_| common.connect.is_none())?;
        if settings.process_spins() {
            output::note(format_args!(
                "no control: the datapath process busy-polls core {relay}; it needs idle = \"hybrid\""
            ));
            return None;
        }
        Some(Self { cores, relay })
    }

    /// Runs ping-pong through the relay and records the round trips.
    pub(crate) fn ping(
        &self,
        limit: &RoundLimit,
        round_trips_ns: &mut Histogram<u64>,
    ) -> Result<PingResult> {
        let words = RelayWords::default();
        let shares = self.cores.client == self.cores.server;
        thread::scope(|scope| {
            let over = EndRoundOnDrop(&words.is_over);
            let relay = scope.spawn(|| pin(self.relay).map(|()| words.relay()));
            let server = scope.spawn(|| {
                pin(self.cores.server)?;
                let mut last = 0;
                while let Some(word) =
                    wait_for_change(&words.relay_to_server, last, &words.is_over, shares)
                {
                    last = word;
                    publish(&words.server_to_relay, word);
                }
                Ok(())
            });
            let mut pinged = PingResult::default();
            let start = Instant::now();
            let mut before = start;
            while !limit.is_over(before - start, pinged.round_trips)
                && !relay.is_finished()
                && !server.is_finished()
            {
                publish(&words.client_to_relay, pinged.round_trips + 1);
                if wait_for_change(
                    &words.relay_to_client,
                    pinged.round_trips,
                    &words.is_over,
                    shares,
                )
                .is_none()
                {
                    break;
                }
                let now = Instant::now();
                round_trips_ns.saturating_record((now - before).as_nanos() as u64);
                pinged.round_trips += 1;
                before = now;
            }
            pinged.elapsed = before - start;
            drop(over);
            for thread in [relay, server] {
                let ended = thread.join();
                ended.map_err(|_| Error::Port("a thread of the control panicked".into()))??;
            }
            Ok(pinged)
        })
    }

    /// Copies messages on the relay's core until the limit.
    pub(crate) fn copy(&self, test: &Test, limit: &RoundLimit) -> Result<RoundResult> {
        let message_bytes = test.size_bytes as usize;
        let mut buffers = [1_u8, 2].map(|fill| vec![fill; message_bytes * test.buffers() as usize]);
        let run = || {
            pin(self.relay)?;
            let [from, to] = &mut buffers;
            let start = Instant::now();
            let mut copied = 0;
            let mut elapsed = Duration::ZERO;
            while !limit.is_over(elapsed, copied) {
                let pieces = from.chunks_exact(message_bytes);
                for (from, to) in pieces.zip(to.chunks_exact_mut(message_bytes)) {
                    to.copy_from_slice(from);
                    copied += 1;
                }
                elapsed = start.elapsed();
            }
            Ok(RoundResult {
                delivered: copied,
                timed: copied,
                elapsed_ns: elapsed.as_nanos() as u64,
                broken: None,
            })
        };
        let copied = thread::scope(|scope| scope.spawn(run).join());
        copied.map_err(|_| Error::Port("a thread of the control panicked".into()))?
    }
}
