//! The checks that keep a stale frame from being taken for a new one, by name [FCVI P-10].
//!
//! A frame that was delayed or duplicated in the network is intact; only its identifiers show that
//! it is stale. Each check is named where it is made. Tests of this crate disable single checks and
//! look for a stale frame that is accepted then (docs/spec/synonym-checks.md); in every other build
//! no check can be disabled, at no cost.

/// A check for stale frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// D_ID, S_ID and the MAC addresses are ours and each other's.
    Addresses,
    /// FCVI_HANDLE is that of the VI's connection, not only its slot.
    Handle,
    /// S_ID is the VI's peer.
    Peer,
    /// FCVI_MSG_ID is not older than the expected one.
    OlderMessage,
    /// FCVI_MSG_ID is not too far ahead.
    MessageWindow,
    /// A continuation frame has the FCVI_MSG_ID of the open message.
    OpenMessage,
    /// A continuation frame has the OX_ID and SEQ_ID of the open message.
    OpenExchange,
    /// SEQ_CNT is the next one.
    SequenceCount,
    /// The relative offset is the next one.
    RelativeOffset,
    /// The bytes of a frame ahead of order were not received before.
    PlacedAhead,
    /// A response names a message in flight.
    AnsweredMessage,
    /// A response arrives on the exchange of its message.
    AnsweredExchange,
    /// An acknowledgement is not older than an earlier one.
    OlderAcknowledgement,
    /// An acknowledgement covers only what was sent.
    AcknowledgedMessage,
    /// A connection request was not received before.
    KnownRequest,
    /// A connection IU has the FCVI_CONNECTION_ID of its procedure.
    ConnectionId,
    /// A connection IU has our handle in its procedure.
    ConnectionHandle,
    /// A connection IU comes from the port of its procedure.
    ConnectionPeer,
    /// Sender: the OX_ID of an abandoned exchange is in quarantine for R_A_TOV, that of a probe for
    /// twice that.
    QuarantinedExchange,
    /// A released handle is not used again for R_A_TOV.
    QuarantinedHandle,
    /// A request that became a connection, or was cancelled, is in quarantine for R_A_TOV.
    QuarantinedRequest,
}

/// Reports whether this check is disabled: only in tests that disable it.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn skips(_check: Check) -> bool {
    false
}

#[cfg(test)]
pub(crate) use crate::testkit::disabled_checks::skips;

#[cfg(test)]
impl crate::testkit::disabled_checks::Check for Check {
    fn number(self) -> u32 {
        self as u32
    }
}
