//! Received frames: checked, and passed on to the part that handles them.

use fcvi_frame::MacAddress;
use fcvi_frame::els::ElsCommand;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};

use super::counters::LoginCounter;
use super::frames::{Carrier, Received};
use super::{LoginMachine, abort};

impl LoginMachine {
    /// Handles a frame of TYPE 0x01 for us or for all ports.
    ///
    /// `carrier` and `source`: the kind of frame, and its source Ethernet address. `payload`: its
    /// data field. The caller has checked the frame as such, including its CRC if it has one.
    pub fn handle_els(
        &mut self,
        now_ns: u64,
        carrier: Carrier,
        source: MacAddress,
        fc: &FcHeader,
        payload: &[u8],
    ) {
        self.context.now_ns = now_ns;
        let result = self.take_els(carrier, source, fc, payload);
        self.context.count_error(result);
        self.update_deadline();
    }

    /// Reports whether a frame of TYPE 0x00 is for this machine, not for the FC-4 protocol.
    #[must_use]
    pub fn owns_bls(&self, fc: &FcHeader) -> bool {
        !self.context.config.fc4.handles_aborts || self.context.is_own_exchange(fc)
    }

    /// Handles a frame of TYPE 0x00 that arrived in an FCoE frame for us, from this Ethernet
    /// address.
    pub fn handle_bls(&mut self, now_ns: u64, source: MacAddress, fc: &FcHeader, payload: &[u8]) {
        self.context.now_ns = now_ns;
        let (context, ports) = (&mut self.context, &mut self.ports);
        let result = ports
            .check_addresses(context.id, Carrier::Fcoe, source, fc, false)
            .and_then(|()| abort::check(fc, payload))
            .and_then(|()| self.responder.take_abort(context, ports, fc));
        context.count_error(result);
        self.update_deadline();
    }

    /// Sends a LOGO to a port that is not logged in and sent a frame other than a link service,
    /// which was dropped [FCVI P-14].
    pub fn refuse_unlogged(&mut self, now_ns: u64, s_id: NPortId) {
        self.context.now_ns = now_ns;
        let context = &mut self.context;
        if context.id.is_some_and(|id| id != s_id) && self.ports.login(s_id).is_none() {
            let result = self.responder.send_logo(context, &mut self.ports, s_id);
            context.count_error(result);
        }
        self.update_deadline();
    }

    fn take_els(
        &mut self,
        carrier: Carrier,
        source: MacAddress,
        fc: &FcHeader,
        payload: &[u8],
    ) -> Result<(), LoginCounter> {
        let command = ElsCommand::parse(payload).map_err(|_| LoginCounter::DropBadHeader)?;
        let to_all = fc.d_id == NPortId::BROADCAST && command == ElsCommand::FarpRequest;
        let id = self.context.id;
        self.ports
            .check_addresses(id, carrier, source, fc, to_all)?;
        let is_els = fc.fc_type == FcType::Els && fc.df_ctl == 0;
        if !is_els || !fc.f_ctl.contains(FCtl::END_SEQUENCE) {
            return Err(LoginCounter::DropBadHeader);
        }
        let received = Received {
            carrier,
            source,
            fc: *fc,
            command,
            payload,
        };
        let from_responder = fc.f_ctl.contains(FCtl::EXCHANGE_RESPONDER);
        match (fc.r_ctl, from_responder) {
            (RCtl::ElsReply, true) => self.take_reply(&received),
            (RCtl::ElsRequest, false) => self.take_request(&received),
            _ => Err(LoginCounter::DropBadHeader),
        }
    }

    fn take_request(&mut self, request: &Received<'_>) -> Result<(), LoginCounter> {
        request.check_carrier()?;
        let (context, ports) = (&mut self.context, &mut self.ports);
        self.responder.check_room(context, ports, request.fc.s_id)?;
        if request.command == ElsCommand::FarpReply {
            self.hosts.take_reply(context, ports, request)
        } else {
            self.responder.take_request(context, ports, request)
        }
    }

    /// Handles a reply: matched by port and OX_ID, or counted.
    fn take_reply(&mut self, reply: &Received<'_>) -> Result<(), LoginCounter> {
        let (context, ports, s_id) = (&mut self.context, &mut self.ports, reply.fc.s_id);
        let port = ports.by_id_mut(s_id);
        let port = port.filter(|_| context.exchanges.contains(reply.fc.ox_id));
        let port = port.ok_or(LoginCounter::DropStrayReply)?;
        if let Some(doubt) = port.take_reply(context, reply)? {
            self.responder.confirm_logout(context, ports, s_id, &doubt);
        }
        Ok(())
    }
}
