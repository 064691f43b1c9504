//! What the login machine reports: events, logins, and views of ports.

use fcvi_frame::els::LsRjt;
use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

use super::state::PortState;
use crate::Neighbour;

/// An event of the login machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginEvent {
    /// The port is logged in: the FC-4 protocol may be used with it.
    LoggedIn(PortLogin),
    /// The port is not logged in any more: its exchanges with us have ended.
    LoggedOut {
        /// Its Port_Name.
        port_name: u64,
        /// The N_Port_ID that it had.
        id: NPortId,
        /// Why.
        reason: LogoutReason,
    },
    /// A login failed. Another one is tried later.
    LoginFailed {
        /// Its Port_Name.
        port_name: u64,
        /// Its N_Port_ID.
        id: NPortId,
        /// Why.
        reason: LoginFailure,
    },
    /// The host that a logged-in port belongs to.
    Host {
        /// The port.
        id: NPortId,
        /// Its host.
        host: HostAddress,
    },
    /// An answer to [`LoginMachine::resolve`](super::LoginMachine::resolve).
    Resolved {
        /// The resolved host address.
        host: HostAddress,
        /// One of the host's N_Ports, each reported once; `None` at the end of the resolution,
        /// after which no further port follows.
        id: Option<NPortId>,
    },
}

/// A logged-in port, and the negotiated parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLogin {
    /// Its N_Port_ID.
    pub id: NPortId,
    /// Its Port_Name.
    pub port_name: u64,
    /// Its Node_Name.
    pub node_name: u64,
    /// Maximum data field of a frame between us in bytes: the minimum of our size, its two receive
    /// sizes and the path MTU; a multiple of 4, at least 256.
    pub data_field_bytes: u16,
    /// It advertises that frames are delivered in order.
    pub sequential: bool,
    /// It advertises that its relative offsets increase continuously.
    pub continuous_offset: bool,
}

/// Why a login ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogoutReason {
    /// The other port sent LOGO.
    Logo,
    /// The other port logged in anew.
    LoggedInAgain,
    /// The other port did not confirm its login after
    /// [`neighbour_doubted`](super::LoginMachine::neighbour_doubted).
    NotConfirmed,
    /// The other port is no neighbour any more, or has another N_Port_ID.
    Gone,
    /// Discovery reports that frames of the negotiated size do not arrive; another login follows.
    SizeReduced,
    /// We lost our N_Port_ID.
    IdLost,
    /// We logged out.
    Closed,
}

/// Why a login failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginFailure {
    /// The last request was not answered.
    Timeout,
    /// The last request was refused.
    Rejected(LsRjt),
    /// The other port accepted with invalid names or sizes.
    Unusable,
}

/// A neighbour as [`LoginMachine::ports`](super::LoginMachine::ports) shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortView {
    /// The neighbour as discovery found it.
    pub neighbour: Neighbour,
    /// State of the login.
    pub state: PortState,
    /// The negotiated parameters, if it is logged in.
    pub login: Option<PortLogin>,
    /// Time at which it was found, or last sent a request or reply of its login.
    pub last_rx_ns: u64,
    /// The host that it belongs to, if it is known.
    pub host: Option<HostAddress>,
    /// The query for its host is in progress.
    pub host_query_pending: bool,
}
