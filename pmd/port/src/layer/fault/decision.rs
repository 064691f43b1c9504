//! Random decisions which faults apply to a frame.

use super::config::{FaultConfig, FaultRates};
use crate::rng::Rng;

/// How long a frame is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Not held.
    None,
    /// For this number of calls.
    Calls(u64),
    /// Until `frames` other frames were forwarded, or `calls` calls passed.
    Frames { frames: u64, calls: u64 },
}

/// The faults that apply to one frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultDecision {
    pub(super) lost: bool,
    /// Random number that selects the bit to flip.
    pub(super) corrupt: Option<u64>,
    pub(super) duplicate: bool,
    pub(super) wait: Wait,
}

/// Fault counters of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) drop_loss: u64,
    pub(super) drop_partition: u64,
    pub(super) drop_pool_dry: u64,
    pub(super) drop_foreign_buffer: u64,
    pub(super) duplicated: u64,
    pub(super) duplicate_pool_dry: u64,
    pub(super) reordered: u64,
    pub(super) corrupted: u64,
    pub(super) delayed: u64,
}

impl Counts {
    /// Returns the counters with the names of the sending direction.
    pub(super) fn tx_named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("drop_fault_tx_loss", self.drop_loss),
            ("drop_fault_tx_partition", self.drop_partition),
            ("drop_fault_tx_pool_dry", self.drop_pool_dry),
            ("drop_fault_tx_foreign_buffer", self.drop_foreign_buffer),
            ("fault_tx_duplicated", self.duplicated),
            ("fault_tx_duplicate_pool_dry", self.duplicate_pool_dry),
            ("fault_tx_reordered", self.reordered),
            ("fault_tx_corrupted", self.corrupted),
            ("fault_tx_delayed", self.delayed),
        ]
    }

    /// Returns the counters with the names of the receiving direction.
    pub(super) fn rx_named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("drop_fault_rx_loss", self.drop_loss),
            ("drop_fault_rx_partition", self.drop_partition),
            ("drop_fault_rx_pool_dry", self.drop_pool_dry),
            ("drop_fault_rx_foreign_buffer", self.drop_foreign_buffer),
            ("fault_rx_duplicated", self.duplicated),
            ("fault_rx_duplicate_pool_dry", self.duplicate_pool_dry),
            ("fault_rx_reordered", self.reordered),
            ("fault_rx_corrupted", self.corrupted),
            ("fault_rx_delayed", self.delayed),
        ]
    }
}

/// The random generators of one direction: one per fault, so that changing one
/// probability does not change the other faults.
#[derive(Clone, Debug)]
pub(super) struct FaultDecider {
    rates: FaultRates,
    delay_calls_max: u32,
    reorder_frames_max: u32,
    reorder_calls_max: u32,
    loss: Rng,
    duplicate: Rng,
    reorder: Rng,
    corrupt: Rng,
    delay: Rng,
}

impl FaultDecider {
    /// Creates the generators of the sending and of the receiving direction.
    pub(super) fn pair(config: &FaultConfig) -> (Self, Self) {
        let mut seeds = Rng::new(config.seed);
        let tx = Self::new(config, config.tx, &mut seeds);
        let rx = Self::new(config, config.rx, &mut seeds);
        (tx, rx)
    }

    fn new(config: &FaultConfig, rates: FaultRates, seeds: &mut Rng) -> Self {
        let mut next = || Rng::new(seeds.next_u64());
        Self {
            rates,
            delay_calls_max: config.delay_calls_max,
            reorder_frames_max: config.reorder_frames_max,
            reorder_calls_max: config.reorder_calls_max,
            loss: next(),
            duplicate: next(),
            reorder: next(),
            corrupt: next(),
            delay: next(),
        }
    }

    /// Decides the faults of one frame and counts them. Every generator is used for every
    /// frame, so that its sequence depends on nothing else.
    pub(super) fn decide(&mut self, counts: &mut Counts) -> FaultDecision {
        let lost = self.loss.chance(self.rates.loss_ppm);
        let duplicate = self.duplicate.chance(self.rates.duplicate_ppm);
        let corrupt = self.corrupt.chance(self.rates.corrupt_ppm);
        let corrupt = corrupt.then(|| self.corrupt.next_u64());
        let delayed = self.delay.chance(self.rates.delay_ppm);
        let delay = delayed.then(|| 1 + u64::from(self.delay.below(self.delay_calls_max)));
        let reordered = self.reorder.chance(self.rates.reorder_ppm);
        let overtaken =
            reordered.then(|| 1 + u64::from(self.reorder.below(self.reorder_frames_max)));
        let wait = match (delay, overtaken) {
            (Some(calls), _) => Wait::Calls(calls),
            (None, Some(frames)) => Wait::Frames {
                frames,
                calls: u64::from(self.reorder_calls_max),
            },
            (None, None) => Wait::None,
        };
        if lost {
            counts.drop_loss += 1;
        } else {
            counts.duplicated += u64::from(duplicate);
            counts.corrupted += u64::from(corrupt.is_some());
            counts.delayed += u64::from(matches!(wait, Wait::Calls(_)));
            counts.reordered += u64::from(matches!(wait, Wait::Frames { .. }));
        }
        FaultDecision {
            lost,
            corrupt,
            duplicate,
            wait,
        }
    }
}
