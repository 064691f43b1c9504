//! Rates and limits of the injected faults.

use std::io;

use crate::rng::MILLION_PPM;

/// Probability of each fault per frame, in parts per million; the faults are independent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// The frame is lost.
    pub loss_ppm: u32,
    /// The frame is delivered twice.
    pub duplicate_ppm: u32,
    /// The frame is overtaken by others.
    pub reorder_ppm: u32,
    /// One bit of the frame is flipped.
    pub corrupt_ppm: u32,
    /// The frame is delivered some calls later.
    pub delay_ppm: u32,
}

impl FaultRates {
    /// Returns whether any fault has a probability above 0.
    pub fn any(&self) -> bool {
        self.all().iter().any(|&ppm| ppm > 0)
    }

    fn all(&self) -> [u32; 5] {
        [
            self.loss_ppm,
            self.duplicate_ppm,
            self.reorder_ppm,
            self.corrupt_ppm,
            self.delay_ppm,
        ]
    }
}

/// Configuration of a [`super::FaultInjector`]. Delays are counted in calls of `tx_burst` and `rx_burst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultConfig {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Faults of sent frames.
    pub tx: FaultRates,
    /// Faults of received frames.
    pub rx: FaultRates,
    /// Maximum delay of a delayed frame in calls; the minimum is 1.
    pub delay_calls_max: u32,
    /// Maximum number of frames that overtake a reordered frame; the minimum is 1.
    pub reorder_frames_max: u32,
    /// Calls after which a reordered frame is delivered even if no others overtook it.
    pub reorder_calls_max: u32,
    /// Buffers of each direction: frames lent for sending, held and duplicated.
    pub pool_frames: u32,
}

impl Default for FaultConfig {
    /// No faults; delays of up to 16 calls and 4 overtaking frames.
    fn default() -> Self {
        Self {
            seed: 1,
            tx: FaultRates::default(),
            rx: FaultRates::default(),
            delay_calls_max: 16,
            reorder_frames_max: 4,
            reorder_calls_max: 16,
            pool_frames: 512,
        }
    }
}

impl FaultConfig {
    pub(super) fn check(&self) -> io::Result<()> {
        let rates = self.tx.all().into_iter().chain(self.rx.all());
        let problem = if rates.into_iter().any(|ppm| ppm > MILLION_PPM) {
            "a fault probability exceeds 1000000 parts per million"
        } else if self.pool_frames == 0 {
            "pool_frames is 0, at least 1 is needed"
        } else if self.delay_calls_max == 0
            || self.reorder_frames_max == 0
            || self.reorder_calls_max == 0
        {
            "delay_calls_max, reorder_frames_max and reorder_calls_max must be at least 1"
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
    }
}
