//! The states of one remote port, and their transitions [FCVI P-14].
//!
//! ```text
//!            Ready                FlogiAccepted, ours is the smaller name
//!   Known ----------> FlogiSent ------------------------------> PlogiWait
//!     |                   |  FlogiAccepted,                         |
//!     | FlogiReceived     |  ours is the larger name                | PlogiReceived
//!     |                   v              PlogiAccepted              v
//!     +--(larger)---> PlogiSent ------------------------------> LoggedIn
//!     +--(smaller)--> PlogiWait                                  |     |
//!                                                    Logout      |     | LogoReceived
//!   LoggedOut <---- LogoSent <-----------------------------------+     |
//!       ^     LogoAnswered                                             |
//!       +--------------------------------------------------------------+
//! ```
//!
//! Of two ports the one with the larger Port_Name sends PLOGI; an unusable accept of it leads to
//! LogoSent. An unanswered request is retried; the last timeout leads to LoggedOut, whose timeout
//! leads to FlogiSent. FLOGI and PLOGI of the other port are accepted in every state but LogoSent,
//! because it may have restarted. The table of every state and event is docs/spec/login-states.md.

use super::frames::{Carrier, FipService};

/// State of the login with a remote port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// A neighbour whose beacon was not received yet.
    Known,
    /// FLOGI was sent; the reply is pending.
    FlogiSent,
    /// FLOGI was accepted; the other port, which has the larger name, has to send PLOGI.
    PlogiWait,
    /// PLOGI was sent; the reply is pending.
    PlogiSent,
    /// Logged in.
    LoggedIn,
    /// LOGO was sent; the reply is pending.
    LogoSent,
    /// The login ended or failed.
    LoggedOut,
}

impl PortState {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Known,
        Self::FlogiSent,
        Self::PlogiWait,
        Self::PlogiSent,
        Self::LoggedIn,
        Self::LogoSent,
        Self::LoggedOut,
    ];

    /// Returns the kind of frame of the state's request and its reply.
    pub(super) fn request_carrier(self) -> Option<Carrier> {
        match self {
            Self::FlogiSent => Some(Carrier::Fip(FipService::Flogi)),
            Self::PlogiSent => Some(Carrier::Fcoe),
            Self::LogoSent => Some(Carrier::Fip(FipService::Logo)),
            Self::Known | Self::PlogiWait | Self::LoggedIn | Self::LoggedOut => None,
        }
    }
}

/// An event of a remote port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Its first beacon was received, or it requests a login by other means.
    Ready,
    /// It sent an FLOGI, which is accepted.
    FlogiReceived,
    /// It accepted our FLOGI.
    FlogiAccepted,
    /// It sent a PLOGI, which is accepted.
    PlogiReceived,
    /// It accepted our PLOGI.
    PlogiAccepted,
    /// It refused our FLOGI or PLOGI; the timer retries.
    Rejected,
    /// It accepted with invalid names or sizes.
    Unusable,
    /// It logged out.
    LogoReceived,
    /// It did not confirm its login, which discovery doubted.
    NotConfirmed,
    /// It answered our LOGO.
    LogoAnswered,
    /// We log out.
    Logout,
    /// The state timed out.
    Timeout,
}

/// Transition of a state on an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// None; the timer keeps running.
    Stay,
    /// The state is entered, perhaps again: its timer starts, its request is sent.
    Enter(PortState),
}

/// Returns the transition of a state on an event. `larger`: our Port_Name is the larger one.
/// `last`: the retries of the state's request are used up.
pub(super) fn next(state: PortState, event: Event, larger: bool, last: bool) -> Next {
    use Event::{
        FlogiAccepted, FlogiReceived, LogoAnswered, LogoReceived, Logout, NotConfirmed,
        PlogiAccepted, PlogiReceived, Ready, Rejected, Timeout, Unusable,
    };
    use Next::{Enter, Stay};
    use PortState::{FlogiSent, Known, LoggedIn, LoggedOut, LogoSent, PlogiSent, PlogiWait};
    let after_flogi = Enter(if larger { PlogiSent } else { PlogiWait });
    match (state, event) {
        (Known | LoggedOut, Ready) => Enter(FlogiSent),
        (_, Ready) => Stay,

        (Known | LoggedIn | LoggedOut, FlogiReceived) => after_flogi,
        // Simultaneous FLOGIs: we wait for our own reply. Or our accept was lost, and is sent
        // again.
        (FlogiSent | PlogiWait | PlogiSent, FlogiReceived) => Stay,
        (LogoSent, FlogiReceived) => Stay,
        (FlogiSent, FlogiAccepted) => after_flogi,
        (_, FlogiAccepted) => Stay,

        (LogoSent, PlogiReceived) => Stay,
        (_, PlogiReceived) => Enter(LoggedIn),
        (PlogiSent, PlogiAccepted) => Enter(LoggedIn),
        (_, PlogiAccepted) => Stay,

        (_, Rejected) => Stay,
        (PlogiSent, Unusable) => Enter(LogoSent),
        (_, Unusable) => Stay,

        (LoggedIn | LogoSent, LogoReceived) => Enter(LoggedOut),
        // During a login it is a late or forged one: a port that wants no login refuses it.
        (Known | FlogiSent | PlogiWait | PlogiSent | LoggedOut, LogoReceived) => Stay,
        (LoggedIn, NotConfirmed) => Enter(LoggedOut),
        (_, NotConfirmed) => Stay,
        (LogoSent, LogoAnswered) => Enter(LoggedOut),
        (_, LogoAnswered) => Stay,
        (PlogiSent | LoggedIn, Logout) => Enter(LogoSent),
        (FlogiSent | PlogiWait, Logout) => Enter(LoggedOut),
        (Known | LogoSent | LoggedOut, Logout) => Stay,

        (Known | LoggedIn, Timeout) => Stay,
        (LoggedOut, Timeout) => Enter(FlogiSent),
        (FlogiSent | PlogiWait | PlogiSent | LogoSent, Timeout) if last => Enter(LoggedOut),
        (FlogiSent | PlogiWait, Timeout) => Enter(FlogiSent),
        (PlogiSent, Timeout) => Enter(PlogiSent),
        (LogoSent, Timeout) => Enter(LogoSent),
    }
}
