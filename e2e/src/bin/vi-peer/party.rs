//! One VI with memory that its peer may write and read, and what becomes of its connection.

use std::fmt;
use std::time::Duration;

use clap::{Args, ValueEnum};
use vipl::{
    Completed, Descriptor, ErrorCode, Nic, Operation, Ptag, RdmaAccess, RdmaRegion,
    ReliabilityLevel, RemoteBuffer, Timeout, Vi, ViChoices, VipError,
};

use crate::Failure;
use crate::events::{Event, Events};
use crate::station::{Names, TIMEOUT, make_vi_of};

/// Bytes of the memory that the peer may write and read.
const REGION_BYTES: usize = 128 * 1024;
/// What is in that memory before anybody writes.
const FILL: u8 = 0xA5;
/// A message of these bytes is sent back: who sent it learns that the connection goes on.
const PROBE: &[u8] = b"probe";
/// What tells a peer where the memory is: address, handle and length, big-endian.
const PLACE_BYTES: usize = 16;
/// How often somebody who waits looks whether he is to end.
const LOOK_UP: Duration = Duration::from_millis(100);

/// Reliability levels.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Ud,
    Rd,
    Rr,
}

/// What a VI is to be like.
#[derive(Args, Clone)]
pub(crate) struct Shape {
    /// The reliability level.
    #[arg(long, value_enum, default_value = "rd")]
    level: Level,
    /// MaxTransferSize.
    #[arg(long, default_value_t = 65_536)]
    mtu: u64,
    /// Wants messages to wait for receives.
    #[arg(long)]
    flow_control: bool,
    /// Lets the MTU be negotiated.
    #[arg(long)]
    negotiate: bool,
    /// Security information.
    #[arg(long, default_value = "")]
    security: String,
    /// Receives that are posted before it is connected.
    #[arg(long, default_value_t = 4)]
    receives: usize,
    /// Bytes of each: more than MaxTransferSize, which is to be looked at all the same.
    #[arg(long, default_value_t = 80_000)]
    receive_bytes: usize,
}

impl Shape {
    fn reliability(&self) -> ReliabilityLevel {
        match self.level {
            Level::Ud => ReliabilityLevel::Unreliable,
            Level::Rd => ReliabilityLevel::ReliableDelivery,
            Level::Rr => ReliabilityLevel::ReliableReception,
        }
    }

    pub(crate) fn receive_bytes(&self) -> usize {
        self.receive_bytes
    }

    fn is_reliable(&self) -> bool {
        !matches!(self.level, Level::Ud)
    }
}

/// Byte `i` of message `serial` is the sum of both, as the second implementation has it.
pub(crate) fn pattern(serial: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| serial.wrapping_add(at as u8)).collect()
}

/// Bytes in words: how many, and which message's they are.
pub(crate) fn describe(bytes: &[u8]) -> String {
    let serial = bytes.first().copied().unwrap_or_default();
    if pattern(serial, bytes.len()) == bytes {
        format!("{} bytes from {serial}", bytes.len())
    } else if bytes.iter().all(|byte| *byte == FILL) {
        format!("{} bytes as they were", bytes.len())
    } else {
        format!("{} bytes of no pattern", bytes.len())
    }
}

/// How a connection ended for its program.
pub(crate) struct Ending {
    /// Messages that were received well.
    good: usize,
    /// What the other receives ended with, what is the same behind one another told once.
    receives: Vec<String>,
    /// Likewise what sends, writes and reads ended with.
    sends: Vec<String>,
    events: Vec<ErrorCode>,
    state: String,
    /// First and last byte of the memory that changed.
    written: Option<(usize, usize)>,
}

impl fmt::Display for Ending {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events: Vec<_> = self.events.iter().map(|code| format!("{code:?}")).collect();
        let written = match self.written {
            Some((first, last)) => format!("written {first} to {last}"),
            None => "nothing written".to_owned(),
        };
        write!(
            out,
            "received {}; receives: {}; {}; {}; {written}; sends: {}",
            self.good,
            self.receives.join(" > "),
            events.join(", "),
            self.state,
            self.sends.join(" > "),
        )
    }
}

/// A VI and all that belongs to it.
pub(crate) struct Party {
    nic: Nic,
    ptag: Ptag,
    events: Events,
    pub(crate) vi: Vi,
    region: RdmaRegion,
    place: Option<RemoteBuffer>,
    good: usize,
    receives: Vec<String>,
    sends: Vec<String>,
}

impl Party {
    /// A VI that is not connected, with its receives posted.
    pub(crate) fn new(
        (nic, ptag): (&Nic, &Ptag),
        (names, events): (&Names, &Events),
        shape: &Shape,
        name: &str,
    ) -> Result<Self, Failure> {
        let access = RdmaAccess {
            write: true,
            read: shape.is_reliable(),
        };
        let vi = nic.vi(ptag).reliability(shape.reliability());
        let vi = vi.max_transfer_bytes(shape.mtu);
        let vi = vi.rdma_write(access.write).rdma_read(access.read);
        let vi = make_vi_of(vi, names, name)?;
        vi.set_choices(&ViChoices {
            flow_control: shape.flow_control,
            negotiates: shape.negotiate,
            security: shape.security.clone().into(),
        })?;
        let region = nic.create_rdma_region(REGION_BYTES, ptag, access)?;
        region.write(0, &[FILL; REGION_BYTES]);
        let party = Self {
            nic: nic.clone(),
            ptag: ptag.clone(),
            events: events.clone(),
            vi,
            region,
            place: None,
            good: 0,
            receives: Vec::new(),
            sends: Vec::new(),
        };
        party.post(shape.receives, shape.receive_bytes)?;
        Ok(party)
    }

