//! Shared code of the tests of the safe API: a private segment, pairs of connected VIs, messages with a pattern, and
//! second processes.

// Each test program uses only a part.
#![allow(dead_code)]

pub(crate) mod datapath;
pub(crate) mod forked;
pub(crate) mod raw;
pub(crate) mod scripted_peer;
pub(crate) mod tls;

use std::net::Ipv4Addr;
use std::process::{Child, ChildStderr, Command};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use pmd::config::{FcVi, Inline, Network, NicConfig, ViTcp};
use vipl::{
    Buffer, Completed, Descriptor, ErrorCode, NetAddress, Nic, NicHandle, Operation, Ptag,
    RdmaAccess, RdmaRegion, ReliabilityLevel, RemoteBuffer, Result, Timeout, Vi, ViBuilder,
    ViHandle, VipError,
};

/// Long enough for any machine; a test that waits this long has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// [`TIMEOUT`] as an argument of the wait calls.
pub(crate) const WAIT: Timeout = Timeout::After(TIMEOUT);
/// The transfer size of the VIs of these tests.
pub(crate) const MAX_TRANSFER_BYTES: usize = 64 * 1024;
pub(crate) const LEVELS: [ReliabilityLevel; 3] = [
    ReliabilityLevel::UnreliableDelivery,
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];
pub(crate) const RELIABLE: [ReliabilityLevel; 2] = [LEVELS[1], LEVELS[2]];

pub(crate) const WRITABLE: RdmaAccess = RdmaAccess {
    write: true,
    read: false,
};
pub(crate) const READABLE: RdmaAccess = RdmaAccess {
    write: false,
    read: true,
};
pub(crate) const READ_WRITE: RdmaAccess = RdmaAccess {
    write: true,
    read: true,
};

/// Environment variable that selects the transport of this test run: FC-VI, the same without direct access to memory if
/// `frames`, or VI/TCP if `vi-tcp`.
const TRANSPORT: &str = "VIPL_TEST_TRANSPORT";
/// Environment variable of a second process of a test: the segment of the first.
const CHILD_MARK: &str = "VIPL_TEST_SEGMENT";

/// Opens the NIC of this test run, on a segment that only this process and its children use.
pub(crate) fn open() -> Nic {
    open_as(|_| ())
}

/// Opens a NIC of this test run with a changed configuration. A different configuration is a different NIC, and a
/// different station of the same segment.
pub(crate) fn open_as(change: impl FnOnce(&mut NicConfig)) -> Nic {
    Nic::open_with(&config(change))
        .unwrap_or_else(|error| panic!("{error}: {:?}", vipl::provider::last_error()))
}

/// The changed configuration of this test run's NIC. Its timeouts are long enough for a thread that is descheduled.
pub(crate) fn config(change: impl FnOnce(&mut NicConfig)) -> NicConfig {
    let mut config = NicConfig {
        ulp_timeout_ms: Some(60_000),
        fc_vi: FcVi {
            e_d_tov_ms: 60_000,
            silent_port_ms: Some(60_000),
            ..FcVi::default()
        },
        network: Network::segment(segment()),
        ..NicConfig::default()
    };
    if is_over_tcp() {
        config.network = Network::ViTcp(ViTcp::default());
        config.host = Some(own_host().into());
    }
    if is_in_frames() {
        use_frames(&mut config);
    }
    change(&mut config);
    config
}

/// Has RDMA operations carried out in frames, not by access to the peer's memory.
pub(crate) fn use_frames(config: &mut NicConfig) {
    if let Network::Shm(shm) = &mut config.network {
        shm.max_direct_files = 0;
    }
}

/// The VI/TCP keys of a NIC with VI/TCP.
pub(crate) fn tcp_keys(config: &mut NicConfig) -> &mut ViTcp {
    config.network.vi_tcp_mut().expect("VI/TCP")
}

/// The keys of the inline progress of a NIC with inline progress.
pub(crate) fn inline_keys(config: &mut NicConfig) -> &mut Inline {
    config.progress.inline_mut().expect("inline progress")
}

/// Returns whether this test run uses VI/TCP.
pub(crate) fn is_over_tcp() -> bool {
    std::env::var_os(TRANSPORT).is_some_and(|transport| transport == "vi-tcp")
}

/// Returns whether all messages of this test run are in frames.
pub(crate) fn is_in_frames() -> bool {
    std::env::var_os(TRANSPORT).is_some_and(|transport| transport == "frames")
}

