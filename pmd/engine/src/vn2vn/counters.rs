//! Every frame that discovery sends, takes or refuses, with the reason.

use crate::counters::counters;

counters! {
    /// What discovery counts.
    Vn2vnCounter:

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
    /// VN2VN frames taken.
    Rx => "vn2vn_rx",
    /// Starts anew with another N_Port_ID, for another port has it or more right to it.
    Restarts => "vn2vn_restarts",
    /// Claims repeated, for another port with less right to our N_Port_ID has it too.
    Defended => "vn2vn_defended",
    /// Neighbours found.
    Found => "vn2vn_found",
    /// Neighbours gone.
    Gone => "vn2vn_gone",
    /// Padded responses that did not arrive at the full size of a neighbour, and the smaller
    /// one was tried.
    PathReduced => "vn2vn_path_reduced",
    /// Neighbours of which no padded response arrived.
    PathFailed => "vn2vn_path_failed",
    /// Answers not given, for there were too many within a second.
    AnswersLimited => "vn2vn_answers_limited",
    /// Claims not repeated, for there were too many within a second.
    DefencesLimited => "vn2vn_defences_limited",
    /// Answers not given, for too many wait to be sent.
    AnswersFull => "vn2vn_answers_full",
    /// Frames that came while the machine is stopped.
    DropStopped => "vn2vn_drop_stopped",
    /// Not a FIP frame, or a header that is wrong.
    DropMalformed => "vn2vn_drop_malformed",
    /// A FIP frame that is not one of VN2VN, or has no known subcode.
    DropOtherOperation => "vn2vn_drop_other_operation",
    /// Sent neither to all VN2VN ports nor to our interface.
    DropBadDestination => "vn2vn_drop_bad_destination",
    /// A descriptor is missing, repeated, unknown, or of a wrong length.
    DropBadDescriptor => "vn2vn_drop_bad_descriptor",
    /// The addresses do not agree: source, interface, VN_Port and N_Port_ID.
    DropBadAddress => "vn2vn_drop_bad_address",
    /// An N_Port_ID that no VN2VN port can have, or a port without a name.
    DropBadIdentity => "vn2vn_drop_bad_identity",
    /// A claim whose FCoE size is less than every port must take.
    DropTooSmall => "vn2vn_drop_too_small",
    /// Our own frame, come back.
    DropOwn => "vn2vn_drop_own",
    /// Another interface has a port with our name; it is no neighbour.
    DropDuplicateName => "vn2vn_drop_duplicate_name",
    /// A probe that is about another N_Port_ID than ours.
    DropOtherId => "vn2vn_drop_other_id",
    /// A neighbour that spoke before we have an N_Port_ID.
    DropTooEarly => "vn2vn_drop_too_early",
    /// A neighbour more than there is room for.
    DropNeighboursFull => "vn2vn_drop_neighbours_full",
    /// A claim for the N_Port_ID of a neighbour that is there and has more right to it.
    DropContested => "vn2vn_drop_contested",
}

/// One number for each [`Vn2vnCounter`].
#[derive(Clone, Debug)]
pub struct Vn2vnCounters {
    values: [u64; Vn2vnCounter::ALL.len()],
}

impl Default for Vn2vnCounters {
    fn default() -> Self {
        Self {
            values: [0; Vn2vnCounter::ALL.len()],
        }
    }
}

impl Vn2vnCounters {
    pub(super) fn count(&mut self, counter: Vn2vnCounter) {
        self.values[counter as usize] += 1;
    }

    /// How often it happened.
    pub fn get(&self, counter: Vn2vnCounter) -> u64 {
        self.values[counter as usize]
    }

    /// Names and numbers, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Vn2vnCounter::ALL.iter().map(|c| (c.name(), self.get(*c)))
    }
}
