//! Identity, timers and limits of one N_Port.

use fcvi_frame::fc::NPortId;
use fcvi_frame::profile;
use vi_types::{HostAddress, MissLimits};

use crate::recovery::RecoveryConfig;

/// Maximum messages in flight per VI at Reliable Reception. Every VI can queue as many responses
/// when its port has no room, whatever either side is configured for.
pub const MAX_UNANSWERED: u32 = 256;
/// Maximum RDMA reads of the peer that one VI can queue.
const MAX_READS_ACCEPTED: u16 = 256;
/// Nanoseconds in a millisecond.
const NS_PER_MS: u64 = 1_000_000;

/// Minimum retry interval of connection IUs on networks that lose frames.
const LOSSY_RETRY_NS: u64 = 100 * NS_PER_MS;

/// Configuration of an [`Engine`](crate::Engine).
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// N_Port_ID; also the low half of the MAC address.
    pub n_port_id: NPortId,
    /// Port_Name.
    pub port_name: u64,
    /// Node_Name.
    pub node_name: u64,
    /// Host part of the network address.
    pub host: HostAddress,
    /// Maximum data field of frames sent and accepted, in bytes, device_header included.
    pub data_field_bytes: u16,
    /// E_D_TOV: how long a message may lack its next frame.
    pub e_d_tov_ns: u64,
    /// R_A_TOV: maximum lifetime of a frame in the network.
    pub r_a_tov_ns: u64,
    /// FCVI_ULP_TIMEOUT: timeout of a response, except for RESP2, which times out after four times
    /// E_D_TOV if that is less. A request is sent four times within its timeout; with message
    /// recovery 16 times, but at least 100 ms apart unless that is less than four times.
    pub ulp_timeout_ns: u64,
    /// After another port of the same host answered NO_MATCH: timeout of ports that have not
    /// replied.
    pub silent_port_ns: u64,
    /// First retry interval of a peer request that was not accepted; it grows by a factor of four
    /// up to the interval of other requests. Applies to the other IUs of a peer-to-peer connection
    /// too. Not 0.
    pub peer_retry_ns: u64,
    /// Idle time of a peer with connections after which it is probed; 0 if the port itself reports
    /// lost stations.
    pub probe_interval_ns: u64,
    /// Maximum VIs, at most 65535.
    pub max_vi: u32,
    /// Maximum connection requests of other ports that are pending for the consumer.
    pub max_incoming: u32,
    /// Maximum discriminator length of a connection request in bytes; longer ones are refused.
    pub max_discriminator_bytes: u16,
    /// Maximum disconnects that wait for their response.
    pub max_pending_disconnects: u32,
    /// Maximum distance of a message ID ahead of the expected one; frames beyond are dropped.
    pub message_window: u32,
    /// RDMA reads of the peer that one VI queues, 1 to 256. Advertised to the peer; a peer that
    /// exceeds it breaks its connection.
    pub max_reads_accepted: u16,
    /// Maximum descriptors in flight per VI, 1 to [`MAX_UNANSWERED`]. Further ones are sent when
    /// earlier ones complete. The number of queued responses does not depend on this.
    pub max_unanswered: u32,
    /// Limits on RDMA accesses of a peer whose handle names no region.
    pub miss_limits: MissLimits,
    /// Message recovery, offered for connections of the reliable levels; `None`: the first lost
    /// frame breaks them.
    pub recovery: Option<RecoveryConfig>,
    /// Moves messages between two VIs of this engine from memory to memory, without frames.
    pub shortcut: bool,
    /// Maximum bytes that one call of [`Engine::pump`](crate::Engine::pump) moves that way for one
    /// VI; not 0. A longer message takes several calls.
    pub shortcut_bytes: u32,
}

impl EngineConfig {
    /// Returns the defaults of the wire profile for this identity.
    pub fn new(n_port_id: NPortId, host: HostAddress) -> Self {
        Self {
            n_port_id,
            port_name: 0,
            node_name: 0,
            host,
            data_field_bytes: fcvi_frame::fcoe::MAX_DATA_FIELD_BYTES as u16,
            e_d_tov_ns: u64::from(profile::E_D_TOV_MS) * NS_PER_MS,
            r_a_tov_ns: u64::from(profile::R_A_TOV_MS) * NS_PER_MS,
            ulp_timeout_ns: 2 * u64::from(profile::R_A_TOV_MS) * NS_PER_MS,
            silent_port_ns: 100 * NS_PER_MS,
            peer_retry_ns: 10 * NS_PER_MS,
            probe_interval_ns: 0,
            max_vi: 1024,
            max_incoming: 256,
            max_discriminator_bytes: vi_types::Discriminator::MAX_BYTES as u16,
            max_pending_disconnects: 1024,
            message_window: 1 << 24,
            max_reads_accepted: 16,
            max_unanswered: 64,
            miss_limits: MissLimits::default(),
            recovery: None,
            shortcut: false,
            shortcut_bytes: 1 << 16,
        }
    }

    /// Returns the retry interval of connection IUs: they are sent four times within
    /// FCVI_ULP_TIMEOUT. On a network that loses frames 16 times, but at least 100 ms apart, or
    /// four times where that is more: if a fifth of all frames is lost, one exchange in three
    /// fails.
    pub(crate) fn retry_interval_ns(&self) -> u64 {
        self.retry_interval_within_ns(self.ulp_timeout_ns)
    }

    /// Returns the retry interval of an IU whose response has this timeout.
    pub(crate) fn retry_interval_within_ns(&self, timeout_ns: u64) -> u64 {
        let quarter_ns = timeout_ns / 4;
        match self.recovery {
            Some(_) => (quarter_ns / 4).max(LOSSY_RETRY_NS).min(quarter_ns),
            None => quarter_ns,
        }
    }

    /// Returns the timeout of RESP2. A client sends it as soon as it receives RESP1, so that the
    /// time of a few lost frames is enough; meanwhile a thread of the consumer is blocked.
    pub(crate) fn response2_timeout_ns(&self) -> u64 {
        self.ulp_timeout_ns.min(self.e_d_tov_ns.saturating_mul(4))
    }

    /// Returns the retry interval that follows this one, of an IU whose response has this timeout.
    pub(crate) fn next_retry_interval_ns(&self, interval_ns: u64, timeout_ns: u64) -> u64 {
        let most_ns = self.retry_interval_within_ns(timeout_ns);
        interval_ns.saturating_mul(4).min(most_ns.max(interval_ns))
    }

    /// Returns `max_reads_accepted` within its limits.
    pub(crate) fn reads_accepted(&self) -> u16 {
        self.max_reads_accepted.clamp(1, MAX_READS_ACCEPTED)
    }

    /// Returns `max_unanswered` within its limits.
    pub(crate) fn unanswered(&self) -> usize {
        self.max_unanswered.clamp(1, MAX_UNANSWERED) as usize
    }
}
