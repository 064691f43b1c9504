//! Control messages: a request, and its reply on the same socket.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use vi_types::{
    CallError, ConnectionOptions, LockPolicy, MemAttributes, NegotiatedOptions, NetAddress,
    ViAttributes, ViParams, ViState,
};

use crate::config::{Limits, NicConfig, Progress, Protection, Quota};

/// Version of the messages and of the shared queues; both sides must have the same.
pub(crate) const VERSION: u32 = 9;

/// A request of an application or an operator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// First on a connection: attaches to the NIC of this device name.
    Attach {
        version: u32,
        device: String,
    },
    /// First on a connection: makes it a call connection of an attached application.
    Join {
        version: u32,
        key: [u8; 16],
    },
    /// First on a connection: queries the status of the process.
    QueryStatus {
        version: u32,
    },
    /// First on a connection: captures frames of a NIC.
    Capture {
        version: u32,
        parameters: CaptureParameters,
    },
    /// These are calls of [`crate::nic`] with the same names.
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
    /// With a descriptor of the memory if it is shared; then `shared_at` is the offset of the range.
    Register {
        nic: u64,
        address: u64,
        length_bytes: u64,
        settings: MemAttributes,
        /// The application may write all pages.
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
        settings: MemAttributes,
    },
    CreateVi {
        nic: u64,
        settings: ViAttributes,
    },
    DestroyVi {
        vi: u64,
    },
    QueryVi {
        vi: u64,
    },
    SetVi {
        vi: u64,
        settings: ViAttributes,
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
    ConnectionOptions {
        vi: u64,
    },
    SetConnectionOptions {
        vi: u64,
        options: ConnectionOptions,
    },
    NegotiatedOptions {
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
    /// In reply to `Reply::Rings`: the application has mapped them.
    RingsMapped,
    /// First on a connection: the application has freed shared memory that it registered under this device name;
    /// `st_dev` and `st_ino` of its file.
    Free {
        version: u32,
        device: String,
        file: (u64, u64),
    },
}

impl Request {
    /// True for a request that allocates resources.
    pub(crate) fn allocates(&self) -> bool {
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
                | Self::SetConnectionOptions { .. }
        )
    }

    /// True for a request whose reply may depend on a peer.
    pub(crate) fn may_block(&self) -> bool {
        matches!(
            self,
            Self::ConnectWait { .. }
                | Self::ConnectAccept { .. }
                | Self::Connect { .. }
                | Self::ConnectPeerWait { .. }
        )
    }
}

/// A reply of the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// To `RingsMapped`.
    Attached {
        key: [u8; 16],
        nic: Box<Description>,
    },
    /// To a first request, and to `Register`: the reason of the refusal, and the remedy.
    Refused(String),
    /// To `Attach` and `Capture`: there is no NIC of this name.
    UnknownNic(String),
    /// Success without content.
    Done,
    Handle(u64),
    Region(u32),
    Vi {
        state: ViState,
    },
    Request {
        conn: u64,
        remote: NetAddress,
        attributes: ViParams,
    },
    Attributes(ViParams),
    /// A peer request is in progress.
    Pending,
    /// To `QueryStatus`, `Counters` and `DiscoveredHosts`: a part of a reply that may be too long for one message, and
    /// whether it is the last part.
    Part(Vec<u8>, bool),
    /// To `Capture`; with a descriptor from which a pcapng file is read.
    Capturing {
        nic: String,
        /// Messages may be copied without frames.
        shortcut: bool,
    },
    /// The capture has ended, and its file is complete.
    Captured {
        frames: u64,
        dropped: u64,
    },
    Failed(CallError),
    ConnectionOptions(ConnectionOptions),
    NegotiatedOptions(NegotiatedOptions),
    Security(Vec<u8>),
    /// To `Attach`; with the descriptors of the shared queues and of the event that wakes the process
    /// ([`vi_core::sys::Waker`]). The application maps the queues; then the process seals them.
    Rings,
    /// `None`: unknown.
    User(Option<u32>),
    /// To `Register`: the reason why the process cannot reach the memory. The library can offer a bounce buffer.
    MemoryUnreachable(String),
}

