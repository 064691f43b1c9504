//! What the tests of the safe API share: a private segment, pairs of connected VIs, messages with a pattern, and
//! second processes.

// Every test program takes what it needs.
#![allow(dead_code)]

pub(crate) mod datapath;
pub(crate) mod raw;
pub(crate) mod stranger;
pub(crate) mod tls;

use std::net::Ipv4Addr;
use std::process::{Child, ChildStderr, Command};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use pmd::config::{NicConfig, TransportKind};
use vipl::{
    Buffer, Completed, Descriptor, ErrorCode, Nic, Ptag, Result, Timeout, Vi, ViBuilder, ViHandle,
    VipError,
};

/// Long enough for any machine; a test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// [`PATIENCE`] as a timeout.
pub(crate) const WAIT: Timeout = Timeout::After(PATIENCE);
/// The transfer size of the VIs of these tests.
pub(crate) const MAX_TRANSFER_BYTES: usize = 64 * 1024;
/// What carries the messages of this test run: FC-VI frames, or `vi-tcp`.
const TRANSPORT: &str = "VIPL_TEST_TRANSPORT";
/// Tells a process that it is the second one of a test, and the segment of the first.
const CHILD_MARK: &str = "VIPL_TEST_SEGMENT";

/// Opens the NIC of this test run, on a segment that no other process knows except those that it starts.
pub(crate) fn open() -> Nic {
    open_as(|_| ())
}

/// Opens a NIC of this test run whose configuration is changed. Another configuration is another NIC, and another
/// station of the same segment.
pub(crate) fn open_as(change: impl FnOnce(&mut NicConfig)) -> Nic {
    Nic::open_with(&config(change))
        .unwrap_or_else(|error| panic!("{error}: {:?}", vipl::provider::last_error()))
}

/// The configuration of this test run's NIC, changed. No time-out of it is over while a machine takes a core away.
pub(crate) fn config(change: impl FnOnce(&mut NicConfig)) -> NicConfig {
    let mut config = NicConfig {
        segment: segment(),
        e_d_tov_ms: 60_000,
        ulp_timeout_ms: Some(60_000),
        silent_port_ms: Some(60_000),
        ..NicConfig::default()
    };
    if is_over_tcp() {
        config.transport = TransportKind::ViTcp;
        config.host = Some(own_host().into());
    }
    change(&mut config);
    config
}

/// Does this test run speak VI/TCP?
pub(crate) fn is_over_tcp() -> bool {
    std::env::var_os(TRANSPORT).is_some_and(|transport| transport == "vi-tcp")
}

/// An address of this host that only this test run and the processes that it starts use.
pub(crate) fn own_host() -> Ipv4Addr {
    let segment = segment();
    let pid = segment.rsplit('-').next().map(str::parse::<u32>);
    let pid = pid.expect("a number at the end").expect("a process's");
    Ipv4Addr::from_bits(0x7F40_0000 | pid & 0x3F_FFFF)
}

/// The segment of this test run.
pub(crate) fn segment() -> String {
    std::env::var(CHILD_MARK).unwrap_or_else(|_| format!("test-{}", std::process::id()))
}

/// One side of a connection, on an instance of the NIC of its own.
pub(crate) struct End {
    pub(crate) vi: Vi,
    pub(crate) ptag: Ptag,
    pub(crate) nic: Nic,
    pub(crate) errors: Errors,
}

impl End {
    /// A reliable VI.
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// A VI made as `shape` says.
    pub(crate) fn with(shape: impl FnOnce(ViBuilder) -> ViBuilder) -> Self {
        Self::on(open(), shape)
    }

    /// A VI of this NIC, made as `shape` says.
    pub(crate) fn on(nic: Nic, shape: impl FnOnce(ViBuilder) -> ViBuilder) -> Self {
        let errors = Errors::of(&nic);
        let ptag = nic.create_ptag().unwrap();
        let vi = shape(nic.vi(&ptag).max_transfer_bytes(MAX_TRANSFER_BYTES as u64))
            .build()
            .unwrap();
        Self {
            vi,
            ptag,
            nic,
            errors,
        }
    }

    /// A descriptor with one segment that holds `bytes`.
    pub(crate) fn message(&self, bytes: &[u8]) -> Descriptor {
        let mut descriptor = self.room(bytes.len().max(1));
        descriptor.buffer_mut(0)[..bytes.len()].copy_from_slice(bytes);
        descriptor.set_used_bytes(0, bytes.len());
        descriptor
    }

    /// A descriptor with one empty segment of `buffer_bytes`.
    pub(crate) fn room(&self, buffer_bytes: usize) -> Descriptor {
        let mut descriptor = self.empty(1);
        descriptor.push(self.buffer(buffer_bytes)).unwrap();
        descriptor
    }

    /// A descriptor without segments.
    pub(crate) fn empty(&self, max_segments: usize) -> Descriptor {
        self.nic
            .create_descriptors(1, max_segments, &self.ptag)
            .unwrap()
            .remove(0)
    }

    pub(crate) fn buffer(&self, buffer_bytes: usize) -> Buffer {
        self.nic
            .create_region(buffer_bytes, &self.ptag)
            .unwrap()
            .into_buffer()
    }

