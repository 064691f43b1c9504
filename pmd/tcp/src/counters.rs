//! Counters of VI/TCP drops and events, beside those of [`Transfer`](vitcp_lite::Transfer).

vi_types::counters! {
    /// What VI/TCP counts of sockets and connections.
    pub(crate) Counter, Counters:

    /// Bytes written to TCP.
    TxBytes => "tx_bytes",
    /// System calls that wrote something.
    TxCalls => "tx_calls",
    /// Times that the TCP send buffer was full.
    TxNoRoom => "tx_no_room_in_tcp",
    /// Bytes read from TCP.
    RxBytes => "rx_bytes",
    /// System calls that read something.
    RxCalls => "rx_calls",
    /// Connections established.
    Connects => "connects",
    /// Connections broken by an error or by the peer.
    Breaks => "breaks",
    /// TCP connections accepted.
    Accepted => "tcp_accepted",
    /// TCP connections closed because `max_incoming` was reached: the oldest without a pending consumer
    /// decision, or else the new one.
    DropIncomingFull => "drop_incoming_full",
    /// TCP connections without a Connect Request before the timeout.
    DropSilentIncoming => "drop_silent_incoming",
    /// TCP connections that ended, or sent something else, before their Connect Request.
    DropUnfitIncoming => "drop_unfit_incoming",
    /// TCP connections with a failed TLS handshake: one side refused the other, or does not use TLS.
    DropTlsHandshake => "drop_tls_handshake",
    /// TLS handshakes of peers that had a turn.
    TlsHandshakes => "tls_handshakes",
    /// TLS handshakes of peers that waited: for others of their source, `max_handshakes_per_second`, or
    /// `max_handshakes_per_source`.
    TlsHandshakesDelayed => "tls_handshakes_delayed",
    /// TCP connections closed because their TLS handshake had no turn before the timeout.
    DropTlsHandshakeDelayed => "drop_tls_handshake_delayed",
    /// Requests of peers whose certificate is not valid for their address.
    DropWrongCertificate => "drop_wrong_certificate",
    /// Connections ended because of invalid TLS data or a TLS alert.
    DropTls => "drop_tls",
    /// Connections that TCP ended without a TLS close_notify.
    TlsCut => "tls_cut",
    /// Connection requests that were challenged.
    Challenges => "challenges",
    /// Connection requests refused because their proof was invalid or missing.
    DropWrongProof => "drop_wrong_proof",
    /// TCP connections that ended, sent something else, or timed out after a challenge.
    DropUnansweredChallenge => "drop_unanswered_challenge",
    /// Connection requests from or to hosts without a key.
    DropNoKey => "drop_no_key",
    /// Connection requests of ours that failed because the peer did not prove that it has the key.
    DropUnproven => "drop_unproven",
    /// Connection requests of ours that the peer refused because of our proof.
    NotAccepted => "not_accepted",
    /// Connection requests of ours that failed because the peer requires a key.
    KeyWanted => "key_wanted",
    /// Connection requests without a listener.
    NoMatch => "no_match",
    /// TCP connects started.
    Connecting => "tcp_connecting",
    /// TCP connects failed.
    ConnectingFailed => "tcp_connecting_failed",
    /// Connection requests retried.
    Retries => "retries",
    /// Peer requests refused in a simultaneous open because our own has precedence.
    PeerCrossed => "peer_crossed",
    /// Connections without TCP timestamps, which protect against wrapped sequence numbers.
    WithoutTimestamps => "without_timestamps",
    /// Connections handed off to other processes of this host.
    HandedOver => "handed_over",
    /// Connections taken over from other processes of this host.
    TakenOver => "taken_over",
    /// Programs of this host that connected to share the port and were rejected: of another user, or
    /// too many.
    DropLocal => "drop_local_program",
    /// Times that other programs of this host were neither accepted nor read because too many
    /// descriptors of other processes wait to be closed.
    LocalPauses => "local_pauses",
}
