//! The types of `vipl.h` in Rust, with their layout checked at compile time.

use core::ffi::{c_char, c_int, c_ulong, c_void};
use core::mem::{offset_of, size_of};

use vipl::{
    ErrorDescriptor, MemAttributes, NicAttributes, PtagHandle, RawDescriptor, ViAttributes,
    VipError,
};

/// `VIP_NIC_HANDLE` and the other handle types: a 64-bit value in a pointer, never dereferenced.
pub type RawHandle = *mut c_void;
/// `VIP_BOOLEAN`.
pub type VipBoolean = c_int;
/// `VIP_ULONG`.
pub type VipUlong = c_ulong;
/// The handler parameter of `VipErrorCallback`; `None` is NULL.
pub type ErrorHandlerFn = Option<unsafe extern "C-unwind" fn(*mut c_void, *mut VipErrorDescriptor)>;

/// The handler parameter of `VipSendNotify` and `VipRecvNotify`.
pub type QueueHandlerFn =
    Option<unsafe extern "C-unwind" fn(*mut c_void, RawHandle, RawHandle, *mut RawDescriptor)>;
/// The handler parameter of `VipCQNotify`.
pub type CqHandlerFn =
    Option<unsafe extern "C-unwind" fn(*mut c_void, RawHandle, RawHandle, VipBoolean)>;

/// Handles are passed as pointers, sizes as `unsigned long`: both must have 64 bits.
const _: () = assert!(size_of::<RawHandle>() == 8 && size_of::<VipUlong>() == 8);

/// Converts the value of a handle to C.
#[inline]
pub(crate) fn handle_to_c(raw: u64) -> RawHandle {
    core::ptr::without_provenance_mut(raw as usize)
}

/// Converts a handle from C to its value; NULL is 0, which is never valid.
#[inline]
pub(crate) fn handle_from_c(handle: RawHandle) -> u64 {
    handle.addr() as u64
}

/// Converts a protection tag from C; NULL is `None`.
pub(crate) fn ptag_from_c(ptag: RawHandle) -> Option<PtagHandle> {
    (!ptag.is_null()).then(|| PtagHandle::from_raw(handle_from_c(ptag)))
}

/// Converts a protection tag to C; `None` is NULL.
pub(crate) fn ptag_to_c(ptag: Option<PtagHandle>) -> RawHandle {
    handle_to_c(ptag.map_or(0, PtagHandle::into_raw))
}

/// `VIP_RETURN` [VIPL 4.2].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VipReturn {
    /// `VIP_SUCCESS`
    Success = 0,
    /// `VIP_NOT_DONE`
    NotDone = 1,
    /// `VIP_INVALID_PARAMETER`
    InvalidParameter = 2,
    /// `VIP_ERROR_RESOURCE`
    ErrorResource = 3,
    /// `VIP_TIMEOUT`
    Timeout = 4,
    /// `VIP_REJECT`
    Reject = 5,
    /// `VIP_INVALID_RELIABILITY_LEVEL`
    InvalidReliabilityLevel = 6,
    /// `VIP_INVALID_MTU`
    InvalidMtu = 7,
    /// `VIP_INVALID_QOS`
    InvalidQos = 8,
    /// `VIP_INVALID_PTAG`
    InvalidPtag = 9,
    /// `VIP_INVALID_RDMAREAD`
    InvalidRdmaRead = 10,
    /// `VIP_DESCRIPTOR_ERROR`
    DescriptorError = 11,
    /// `VIP_INVALID_STATE`
    InvalidState = 12,
    /// `VIP_ERROR_NAMESERVICE`
    ErrorNameservice = 13,
    /// `VIP_NO_MATCH`
    NoMatch = 14,
    /// `VIP_NOT_REACHABLE`
    NotReachable = 15,
}

impl From<VipError> for VipReturn {
    #[inline]
    fn from(error: VipError) -> Self {
        match error {
            VipError::NotDone => Self::NotDone,
            VipError::InvalidParameter => Self::InvalidParameter,
            VipError::ErrorResource => Self::ErrorResource,
            VipError::Timeout => Self::Timeout,
            VipError::Reject => Self::Reject,
            VipError::InvalidReliabilityLevel => Self::InvalidReliabilityLevel,
            VipError::InvalidMtu => Self::InvalidMtu,
            VipError::InvalidQos => Self::InvalidQos,
            VipError::InvalidPtag => Self::InvalidPtag,
            VipError::InvalidRdmaRead => Self::InvalidRdmaRead,
            VipError::DescriptorError => Self::DescriptorError,
            VipError::InvalidState => Self::InvalidState,
            VipError::ErrorNameservice => Self::ErrorNameservice,
            VipError::NoMatch => Self::NoMatch,
            VipError::NotReachable => Self::NotReachable,
        }
    }
}

