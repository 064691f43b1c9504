//! Asynchronous errors of the protocol (VIPL 4.4).

/// An asynchronous error, which completes no descriptor (VIPL 3.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncError {
    /// The connection was lost; the VI is in the Error state.
    ConnectionLost,
    /// The peer disconnected; the VI is in the Error state.
    Disconnected,
    /// A message arrived and no receive descriptor was posted.
    ReceiveQueueEmpty,
    /// An incoming RDMA write without immediate data was refused.
    RdmaWriteProtection,
    /// An incoming RDMA write without immediate data was damaged.
    RdmaWriteData,
    /// An incoming RDMA write without immediate data was incomplete.
    RdmaWriteAbort,
    /// An incoming RDMA read was refused.
    RdmaReadProtection,
    /// A message that consumes no descriptor was lost.
    RdmaTransport,
}
