//! How often which fault happens.

use std::io;

use crate::rng::MILLION_PPM;

/// How often each fault meets a frame, in parts per million; the faults are independent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// The frame disappears.
    pub loss_ppm: u32,
    /// The frame arrives twice.
    pub duplicate_ppm: u32,
    /// The frame lets others overtake it.
    pub reorder_ppm: u32,
    /// One bit of the frame is flipped.
    pub corrupt_ppm: u32,
    /// The frame arrives turns later.
    pub delay_ppm: u32,
}

impl FaultRates {
    /// True if any fault can happen.
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

/// What a [`super::FaultInjector`] does. A turn is one call of `tx_burst` or `rx_burst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultConfig {
    /// Decides everything that is random.
    pub seed: u64,
    /// Faults of sent frames.
    pub tx: FaultRates,
    /// Faults of received frames.
    pub rx: FaultRates,
    /// A delayed frame waits for 1 to so many turns.
    pub delay_turns_max: u32,
    /// A reordered frame is overtaken by 1 to so many others ...
    pub reorder_frames_max: u32,
    /// ... or waits for so many turns if they do not come.
    pub reorder_turns_max: u32,
    /// Buffers of each side: frames lent for sending, held and doubled.
    pub pool_frames: u32,
}

impl Default for FaultConfig {
    /// No faults; 16 turns of delay and 4 overtaking frames when they are switched on.
    fn default() -> Self {
        Self {
            seed: 1,
            tx: FaultRates::default(),
            rx: FaultRates::default(),
            delay_turns_max: 16,
            reorder_frames_max: 4,
            reorder_turns_max: 16,
            pool_frames: 512,
        }
    }
}

impl FaultConfig {
    pub(super) fn check(&self) -> io::Result<()> {
        let rates = self.tx.all().into_iter().chain(self.rx.all());
        let problem = if rates.into_iter().any(|ppm| ppm > MILLION_PPM) {
            "a probability of a fault is above 1,000,000 parts per million"
        } else if self.pool_frames == 0 {
            "a fault injector needs at least one buffer"
        } else if self.delay_turns_max == 0
            || self.reorder_frames_max == 0
            || self.reorder_turns_max == 0
        {
            "a fault that takes no time is none"
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
    }
}
