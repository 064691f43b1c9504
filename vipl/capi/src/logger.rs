//! Where a C program finds what the library has to say: on its standard error.

use std::io::{self, Write};
use std::sync::OnceLock;

use log::{LevelFilter, Log, Metadata, Record};

/// Names the least severe level that is printed: off, error, warn (the default), info, debug, trace.
const LEVEL_VARIABLE: &str = "VIADUCT_LOG";

struct StandardError {
    level: LevelFilter,
}

impl Log for StandardError {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.level
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = format!(
                "vipl: {}: {}\n",
                record.level().as_str().to_lowercase(),
                record.args()
            );
            // A closed standard error leaves nobody to tell.
            let _ = io::stderr().lock().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Installs the logger once, unless the program (a Rust one) has brought its own.
pub(crate) fn install() {
    static LOGGER: OnceLock<StandardError> = OnceLock::new();
    let logger = LOGGER.get_or_init(|| StandardError {
        level: level(std::env::var(LEVEL_VARIABLE).ok().as_deref()),
    });
    if log::set_logger(logger).is_ok() {
        // Never Off, which the layers below take for a program without a logger: they would write
        // errors to standard error by themselves.
        log::set_max_level(logger.level.max(LevelFilter::Error));
    }
}

fn level(setting: Option<&str>) -> LevelFilter {
    setting
        .and_then(|text| text.parse().ok())
        .unwrap_or(LevelFilter::Warn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::Level;

    #[test]
    fn off_is_silent() {
        let error = Metadata::builder().level(Level::Error).build();
        let logger = |level| StandardError { level };
        assert!(!logger(LevelFilter::Off).enabled(&error));
        assert!(logger(LevelFilter::Warn).enabled(&error));
        let info = Metadata::builder().level(Level::Info).build();
        assert!(!logger(LevelFilter::Warn).enabled(&info));
    }

    #[test]
    fn the_level_is_warn_unless_set() {
        assert_eq!(level(None), LevelFilter::Warn);
        assert_eq!(level(Some("nonsense")), LevelFilter::Warn);
        assert_eq!(level(Some("off")), LevelFilter::Off);
        assert_eq!(level(Some("Debug")), LevelFilter::Debug);
    }
}
