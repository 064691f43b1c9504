//! Identity, timers and limits of the login machine.

use fcvi_frame::connect::HostAddress;
use fcvi_frame::{fcoe, profile};

const NS_PER_MS: u64 = 1_000_000;

/// The first OX_ID of link services; those before are the engine's.
pub const FIRST_OX_ID: u16 = 0xF800;

/// What a [`LoginMachine`](super::LoginMachine) must know before the first frame. No time is 0.
#[derive(Clone, Debug)]
pub struct LoginConfig {
    /// Our Port_Name, which no other port has.
    pub port_name: u64,
    /// Our Node_Name.
    pub node_name: u64,
    /// Our host address, for which FARP requests are answered.
    pub host: HostAddress,
    /// The largest data field of a frame that we send or accept, 256 to 2112.
    pub data_field_bytes: u16,
    /// E_D_TOV, told to others.
    pub e_d_tov_ns: u64,
    /// R_A_TOV, told to others. The OX_ID of a request is not used again for twice as long, a PLOGI
    /// or LOGO that was accepted is not believed again for so long, and a PLOGI that repeats a
    /// login is taken for a retry of it.
    pub r_a_tov_ns: u64,
    /// How long an answer may take. The port that waits for a PLOGI waits twice as long.
    pub request_timeout_ns: u64,
    /// How often an unanswered or refused request is sent again.
    pub retries: u8,
    /// How long after a LOGO of the other port another login is tried.
    pub relogin_ns: u64,
    /// How long after a login that failed another one is tried.
    pub give_up_ns: u64,
    /// How long a FARP-REQ waits for its FARP-REPLYs.
    pub farp_timeout_ns: u64,
    /// How often a FARP-REQ that nobody answered is sent again.
    pub farp_retries: u8,
    /// How long the answers are believed.
    pub farp_lifetime_ns: u64,
    /// Neighbours, at most.
    pub max_neighbours: u16,
    /// Answers that wait for [`poll_outbound`](super::LoginMachine::poll_outbound), at most; a
    /// request that would need one more is dropped.
    pub max_answers: u16,
    /// Host addresses that are asked for or remembered, at most.
    pub max_hosts: u16,
    /// N_Ports of one host, at most.
    pub max_ports_per_host: u16,
    /// LOGOs sent to one neighbour in a second because it is not logged in, at most.
    pub max_logos_per_second: u32,
    /// Answers to ports that are not neighbours in a second, to all of them together, at most.
    pub max_stranger_answers_per_second: u32,
    /// The first of our OX_IDs. Nobody else may use them for this N_Port.
    pub first_ox_id: u16,
    /// How many they are; 0xFFFF is never one of them.
    pub ox_ids: u16,
}

impl LoginConfig {
    /// The defaults for this identity.
    #[must_use]
    pub fn new(port_name: u64, node_name: u64, host: HostAddress) -> Self {
        Self {
            port_name,
            node_name,
            host,
            data_field_bytes: fcoe::MAX_DATA_FIELD_BYTES as u16,
            e_d_tov_ns: u64::from(profile::E_D_TOV_MS) * NS_PER_MS,
            r_a_tov_ns: u64::from(profile::R_A_TOV_MS) * NS_PER_MS,
            request_timeout_ns: u64::from(profile::E_D_TOV_MS) * NS_PER_MS,
            retries: 3,
            relogin_ns: 1000 * NS_PER_MS,
            give_up_ns: u64::from(profile::R_A_TOV_MS) * NS_PER_MS,
            farp_timeout_ns: 500 * NS_PER_MS,
            farp_retries: 3,
            farp_lifetime_ns: 30_000 * NS_PER_MS,
            max_neighbours: 256,
            max_answers: 64,
            max_hosts: 64,
            max_ports_per_host: 64,
            max_logos_per_second: 1,
            max_stranger_answers_per_second: 16,
            first_ox_id: FIRST_OX_ID,
            ox_ids: u16::MAX - FIRST_OX_ID,
        }
    }

    /// `data_field_bytes` within its limits, a multiple of 4.
    pub(super) fn own_data_field_bytes(&self) -> u16 {
        let (min, max) = (fcoe::MIN_DATA_FIELD_BYTES, fcoe::MAX_DATA_FIELD_BYTES);
        self.data_field_bytes.clamp(min as u16, max as u16) & !3
    }
}

/// For the fields that are told in milliseconds.
pub(super) fn ms(ns: u64) -> u32 {
    u32::try_from(ns / NS_PER_MS).unwrap_or(u32::MAX)
}
