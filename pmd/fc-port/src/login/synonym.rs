//! The checks that keep a stale link service from being taken for a new one, by name [FCVI P-10].
//!
//! Each is named where it is made. Tests of this crate disable single checks and look for a stale
//! frame that is accepted then (docs/spec/stale-logins.md); in every other build no check can be
//! disabled, at no cost.

/// A check for stale frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// A logged-in port confirms by ADISC that it has no login before its FLOGI is accepted.
    ConfirmedLogin,
    /// A PLOGI that was accepted is not accepted again for R_A_TOV.
    AcceptedLogin,
    /// Sender: the OX_ID of a link service is in quarantine for twice R_A_TOV, answered or not.
    QuarantinedLoginExchange,
}

/// Reports whether this check is disabled: only in tests that disable it.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn skips(_check: Check) -> bool {
    false
}

#[cfg(test)]
pub(super) use protocol_testkit::disabled_checks::skips;

#[cfg(test)]
impl protocol_testkit::disabled_checks::Check for Check {
    fn number(self) -> u32 {
        self as u32
    }
}
