//! Control calls as messages: a request, and its answer on the same socket.

use core::time::Duration;

use fcvi_frame::connect::{self, Discriminator, HostAddress};
use fcvi_frame::flags::WireReliability;
use serde::{Deserialize, Serialize};
use vi_engine::EndpointState;

use crate::choices::{Agreement, ViChoices};
use crate::config::{NicConfig, Protection, Quota};
use crate::control::ControlError;
use crate::memory::pages::LockPolicy;
use crate::nic::MemSettings;
use crate::vi::ViSettings;

/// Version of the messages and of the arena; both sides must have the same.
pub(crate) const VERSION: u32 = 4;

/// A message is at most so long.
pub(crate) const MAX_MESSAGE_BYTES: usize = 8192;

/// What an application asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// First on a socket: attach to the NIC of this device name.
    Attach {
        version: u32,
        device: String,
    },
    /// First on a socket: take calls for an application that is attached.
    Join {
        version: u32,
        key: [u8; 16],
    },
    /// First on a socket: an operator wants to know what there is.
    Look {
        version: u32,
    },
    /// First on a socket: an operator wants to see frames.
    Capture {
        version: u32,
        order: CaptureOrder,
    },
    /// As the calls of [`crate::nic`] of these names.
    Open,
    Close {
        nic: u64,
    },
    CreatePtag {
        nic: u64,
    },
    DestroyPtag {
        nic: u64,
        ptag: u64,
    },
    /// With a descriptor of the memory if it is shared, and where in it the range begins.
    Register {
        nic: u64,
        address: u64,
        length_bytes: u64,
        settings: MemSettings,
        /// The program may write all pages.
        writable: bool,
        shared_at: Option<u64>,
        /// The shared memory is a bounce buffer of the library for the range.
        is_bounce_buffer: bool,
    },
    Deregister {
        nic: u64,
        address: u64,
        region: u32,
    },
    SetRegion {
        nic: u64,
        address: u64,
        region: u32,
        settings: MemSettings,
    },
    CreateVi {
        nic: u64,
        settings: ViSettings,
    },
    DestroyVi {
        vi: u64,
    },
    QueryVi {
        vi: u64,
    },
    SetVi {
        vi: u64,
        settings: ViSettings,
    },
    DiscoveredHosts {
        nic: u64,
    },
    Counters {
        nic: u64,
    },
    ConnectWait {
        nic: u64,
        local: NetAddress,
        limit: Option<Duration>,
    },
    ConnectAccept {
        conn: u64,
        vi: u64,
    },
    ConnectReject {
        conn: u64,
    },
    Connect {
        vi: u64,
        local: NetAddress,
        remote: NetAddress,
        limit: Option<Duration>,
    },
    ConnectPeer {
        vi: u64,
        local: NetAddress,
        remote: NetAddress,
        limit: Option<Duration>,
    },
    ConnectPeerDone {
        vi: u64,
    },
    ConnectPeerWait {
        vi: u64,
    },
    Disconnect {
        vi: u64,
    },
    Choices {
        vi: u64,
    },
    SetChoices {
        vi: u64,
        choices: ViChoices,
    },
    Agreement {
        vi: u64,
    },
    SecurityOf {
        conn: u64,
    },
    UserOf {
        conn: u64,
    },
    PeerUser {
        vi: u64,
    },
    /// To `Reply::Rings`: they are mapped.
    RingsMapped,
    /// First on a socket: the program has freed shared memory that it offered for this device
    /// name; `st_dev` and `st_ino` of its file.
    Free {
        version: u32,
        device: String,
        file: (u64, u64),
    },
}

impl Request {
    /// Does it make something new?
    pub(crate) fn makes(&self) -> bool {
        matches!(
            self,
            Self::Open
                | Self::CreatePtag { .. }
                | Self::Register { .. }
                | Self::CreateVi { .. }
                | Self::ConnectWait { .. }
                | Self::ConnectAccept { .. }
                | Self::Connect { .. }
                | Self::ConnectPeer { .. }
                | Self::SetChoices { .. }
        )
    }

    /// Is it answered only when something happens elsewhere?
    pub(crate) fn waits(&self) -> bool {
        matches!(
            self,
            Self::ConnectWait { .. }
                | Self::ConnectAccept { .. }
                | Self::Connect { .. }
                | Self::ConnectPeerWait { .. }
        )
    }
}

