//! The control calls of a NIC, as traits: [`LocalCalls`](crate::control::LocalCalls) carries them out in this process,
//! [`AttachedCalls`](crate::attach::calls::AttachedCalls) by messages to the datapath process that has the engine. A
//! NIC gets its calls when its device is created, and nothing else asks which of them it has.
//!
//! The caller has validated the handles of NIC, VI and request. A NIC handle or VI may be closed or destroyed by
//! another thread meanwhile: then the calls return [`CallError::InvalidParameter`](vi_types::CallError).

use std::time::Duration;

use vi_types::{
    ConnectionOptions, HostAddress, MemAttributes, NegotiatedOptions, NetAddress, Outcome,
    QueueKind, ViAttributes, ViInfo, ViParams,
};

use crate::device::Device;
use crate::lookup::Vi;
use crate::nic_handle::Conn;

/// All control calls.
pub(crate) trait ControlCalls:
    NicCalls + MemoryCalls + ViCalls + ConnectionCalls + Sync
{
}

impl<T: NicCalls + MemoryCalls + ViCalls + ConnectionCalls + Sync> ControlCalls for T {}

/// Calls on NICs and protection tags (VIPL 3.1, 3.4, 3.7).
pub(crate) trait NicCalls {
    /// Ends the access to memory that was registered with a NIC handle, before the handle is closed.
    ///
    /// # Errors
    /// `Resource`: the memory may still be accessed, so the handle stays open.
    fn end_access(&self, device: &'static Device, nic: u64) -> Outcome<()>;

    /// Returns the user bytes in a frame of a send.
    fn native_mtu_bytes(&self, device: &'static Device) -> Outcome<u32>;

    /// Returns the maximum number of VIs and regions of this program.
    fn quota(&self, device: &'static Device) -> (u32, u32);

    /// Returns all counters by name.
    fn counters(&self, device: &'static Device, nic: u64) -> Outcome<Vec<(String, u64)>>;

    /// Returns the hosts of other programs that the NIC can reach (VIPL 3.7.6).
    fn discovered_hosts(&self, device: &'static Device, nic: u64) -> Outcome<Vec<HostAddress>>;

    /// Creates a protection tag (VIPL 3.4.1).
    fn create_ptag(&self, device: &'static Device, nic: u64) -> Outcome<u64>;

    /// Destroys a protection tag that no VI and no region uses (VIPL 3.4.2).
    fn destroy_ptag(&self, device: &'static Device, nic: u64, ptag: u64) -> Outcome<()>;
}

/// Calls on registered memory (VIPL 3.4, 3.7).
pub(crate) trait MemoryCalls {
    /// Registers the range of memory at an address, of a length in bytes; returns its memory handle (VIPL 3.4.3).
    ///
    /// # Safety
    /// As for [`register`](crate::nic::register).
    unsafe fn register(
        &self,
        device: &'static Device,
        nic: u64,
        range: (u64, u64),
        settings: &MemAttributes,
    ) -> Outcome<u32>;

    /// Deregisters the region of this address and memory handle (VIPL 3.4.4).
    fn deregister(&self, device: &'static Device, nic: u64, region: (u64, u32)) -> Outcome<()>;

    /// Changes the attributes of the region of this address and memory handle (VIPL 3.7.4).
    fn set_region(
        &self,
        device: &'static Device,
        nic: u64,
        region: (u64, u32),
        settings: &MemAttributes,
    ) -> Outcome<()>;
}

/// Calls on VIs, by the VI and its handle (VIPL 3.2, 3.7).
pub(crate) trait ViCalls {
    /// Creates a VI with these completion queues, 0 for none; returns its handle (VIPL 3.2.1).
    fn create_vi(
        &self,
        device: &'static Device,
        nic: u64,
        settings: &ViAttributes,
        cqs: (u64, u64),
    ) -> Outcome<u64>;

    /// Destroys a VI that is Idle and whose queues are empty (VIPL 3.2.2).
    fn destroy_vi(&self, vi: Vi, handle: u64) -> Outcome<()>;

    /// Returns state and attributes of a VI.
    fn query_vi(&self, vi: Vi, handle: u64) -> Outcome<ViInfo>;

    /// Changes the attributes of a VI, which must be Idle (VIPL 3.7.2).
    fn set_vi(&self, vi: Vi, handle: u64, settings: &ViAttributes) -> Outcome<()>;

    /// Has the backend process what was just posted on a queue of the VI.
    fn posted(&self, vi: Vi, handle: u64, queue: QueueKind);
}

/// Calls that establish, query and end connections (VIPL 3.3).
pub(crate) trait ConnectionCalls {
    /// Waits for a connection request (VIPL 3.3.1): returns it, the address of the client, and the attributes of its VI.
    fn connect_wait(
        &self,
        device: &'static Device,
        nic: u64,
        local: &NetAddress,
        limit: Option<Duration>,
    ) -> Outcome<(Conn, NetAddress, ViParams)>;

    /// Accepts a request with a VI (VIPL 3.3.2).
    fn connect_accept(&self, conn: Conn, vi: Vi, handle: u64) -> Outcome<()>;

    /// Rejects a request (VIPL 3.3.3).
    fn connect_reject(&self, device: &'static Device, conn: Conn) -> Outcome<()>;

    /// Requests a connection (VIPL 3.3.4).
    fn connect_request(
        &self,
        vi: Vi,
        handle: u64,
        local: &NetAddress,
        remote: &NetAddress,
        limit: Option<Duration>,
    ) -> Outcome<ViParams>;

    /// Requests a peer-to-peer connection (VIPL 3.3.6).
    fn connect_peer_request(
        &self,
        vi: Vi,
        handle: u64,
        local: &NetAddress,
        remote: &NetAddress,
        limit: Option<Duration>,
    ) -> Outcome<()>;

    /// Takes the outcome of the VI's peer request; `None` while it is in progress (VIPL 3.3.7).
    fn connect_peer_done(&self, vi: Vi, handle: u64) -> Outcome<Option<ViParams>>;

    /// Waits for the outcome of the VI's peer request (VIPL 3.3.8).
    fn connect_peer_wait(&self, vi: Vi, handle: u64) -> Outcome<ViParams>;

    /// Disconnects a VI and flushes both queues (VIPL 3.3.5).
    fn disconnect(&self, vi: Vi, handle: u64) -> Outcome<()>;

    /// Returns the connection options of a VI, if the NIC has any.
    fn connection_options(&self, vi: Vi, handle: u64) -> Outcome<ConnectionOptions>;

    /// Replaces the connection options of a VI, which must be Idle.
    fn set_connection_options(
        &self,
        vi: Vi,
        handle: u64,
        options: &ConnectionOptions,
    ) -> Outcome<()>;

    /// Returns the options that a VI and its peer have negotiated.
    fn negotiated_options(&self, vi: Vi, handle: u64) -> Outcome<NegotiatedOptions>;

    /// Returns the security information that a client sent with its pending request.
    fn request_security(&self, device: &'static Device, conn: Conn) -> Outcome<Vec<u8>>;

    /// Returns the user ID of the program that makes a request; `None` if it is unknown.
    fn request_user(&self, device: &'static Device, conn: Conn) -> Outcome<Option<u32>>;

    /// Returns the user ID of the program that a VI is connected to; `None` if it is unknown.
    fn peer_user(&self, vi: Vi, handle: u64) -> Outcome<Option<u32>>;
}