/// The fixed start of a `VIP_NET_ADDRESS` [VIPL 4.9]; host address and discriminator follow it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VipNetAddress {
    /// Length of the host address in bytes.
    pub host_address_len: u16,
    /// Length of the discriminator in bytes.
    pub discriminator_len: u16,
    /// The first byte of the host address.
    pub host_address: [u8; 1],
}

/// `VIP_VI_ATTRIBUTES` [VIPL 4.6].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VipViAttributes {
    /// One of the `VIP_SERVICE_` bits.
    pub reliability_level: u16,
    /// Maximum message length in bytes.
    pub max_transfer_size: VipUlong,
    /// Not defined by the guide; NULL.
    pub qos: RawHandle,
    /// Protection tag.
    pub ptag: RawHandle,
    /// Whether the peer may write.
    pub enable_rdma_write: VipBoolean,
    /// Whether the peer may read.
    pub enable_rdma_read: VipBoolean,
}

impl From<VipViAttributes> for ViAttributes {
    fn from(c: VipViAttributes) -> Self {
        Self {
            reliability: c.reliability_level,
            max_transfer_bytes: c.max_transfer_size,
            qos: handle_from_c(c.qos),
            ptag: ptag_from_c(c.ptag),
            rdma_write: c.enable_rdma_write != 0,
            rdma_read: c.enable_rdma_read != 0,
        }
    }
}

impl From<&ViAttributes> for VipViAttributes {
    fn from(attributes: &ViAttributes) -> Self {
        Self {
            reliability_level: attributes.reliability,
            max_transfer_size: attributes.max_transfer_bytes,
            qos: handle_to_c(attributes.qos),
            ptag: ptag_to_c(attributes.ptag),
            enable_rdma_write: attributes.rdma_write.into(),
            enable_rdma_read: attributes.rdma_read.into(),
        }
    }
}

/// `VIP_MEM_ATTRIBUTES` [VIPL 4.7].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VipMemAttributes {
    /// Protection tag.
    pub ptag: RawHandle,
    /// Whether peers may write.
    pub enable_rdma_write: VipBoolean,
    /// Whether peers may read.
    pub enable_rdma_read: VipBoolean,
}

impl From<VipMemAttributes> for MemAttributes {
    fn from(c: VipMemAttributes) -> Self {
        Self {
            ptag: ptag_from_c(c.ptag),
            rdma_write: c.enable_rdma_write != 0,
            rdma_read: c.enable_rdma_read != 0,
        }
    }
}

impl From<&MemAttributes> for VipMemAttributes {
    fn from(attributes: &MemAttributes) -> Self {
        Self {
            ptag: ptag_to_c(attributes.ptag),
            enable_rdma_write: attributes.rdma_write.into(),
            enable_rdma_read: attributes.rdma_read.into(),
        }
    }
}

/// `VIP_AUTODISCOVERY_LIST` [VIPL 3.7.6].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VipAutodiscoveryList {
    /// Maximum distance of nodes in hops.
    pub number_of_hops: VipUlong,
    /// Array of pointers to the addresses that are written.
    pub ad_addr_array: *mut *mut VipNetAddress,
    /// Number of entries on entry, number of entries needed on return.
    pub num_ad_addrs: VipUlong,
}

/// `VIP_ERROR_DESCRIPTOR` [VIPL 4.4].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VipErrorDescriptor {
    /// The NIC that reports the error.
    pub nic_handle: RawHandle,
    /// The VI concerned, or NULL.
    pub vi_handle: RawHandle,
    /// The completion queue concerned, or NULL.
    pub cq_handle: RawHandle,
    /// The descriptor concerned, or NULL.
    pub descriptor_ptr: *mut RawDescriptor,
    /// One of `VIP_STATUS_OP_*`.
    pub op_code: VipUlong,
    /// `VIP_RESOURCE_CODE`.
    pub resource_code: u32,
    /// `VIP_ERROR_CODE`.
    pub error_code: u32,
}

