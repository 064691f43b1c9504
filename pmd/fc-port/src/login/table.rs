//! The table of remote ports.

use std::ops::Range;

use fcvi_frame::MacAddress;
use fcvi_frame::fc::{FcHeader, NPortId};

use super::context::Context;
use super::counters::LoginCounter;
use super::event::{LoginEvent, LogoutReason, PortLogin};
use super::frames::{Carrier, ElsOut};
use super::hosts::Hosts;
use super::login_verification::Doubt;
use super::port::RemotePort;
use super::state::Event;
use crate::Neighbour;

/// The remote ports, each in a slot of its own.
#[derive(Debug)]
pub(super) struct PortTable {
    ports: Vec<Option<RemotePort>>,
    /// The N_Port_ID of each slot of `ports`, so that a flood is looked up in few cache lines; 0 in
    /// free slots, and in those of removed ports.
    ids: Vec<NPortId>,
}

impl PortTable {
    pub(super) fn new(max_neighbours: u16) -> Self {
        let slots = usize::from(max_neighbours);
        Self {
            ports: vec![None; slots],
            ids: vec![NPortId::default(); slots],
        }
    }

    /// Returns the ports that are neighbours.
    pub(super) fn iter(&self) -> impl Iterator<Item = &RemotePort> {
        self.ports.iter().flatten().filter(|port| !port.removed)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RemotePort> {
        self.ports.iter_mut().flatten().filter(|port| !port.removed)
    }

    fn slot_of(&self, id: NPortId) -> Option<usize> {
        let none = NPortId::default();
        let known = |known: &NPortId| *known == id && id != none;
        self.ids.iter().position(known)
    }

    pub(super) fn by_id(&self, id: NPortId) -> Option<&RemotePort> {
        self.ports[self.slot_of(id)?].as_ref()
    }

    pub(super) fn by_id_mut(&mut self, id: NPortId) -> Option<&mut RemotePort> {
        let slot = self.slot_of(id)?;
        self.ports[slot].as_mut()
    }

    /// Returns the login with the port of this N_Port_ID.
    pub(super) fn login(&self, id: NPortId) -> Option<&PortLogin> {
        self.by_id(id)?.login.as_ref()
    }

    /// Checks source and destination addresses of a frame on every layer. `id`: our N_Port_ID.
    pub(super) fn check_addresses(
        &self,
        id: Option<NPortId>,
        carrier: Carrier,
        source: MacAddress,
        fc: &FcHeader,
        to_all: bool,
    ) -> Result<(), LoginCounter> {
        let id = id.ok_or(LoginCounter::DropNoId)?;
        if fc.d_id != id && !to_all {
            return Err(LoginCounter::DropNotOurs);
        }
        let invalid = [NPortId::default(), NPortId::BROADCAST, id];
        if invalid.contains(&fc.s_id) || source.is_multicast() {
            return Err(LoginCounter::DropBadSource);
        }
        let expected = match carrier {
            Carrier::Fcoe => Some(MacAddress::vn2vn(fc.s_id)),
            Carrier::Fip(_) => self.by_id(fc.s_id).map(|port| port.neighbour.enode_mac),
        };
        if expected.is_some_and(|expected| expected != source) {
            return Err(LoginCounter::DropWrongMac);
        }
        Ok(())
    }

    /// Adds or updates a neighbour and returns its port; `None` if the table is full, or if it would
    /// be this port.
    pub(super) fn add_or_update(
        &mut self,
        context: &mut Context,
        hosts: &mut Hosts,
        neighbour: &Neighbour,
    ) -> Option<&mut RemotePort> {
        let Some(id) = context.id else {
            context.counters.count(LoginCounter::DropNoId);
            return None;
        };
        let invalid = [id, NPortId::default(), NPortId::BROADCAST];
        if neighbour.port_name == context.config.port_name || invalid.contains(&neighbour.id) {
            context.counters.count(LoginCounter::DropBadSource);
            return None;
        }
        // A port has one N_Port_ID, and an N_Port_ID has one port: contradicting entries end.
        self.remove(context, hosts, LogoutReason::Gone, |known| {
            (known.port_name == neighbour.port_name) != (known.id == neighbour.id)
        });
        let mut is_reduced = false;
        if let Some(slot) = self.slot_of(neighbour.id)
            && let Some(port) = &mut self.ports[slot]
        {
            port.neighbour = *neighbour;
            let bytes = neighbour.data_field_bytes();
            is_reduced = port
                .login
                .is_some_and(|login| login.data_field_bytes > bytes);
            if !is_reduced {
                return self.ports[slot].as_mut();
            }
            self.remove_slot(context, slot, LogoutReason::SizeReduced);
        }
        let Some(slot) = self.ports.iter().position(Option::is_none) else {
            context.counters.count(LoginCounter::DropTableFull);
            return None;
        };
        self.ids[slot] = neighbour.id;
        let port = self.ports[slot].insert(RemotePort::new(context.now_ns, slot, *neighbour));
        if is_reduced && !context.is_closing {
            port.apply(context, Event::Ready, None);
        }
        Some(port)
    }

    /// Removes neighbours, also from the ports of their hosts.
    pub(super) fn remove(
        &mut self,
        context: &mut Context,
        hosts: &mut Hosts,
        reason: LogoutReason,
        is_gone: impl Fn(&Neighbour) -> bool,
    ) {
        for slot in 0..self.ports.len() {
            if let Some(port) = &self.ports[slot]
                && !port.removed
                && is_gone(&port.neighbour)
            {
                hosts.port_gone(port.neighbour.id);
                self.remove_slot(context, slot, reason);
            }
        }
    }

    /// Removes the neighbour of a slot, which is freed when its end has been reported.
    fn remove_slot(&mut self, context: &mut Context, slot: usize, reason: LogoutReason) {
        self.ids[slot] = NPortId::default();
        self.ports[slot].take_if(|port| port.remove(context, reason));
    }

    /// Returns the slots, each for a timeout of its own.
    pub(super) fn slots(&self) -> Range<usize> {
        0..self.ports.len()
    }

    /// Handles the timeout of the verification in this slot. Returns the N_Port_ID and the doubt if
    /// the port did not reply after all retries.
    pub(super) fn verification_timeout(
        &mut self,
        context: &mut Context,
        slot: usize,
    ) -> Option<(NPortId, Doubt)> {
        let port = self.ports[slot].as_mut()?;
        let doubt = port.verification.timeout(context, slot)?;
        Some((port.neighbour.id, doubt))
    }

    /// Returns the next request of a port's state, or ADISC. `id`: our N_Port_ID.
    pub(super) fn unsent_request(&mut self, context: &Context, id: NPortId) -> Option<ElsOut> {
        let config = &context.config;
        let request = |port: &mut RemotePort| port.unsent_request(config, id);
        let adisc = |port: &mut RemotePort| {
            let peer = port.neighbour.id;
            port.verification.unsent_adisc(config, id, peer)
        };
        let request = self.iter_mut().find_map(request);
        request.or_else(|| self.iter_mut().find_map(adisc))
    }

    /// Returns the next neighbour to which the query for its host is to be sent; it counts as sent.
    pub(super) fn unsent_query(&mut self) -> Option<Neighbour> {
        self.iter_mut()
            .find_map(|port| port.host.take_unsent().then_some(port.neighbour))
    }

    /// Returns the next event of a port, and frees the slot of a removed one.
    pub(super) fn event(&mut self) -> Option<LoginEvent> {
        // Ends of logins first: the port may be back already, in another slot.
        let mut slots = self.ports.iter_mut();
        let removed = slots.find_map(|slot| slot.take_if(|port| port.removed));
        let end = removed.and_then(|mut port| port.event());
        end.or_else(|| self.iter_mut().find_map(RemotePort::event))
    }
}
