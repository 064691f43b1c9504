//! A model of queues, memory and port, which checks how the engine uses them.

mod engine_io;

use std::collections::{HashMap, VecDeque};

use fcvi_frame::frame::Payload;
use vi_types::{
    AsyncError, Claim, Completion, Operation, QueueIo, SendWork, Status, ViIndex, ViState, Waiter,
};

use super::rng::Rng;
use crate::{DataFrame, Direct, Transmit};

/// An event that the consumer of a VI sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    State(ViState),
    Sent(u64, Status, u32),
    Received(Received),
    Async(AsyncError),
}

/// A completed receive descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) id: u64,
    pub(crate) status: Status,
    pub(crate) length_bytes: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) remote_write: bool,
    pub(crate) data: Vec<u8>,
}

/// A descriptor on a send queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Send {
    pub(crate) id: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) immediate: Option<u32>,
    /// The target of a write, or the source of a read.
    pub(crate) remote: Option<(u64, u32)>,
    /// A read, of as many bytes as `data` has, into `data`.
    pub(crate) read: bool,
    pub(crate) fence: bool,
    pub(crate) fault: Status,
    /// Its memory is invalid from this byte on.
    pub(crate) gone_from: Option<u32>,
    /// Placed bytes of a read.
    pub(crate) placed_bytes: u32,
}

impl Send {
    pub(crate) fn work(&self) -> SendWork {
        SendWork {
            length_bytes: self.data.len() as u32,
            immediate: self.immediate,
            operation: self.operation(),
            fence: self.fence,
            fault: self.fault,
        }
    }

    fn operation(&self) -> Operation {
        match self.remote {
            None => Operation::Send,
            Some(remote) if self.read => Operation::Read { remote },
            Some(remote) => Operation::Write { remote },
        }
    }
}

/// A descriptor on a receive queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) capacity_bytes: u32,
    pub(crate) fault: Status,
    pub(crate) gone_from: Option<u32>,
    pub(crate) data: Vec<u8>,
    /// Placed ranges, none of which overlap.
    pub(crate) placed: Vec<(u32, u32)>,
    pub(crate) claimed: bool,
    /// Its completion cannot be written.
    pub(crate) lost: bool,
}

/// The queues of one VI.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Those in flight first.
    pub(crate) sends: VecDeque<Send>,
    pub(crate) in_flight: usize,
    /// In the run queue: something was posted, the engine requested it, or the port had no room.
    pub(crate) queued: bool,
    /// Data of completed reads, with their IDs.
    pub(crate) reads: Vec<(u64, Vec<u8>)>,
    pub(crate) receives: VecDeque<Receive>,
    /// A completion could not be written.
    pub(crate) failing: bool,
    pub(crate) log: Vec<Event>,
    pub(crate) next_send_id: u64,
    pub(crate) next_receive_id: u64,
}

/// Registered memory that peers may write.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    /// A write to a byte from here on fails although the target was checked.
    pub(crate) gone_from: u64,
}

/// Destination of placed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Destination {
    /// The receive descriptor with this ID.
    Receive(u64),
    /// A region that the peer writes: by its handle, at this address.
    Region(u32, u64),
    /// The read with this ID.
    Read(u64),
}

/// Bytes of a frame, where the engine placed them.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) vi: ViIndex,
    pub(crate) destination: Destination,
    pub(crate) offset_bytes: u32,
    pub(crate) bytes: Vec<u8>,
}

