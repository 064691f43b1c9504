//! A writer of log lines to standard error that blocks no other thread.
//!
//! Standard error is often a pipe. A pipe that is read late, or never, must not block a poll thread or a call, so a
//! dedicated thread writes to it. Lines that find the queue full, or cannot be written, are lost and counted; the log,
//! `stat` and the metrics show the number.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Maximum number of queued lines.
const QUEUE_LINES: usize = 1024;

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Lines lost since their number was last logged.
    unreported: u64,
    /// All lines lost.
    lost: u64,
    /// A line is being written.
    writing: bool,
}

impl State {
    fn lose_line(&mut self) {
        self.unreported += 1;
        self.lost += 1;
    }
}

#[derive(Default)]
struct Queue {
    /// Locked only to add or remove a line, never while a line is written.
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or counts it as lost.
    fn add(&self, line: Vec<u8>, max_lines: usize) {
        let mut state = self.lock();
        if state.lines.len() < max_lines {
            state.lines.push_back(line);
            self.changed.notify_all();
        } else {
            state.lose_line();
        }
    }

    /// Waits for the next line; also returns the number of lines lost before it.
    fn next(&self) -> (u64, Vec<u8>) {
        let nothing = |state: &mut State| state.lines.is_empty();
        let waited = self.changed.wait_while(self.lock(), nothing);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        let line = state.lines.pop_front().unwrap_or_default();
        (core::mem::take(&mut state.unreported), line)
    }

    /// Notes the result of a write.
    fn written(&self, outcome: io::Result<()>) {
        let mut state = self.lock();
        state.writing = false;
        if outcome.is_err() {
            state.lose_line();
        }
        self.changed.notify_all();
    }
}

/// Queues lines; each write is one line.
#[derive(Clone)]
pub(crate) struct LogWriter {
    queue: Arc<Queue>,
    max_lines: usize,
}

impl LogWriter {
    /// Starts the thread that writes to `sink`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        Self::with_queue(QUEUE_LINES, sink)
    }

    fn with_queue(max_lines: usize, mut sink: impl Write + Send + 'static) -> io::Result<Self> {
        let queue = Arc::<Queue>::default();
        let lines = Arc::clone(&queue);
        let write = move || {
            loop {
                let (lost, line) = lines.next();
                if lost > 0 {
                    let text = format!("log: {lost} lines lost: standard error was not read\n");
                    // If this cannot be written, neither can the line, which is counted.
                    drop(sink.write_all(text.as_bytes()));
                }
                lines.written(sink.write_all(&line));
            }
        };
        thread::Builder::new().name("log".into()).spawn(write)?;
        Ok(Self { queue, max_lines })
    }

    /// Queues a line, or counts it as lost.
    pub(crate) fn write_line(&self, text: &str) {
        let line = [text.trim_end().as_bytes(), b"\n"].concat();
        self.queue.add(line, self.max_lines);
    }

    /// The number of lines lost since the start.
    pub(crate) fn lost_lines(&self) -> u64 {
        self.queue.lock().lost
    }

    /// Waits until all queued lines are written, for `limit` at most.
    pub(crate) fn finish(&self, limit: Duration) {
        let unwritten = |state: &mut State| state.writing || !state.lines.is_empty();
        let state = self.queue.lock();
        let changed = &self.queue.changed;
        // Lines that are not written by then are discarded: standard error is not read.
        drop(changed.wait_timeout_while(state, limit, unwritten));
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.queue.add(line.to_vec(), self.max_lines);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver, Sender};

    /// Longer than anything takes on a busy machine.
    const LONG: Duration = Duration::from_secs(20);

    /// A pipe that a test reads: each write waits for a token.
    struct Pipe {
        tokens: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.tokens.recv().map_err(io::Error::other)?;
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.written.send(text).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn log_writer_does_not_wait_for_an_unread_pipe_and_counts_lost_lines() {
        const LINES: usize = 10;
        let (token, tokens) = mpsc::channel();
        let (written, texts) = mpsc::channel();
        let mut log = LogWriter::with_queue(2, Pipe { tokens, written }).unwrap();
        for _ in 0..LINES {
            log.write_all(b"line\n").unwrap();
        }
        log.finish(Duration::ZERO);
        assert_eq!(texts.try_iter().count(), 0, "it is not read");
        for _ in 0..=LINES {
            token.send(()).unwrap();
        }
        log.finish(LONG);
        log.write_all(b"last\n").unwrap();
        log.finish(LONG);
        let texts: Vec<_> = texts.try_iter().collect();
        let lost = texts.iter().find_map(|text| text.strip_prefix("log: "));
        let lost: usize = lost.unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(log.lost_lines(), lost as u64);
        let lines = texts.iter().filter(|text| *text == "line\n").count();
        assert_eq!(lines + lost, LINES, "{texts:?}");
        assert!((2..=3).contains(&lines), "{texts:?}");
        assert_eq!(texts.last().unwrap(), "last\n");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let log = LogWriter::start(full.unwrap()).unwrap();
        for _ in 0..3 {
            log.write_line("line");
        }
        log.finish(LONG);
        assert_eq!(log.lost_lines(), 3);
    }
}
