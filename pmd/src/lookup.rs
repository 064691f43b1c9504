//! VIs and completion queues by their handles, together with their NICs.

use std::ops::Deref;

use vi_core::handle::RawHandle;
use vi_core::vi::{CqShared, ViShared};

use crate::device::{Device, device_of};

/// An object and its NIC.
pub(crate) struct Found<T: 'static> {
    pub(crate) device: &'static Device,
    pub(crate) shared: &'static T,
}

/// A VI and its NIC.
pub(crate) type Vi = Found<ViShared>;

/// A completion queue and its NIC.
pub(crate) type Cq = Found<CqShared>;

impl<T> Clone for Found<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Found<T> {}

impl<T> Deref for Found<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.shared
    }
}

/// Returns the object that has or had this handle: the caller must check that it is live.
#[inline]
pub(crate) fn vi_at(handle: u64) -> Option<Vi> {
    let raw = RawHandle::unpack(handle);
    let device = device_of(raw.device)?;
    let shared = device.shared.vi_at(raw)?;
    Some(Vi { device, shared })
}

/// Returns the VI with this handle.
#[inline]
pub(crate) fn vi_of(handle: u64) -> Option<Vi> {
    vi_at(handle).filter(|vi| vi.is_live(handle))
}

/// Returns the object that has or had this handle: the caller must check that it is live.
#[inline]
pub(crate) fn cq_at(handle: u64) -> Option<Cq> {
    let raw = RawHandle::unpack(handle);
    let device = device_of(raw.device)?;
    let shared = device.shared.cq_at(raw)?;
    Some(Cq { device, shared })
}

/// Returns the completion queue with this handle.
#[inline]
pub(crate) fn cq_of(handle: u64) -> Option<Cq> {
    cq_at(handle).filter(|cq| cq.is_live(handle))
}
