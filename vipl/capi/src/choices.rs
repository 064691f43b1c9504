//! What VI/TCP offers beyond the guide: the calls of `viaduct.h` on VIs [VI/TCP 2.2.1].

use vipl::{Agreement, Result, ViChoices, VipError, provider};

use crate::connect::conn_from_c;
use crate::guard::{guarded, guarded_new};
use crate::pointer::{Out, read_in};
use crate::types::{RawHandle, VipBoolean, VipReturn, VipUlong};
use crate::vi::vi_from_c;

type Security = [u8; ViChoices::MAX_SECURITY_BYTES];

/// What a VI wants of its connections, `viaduct_choices`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ViaductChoices {
    /// Sends wait for receives.
    pub flow_control: VipBoolean,
    /// The lesser transfer size of both counts.
    pub negotiates: VipBoolean,
    /// In use of `security`.
    pub security_bytes: VipUlong,
    /// What the peer is told.
    pub security: Security,
}

/// What two VIs have agreed on, `viaduct_agreement`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ViaductAgreement {
    /// Sends wait for receives.
    pub flow_control: VipBoolean,
    /// The longest message.
    pub max_transfer_bytes: VipUlong,
    /// In use of `security`.
    pub security_bytes: VipUlong,
    /// What the peer told.
    pub security: Security,
}

/// As many bytes as there are, and how many.
fn security_to_c(bytes: &[u8]) -> Result<(VipUlong, Security)> {
    let mut security = [0; ViChoices::MAX_SECURITY_BYTES];
    let room = security.get_mut(..bytes.len());
    room.ok_or(VipError::ErrorResource)?.copy_from_slice(bytes);
    Ok((bytes.len() as VipUlong, security))
}

impl TryFrom<&ViaductChoices> for ViChoices {
    type Error = VipError;

    fn try_from(choices: &ViaductChoices) -> Result<Self> {
        let used = usize::try_from(choices.security_bytes).ok();
        let security = used.and_then(|used| choices.security.get(..used));
        Ok(Self {
            flow_control: choices.flow_control != 0,
            negotiates: choices.negotiates != 0,
            security: security.ok_or(VipError::InvalidParameter)?.to_vec(),
        })
    }
}

/// What the VI wants of its connections.
///
/// # Safety
/// The pointer is as the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_choices(
    vi_handle: RawHandle,
    choices: *mut ViaductChoices,
) -> VipReturn {
    guarded("viaduct_get_choices", || {
        // SAFETY: NULL or writable, as the C caller vouches.
        let out = unsafe { Out::new(choices) }?;
        let ViChoices {
            flow_control,
            negotiates,
            security,
        } = provider::choices(vi_from_c(vi_handle))?;
        let (security_bytes, security) = security_to_c(&security)?;
        out.set(ViaductChoices {
            flow_control: flow_control.into(),
            negotiates: negotiates.into(),
            security_bytes,
            security,
        });
        Ok(())
    })
}

/// Changes what an Idle VI wants of its connections, all of it or nothing.
///
/// # Safety
/// The pointer is as the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_set_choices(
    vi_handle: RawHandle,
    choices: *const ViaductChoices,
) -> VipReturn {
    guarded_new("viaduct_set_choices", || {
        // SAFETY: NULL or readable, as the C caller vouches.
        let choices = unsafe { read_in(choices) }?;
        provider::set_choices(vi_from_c(vi_handle), &ViChoices::try_from(&choices)?)
    })
}

/// What a Connected VI and its peer have agreed on.
///
/// # Safety
/// The pointer is as the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_agreement(
    vi_handle: RawHandle,
    agreement: *mut ViaductAgreement,
) -> VipReturn {
    guarded("viaduct_get_agreement", || {
        // SAFETY: NULL or writable, as the C caller vouches.
        let out = unsafe { Out::new(agreement) }?;
        let Agreement {
            flow_control,
            max_transfer_bytes,
            security,
        } = provider::agreement(vi_from_c(vi_handle))?;
        let (security_bytes, security) = security_to_c(&security)?;
        out.set(ViaductAgreement {
            flow_control: flow_control.into(),
            max_transfer_bytes: VipUlong::from(max_transfer_bytes),
            security_bytes,
            security,
        });
        Ok(())
    })
}

/// What the client told with a request that is not answered yet.
///
/// # Safety
/// The pointers are as the crate's documentation says; `security` has room for
/// [`ViChoices::MAX_SECURITY_BYTES`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_request_security(
    conn_handle: RawHandle,
    security: *mut u8,
    security_bytes: *mut VipUlong,
) -> VipReturn {
    guarded("viaduct_get_request_security", || {
        // SAFETY: NULL or with so much room, as the C caller vouches.
        let out = unsafe { Out::new(security.cast::<Security>()) }?;
        // SAFETY: NULL or writable, as the C caller vouches.
        let bytes_out = unsafe { Out::new(security_bytes) }?;
        let told = provider::request_security(conn_from_c(conn_handle))?;
        let (bytes, security) = security_to_c(&told)?;
        out.set(security);
        bytes_out.set(bytes);
        Ok(())
    })
}
