//! The calls of the engine beyond those that transports share.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::{Eof, MAX_FRAME_BYTES};
use fcvi_frame::frame::{FrameHeader, Payload};
use vi_types::{Completion, Operation, QueueIo, SendWork, ViIndex};

use super::{Receive, Send, TestIo};
use crate::{CopyResult, DataFrame, Direct, DirectConnection, EngineIo, Moved, Transmit};

impl EngineIo for TestIo {
    fn transmit_data(&mut self, vi: ViIndex, frame: DataFrame<'_>, payload_bytes: u32) -> Transmit {
        let queues = self.vi(vi);
        let in_flight = queues.in_flight;
        assert!(in_flight < queues.sends.len(), "a send to transmit");
        self.push_of_send(vi, in_flight, frame, payload_bytes)
    }

    fn transmit_payload(&mut self, frame: DataFrame<'_>, payload: Payload<'_>) -> Transmit {
        self.push(frame, payload)
    }

    fn in_flight_work(&mut self, vi: ViIndex, ahead: u32) -> Option<SendWork> {
        let queues = self.vi(vi);
        assert!(
            ahead as usize <= queues.in_flight,
            "a send in flight or in progress"
        );
        queues.sends.get(ahead as usize).map(Send::work)
    }

    fn retransmit_data(
        &mut self,
        vi: ViIndex,
        ahead: u32,
        frame: DataFrame<'_>,
        payload_bytes: u32,
    ) -> Transmit {
        assert!(frame.per_frame.f_ctl.contains(FCtl::RETRANSMITTED));
        self.push_of_send(vi, ahead as usize, frame, payload_bytes)
    }

    fn transmit_control(&mut self, header: &FrameHeader, payload: &[u8]) -> Transmit {
        let mut frame = vec![0; MAX_FRAME_BYTES];
        let bytes = header.emit_frame(payload, Eof::T, &mut frame);
        frame.truncate(bytes.expect("a valid length"));
        self.push_frame(frame)
    }

    fn receive_whole(&mut self, vi: ViIndex, payload: &[u8], immediate: Option<u32>) -> bool {
        let bytes = payload.len() as u32;
        let is_usable = |receive: &&mut Receive| {
            let room = receive
                .capacity_bytes
                .min(receive.gone_from.unwrap_or(u32::MAX));
            !receive.claimed && receive.fault.is_ok() && bytes <= room
        };
        let in_one_step = self.in_one_step;
        let receive = self.vi(vi).receives.front_mut().filter(is_usable);
        let Some(receive) = receive.filter(|_| in_one_step) else {
            return false;
        };
        receive.claimed = true;
        self.received_whole += 1;
        assert!(self.place_receive(vi, 0, 0, payload), "valid memory");
        self.complete_receive(vi, Completion::received(bytes, immediate));
        true
    }

    fn write_whole(&mut self, vi: ViIndex, target: (u64, u32), payload: &[u8]) -> bool {
        let written = self.in_one_step
            && self.holds(target.0, target.1, payload.len() as u32)
            && self.place_rdma_write(vi, target, 0, payload);
        self.written_whole += u64::from(written);
        written
    }

    fn check_rdma_write(&mut self, _vi: ViIndex, target: &DeviceHeader) -> bool {
        self.holds(target.rmt_va, target.rmt_va_handle, target.tot_len)
    }

    fn check_rdma_read(&mut self, _vi: ViIndex, source: &DeviceHeader) -> bool {
        self.holds(source.rmt_va, source.rmt_va_handle, source.tot_len)
    }

    fn transmit_read(
        &mut self,
        _vi: ViIndex,
        frame: DataFrame<'_>,
        source: (u64, u32),
        payload_bytes: u32,
    ) -> Transmit {
        let offset_bytes = frame.per_frame.relative_offset;
        let payload = self.readable(source, offset_bytes, payload_bytes);
        self.push_data(frame, payload.as_deref())
    }

    fn connected(&mut self, _vi: ViIndex, _connection: &DirectConnection) {}

