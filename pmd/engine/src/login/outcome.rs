//! What there is to send and to tell of a remote port, found in its state.

use fcvi_frame::MacAddress;
use fcvi_frame::els::{ElsCommand, Login, Logo};
use fcvi_frame::fc::NPortId;

use super::frames::{Carrier, ElsOut, FipService, request_header};
use super::parameters::for_flogi;
use super::port::{PortLogin, RemotePort};
use super::state::PortState;
use super::{LoginEvent, LoginMachine};

impl LoginMachine {
    /// The request of a port's state that was not handed out.
    pub(super) fn unsent_request(&mut self, id: NPortId) -> Option<ElsOut> {
        let own = self.own_parameters();
        let port = self.ports.iter_mut().flatten().find(|port| port.unsent)?;
        port.unsent = false;
        let header = request_header(id, port.neighbour.id, port.ox_id?);
        let in_fip = |service, payload: &[u8]| {
            ElsOut::new(
                Carrier::Fip(service),
                port.neighbour.enode_mac,
                header,
                payload,
            )
        };
        match port.state {
            PortState::FlogiSent => {
                let mut payload = [0; Login::BYTES];
                for_flogi(&own).emit(ElsCommand::Flogi, &mut payload);
                Some(in_fip(FipService::Flogi, &payload))
            }
            PortState::PlogiSent => {
                let mut payload = [0; Login::BYTES];
                own.emit(ElsCommand::Plogi, &mut payload);
                let destination = MacAddress::vn2vn(port.neighbour.id);
                Some(ElsOut::new(Carrier::Fcoe, destination, header, &payload))
            }
            PortState::LogoSent => {
                let mut payload = [0; Logo::BYTES];
                Logo {
                    n_port_id: id,
                    port_name: own.port_name,
                }
                .emit(&mut payload);
                Some(in_fip(FipService::Logo, &payload))
            }
            PortState::Known
            | PortState::PlogiWait
            | PortState::LoggedIn
            | PortState::LoggedOut => None,
        }
    }

    /// The end of a login with a port that is no neighbour any more; its place is free then.
    pub(super) fn news_of_gone(&mut self, at: usize) -> Option<LoginEvent> {
        let gone = self.ports[at].as_mut().filter(|port| port.gone)?;
        let end = gone.told.take().map(|(told, _)| gone.end_of(&told));
        self.ports[at] = None;
        end
    }

    pub(super) fn news_of_port(&mut self, at: usize) -> Option<LoginEvent> {
        let port = self.ports[at].as_mut()?;
        let current = port.login.map(|login| (login, port.generation));
        let told = port.told.map(|(_, generation)| generation);
        let changed = told != current.map(|(_, generation)| generation);
        if changed && let Some((told, _)) = port.told.take() {
            return Some(port.end_of(&told));
        }
        if std::mem::take(&mut port.failed) {
            return Some(LoginEvent::LoginFailed {
                port_name: port.neighbour.port_name,
                id: port.neighbour.id,
                reason: port.trouble,
            });
        }
        let (login, _) = current?;
        if !changed {
            return self.news_of_query(at);
        }
        port.told = current;
        Some(LoginEvent::LoggedIn(login))
    }
}

impl RemotePort {
    /// The end of a login that was told.
    fn end_of(&self, told: &PortLogin) -> LoginEvent {
        LoginEvent::LoggedOut {
            port_name: told.port_name,
            id: told.id,
            reason: self.ended,
        }
    }
}
