//! Process login and logout: every page is answered.
//!
//! That of the FC-4 protocol is accepted as requested [FCVI P-14]. Of others only those of FCP and of
//! TYPE 0, for all protocols, are accepted, without an image pair and without a function, as between
//! two initiators: a refusal would make libfc log in again and again.

use fcvi_frame::els::{
    ElsCommand, MAX_PAYLOAD_BYTES, PageFlags, ProcessLogin, ResponseCode, ServiceParameterPage,
};
use fcvi_frame::fc::FcType;

use super::frames::{ElsOut, Received};
use super::refusal::{Refused, malformed};
use crate::Fc4;

/// TYPE 0: all protocols.
const ALL_PROTOCOLS: FcType = FcType::Bls;

/// Answers a PRLI or a PRLO of a logged-in port.
pub(super) fn answer(request: &Received<'_>, fc4: &Fc4) -> Result<ElsOut, Refused> {
    let asked = ProcessLogin::parse(request.command, request.payload).map_err(|_| malformed())?;
    let is_login = request.command == ElsCommand::Prli;
    let response = |page: ServiceParameterPage| {
        if is_login {
            login_response(&page, fc4)
        } else {
            logout_response(&page)
        }
    };
    let mut payload = [0; MAX_PAYLOAD_BYTES];
    let pages = asked.pages().map(response);
    let bytes = ProcessLogin::emit(ElsCommand::LsAcc, pages, &mut payload);
    Ok(request.answer(&payload[..bytes]))
}

fn login_response(page: &ServiceParameterPage, fc4: &Fc4) -> ServiceParameterPage {
    let image_pair = page.flags.intersection(PageFlags::IMAGE_PAIR);
    let is_ours = page.fc_type == fc4.fc_type;
    let (flags, response) = match page.fc_type {
        _ if is_ours => (image_pair, ResponseCode::Executed),
        FcType::Fcp | ALL_PROTOCOLS => (PageFlags(0), ResponseCode::Executed),
        _ if image_pair == PageFlags::IMAGE_PAIR => (PageFlags(0), ResponseCode::NotPossible),
        _ => (PageFlags(0), ResponseCode::InvalidParameters),
    };
    ServiceParameterPage {
        type_extension: page.type_extension,
        flags,
        response,
        parameters: if is_ours { fc4.service_parameters } else { 0 },
        ..ServiceParameterPage::new(page.fc_type)
    }
}

/// No state of a process login is kept: a logout always succeeds.
fn logout_response(page: &ServiceParameterPage) -> ServiceParameterPage {
    ServiceParameterPage {
        type_extension: page.type_extension,
        response: ResponseCode::Executed,
        ..ServiceParameterPage::new(page.fc_type)
    }
}
