//! Counters of discovery: every frame sent, accepted or dropped, by reason.

vi_types::counters! {
    /// What discovery counts.
    pub Vn2vnCounter, Vn2vnCounters:

    /// Probe requests sent.
    TxProbeRequests => "vn2vn_tx_probe_requests",
    /// Probe replies sent.
    TxProbeReplies => "vn2vn_tx_probe_replies",
    /// Claim notifications sent, to all or to one neighbour.
    TxClaims => "vn2vn_tx_claims",
    /// Claim responses sent.
    TxClaimResponses => "vn2vn_tx_claim_responses",
    /// Beacons sent.
    TxBeacons => "vn2vn_tx_beacons",
    /// VN2VN frames accepted.
    Rx => "vn2vn_rx",
    /// Restarts with another N_Port_ID, because another port has it or has precedence for it.
    Restarts => "vn2vn_restarts",
    /// Claims repeated, because another port with lower precedence has our N_Port_ID.
    Defended => "vn2vn_defended",
    /// Neighbours found.
    Found => "vn2vn_found",
    /// Neighbours gone.
    Gone => "vn2vn_gone",
    /// Of these, neighbours without a login that were evicted because the table was full.
    Evicted => "vn2vn_evicted",
    /// Logged-in neighbours that a claim contradicts, so that their login is verified.
    Doubted => "vn2vn_doubted",
    /// Frames of other ports with our N_Port_ID and precedence for it to which we do not give it up,
    /// because a neighbour is logged in.
    Kept => "vn2vn_kept",
    /// Neighbours whose padded response of full size did not arrive, so that the smaller one was
    /// tried.
    PathReduced => "vn2vn_path_reduced",
    /// Neighbours of which no padded response arrived.
    PathFailed => "vn2vn_path_failed",
    /// Answers dropped because of the limit per second.
    AnswersLimited => "vn2vn_answers_limited",
    /// Claims not repeated because of the limit per second.
    DefencesLimited => "vn2vn_defences_limited",
    /// Answers dropped because too many were queued.
    AnswersFull => "vn2vn_answers_full",
    /// Frames received while the machine is stopped.
    DropStopped => "vn2vn_drop_stopped",
    /// Not a FIP frame, or an invalid header.
    DropMalformed => "vn2vn_drop_malformed",
    /// Not a VN2VN frame, or an unknown subcode.
    DropOtherOperation => "vn2vn_drop_other_operation",
    /// Sent neither to all VN2VN ports nor to our interface.
    DropBadDestination => "vn2vn_drop_bad_destination",
    /// A descriptor is missing, repeated, unknown, or of a wrong length.
    DropBadDescriptor => "vn2vn_drop_bad_descriptor",
    /// Addresses that contradict each other: source, interface, VN_Port and N_Port_ID.
    DropBadAddress => "vn2vn_drop_bad_address",
    /// An invalid N_Port_ID, or a port without a name.
    DropBadIdentity => "vn2vn_drop_bad_identity",
    /// A claim whose FCoE size is less than every port must support.
    DropTooSmall => "vn2vn_drop_too_small",
    /// Our own frame, looped back.
    DropOwn => "vn2vn_drop_own",
    /// A port of another interface with our name; it is not accepted as a neighbour.
    DropDuplicateName => "vn2vn_drop_duplicate_name",
    /// A probe for another N_Port_ID than ours.
    DropOtherId => "vn2vn_drop_other_id",
    /// A frame of a neighbour before we have an N_Port_ID.
    DropTooEarly => "vn2vn_drop_too_early",
    /// A neighbour beyond the maximum.
    DropNeighboursFull => "vn2vn_drop_neighbours_full",
    /// A claim that contradicts a live or logged-in neighbour: with its N_Port_ID, or with its name and
    /// other addresses.
    DropContested => "vn2vn_drop_contested",
}
