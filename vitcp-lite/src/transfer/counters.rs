//! Counters of data transfer.

vi_types::counters! {
    /// What data transfer counts.
    pub Counter, Counters:

    /// Messages whose last segment was sent.
    TxMessages => "tx_messages",
    /// Segments sent.
    TxSegments => "tx_segments",
    /// NOPs sent.
    TxNops => "tx_nops",
    /// Messages delivered.
    RxMessages => "rx_messages",
    /// Segments received.
    RxSegments => "rx_segments",
    /// Of these, bytes read directly into their destination.
    RxDirectBytes => "rx_direct_bytes",
    /// Messages that waited for a receive descriptor of the peer.
    FlowControlWaits => "flow_control_waits",
    /// A message for which no receive descriptor was posted.
    DropNoDescriptor => "drop_no_descriptor",
    /// An RDMA write or read that was refused.
    DropRdmaProtection => "drop_rdma_protection",
    /// RDMA accesses of peers whose handle names no region of the VI's tag.
    RdmaMisses => "rdma_misses",
    /// RDMA accesses refused without a look-up, because too many of the same host, network or user missed.
    DropRdmaLimited => "drop_rdma_limited",
    /// Connections broken because too many RDMA accesses of the peer were refused.
    RdmaMissBreaks => "rdma_miss_breaks",
    /// Messages discarded after they had failed.
    DropDiscarded => "drop_discarded",
    /// Messages received with Transmit Error, or too short.
    IncompleteMessages => "incomplete_messages",
    /// Connections ended because a segment was malformed.
    DropMalformed => "drop_malformed",
    /// Connections ended because a segment was invalid for the message or state.
    DropOutOfOrder => "drop_out_of_order",
    /// Connections ended because an RDMA read exceeded the advertised limit.
    DropTooManyReads => "drop_too_many_reads",
    /// Connections ended because of an acknowledgement of a message that was never sent.
    DropFalseAck => "drop_false_ack",
    /// Responses missing after `ulp_timeout_ms`.
    ResponseTimeouts => "response_timeouts",
}
