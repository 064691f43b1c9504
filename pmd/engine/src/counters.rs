//! Counters of the engine: every drop and every event, by reason.

vi_types::counters! {
    /// What the engine counts.
    pub Counter, Counters:

    /// Messages whose last frame was sent.
    TxMessages => "tx_messages",
    /// Data frames sent.
    TxFrames => "tx_frames",
    /// Messages delivered.
    RxMessages => "rx_messages",
    /// Messages moved to a VI of the same engine without frames, RDMA reads among them.
    ShortcutMessages => "shortcut_messages",
    /// Bytes of those messages.
    ShortcutBytes => "shortcut_bytes",
    /// RDMA writes and reads carried out in the memory of the peer without frames.
    DirectMessages => "direct_messages",
    /// Bytes of those messages.
    DirectBytes => "direct_bytes",
    /// Sends that the peer copied from memory.
    RendezvousMessages => "rendezvous_messages",
    /// Requests to copy a send from memory that the peer declined: it was sent in frames.
    RendezvousDeclined => "rendezvous_declined",
    /// Data frames accepted.
    RxFrames => "rx_frames",
    /// Responses sent, the last data of an RDMA read among them.
    TxResponses => "tx_responses",
    /// Responses that completed a message in flight, or refused it.
    RxResponses => "rx_responses",
    /// Acknowledgements sent, those with missing ranges among them.
    TxAcknowledgements => "tx_acknowledgements",
    /// Acknowledgements accepted, those with missing ranges among them.
    RxAcknowledgements => "rx_acknowledgements",
    /// Acknowledgements sent in the frame of a send or write.
    TxAcknowledgementsCarried => "tx_acknowledgements_carried",
    /// Acknowledgements accepted from the frame of a send or write.
    RxAcknowledgementsCarried => "rx_acknowledgements_carried",
    /// Acknowledgements sent that list missing ranges.
    TxGapReports => "tx_gap_reports",
    /// Acknowledgements accepted that list missing ranges.
    RxGapReports => "rx_gap_reports",
    /// Acknowledgements older than one that was accepted already.
    StaleAcknowledgements => "stale_acknowledgements",
    /// Frames retransmitted because they were missing, or because the peer was silent.
    FramesResent => "frames_resent",
    /// Timeouts after which a silent peer was probed.
    RecoveryTimeouts => "recovery_timeouts",
    /// Connections given up because the peer stayed silent.
    GiveUps => "give_ups",
    /// RDMA reads of the peer that were answered again.
    ReadsRepeated => "reads_repeated",
    /// Repeated RDMA reads refused because their memory is not accessible any more.
    DropReadAgain => "drop_read_again",
    /// Frames placed ahead of order.
    AheadPlaced => "ahead_placed",
    /// Frames ahead of order beyond the maximum number of received ranges.
    DropAheadRanges => "drop_ahead_ranges",
    /// Frames ahead of order after a message of which no frame has arrived.
    DropAheadUnknown => "drop_ahead_unknown",
    /// Frames ahead of order beyond the maximum number of messages.
    DropAheadMessages => "drop_ahead_messages",
    /// Frames ahead of order without a receive descriptor.
    DropAheadNoDescriptor => "drop_ahead_no_descriptor",
    /// Frames ahead of order that would fail in order.
    DropAheadUnfit => "drop_ahead_unfit",
    /// Frames of RDMA writes ahead of order to memory that the peer may not access.
    DropAheadRefused => "drop_ahead_refused",
    /// Frames of RDMA writes after an incomplete message, at Reliable Reception.
    DropAheadWrite => "drop_ahead_write",
    /// Last frames of RDMA writes ahead of order.
    DropAheadLastOfWrite => "drop_ahead_last_of_write",
    /// RDMA read requests, and data of RDMA reads, ahead of order.
    DropAheadRead => "drop_ahead_read",
    /// Not an FCoE frame, or a malformed one.
    DropMalformed => "drop_malformed",
    /// The CRC of the FC frame is wrong.
    DropBadCrc => "drop_bad_crc",
    /// Frames whose D_ID, S_ID and MAC addresses are not ours or contradict each other.
    DropBadAddress => "drop_bad_address",
    /// Frames of an unsupported FC TYPE.
    DropUnknownType => "drop_unknown_type",
    /// FC-VI frames with a wrong opcode, R_CTL, DF_CTL or length.
    DropBadIu => "drop_bad_iu",
    /// Unsupported information units.
    DropUnsupportedIu => "drop_unsupported_iu",
    /// Frames whose handle and source are not those of a connected VI.
    DropUnknownHandle => "drop_unknown_handle",
    /// Frames from another port than the peer of the VI with this handle.
    DropWrongPeer => "drop_wrong_peer",
    /// The frame contradicts the connection's attributes.
    DropWrongLevel => "drop_wrong_level",
    /// Frames of a message that was already delivered, skipped or given up.
    DropStaleMessage => "drop_stale_message",
    /// Frames with a message ID too far ahead.
    DropOutOfWindow => "drop_out_of_window",
    /// Continuation frames while no message is open.
    DropNoContext => "drop_no_context",
    /// Continuation frames of another message than the open one.
    DropOtherMessage => "drop_other_message",
    /// Frames of the open message with another OX_ID, SEQ_ID or SEQ_CNT than its own.
    DropSynonym => "drop_synonym",
    /// Frames of the open message that were received before.
    DropDuplicate => "drop_duplicate",
    /// Remaining frames of a message that was given up.
    DropDiscarded => "drop_discarded",
    /// Messages for which no receive descriptor was posted.
    DropNoDescriptor => "drop_no_descriptor",
    /// RDMA writes and reads that were refused.
    DropRdmaProtection => "drop_rdma_protection",
    /// RDMA accesses of peers whose handle names no region of the VI's tag.
    RdmaMisses => "rdma_misses",
    /// RDMA accesses refused without a look-up, because of too many misses of the same peer.
    DropRdmaLimited => "drop_rdma_limited",
    /// Connections broken because too many RDMA accesses of the peer were refused.
    RdmaMissBreaks => "rdma_miss_breaks",
    /// RDMA reads beyond the number advertised to the peer.
    DropTooManyReads => "drop_too_many_reads",
    /// Responses that match no message in flight.
    DropStrayResponse => "drop_stray_response",
    /// Messages that never arrived.
    LostMessages => "lost_messages",
    /// Responses that never arrived although a later one did.
    LostResponses => "lost_responses",
    /// Responses that did not arrive within FCVI_ULP_TIMEOUT.
    ResponseTimeouts => "response_timeouts",
    /// Connections broken because the queue of responses was full.
    ResponseOverflows => "response_overflows",
    /// Messages, or data of RDMA reads, with a missing frame.
    IncompleteMessages => "incomplete_messages",
    /// Connections established.
    Connects => "connects",
    /// Connections broken by an error or by the peer.
    Breaks => "breaks",
    /// Connection requests refused because too many are pending.
    DropIncomingFull => "drop_incoming_full",
    /// Connection requests refused because a discriminator is longer than the NIC's limit.
    DropLongDiscriminator => "drop_long_discriminator",
    /// Connections that failed because all handles of the VI were used within R_A_TOV.
    NoHandle => "no_handle",
    /// Connection requests that matched no listener.
    NoMatch => "no_match",
    /// Received peer requests that matched no request in the pool.
    PeerNotPosted => "peer_not_posted",
    /// Received peer requests that matched a local one of higher rank.
    PeerCrossed => "peer_crossed",
    /// Local peer requests returned to the pool because half a connection failed.
    PeerReturned => "peer_returned",
    /// Connection IUs of ports that are not logged in.
    DropNotLoggedIn => "drop_not_logged_in",
    /// Connection requests that were received before: retried, or duplicated in the network.
    KnownRequests => "known_requests",
    /// Connection requests received after they had ended.
    DropLateRequest => "drop_late_request",
    /// Disconnects of connections that do not exist any more; they are answered.
    UnknownDisconnects => "unknown_disconnects",
    /// Connection IUs that match no procedure.
    DropStrayConnect => "drop_stray_connect",
    /// Disconnects given up without a response.
    CloseTimeouts => "close_timeouts",
    /// Disconnects not sent, or not retried, because the table was full.
    CloseOverflows => "close_overflows",
    /// Connection IUs retransmitted.
    Retries => "retries",
    /// Peers lost.
    PeersLost => "peers_lost",
    /// Frames that the port had no room for and that a timer retries.
    ControlNoRoom => "control_no_room",
}