    /// Posts so many receives.
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
            .map_err(|_| "a descriptor without a segment")?;
        descriptor.set_used_bytes(0, bytes);
        Ok(descriptor)
    }

    /// Tells the peer where the memory is.
    pub(crate) fn advertise(&mut self) -> Result<(), Failure> {
        let place = self.region.remote_buffer();
        let mut bytes = place.address.to_be_bytes().to_vec();
        bytes.extend(place.handle.0.to_be_bytes());
        bytes.extend((REGION_BYTES as u32).to_be_bytes());
        self.operate(Operation::Send, &bytes, None)?;
        Ok(())
    }

    /// Takes note of where the peer's memory is, which a message of it tells.
    pub(crate) fn learn(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let bytes: &[u8; PLACE_BYTES] = bytes.try_into().map_err(|_| "that is no place")?;
        let (address, rest) = bytes.split_first_chunk().ok_or("no address")?;
        let (handle, _length) = rest.split_first_chunk().ok_or("no handle")?;
        self.place = Some(RemoteBuffer {
            address: u64::from_be_bytes(*address),
            handle: vipl::MemoryHandle(u32::from_be_bytes(*handle)),
        });
        Ok(())
    }

    /// A place in the peer's memory; somewhere, if it has not told one.
    pub(crate) fn at(&self, offset: u64) -> RemoteBuffer {
        let somewhere = RemoteBuffer::from_bytes(&[1; RemoteBuffer::BYTES]);
        self.place.unwrap_or(somewhere).at(offset)
    }

    /// Posts one operation, of these bytes or for as many.
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

    /// Does one operation, and waits until it is complete.
    pub(crate) fn operate(
        &mut self,
        operation: Operation,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<Completed, Failure> {
        self.begin(operation, bytes, immediate)?;
        self.wait()
    }

    /// Waits for the oldest operation.
    pub(crate) fn wait(&mut self) -> Result<Completed, Failure> {
        let completed = self.vi.send_wait(Timeout::After(TIMEOUT))?;
        let completed = completed.ok_or("an operation was posted and is nowhere")?;
        note(&mut self.sends, &completed);
        Ok(completed)
    }

    /// The next receive that is complete, if one is in time.
    pub(crate) fn receive(&mut self, limit: Duration) -> Result<Option<Completed>, Failure> {
        match self.vi.recv_wait(Timeout::After(limit)) {
            Ok(Some(completed)) => {
                if completed.status.is_ok() {
                    self.good += 1;
                } else {
                    note(&mut self.receives, &completed);
                }
                Ok(Some(completed))
            }
            Ok(None) => Err("no receive is posted".into()),
            Err(VipError::Timeout) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes of the memory.
    pub(crate) fn memory(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.region.read(offset, &mut found);
        found
    }

    /// Puts bytes into the memory.
    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        self.region.write(offset, bytes);
    }

    /// Answers probes until the connection is lost or `stops`.
    pub(crate) fn attend(&mut self, stops: impl Fn() -> bool) -> Result<(), Failure> {
        while !stops() {
            match self.vi.recv_wait(Timeout::After(LOOK_UP)) {
                Ok(Some(completed)) if completed.status.is_ok() => {
                    self.good += 1;
                    if completed.first_bytes() == PROBE {
                        self.begin(Operation::Send, PROBE, None)?;
                    }
                }
                Ok(Some(completed)) => note(&mut self.receives, &completed),
                // Nothing is left to wait for but the loss itself.
                Ok(None) if self.is_lost(LOOK_UP) => break,
                Ok(None) | Err(VipError::Timeout) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Is the connection reported to be lost, by the limit?
    fn is_lost(&self, limit: Duration) -> bool {
        let vi = self.vi.handle();
        let is_loss = |e: &Event| e.vi == Some(vi) && e.code == ErrorCode::ConnLost;
        self.events.count(limit, is_loss) > 0
    }

    /// Ends the connection if it is not lost, and tells how it was for the program.
    pub(crate) fn end(mut self, is_lost: bool) -> Result<Ending, Failure> {
        let vi = self.vi.handle();
        if is_lost && !self.is_lost(TIMEOUT) {
            return Err("no loss is reported".into());
        }
        let state = format!("{:?}", self.vi.state()?);
        self.vi.disconnect()?;
        while let Some(completed) = self.vi.send_wait(Timeout::After(TIMEOUT))? {
            note(&mut self.sends, &completed);
        }
        while let Some(completed) = self.vi.recv_wait(Timeout::After(TIMEOUT))? {
            note(&mut self.receives, &completed);
        }
        let memory = self.memory(0, REGION_BYTES);
        let first = memory.iter().position(|byte| *byte != FILL);
        let last = memory.iter().rposition(|byte| *byte != FILL);
        Ok(Ending {
            good: self.good,
            receives: self.receives,
            sends: self.sends,
            events: self.events.of(vi),
            state,
            written: first.zip(last),
        })
    }
}

/// Adds what a descriptor ended with, unless the one before ended with the same.
fn note(told: &mut Vec<String>, completed: &Completed) {
    let status = completed.status.to_string();
    if told.last() != Some(&status) {
        told.push(status);
    }
}
