//! Keys of message recovery, and their translation for the engine.

use vi_engine::RecoveryConfig;

use super::NicConfig;
use super::error::{Number, ValueError, number};

const NS_PER_US: u64 = 1_000;

impl NicConfig {
    /// Returns whether message recovery is offered to peers.
    pub fn recovery(&self) -> bool {
        self.recovery.unwrap_or(self.port.is_on_wire())
    }

    /// Returns the parameters of recovery; `None` if it is not offered.
    pub(crate) fn recovery_config(&self) -> Option<RecoveryConfig> {
        self.recovery().then(|| RecoveryConfig {
            ack_messages: self.recovery_ack_messages,
            ack_bytes: self.recovery_ack_bytes,
            ack_delay_ns: self.recovery_ack_us * NS_PER_US,
            min_timeout_ns: self.recovery_timeout_us * NS_PER_US,
            tries: self.recovery_tries,
            min_window_frames: self.recovery_min_window_frames.min(self.window_frames()),
            max_window_frames: self.window_frames(),
            max_received_ranges: self.recovery_islands,
        })
    }

    /// Returns the maximum window, limited by the capacity of a receive ring.
    fn window_frames(&self) -> u32 {
        match self.port.is_on_wire() {
            false => self.recovery_window_frames,
            true => self.recovery_window_frames.min(self.rx_frames),
        }
    }

    pub(super) fn recovery_numbers(&self) -> [Number; 8] {
        let windows = (self.recovery_min_window_frames, self.recovery_window_frames);
        [
            number("recovery_ack_messages", self.recovery_ack_messages, 1, 256),
            number("recovery_ack_bytes", self.recovery_ack_bytes, 1, 1 << 24),
            number("recovery_ack_us", self.recovery_ack_us, 0, 1_000_000),
            number(
                "recovery_timeout_us",
                self.recovery_timeout_us,
                10,
                10_000_000,
            ),
            number("recovery_tries", self.recovery_tries, 1, 100),
            number("recovery_min_window_frames", windows.0, 2, 65536),
            number("recovery_window_frames", windows.1, 2, 65536),
            number("recovery_islands", self.recovery_islands, 1, 4096),
        ]
    }

    pub(super) fn window_error(&self) -> Option<ValueError> {
        let (min, max) = (self.recovery_min_window_frames, self.recovery_window_frames);
        (min > max).then(|| {
            let text = format!(
                "recovery_min_window_frames = {min}: must be at most recovery_window_frames = {max}: \
                 lower this, or raise that"
            );
            ValueError::new("recovery_min_window_frames", text)
        })
    }
}
