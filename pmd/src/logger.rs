//! Logger that writes to standard error, at the level of an environment variable. For the C library, and for programs.

use std::ffi::OsStr;
use std::sync::OnceLock;

use log::{LevelFilter, Log, Metadata, Record};
use pmd_port::{environment, stderr};

/// Environment variable with the least severe level that is printed: off, error, warn (the default), info, debug,
/// trace.
pub const LEVEL_VARIABLE: &str = "VIADUCT_LOG";

struct StandardError {
    /// Prefix of each line.
    name: &'static str,
    level: LevelFilter,
}

impl Log for StandardError {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.level
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = record.level().as_str().to_lowercase();
            stderr::write_line(format_args!("{}: {level}: {}", self.name, record.args()));
        }
    }

    fn flush(&self) {}
}

/// Installs the logger once, unless the program has installed its own. `name` is the prefix of each line.
pub fn install(name: &'static str) {
    static LOGGER: OnceLock<StandardError> = OnceLock::new();
    let setting = environment::variable(LEVEL_VARIABLE);
    let logger = LOGGER.get_or_init(|| StandardError {
        name,
        level: setting
            .as_deref()
            .and_then(level_of)
            .unwrap_or(LevelFilter::Warn),
    });
    if log::set_logger(logger).is_ok() {
        if let Some(setting) = setting.filter(|setting| level_of(setting).is_none()) {
            stderr::write_line(format_args!(
                "{name}: warn: {LEVEL_VARIABLE}={}: must be off, error, warn, info, debug or trace",
                setting.display()
            ));
        }
        // Never Off, which lower layers interpret as a program without a logger: they would write
        // errors to standard error themselves.
        log::set_max_level(logger.level.max(LevelFilter::Error));
    }
}

fn level_of(setting: &OsStr) -> Option<LevelFilter> {
    setting.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::Level;

    #[test]
    fn level_off_disables_all_records() {
        let error = Metadata::builder().level(Level::Error).build();
        let logger = |level| StandardError { name: "a", level };
        assert!(!logger(LevelFilter::Off).enabled(&error));
        assert!(logger(LevelFilter::Warn).enabled(&error));
        let info = Metadata::builder().level(Level::Info).build();
        assert!(!logger(LevelFilter::Warn).enabled(&info));
    }

    #[test]
    fn level_names_are_parsed() {
        let level = |text: &str| level_of(OsStr::new(text));
        assert_eq!(level("nonsense"), None);
        assert_eq!(level("off"), Some(LevelFilter::Off));
        assert_eq!(level("Debug"), Some(LevelFilter::Debug));
    }
}
