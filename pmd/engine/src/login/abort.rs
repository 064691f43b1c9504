//! Exchanges that others abort.
//!
//! An ABTS names an exchange of the other port, or one of ours that it answers. Ours
//! of this machine is known; of all others only the VI engine can know, and it is told.
//! What neither knows is over, which is what the aborting port wants to hear: BA_ACC.

use fcvi_frame::MacAddress;
use fcvi_frame::bls::{BaAcc, BaRjt};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, RCtl};

use super::counters::LoginCounter;
use super::frames::{Carrier, ElsOut, abort_answer_header};
use super::port::LoginFailure;
use super::state::Event;
use super::{LoginEvent, LoginMachine};

impl LoginMachine {
    /// A frame of TYPE 0x00 came in an FCoE frame for us, from this Ethernet address.
    pub fn handle_bls(&mut self, now_ns: u64, source: MacAddress, fc: &FcHeader, payload: &[u8]) {
        if let Err(reason) = self.take_bls(now_ns, source, fc, payload) {
            self.counters.count(reason);
        }
        self.settle();
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
            // We abort nothing: identifiers that are given up are left to die.
            RCtl::BaAcc | RCtl::BaRjt => return Err(LoginCounter::DropStrayReply),
            _ => return Err(LoginCounter::DropBadHeader),
        }
        let Some(at) = self.by_id(fc.s_id) else {
            self.counters.count(LoginCounter::DropNotLoggedIn);
            return self.ask_to_log_out(now_ns, fc.s_id);
        };
        let is_originator = !fc.f_ctl.contains(FCtl::EXCHANGE_RESPONDER);
        let is_ours = !is_originator && self.exchanges.contains(fc.ox_id);
        if !self.has_room() {
            return Err(LoginCounter::DropNoRoom);
        }
        if is_ours {
            return self.abort_own(now_ns, at, fc);
        }
        if self.ports[at].is_some_and(|port| port.login.is_some()) {
            if self.aborts.len() >= usize::from(self.config.max_aborts) {
                return Err(LoginCounter::DropNoRoom);
            }
            self.aborts.push_back(LoginEvent::Aborted {
                id: fc.s_id,
                is_originator,
                ox_id: fc.ox_id,
                rx_id: fc.rx_id,
            });
        }
        self.accept_abort(fc);
        Ok(())
    }

    /// A request of ours that the other port will not answer: it counts as refused.
    fn abort_own(&mut self, now_ns: u64, at: usize, fc: &FcHeader) -> Result<(), LoginCounter> {
        let port = self.ports[at].as_mut();
        let open = port.filter(|port| port.ox_id == Some(fc.ox_id) && !port.unsent);
        let Some(port) = open else {
            let mut payload = [0; BaRjt::BYTES];
            BaRjt {
                reason: BaRjt::LOGICAL_ERROR,
                explanation: BaRjt::INVALID_EXCHANGE,
            }
            .emit(&mut payload);
            self.answer_abort(fc, RCtl::BaRjt, &payload);
            return Ok(());
        };
        port.ox_id = None;
        port.trouble = LoginFailure::Timeout;
        self.exchanges.end(now_ns, fc.ox_id);
        self.apply(now_ns, at, Event::Rejected, None);
        self.accept_abort(fc);
        Ok(())
    }

    /// The whole exchange is aborted.
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
