//! Exchanges that other ports abort.
//!
//! An ABTS names an exchange of the other port, or one of ours that it answers. A request of this
//! machine is given up, and answered with BA_ACC. Anything else cannot be undone here: link services
//! are answered at once, and an FC-4 protocol that does not handle aborts, such as FC-VI, ends its
//! messages by its own rules at the first missing frame. BA_ACC would be wrong for these, so they get
//! BA_RJT.

use fcvi_frame::MacAddress;
use fcvi_frame::bls::{BaAcc, BaRjt};
use fcvi_frame::fc::{FcHeader, FcType, RCtl};

use super::context::Context;
use super::counters::LoginCounter;
use super::frames::{Carrier, ElsOut, abort_answer_header};
use super::responder::Responder;
use super::table::PortTable;

/// Checks that a frame of TYPE 0x00 is an ABTS.
pub(super) fn check(fc: &FcHeader, payload: &[u8]) -> Result<(), LoginCounter> {
    if fc.fc_type != FcType::Bls || fc.df_ctl != 0 {
        return Err(LoginCounter::DropBadHeader);
    }
    match fc.r_ctl {
        RCtl::Abts if payload.is_empty() => Ok(()),
        // We send no ABTS: abandoned identifiers expire.
        RCtl::BaAcc | RCtl::BaRjt => Err(LoginCounter::DropStrayReply),
        _ => Err(LoginCounter::DropBadHeader),
    }
}

impl Responder {
    /// Answers an ABTS. That of a request of ours counts as its refusal.
    pub(super) fn take_abort(
        &mut self,
        context: &mut Context,
        ports: &mut PortTable,
        fc: &FcHeader,
    ) -> Result<(), LoginCounter> {
        if ports.by_id(fc.s_id).is_none() {
            return self.send_logo(context, ports, fc.s_id);
        }
        self.check_room(context, ports, fc.s_id)?;
        let answer = match ports.by_id_mut(fc.s_id) {
            Some(port) if context.is_own_exchange(fc) => {
                if port.abort(context, fc.ox_id) {
                    context.counters.count(LoginCounter::Aborts);
                    accept(fc)
                } else {
                    refuse(fc, BaRjt::LOGICAL_ERROR, BaRjt::INVALID_EXCHANGE)
                }
            }
            _ => refuse(fc, BaRjt::UNABLE_TO_PERFORM, BaRjt::NO_EXPLANATION),
        };
        self.answers.push_back(answer);
        Ok(())
    }
}

fn refuse(fc: &FcHeader, reason: u8, explanation: u8) -> ElsOut {
    let mut payload = [0; BaRjt::BYTES];
    BaRjt {
        reason,
        explanation,
    }
    .emit(&mut payload);
    answer(fc, RCtl::BaRjt, &payload)
}

/// Accepts the abort of the whole exchange.
fn accept(fc: &FcHeader) -> ElsOut {
    let mut payload = [0; BaAcc::BYTES];
    BaAcc {
        last_seq_id: None,
        ox_id: fc.ox_id,
        rx_id: fc.rx_id,
        low_seq_cnt: 0,
        high_seq_cnt: u16::MAX,
    }
    .emit(&mut payload);
    answer(fc, RCtl::BaAcc, &payload)
}

fn answer(fc: &FcHeader, r_ctl: RCtl, payload: &[u8]) -> ElsOut {
    let destination = MacAddress::vn2vn(fc.s_id);
    let header = abort_answer_header(fc, r_ctl);
    ElsOut::new(Carrier::Fcoe, destination, header, payload)
}