/// A loopback address that only this test run and its children use.
pub(crate) fn own_host() -> Ipv4Addr {
    let segment = segment();
    let pid = segment.rsplit('-').next().map(str::parse::<u32>);
    let pid = pid.expect("a trailing number").expect("a process ID");
    Ipv4Addr::from_bits(0x7F40_0000 | pid & 0x3F_FFFF)
}

/// One of the loopback addresses that only this test run and its children use; number 0 is [`own_host`]. Each module of
/// a program has numbers of its own below [`FIRST_OF_PEERS`].
pub(crate) fn tcp_host(number: u32) -> Ipv4Addr {
    assert!(number <= LAST_HOST);
    Ipv4Addr::from_bits(own_host().to_bits() ^ (number << 16))
}

/// The first number of tests with a scripted peer.
pub(crate) const FIRST_OF_PEERS: u32 = 64;
/// The first number of tests with TLS.
pub(crate) const FIRST_OF_TLS: u32 = 128;
const LAST_HOST: u32 = 255;

/// Configures VI/TCP at [`tcp_host`] `number`.
pub(crate) fn use_tcp(config: &mut NicConfig, number: u32) {
    config.network = Network::ViTcp(ViTcp::default());
    config.host = Some(tcp_host(number).into());
}

/// Opens a NIC of VI/TCP at [`tcp_host`] `number`.
pub(crate) fn tcp(number: u32) -> Nic {
    open_as(|config| use_tcp(config, number))
}

/// The segment of this test run.
pub(crate) fn segment() -> String {
    std::env::var(CHILD_MARK).unwrap_or_else(|_| format!("test-{}", std::process::id()))
}

/// One side of a connection, with its own NIC handle.
pub(crate) struct Endpoint {
    pub(crate) vi: Vi,
    pub(crate) ptag: Ptag,
    pub(crate) nic: Nic,
    pub(crate) errors: Errors,
}

impl Endpoint {
    /// A reliable VI.
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// A VI of this level.
    pub(crate) fn of_level(level: ReliabilityLevel) -> Self {
        Self::with(|vi| vi.reliability(level))
    }

    /// A VI with the attributes that `configure` sets.
    pub(crate) fn with(configure: impl FnOnce(ViBuilder) -> ViBuilder) -> Self {
        Self::on(open(), configure)
    }

    /// A VI of this NIC with the attributes that `configure` sets.
    pub(crate) fn on(nic: Nic, configure: impl FnOnce(ViBuilder) -> ViBuilder) -> Self {
        let errors = Errors::of(&nic);
        let ptag = nic.create_ptag().unwrap();
        let vi = configure(nic.vi(&ptag).max_transfer_bytes(MAX_TRANSFER_BYTES as u64))
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
        let mut descriptor = self.descriptor(bytes.len().max(1));
        descriptor.buffer_mut(0)[..bytes.len()].copy_from_slice(bytes);
        descriptor.set_used_bytes(0, bytes.len());
        descriptor
    }