/// What the process answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// To `RingsMapped`.
    Attached {
        key: [u8; 16],
        nic: Box<Description>,
    },
    /// To whatever begins a conversation, and to `Register`: why not, and what to do about it.
    Refused(String),
    /// To `Attach` and `Capture`: there is no NIC of this name.
    UnknownNic(String),
    /// There is nothing to say.
    Done,
    Handle(u64),
    Region(u32),
    Vi {
        state: u8,
    },
    Request {
        conn: u64,
        remote: NetAddress,
        attributes: Attributes,
    },
    Attributes(Attributes),
    /// A peer request is in progress.
    NotYet,
    /// To `Look`, `Counters` and `DiscoveredHosts`: a part of what is too long for one message, and
    /// whether it is the last one.
    Part(Vec<u8>, bool),
    /// To `Capture`; with the descriptor that a pcapng file is read from.
    Capturing {
        nic: String,
        /// Messages may be moved without frames.
        shortcut: bool,
    },
    /// The capture is over, and its file complete.
    Captured {
        frames: u64,
        dropped: u64,
    },
    Failed(ControlError),
    Choices(ViChoices),
    Agreement(Agreement),
    Security(Vec<u8>),
    /// To `Attach`; with the descriptors of the arena and of what wakes the process
    /// ([`crate::sys::Waker`]). The application maps the arena, which is sealed then.
    Rings,
    /// `None`: not known.
    User(Option<u32>),
    /// To `Register`: the reason why the process cannot reach the memory. The library can offer a bounce buffer.
    MemoryUnreachable(String),
}

/// Which frames an operator wants to see.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CaptureOrder {
    pub(crate) device: String,
    /// See [`crate::tap::filter`].
    pub(crate) filter: String,
    /// Bytes of each frame; 0 for all.
    pub(crate) longest_bytes: u32,
    /// What the ring may take, about.
    pub(crate) buffer_bytes: u64,
    /// Ends after so many.
    pub(crate) most_frames: u64,
}

/// A NIC as its applications have to know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) host: [u8; 16],
    pub(crate) native_mtu_bytes: u32,
    pub(crate) lenient: bool,
    pub(crate) spin_us: u64,
    pub(crate) takeover_us: u64,
    pub(crate) max_vi: u32,
    pub(crate) max_descriptors_per_queue: u32,
    pub(crate) max_segments_per_descriptor: u32,
    pub(crate) max_cq: u32,
    pub(crate) max_cq_entries: u32,
    pub(crate) max_notifies_per_queue: u32,
    pub(crate) max_notify_threads: u32,
    pub(crate) max_transfer_bytes: u32,
    pub(crate) max_regions: u32,
    pub(crate) max_registered_bytes: u64,
    pub(crate) max_region_bytes: u64,
    pub(crate) max_ptags: u32,
    pub(crate) max_discriminator_bytes: u16,
    pub(crate) hosts_file: Option<String>,
    /// VIs and regions of the application.
    pub(crate) quota_vis: u32,
    pub(crate) quota_regions: u32,
    /// Descriptors of the application that may be posted and not complete.
    pub(crate) max_descriptors: u32,
    /// Calls of the application that may be under way.
    pub(crate) max_calls: u32,
    pub(crate) lock_memory: LockPolicy,
}

impl Description {
    /// What an application with this quota is told.
    pub(crate) fn of(config: &NicConfig, quota: &Quota, native_mtu_bytes: u32) -> Self {
        Self {
            name: config.name.clone(),
            host: config.host_address().0,
            native_mtu_bytes,
            lenient: config.protection == Protection::Lenient,
            spin_us: config.spin_us,
            takeover_us: config.takeover_us,
            max_vi: config.max_vi,
            max_descriptors_per_queue: config.max_descriptors_per_queue,
            max_segments_per_descriptor: config.max_segments_per_descriptor,
            max_cq: config.max_cq.min(quota.max_cq),
            max_cq_entries: config.max_cq_entries,
            max_notifies_per_queue: config.max_notifies_per_queue,
            max_notify_threads: config.max_notify_threads,
            max_transfer_bytes: config.max_transfer_bytes,
            max_discriminator_bytes: config.max_discriminator_bytes,
            // VIs and regions keep the numbers that they have in the process, which go further.
            max_regions: config.max_regions,
            max_registered_bytes: config.max_registered_bytes.min(quota.max_registered_bytes),
            max_region_bytes: config.max_region_bytes,
            max_ptags: config.max_ptags.min(quota.max_ptags),
            hosts_file: config
                .hosts_file
                .as_ref()
                .map(|path| path.to_string_lossy().into_owned()),
            quota_vis: config.max_vi.min(quota.max_vi),
            quota_regions: config.max_regions.min(quota.max_regions),
            max_descriptors: quota.max_descriptors,
            max_calls: quota.max_calls,
            lock_memory: config.lock_memory,
        }
    }