/// The I/O model of one node.
pub(crate) struct TestIo {
    pub(crate) vis: HashMap<ViIndex, Queues>,
    pub(crate) regions: HashMap<u32, Region>,
    /// Frames given to the port.
    pub(crate) out: VecDeque<Vec<u8>>,
    /// Number of frames that the port still accepts.
    pub(crate) room: usize,
    pub(crate) control_events: u64,
    /// Placed bytes since they were last taken; `None`: not recorded.
    pub(crate) placements: Option<Vec<Placement>>,
    /// Mask of random numbers.
    pub(crate) random_mask: u32,
    /// Messages of one frame are sent and received in one step.
    pub(crate) in_one_step: bool,
    /// Number of sends and writes that were sent so.
    pub(crate) sent_whole: u64,
    /// Numbers of sends and of writes that were received so.
    pub(crate) received_whole: u64,
    pub(crate) written_whole: u64,
    /// Result of RDMA operations without frames.
    pub(crate) direct: Direct,
    /// Parts of RDMA operations that were copied so: address at the peer and length.
    pub(crate) copied: Vec<(u64, u32)>,
    /// Address and handle of the memory of sends, if the peer can copy from it: a region of the peer's model.
    pub(crate) own_source: Option<(u64, u32)>,
    /// How many events each VI had when the access of its peer was ended.
    pub(crate) access_ends: Vec<usize>,
    /// Sends of the peer can be copied from its memory.
    pub(crate) peer_source_is_mapped: bool,
    /// How often the peer was found to have handled all frames.
    pub(crate) handled: u64,
    rng: Rng,
}

impl TestIo {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            vis: HashMap::new(),
            regions: HashMap::new(),
            out: VecDeque::new(),
            room: usize::MAX,
            control_events: 0,
            placements: None,
            random_mask: u32::MAX,
            in_one_step: true,
            sent_whole: 0,
            received_whole: 0,
            written_whole: 0,
            direct: Direct::Impossible,
            copied: Vec::new(),
            own_source: None,
            access_ends: Vec::new(),
            peer_source_is_mapped: true,
            handled: 0,
            rng: Rng::new(seed),
        }
    }

    pub(crate) fn vi(&mut self, vi: ViIndex) -> &mut Queues {
        self.vis.entry(vi).or_default()
    }

    pub(crate) fn post_send(&mut self, vi: ViIndex, send: Send) -> u64 {
        let queues = self.vi(vi);
        let id = queues.next_send_id;
        queues.next_send_id += 1;
        queues.sends.push_back(Send { id, ..send });
        queues.queued = true;
        id
    }

    /// Returns whether a program's send is to be sent without the queue, if the engine can.
    pub(crate) fn may_send_in_one_step(&mut self, vi: ViIndex, send: &Send) -> bool {
        let is_valid = send.fault.is_ok() && send.gone_from.is_none();
        self.in_one_step && is_valid && !send.read && self.vi(vi).sends.is_empty()
    }

    /// Completes a send that is on no queue.
    pub(crate) fn sent_in_one_step(&mut self, vi: ViIndex, send: &Send) -> u64 {
        self.sent_whole += 1;
        let queues = self.vi(vi);
        let id = queues.next_send_id;
        queues.next_send_id += 1;
        let bytes = send.data.len() as u32;
        queues.log.push(Event::Sent(id, Status::OK, bytes));
        id
    }

    pub(crate) fn post_receive(&mut self, vi: ViIndex, receive: Receive) -> u64 {
        let queues = self.vi(vi);
        let id = queues.next_receive_id;
        queues.next_receive_id += 1;
        queues.receives.push_back(Receive { id, ..receive });
        id
    }

    pub(crate) fn register(&mut self, handle: u32, base: u64, len: usize) {
        let region = Region {
            base,
            bytes: vec![0; len],
            gone_from: u64::MAX,
        };
        self.regions.insert(handle, region);
    }

    fn note_placement(
        &mut self,
        vi: ViIndex,
        destination: Destination,
        offset_bytes: u32,
        bytes: &[u8],
    ) {
        if let Some(placements) = &mut self.placements {
            placements.push(Placement {
                vi,
                destination,
                offset_bytes,
                bytes: bytes.to_vec(),
            });
        }
    }

    /// Reports whether this is a range of a region.
    fn holds(&self, address: u64, handle: u32, length_bytes: u32) -> bool {
        self.regions.get(&handle).is_some_and(|region| {
            let end = u128::from(address) + u128::from(length_bytes);
            address >= region.base && end <= u128::from(region.base) + region.bytes.len() as u128
        })
    }

    /// Returns the bytes of a region that a peer reads, if they are still valid.
    fn readable(
        &self,
        (address, handle): (u64, u32),
        offset_bytes: u32,
        bytes: u32,
    ) -> Option<Vec<u8>> {
        let region = self.regions.get(&handle)?;
        let from = (address - region.base) as usize + offset_bytes as usize;
        let to = from + bytes as usize;
        (to as u64 <= region.gone_from).then(|| region.bytes[from..to].to_vec())
    }

    /// Copies read data into its descriptor, in order.
    fn fill_read(&mut self, vi: ViIndex, ahead: u32, offset_bytes: u32, payload: &[u8]) -> bool {
        let send = &mut self.vi(vi).sends[ahead as usize];
        assert!(send.read, "a read");
        assert_eq!(send.placed_bytes, offset_bytes, "in order");
        let end = offset_bytes as usize + payload.len();
        assert!(end <= send.data.len(), "within the buffer");
        if send.gone_from.is_some_and(|gone| end > gone as usize) {
            return false;
        }
        send.data[offset_bytes as usize..end].copy_from_slice(payload);
        send.placed_bytes = end as u32;
        let destination = Destination::Read(send.id);
        self.note_placement(vi, destination, offset_bytes, payload);
        true
    }

    /// Gives a frame of this send's data to the port.
    fn push_of_send(
        &mut self,
        vi: ViIndex,
        at: usize,
        frame: DataFrame<'_>,
        payload_bytes: u32,
    ) -> Transmit {
        let send = &self.vi(vi).sends[at];
        let from = frame.per_frame.relative_offset;
        let to = from + payload_bytes;
        // Of a read, or to copy the message from here.
        let is_request = send.read || payload_bytes == 0;
        assert_eq!(frame.last, is_request || to as usize == send.data.len());
        let is_valid = send.gone_from.is_none_or(|gone| to <= gone);
        let payload = is_valid.then(|| send.data[from as usize..to as usize].to_vec());
        self.push_data(frame, payload.as_deref())
    }

    /// Gives a frame with this payload to the port; `None`: its memory is not valid.
    fn push_data(&mut self, frame: DataFrame<'_>, payload: Option<&[u8]>) -> Transmit {
        match payload {
            _ if self.room == 0 => Transmit::NoRoom,
            None => Transmit::Fault,
            Some(payload) => self.push(frame, Payload::from_slice(payload)),
        }
    }

    fn push(&mut self, frame: DataFrame<'_>, payload: Payload<'_>) -> Transmit {
        let frame = frame.with_payload(payload, 0);
        let mut bytes = vec![0; frame.frame_bytes().expect("a valid length")];
        frame.emit(&mut bytes).expect("a large enough buffer");
        self.push_frame(bytes)
    }

    fn push_frame(&mut self, frame: Vec<u8>) -> Transmit {
        if self.room == 0 {
            return Transmit::NoRoom;
        }
        if self.room != usize::MAX {
            self.room -= 1;
        }
        self.out.push_back(frame);
        Transmit::Sent
    }
}

