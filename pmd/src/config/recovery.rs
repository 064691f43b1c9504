//! Message recovery: its keys, checked, and as the engine wants them.

use vi_engine::RecoveryConfig;

use super::{ConfigError, NicConfig, PortKind, error, within};

const NS_PER_US: u64 = 1_000;

impl NicConfig {
    /// Is message recovery offered to peers.
    pub fn recovery(&self) -> bool {
        self.recovery.unwrap_or(match self.port {
            PortKind::Shm => false,
            PortKind::AfPacket => true,
        })
    }

    /// How recovery is done; `None` if it is not offered.
    pub(crate) fn recovery_config(&self) -> Option<RecoveryConfig> {
        self.recovery().then(|| RecoveryConfig {
            ack_messages: self.recovery_ack_messages,
            ack_bytes: self.recovery_ack_bytes,
            ack_delay_ns: self.recovery_ack_us * NS_PER_US,
            min_timeout_ns: self.recovery_timeout_us * NS_PER_US,
            tries: self.recovery_tries,
            min_window_frames: self.recovery_min_window_frames.min(self.window_frames()),
            max_window_frames: self.window_frames(),
            max_islands: self.recovery_islands,
        })
    }

    /// What a receive ring like ours holds, at most.
    fn window_frames(&self) -> u32 {
        match self.port {
            PortKind::Shm => self.recovery_window_frames,
            PortKind::AfPacket => self.recovery_window_frames.min(self.rx_frames),
        }
    }

    pub(super) fn check_recovery(&self) -> Result<(), ConfigError> {
        let counts = [
            ("recovery_ack_messages", self.recovery_ack_messages, 256),
            ("recovery_ack_bytes", self.recovery_ack_bytes, 1 << 24),
            ("recovery_tries", self.recovery_tries, 100),
            ("recovery_islands", self.recovery_islands, 4096),
        ];
        for (key, value, high) in counts {
            within(key, u64::from(value), 1, high)?;
        }
        let windows = [
            (
                "recovery_min_window_frames",
                self.recovery_min_window_frames,
            ),
            ("recovery_window_frames", self.recovery_window_frames),
        ];
        for (key, value) in windows {
            within(key, u64::from(value), 2, 65536)?;
        }
        within("recovery_ack_us", self.recovery_ack_us, 0, 1_000_000)?;
        within(
            "recovery_timeout_us",
            self.recovery_timeout_us,
            10,
            10_000_000,
        )?;
        if self.recovery_min_window_frames > self.recovery_window_frames {
            return Err(error(format!(
                "recovery_min_window_frames = {}: must be at most recovery_window_frames = {}",
                self.recovery_min_window_frames, self.recovery_window_frames
            )));
        }
        Ok(())
    }
}
