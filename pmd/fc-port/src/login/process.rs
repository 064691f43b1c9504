//! Process login and logout: every page is answered.
//!
//! FC-VI needs no process login [FCVI P-14] and accepts what is requested. FCP is not supported:
//! its page is accepted without an image pair and without a function, as between two initiators. A
//! refusal would make libfc log in again and again.

use fcvi_frame::els::{
    ElsCommand, MAX_PAYLOAD_BYTES, PageFlags, ProcessLogin, ResponseCode, ServiceParameterPage,
};
use fcvi_frame::fc::FcType;

use super::frames::{ElsOut, Received};
use super::request::{Refused, malformed};

/// TYPE 0: all protocols.
const ALL_PROTOCOLS: FcType = FcType::Bls;

/// Answers a PRLI or a PRLO of a logged-in port.
pub(super) fn answer(request: &Received<'_>) -> Result<ElsOut, Refused> {
    let asked = ProcessLogin::parse(request.command, request.payload).map_err(|_| malformed())?;
    let response = if request.command == ElsCommand::Prli {
        login_response
    } else {
        logout_response
    };
    let mut payload = [0; MAX_PAYLOAD_BYTES];
    let pages = asked.pages().map(|page| response(&page));
    let bytes = ProcessLogin::emit(ElsCommand::LsAcc, pages, &mut payload);
    Ok(request.answer(&payload[..bytes]))
}

fn login_response(page: &ServiceParameterPage) -> ServiceParameterPage {
    let image_pair = page.flags.intersection(PageFlags::IMAGE_PAIR);
    let (flags, response) = match page.fc_type {
        FcType::Vi => (image_pair, ResponseCode::Executed),
        FcType::Fcp | ALL_PROTOCOLS => (PageFlags(0), ResponseCode::Executed),
        _ if image_pair == PageFlags::IMAGE_PAIR => (PageFlags(0), ResponseCode::NotPossible),
        _ => (PageFlags(0), ResponseCode::InvalidParameters),
    };
    ServiceParameterPage {
        type_extension: page.type_extension,
        flags,
        response,
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
