//! RDMA accesses of peers whose handle names no region: counted and limited, until the connection
//! breaks (ADR 0041).

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::reason::MessageReason;
use vi_types::AsyncError;

use super::RxStream;
use crate::connection::Break;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::EngineIo;
use crate::transmit::TxStream;

impl RxStream {
    /// Reports whether an access on a watched connection is refused without a look-up.
    #[cold]
    pub(super) fn is_limited<I>(&mut self, cx: &mut Context<'_, I>) -> bool {
        let misses = &mut cx.port.misses;
        let limited = !misses.may_look_up(cx.now_ns, self.peer_key, &mut self.misses);
        if limited {
            cx.count(Counter::DropRdmaLimited);
        }
        limited
    }

    /// Counts an access that was refused after a look-up, if its handle names no region of the VI.
    #[cold]
    pub(crate) fn miss<I: EngineIo>(&mut self, cx: &mut Context<'_, I>, handle: u32) {
        if cx.io.names_region(cx.vi, handle) {
            return;
        }
        cx.count(Counter::RdmaMisses);
        let misses = &mut cx.port.misses;
        misses.miss(cx.now_ns, self.peer_key, &mut self.misses);
    }

    /// Looks up the target of an RDMA write.
    #[inline]
    pub(super) fn check_write<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        header: &DeviceHeader,
    ) -> bool {
        let allowed = cx.io.check_rdma_write(cx.vi, header);
        if !allowed {
            self.miss(cx, header.rmt_va_handle);
        }
        allowed
    }

    /// Returns why the peer may not read there, or `None` if it may.
    pub(crate) fn refuses_read<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        header: &DeviceHeader,
    ) -> Option<MessageReason> {
        if !self.params.rdma_read {
            return Some(MessageReason::ReadNotEnabled);
        }
        let limited = self.misses.is_watched() && self.is_limited(cx);
        if limited || header.tot_len > self.params.max_transfer_bytes {
            return Some(MessageReason::ReadProtection);
        }
        if cx.io.check_rdma_read(cx.vi, header) {
            return None;
        }
        self.miss(cx, header.rmt_va_handle);
        Some(MessageReason::ReadProtection)
    }

    /// Drops an RDMA write at Unreliable Delivery that was not looked up. Only the one that breaks
    /// the connection is reported to the consumer.
    #[cold]
    pub(super) fn drop_limited<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
    ) -> Result<(), Break> {
        if !cx.port.misses.is_exhausted(&self.misses) {
            return Ok(());
        }
        cx.io.report(cx.vi, AsyncError::RdmaWriteProtection);
        self.break_refused(tx, cx, MessageReason::WriteProtection)
    }

    /// Breaks the connection after a refused write: at a reliable level, or after too many of them.
    #[cold]
    pub(super) fn break_refused<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        reason: MessageReason,
    ) -> Result<(), Break> {
        self.break_reliable(tx, cx, reason)?;
        if cx.port.misses.is_exhausted(&self.misses) {
            cx.count(Counter::RdmaMissBreaks);
            return Err(Break(reason));
        }
        Ok(())
    }
}
