//! A VI with memory for RDMA of the peer, and the outcome of its connection.

use std::fmt;
use std::time::Duration;

use clap::Args;
use vipl::{
    Completed, ConnectionOptions, Descriptor, ErrorCode, Nic, Operation, Ptag, RdmaAccess,
    RdmaRegion, ReliabilityLevel, RemoteBuffer, Timeout, Vi, VipError,
};

use crate::events::{Event, Events};
use crate::nic_context::{Names, TIMEOUT, build_vi};
use e2e::failure::Failure;

/// Size of the memory that the peer may write and read.
const REGION_BYTES: usize = 128 * 1024;
/// Initial content of that memory.
const FILL: u8 = 0xA5;
/// A message with this content is echoed, which proves to the peer that the connection works.
const PROBE: &[u8] = b"probe";
/// Length of the advertisement of the memory: address, handle and length, big-endian.
const ADVERTISEMENT_BYTES: usize = 16;
/// Interval at which waiting threads check whether to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Attributes and connection options of a VI.
#[derive(Args, Clone)]
pub(crate) struct ViOptions {
    /// The reliability level: ud, rd or rr.
    #[arg(long, default_value = "rd")]
    level: ReliabilityLevel,
    /// MaxTransferSize.
    #[arg(long, default_value_t = 65_536)]
    mtu: u64,
    /// Requests flow control: messages wait for posted receives.
    #[arg(long)]
    flow_control: bool,
    /// Enables MTU negotiation.
    #[arg(long)]
    negotiate: bool,
    /// Security information.
    #[arg(long, default_value = "")]
    security: String,
    /// Receives posted before the VI is connected.
    #[arg(long, default_value_t = 4)]
    receives: usize,
    /// Length of each receive; more than MaxTransferSize, to test that this limit is enforced as well.
    #[arg(long, default_value_t = 80_000)]
    receive_bytes: usize,
}

impl ViOptions {
    pub(crate) fn receive_bytes(&self) -> usize {
        self.receive_bytes
    }
}

/// Returns message `serial`, whose byte `i` is the sum of both; the Python implementation uses the same pattern.
pub(crate) fn pattern(serial: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| serial.wrapping_add(at as u8)).collect()
}

/// Describes bytes: their number and the serial number of their pattern.
pub(crate) fn describe(bytes: &[u8]) -> String {
    let serial = bytes.first().copied().unwrap_or_default();
    if pattern(serial, bytes.len()) == bytes {
        format!("{} bytes from {serial}", bytes.len())
    } else if bytes.iter().all(|byte| *byte == FILL) {
        format!("{} bytes unchanged", bytes.len())
    } else {
        format!("{} bytes without pattern", bytes.len())
    }
}

/// The outcome of a connection for the application.
pub(crate) struct Outcome {
    /// Messages received without error.
    received: usize,
    /// Statuses of the other receives, without consecutive duplicates.
    receives: Vec<String>,
    /// Statuses of sends, writes and reads, without consecutive duplicates.
    sends: Vec<String>,
    events: Vec<ErrorCode>,
    state: String,
    /// First and last changed byte of the memory.
    written: Option<(usize, usize)>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events: Vec<_> = self.events.iter().map(|code| format!("{code:?}")).collect();
        let written = match self.written {
            Some((first, last)) => format!("written {first} to {last}"),
            None => "nothing written".to_owned(),
        };
        write!(
            out,
            "received {}; receives: {}; {}; {}; {written}; sends: {}",
            self.received,
            self.receives.join(" > "),
            events.join(", "),
            self.state,
            self.sends.join(" > "),
        )
    }
}

/// A VI with its registered memory and the statuses of its completions.
pub(crate) struct PeerSession {
    nic: Nic,
    ptag: Ptag,
    events: Events,
    pub(crate) vi: Vi,
    region: RdmaRegion,
    remote_region: Option<RemoteBuffer>,
    received: usize,
    receives: Vec<String>,
    sends: Vec<String>,
}

impl PeerSession {
    /// Creates a VI, not connected, and posts its receives.
    pub(crate) fn new(
        (nic, ptag): (&Nic, &Ptag),
        (names, events): (&Names, &Events),
        options: &ViOptions,
        name: &str,
    ) -> Result<Self, Failure> {
        let access = RdmaAccess {
            write: true,
            read: options.level.is_reliable(),
        };
        let vi = nic.vi(ptag).reliability(options.level);
        let vi = vi.max_transfer_bytes(options.mtu);
        let vi = vi.rdma_write(access.write).rdma_read(access.read);
        let vi = build_vi(vi, names, name)?;
        vi.set_connection_options(&ConnectionOptions {
            flow_control: options.flow_control,
            negotiate_mtu: options.negotiate,
            security: options.security.clone().into(),
        })?;
        let region = nic.create_rdma_region(REGION_BYTES, ptag, access)?;
        region.write(0, &[FILL; REGION_BYTES]);
        let session = Self {
            nic: nic.clone(),
            ptag: ptag.clone(),
            events: events.clone(),
            vi,
            region,
            remote_region: None,
            received: 0,
            receives: Vec::new(),
            sends: Vec::new(),
        };
        session.post(options.receives, options.receive_bytes)?;
        Ok(session)
    }

    /// Posts `count` receives.
    pub(crate) fn post(&self, count: usize, bytes: usize) -> Result<(), Failure> {
        for _ in 0..count {
            self.vi.post_recv(self.descriptor(bytes)?)?;
        }
        Ok(())
    }

    fn descriptor(&self, bytes: usize) -> Result<Descriptor, Failure> {
        let mut descriptor = self.nic.create_descriptors(1, 1, &self.ptag)?.remove(0);
        let buffer = self.nic.create_region(bytes.max(1), &self.ptag)?;
        descriptor
            .push(buffer.into_buffer())
            .map_err(|_| "a descriptor has no free segment")?;
        descriptor.set_used_bytes(0, bytes);
        Ok(descriptor)
    }

