//! Every drop and every event of the engine, with its reason.

/// An enum of counters with their names: `What of it => "name",`.
macro_rules! counters {
    (
        #[doc = $what:literal] $counter:ident:
        $($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+
    ) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $counter { $($(#[doc = $doc])+ $variant,)+ }

        impl $counter {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [$counter] = &[$($counter::$variant,)+];

            /// The stable name under which it is shown.
            pub const fn name(self) -> &'static str {
                match self { $($counter::$variant => $name,)+ }
            }
        }
    };
}

pub(crate) use counters;

counters! {
    /// What the engine counts.
    Counter:

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
    /// Data frames accepted.
    RxFrames => "rx_frames",
    /// Responses sent, the last data of an RDMA read among them.
    TxResponses => "tx_responses",
    /// Responses that completed what was in flight, or refused it.
    RxResponses => "rx_responses",
    /// Acknowledgements sent, those with missing ranges among them.
    TxAcknowledgements => "tx_acknowledgements",
    /// Acknowledgements accepted, those with missing ranges among them.
    RxAcknowledgements => "rx_acknowledgements",
    /// Acknowledgements that a send or write carried.
    TxAcknowledgementsCarried => "tx_acknowledgements_carried",
    /// Acknowledgements accepted that a send or write carried.
    RxAcknowledgementsCarried => "rx_acknowledgements_carried",
    /// Acknowledgements sent that list missing ranges.
    TxGapReports => "tx_gap_reports",
    /// Acknowledgements accepted that list missing ranges.
    RxGapReports => "rx_gap_reports",
    /// Acknowledgements that a newer one overtook.
    StaleAcknowledgements => "stale_acknowledgements",
    /// Frames sent again because they were missing, or because the peer was silent.
    FramesResent => "frames_resent",
    /// Times that a silent peer was asked.
    RecoveryTimeouts => "recovery_timeouts",
    /// Connections given up because the peer stayed silent.
    GiveUps => "give_ups",
    /// RDMA reads of the peer that were answered again.
    ReadsRepeated => "reads_repeated",
    /// Repeated answers to RDMA reads that were dropped because their memory is gone.
    DropReadAgain => "drop_read_again",
    /// Frames placed ahead of order.
    AheadPlaced => "ahead_placed",
    /// Frames ahead of order for which too many runs are kept already.
    DropAheadIslands => "drop_ahead_islands",
    /// Frames ahead of order behind a message of which nothing has come.
    DropAheadUnknown => "drop_ahead_unknown",
    /// Frames of more messages ahead of order than are kept.
    DropAheadMessages => "drop_ahead_messages",
    /// Frames ahead of order without a receive descriptor.
    DropAheadNoDescriptor => "drop_ahead_no_descriptor",
    /// Frames ahead of order that would fail in order.
    DropAheadUnfit => "drop_ahead_unfit",
    /// Frames of RDMA writes ahead of order to memory that the peer may not access.
    DropAheadRefused => "drop_ahead_refused",
    /// Frames of RDMA writes behind a message that is not whole, at Reliable Reception.
    DropAheadWrite => "drop_ahead_write",
    /// Last frames of RDMA writes ahead of order.
    DropAheadLastOfWrite => "drop_ahead_last_of_write",
    /// RDMA read requests, and data of RDMA reads, ahead of order.
    DropAheadRead => "drop_ahead_read",
    /// Not an FCoE frame, or a malformed one.
    DropMalformed => "drop_malformed",
    /// The CRC of the FC frame is wrong.
    DropBadCrc => "drop_bad_crc",
    /// D_ID, S_ID and the MAC addresses do not fit us or each other.
    DropBadAddress => "drop_bad_address",
    /// An FC TYPE that is not served.
    DropUnknownType => "drop_unknown_type",
    /// An FC-VI frame whose opcode, R_CTL, DF_CTL or length is wrong.
    DropBadIu => "drop_bad_iu",
    /// An information unit that this version does not serve.
    DropUnsupportedIu => "drop_unsupported_iu",
    /// No connected VI has this handle and this peer.
    DropUnknownHandle => "drop_unknown_handle",
    /// The VI that has this handle is connected with another peer.
    DropWrongPeer => "drop_wrong_peer",
    /// The frame contradicts the connection's attributes.
    DropWrongLevel => "drop_wrong_level",
    /// A message that was already delivered, skipped or given up.
    DropStaleMessage => "drop_stale_message",
    /// A message ID too far ahead.
    DropOutOfWindow => "drop_out_of_window",
    /// A further frame of a message, while none is open.
    DropNoContext => "drop_no_context",
    /// A further frame of another message than the open one.
    DropOtherMessage => "drop_other_message",
    /// A frame of the open message whose OX_ID, SEQ_ID or SEQ_CNT are not its own.
    DropSynonym => "drop_synonym",
    /// A frame that the open message already has.
    DropDuplicate => "drop_duplicate",
    /// The rest of a message that was given up.
    DropDiscarded => "drop_discarded",
    /// A message for which no receive descriptor was posted.
    DropNoDescriptor => "drop_no_descriptor",
    /// An RDMA write or read that was refused.
    DropRdmaProtection => "drop_rdma_protection",
    /// RDMA accesses of peers whose handle names no region of the VI's tag.
    RdmaMisses => "rdma_misses",
    /// RDMA accesses refused without a look-up, because too many of the same peer missed.
    DropRdmaLimited => "drop_rdma_limited",
    /// Connections broken because too many RDMA accesses of the peer were refused.
    RdmaMissBreaks => "rdma_miss_breaks",
    /// An RDMA read beyond the number that the peer was told.
    DropTooManyReads => "drop_too_many_reads",
    /// A response to nothing that is in flight.
    DropStrayResponse => "drop_stray_response",
    /// Messages that never came.
    LostMessages => "lost_messages",
    /// Responses that never came although a later one did.
    LostResponses => "lost_responses",
    /// Responses that did not come within FCVI_ULP_TIMEOUT.
    ResponseTimeouts => "response_timeouts",
    /// Connections broken because the port had no room for too many responses.
    ResponseOverflows => "response_overflows",
    /// Messages, or answers to RDMA reads, that lacked a frame.
    IncompleteMessages => "incomplete_messages",
    /// Connections established.
    Connects => "connects",
    /// Connections broken by an error or by the other end.
    Breaks => "breaks",
    /// Connection requests refused for want of room.
    DropIncomingFull => "drop_incoming_full",
    /// Connection requests refused because a discriminator is longer than the NIC's limit.
    DropLongDiscriminator => "drop_long_discriminator",
    /// Connections that failed because all handles of the VI's place were used within R_A_TOV.
    NoHandle => "no_handle",
    /// Connection requests nobody waited for.
    NoMatch => "no_match",
    /// Peer requests of others that found none of ours in the pool.
    PeerNotPosted => "peer_not_posted",
    /// Peer requests of others that crossed one of ours which stands.
    PeerCrossed => "peer_crossed",
    /// Peer requests of ours that went back into the pool because half a connection failed.
    PeerReturned => "peer_returned",
    /// Connection IUs of ports that are not logged in.
    DropNotLoggedIn => "drop_not_logged_in",
    /// Connection requests that are known already: sent again, or repeated on their way.
    KnownRequests => "known_requests",
    /// Connection requests that came although their time is over.
    DropLateRequest => "drop_late_request",
    /// Disconnects of connections that are not there any more: answered, and no more.
    UnknownDisconnects => "unknown_disconnects",
    /// Connection IUs that fit no procedure of ours.
    DropStrayConnect => "drop_stray_connect",
    /// Disconnects given up without a response.
    CloseTimeouts => "close_timeouts",
    /// Disconnects forgotten for want of room.
    CloseOverflows => "close_overflows",
    /// Connection IUs sent again.
    Retries => "retries",
    /// Peers lost.
    PeersLost => "peers_lost",
    /// Frames that the port had no room for and that a timer repeats.
    ControlNoRoom => "control_no_room",
}

/// One number for each [`Counter`].
#[derive(Clone, Debug)]
pub struct Counters {
    values: [u64; Counter::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            values: [0; Counter::ALL.len()],
        }
    }
}

impl Counters {
    #[inline]
    pub(crate) fn add(&mut self, counter: Counter, n: u64) {
        self.values[counter as usize] += n;
    }

    #[inline]
    pub(crate) fn count(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// How often it happened.
    #[inline]
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Names and numbers, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|c| (c.name(), self.get(*c)))
    }
}
