//! Queues and memory of one VI, for tests.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use vi_types::{
    AsyncError, Claim, Completion, Operation, QueueIo, SendWork, Status, ViIndex, ViState, Waiter,
};

use crate::transfer::{BufferAccess, MemoryRanges, MessageMemory, RemoteAccess, StreamIo};

/// Address of the only region.
pub const BASE: u64 = 0x1003;
/// Handle of the only region.
pub const HANDLE: u32 = 7;
/// Length of the only region in bytes.
pub const REGION_BYTES: usize = 30_000;

/// A descriptor on the send queue.
#[derive(Clone, Debug)]
pub struct Posted {
    /// Operation.
    pub operation: Operation,
    /// Data of its segments; of a read the received data.
    pub data: Vec<u8>,
    /// Immediate data.
    pub immediate: Option<u32>,
}

/// A completed receive descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Error bits.
    pub status: Status,
    /// Length in bytes.
    pub length_bytes: u32,
    /// Received data.
    pub payload: Vec<u8>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// It was an RDMA write.
    pub remote_write: bool,
}

/// Queues and memory of a VI, and what happened to them. No memory is accessed in place.
#[derive(Debug)]
pub struct Host {
    /// Those in flight are first.
    pub sends: VecDeque<Posted>,
    in_flight: usize,
    /// Completed sends: error bits and length.
    pub sent: Vec<(Status, u32)>,
    /// Data of completed reads.
    pub read: Vec<Vec<u8>>,
    /// Capacities of the posted receives.
    pub receives: VecDeque<usize>,
    /// Data of the claimed receive.
    claimed: Option<Vec<u8>>,
    /// Completed receives.
    pub received: Vec<Received>,
    /// Bytes of the only region.
    pub region: Vec<u8>,
    /// Asynchronous errors.
    pub reports: Vec<AsyncError>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            sends: VecDeque::new(),
            in_flight: 0,
            sent: Vec::new(),
            read: Vec::new(),
            receives: VecDeque::new(),
            claimed: None,
            received: Vec::new(),
            region: vec![0; REGION_BYTES],
            reports: Vec::new(),
        }
    }
}

impl Host {
    fn work(&self, at: usize) -> Option<SendWork> {
        let posted = self.sends.get(at)?;
        Some(SendWork {
            length_bytes: posted.data.len() as u32,
            immediate: posted.immediate,
            operation: posted.operation,
            // The data of an earlier read is that before the write.
            fence: matches!(posted.operation, Operation::Write { .. }),
            fault: Status::OK,
        })
    }

    /// Returns the bytes of the region at an address, if they are in it.
    fn in_region(&mut self, (address, handle): (u64, u32), bytes: usize) -> Option<&mut [u8]> {
        let from = address.checked_sub(BASE).filter(|_| handle == HANDLE)? as usize;
        self.region.get_mut(from..from + bytes)
    }
}

impl QueueIo for Host {
    fn next_send(&mut self, _vi: ViIndex) -> Option<SendWork> {
        self.work(self.in_flight)
    }

    fn keep_in_flight(&mut self, _vi: ViIndex) {
        self.in_flight += 1;
    }

    fn complete_send(&mut self, _vi: ViIndex, status: Status, length_bytes: u32) {
        let posted = self
            .sends
            .pop_front()
            .expect("a completion without a descriptor");
        self.in_flight = self.in_flight.saturating_sub(1);
        self.sent.push((status, length_bytes));
        if matches!(posted.operation, Operation::Read { .. }) {
            self.read.push(posted.data);
        }
    }

    fn is_failing(&self, _vi: ViIndex) -> bool {
        false
    }

    fn claim_receive(&mut self, _vi: ViIndex) -> Claim {
        match self.receives.front() {
            None => Claim::Empty,
            Some(capacity) => {
                assert!(self.claimed.replace(Vec::new()).is_none());
                Claim::Ready {
                    capacity_bytes: *capacity as u32,
                }
            }
        }
    }

