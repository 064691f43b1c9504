//! Received frames of sends and writes, in order and ahead of it.
//!
//! In order they are handled as on every other connection; ahead of it they are placed if nothing
//! about them can fail, and dropped otherwise. A message ahead is known once a frame of it and of
//! each message before it has arrived, because only then its receive descriptor is known. The last
//! frame of an RDMA write waits for everything before it, so that an application that polls memory
//! sees the last bytes last. At Reliable Reception the whole write waits for the messages before
//! it, because nothing is processed after a failed one (VIPL 2.4); a receive descriptor that is
//! filled ahead is flushed then.

use fcvi_frame::fc::FCtl;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use vi_types::{Claim, MessageDestination, ReliabilityLevel};

use crate::connection::Break;
use crate::connection_iu::Sequence;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::EngineIo;
use crate::reassembly::{Accepted, Advance, AheadMessage, Run, RxMessage, immediate};
use crate::receive::RxStream;
use crate::transmit::TxStream;

impl RxStream {
    /// Returns the place of a frame of a send or write, or `None` if it is dropped. A
    /// retransmission that arrives twice is acknowledged again.
    pub(crate) fn accept_recovered<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        run: &Run,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Option<Accepted> {
        let ahead = self.reassembly.ahead.as_ref()?;
        if !ahead.is_well_cut(run, iu) {
            cx.count(Counter::DropBadIu);
            return None;
        }
        if self.reassembly.position().is_plausible(run.range.msg_id) {
            tx.take_carried_acknowledgement(cx, iu);
        }
        self.note_order(tx, cx, run, frame)
    }

