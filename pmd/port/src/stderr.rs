//! Log lines on standard error, for whose reader no thread waits.
//!
//! Standard error is often a pipe. A line that it does not take at once is lost; the number of lost lines is written
//! before the next line. There is no lock: a thread may be forked away, or killed, at any point of this.

use std::ffi::{c_int, c_void};
use std::fmt::Arguments;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;

use crate::sync::mapped::{AtomicU64, Ordering};

/// A line that is longer is cut: a pipe takes so many bytes as a whole or not at all.
const MAX_LINE_BYTES: usize = libc::PIPE_BUF;

/// Lines since the last one that was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Writes a line, or counts it as lost.
pub fn write_line(text: Arguments<'_>) {
    write_line_to(libc::STDERR_FILENO, &LOST, text);
}

fn write_line_to(fd: c_int, lost: &AtomicU64, text: Arguments<'_>) {
    // Relaxed: a number alone.
    let mut unreported = lost.swap(0, Ordering::Relaxed);
    let report = "log lines lost: standard error was not read";
    if unreported > 0 && write_now(fd, &line(format_args!("viaduct: {unreported} {report}"))) {
        unreported = 0;
    }
    if unreported > 0 || !write_now(fd, &line(text)) {
        lost.fetch_add(unreported + 1, Ordering::Relaxed);
    }
}

fn line(text: Arguments<'_>) -> Vec<u8> {
    let mut bytes = text.to_string().into_bytes();
    bytes.truncate(MAX_LINE_BYTES - 1);
    bytes.push(b'\n');
    bytes
}

/// Writes a line if that does not wait for a reader. False if not all of it was written.
fn write_now(fd: c_int, line: &[u8]) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: poll(2) of one descriptor, which need not be open; a timeout of 0 waits for nothing.
    let found = unsafe { libc::poll(&raw mut poll, 1, 0) };
    // Without a reader, writing would end the program by SIGPIPE.
    if found != 1 || poll.revents != libc::POLLOUT {
        return false;
    }
    match written(fd, line) {
        Ok(count) => count == line.len(),
        Err(_) => false,
    }
}

fn written(fd: c_int, line: &[u8]) -> io::Result<usize> {
    match kind(fd)? {
        libc::S_IFSOCK => {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the bytes are the caller's, and live as long as the call.
            checked(unsafe { libc::send(fd, line.as_ptr().cast(), line.len(), flags) })
        }
        // A clone with another mode: a flag of this one would be that of every program that has it.
        libc::S_IFCHR if is_terminal(fd) => match own_terminal(fd) {
            Ok(mut terminal) => terminal.write(line),
            // Another user's: there is room for a little at least.
            Err(_) => plain(fd, line),
        },
        libc::S_IFIFO => match without_waiting(fd, line) {
            // Kernels before 6.5: there is room, unless another process was faster.
            Err(error) if error.kind() == ErrorKind::Unsupported => plain(fd, line),
            outcome => outcome,
        },
        // Files have no reader.
        _ => plain(fd, line),
    }
}

fn kind(fd: c_int) -> io::Result<libc::mode_t> {
    // SAFETY: all zeros is a valid `stat`, which the kernel fills in.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: it points to a `stat` that lives as long as the call.
    match unsafe { libc::fstat(fd, &raw mut stat) } {
        0 => Ok(stat.st_mode & libc::S_IFMT),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_terminal(fd: c_int) -> bool {
    // SAFETY: isatty(3) takes any number.
    unsafe { libc::isatty(fd) == 1 }
}

fn own_terminal(fd: c_int) -> io::Result<std::fs::File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(flags);
    options.open(format!("/proc/self/fd/{fd}"))
}

fn without_waiting(fd: c_int, line: &[u8]) -> io::Result<usize> {
    let part = libc::iovec {
        iov_base: line.as_ptr().cast_mut().cast::<c_void>(),
        iov_len: line.len(),
    };
    // SAFETY: one part, whose bytes are the caller's and only read; -1 is the position of write(2).
    checked(unsafe { libc::pwritev2(fd, &raw const part, 1, -1, libc::RWF_NOWAIT) })
}

fn plain(fd: c_int, line: &[u8]) -> io::Result<usize> {
    // SAFETY: the bytes are the caller's, and live as long as the call.
    checked(unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) })
}

fn checked(count: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    /// What can stand behind standard error: who writes, and who reads.
    fn kinds() -> Vec<(&'static str, OwnedFd, File)> {
        let (reader, writer) = io::pipe().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let (terminal, controller) = terminal();
        vec![
            ("pipe", writer.into(), OwnedFd::from(reader).into()),
            ("socket", near.into(), OwnedFd::from(far).into()),
            ("terminal", terminal, controller.into()),
        ]
    }

    fn terminal() -> (OwnedFd, OwnedFd) {
        let (mut controller, mut terminal) = (-1, -1);
        let nothing = core::ptr::null_mut();
        let outputs = (&raw mut controller, &raw mut terminal);
        // SAFETY: both outputs live as long as the call; the other arguments may be null.
        let outcome = unsafe {
            libc::openpty(
                outputs.0,
                outputs.1,
                nothing,
                core::ptr::null(),
                core::ptr::null(),
            )
        };
        assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
        // SAFETY: openpty(3) has just opened it for us.
        let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
        (own(terminal), own(controller))
    }

    #[test]
    fn lines_beyond_what_is_read_are_lost_and_counted() {
        // More than any of them holds: this ends because no line waits.
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
                // There is room now, or soon.
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
            // Of the last ones some may still be on their way.
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
