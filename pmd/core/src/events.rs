//! The queue of asynchronous errors, from the poller to the thread that calls error handlers (VIPL 3.8).

use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};

use vi_types::AsyncError;

use crate::error_backlog::{ErrorBacklog, Subject};
use crate::handle::RawHandle;
use crate::main_thread;

/// Error codes of an error descriptor, with the numbers of the guide (VIPL 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    /// A descriptor could not be read where it was posted.
    PostDesc = 0,
    /// The connection was lost.
    ConnLost = 1,
    /// A message found no receive descriptor.
    RecvqEmpty = 2,
    /// Too many descriptors on a work queue.
    ViOverrun = 3,
    /// Protection error of an incoming RDMA write.
    RdmawProt = 4,
    /// An incoming RDMA write was damaged.
    RdmawData = 5,
    /// An incoming RDMA write ended early.
    RdmawAbort = 6,
    /// Protection error of an incoming RDMA read.
    RdmarProt = 7,
    /// A completion could not be written.
    CompProt = 8,
    /// An incoming RDMA operation was lost.
    RdmaTransport = 9,
    /// The NIC cannot go on.
    Catastrophic = 10,
}

impl ErrorCode {
    /// Returns the code with this number.
    pub fn of(number: u32) -> Option<Self> {
        [
            Self::PostDesc,
            Self::ConnLost,
            Self::RecvqEmpty,
            Self::ViOverrun,
            Self::RdmawProt,
            Self::RdmawData,
            Self::RdmawAbort,
            Self::RdmarProt,
            Self::CompProt,
            Self::RdmaTransport,
            Self::Catastrophic,
        ]
        .into_iter()
        .find(|code| *code as u32 == number)
    }
}

impl fmt::Display for ErrorCode {
    /// Writes the name in C.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PostDesc => "VIP_ERROR_POST_DESC",
            Self::ConnLost => "VIP_ERROR_CONN_LOST",
            Self::RecvqEmpty => "VIP_ERROR_RECVQ_EMPTY",
            Self::ViOverrun => "VIP_ERROR_VI_OVERRUN",
            Self::RdmawProt => "VIP_ERROR_RDMAW_PROT",
            Self::RdmawData => "VIP_ERROR_RDMAW_DATA",
            Self::RdmawAbort => "VIP_ERROR_RDMAW_ABORT",
            Self::RdmarProt => "VIP_ERROR_RDMAR_PROT",
            Self::CompProt => "VIP_ERROR_COMP_PROT",
            Self::RdmaTransport => "VIP_ERROR_RDMA_TRANSPORT",
            Self::Catastrophic => "VIP_ERROR_CATASTROPHIC",
        })
    }
}

/// The resource that an error concerns (VIPL 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ResourceCode {
    /// The NIC.
    Nic = 0,
    /// A VI.
    Vi = 1,
    /// A completion queue.
    Cq = 2,
    /// A descriptor.
    Descriptor = 3,
}

impl ResourceCode {
    /// Returns the code with this number.
    pub fn of(number: u32) -> Option<Self> {
        [Self::Nic, Self::Vi, Self::Cq, Self::Descriptor]
            .into_iter()
            .find(|code| *code as u32 == number)
    }
}

impl fmt::Display for ResourceCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nic => "the NIC",
            Self::Vi => "a VI",
            Self::Cq => "a completion queue",
            Self::Descriptor => "a descriptor",
        })
    }
}

/// One asynchronous error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Handle of the VI; 0 for an error of the NIC.
    pub vi: u64,
    /// The NIC handle that owns the VI; 0 for an error of the NIC, which concerns all handles.
    pub nic_handle: u64,
    /// Handle of the completion queue that the descriptor's work queue reports to, or 0.
    pub cq: u64,
    /// Address of the descriptor, or 0.
    pub descriptor: u64,
    /// Completed-operation code, as in a status word, shifted down.
    pub op_code: u32,
    /// The resource that the error concerns.
    pub resource: ResourceCode,
    /// The error.
    pub code: ErrorCode,
    /// The peer disconnected in order: logged, but not as an error.
    pub is_orderly: bool,
}

impl AsyncEvent {
    /// Returns the catastrophic error of a NIC (VIPL 6.3.1), which is reported to all its handles.
    pub fn of_nic() -> Self {
        Self {
            vi: 0,
            nic_handle: 0,
            cq: 0,
            descriptor: 0,
            op_code: 0,
            resource: ResourceCode::Nic,
            code: ErrorCode::Catastrophic,
            is_orderly: false,
        }
    }

    /// Returns what this event concerns, for the limits of an [`ErrorBacklog`].
    pub fn subject(&self) -> Subject {
        Subject {
            vi: (self.vi != 0).then(|| RawHandle::unpack(self.vi).index),
            is_loss: matches!(self.code, ErrorCode::ConnLost | ErrorCode::Catastrophic),
        }
    }