/// Which frames to capture, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CaptureParameters {
    pub(crate) device: String,
    /// Capture only FC frames from or to this N_Port_ID; `None` for all frames.
    pub(crate) n_port_id: Option<[u8; 3]>,
    /// Captured bytes of each frame; 0 for all.
    pub(crate) snaplen_bytes: u32,
    /// Approximate size of the ring.
    pub(crate) buffer_bytes: u64,
    /// The capture ends after this number of frames.
    pub(crate) max_frames: u64,
}

/// The properties and limits of a NIC that an application needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) host: [u8; 16],
    pub(crate) native_mtu_bytes: u32,
    pub(crate) lenient: bool,
    pub(crate) spin_us: Option<u64>,
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
    /// Maximum numbers of VIs and regions of the application.
    pub(crate) quota_vis: u32,
    pub(crate) quota_regions: u32,
    /// Maximum number of descriptors of the application that are posted and not complete.
    pub(crate) max_descriptors: u32,
    /// Maximum number of calls of the application in progress.
    pub(crate) max_calls: u32,
    pub(crate) lock_memory: LockPolicy,
}

impl Description {
    /// The description for an application with this quota.
    pub(crate) fn of(config: &NicConfig, quota: &Quota, native_mtu_bytes: u32) -> Self {
        Self {
            name: config.name.clone(),
            host: config.host_address().0,
            native_mtu_bytes,
            lenient: config.protection == Protection::Lenient,
            spin_us: config.spin_us,
            takeover_us: config.progress.inline_keys().takeover_us,
            max_vi: config.limits.max_vi,
            max_descriptors_per_queue: config.limits.max_descriptors_per_queue,
            max_segments_per_descriptor: config.limits.max_segments_per_descriptor,
            max_cq: config.limits.max_cq.min(quota.max_cq),
            max_cq_entries: config.limits.max_cq_entries,
            max_notifies_per_queue: config.limits.max_notifies_per_queue,
            max_notify_threads: config.limits.max_notify_threads,
            max_transfer_bytes: config.limits.max_transfer_bytes,
            max_discriminator_bytes: config.limits.max_discriminator_bytes,
            // VIs and regions keep their indices of the process, which exceed the quota.
            max_regions: config.limits.max_regions,
            max_registered_bytes: config
                .limits
                .max_registered_bytes
                .min(quota.max_registered_bytes),
            max_region_bytes: config.limits.max_region_bytes,
            max_ptags: config.limits.max_ptags.min(quota.max_ptags),
            hosts_file: config
                .hosts_file
                .as_ref()
                .map(|path| path.to_string_lossy().into_owned()),
            quota_vis: config.limits.max_vi.min(quota.max_vi),
            quota_regions: config.limits.max_regions.min(quota.max_regions),
            max_descriptors: quota.max_descriptors,
            max_calls: quota.max_calls,
            lock_memory: config.lock_memory,
        }
    }

    /// The configuration of the NIC in the library of an attached program.
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
            progress: Progress::inline(self.takeover_us),
            hosts_file: self.hosts_file.as_ref().map(Into::into),
            lock_memory: self.lock_memory,
            limits: Limits {
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
                ..Limits::default()
            },
            ..NicConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vi_core::control_socket::MAX_MESSAGE_BYTES;
    use vi_types::{Discriminator, HostAddress, ReliabilityLevel};

    #[test]
    fn longest_request_fits_into_a_message() {
        let address = NetAddress {
            host: HostAddress([0xFF; 16]),
            discriminator: Discriminator::new(&[0xFF; Discriminator::MAX_BYTES]).unwrap(),
        };
        let longest = Request::Connect {
            vi: u64::MAX,
            local: address,
            remote: address,
            limit: Some(Duration::MAX),
        };
        let bytes = postcard::to_allocvec(&longest).unwrap();
        assert!(bytes.len() < MAX_MESSAGE_BYTES, "{}", bytes.len());
        let back: Request = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(format!("{back:?}"), format!("{longest:?}"));
    }

    #[test]
    fn description_contains_the_lock_policy() {
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
    fn attributes_round_trip() {
        for level in ReliabilityLevel::ALL {
            let original = ViParams {
                level,
                max_transfer_bytes: 7,
                rdma_write: false,
                rdma_read: true,
            };
            let bytes = postcard::to_allocvec(&original).unwrap();
            assert_eq!(postcard::from_bytes(&bytes), Ok(original));
        }
    }
}
