//! Refusals of requests.

use fcvi_frame::els::{LsRjt, RejectExplanation, RejectReason};

use super::counters::LoginCounter;
use super::frames::ElsOut;

/// The answer to a request, or none if it is deferred.
pub(super) type Answer = Result<Option<ElsOut>, Refused>;

/// A refusal, and the counter for it.
pub(super) struct Refused(pub(super) LoginCounter, pub(super) LsRjt);

/// Returns a refusal with this reason.
fn refused(counter: LoginCounter, reason: RejectReason, explanation: RejectExplanation) -> Refused {
    Refused(
        counter,
        LsRjt {
            reason,
            explanation,
        },
    )
}

pub(super) fn malformed() -> Refused {
    refused(
        LoginCounter::RefusedMalformed,
        RejectReason::ProtocolError,
        RejectExplanation::InvalidLength,
    )
}

pub(super) fn wrong_parameters(explanation: RejectExplanation) -> Refused {
    refused(
        LoginCounter::RefusedParameters,
        RejectReason::LogicalError,
        explanation,
    )
}

pub(super) fn busy() -> Refused {
    refused(
        LoginCounter::RefusedBusy,
        RejectReason::LogicalBusy,
        RejectExplanation::None,
    )
}

pub(super) fn in_progress() -> Refused {
    refused(
        LoginCounter::RefusedBusy,
        RejectReason::InProgress,
        RejectExplanation::InProgress,
    )
}

pub(super) fn unsupported() -> Refused {
    refused(
        LoginCounter::RefusedCommand,
        RejectReason::NotSupported,
        RejectExplanation::NotSupported,
    )
}

pub(super) fn not_a_neighbour() -> Refused {
    refused(
        LoginCounter::RefusedStranger,
        RejectReason::FipError,
        RejectExplanation::NotNeighbour,
    )
}
