//! Where a C program finds what the library has to say: on its standard error.

use std::io::{self, Write};
use std::sync::Once;

use log::{LevelFilter, Log, Metadata, Record};

/// Names the least severe level that is printed: off, error, warn (the default), info, debug, trace.
const LEVEL_VARIABLE: &str = "VIADUCT_LOG";

struct StandardError;

impl Log for StandardError {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
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
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        if log::set_logger(&StandardError).is_ok() {
            log::set_max_level(level(std::env::var(LEVEL_VARIABLE).ok().as_deref()));
        }
    });
}

fn level(setting: Option<&str>) -> LevelFilter {
    setting
        .and_then(|text| text.parse().ok())
        .unwrap_or(LevelFilter::Warn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_is_warn_unless_set() {
        assert_eq!(level(None), LevelFilter::Warn);
        assert_eq!(level(Some("nonsense")), LevelFilter::Warn);
        assert_eq!(level(Some("off")), LevelFilter::Off);
        assert_eq!(level(Some("Debug")), LevelFilter::Debug);
    }
}