    /// Returns the place of a frame, or `None` if it is dropped.
    pub(crate) fn note_order<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        run: &Run,
        frame: &FrameView<'_>,
    ) -> Option<Accepted> {
        let accepted = self.reassembly.accept(run);
        match accepted {
            Accepted::InOrder | Accepted::Ahead { .. } | Accepted::Gap => {}
            Accepted::Duplicate(counter) => {
                cx.count(counter);
                // A sender of such a frame does not know what was received.
                self.schedule_acknowledgement(tx, cx, 0, true);
                return None;
            }
            Accepted::Unexpected(counter) => {
                cx.count(counter);
                return None;
            }
        }
        if let Some(ack) = &mut self.ack {
            ack.at = Sequence::reply_to(&frame.fc);
        }
        Some(accepted)
    }

    /// Handles an accepted frame of a send or write.
    pub(crate) fn place_recovered<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        accepted: Accepted,
        run: &Run,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        if accepted == Accepted::InOrder {
            self.take_in_order(tx, cx, frame, iu)?;
        } else {
            match self.place_ahead(cx, run, frame, iu) {
                Ok(()) => {
                    cx.count(Counter::RxFrames);
                    cx.count(Counter::AheadPlaced);
                }
                Err(reason) => {
                    cx.count(reason);
                    if reason == Counter::DropAheadRefused {
                        self.miss(cx, iu.header.rmt_va_handle);
                    }
                }
            }
        }
        self.deliver_contiguous(tx, cx)?;
        let again = frame.fc.f_ctl.contains(FCtl::RETRANSMITTED);
        let at_once = again || accepted == Accepted::Ahead { new_gap: true };
        self.schedule_acknowledgement(tx, cx, iu.payload.len() as u32, at_once);
        Ok(())
    }

    /// Handles the next message, which is whole in this frame.
    pub(crate) fn place_next_whole<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        self.take_next_frame(tx, cx, true, frame, iu)?;
        let again = frame.fc.f_ctl.contains(FCtl::RETRANSMITTED);
        self.schedule_acknowledgement(tx, cx, iu.payload.len() as u32, again);
        Ok(())
    }

    fn take_in_order<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        let (open, ahead) = (&self.reassembly.message, &self.reassembly.ahead);
        let opens = open.is_none();
        let fits = open.as_ref().zip(ahead.as_ref());
        if fits.is_some_and(|(open, ahead)| !ahead.is_frame_of(open, &frame.fc, iu)) {
            cx.count(Counter::DropSynonym);
            return Ok(());
        }
        self.take_next_frame(tx, cx, opens, frame, iu)
    }

    /// Handles the next frame in order. A separate function, because the path without recovery
    /// inlines the same steps.
    #[inline(never)]
    fn take_next_frame<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        opens: bool,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        if opens {
            self.start_message(tx, cx, frame, iu)?;
        }
        self.take_fragment(tx, cx, frame, iu)
    }

    /// Delivers what was received ahead of order and is in order now.
    pub(crate) fn deliver_contiguous<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
    ) -> Result<(), Break> {
        while !cx.io.is_failing(cx.vi) {
            match self.reassembly.advance() {
                None => break,
                Some(Advance::Further) => {}
                Some(Advance::Complete(done)) => self.finish_message(tx, cx, &done)?,
                Some(Advance::Incomplete) => {
                    self.start_receive_timer(cx);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Places a frame ahead of order, or returns the counter of the reason why it is dropped.
    fn place_ahead<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        run: &Run,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) -> Result<(), Counter> {
        let range = run.range;
        let message = match self.reassembly.message_ahead(run, &frame.fc, iu)? {
            AheadMessage::Known(message) => message,
            AheadMessage::New(first_seq_cnt) => {
                let kind = self.claim_ahead(cx, iu)?;
                let message = RxMessage::of(frame, iu, first_seq_cnt, kind);
                self.reassembly.add_ahead(message);
                message
            }
        };
        let placed = match message.kind {
            MessageDestination::Receive { capacity_bytes } => {
                let before = self.reassembly.claimed_before(range.msg_id);
                range.end <= capacity_bytes.min(self.params.max_transfer_bytes)
                    && cx.io.place_receive(cx.vi, before, range.begin, iu.payload)
            }
            // At Reliable Reception nothing is written after a message that can still fail (VIPL
            // 2.4).
            MessageDestination::Write { .. }
                if self.params.level == ReliabilityLevel::ReliableReception
                    && self.reassembly.position().msg_id != range.msg_id =>
            {
                return Err(Counter::DropAheadWrite);
            }
            MessageDestination::Write { .. } if range.last => {
                return Err(Counter::DropAheadLastOfWrite);
            }
            MessageDestination::Write {
                target,
                total_bytes,
                ..
            } => {
                range.end < total_bytes
                    && cx
                        .io
                        .place_rdma_write(cx.vi, target, range.begin, iu.payload)
            }
            MessageDestination::Discard => false,
        };
        if !placed {
            return Err(Counter::DropAheadUnfit);
        }
        self.reassembly.placed_ahead(range);
        Ok(())
    }

    /// Returns the destination of a message ahead of order, if nothing about it can fail, and claims
    /// its receive descriptor.
    fn claim_ahead<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        iu: &IuView<'_>,
    ) -> Result<MessageDestination, Counter> {
        let (params, header) = (&self.params, &iu.header);
        let write = header.opcode == Opcode::WriteRequest;
        if let Some(ahead) = self.reassembly.ahead.as_mut().filter(|_| write) {
            let fits = params.rdma_write && header.tot_len <= params.max_transfer_bytes;
            if !fits || self.misses.is_watched() || ahead.refused {
                return Err(Counter::DropAheadUnfit);
            }
            if !cx.io.check_rdma_write(cx.vi, header) {
                ahead.refused = true;
                return Err(Counter::DropAheadRefused);
            }
        }
        let claimed = !write || immediate(iu).is_some();
        let mut capacity = 0;
        if claimed {
            let Claim::Ready { capacity_bytes } = cx.io.claim_receive(cx.vi) else {
                return Err(Counter::DropAheadNoDescriptor);
            };
            capacity = capacity_bytes;
        }
        Ok(if write {
            MessageDestination::Write {
                target: (header.rmt_va, header.rmt_va_handle),
                total_bytes: header.tot_len,
                claimed,
            }
        } else {
            MessageDestination::Receive {
                capacity_bytes: capacity,
            }
        })
    }
}