    fn place_receive(&mut self, _vi: ViIndex, ahead: u32, offset: u32, payload: &[u8]) -> bool {
        let claimed = self.claimed.as_mut().expect("nothing is claimed");
        assert_eq!(
            (ahead, offset as usize),
            (0, claimed.len()),
            "placed out of order"
        );
        claimed.extend(payload);
        true
    }

    fn complete_receive(&mut self, _vi: ViIndex, completion: Completion) {
        self.receives
            .pop_front()
            .expect("a completion without a descriptor");
        self.received.push(Received {
            status: completion.status,
            length_bytes: completion.length_bytes,
            payload: self.claimed.take().unwrap_or_default(),
            immediate: completion.immediate,
            remote_write: completion.remote_write,
        });
    }

    fn names_region(&mut self, _vi: ViIndex, handle: u32) -> bool {
        handle == HANDLE
    }

    fn place_rdma_write(
        &mut self,
        _vi: ViIndex,
        (address, handle): (u64, u32),
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool {
        let at = (address + u64::from(offset_bytes), handle);
        let to = self.in_region(at, payload.len());
        to.map(|to| to.copy_from_slice(payload)).is_some()
    }

    fn place_read(&mut self, _vi: ViIndex, ahead: u32, offset: u32, payload: &[u8]) -> bool {
        let to = &mut self.sends[ahead as usize].data[offset as usize..][..payload.len()];
        to.copy_from_slice(payload);
        true
    }

    fn resume(&mut self, _vi: ViIndex) {}

    fn flush_sends(&mut self, _vi: ViIndex) {
        self.sends.clear();
    }

    fn flush_receives(&mut self, _vi: ViIndex) {
        self.receives.clear();
    }

    fn set_state(&mut self, _vi: ViIndex, _state: ViState) {}

    fn report(&mut self, _vi: ViIndex, error: AsyncError) {
        self.reports.push(error);
    }

    fn control_event(&mut self, _waiter: Waiter) {}

    fn random(&mut self) -> u32 {
        4
    }
}

impl StreamIo for Host {
    fn work_ahead(&mut self, _vi: ViIndex, ahead: u32) -> Option<SendWork> {
        self.work(self.in_flight + ahead as usize)
    }

    fn in_flight(&mut self, _vi: ViIndex) -> u32 {
        self.in_flight as u32
    }

    fn unclaimed(&mut self, _vi: ViIndex) -> u32 {
        (self.receives.len() - usize::from(self.claimed.is_some())) as u32
    }

    fn set_notify_receives(&mut self, _vi: ViIndex, _enabled: bool) {}

    fn locate(
        &mut self,
        _vi: ViIndex,
        _memory: MessageMemory,
        _offset_bytes: u32,
        _bytes: u32,
        _ranges: &mut MemoryRanges,
    ) -> BufferAccess {
        BufferAccess::NeedsCopy
    }

    fn note_arrived(&mut self) {}

    fn copy_out(
        &mut self,
        _vi: ViIndex,
        memory: MessageMemory,
        offset_bytes: u32,
        to: &mut [u8],
    ) -> bool {
        let from = match memory {
            MessageMemory::Send(ahead) => {
                let posted = self.sends.get(ahead as usize);
                posted.and_then(|posted| posted.data.get(offset_bytes as usize..))
            }
            MessageMemory::ReadSource((address, handle)) => {
                let at = (address + u64::from(offset_bytes), handle);
                self.in_region(at, to.len()).map(|from| &*from)
            }
            MessageMemory::ReadTarget(_) | MessageMemory::Receive => None,
        };
        let from = from.and_then(|from| from.get(..to.len()));
        from.map(|from| to.copy_from_slice(from)).is_some()
    }

    fn take_whole(&mut self, _vi: ViIndex, _payload: &[u8], _immediate: Option<u32>) -> bool {
        false
    }

    fn copy_lone_send(&mut self, _vi: ViIndex, _to: &mut [u8]) -> Option<SendWork> {
        None
    }

    fn may_access(
        &mut self,
        _vi: ViIndex,
        at: (u64, u32),
        bytes: u32,
        _access: RemoteAccess,
    ) -> bool {
        self.in_region(at, bytes as usize).is_some()
    }
}