/// Bit position of the operation code in `VIP_STATUS_OP_*`.
const STATUS_OP_SHIFT: u32 = 16;

impl From<&ErrorDescriptor> for VipErrorDescriptor {
    fn from(error: &ErrorDescriptor) -> Self {
        Self {
            nic_handle: handle_to_c(error.nic.into_raw()),
            vi_handle: handle_to_c(error.vi.map_or(0, |vi| vi.into_raw())),
            cq_handle: handle_to_c(error.cq.map_or(0, |cq| cq.into_raw())),
            descriptor_ptr: error.descriptor,
            op_code: VipUlong::from(error.op_code) << STATUS_OP_SHIFT,
            resource_code: error.resource as u32,
            error_code: error.code as u32,
        }
    }
}

/// Length of `VIP_NIC_ATTRIBUTES.Name` in bytes, including the terminating NUL.
pub(crate) const NIC_NAME_BYTES: usize = 64;

/// `VIP_NIC_ATTRIBUTES` [VIPL 4.5].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VipNicAttributes {
    /// Device name, NUL-terminated.
    pub name: [c_char; NIC_NAME_BYTES],
    /// Version of the NIC.
    pub hardware_version: VipUlong,
    /// Version of this library.
    pub provider_version: VipUlong,
    /// Length of a host address in bytes.
    pub nic_address_len: u16,
    /// The NIC's host address.
    pub local_nic_address: *const u8,
    /// Whether any call may be made from any thread.
    pub thread_safe: VipBoolean,
    /// Maximum length of a discriminator in bytes.
    pub max_discriminator_len: u16,
    /// Maximum total of registered memory in bytes.
    pub max_register_bytes: VipUlong,
    /// Maximum number of registered regions.
    pub max_register_regions: VipUlong,
    /// Maximum size of a region in bytes.
    pub max_register_block_bytes: VipUlong,
    /// Maximum number of VIs.
    pub max_vi: VipUlong,
    /// Maximum number of descriptors on a work queue.
    pub max_descriptors_per_queue: VipUlong,
    /// Maximum number of segments after the control segment.
    pub max_segments_per_desc: VipUlong,
    /// Maximum number of completion queues.
    pub max_cq: VipUlong,
    /// Maximum number of entries of a completion queue.
    pub max_cq_entries: VipUlong,
    /// Maximum length of a message in bytes.
    pub max_transfer_size: VipUlong,
    /// Maximum payload of a frame in bytes.
    pub native_mtu: VipUlong,
    /// Maximum number of protection tags.
    pub max_ptags: VipUlong,
    /// Set of `VIP_SERVICE_` bits.
    pub reliability_level_support: u16,
    /// Set of `VIP_SERVICE_` bits.
    pub rdma_read_support: u16,
}

impl From<&NicAttributes> for VipNicAttributes {
    fn from(attributes: &NicAttributes) -> Self {
        Self {
            name: c_name(&attributes.name),
            hardware_version: attributes.hardware_version.into(),
            provider_version: attributes.provider_version.into(),
            nic_address_len: attributes.nic_address_len,
            local_nic_address: attributes.local_nic_address.as_ptr(),
            thread_safe: attributes.thread_safe.into(),
            max_discriminator_len: attributes.max_discriminator_len,
            max_register_bytes: attributes.max_register_bytes,
            max_register_regions: attributes.max_register_regions,
            max_register_block_bytes: attributes.max_register_block_bytes,
            max_vi: attributes.max_vi,
            max_descriptors_per_queue: attributes.max_descriptors_per_queue,
            max_segments_per_desc: attributes.max_segments_per_desc,
            max_cq: attributes.max_cq,
            max_cq_entries: attributes.max_cq_entries,
            max_transfer_size: attributes.max_transfer_size,
            native_mtu: attributes.native_mtu,
            max_ptags: attributes.max_ptags,
            reliability_level_support: attributes.reliability_level_support,
            rdma_read_support: attributes.rdma_read_support,
        }
    }
}

/// Converts `name` to a C string in an array, truncated at a character boundary.
fn c_name(name: &str) -> [c_char; NIC_NAME_BYTES] {
    let mut out = [0; NIC_NAME_BYTES];
    let length = (0..NIC_NAME_BYTES)
        .rev()
        .find(|end| name.is_char_boundary(*end));
    for (slot, byte) in out.iter_mut().zip(name[..length.unwrap_or(0)].bytes()) {
        *slot = byte as c_char;
    }
    out
}