    /// A descriptor with one empty segment of `buffer_bytes`.
    pub(crate) fn descriptor(&self, buffer_bytes: usize) -> Descriptor {
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

    /// Memory that peers may access.
    pub(crate) fn region(&self, len_bytes: usize, access: RdmaAccess) -> RdmaRegion {
        let region = self.nic.create_rdma_region(len_bytes, &self.ptag, access);
        region.unwrap()
    }

    /// An RDMA write of `bytes`.
    pub(crate) fn write_of(&self, bytes: &[u8], remote: RemoteBuffer) -> Descriptor {
        let mut descriptor = self.message(bytes);
        descriptor.set_operation(Operation::RdmaWrite(remote));
        descriptor
    }

    /// An RDMA read into one segment.
    pub(crate) fn read_of(&self, remote: RemoteBuffer, len_bytes: usize) -> Descriptor {
        let mut descriptor = self.descriptor(len_bytes.max(1));
        descriptor.set_used_bytes(0, len_bytes);
        descriptor.set_operation(Operation::RdmaRead(remote));
        descriptor
    }

    /// Posts receives with one segment of `buffer_bytes`.
    pub(crate) fn post_receives(&self, receives: usize, buffer_bytes: usize) {
        for _ in 0..receives {
            self.vi.post_recv(self.descriptor(buffer_bytes)).unwrap();
        }
    }

    /// Posts a send of `bytes`.
    pub(crate) fn post_message(&self, bytes: &[u8]) {
        self.vi.post_send(self.message(bytes)).unwrap();
    }

    /// Sends `bytes`, which must succeed.
    pub(crate) fn send_bytes(&self, bytes: &[u8]) {
        self.send(self.message(bytes)).ok().unwrap();
    }

    /// Posts a send and waits for its completion.
    pub(crate) fn send(&self, descriptor: Descriptor) -> Completed {
        self.vi.post_send(descriptor).unwrap();
        self.sent()
    }

    /// Waits for the next send.
    pub(crate) fn sent(&self) -> Completed {
        let sent = self.vi.send_wait(WAIT).unwrap();
        sent.expect("a descriptor was posted")
    }

    /// Waits for the next sends, which must succeed.
    pub(crate) fn expect_sent(&self, sends: usize) {
        for number in 0..sends {
            let sent = self.sent();
            assert!(sent.status.is_ok(), "{number}: {:?}", sent.status);
        }
    }

    /// Waits for the next receive.
    pub(crate) fn recv(&self) -> Completed {
        let received = self.vi.recv_wait(WAIT).unwrap();
        received.expect("a descriptor was posted")
    }

    /// Waits for the next receive, which must succeed with these bytes; returns its descriptor.
    pub(crate) fn expect_message(&self, bytes: &[u8]) -> Descriptor {
        let arrived = self.recv().ok().unwrap();
        assert!(arrived.first_bytes() == bytes, "{} bytes", bytes.len());
        arrived.descriptor
    }

    /// Checks that the next errors of this VI are these, in this order.
    pub(crate) fn expect_errors(&self, codes: &[ErrorCode]) {
        for code in codes {
            assert_eq!(self.errors.next_of(&self.vi), *code);
        }
    }

    /// The address of this NIC with a discriminator.
    pub(crate) fn address(&self, discriminator: &[u8]) -> NetAddress {
        self.nic.local_address(discriminator).unwrap()
    }

    /// Requests a connection until a program listens at the address.
    pub(crate) fn request(&self, address: &NetAddress) -> Result<()> {
        let own = self.address(b"client");
        retry_no_match(|| self.vi.connect(&own, address, WAIT)).map(drop)
    }

    /// Connects with the program that listens for `name` on this host.
    pub(crate) fn connect_to(&self, name: &[u8]) {
        self.request(&self.address(name)).unwrap();
    }

    /// Accepts the next request for the address.
    pub(crate) fn accept(&self, address: &NetAddress) {
        let mut request = self.nic.connect_wait(address, WAIT).unwrap();
        request.accept(&self.vi).unwrap();
    }
}

/// Sends `bytes` to a receive that it posts, and checks that they arrive.
pub(crate) fn deliver(from: &Endpoint, to: &Endpoint, bytes: &[u8]) {
    to.post_receives(1, bytes.len().max(1));
    from.send_bytes(bytes);
    to.expect_message(bytes);
}

/// Connects two endpoints of this process, the second as server.
pub(crate) fn connect(client: &Endpoint, server: &Endpoint) {
    let address = server.address(&unique_discriminator());
    thread::scope(|scope| {
        scope.spawn(|| {
            let accept = || {
                let mut request = server.nic.connect_wait(&address, WAIT).unwrap();
                request.accept(&server.vi)
            };
            retry_accept(accept);
        });
        client.request(&address).unwrap();
    });
}

/// Repeats `accept` while it times out: on a loaded machine the client may give up before the response and request
/// again.
pub(crate) fn retry_accept(mut accept: impl FnMut() -> Result<()>) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match accept() {
            Err(VipError::Timeout) if Instant::now() < deadline => {}
            outcome => return outcome.unwrap(),
        }
    }
}

/// Creates two connected reliable VIs of this process.
pub(crate) fn pair() -> (Endpoint, Endpoint) {
    let ends = (Endpoint::new(), Endpoint::new());
    connect(&ends.0, &ends.1);
    ends
}

/// Creates a reliable VI on each of these NICs and connects them.
pub(crate) fn pair_on(client: Nic, server: Nic) -> (Endpoint, Endpoint) {
    let ends = (Endpoint::on(client, |vi| vi), Endpoint::on(server, |vi| vi));
    connect(&ends.0, &ends.1);
    ends
}

/// Repeats a connection request while the server is not listening yet (`NoMatch`).
pub(crate) fn retry_no_match<T>(request: impl FnMut() -> Result<T>) -> Result<T> {
    retry_while(VipError::NoMatch, request)
}

