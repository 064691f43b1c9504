//! Non-blocking log lines on standard error.
//!
//! Standard error is often a pipe. A line that it does not take at once is lost; the number of lost lines is written
//! before the next line. No locks are used: a thread may fork, or be killed, at any point.

use std::ffi::{c_int, c_void};
use std::fmt::Arguments;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;

use crate::sync::mapped::{AtomicU64, Ordering};

/// Maximum length of a line; longer ones are cut. A pipe takes this many bytes completely or not at all.
const MAX_LINE_BYTES: usize = libc::PIPE_BUF;

/// Lines lost since the last one that was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Writes a line without blocking; counts it as lost if that is not possible.
pub fn write_line(text: Arguments<'_>) {
    write_line_to(libc::STDERR_FILENO, &LOST, text);
}

fn write_line_to(fd: c_int, lost: &AtomicU64, text: Arguments<'_>) {
    // Relaxed: an independent counter.
    let mut unreported = lost.swap(0, Ordering::Relaxed);
    let report = "log lines lost: standard error was not read";
    if unreported > 0 && try_write(fd, &line(format_args!("viaduct: {unreported} {report}"))) {
        unreported = 0;
    }
    if unreported > 0 || !try_write(fd, &line(text)) {
        lost.fetch_add(unreported + 1, Ordering::Relaxed);
    }
}

fn line(text: Arguments<'_>) -> Vec<u8> {
    let mut bytes = text.to_string().into_bytes();
    bytes.truncate(MAX_LINE_BYTES - 1);
    bytes.push(b'\n');
    bytes
}

/// Writes a line without waiting for a reader; returns false if it was not written completely.
fn try_write(fd: c_int, line: &[u8]) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: poll(2) of one descriptor, which need not be open; with a timeout of 0 it does not wait.
    let found = unsafe { libc::poll(&raw mut poll, 1, 0) };
    // Writing without a reader would end the program by SIGPIPE.
    if found != 1 || poll.revents != libc::POLLOUT {
        return false;
    }
    match write_nonblocking(fd, line) {
        Ok(count) => count == line.len(),
        Err(_) => false,
    }
}

fn write_nonblocking(fd: c_int, line: &[u8]) -> io::Result<usize> {
    match file_type(fd)? {
        libc::S_IFSOCK => {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the bytes are the caller's and outlive the call.
            byte_count(unsafe { libc::send(fd, line.as_ptr().cast(), line.len(), flags) })
        }
        // Opened again for O_NONBLOCK: setting it here would set it for every program that shares the terminal.
        libc::S_IFCHR if is_terminal(fd) => match reopen_terminal(fd) {
            Ok(mut terminal) => terminal.write(line),
            // Another user's terminal: it has at least a little free space.
            Err(_) => write_plain(fd, line),
        },
        libc::S_IFIFO => match write_nowait(fd, line) {
            // Kernels before 6.5: the pipe has space, unless another process was faster.
            Err(error) if error.kind() == ErrorKind::Unsupported => write_plain(fd, line),
            outcome => outcome,
        },
        // Files have no reader.
        _ => write_plain(fd, line),
    }
}

fn file_type(fd: c_int) -> io::Result<libc::mode_t> {
    // SAFETY: all zeros is a valid `stat`, which the kernel fills in.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: it points to a `stat` that outlives the call.
    match unsafe { libc::fstat(fd, &raw mut stat) } {
        0 => Ok(stat.st_mode & libc::S_IFMT),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_terminal(fd: c_int) -> bool {
    // SAFETY: isatty(3) takes any number.
    unsafe { libc::isatty(fd) == 1 }
}

fn reopen_terminal(fd: c_int) -> io::Result<std::fs::File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(flags);
    options.open(format!("/proc/self/fd/{fd}"))
}

fn write_nowait(fd: c_int, line: &[u8]) -> io::Result<usize> {
    let part = libc::iovec {
        iov_base: line.as_ptr().cast_mut().cast::<c_void>(),
        iov_len: line.len(),
    };
    // SAFETY: one part, whose bytes are the caller's and only read; -1 is the position of write(2).
    byte_count(unsafe { libc::pwritev2(fd, &raw const part, 1, -1, libc::RWF_NOWAIT) })
}

fn write_plain(fd: c_int, line: &[u8]) -> io::Result<usize> {
    // SAFETY: the bytes are the caller's and outlive the call.
    byte_count(unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) })
}

fn byte_count(count: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    /// Returns each kind of file that standard error can be: writer and reader.
    fn kinds() -> Vec<(&'static str, OwnedFd, File)> {
        let (reader, writer) = io::pipe().unwrap();
        let (local, remote) = UnixStream::pair().unwrap();
        let (terminal, controller) = terminal();
        vec![
            ("pipe", writer.into(), OwnedFd::from(reader).into()),
            ("socket", local.into(), OwnedFd::from(remote).into()),
            ("terminal", terminal, controller.into()),
        ]
    }

    fn terminal() -> (OwnedFd, OwnedFd) {
        let (mut controller, mut terminal) = (-1, -1);
        let null = core::ptr::null_mut();
        let outputs = (&raw mut controller, &raw mut terminal);
        // SAFETY: both outputs outlive the call; the other arguments may be null.
        let outcome = unsafe {
            libc::openpty(
                outputs.0,
                outputs.1,
                null,
                core::ptr::null(),
                core::ptr::null(),
            )
        };
        assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
        // SAFETY: openpty(3) has just opened it, and it has no other owner.
        let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
        (own(terminal), own(controller))
    }

    #[test]
    fn unread_lines_are_lost_and_counted() {
        // More than any of the files buffers: the test ends because no write blocks.
        const LINES: u64 = 20_000;
        for (kind, writer, mut reader) in kinds() {
            let (fd, lost) = (writer.as_raw_fd(), AtomicU64::new(0));
            let tail = "x".repeat(100);
            for number in 0..LINES {
                write_line_to(fd, &lost, format_args!("line {number:06} {tail}"));
            }
            assert!((2..LINES).contains(&lost.load(Ordering::Relaxed)), "{kind}");
            let (mut text, mut tried) = (String::new(), LINES);
            while !text.contains("the next line") {
                let mut bytes = [0; 65_536];
                let count = reader.read(&mut bytes).unwrap();
                text += str::from_utf8(&bytes[..count]).unwrap();
                // Space is free now, or soon.
                write_line_to(fd, &lost, format_args!("the next line"));
                tried += 1;
            }
            let reports = text.lines().filter_map(|line| {
                let (_, report) = line.split_once("viaduct: ")?;
                report.split_once(" log lines lost")?.0.parse::<u64>().ok()
            });
            let whole = text.lines().filter(|line| {
                line.starts_with("line ") && line.ends_with(&tail) || *line == "the next line"
            });
            // The last lines may not have been read yet.
            let found = whole.count() as u64 + reports.sum::<u64>();
            let unread = tried - LINES;
            assert!(
                (tried - unread..=tried).contains(&found),
                "{kind}: {found} of {tried}"
            );
        }
    }

    #[test]
    fn pipe_without_reader_and_closed_descriptor_lose_the_line() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        for fd in [writer.as_raw_fd(), -1] {
            let lost = AtomicU64::new(0);
            write_line_to(fd, &lost, format_args!("line"));
            assert_eq!(lost.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn long_line_is_cut() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lost = AtomicU64::new(0);
        write_line_to(
            writer.as_raw_fd(),
            &lost,
            format_args!("{}", "y".repeat(10_000)),
        );
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.len(), MAX_LINE_BYTES);
        assert!(text.ends_with("y\n"));
    }
}
