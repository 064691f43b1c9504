//! Login parameters, and their negotiation.

use fcvi_frame::els::{Class3Parameters, Login, LoginFeatures, RejectExplanation};
use fcvi_frame::fcoe::MIN_DATA_FIELD_BYTES;

use super::LoginMachine;
use super::config::ms;
use super::port::PortLogin;
use crate::Neighbour;

impl LoginMachine {
    /// Returns our parameters in PLOGI and its accept.
    pub(super) fn own_parameters(&self) -> Login {
        let receive_bytes = self.config.own_data_field_bytes();
        Login {
            credit: 10,
            features: LoginFeatures::CONTINUOUS_OFFSET,
            receive_bytes,
            total_sequences: 255,
            relative_offset: 0x1F,
            e_d_tov: ms(self.config.e_d_tov_ns),
            port_name: self.config.port_name,
            node_name: self.config.node_name,
            class3: Class3Parameters {
                service: Class3Parameters::VALID | Class3Parameters::SEQUENTIAL,
                receive_bytes,
                concurrent_sequences: 255,
                open_sequences: 1,
            },
        }
    }

    /// Negotiates a login with these parameters of a neighbour, or returns what is wrong with them.
    pub(super) fn negotiate(
        &self,
        neighbour: &Neighbour,
        theirs: &Login,
    ) -> Result<PortLogin, RejectExplanation> {
        if theirs.port_name != neighbour.port_name {
            return Err(RejectExplanation::InvalidPortName);
        }
        if !theirs.class3.is_valid() {
            return Err(RejectExplanation::Options);
        }
        let bytes = self
            .config
            .own_data_field_bytes()
            .min(theirs.receive_bytes)
            .min(theirs.class3.receive_bytes)
            .min(neighbour.data_field_bytes())
            & !3;
        if usize::from(bytes) < MIN_DATA_FIELD_BYTES {
            return Err(RejectExplanation::ReceiveSize);
        }
        Ok(PortLogin {
            id: neighbour.id,
            port_name: theirs.port_name,
            node_name: theirs.node_name,
            data_field_bytes: bytes,
            sequential: theirs.class3.is_sequential(),
            continuous_offset: theirs.features.contains(LoginFeatures::CONTINUOUS_OFFSET),
        })
    }
}

/// Returns the subset of PLOGI parameters that an FLOGI between VN_Ports carries.
pub(super) fn for_flogi(own: &Login) -> Login {
    Login {
        total_sequences: 0,
        relative_offset: 0,
        e_d_tov: 0,
        class3: Class3Parameters {
            service: own.class3.service,
            ..Class3Parameters::default()
        },
        ..*own
    }
}
