//! Counters of the login machine: every frame that it drops, by reason.

vi_types::counters! {
    /// What the login machine counts.
    pub LoginCounter, LoginCounters:

    /// Logins established.
    Logins => "logins",
    /// Logins ended.
    Logouts => "logouts",
    /// Logins that failed after all retries.
    LoginFailures => "login_failures",
    /// Requests sent: FLOGI, PLOGI, LOGO, ADISC, FARP-REQ.
    Requests => "requests",
    /// Requests retried.
    Retries => "retries",
    /// Requests not sent because all OX_IDs were in use; a timer repeats them.
    NoExchange => "no_exchange",
    /// Requests of ours that were refused.
    Rejected => "rejected",
    /// Answers sent: LS_ACC, LS_RJT, BA_ACC, BA_RJT, FARP-REPLY.
    Answers => "answers",
    /// FLOGI, PLOGI or LOGO of an existing login that it did not end: late copies, retries after a
    /// lost answer, and forged ones; and claims of other ports with the name or N_Port_ID of a port
    /// that confirmed its login.
    Repeated => "repeated",
    /// Verifications by ADISC of logged-in ports, after FLOGI, PLOGI or LOGO of them, or a claim of
    /// another port with their name or N_Port_ID.
    Doubts => "doubts",
    /// LOGOs sent to ports that are not logged in and behaved as if they were.
    LogosToStrangers => "logos_to_strangers",
    /// Exchanges aborted by the other port.
    Aborts => "aborts",
    /// FARP-REPLYs that named a port of a host being resolved.
    Resolved => "resolved",
    /// Hosts that no port answered for.
    Unresolved => "unresolved",
    /// Refused: malformed payload.
    RefusedMalformed => "refused_malformed",
    /// Refused: unsupported command.
    RefusedCommand => "refused_command",
    /// Refused: the sender of a login is not a neighbour.
    RefusedStranger => "refused_stranger",
    /// Refused: invalid names, class, sizes or identifiers.
    RefusedParameters => "refused_parameters",
    /// Refused: a login or logout is in progress.
    RefusedBusy => "refused_busy",
    /// Refused: ADISC of a port that is not logged in.
    RefusedNotLoggedIn => "refused_not_logged_in",
    /// Dropped: we have no N_Port_ID.
    DropNoId => "drop_no_id",
    /// Dropped: the D_ID is not ours. On a shared interface FIP frames for other ports are
    /// received.
    DropNotOurs => "drop_not_ours",
    /// Dropped: the S_ID or the Port_Name is ours, or zero.
    DropBadSource => "drop_bad_source",
    /// Dropped: the Ethernet source does not belong to the S_ID.
    DropWrongMac => "drop_wrong_mac",
    /// Dropped: neither a request nor a reply, not a single frame, or headers that no link service
    /// has.
    DropBadHeader => "drop_bad_header",
    /// Dropped: FLOGI outside FIP, another ELS inside FIP, or a reply in another kind of frame than
    /// its request.
    DropWrongCarrier => "drop_wrong_carrier",
    /// Dropped: a malformed reply.
    DropMalformedReply => "drop_malformed_reply",
    /// Dropped: a reply to a request that ended.
    DropLateReply => "drop_late_reply",
    /// Dropped: a reply to no request of ours.
    DropStrayReply => "drop_stray_reply",
    /// Dropped: the sender is not logged in.
    DropNotLoggedIn => "drop_not_logged_in",
    /// Dropped: an answer would exceed the limit per second.
    DropLimit => "drop_limit",
    /// Dropped: the queue of answers, or the sender's share of it, is full.
    DropNoRoom => "drop_no_room",
    /// Dropped: the table of neighbours is full.
    DropTableFull => "drop_table_full",
    /// Dropped: a FARP-REQ for another port.
    DropFarpNoMatch => "drop_farp_no_match",
    /// Dropped: a FARP frame with contradictory addresses.
    DropFarpMalformed => "drop_farp_malformed",
    /// Dropped: a FARP frame of a port that is not a neighbour.
    DropFarpStranger => "drop_farp_stranger",
    /// Dropped: a FARP-REPLY for a host that was not requested.
    DropFarpNotAsked => "drop_farp_not_asked",
    /// Dropped: a port of a host beyond the limit.
    DropFarpFull => "drop_farp_full",
}
