//! Connection options of VI/TCP: calls of `viaduct.h`, an extension of the VIPL guide [VI/TCP 2.2.1].

use vipl::{ConnectionOptions, NegotiatedOptions, Result, VipError, provider};

use crate::connect::conn_from_c;
use crate::guard::{guarded, guarded_new};
use crate::pointer::{Out, read_in};
use crate::types::{RawHandle, VipBoolean, VipReturn, VipUlong};
use crate::vi::vi_from_c;

type Security = [u8; ConnectionOptions::MAX_SECURITY_BYTES];

/// Connection options of a VI, `viaduct_choices`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ViaductChoices {
    /// Sends wait for receives.
    pub flow_control: VipBoolean,
    /// Whether the transfer size is negotiated: the lesser of both applies.
    pub negotiates: VipBoolean,
    /// Used bytes of `security`.
    pub security_bytes: VipUlong,
    /// Sent to the peer.
    pub security: Security,
}

/// Negotiated options of a connection, `viaduct_agreement`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ViaductAgreement {
    /// Sends wait for receives.
    pub flow_control: VipBoolean,
    /// The longest message, in bytes.
    pub max_transfer_bytes: VipUlong,
    /// Used bytes of `security`.
    pub security_bytes: VipUlong,
    /// Received from the peer.
    pub security: Security,
}

/// Copies security information into its C form: the length, then the bytes.
fn security_to_c(bytes: &[u8]) -> Result<(VipUlong, Security)> {
    let mut security = [0; ConnectionOptions::MAX_SECURITY_BYTES];
    let used = security.get_mut(..bytes.len());
    used.ok_or(VipError::ErrorResource)?.copy_from_slice(bytes);
    Ok((bytes.len() as VipUlong, security))
}

impl TryFrom<&ViaductChoices> for ConnectionOptions {
    type Error = VipError;

    fn try_from(choices: &ViaductChoices) -> Result<Self> {
        let used = usize::try_from(choices.security_bytes).ok();
        let security = used.and_then(|used| choices.security.get(..used));
        Ok(Self {
            flow_control: choices.flow_control != 0,
            negotiate_mtu: choices.negotiates != 0,
            security: security.ok_or(VipError::InvalidParameter)?.to_vec(),
        })
    }
}

/// Returns the connection options of a VI.
///
/// # Safety
/// The pointer is as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_choices(
    vi_handle: RawHandle,
    choices: *mut ViaductChoices,
) -> VipReturn {
    guarded("viaduct_get_choices", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(choices) }?;
        let ConnectionOptions {
            flow_control,
            negotiate_mtu,
            security,
        } = provider::connection_options(vi_from_c(vi_handle))?;
        let (security_bytes, security) = security_to_c(&security)?;
        out.set(ViaductChoices {
            flow_control: flow_control.into(),
            negotiates: negotiate_mtu.into(),
            security_bytes,
            security,
        });
        Ok(())
    })
}

/// Replaces the connection options of an Idle VI.
///
/// # Safety
/// The pointer is as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_set_choices(
    vi_handle: RawHandle,
    choices: *const ViaductChoices,
) -> VipReturn {
    guarded_new("viaduct_set_choices", || {
        // SAFETY: NULL or readable, as the C caller guarantees.
        let choices = unsafe { read_in(choices) }?;
        provider::set_connection_options(
            vi_from_c(vi_handle),
            &ConnectionOptions::try_from(&choices)?,
        )
    })
}

/// Returns the options that a Connected VI and its peer have negotiated.
///
/// # Safety
/// The pointer is as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_agreement(
    vi_handle: RawHandle,
    agreement: *mut ViaductAgreement,
) -> VipReturn {
    guarded("viaduct_get_agreement", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(agreement) }?;
        let NegotiatedOptions {
            flow_control,
            max_transfer_bytes,
            security,
        } = provider::negotiated_options(vi_from_c(vi_handle))?;
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

/// Returns the security information of a pending connection request.
///
/// # Safety
/// The pointers are as the crate's documentation requires; `security` has room for
/// [`ConnectionOptions::MAX_SECURITY_BYTES`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_request_security(
    conn_handle: RawHandle,
    security: *mut u8,
    security_bytes: *mut VipUlong,
) -> VipReturn {
    guarded("viaduct_get_request_security", || {
        // SAFETY: NULL or with room for `Security`, as the C caller guarantees.
        let out = unsafe { Out::new(security.cast::<Security>()) }?;
        // SAFETY: NULL or writable, as the C caller guarantees.
        let bytes_out = unsafe { Out::new(security_bytes) }?;
        let received = provider::request_security(conn_from_c(conn_handle))?;
        let (bytes, security) = security_to_c(&received)?;
        out.set(security);
        bytes_out.set(bytes);
        Ok(())
    })
}
