//! Sleeping until a port has frames or events, and waking the sleeper.

use std::io;
use std::time::Duration;

use crate::port::{AsFutexWord, WakeSource};
use crate::sync::mapped::{AtomicU32, Ordering, fence};

/// Outcome of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// Woken during or before the sleep, also by a signal.
    Woken,
    /// The timeout expired.
    TimedOut,
}

impl WakeSource {
    /// Sleeps until the source wakes the caller, or for `timeout` at most.
    ///
    /// A wakeup may be spurious: the caller must poll the port. On [`WakeSource::Poll`]
    /// this always sleeps for the whole timeout, so callers pass a short one.
    ///
    /// # Errors
    /// Errors of futex(2) or poll(2) other than an interruption or a timeout.
    pub fn sleep(&self, timeout: Duration) -> io::Result<Slept> {
        match self {
            Self::Futex { word, expected } => futex_wait(word.word(), *expected, timeout),
            Self::Fd(fd) => {
                let mut entry = libc::pollfd {
                    fd: *fd,
                    events: libc::POLLIN,
                    revents: 0,
                };
                let timeout = timespec(timeout);
                // SAFETY: one valid entry and a valid time are passed and outlive
                // the call; no signal mask is given.
                let ready = unsafe { libc::ppoll(&mut entry, 1, &timeout, core::ptr::null()) };
                match ready {
                    0 => Ok(Slept::TimedOut),
                    1.. => Ok(Slept::Woken),
                    _ => woken_by_signal(),
                }
            }
            Self::Poll => {
                std::thread::sleep(timeout);
                Ok(Slept::TimedOut)
            }
        }
    }
}

/// Returns the time of the system's monotonic clock in nanoseconds: the same for all processes of a time namespace.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec of this frame.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

fn woken_by_signal() -> io::Result<Slept> {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINTR) => Ok(Slept::Woken),
        _ => Err(error),
    }
}

/// Sleeps while `word` holds `expected`, for `timeout` at most.
fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) -> io::Result<Slept> {
    let timeout = timespec(timeout);
    // SAFETY: the word and the time outlive the call; FUTEX_WAIT only
    // reads the word, atomically.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
        )
    };
    if result == 0 {
        return Ok(Slept::Woken);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(Slept::Woken),
        Some(libc::ETIMEDOUT) => Ok(Slept::TimedOut),
        _ => Err(error),
    }
}

/// Wakes all waiters on `word`, in any process.
pub(crate) fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE takes the word's address as a key and touches no memory.
    let woken =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    debug_assert!(woken >= 0, "futex: {}", io::Error::last_os_error());
}

/// Wakes one receiver from senders of the same process.
///
/// Receiver: `arm`, poll once more, sleep on the word. Sender: make the frame
/// visible, then `notify`. The two fences make it impossible that the receiver
/// misses the frame *and* the sender misses the armed flag.
#[derive(Debug, Default)]
pub(crate) struct WakeSignal {
    armed: AtomicU32,
    word: AtomicU32,
}

impl WakeSignal {
    /// Requests a wakeup; returns the value to sleep on.
    pub(crate) fn arm(&self) -> u32 {
        // Read before `armed` is visible: a sender that sees it set changes
        // the word after this. Acquire: partner is the Release in `notify`.
        let expected = self.word.load(Ordering::Acquire);
        // Relaxed: ordered by the fence below.
        self.armed.store(1, Ordering::Relaxed);
        // SeqCst: partner is the fence in `notify`. Either the poll after this
        // fence sees the sender's frame, or the sender sees `armed`.
        fence(Ordering::SeqCst);
        expected
    }

    /// Cancels the request.
    pub(crate) fn disarm(&self) {
        // Relaxed: a sender that still sees `armed` makes a spurious wake call, which is harmless.
        if self.armed.load(Ordering::Relaxed) != 0 {
            self.armed.store(0, Ordering::Relaxed);
        }
    }

    /// Wakes the receiver if it is armed; returns whether it was.
    #[inline]
    pub(crate) fn notify(&self) -> bool {
        // SeqCst: partner is the fence in `arm`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence above; the swap lets one of several senders win.
        if self.armed.load(Ordering::Relaxed) == 0 || self.armed.swap(0, Ordering::Relaxed) == 0 {
            return false;
        }
        // Release: partner is the Acquire in `arm`.
        self.word.fetch_add(1, Ordering::Release);
        futex_wake_all(&self.word);
        true
    }
}

impl AsFutexWord for WakeSignal {
    fn futex_word(&self) -> &AtomicU32 {
        &self.word
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::FutexWord;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(20);

    fn source(signal: &Arc<WakeSignal>) -> WakeSource {
        WakeSource::Futex {
            expected: signal.arm(),
            word: FutexWord::new(Arc::clone(signal) as _),
        }
    }

    #[test]
    fn notify_between_arm_and_sleep_is_not_lost() {
        let signal = Arc::new(WakeSignal::default());
        let source = source(&signal);
        assert!(signal.notify());
        assert_eq!(source.sleep(LONG).expect("futex"), Slept::Woken);
        assert!(!signal.notify(), "one request, one wakeup");
    }

    #[test]
    fn sleep_without_notify_times_out() {
        let signal = Arc::new(WakeSignal::default());
        assert_eq!(
            source(&signal).sleep(SHORT).expect("futex"),
            Slept::TimedOut
        );
        signal.disarm();
        assert!(!signal.notify());
    }

    #[test]
    fn notify_wakes_the_sleeper() {
        let signal = Arc::new(WakeSignal::default());
        let source = source(&signal);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| source.sleep(LONG).expect("futex"));
            assert!(signal.notify());
            assert_eq!(sleeper.join().expect("sleeper"), Slept::Woken);
        });
    }

    #[test]
    fn readable_descriptor_wakes_the_sleeper() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let source = WakeSource::Fd(reader.as_raw_fd());
        assert_eq!(source.sleep(SHORT).expect("poll"), Slept::TimedOut);
        io::Write::write_all(&mut writer, b"x").expect("room in the pipe");
        assert_eq!(source.sleep(LONG).expect("poll"), Slept::Woken);
    }

    #[test]
    fn poll_source_always_times_out() {
        assert_eq!(
            WakeSource::Poll.sleep(SHORT).expect("sleep"),
            Slept::TimedOut
        );
    }
}