    /// Sends the address of the memory to the peer.
    pub(crate) fn advertise(&mut self) -> Result<(), Failure> {
        let region = self.region.remote_buffer();
        let mut bytes = region.address.to_be_bytes().to_vec();
        bytes.extend(region.handle.0.to_be_bytes());
        bytes.extend((REGION_BYTES as u32).to_be_bytes());
        self.operate(Operation::Send, &bytes, None)?;
        Ok(())
    }

    /// Parses the peer's advertisement of its memory.
    pub(crate) fn learn(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let bytes: &[u8; ADVERTISEMENT_BYTES] =
            bytes.try_into().map_err(|_| "malformed advertisement")?;
        let (address, rest) = bytes.split_first_chunk().ok_or("no address")?;
        let (handle, _length) = rest.split_first_chunk().ok_or("no handle")?;
        self.remote_region = Some(RemoteBuffer {
            address: u64::from_be_bytes(*address),
            handle: vipl::MemoryHandle(u32::from_be_bytes(*handle)),
        });
        Ok(())
    }

    /// Returns an address in the peer's memory; an invalid one if the peer has not advertised any.
    pub(crate) fn remote(&self, offset: u64) -> RemoteBuffer {
        let invalid = RemoteBuffer::from_bytes(&[1; RemoteBuffer::BYTES]);
        self.remote_region.unwrap_or(invalid).at(offset)
    }

    /// Posts one operation with these bytes; a read gets a buffer of their length.
    pub(crate) fn begin(
        &self,
        operation: Operation,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<(), Failure> {
        let mut descriptor = self.descriptor(bytes.len())?;
        descriptor.buffer_mut(0)[..bytes.len()].copy_from_slice(bytes);
        descriptor.set_operation(operation);
        descriptor.set_immediate(immediate);
        Ok(self.vi.post_send(descriptor)?)
    }

    /// Posts one operation and waits for its completion.
    pub(crate) fn operate(
        &mut self,
        operation: Operation,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<Completed, Failure> {
        self.begin(operation, bytes, immediate)?;
        self.wait()
    }

    /// Waits for the completion of the oldest operation.
    pub(crate) fn wait(&mut self) -> Result<Completed, Failure> {
        let completed = self.vi.send_wait(Timeout::After(TIMEOUT))?;
        let completed = completed.ok_or("the send queue is empty")?;
        record_status(&mut self.sends, &completed);
        Ok(completed)
    }

    /// Waits for the next completed receive. Returns `None` after the limit.
    pub(crate) fn receive(&mut self, limit: Duration) -> Result<Option<Completed>, Failure> {
        match self.vi.recv_wait(Timeout::After(limit)) {
            Ok(Some(completed)) => {
                if completed.status.is_ok() {
                    self.received += 1;
                } else {
                    record_status(&mut self.receives, &completed);
                }
                Ok(Some(completed))
            }
            Ok(None) => Err("no receive is posted".into()),
            Err(VipError::Timeout) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns bytes of the memory.
    pub(crate) fn memory(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.region.read(offset, &mut found);
        found
    }

    /// Writes bytes into the memory.
    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        self.region.write(offset, bytes);
    }

    /// Echoes probes until the connection is lost or `is_stopping` returns true.
    pub(crate) fn answer_probes(&mut self, is_stopping: impl Fn() -> bool) -> Result<(), Failure> {
        while !is_stopping() {
            match self.vi.recv_wait(Timeout::After(STOP_CHECK_INTERVAL)) {
                Ok(Some(completed)) if completed.status.is_ok() => {
                    self.received += 1;
                    if completed.first_bytes() == PROBE {
                        self.begin(Operation::Send, PROBE, None)?;
                    }
                }
                Ok(Some(completed)) => record_status(&mut self.receives, &completed),
                // No receive is left; wait for the loss.
                Ok(None) if self.is_lost(STOP_CHECK_INTERVAL) => break,
                Ok(None) | Err(VipError::Timeout) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for the report of the connection loss. Returns false after the limit.
    fn is_lost(&self, limit: Duration) -> bool {
        let vi = self.vi.handle();
        let is_loss = |e: &Event| e.vi == Some(vi) && e.code == ErrorCode::ConnLost;
        self.events.count(limit, is_loss) > 0
    }

    /// Ends the connection and returns its outcome. `is_lost`: the loss must be reported first.
    pub(crate) fn end(mut self, is_lost: bool) -> Result<Outcome, Failure> {
        let vi = self.vi.handle();
        if is_lost && !self.is_lost(TIMEOUT) {
            return Err("no loss is reported".into());
        }
        let state = format!("{:?}", self.vi.state()?);
        self.vi.disconnect()?;
        while let Some(completed) = self.vi.send_wait(Timeout::After(TIMEOUT))? {
            record_status(&mut self.sends, &completed);
        }
        while let Some(completed) = self.vi.recv_wait(Timeout::After(TIMEOUT))? {
            record_status(&mut self.receives, &completed);
        }
        let memory = self.memory(0, REGION_BYTES);
        let first = memory.iter().position(|byte| *byte != FILL);
        let last = memory.iter().rposition(|byte| *byte != FILL);
        Ok(Outcome {
            received: self.received,
            receives: self.receives,
            sends: self.sends,
            events: self.events.of(vi),
            state,
            written: first.zip(last),
        })
    }
}

/// Appends the status of a descriptor unless it equals the last one.
fn record_status(statuses: &mut Vec<String>, completed: &Completed) {
    let status = completed.status.to_string();
    if statuses.last() != Some(&status) {
        statuses.push(status);
    }
}