/// `VIP_DESCRIPTOR` [VIPL 4.3] is the provider's type, with the field offsets of `vipl.h`: the
/// application's descriptor is not copied.
const _: () = {
    assert!(size_of::<RawDescriptor>() == 64);
    assert!(offset_of!(RawDescriptor, control.next) == 0); // CS.Next
    assert!(offset_of!(RawDescriptor, control.next_handle) == 8); // CS.NextHandle
    assert!(offset_of!(RawDescriptor, control.segment_count) == 12); // CS.SegCount
    assert!(offset_of!(RawDescriptor, control.control) == 14); // CS.Control
    assert!(offset_of!(RawDescriptor, control.reserved) == 16); // CS.Reserved
    assert!(offset_of!(RawDescriptor, control.immediate_data) == 20); // CS.ImmediateData
    assert!(offset_of!(RawDescriptor, control.length) == 24); // CS.Length
    assert!(offset_of!(RawDescriptor, control.status) == 28); // CS.Status
    assert!(offset_of!(RawDescriptor, segments) == 32); // DS
    assert!(size_of::<RawDescriptor>() - offset_of!(RawDescriptor, segments) == 2 * 16);
};

const _: () = {
    assert!(size_of::<VipNetAddress>() == 6);
    assert!(offset_of!(VipNetAddress, host_address) == 4);

    assert!(size_of::<VipViAttributes>() == 40);
    assert!(offset_of!(VipViAttributes, max_transfer_size) == 8);
    assert!(offset_of!(VipViAttributes, ptag) == 24);
    assert!(offset_of!(VipViAttributes, enable_rdma_read) == 36);

    assert!(size_of::<VipMemAttributes>() == 16);
    assert!(offset_of!(VipMemAttributes, enable_rdma_read) == 12);

    assert!(size_of::<VipAutodiscoveryList>() == 24);
    assert!(offset_of!(VipAutodiscoveryList, ad_addr_array) == 8);
    assert!(offset_of!(VipAutodiscoveryList, num_ad_addrs) == 16);

    assert!(size_of::<VipErrorDescriptor>() == 48);
    assert!(offset_of!(VipErrorDescriptor, descriptor_ptr) == 24);
    assert!(offset_of!(VipErrorDescriptor, resource_code) == 40);
    assert!(offset_of!(VipErrorDescriptor, error_code) == 44);

    assert!(size_of::<VipNicAttributes>() == 200);
    assert!(offset_of!(VipNicAttributes, hardware_version) == 64);
    assert!(offset_of!(VipNicAttributes, nic_address_len) == 80);
    assert!(offset_of!(VipNicAttributes, local_nic_address) == 88);
    assert!(offset_of!(VipNicAttributes, thread_safe) == 96);
    assert!(offset_of!(VipNicAttributes, max_discriminator_len) == 100);
    assert!(offset_of!(VipNicAttributes, max_register_bytes) == 104);
    assert!(offset_of!(VipNicAttributes, max_ptags) == 184);
    assert!(offset_of!(VipNicAttributes, reliability_level_support) == 192);
    assert!(offset_of!(VipNicAttributes, rdma_read_support) == 194);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_name_is_truncated_between_characters_and_terminated() {
        let bytes = c_name(&"é".repeat(40)).map(|c| c as u8);
        let end = bytes
            .iter()
            .position(|byte| *byte == 0)
            .expect("terminated");
        assert_eq!(
            core::str::from_utf8(&bytes[..end]),
            Ok("é".repeat(31).as_str())
        );
        assert_eq!(c_name("VINIC0").map(|c| c as u8)[..7], *b"VINIC0\0");
    }

    #[test]
    fn return_codes_have_the_values_of_errors() {
        for error in [
            VipError::NotDone,
            VipError::InvalidParameter,
            VipError::ErrorResource,
            VipError::Timeout,
            VipError::Reject,
            VipError::InvalidReliabilityLevel,
            VipError::InvalidMtu,
            VipError::InvalidQos,
            VipError::InvalidPtag,
            VipError::InvalidRdmaRead,
            VipError::DescriptorError,
            VipError::InvalidState,
            VipError::ErrorNameservice,
            VipError::NoMatch,
            VipError::NotReachable,
        ] {
            assert_eq!(VipReturn::from(error) as u32, error as u32);
        }
    }
}
