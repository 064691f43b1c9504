//! Identity, timers and limits of the login machine.

use fcvi_frame::{fcoe, profile};
use vi_types::HostAddress;

use crate::Fc4;
use crate::time::NS_PER_MS;

/// Configuration of a [`LoginMachine`](super::LoginMachine). No time is 0.
#[derive(Clone, Debug)]
pub struct LoginConfig {
    /// Our Port_Name, which is unique.
    pub port_name: u64,
    /// Our Node_Name.
    pub node_name: u64,
    /// The FC-4 protocol that uses the logins.
    pub fc4: Fc4,
    /// Our host address, for which FARP requests are answered. `None`: the protocol has no host
    /// addresses, and those of other ports are not queried.
    pub host: Option<HostAddress>,
    /// Maximum data field of frames sent and accepted in bytes, 256 to 2112.
    pub data_field_bytes: u16,
    /// E_D_TOV, as advertised.
    pub e_d_tov_ns: u64,
    /// R_A_TOV, as advertised. The OX_ID of a request is not used again for twice as long; a copy
    /// of an accepted PLOGI is rejected for as long; and within it a PLOGI that repeats a login is
    /// taken for a retry.
    pub r_a_tov_ns: u64,
    /// Timeout of a reply. The port that waits for a PLOGI waits twice as long.
    pub request_timeout_ns: u64,
    /// Maximum retries of an unanswered or refused request.
    pub retries: u8,
    /// Timeout of the reply to an ADISC that verifies a login.
    pub verification_timeout_ns: u64,
    /// Minimum interval from a login that was confirmed to its next verification.
    pub verification_interval_ns: u64,
    /// Delay from a LOGO of the other port to the next login.
    pub relogin_ns: u64,
    /// Delay from a failed login to the next one.
    pub give_up_ns: u64,
    /// Timeout of the FARP-REPLYs to a FARP-REQ.
    pub farp_timeout_ns: u64,
    /// Maximum retries of an unanswered FARP-REQ.
    pub farp_retries: u8,
    /// Lifetime of resolved addresses.
    pub farp_lifetime_ns: u64,
    /// Maximum neighbours.
    pub max_neighbours: u16,
    /// Maximum answers queued for [`poll_outbound`](super::LoginMachine::poll_outbound); a request
    /// that needs one more is dropped. Half of them for one port, and half for all that are not
    /// logged in.
    pub max_answers: u16,
    /// Maximum host addresses being resolved or cached.
    pub max_hosts: u16,
    /// Maximum N_Ports per host.
    pub max_ports_per_host: u16,
    /// Maximum LOGOs per second to one neighbour that is not logged in.
    pub max_logos_per_second: u32,
    /// Maximum answers per second to ports that are not neighbours, all together.
    pub max_non_neighbour_answers_per_second: u32,
    /// First of our OX_IDs. No other component may use them for this N_Port.
    pub first_ox_id: u16,
    /// Number of our OX_IDs; 0xFFFF is never one of them.
    pub ox_ids: u16,
}

impl LoginConfig {
    /// Returns the defaults for this identity.
    #[must_use]
    pub fn new(port_name: u64, node_name: u64, fc4: Fc4, host: Option<HostAddress>) -> Self {
        Self {
            port_name,
            node_name,
            fc4,
            host,
            data_field_bytes: fcoe::MAX_DATA_FIELD_BYTES as u16,
            e_d_tov_ns: u64::from(profile::E_D_TOV_MS) * NS_PER_MS,
            r_a_tov_ns: u64::from(profile::R_A_TOV_MS) * NS_PER_MS,
            request_timeout_ns: u64::from(profile::E_D_TOV_MS) * NS_PER_MS,
            retries: 3,
            verification_timeout_ns: 500 * NS_PER_MS,
            verification_interval_ns: 1000 * NS_PER_MS,
            relogin_ns: 1000 * NS_PER_MS,
            give_up_ns: u64::from(profile::R_A_TOV_MS) * NS_PER_MS,
            farp_timeout_ns: 500 * NS_PER_MS,
            farp_retries: 3,
            farp_lifetime_ns: 30_000 * NS_PER_MS,
            max_neighbours: 256,
            max_answers: 128,
            max_hosts: 64,
            max_ports_per_host: 64,
            max_logos_per_second: 1,
            max_non_neighbour_answers_per_second: 16,
            first_ox_id: profile::FIRST_LOGIN_OX_ID,
            ox_ids: u16::MAX - profile::FIRST_LOGIN_OX_ID,
        }
    }

    /// Returns `data_field_bytes` within its limits, a multiple of 4.
    pub(super) fn own_data_field_bytes(&self) -> u16 {
        let (min, max) = (fcoe::MIN_DATA_FIELD_BYTES, fcoe::MAX_DATA_FIELD_BYTES);
        self.data_field_bytes.clamp(min as u16, max as u16) & !3
    }
}

/// Converts nanoseconds to milliseconds, for fields of that unit.
pub(super) fn ms(ns: u64) -> u32 {
    u32::try_from(ns / NS_PER_MS).unwrap_or(u32::MAX)
}
