//! The states of one remote port, and what leads from one to the other [FCVI P-14].
//!
//! ```text
//!            Heard                FlogiAccepted, ours is the smaller name
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
//! Of two ports the one with the larger Port_Name sends PLOGI; an accept of it that
//! cannot be used leads to LogoSent. A request that nobody answers is sent again; the
//! last time-out leads to LoggedOut, and from there time leads to FlogiSent. FLOGI and
//! PLOGI of the other port are believed in every state but LogoSent: it may have
//! started anew. The table of every state and event is docs/spec/login-states.md.

use super::frames::{Carrier, FipService};

/// Where the login with a remote port stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// It is a neighbour whose beacon was not heard.
    Known,
    /// We sent FLOGI and wait for the answer.
    FlogiSent,
    /// FLOGI was accepted, and the other port, which has the larger name, is to send PLOGI.
    PlogiWait,
    /// We sent PLOGI and wait for the answer.
    PlogiSent,
    /// Logged in.
    LoggedIn,
    /// We sent LOGO and wait for the answer.
    LogoSent,
    /// The login ended or failed.
    LoggedOut,
}

impl PortState {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Known,
        Self::FlogiSent,
        Self::PlogiWait,
        Self::PlogiSent,
        Self::LoggedIn,
        Self::LogoSent,
        Self::LoggedOut,
    ];

    /// What the request of the state travels in, and so does its reply.
    pub(super) fn request_carrier(self) -> Option<Carrier> {
        match self {
            Self::FlogiSent => Some(Carrier::Fip(FipService::Flogi)),
            Self::PlogiSent => Some(Carrier::Fcoe),
            Self::LogoSent => Some(Carrier::Fip(FipService::Logo)),
            Self::Known | Self::PlogiWait | Self::LoggedIn | Self::LoggedOut => None,
        }
    }
}

/// What can happen to a remote port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Its beacon was heard, or it asks for a login by other means.
    Heard,
    /// It sent an FLOGI, which is accepted.
    FlogiReceived,
    /// It accepted our FLOGI.
    FlogiAccepted,
    /// It sent a PLOGI, which is accepted.
    PlogiReceived,
    /// It accepted our PLOGI.
    PlogiAccepted,
    /// It refused our FLOGI or PLOGI; the timer asks again.
    Rejected,
    /// It accepted with names or sizes that cannot be.
    Unusable,
    /// It logged out.
    LogoReceived,
    /// It answered our LOGO.
    LogoAnswered,
    /// We log out.
    Logout,
    /// The state's time is over.
    Timeout,
}

/// What an event does to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing; its timer runs on.
    Stay,
    /// The state is entered, perhaps again: its timer starts, its request is sent.
    Enter(PortState),
}

/// The machine. `larger`: our Port_Name is the larger one. `last`: the request of the state
/// was sent as often as it may be.
pub(super) fn next(state: PortState, event: Event, larger: bool, last: bool) -> Next {
    use Event::{
        FlogiAccepted, FlogiReceived, Heard, LogoAnswered, LogoReceived, Logout, PlogiAccepted,
        PlogiReceived, Rejected, Timeout, Unusable,
    };
    use Next::{Enter, Stay};
    use PortState::{FlogiSent, Known, LoggedIn, LoggedOut, LogoSent, PlogiSent, PlogiWait};
    let greeted = Enter(if larger { PlogiSent } else { PlogiWait });
    match (state, event) {
        (Known | LoggedOut, Heard) => Enter(FlogiSent),
        (_, Heard) => Stay,

        (Known | LoggedIn | LoggedOut, FlogiReceived) => greeted,
        // Crossed: we wait for our own answer. Or our accept was lost, and is sent again.
        (FlogiSent | PlogiWait | PlogiSent, FlogiReceived) => Stay,
        (LogoSent, FlogiReceived) => Stay,
        (FlogiSent, FlogiAccepted) => greeted,
        (_, FlogiAccepted) => Stay,

        (LogoSent, PlogiReceived) => Stay,
        (_, PlogiReceived) => Enter(LoggedIn),
        (PlogiSent, PlogiAccepted) => Enter(LoggedIn),
        (_, PlogiAccepted) => Stay,

        (_, Rejected) => Stay,
        (PlogiSent, Unusable) => Enter(LogoSent),
        (_, Unusable) => Stay,

        (PlogiWait | PlogiSent | LoggedIn | LogoSent, LogoReceived) => Enter(LoggedOut),
        (Known | FlogiSent | LoggedOut, LogoReceived) => Stay,
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
