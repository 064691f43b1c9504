//! Every drop and every event of VI/TCP, with its reason.

/// An enum of counters with their names: `What of it => "name",`.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// What VI/TCP counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(super) enum Counter { $($(#[doc = $doc])+ $variant,)+ }

        const NAMES: &[&str] = &[$($name,)+];

        impl Counter {
            pub(super) fn name(self) -> &'static str {
                NAMES[self as usize]
            }
        }
    };
}

counters! {
    /// Messages whose last segment was sent.
    TxMessages => "tx_messages",
    /// Segments sent.
    TxSegments => "tx_segments",
    /// NOPs sent.
    TxNops => "tx_nops",
    /// Bytes written to TCP.
    TxBytes => "tx_bytes",
    /// System calls that wrote something.
    TxCalls => "tx_calls",
    /// Times that TCP had no room.
    TxNoRoom => "tx_no_room_in_tcp",
    /// Messages delivered.
    RxMessages => "rx_messages",
    /// Segments received.
    RxSegments => "rx_segments",
    /// Bytes read from TCP.
    RxBytes => "rx_bytes",
    /// Of these, bytes that went to their place without a copy of ours.
    RxDirectBytes => "rx_direct_bytes",
    /// System calls that read something.
    RxCalls => "rx_calls",
    /// Messages that waited for a receive descriptor at the other end.
    FlowControlWaits => "flow_control_waits",
    /// A message for which no receive descriptor was posted.
    DropNoDescriptor => "drop_no_descriptor",
    /// An RDMA write or read that was refused.
    DropRdmaProtection => "drop_rdma_protection",
    /// RDMA accesses of peers whose handle names no region of the VI's tag.
    RdmaMisses => "rdma_misses",
    /// RDMA accesses refused without a look-up, because too many of the same host missed.
    DropRdmaLimited => "drop_rdma_limited",
    /// Connections broken because too many RDMA accesses of the peer were refused.
    RdmaMissBreaks => "rdma_miss_breaks",
    /// Segments of messages that were given up.
    DropDiscarded => "drop_discarded",
    /// Messages that came with Transmit Error, or ended too early.
    IncompleteMessages => "incomplete_messages",
    /// Connections ended because a segment was malformed.
    DropMalformed => "drop_malformed",
    /// Connections ended because a segment fits no message or no state.
    DropOutOfOrder => "drop_out_of_order",
    /// Connections ended because an RDMA read was beyond the number that the peer was told.
    DropTooManyReads => "drop_too_many_reads",
    /// Connections ended because an acknowledgement was of something that was never sent.
    DropFalseAck => "drop_false_ack",
    /// Connections established.
    Connects => "connects",
    /// Connections broken by an error or by the other end.
    Breaks => "breaks",
    /// TCP connections that came in.
    Accepted => "tcp_accepted",
    /// TCP connections that were closed for want of room: the oldest for which nobody waited, or else
    /// the one that came.
    DropIncomingFull => "drop_incoming_full",
    /// TCP connections on which no Connect Request came in time.
    DropSilentIncoming => "drop_silent_incoming",
    /// TCP connections that ended, or said something else, before their Connect Request.
    DropUnfitIncoming => "drop_unfit_incoming",
    /// TCP connections on which TLS could not be agreed upon: one end refused the other, or does not
    /// speak it.
    DropTlsHandshake => "drop_tls_handshake",
    /// Connections ended because what came is no TLS, or an alert of TLS.
    DropTls => "drop_tls",
    /// Connections that TCP ended, and TLS did not.
    TlsCut => "tls_cut",
    /// Hosts that asked for a connection and were challenged to prove that they have the key.
    Challenges => "challenges",
    /// Connection requests that were refused because their proof was wrong, or missing.
    DropWrongProof => "drop_wrong_proof",
    /// TCP connections that ended, said something else or nothing, after a challenge.
    DropUnansweredChallenge => "drop_unanswered_challenge",
    /// Connection requests of hosts, or for hosts, for which there is no key.
    DropNoKey => "drop_no_key",
    /// Connection requests of ours that failed because the other end did not prove itself.
    DropUnproven => "drop_unproven",
    /// Connection requests of ours that failed because the other end does not accept who we are.
    NotAccepted => "not_accepted",
    /// Connection requests of ours that failed because the other end wants a key.
    KeyWanted => "key_wanted",
    /// Connection requests nobody waited for.
    NoMatch => "no_match",
    /// TCP connections begun.
    Connecting => "tcp_connecting",
    /// TCP connections that could not be made.
    ConnectingFailed => "tcp_connecting_failed",
    /// Connection requests sent again.
    Retries => "retries",
    /// Peer requests of others that crossed one of ours which stands.
    PeerCrossed => "peer_crossed",
    /// Answers that did not come within `ulp_timeout_ms`.
    ResponseTimeouts => "response_timeouts",
    /// Connections without TCP timestamps, which protect against wrapped sequence numbers.
    WithoutTimestamps => "without_timestamps",
    /// Connections that other processes of this host took over from us.
    HandedOver => "handed_over",
    /// Connections taken over from other processes of this host.
    TakenOver => "taken_over",
    /// Programs of this host that connected to share the port and were rejected: of another user, or
    /// too many.
    DropLocal => "drop_local_program",
    /// Times that other programs of this host were neither accepted nor read, since too many
    /// descriptors that other processes made wait to be closed.
    LocalPauses => "local_pauses",
}

/// One number for each.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    values: [u64; NAMES.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            values: [0; NAMES.len()],
        }
    }
}

impl Counters {
    #[inline]
    pub(super) fn add(&mut self, counter: Counter, n: u64) {
        self.values[counter as usize] += n;
    }

    #[inline]
    pub(super) fn count(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    pub(super) fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Names and numbers, in a fixed order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES.iter().copied().zip(self.values.iter().copied())
    }
}
