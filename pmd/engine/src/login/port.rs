//! One remote port.

use fcvi_frame::connect::HostAddress;
use fcvi_frame::els::LsRjt;
use fcvi_frame::fc::NPortId;
use fcvi_frame::{MacAddress, fcoe};

use super::doubt::Doubt;
use super::limit::PerSecond;
use super::state::PortState;

/// A neighbour, as discovery found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its N_Port_ID.
    pub id: NPortId,
    /// Its Port_Name.
    pub port_name: u64,
    /// Its Node_Name.
    pub node_name: u64,
    /// The Ethernet address of its interface.
    pub enode_mac: MacAddress,
    /// The longest FCoE frame, from the FCoE header on, that comes through to it; 2158 is the
    /// most that there is.
    pub max_fcoe_bytes: u16,
    /// It says that it speaks FC-VI: it belongs to a host with an address.
    pub speaks_fc_vi: bool,
}

impl Neighbour {
    /// The longest data field that comes through to it.
    pub(super) fn data_field_bytes(&self) -> u16 {
        fcoe::data_field_for_mtu(usize::from(self.max_fcoe_bytes)) as u16
    }
}

/// A port that is logged in, and what was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLogin {
    /// Its N_Port_ID.
    pub id: NPortId,
    /// Its Port_Name.
    pub port_name: u64,
    /// Its Node_Name.
    pub node_name: u64,
    /// The largest data field of a frame between us: what we, its two receive sizes and the
    /// way to it allow; a multiple of 4, at least 256.
    pub data_field_bytes: u16,
    /// It says that frames are delivered in order.
    pub sequential: bool,
    /// It says that its relative offsets increase continuously.
    pub continuous_offset: bool,
}

/// Why a login ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogoutReason {
    /// The other port sent LOGO.
    Logo,
    /// The other port logged in anew.
    LoggedInAgain,
    /// The other port is no neighbour any more, or has another N_Port_ID.
    Gone,
    /// Discovery says that frames of the agreed size do not come through; another login follows.
    Narrower,
    /// We lost our N_Port_ID.
    IdLost,
    /// We logged out.
    Closed,
}

/// Why a login came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginFailure {
    /// The last request was not answered.
    Timeout,
    /// The last request was refused.
    Rejected(LsRjt),
    /// The other port accepted with names or sizes that cannot be.
    Unusable,
}

/// A neighbour, and the login with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemotePort {
    pub(super) neighbour: Neighbour,
    /// When it was found, or an event came of a frame of it.
    pub(super) heard_ns: u64,
    pub(super) state: PortState,
    /// When the state's time is over.
    pub(super) deadline_ns: Option<u64>,
    /// How often the state's request was sent again.
    pub(super) tries: u8,
    /// The exchange of the state's request, while it is open.
    pub(super) ox_id: Option<u16>,
    /// The state's request has not been handed out.
    pub(super) unsent: bool,
    /// When the other port's last PLOGI was accepted.
    pub(super) plogi_ns: Option<u64>,
    pub(super) login: Option<PortLogin>,
    /// Whether it still is, as it behaves as if it were not.
    pub(super) doubt: Option<Doubt>,
    /// Tells logins with the same outcome apart.
    pub(super) generation: u64,
    /// What the caller was told: the login, and its generation.
    pub(super) told: Option<(PortLogin, u64)>,
    /// Why the login that the caller was told of ended.
    pub(super) ended: LogoutReason,
    /// The last refusal or unusable answer since the state changed.
    pub(super) trouble: LoginFailure,
    /// A failure that the caller was not told of.
    pub(super) failed: bool,
    /// No neighbour any more; stays until the caller was told.
    pub(super) gone: bool,
    /// LOGOs that it was sent because it is not logged in.
    pub(super) logos: PerSecond,
    pub(super) host: HostQuery,
}

/// Which host is a port of?
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostQuery {
    /// The answer.
    pub(super) host: Option<HostAddress>,
    pub(super) told: bool,
    /// FARP-REQ is to be sent.
    pub(super) unsent: bool,
    /// How often it was sent again.
    pub(super) tries: u8,
    /// How long the answer is waited for; `None` if it is not.
    pub(super) deadline_ns: Option<u64>,
    /// Nobody answered; it is asked again in a while.
    pub(super) failed: bool,
}

impl RemotePort {
    pub(super) fn new(now_ns: u64, neighbour: Neighbour) -> Self {
        Self {
            neighbour,
            heard_ns: now_ns,
            state: PortState::Known,
            deadline_ns: None,
            tries: 0,
            ox_id: None,
            unsent: false,
            plogi_ns: None,
            login: None,
            doubt: None,
            generation: 0,
            told: None,
            ended: LogoutReason::Gone,
            trouble: LoginFailure::Timeout,
            failed: false,
            gone: false,
            logos: PerSecond::default(),
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

/// What [`LoginMachine::ports`](super::LoginMachine::ports) shows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortView {
    /// As discovery found it.
    pub neighbour: Neighbour,
    /// Where the login stands.
    pub state: PortState,
    /// What was agreed, if it is logged in.
    pub login: Option<PortLogin>,
    /// When it was found, or last asked or answered something that its login depends on.
    pub heard_ns: u64,
    /// The host that it belongs to, if it said so.
    pub host: Option<HostAddress>,
    /// It was asked for its host, and is expected to answer.
    pub asks_for_host: bool,
}
