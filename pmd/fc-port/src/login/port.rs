//! One remote port.

use fcvi_frame::els::LsRjt;
use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

use super::login_verification::LoginVerification;
use super::state::PortState;
use crate::Neighbour;
use crate::rate_limiter::RateLimiter;

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

/// A neighbour, and the login with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemotePort {
    pub(super) neighbour: Neighbour,
    /// Time at which it was found, or last sent a frame that caused an event.
    pub(super) last_rx_ns: u64,
    pub(super) state: PortState,
    /// Deadline of the state.
    pub(super) deadline_ns: Option<u64>,
    /// Retries of the state's request.
    pub(super) tries: u8,
    /// Open exchange of the state's request.
    pub(super) ox_id: Option<u16>,
    /// The state's request has not been handed out.
    pub(super) unsent: bool,
    /// When the other port's last PLOGI was accepted.
    pub(super) plogi_ns: Option<u64>,
    pub(super) login: Option<PortLogin>,
    /// Present while it is verified whether the port is still logged in.
    pub(super) verification: Option<LoginVerification>,
    /// When it last confirmed the login.
    pub(super) confirmed_ns: Option<u64>,
    /// Distinguishes logins with the same parameters.
    pub(super) generation: u64,
    /// The login that was reported to the caller, and its generation.
    pub(super) reported: Option<(PortLogin, u64)>,
    /// Why the reported login ended.
    pub(super) logout_reason: LogoutReason,
    /// The last refusal or invalid reply since the state changed.
    pub(super) last_failure: LoginFailure,
    /// A failure that was not reported yet.
    pub(super) failure_pending: bool,
    /// No neighbour any more; kept until its end was reported.
    pub(super) removed: bool,
    /// LOGOs that it was sent because it is not logged in.
    pub(super) logos: RateLimiter,
    pub(super) host: HostQuery,
}

/// The query for the host of a port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostQuery {
    /// The result.
    pub(super) host: Option<HostAddress>,
    pub(super) reported: bool,
    /// FARP-REQ is to be sent.
    pub(super) unsent: bool,
    /// Number of retries.
    pub(super) tries: u8,
    /// Deadline of the reply; `None` if none is expected.
    pub(super) deadline_ns: Option<u64>,
    /// The port did not reply; it is queried again later.
    pub(super) failed: bool,
}

impl RemotePort {
    pub(super) fn new(now_ns: u64, neighbour: Neighbour) -> Self {
        Self {
            neighbour,
            last_rx_ns: now_ns,
            state: PortState::Known,
            deadline_ns: None,
            tries: 0,
            ox_id: None,
            unsent: false,
            plogi_ns: None,
            login: None,
            verification: None,
            confirmed_ns: None,
            generation: 0,
            reported: None,
            logout_reason: LogoutReason::Gone,
            last_failure: LoginFailure::Timeout,
            failure_pending: false,
            removed: false,
            logos: RateLimiter::default(),
            host: HostQuery::default(),
        }
    }

    pub(super) fn is_logging_in(&self) -> bool {
        matches!(
            self.state,
            PortState::FlogiSent | PortState::PlogiWait | PortState::PlogiSent
        )
    }
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
