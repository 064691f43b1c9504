//! What a VI wants of its connections beyond the guide: for NICs that speak VI/TCP.

use vi_engine::ConnId;

use super::{ControlError, Outcome, poller_of};
use crate::choices::{Agreement, ViChoices};
use crate::device::Device;
use crate::driver::Driver;
use crate::vi::ViShared;

/// What the VI wants now.
pub(crate) fn choices(vi: &'static ViShared, handle: u64) -> Outcome<ViChoices> {
    let mut held = vi.device.hold();
    let poller = poller_of(&mut held, vi, handle)?;
    let tcp = poller.engine.vi_tcp();
    let choices = tcp.and_then(|tcp| tcp.choices(vi.index));
    choices.cloned().ok_or(ControlError::InvalidParameter)
}

/// Changes what the VI wants, all of it or nothing.
pub(crate) fn set_choices(vi: &'static ViShared, handle: u64, choices: &ViChoices) -> Outcome<()> {
    choices.check_for(&vi.device.config)?;
    let mut held = vi.device.hold();
    let poller = poller_of(&mut held, vi, handle)?;
    let tcp = poller.engine.vi_tcp_mut();
    let tcp = tcp.ok_or(ControlError::InvalidParameter)?;
    match tcp.set_choices(vi.index, choices) {
        true => Ok(()),
        false => Err(ControlError::InvalidState),
    }
}

/// What the VI and its peer have agreed on.
pub(crate) fn agreement(vi: &'static ViShared, handle: u64) -> Outcome<Agreement> {
    vi.device.poll();
    let mut held = vi.device.hold();
    let poller = poller_of(&mut held, vi, handle)?;
    let tcp = poller.engine.vi_tcp();
    let tcp = tcp.ok_or(ControlError::InvalidParameter)?;
    tcp.agreement(vi.index).ok_or(ControlError::InvalidState)
}

/// What a client told with its request.
pub(crate) fn request_security(device: &'static Device, conn: ConnId) -> Outcome<Vec<u8>> {
    let mut held = device.hold();
    let poller = held
        .as_mut()
        .and_then(Driver::engine_mut)
        .ok_or(ControlError::InvalidParameter)?;
    let tcp = poller.engine.vi_tcp();
    let tcp = tcp.ok_or(ControlError::InvalidParameter)?;
    tcp.security_of(conn).ok_or(ControlError::Timeout)
}
