//! `top`: live rates of a running process on a terminal.

mod screen;
mod tables;

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Error;
use crate::snapshot::Snapshot;
use screen::{KeyAction, Screen};

/// The shortest update interval: faster changes cannot be read.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Prints the rates between two snapshots of `source`, taken `interval` apart, as plain text for scripts.
///
/// # Errors
/// Those of `source` and of writing.
pub fn once(
    mut source: impl FnMut() -> Result<Snapshot, Error>,
    interval: Duration,
    out: &mut impl Write,
) -> Result<(), Error> {
    let before = source()?;
    std::thread::sleep(interval);
    let now = source()?;
    for line in tables::lines(&before, &now, tables::Sort::default()) {
        writeln!(out, "{}", line.text)?;
    }
    out.flush()?;
    Ok(())
}

/// Shows the rates on the terminal, updated every `interval` (at least 100 ms), until `q`, Esc, Ctrl-C or a signal; `s`
/// sorts, `p` pauses, arrows and page keys scroll. The terminal is restored in any case.
///
/// # Errors
/// Those of `source` and of the terminal; [`Error::NoTerminal`] without one, [`Error::TerminalClosed`] if it is closed.
pub fn run(
    mut source: impl FnMut() -> Result<Snapshot, Error>,
    interval: Duration,
) -> Result<(), Error> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Error::NoTerminal);
    }
    // Before the terminal is changed, so that an error of the source is visible.
    let mut screen = Screen::new(source()?);
    // Installed before the terminal is changed: from then on a signal must restore it.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let mut terminal = ratatui::try_init()?;
    let interval = interval.max(SHORTEST_INTERVAL);
    let outcome = show((&mut terminal, &mut signals), &mut screen, source, interval);
    if let Err(error) = terminal.show_cursor() {
        // Its drop would print this error to standard error, which may be the same terminal, and panic.
        core::mem::forget(terminal);
        return outcome.and(Err(terminal_error(error)));
    }
    outcome.and(ratatui::try_restore().map_err(terminal_error))
}

/// Converts an error of the terminal; EIO means that it is closed.
fn terminal_error(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(number) if Errno::from_raw(number) == Errno::EIO => Error::TerminalClosed,
        _ => Error::Io(error),
    }
}

/// Waits for a key, until `next` or a signal. The event source of the library does not detect a closed terminal, and
/// would wait forever.
///
/// # Errors
/// [`Error::TerminalClosed`].
fn is_typed_at(next: Instant) -> Result<bool, Error> {
    let left = next.saturating_duration_since(Instant::now());
    let stdin = io::stdin();
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(Error::Io(error.into())),
    }
    let found = fds[0].revents().unwrap_or(PollFlags::empty());
    if found.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL) {
        return Err(Error::TerminalClosed);
    }
    Ok(found.contains(PollFlags::POLLIN))
}

fn show(
    (terminal, signals): (&mut ratatui::DefaultTerminal, &mut Signals),
    screen: &mut Screen,
    mut source: impl FnMut() -> Result<Snapshot, Error>,
    interval: Duration,
) -> Result<(), Error> {
    let mut next = Instant::now() + interval;
    while signals.pending().next().is_none() {
        terminal
            .draw(|frame| screen.draw(frame))
            .map_err(terminal_error)?;
        let is_typed = is_typed_at(next)?;
        while is_typed && event::poll(Duration::ZERO)? {
            // A resize only needs another draw.
            if let Event::Key(key) = event::read()?
                && screen.press(key) == KeyAction::Quit
            {
                return Ok(());
            }
        }
        if Instant::now() >= next {
            next = Instant::now() + interval;
            if !screen.is_paused() {
                screen.show(source()?);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::sample::snapshot;

    #[test]
    fn once_prints_the_rates_between_two_snapshots() {
        let mut step = 0;
        let source = || {
            step += 2;
            Ok(snapshot(step - 2))
        };
        let mut out = Vec::new();
        once(source, Duration::ZERO, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("\nrail0 up      00.01.02    10000  21.0M"),
            "{text}"
        );
        assert!(text.is_ascii() && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn once_returns_an_error_of_the_source() {
        let failing = || Err(Error::Failed("VINIC0".into()));
        let mut out = Vec::new();
        let outcome = once(failing, Duration::ZERO, &mut out);
        assert!(matches!(outcome, Err(Error::Failed(_))) && out.is_empty());
    }
}
