//! The two work queues of a VI.

/// Selects a work queue of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueKind {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}
