//! The two work queues of a VI.

/// A work queue of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueKind {
    /// The send queue.
    Send = 0,
    /// The receive queue.
    Receive = 1,
}
