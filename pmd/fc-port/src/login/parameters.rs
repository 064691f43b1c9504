//! Login parameters and their negotiation, and other payloads with our names.

use fcvi_frame::els::{
    ACCEPT, Adisc, Class3Parameters, ElsCommand, Login, LoginFeatures, Logo, RejectExplanation,
};
use fcvi_frame::fc::NPortId;
use fcvi_frame::fcoe::MIN_DATA_FIELD_BYTES;

use super::config::{LoginConfig, ms};
use super::event::PortLogin;
use super::frames::{ElsOut, Received};
use crate::Neighbour;

impl LoginConfig {
    /// Returns our parameters in PLOGI and its accept.
    fn own_parameters(&self) -> Login {
        let receive_bytes = self.own_data_field_bytes();
        Login {
            credit: 10,
            features: LoginFeatures::CONTINUOUS_OFFSET,
            receive_bytes,
            total_sequences: 255,
            relative_offset: 0x1F,
            e_d_tov: ms(self.e_d_tov_ns),
            port_name: self.port_name,
            node_name: self.node_name,
            class3: Class3Parameters {
                service: Class3Parameters::VALID | Class3Parameters::SEQUENTIAL,
                receive_bytes,
                concurrent_sequences: 255,
                open_sequences: 1,
            },
        }
    }

    /// Returns our parameters for a login, FLOGI or PLOGI, as the payload of this command: itself or
    /// its accept.
    pub(super) fn login_payload(
        &self,
        login: ElsCommand,
        command: ElsCommand,
    ) -> [u8; Login::BYTES] {
        let mut parameters = self.own_parameters();
        if login == ElsCommand::Flogi {
            parameters = for_flogi(&parameters);
        }
        let mut payload = [0; Login::BYTES];
        parameters.emit(command, &mut payload);
        payload
    }

    /// Returns the accept of an FLOGI, PLOGI or LOGO.
    pub(super) fn login_accept(&self, request: &Received<'_>) -> ElsOut {
        match request.command {
            ElsCommand::Flogi | ElsCommand::Plogi => {
                request.answer(&self.login_payload(request.command, ElsCommand::LsAcc))
            }
            _ => request.answer(&ACCEPT),
        }
    }

    /// Returns the LOGO of the port with this N_Port_ID, which is ours.
    pub(super) fn logo_payload(&self, id: NPortId) -> [u8; Logo::BYTES] {
        let mut payload = [0; Logo::BYTES];
        Logo {
            n_port_id: id,
            port_name: self.port_name,
        }
        .emit(&mut payload);
        payload
    }

    /// Returns the ADISC of the port with this N_Port_ID, which is ours.
    pub(super) fn adisc(&self, id: NPortId) -> Adisc {
        Adisc {
            hard_address: NPortId::default(),
            port_name: self.port_name,
            node_name: self.node_name,
            n_port_id: id,
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
fn for_flogi(own: &Login) -> Login {
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
