//! Interrupts of calls that wait, by a timer of the calling thread.
//!
//! close(2) of a socket that lingers waits until its peer has read everything, or until a signal is pending: the kernel
//! then sends the rest without the caller.

use std::io;
use std::time::Duration;

/// A timer that interrupts calls of the thread that made it, by SIGRTMAX.
pub struct CallTimer(libc::timer_t);

extern "C" fn ignore(_signal: libc::c_int) {}

fn checked(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl CallTimer {
    /// Makes a timer of this thread, which does not run yet. Replaces the action of SIGRTMAX by none.
    ///
    /// # Errors
    /// The system has no timer left.
    pub fn new() -> io::Result<Self> {
        let signal = libc::SIGRTMAX();
        // SAFETY: integers and null pointers are valid as zero bytes: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = ignore as *const () as libc::sighandler_t;
        // SAFETY: a handler that does nothing, and lives as long as the process.
        checked(unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) })?;
        let mut only = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the whole set is written.
        unsafe { libc::sigemptyset(only.as_mut_ptr()) };
        // SAFETY: the set was written just now; the number is a signal's.
        unsafe { libc::sigaddset(only.as_mut_ptr(), signal) };
        // SAFETY: an initialised set is read, and nothing is written.
        unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), core::ptr::null_mut());
        }
        // SAFETY: integers and null pointers are valid as zero bytes.
        let mut event: libc::sigevent = unsafe { core::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = nix::unistd::gettid().as_raw();
        let mut timer = core::ptr::null_mut();
        // SAFETY: the event is read, and the timer's identifier is written.
        checked(unsafe {
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        })?;
        Ok(Self(timer))
    }

    /// Runs `call` in this thread. What it waits for is interrupted after each `interval`, if the kernel permits that.
    pub fn interrupt_each<T>(&self, interval: Duration, call: impl FnOnce() -> T) -> T {
        self.set(interval);
        let result = call();
        self.set(Duration::ZERO);
        result
    }

    /// Starts the timer; an interval of 0 stops it.
    fn set(&self, interval: Duration) {
        let interval = libc::timespec {
            tv_sec: interval.as_secs() as libc::time_t,
            tv_nsec: interval.subsec_nanos().into(),
        };
        let times = libc::itimerspec {
            it_interval: interval,
            it_value: interval,
        };
        // SAFETY: the timer exists, and the times are read. It cannot fail.
        unsafe { libc::timer_settime(self.0, 0, &raw const times, core::ptr::null_mut()) };
    }
}

impl Drop for CallTimer {
    fn drop(&mut self) {
        // SAFETY: deleted once, here.
        unsafe { libc::timer_delete(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn call_that_waits_is_interrupted_each_interval() {
        let timer = CallTimer::new().unwrap();
        let long = libc::timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        let begun = Instant::now();
        for _ in 0..3 {
            let interval = Duration::from_millis(5);
            let interrupted = timer.interrupt_each(interval, || {
                // SAFETY: a time is read; the rest is not wanted.
                unsafe { libc::nanosleep(&raw const long, core::ptr::null_mut()) }
            });
            assert_eq!(interrupted, -1);
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}
