//! `VIP_NET_ADDRESS` in memory: two lengths, host address, discriminator, contiguous.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..2 | HostAddressLen |
//! | 2..4 | DiscriminatorLen |
//! | 4..4+h | host address |
//! | 4+h..4+h+d | discriminator |

use core::mem::offset_of;
use core::ptr::NonNull;

use vipl::{Discriminator, HostAddress, NetAddress, Result, VipError};

use crate::pointer::read_in;
use crate::types::VipNetAddress;

/// Length of the host address of every NIC in bytes.
const HOST_BYTES: usize = 16;
/// Maximum length of a discriminator in bytes.
const DISCRIMINATOR_BYTES: usize = 44;
/// Offset of the host address.
const BODY: usize = offset_of!(VipNetAddress, host_address);
const _: () = assert!(BODY == 4);

/// Reads the two lengths.
///
/// # Safety
/// `address` is NULL or has four readable bytes.
unsafe fn read_lengths(address: *const VipNetAddress) -> Result<[u16; 2]> {
    // SAFETY: the caller's obligation.
    unsafe { read_in(address.cast()) }
}

/// Copies `out.len()` bytes that follow the lengths.
///
/// # Safety
/// `address` has that many readable bytes after the lengths.
unsafe fn read_body(address: *const VipNetAddress, out: &mut [u8]) {
    let body = address.cast::<u8>().wrapping_add(BODY);
    // SAFETY: readable as the caller guarantees; `out` is borrowed exclusively, so they cannot overlap.
    unsafe { body.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) }
}

/// Reads a whole address. NULL, a host part that is not a NIC address, and a discriminator above
/// the NIC's limit are invalid parameters.
///
/// # Safety
/// `address` is NULL or as long as its own lengths state.
pub(crate) unsafe fn read_net_address(address: *const VipNetAddress) -> Result<NetAddress> {
    // SAFETY: the lengths are readable, by the caller's obligation.
    let [host_len, discriminator_len] = unsafe { read_lengths(address) }?.map(usize::from);
    if host_len != HOST_BYTES || discriminator_len > DISCRIMINATOR_BYTES {
        return Err(VipError::InvalidParameter);
    }
    let mut body = [0; HOST_BYTES + DISCRIMINATOR_BYTES];
    let used = &mut body[..HOST_BYTES + discriminator_len];
    // SAFETY: as many bytes as the lengths state.
    unsafe { read_body(address, used) };
    let (host, discriminator) = used.split_at(HOST_BYTES);
    Ok(NetAddress {
        host: host_from_bytes(host)?,
        discriminator: Discriminator::new(discriminator).ok_or(VipError::InvalidParameter)?,
    })
}

/// Reads the host part of an address only.
///
/// # Safety
/// `address` is NULL or as long as its own lengths state.
pub(crate) unsafe fn read_host_address(address: *const VipNetAddress) -> Result<HostAddress> {
    // SAFETY: the lengths are readable, by the caller's obligation.
    let [host_len, _] = unsafe { read_lengths(address) }?;
    if usize::from(host_len) != HOST_BYTES {
        return Err(VipError::InvalidParameter);
    }
    let mut host = [0; HOST_BYTES];
    // SAFETY: as many bytes as HostAddressLen states.
    unsafe { read_body(address, &mut host) };
    Ok(HostAddress(host))
}

fn host_from_bytes(host: &[u8]) -> Result<HostAddress> {
    host.try_into()
        .map(HostAddress)
        .map_err(|_| VipError::InvalidParameter)
}

/// A checked OUT address.
pub(crate) struct AddressOut(NonNull<u8>);

impl AddressOut {
    /// Creates an output of a whole address. The lengths on entry are ignored, because programs leave
    /// them uninitialised.
    ///
    /// # Safety
    /// `address` is NULL or has room for the NIC's address and the longest discriminator while the
    /// result exists.
    pub(crate) unsafe fn whole(address: *mut VipNetAddress) -> Result<Self> {
        NonNull::new(address.cast())
            .map(Self)
            .ok_or(VipError::InvalidParameter)
    }

    /// Creates an output of the host part only. HostAddressLen is its capacity in bytes; 0 stands for
    /// the length of a NIC address.
    ///
    /// # Safety
    /// `address` is NULL or has that capacity while the result exists.
    pub(crate) unsafe fn host_only(address: *mut VipNetAddress) -> Result<Self> {
        // SAFETY: the lengths are readable, by the caller's obligation.
        let [capacity_bytes, _] = unsafe { read_lengths(address) }?.map(usize::from);
        if capacity_bytes != 0 && capacity_bytes < HOST_BYTES {
            return Err(VipError::InvalidParameter);
        }
        NonNull::new(address.cast())
            .map(Self)
            .ok_or(VipError::InvalidParameter)
    }

