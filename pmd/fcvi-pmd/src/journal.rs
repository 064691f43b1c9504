//! Log lines for systemd's journal: with priorities (sd-daemon(3)), and without the time, which the journal adds.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};

use log::{Level, Record};
use nix::sys::stat::fstat;

/// The variable by which systemd names the device and inode of the stream to the journal.
const STREAM_VARIABLE: &str = "JOURNAL_STREAM";

/// True if standard error is connected to the journal.
pub(crate) fn is_standard_error() -> bool {
    let Some(stream) = env::var_os(STREAM_VARIABLE) else {
        return false;
    };
    fstat(io::stderr()).is_ok_and(|status| is_stream(&stream, (status.st_dev, status.st_ino)))
}

fn is_stream(stream: &OsStr, (device, inode): (u64, u64)) -> bool {
    stream.to_str() == Some(&format!("{device}:{inode}"))
}

/// The priority of syslog(3) for a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// Formats a text that is no log record; for the journal, with the priority of an error before each line.
pub(crate) fn error_lines(text: &str) -> String {
    if !is_standard_error() {
        return text.to_owned();
    }
    let priority = priority(Level::Error);
    let lines = text.lines().map(|line| format!("<{priority}>{line}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Writes a record, with the priority before each line.
pub(crate) fn write(out: &mut impl Write, record: &Record<'_>) -> io::Result<()> {
    let priority = priority(record.level());
    for line in record.args().to_string().lines() {
        writeln!(out, "<{priority}>{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_puts_the_priority_before_each_line() {
        let mut out = Vec::new();
        for level in [Level::Error, Level::Warn, Level::Info, Level::Debug] {
            let mut record = Record::builder();
            let record = record.level(level);
            write(&mut out, &record.args(format_args!("one\ntwo")).build()).unwrap();
        }
        let expected = "<3>one\n<3>two\n<4>one\n<4>two\n<6>one\n<6>two\n<7>one\n<7>two\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn is_stream_compares_device_and_inode() {
        assert!(is_stream(OsStr::new("8:1234"), (8, 1234)));
        assert!(!is_stream(OsStr::new("8:1235"), (8, 1234)));
        assert!(!is_stream(OsStr::new("9:1234"), (8, 1234)));
        assert!(!is_stream(OsStr::new(""), (0, 0)));
    }
}