    /// The configuration of the NIC as the library of an attached program has it.
    pub(crate) fn config(&self) -> NicConfig {
        NicConfig {
            name: self.name.clone(),
            host: Some(core::net::Ipv6Addr::from(self.host).to_canonical().into()),
            protection: if self.lenient {
                Protection::Lenient
            } else {
                Protection::Strict
            },
            spin_us: self.spin_us,
            takeover_us: self.takeover_us,
            max_vi: self.max_vi,
            max_descriptors_per_queue: self.max_descriptors_per_queue,
            max_segments_per_descriptor: self.max_segments_per_descriptor,
            max_cq: self.max_cq,
            max_cq_entries: self.max_cq_entries,
            max_notifies_per_queue: self.max_notifies_per_queue,
            max_notify_threads: self.max_notify_threads,
            max_transfer_bytes: self.max_transfer_bytes,
            max_discriminator_bytes: self.max_discriminator_bytes,
            max_regions: self.max_regions,
            max_registered_bytes: self.max_registered_bytes,
            max_region_bytes: self.max_region_bytes,
            max_ptags: self.max_ptags,
            hosts_file: self.hosts_file.as_ref().map(Into::into),
            lock_memory: self.lock_memory,
            ..NicConfig::default()
        }
    }
}

/// A VIPL address.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NetAddress {
    host: [u8; 16],
    discriminator: Vec<u8>,
}

impl From<&connect::NetAddress> for NetAddress {
    fn from(address: &connect::NetAddress) -> Self {
        Self {
            host: address.host.0,
            discriminator: address.discriminator.as_bytes().to_vec(),
        }
    }
}

impl NetAddress {
    /// The address; `None` if its discriminator is too long.
    pub(crate) fn get(&self) -> Option<connect::NetAddress> {
        Some(connect::NetAddress {
            host: HostAddress(self.host),
            discriminator: Discriminator::new(&self.discriminator)?,
        })
    }
}

/// Attributes of the peer of a connection.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Attributes {
    reliability: u8,
    rdma_write: bool,
    rdma_read: bool,
    in_order: bool,
    recovery: bool,
    max_transfer_bytes: u32,
    qos_class: u8,
    cs_ctl: u8,
    max_reads: u16,
    receive_data_field_bytes: u16,
}

impl From<connect::Attributes> for Attributes {
    fn from(a: connect::Attributes) -> Self {
        Self {
            reliability: a.reliability as u8,
            rdma_write: a.rdma_write,
            rdma_read: a.rdma_read,
            in_order: a.in_order,
            recovery: a.recovery,
            max_transfer_bytes: a.max_transfer_bytes,
            qos_class: a.qos_class,
            cs_ctl: a.cs_ctl,
            max_reads: a.max_reads,
            receive_data_field_bytes: a.receive_data_field_bytes,
        }
    }
}

impl From<Attributes> for connect::Attributes {
    fn from(a: Attributes) -> Self {
        Self {
            reliability: match a.reliability {
                1 => WireReliability::Rd,
                2 => WireReliability::Rr,
                _ => WireReliability::Ud,
            },
            rdma_write: a.rdma_write,
            rdma_read: a.rdma_read,
            in_order: a.in_order,
            recovery: a.recovery,
            max_transfer_bytes: a.max_transfer_bytes,
            qos_class: a.qos_class,
            cs_ctl: a.cs_ctl,
            max_reads: a.max_reads,
            receive_data_field_bytes: a.receive_data_field_bytes,
        }
    }
}

/// The state with this number.
pub(crate) fn state_of(number: u8) -> EndpointState {
    [
        EndpointState::Connected,
        EndpointState::ConnectPending,
        EndpointState::Error,
    ]
    .into_iter()
    .find(|state| *state as u8 == number)
    .unwrap_or(EndpointState::Idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_request_and_answer_fit_into_a_message() {
        let address = NetAddress {
            host: [0xFF; 16],
            discriminator: vec![0xFF; connect::MAX_DISCRIMINATOR_BYTES],
        };
        let longest = Request::Connect {
            vi: u64::MAX,
            local: address.clone(),
            remote: address,
            limit: Some(Duration::MAX),
        };
        let bytes = postcard::to_allocvec(&longest).unwrap();
        assert!(bytes.len() < MAX_MESSAGE_BYTES, "{}", bytes.len());
        let back: Request = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(format!("{back:?}"), format!("{longest:?}"));
    }

    #[test]
    fn the_library_locks_pages_as_the_process_says() {
        for lock_memory in [LockPolicy::Required, LockPolicy::Never] {
            let config = NicConfig {
                lock_memory,
                ..NicConfig::default()
            };
            let described = Description::of(&config, &Quota::default(), 2096);
            assert_eq!(described.config().lock_memory, lock_memory);
        }
    }

    #[test]
    fn states_and_attributes_come_back_as_they_were() {
        for state in [
            EndpointState::Idle,
            EndpointState::Connected,
            EndpointState::ConnectPending,
            EndpointState::Error,
        ] {
            assert_eq!(state_of(state as u8), state);
        }
        for reliability in [
            WireReliability::Ud,
            WireReliability::Rd,
            WireReliability::Rr,
        ] {
            let there = connect::Attributes {
                reliability,
                max_reads: 7,
                rdma_read: true,
                ..connect::Attributes::default()
            };
            let back = connect::Attributes::from(Attributes::from(there));
            assert_eq!(format!("{back:?}"), format!("{there:?}"));
        }
    }
}