    /// Creates an output of the host part only. HostAddressLen is its capacity in bytes.
    ///
    /// # Safety
    /// As [`AddressOut::host_only`].
    pub(crate) unsafe fn host_with_capacity(address: *mut VipNetAddress) -> Result<Self> {
        // SAFETY: the lengths are readable, by the caller's obligation.
        let [capacity_bytes, _] = unsafe { read_lengths(address) }?.map(usize::from);
        if capacity_bytes < HOST_BYTES {
            return Err(VipError::InvalidParameter);
        }
        NonNull::new(address.cast())
            .map(Self)
            .ok_or(VipError::InvalidParameter)
    }

    /// Writes lengths, host and discriminator, and no byte after them.
    pub(crate) fn set(&self, address: &NetAddress) {
        let discriminator = address.discriminator.as_bytes();
        self.write(0, &(HOST_BYTES as u16).to_ne_bytes());
        self.write(2, &(discriminator.len() as u16).to_ne_bytes());
        self.write(BODY, &address.host.0);
        self.write(BODY + HOST_BYTES, discriminator);
    }

    /// Writes the host address and its length; the discriminator's length is not changed.
    pub(crate) fn set_host(&self, host: &HostAddress) {
        self.write(0, &(HOST_BYTES as u16).to_ne_bytes());
        self.write(BODY, &host.0);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let target = self.0.as_ptr().wrapping_add(offset);
        // SAFETY: inside the capacity that the creator guaranteed; `bytes` is memory of this crate
        // and cannot overlap it.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::{null, null_mut};

    fn image(host_len: u16, discriminator_len: u16) -> [u8; 4 + 16 + 45] {
        let mut bytes = [0; 65];
        bytes[0..2].copy_from_slice(&host_len.to_ne_bytes());
        bytes[2..4].copy_from_slice(&discriminator_len.to_ne_bytes());
        for (value, byte) in (1..).zip(&mut bytes[4..]) {
            *byte = value;
        }
        bytes
    }

    fn read(image: &[u8; 65]) -> Result<NetAddress> {
        // SAFETY: the image is longer than any length that is accepted.
        unsafe { read_net_address(image.as_ptr().cast()) }
    }

    #[test]
    fn read_net_address_uses_its_lengths() {
        let address = read(&image(16, 3)).expect("well formed");
        assert_eq!(address.host.0[..3], [1, 2, 3]);
        assert_eq!(address.discriminator.as_bytes(), [17, 18, 19]);
        assert_eq!(
            read(&image(16, 44))
                .expect("longest")
                .discriminator
                .as_bytes()
                .len(),
            44
        );
        assert!(
            read(&image(16, 0))
                .expect("none")
                .discriminator
                .as_bytes()
                .is_empty()
        );
    }

    #[test]
    fn read_net_address_rejects_invalid_lengths() {
        for (host_len, discriminator_len) in [(0, 4), (15, 4), (17, 4), (16, 45), (16, 0xFFFF)] {
            assert_eq!(
                read(&image(host_len, discriminator_len)),
                Err(VipError::InvalidParameter)
            );
        }
        // SAFETY: NULL is allowed.
        let of_null = unsafe { read_net_address(null()) };
        assert_eq!(of_null, Err(VipError::InvalidParameter));
        // SAFETY: NULL is allowed.
        assert!(unsafe { AddressOut::host_only(null_mut()) }.is_err());
    }

    #[test]
    fn set_writes_no_byte_after_the_address() {
        let address = read(&image(16, 5)).expect("well formed");
        let mut room = [0xEE_u8; 80];
        // SAFETY: the array has room for the longest address.
        let out = unsafe { AddressOut::whole(room.as_mut_ptr().cast()) }.expect("not NULL");
        out.set(&address);
        assert_eq!(room[..25], image(16, 5)[..25]);
        assert!(room[25..].iter().all(|byte| *byte == 0xEE));
    }

    #[test]
    fn set_host_writes_the_host_part_only() {
        for capacity_bytes in [0_u16, 16, 40] {
            let mut room = [0xEE_u8; 40];
            room[..2].copy_from_slice(&capacity_bytes.to_ne_bytes());
            // SAFETY: the array has room for a host address.
            let out = unsafe { AddressOut::host_only(room.as_mut_ptr().cast()) }.expect("room");
            out.set_host(&HostAddress([7; 16]));
            assert_eq!(room[..2], 16_u16.to_ne_bytes());
            assert_eq!(room[2..4], [0xEE; 2]);
            assert_eq!(room[4..20], [7; 16]);
            assert!(room[20..].iter().all(|byte| *byte == 0xEE));
        }
        let mut small = image(15, 0);
        // SAFETY: the lengths are readable, and nothing is written.
        assert!(unsafe { AddressOut::host_only(small.as_mut_ptr().cast()) }.is_err());
    }
}