    /// Posts a send and waits for its end.
    pub(crate) fn send(&self, descriptor: Descriptor) -> Completed {
        self.vi.post_send(descriptor).unwrap();
        self.vi
            .send_wait(WAIT)
            .unwrap()
            .expect("a descriptor was posted")
    }

    /// Waits for the next receive.
    pub(crate) fn recv(&self) -> Completed {
        self.vi
            .recv_wait(WAIT)
            .unwrap()
            .expect("a descriptor was posted")
    }
}

/// Connects two ends of this process, the second as server.
pub(crate) fn connect(client: &End, server: &End) {
    let discriminator = unique_discriminator();
    let address = server.nic.local_address(&discriminator).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let accept = || {
                let mut request = server.nic.connect_wait(&address, WAIT).unwrap();
                request.accept(&server.vi)
            };
            until_answered(accept);
        });
        let own = client.nic.local_address(b"client").unwrap();
        persist(|| client.vi.connect(&own, &address, WAIT)).unwrap();
    });
}

/// Accepts until the client has waited for the answer: one that found the server silent for too long, on a machine that
/// has much to do, asks again.
pub(crate) fn until_answered(mut accept: impl FnMut() -> Result<()>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match accept() {
            Err(VipError::Timeout) if Instant::now() < deadline => {}
            outcome => return outcome.unwrap(),
        }
    }
}

/// Two reliable VIs of this process, connected.
pub(crate) fn pair() -> (End, End) {
    let ends = (End::new(), End::new());
    connect(&ends.0, &ends.1);
    ends
}

/// A reliable VI of this NIC and one of another NIC, connected.
pub(crate) fn pair_on(client: Nic, server: Nic) -> (End, End) {
    let ends = (End::on(client, |vi| vi), End::on(server, |vi| vi));
    connect(&ends.0, &ends.1);
    ends
}

/// Asks again for as long as nobody waits there yet, as clients do.
pub(crate) fn persist<T>(request: impl FnMut() -> Result<T>) -> Result<T> {
    persist_while(VipError::NoMatch, request)
}

/// Asks again for as long as this is the answer.
pub(crate) fn persist_while<T>(
    not_yet: VipError,
    mut request: impl FnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match request() {
            Err(error) if error == not_yet && Instant::now() < deadline => thread::yield_now(),
            outcome => return outcome,
        }
    }
}

/// A discriminator that no other test of this process uses.
pub(crate) fn unique_discriminator() -> Vec<u8> {
    static NEXT: Mutex<u32> = Mutex::new(0);
    let mut next = NEXT.lock().unwrap();
    *next += 1;
    format!("test-{}-{next}", std::process::id()).into_bytes()
}

/// Bytes that differ by place and by message.
pub(crate) fn pattern(message: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ message.wrapping_mul(89)) as u8)
        .collect()
}

/// The errors that a NIC reports to its handler.
pub(crate) struct Errors(Mutex<Receiver<(ErrorCode, Option<ViHandle>)>>);

impl Errors {
    pub(crate) fn of(nic: &Nic) -> Self {
        let (sender, receiver) = channel();
        nic.set_error_handler(move |error| {
            // The test that no longer listens is not interested.
            let _ = sender.send((error.code, error.vi));
        })
        .unwrap();
        Self(Mutex::new(receiver))
    }

    /// The next error, which is of `vi`.
    pub(crate) fn next_of(&self, vi: &Vi) -> ErrorCode {
        let (code, handle) = self
            .0
            .lock()
            .unwrap()
            .recv_timeout(PATIENCE)
            .expect("an error is reported");
        assert_eq!(handle, Some(vi.handle()));
        code
    }

    /// Nothing was reported so far.
    pub(crate) fn none(&self) -> bool {
        self.0.lock().unwrap().try_recv().is_err()
    }
}

/// Whether this process was started by [`SecondProcess`].
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD_MARK).is_some()
}

/// A second process that runs the test of this name, killed when it is dropped.
pub(crate) struct SecondProcess(Child);

impl SecondProcess {
    /// Starts it; in it, [`is_child`] is true.
    pub(crate) fn start(test: &str) -> Self {
        Self::start_with(test, |_| ())
    }

    /// Starts it as `change` says.
    pub(crate) fn start_with(test: &str, change: impl FnOnce(&mut Command)) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command
            .args(["--exact", test, "--nocapture"])
            .env(CHILD_MARK, segment());
        change(&mut command);
        Self(command.spawn().unwrap())
    }

    /// Its standard error, which was piped when it was started.
    pub(crate) fn stderr(&mut self) -> ChildStderr {
        self.0.stderr.take().expect("a pipe")
    }

    /// Stops it where it is; it has stopped when this returns.
    pub(crate) fn stop(&self) {
        let pid = self.0.id() as libc::pid_t;
        // SAFETY: signals a child that was not waited for, so that the number is still its own.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        let mut status = 0;
        // SAFETY: as above; waitpid(2) writes one status.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
        assert!(waited == pid && libc::WIFSTOPPED(status));
    }

    /// Ends it as nothing can prevent.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for its end, which is a good one.
    pub(crate) fn join(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "the second process: {status}");
    }
}

impl Drop for SecondProcess {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}
