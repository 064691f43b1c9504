//! Children of a test by fork(2).

use std::mem::ManuallyDrop;

/// A forked child. It has only the forking thread, so it must not use locks that other threads may hold, as that of the
/// test harness's output.
pub(crate) struct ForkedChild(libc::pid_t);

impl ForkedChild {
    /// Forks; the child exits after `child` returns, with success if the result is true.
    pub(crate) fn start(child: impl FnOnce() -> bool) -> Self {
        // SAFETY: the child calls the library and the allocator, which support that, and exits.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            let good =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
            // SAFETY: exits the process, with its exit handlers.
            unsafe { libc::exit(i32::from(!good)) };
        }
        Self(pid)
    }

    /// Waits for the child, which must exit with success.
    pub(crate) fn join(self) {
        let status = ManuallyDrop::new(self).wait();
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "the child: {status:#x}"
        );
    }

    fn wait(&self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: waits for our own child and writes its status.
        let ended = unsafe { libc::waitpid(self.0, &mut status, 0) };
        assert_eq!(ended, self.0);
        status
    }
}

impl Drop for ForkedChild {
    /// Kills the child of a failed test.
    fn drop(&mut self) {
        // SAFETY: our own child, which was not waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.wait();
    }
}

/// Runs `child` in a forked child, and waits for its success.
pub(crate) fn in_forked_child(child: impl FnOnce() -> bool) {
    ForkedChild::start(child).join();
}