    /// Returns the event of an error of the protocol.
    pub fn of_vi(vi: u64, nic_handle: u64, error: AsyncError) -> Self {
        /// Operation codes of receive, remote RDMA write and RDMA read.
        const RECEIVE: u32 = 1;
        const REMOTE_WRITE: u32 = 3;
        /// One code for reads by both sides.
        const READ: u32 = 4;
        let (code, op_code) = match error {
            AsyncError::ConnectionLost | AsyncError::Disconnected => (ErrorCode::ConnLost, 0),
            AsyncError::ReceiveQueueEmpty => (ErrorCode::RecvqEmpty, RECEIVE),
            AsyncError::RdmaWriteProtection => (ErrorCode::RdmawProt, REMOTE_WRITE),
            AsyncError::RdmaWriteData => (ErrorCode::RdmawData, REMOTE_WRITE),
            AsyncError::RdmaWriteAbort => (ErrorCode::RdmawAbort, REMOTE_WRITE),
            AsyncError::RdmaTransport => (ErrorCode::RdmaTransport, REMOTE_WRITE),
            AsyncError::RdmaReadProtection => (ErrorCode::RdmarProt, READ),
        };
        Self {
            vi,
            nic_handle,
            cq: 0,
            descriptor: 0,
            op_code,
            resource: ResourceCode::Vi,
            code,
            is_orderly: error == AsyncError::Disconnected,
        }
    }
}

/// Maximum number of queued events, besides one loss of the connection of each VI.
const CAPACITY: usize = 4096;

struct State {
    pending: ErrorBacklog<AsyncEvent>,
    dropped: u64,
    /// The device's epoch whose thread may take events; `None` while the NIC is closed.
    epoch: Option<u32>,
}

/// A bounded queue from the poller, which never blocks, to the thread that calls handlers.
pub struct EventQueue {
    state: Mutex<State>,
    arrived: Condvar,
}

impl EventQueue {
    /// Creates an empty queue for a NIC with `max_vi` VIs.
    pub fn new(max_vi: u32) -> Self {
        Self {
            state: Mutex::new(State {
                pending: ErrorBacklog::new(CAPACITY, max_vi as usize),
                dropped: 0,
                epoch: None,
            }),
            arrived: Condvar::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. One beyond the limits of an [`ErrorBacklog`] is dropped and counted.
    #[cold]
    pub fn push(&self, event: AsyncEvent) {
        let mut state = self.lock();
        if !state.pending.push(event.subject(), event) {
            state.dropped += 1;
            return;
        }
        if state.pending.len() == 1 {
            // The consumer takes all events before it sleeps again.
            self.arrived.notify_one();
        }
    }

    /// Waits for an event and takes the oldest. `None` once the epoch has ended.
    pub fn next(&self, epoch: u32) -> Option<AsyncEvent> {
        let mut state = self
            .arrived
            .wait_while(self.lock(), |state| {
                main_thread::adopt_signal_mask();
                state.epoch == Some(epoch) && state.pending.is_empty()
            })
            .unwrap_or_else(PoisonError::into_inner);
        if state.epoch == Some(epoch) {
            state.pending.pop()
        } else {
            None
        }
    }

    /// Begins an epoch, with an empty queue.
    pub fn open(&self, epoch: u32) {
        let mut state = self.lock();
        state.epoch = Some(epoch);
        state.pending.clear();
    }

    /// Wakes the waiting thread, which checks whether the main thread has ended.
    pub fn wake(&self) {
        // Under the lock: the thread either waits, or has not checked yet.
        let _state = self.lock();
        self.arrived.notify_all();
    }

    /// Ends the epoch; queued events are void.
    pub fn close(&self) {
        self.lock().epoch = None;
        self.arrived.notify_all();
    }

    /// Takes all queued events: the error, and the address of the descriptor.
    #[cfg(any(test, feature = "testkit"))]
    pub fn take_pending(&self) -> Vec<(ErrorCode, u64)> {
        let pending = &mut self.lock().pending;
        core::iter::from_fn(|| pending.pop())
            .map(|e| (e.code, e.descriptor))
            .collect()
    }

    /// Returns the number of dropped events.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::HandleKind;

    const MAX_VI: u32 = 1024;

    fn event(index: u32) -> AsyncEvent {
        event_of(index, AsyncError::ConnectionLost)
    }

    fn event_of(index: u32, error: AsyncError) -> AsyncEvent {
        let vi = RawHandle::pack(HandleKind::Vi, 0, 1, index);
        AsyncEvent::of_vi(vi, 1, error)
    }

    /// A peer sends messages for which no receive is posted, on many VIs, and no handler runs.
    #[test]
    fn peer_that_fills_the_queue_displaces_no_connection_loss() {
        let queue = EventQueue::new(MAX_VI);
        queue.open(1);
        for n in 0..2 * CAPACITY as u32 {
            queue.push(event_of(n % 100, AsyncError::ReceiveQueueEmpty));
        }
        assert_eq!(queue.dropped(), CAPACITY as u64);
        for vi in 0..MAX_VI {
            queue.push(event(vi));
        }
        queue.push(AsyncEvent::of_nic());
        assert_eq!(queue.dropped(), CAPACITY as u64);
        for _ in 0..CAPACITY {
            let code = queue.next(1).map(|event| event.code);
            assert_eq!(code, Some(ErrorCode::RecvqEmpty));
        }
        for vi in 0..MAX_VI {
            assert_eq!(queue.next(1), Some(event(vi)));
        }
        assert_eq!(queue.next(1), Some(AsyncEvent::of_nic()));
    }

    #[test]
    fn ended_epoch_returns_no_event_and_wakes_waiting_thread() {
        let queue = EventQueue::new(MAX_VI);
        queue.open(1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.next(1));
            queue.close();
            assert_eq!(waiting.join().unwrap(), None);
        });
        queue.push(event(1));
        queue.open(2);
        queue.push(event(2));
        assert_eq!(queue.next(1), None, "the old epoch has ended");
        assert_eq!(queue.next(2), Some(event(2)), "without the old event");
    }
}