    fn access_directly(
        &mut self,
        vi: ViIndex,
        work: &SendWork,
        _sent: u32,
        (offset_bytes, bytes): (u32, u32),
    ) -> Direct {
        if self.direct == Direct::Copied {
            assert!(bytes > 0 && offset_bytes + bytes <= work.length_bytes);
            self.copied
                .push((remote_address(work) + u64::from(offset_bytes), bytes));
            if let Some(send) = self.vi(vi).sends.front_mut() {
                send.placed_bytes += bytes;
            }
        }
        self.direct
    }

    fn can_access_directly(&mut self, _vi: ViIndex, _work: &SendWork) -> bool {
        self.direct != Direct::Impossible
    }

    fn peer_has_handled(&mut self, _vi: ViIndex, _sent: u32) {
        self.handled += 1;
    }

    fn access_whole_directly(
        &mut self,
        vi: ViIndex,
        work: &SendWork,
        sent: u32,
        _memory: Payload<'_>,
    ) -> bool {
        self.access_directly(vi, work, sent, (0, work.length_bytes)) == Direct::Copied
    }

    fn has_later_send(&mut self, vi: ViIndex) -> bool {
        let queues = self.vi(vi);
        queues.sends.len() > queues.in_flight + 1
    }

    fn rendezvous_source(&mut self, vi: ViIndex) -> Option<(u64, u32)> {
        let queues = self.vi(vi);
        assert!(queues.in_flight < queues.sends.len(), "a send");
        self.own_source
    }

    fn can_copy_from_peer(
        &mut self,
        vi: ViIndex,
        (address, handle): (u64, u32),
        message_bytes: u32,
    ) -> bool {
        let receives = &mut self.vi(vi).receives;
        let receive = receives.iter_mut().find(|receive| !receive.claimed);
        let has_room = receive.is_some_and(|receive| {
            receive.fault.is_ok() && receive.capacity_bytes >= message_bytes
        });
        has_room && self.peer_source_is_mapped && self.holds(address, handle, message_bytes)
    }

    fn copy_from_peer(
        &mut self,
        vi: ViIndex,
        source: (u64, u32),
        message_bytes: u32,
        (offset_bytes, bytes): (u32, u32),
    ) -> CopyResult {
        assert!(bytes > 0 && offset_bytes + bytes <= message_bytes);
        if !self.peer_source_is_mapped {
            return CopyResult::ConnectionEnded;
        }
        let Some(payload) = self.readable(source, offset_bytes, bytes) else {
            return CopyResult::RemoteInvalid;
        };
        self.copied
            .push((source.0 + u64::from(offset_bytes), bytes));
        if self.place_receive(vi, 0, offset_bytes, &payload) {
            CopyResult::Copied
        } else {
            CopyResult::LocalInvalid
        }
    }

    fn end_access(&mut self, vi: ViIndex) {
        let events = self.vi(vi).log.len();
        self.access_ends.push(events);
    }

    fn move_message(
        &mut self,
        vi: ViIndex,
        other: ViIndex,
        operation: Operation,
        offset_bytes: u32,
        bytes: u32,
    ) -> Moved {
        let queues = self.vi(vi);
        assert_eq!(queues.in_flight, 0, "nothing is in flight");
        let send = queues.sends.front().expect("a send to move");
        assert_eq!(send.operation(), operation);
        let (from, to) = (offset_bytes as usize, (offset_bytes + bytes) as usize);
        assert!(to <= send.data.len(), "within the buffer");
        if send.gone_from.is_some_and(|gone| to > gone as usize) {
            return Moved::LocalInvalid;
        }
        let placed = match operation {
            Operation::Send => {
                let payload = send.data[from..to].to_vec();
                self.place_receive(other, 0, offset_bytes, &payload)
            }
            Operation::Write { remote } => {
                let payload = send.data[from..to].to_vec();
                self.place_rdma_write(other, remote, offset_bytes, &payload)
            }
            Operation::Read { remote } => {
                let Some(payload) = self.readable(remote, offset_bytes, bytes) else {
                    return Moved::RemoteInvalid;
                };
                self.fill_read(vi, 0, offset_bytes, &payload)
            }
        };
        if placed {
            Moved::All
        } else {
            Moved::RemoteInvalid
        }
    }
}

fn remote_address(work: &SendWork) -> u64 {
    match work.operation {
        Operation::Write { remote } | Operation::Read { remote } => remote.0,
        Operation::Send => panic!("a send"),
    }
}