/// Repeats a request while it returns this error, for at most [`TIMEOUT`].
pub(crate) fn retry_while<T>(
    retried: VipError,
    mut request: impl FnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match request() {
            Err(error) if error == retried && Instant::now() < deadline => thread::yield_now(),
            outcome => return outcome,
        }
    }
}

/// Waits until the condition holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "timeout: {what}");
        thread::yield_now();
    }
}

/// Calls `post`, which posts the message of this number, until the TCP send buffer is full; returns the number of messages.
pub(crate) fn post_until_tcp_is_full(nic: NicHandle, mut post: impl FnMut(usize)) -> usize {
    let sent = || counter(nic, "tx_messages");
    let full = || counter(nic, "tx_no_room_in_tcp");
    let (first, before) = (sent(), full());
    let mut posted = 0;
    while full() == before {
        post(posted);
        posted += 1;
        // The poll thread of the NIC may be the one that sends it.
        wait_until("a message is sent", || {
            full() != before || sent() - first >= posted as u64
        });
    }
    posted
}

/// Reads a counter of a NIC.
pub(crate) fn counter(nic: NicHandle, name: &str) -> u64 {
    let counters = vipl::provider::counters(nic).unwrap();
    let found = counters.iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("{name}: {counters:?}")).1
}

/// Processor time of this process.
pub(crate) fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime(2) writes one timespec.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A discriminator that no other test of this process uses.
pub(crate) fn unique_discriminator() -> Vec<u8> {
    static NEXT: Mutex<u32> = Mutex::new(0);
    let mut next = NEXT.lock().unwrap();
    *next += 1;
    format!("test-{}-{next}", std::process::id()).into_bytes()
}

/// Bytes that differ by offset and by message.
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
            // Fails if the test no longer uses the receiver.
            let _ = sender.send((error.code, error.vi));
        })
        .unwrap();
        Self(Mutex::new(receiver))
    }

    /// Waits for the next error, which must be of `vi`.
    pub(crate) fn next_of(&self, vi: &Vi) -> ErrorCode {
        let (code, handle) = self
            .0
            .lock()
            .unwrap()
            .recv_timeout(TIMEOUT)
            .expect("an error is reported");
        assert_eq!(handle, Some(vi.handle()));
        code
    }

    /// Returns whether no error is pending.
    pub(crate) fn none(&self) -> bool {
        self.0.lock().unwrap().try_recv().is_err()
    }
}

/// Returns whether this process was started by [`SecondProcess`].
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD_MARK).is_some()
}

/// Returns the command of this program that runs one test, whose function has this name. Its modules are looked up:
/// a command of a test that does not exist would succeed.
pub(crate) fn test_command(test: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let listed = Command::new(&program).args(["--list", test]).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let names = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    let name = names.into_iter().find(|name| {
        let modules = name.strip_suffix(test);
        modules.is_some_and(|modules| modules.is_empty() || modules.ends_with("::"))
    });
    let name = name.unwrap_or_else(|| panic!("no test {test}: {listed}"));
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture"]);
    command
}

/// A second process that runs one test; killed when dropped.
pub(crate) struct SecondProcess(Child);

impl SecondProcess {
    /// Starts the test of this name; in the new process [`is_child`] is true.
    pub(crate) fn start(test: &str) -> Self {
        Self::start_with(test, |_| ())
    }

    /// As [`SecondProcess::start`], with a changed command.
    pub(crate) fn start_with(test: &str, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = test_command(test);
        command.env(CHILD_MARK, segment());
        change(&mut command);
        Self(command.spawn().unwrap())
    }

    /// Takes the standard error of the process, which must be a pipe.
    pub(crate) fn stderr(&mut self) -> ChildStderr {
        self.0.stderr.take().expect("a pipe")
    }

    /// Stops the process (SIGSTOP); it has stopped when this returns.
    pub(crate) fn stop(&self) {
        let pid = self.0.id() as libc::pid_t;
        // SAFETY: signals a child that was not waited for, so that the number is still its own.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        let mut status = 0;
        // SAFETY: as above; waitpid(2) writes one status.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
        assert!(waited == pid && libc::WIFSTOPPED(status));
    }

    /// Continues the process after [`Self::stop`].
    pub(crate) fn resume(&self) {
        // SAFETY: as in `stop`.
        let failed = unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGCONT) };
        assert_eq!(failed, 0);
    }

    /// Kills the process (SIGKILL) and waits for it.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for the process, which must exit with success.
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
