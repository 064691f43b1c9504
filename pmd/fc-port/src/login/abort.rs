//! Exchanges that other ports abort.
//!
//! An ABTS names an exchange of the other port, or one of ours that it answers. A request of this
//! machine is given up, and answered with BA_ACC. Anything else cannot be undone here: link services
//! are answered at once, and an FC-4 protocol that does not handle aborts, such as FC-VI, ends its
//! messages by its own rules at the first missing frame. BA_ACC would be wrong for these, so they get
//! BA_RJT.

use fcvi_frame::MacAddress;
use fcvi_frame::bls::{BaAcc, BaRjt};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, RCtl};

use super::LoginMachine;
use super::counters::LoginCounter;
use super::frames::{Carrier, ElsOut, abort_answer_header};
use super::port::LoginFailure;
use super::state::Event;

impl LoginMachine {
    /// Reports whether a frame of TYPE 0x00 is for this machine, not for the FC-4 protocol.
    #[must_use]
    pub fn owns_bls(&self, fc: &FcHeader) -> bool {
        !self.config.fc4.handles_aborts || self.is_own_exchange(fc)
    }

    /// Reports whether a frame of another port names an exchange that this machine opened.
    fn is_own_exchange(&self, fc: &FcHeader) -> bool {
        fc.f_ctl.contains(FCtl::EXCHANGE_RESPONDER) && self.exchanges.contains(fc.ox_id)
    }

    /// Handles a frame of TYPE 0x00 that arrived in an FCoE frame for us, from this Ethernet
    /// address.
    pub fn handle_bls(&mut self, now_ns: u64, source: MacAddress, fc: &FcHeader, payload: &[u8]) {
        if let Err(reason) = self.take_bls(now_ns, source, fc, payload) {
            self.counters.count(reason);
        }
        self.update_deadline();
    }

    fn take_bls(
        &mut self,
        now_ns: u64,
        source: MacAddress,
        fc: &FcHeader,
        payload: &[u8],
    ) -> Result<(), LoginCounter> {
        self.check_addresses(Carrier::Fcoe, source, fc, false)?;
        if fc.fc_type != FcType::Bls || fc.df_ctl != 0 {
            return Err(LoginCounter::DropBadHeader);
        }
        match fc.r_ctl {
            RCtl::Abts if payload.is_empty() => {}
            // We send no ABTS: abandoned identifiers expire.
            RCtl::BaAcc | RCtl::BaRjt => return Err(LoginCounter::DropStrayReply),
            _ => return Err(LoginCounter::DropBadHeader),
        }
        let Some(at) = self.by_id(fc.s_id) else {
            self.counters.count(LoginCounter::DropNotLoggedIn);
            return self.send_logo(now_ns, fc.s_id);
        };
        if !self.has_room_for(fc.s_id) {
            return Err(LoginCounter::DropNoRoom);
        }
        if self.is_own_exchange(fc) {
            self.abort_own(now_ns, at, fc);
        } else {
            self.refuse_abort(fc, BaRjt::UNABLE_TO_PERFORM, BaRjt::NO_EXPLANATION);
        }
        Ok(())
    }

    /// Aborts a request of ours, which counts as refused.
    fn abort_own(&mut self, now_ns: u64, at: usize, fc: &FcHeader) {
        let port = self.ports[at].as_mut();
        let open = port.filter(|port| port.ox_id == Some(fc.ox_id) && !port.unsent);
        let Some(port) = open else {
            self.refuse_abort(fc, BaRjt::LOGICAL_ERROR, BaRjt::INVALID_EXCHANGE);
            return;
        };
        port.ox_id = None;
        port.last_failure = LoginFailure::Timeout;
        self.exchanges.end(now_ns, fc.ox_id);
        self.apply(now_ns, at, Event::Rejected, None);
        self.accept_abort(fc);
    }

    fn refuse_abort(&mut self, fc: &FcHeader, reason: u8, explanation: u8) {
        let mut payload = [0; BaRjt::BYTES];
        BaRjt {
            reason,
            explanation,
        }
        .emit(&mut payload);
        self.answer_abort(fc, RCtl::BaRjt, &payload);
    }

    /// Accepts the abort of the whole exchange.
    fn accept_abort(&mut self, fc: &FcHeader) {
        self.counters.count(LoginCounter::Aborts);
        let mut payload = [0; BaAcc::BYTES];
        BaAcc {
            last_seq_id: None,
            ox_id: fc.ox_id,
            rx_id: fc.rx_id,
            low_seq_cnt: 0,
            high_seq_cnt: u16::MAX,
        }
        .emit(&mut payload);
        self.answer_abort(fc, RCtl::BaAcc, &payload);
    }

    fn answer_abort(&mut self, fc: &FcHeader, r_ctl: RCtl, payload: &[u8]) {
        let destination = MacAddress::vn2vn(fc.s_id);
        let header = abort_answer_header(fc, r_ctl);
        let answer = ElsOut::new(Carrier::Fcoe, destination, header, payload);
        self.answers.push_back(answer);
    }
}
