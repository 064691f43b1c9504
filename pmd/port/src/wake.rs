//! Sleeping until a port has something, and waking whoever sleeps.

use std::io;
use std::time::Duration;

use crate::port::{AsFutexWord, WakeSource};
use crate::sync::mapped::{AtomicU32, Ordering, fence};

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// Someone woke us, or had done so before we lay down; a signal counts too.
    Woken,
    /// Nobody did in the given time.
    TimedOut,
}

impl WakeSource {
    /// Sleeps until the source wakes the caller, or for `timeout` at most.
    ///
    /// A wake is a hint to look, not a promise that there is something. On
    /// [`WakeSource::Poll`] this always sleeps out the time, so that callers
    /// give a short one.
    ///
    /// # Errors
    /// What futex(2) or poll(2) say, other than being interrupted or timing out.
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
                // SAFETY: one valid entry and a valid time are passed and live
                // during the call; no signal mask is given.
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
    // SAFETY: the word and the time live during the call; FUTEX_WAIT only
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

/// Wakes everyone in any process who sleeps on `word`.
pub(crate) fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE takes the word's address as a key and touches no memory.
    let woken =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    debug_assert!(woken >= 0, "futex: {}", io::Error::last_os_error());
}

/// The wake-up of one receiver by senders of the same process.
///
/// Receiver: `arm`, look once more, sleep on the word. Sender: make the frame
/// visible, then `ring`. The two fences make it impossible that the receiver
/// misses the frame *and* the sender misses the wish.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    armed: AtomicU32,
    word: AtomicU32,
}

impl Bell {
    /// Wishes to be woken; returns the value to sleep on.
    pub(crate) fn arm(&self) -> u32 {
        // Read before the wish is visible: a sender who sees the wish changes
        // the word after this. Acquire: partner is the Release in `ring`.
        let expected = self.word.load(Ordering::Acquire);
        // Relaxed: ordered by the fence below.
        self.armed.store(1, Ordering::Relaxed);
        // SeqCst: partner is the fence in `ring`. Either the look after this
        // fence sees the sender's frame, or the sender sees the wish.
        fence(Ordering::SeqCst);
        expected
    }

    /// Ends the wish.
    pub(crate) fn disarm(&self) {
        // Relaxed: a sender who still sees the wish wakes nobody, harmlessly.
        if self.armed.load(Ordering::Relaxed) != 0 {
            self.armed.store(0, Ordering::Relaxed);
        }
    }

    /// Wakes the receiver if it wished so; true if it did.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
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

impl AsFutexWord for Bell {
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

    fn source(bell: &Arc<Bell>) -> WakeSource {
        WakeSource::Futex {
            expected: bell.arm(),
            word: FutexWord::new(Arc::clone(bell) as _),
        }
    }

    #[test]
    fn a_ring_between_arm_and_sleep_is_not_lost() {
        let bell = Arc::new(Bell::default());
        let source = source(&bell);
        assert!(bell.ring());
        assert_eq!(source.sleep(LONG).expect("futex"), Slept::Woken);
        assert!(!bell.ring(), "one wish, one wake");
    }

    #[test]
    fn nobody_rings_the_sleep_ends_in_time() {
        let bell = Arc::new(Bell::default());
        assert_eq!(source(&bell).sleep(SHORT).expect("futex"), Slept::TimedOut);
        bell.disarm();
        assert!(!bell.ring());
    }

    #[test]
    fn a_ring_wakes_a_sleeper() {
        let bell = Arc::new(Bell::default());
        let source = source(&bell);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| source.sleep(LONG).expect("futex"));
            assert!(bell.ring());
            assert_eq!(sleeper.join().expect("sleeper"), Slept::Woken);
        });
    }

    #[test]
    fn a_readable_descriptor_wakes() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let source = WakeSource::Fd(reader.as_raw_fd());
        assert_eq!(source.sleep(SHORT).expect("poll"), Slept::TimedOut);
        io::Write::write_all(&mut writer, b"x").expect("room in the pipe");
        assert_eq!(source.sleep(LONG).expect("poll"), Slept::Woken);
    }

    #[test]
    fn a_source_that_cannot_wake_times_out() {
        assert_eq!(
            WakeSource::Poll.sleep(SHORT).expect("sleep"),
            Slept::TimedOut
        );
    }
}
