//! Connection options of VI/TCP: calls of `viaduct.h`, an extension of the VIPL guide [VI/TCP 2.2.1].

use vipl::{ConnectionOptions, NegotiatedOptions, Result, VipError, provider};

use crate::connect::conn_from_c;
use crate::guard::{guarded, guarded_new};
use crate::pointer::{Out, read_in};
use crate::types::{RawHandle, VipBoolean, VipReturn, VipUlong};
use crate::vi::vi_from_c;

type Security = [u8; ConnectionOptions::MAX_SECURITY_BYTES];

/// Connection options of a VI, `viaduct_connection_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ViaductConnectionOptions {
    /// Sends wait for receives.
    pub flow_control: VipBoolean,
    /// Whether the transfer size is negotiated: the lesser of both applies.
    pub negotiate_mtu: VipBoolean,
    /// Used bytes of `security`.
    pub security_bytes: VipUlong,
    /// Sent to the peer.
    pub security: Security,
}

/// Negotiated options of a connection, `viaduct_negotiated_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ViaductNegotiatedOptions {
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

impl TryFrom<&ViaductConnectionOptions> for ConnectionOptions {
    type Error = VipError;

    fn try_from(options: &ViaductConnectionOptions) -> Result<Self> {
        let used = usize::try_from(options.security_bytes).ok();
        let security = used.and_then(|used| options.security.get(..used));
        Ok(Self {
            flow_control: options.flow_control != 0,
            negotiate_mtu: options.negotiate_mtu != 0,
            security: security.ok_or(VipError::InvalidParameter)?.to_vec(),
        })
    }
}

/// Returns the connection options of a VI.
///
/// # Safety
/// The pointer is as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_connection_options(
    vi_handle: RawHandle,
    options: *mut ViaductConnectionOptions,
) -> VipReturn {
    guarded("viaduct_get_connection_options", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(options) }?;
        let ConnectionOptions {
            flow_control,
            negotiate_mtu,
            security,
        } = provider::connection_options(vi_from_c(vi_handle))?;
        let (security_bytes, security) = security_to_c(&security)?;
        out.set(ViaductConnectionOptions {
            flow_control: flow_control.into(),
            negotiate_mtu: negotiate_mtu.into(),
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
pub unsafe extern "C" fn viaduct_set_connection_options(
    vi_handle: RawHandle,
    options: *const ViaductConnectionOptions,
) -> VipReturn {
    guarded_new("viaduct_set_connection_options", || {
        // SAFETY: NULL or readable, as the C caller guarantees.
        let options = unsafe { read_in(options) }?;
        provider::set_connection_options(
            vi_from_c(vi_handle),
            &ConnectionOptions::try_from(&options)?,
        )
    })
}

/// Returns the options that a Connected VI and its peer have negotiated.
///
/// # Safety
/// The pointer is as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_negotiated_options(
    vi_handle: RawHandle,
    options: *mut ViaductNegotiatedOptions,
) -> VipReturn {
    guarded("viaduct_get_negotiated_options", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(options) }?;
        let NegotiatedOptions {
            flow_control,
            max_transfer_bytes,
            security,
        } = provider::negotiated_options(vi_from_c(vi_handle))?;
        let (security_bytes, security) = security_to_c(&security)?;
        out.set(ViaductNegotiatedOptions {
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

/// Former name of [`viaduct_get_connection_options`], until version 0.2.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_choices(
    vi_handle: RawHandle,
    options: *mut ViaductConnectionOptions,
) -> VipReturn {
    // SAFETY: the caller's guarantee.
    unsafe { viaduct_get_connection_options(vi_handle, options) }
}

/// Former name of [`viaduct_set_connection_options`], until version 0.2.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_set_choices(
    vi_handle: RawHandle,
    options: *const ViaductConnectionOptions,
) -> VipReturn {
    // SAFETY: the caller's guarantee.
    unsafe { viaduct_set_connection_options(vi_handle, options) }
}

/// Former name of [`viaduct_get_negotiated_options`], until version 0.2.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_agreement(
    vi_handle: RawHandle,
    options: *mut ViaductNegotiatedOptions,
) -> VipReturn {
    // SAFETY: the caller's guarantee.
    unsafe { viaduct_get_negotiated_options(vi_handle, options) }
}
