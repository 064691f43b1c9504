//! RDMA accesses of peers whose handle names no region: counted and limited; after too many the
//! connection breaks (ADR 0041).

use crate::{IsCode, RemoteError, ViErrorType};
use vi_types::AsyncError;

use super::Receiver;
use crate::transfer::Counter;
use crate::transfer::stream_io::RemoteAccess;
use crate::transfer::{CloseReason, StreamIo};

impl<P: StreamIo> Receiver<'_, P> {
    /// Looks up the memory of an RDMA access.
    pub(super) fn may_access(&mut self, at: (u64, u32), bytes: u32, access: RemoteAccess) -> bool {
        let allowed = self.path.may_access(self.vi, at, bytes, access);
        if !allowed && !self.path.names_region(self.vi, at.1) {
            self.miss();
        }
        allowed
    }

    #[cold]
    fn miss(&mut self) {
        self.counters.count(Counter::RdmaMisses);
        let key = self.transfer.rx.miss_key;
        let connection = &mut self.transfer.rx.misses;
        self.misses.miss(self.now_ns, key, connection);
    }

    /// Checks whether an access on a watched connection is refused without a look-up.
    #[cold]
    pub(super) fn is_limited(&mut self) -> bool {
        let key = self.transfer.rx.miss_key;
        let connection = &mut self.transfer.rx.misses;
        let limited = !self.misses.may_look_up(self.now_ns, key, connection);
        if limited {
            self.counters.count(Counter::DropRdmaLimited);
        }
        limited
    }

    /// Unreliable Delivery: drops an RDMA write that was not looked up. Only the one that breaks the
    /// connection is reported to the consumer.
    #[cold]
    pub(super) fn drop_limited(&mut self) -> Result<(), CloseReason> {
        if !self.misses.is_exhausted(&self.transfer.rx.misses) {
            return Ok(());
        }
        self.path.report(self.vi, AsyncError::RdmaWriteProtection);
        self.refuse_access()
    }

    /// Breaks the connection after a refused write: at a reliable level, or after too many of them.
    #[cold]
    pub(super) fn refuse_access(&mut self) -> Result<(), CloseReason> {
        self.break_if_reliable(ViErrorType::RdmaProtection)?;
        if !self.misses.is_exhausted(&self.transfer.rx.misses) {
            return Ok(());
        }
        self.counters.count(Counter::RdmaMissBreaks);
        Err(CloseReason::ReportedToPeer {
            number: self.transfer.rx.number,
            error: RemoteError {
                vi_error: ViErrorType::RdmaProtection,
                is_code: IsCode::None,
            },
        })
    }
}
