//! Requests and events due for a remote port, derived from its state.

use fcvi_frame::MacAddress;
use fcvi_frame::els::{ElsCommand, Login, Logo};
use fcvi_frame::fc::NPortId;

use super::frames::{Carrier, ElsOut, FipService, request_header};
use super::parameters::for_flogi;
use super::port::{PortLogin, RemotePort};
use super::state::PortState;
use super::{LoginEvent, LoginMachine};

impl LoginMachine {
    /// Returns the request of a port's state that was not handed out.
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

    /// Returns the end of the login with a port that is no neighbour any more, and frees its slot.
    pub(super) fn removed_port_event(&mut self, at: usize) -> Option<LoginEvent> {
        let removed = self.ports[at].as_mut().filter(|port| port.removed)?;
        let end = removed
            .reported
            .take()
            .map(|(reported, _)| removed.logged_out_event(&reported));
        self.ports[at] = None;
        end
    }

    pub(super) fn port_event(&mut self, at: usize) -> Option<LoginEvent> {
        let port = self.ports[at].as_mut()?;
        let current = port.login.map(|login| (login, port.generation));
        let reported = port.reported.map(|(_, generation)| generation);
        let changed = reported != current.map(|(_, generation)| generation);
        if changed && let Some((reported, _)) = port.reported.take() {
            return Some(port.logged_out_event(&reported));
        }
        if std::mem::take(&mut port.failure_pending) {
            return Some(LoginEvent::LoginFailed {
                port_name: port.neighbour.port_name,
                id: port.neighbour.id,
                reason: port.last_failure,
            });
        }
        let (login, _) = current?;
        if !changed {
            return self.host_event(at);
        }
        port.reported = current;
        Some(LoginEvent::LoggedIn(login))
    }
}

impl RemotePort {
    /// Returns the event for the end of a login that was reported.
    fn logged_out_event(&self, reported: &PortLogin) -> LoginEvent {
        LoginEvent::LoggedOut {
            port_name: reported.port_name,
            id: reported.id,
            reason: self.logout_reason,
        }
    }
}
