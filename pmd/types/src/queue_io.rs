//! What a protocol calls: queues and memory of the VIs of a NIC, and their consumers.

use crate::{AsyncError, Claim, Completion, SendWork, Status, ViIndex, ViState, Waiter};

/// Queues and memory of the VIs of a NIC, as a protocol uses them.
///
/// A send queue has three positions:
///
/// ```text
///      oldest                next_send
///        |  in flight           |  posted             free
///        |  sent, not complete  |  not yet sent
/// ```
/// Descriptors in flight wait for a response, for data, or for an earlier one that does: the
/// completions of a queue are in posting order. Usually none is in flight, and the oldest is the one
/// that [`QueueIo::next_send`] returns.
///
/// All calls are made on the thread that runs the protocol. None of them may block or
/// allocate.
pub trait QueueIo {
    /// Returns the first descriptor of the VI's send queue that is not in flight, and leaves it
    /// there.
    fn next_send(&mut self, vi: ViIndex) -> Option<SendWork>;

    /// Puts the descriptor that [`QueueIo::next_send`] returned in flight.
    fn keep_in_flight(&mut self, vi: ViIndex);

    /// Completes the oldest descriptor of the send queue: the first one in flight or, if none is,
    /// the one that [`QueueIo::next_send`] returned.
    fn complete_send(&mut self, vi: ViIndex, status: Status, length_bytes: u32);

    /// Reports whether the completion of a descriptor of this VI could not be written because its
    /// memory is no longer registered (VIPL 3.8.1). The protocol starts and completes nothing more on
    /// the VI then, and `fail_vi` of the protocol is called after the verb.
    fn is_failing(&self, vi: ViIndex) -> bool;

    /// Claims the first descriptor of the receive queue that is not claimed, for a new message.
    /// Several are claimed only while messages arrive ahead of order. One with a `Fault` stays
    /// unclaimed; if none before it is claimed, [`QueueIo::complete_receive`] may follow.
    fn claim_receive(&mut self, vi: ViIndex) -> Claim;

    /// Copies bytes into the claimed descriptor `ahead` positions after the head of the receive
    /// queue. The protocol has checked that they fit, and places no byte twice. Returns false if the
    /// memory is no longer valid.
    fn place_receive(&mut self, vi: ViIndex, ahead: u32, offset_bytes: u32, payload: &[u8])
    -> bool;

    /// Completes the head of the receive queue, which is claimed or has a fault.
    fn complete_receive(&mut self, vi: ViIndex, completion: Completion);

    /// Reports whether a handle names a region of this VI's tag and owner. Called only for refused
    /// accesses.
    fn names_region(&mut self, vi: ViIndex, handle: u32) -> bool;

    /// Copies bytes of an RDMA write to `target.rmt_va + offset_bytes`, the last ones last. Returns
    /// false if the target is no longer valid.
    fn place_rdma_write(
        &mut self,
        vi: ViIndex,
        target: (u64, u32),
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool;

    /// Copies bytes of an RDMA read into the data segments of the descriptor `ahead` positions
    /// after the oldest in flight. The protocol has checked that they fit. Each read in flight is
    /// filled in order, independently of the others. Returns false if the descriptor's memory is no
    /// longer valid.
    fn place_read(&mut self, vi: ViIndex, ahead: u32, offset_bytes: u32, payload: &[u8]) -> bool;

    /// Requests a call of `pump` of the protocol for this VI in this poll or the
    /// next, whether or not anything is posted: its send queue is not deferred any more, or
    /// responses or read data are pending. Not called from that verb.
    fn resume(&mut self, vi: ViIndex);

    /// Completes all descriptors of the send queue as flushed, in order: those in flight, then
    /// those posted. None is in flight afterwards.
    fn flush_sends(&mut self, vi: ViIndex);

    /// Completes all descriptors of the receive queue as flushed, in order.
    fn flush_receives(&mut self, vi: ViIndex);

    /// Sets the state of the VI that its consumer sees.
    fn set_state(&mut self, vi: ViIndex, state: ViState);

    /// Reports an asynchronous error to the consumer.
    fn report(&mut self, vi: ViIndex, error: AsyncError);

    /// Notifies waiters of a connection request, or of the outcome of a connection call.
    fn control_event(&mut self, waiter: Waiter);

    /// Returns 32 unpredictable random bits.
    fn random(&mut self) -> u32;
}