impl QueueIo for TestIo {
    fn next_send(&mut self, vi: ViIndex) -> Option<SendWork> {
        let queues = self.vi(vi);
        let send = queues.sends.get(queues.in_flight)?;
        Some(send.work())
    }

    fn keep_in_flight(&mut self, vi: ViIndex) {
        let queues = self.vi(vi);
        queues.in_flight += 1;
        assert!(queues.in_flight <= queues.sends.len(), "a send to keep");
    }

    fn complete_send(&mut self, vi: ViIndex, status: Status, length_bytes: u32) {
        let queues = self.vi(vi);
        let send = queues.sends.pop_front().expect("a send to complete");
        queues.in_flight = queues.in_flight.saturating_sub(1);
        if send.read && status.is_ok() {
            assert_eq!(send.placed_bytes as usize, send.data.len(), "all bytes");
            queues.reads.push((send.id, send.data));
        }
        queues.log.push(Event::Sent(send.id, status, length_bytes));
    }

    fn is_failing(&self, vi: ViIndex) -> bool {
        self.vis.get(&vi).is_some_and(|queues| queues.failing)
    }

    fn claim_receive(&mut self, vi: ViIndex) -> Claim {
        let mut unclaimed = self.vi(vi).receives.iter_mut().filter(|r| !r.claimed);
        let Some(receive) = unclaimed.next() else {
            return Claim::Empty;
        };
        receive.claimed = receive.fault.is_ok();
        if receive.fault.is_ok() {
            Claim::Ready {
                capacity_bytes: receive.capacity_bytes,
            }
        } else {
            Claim::Fault(receive.fault)
        }
    }

