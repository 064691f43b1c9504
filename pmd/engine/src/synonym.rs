//! The checks that keep a stale frame from being taken for a new one, by name [FCVI P-10].
//!
//! A frame that was delayed or repeated on its way is intact; only what it names tells that its
//! time is over. Each check says its name where it is made. Tests of this crate leave one out
//! and look for a stale frame that is taken then (docs/spec/synonym-checks.md); in every other
//! build nothing is ever left out, and nothing is asked.

/// One check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// D_ID, S_ID and the MAC addresses are ours and each other's.
    Addresses,
    /// FCVI_HANDLE is that of the VI's connection, not only its place.
    Handle,
    /// S_ID is the VI's peer.
    Peer,
    /// FCVI_MSG_ID is not one that was expected before.
    OlderMessage,
    /// FCVI_MSG_ID is not too far ahead.
    MessageWindow,
    /// A further frame has the FCVI_MSG_ID of the open message.
    OpenMessage,
    /// A further frame has the OX_ID and SEQ_ID of the open message.
    OpenExchange,
    /// SEQ_CNT is the next one.
    SequenceCount,
    /// The relative offset is the next one.
    RelativeOffset,
    /// The bytes of a frame ahead of order are not there yet.
    PlacedAhead,
    /// An answer names a message in flight.
    AnsweredMessage,
    /// An answer comes on the exchange of its message.
    AnsweredExchange,
    /// An acknowledgement does not say less than one did before.
    OlderAcknowledgement,
    /// An acknowledgement is of what was sent.
    AcknowledgedMessage,
    /// A request for a connection is not one that is known already.
    KnownRequest,
    /// A connection IU has the FCVI_CONNECTION_ID of its procedure.
    ConnectionId,
    /// A connection IU has our handle in its procedure.
    ConnectionHandle,
    /// A connection IU comes from the port that the procedure is with.
    ConnectionPeer,
    /// The sender: an OX_ID that was given up, or asked with, is dead for R_A_TOV or twice that.
    DeadExchange,
    /// A handle that was given up does not come again for R_A_TOV.
    DeadHandle,
    /// A request that came to a connection, or was taken back, is dead for R_A_TOV.
    DeadRequest,
    /// A port that is logged in confirms an FLOGI before it is believed.
    ConfirmedLogin,
    /// A PLOGI or LOGO that was accepted is not believed again for R_A_TOV.
    AcceptedLogin,
    /// The sender: the OX_ID of a link service is dead for twice R_A_TOV, answered or not.
    DeadLoginExchange,
}

/// Is this check left out? Never, but in a test that says so.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn skips(_check: Check) -> bool {
    false
}

#[cfg(test)]
pub(crate) use crate::testkit::without::skips;