    fn place_receive(
        &mut self,
        vi: ViIndex,
        ahead: u32,
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool {
        let receive = self.vi(vi).receives.get_mut(ahead as usize);
        let receive = receive.expect("a claimed receive");
        assert!(receive.claimed);
        let end = offset_bytes as usize + payload.len();
        let twice = |(from, to): &(u32, u32)| offset_bytes < *to && *from < end as u32;
        assert!(!receive.placed.iter().any(twice), "placed twice");
        assert!(end <= receive.capacity_bytes as usize, "within the buffer");
        if receive.gone_from.is_some_and(|gone| end > gone as usize) {
            return false;
        }
        let bytes = receive.data.len().max(end);
        receive.data.resize(bytes, 0);
        receive.data[offset_bytes as usize..end].copy_from_slice(payload);
        match receive.placed.last_mut() {
            Some(last) if last.1 == offset_bytes => last.1 = end as u32,
            _ => receive.placed.push((offset_bytes, end as u32)),
        }
        let destination = Destination::Receive(receive.id);
        self.note_placement(vi, destination, offset_bytes, payload);
        true
    }

    fn complete_receive(&mut self, vi: ViIndex, completion: Completion) {
        let queues = self.vi(vi);
        let receive = queues.receives.pop_front().expect("a receive to complete");
        let claimed = receive.claimed || !receive.fault.is_ok();
        assert!(claimed, "only claimed descriptors are completed");
        let placed: u32 = receive.placed.iter().map(|(from, to)| to - from).sum();
        assert!(placed as usize == receive.data.len() || !completion.status.is_ok());
        queues.failing |= receive.lost;
        queues.log.push(Event::Received(Received {
            id: receive.id,
            status: completion.status,
            length_bytes: completion.length_bytes,
            immediate: completion.immediate,
            remote_write: completion.remote_write,
            data: receive.data,
        }));
    }

    fn names_region(&mut self, _vi: ViIndex, handle: u32) -> bool {
        self.regions.contains_key(&handle)
    }

    fn place_rdma_write(
        &mut self,
        vi: ViIndex,
        (address, handle): (u64, u32),
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool {
        let region = self.regions.get_mut(&handle).expect("a checked target");
        let from = (address - region.base) as usize + offset_bytes as usize;
        if (from + payload.len()) as u64 > region.gone_from {
            return false;
        }
        region.bytes[from..from + payload.len()].copy_from_slice(payload);
        let destination = Destination::Region(handle, address);
        self.note_placement(vi, destination, offset_bytes, payload);
        true
    }

    fn place_read(&mut self, vi: ViIndex, ahead: u32, offset_bytes: u32, payload: &[u8]) -> bool {
        assert!((ahead as usize) < self.vi(vi).in_flight, "a read in flight");
        self.fill_read(vi, ahead, offset_bytes, payload)
    }

    fn resume(&mut self, vi: ViIndex) {
        self.vi(vi).queued = true;
    }

    fn flush_sends(&mut self, vi: ViIndex) {
        while !self.vi(vi).sends.is_empty() {
            self.complete_send(vi, Status::FLUSHED, 0);
        }
    }

    fn flush_receives(&mut self, vi: ViIndex) {
        let queues = self.vi(vi);
        for receive in core::mem::take(&mut queues.receives) {
            queues.log.push(Event::Received(Received {
                id: receive.id,
                status: Status::FLUSHED,
                length_bytes: 0,
                immediate: None,
                remote_write: false,
                data: receive.data,
            }));
        }
    }

    fn set_state(&mut self, vi: ViIndex, state: ViState) {
        self.vi(vi).log.push(Event::State(state));
    }

    fn report(&mut self, vi: ViIndex, error: AsyncError) {
        self.vi(vi).log.push(Event::Async(error));
    }

    fn control_event(&mut self, _waiter: Waiter) {
        self.control_events += 1;
    }

    fn random(&mut self) -> u32 {
        self.rng.next_u64() as u32 & self.random_mask
    }
}
