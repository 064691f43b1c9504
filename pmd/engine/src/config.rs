//! Identity, timers and limits of one N_Port.

use fcvi_frame::connect::HostAddress;
use fcvi_frame::fc::NPortId;
use fcvi_frame::profile;

use crate::misses::MissLimits;
use crate::recovery::RecoveryConfig;

/// Messages of Reliable Reception, at most, for which one VI lacks the response; so every VI can
/// keep the responses that its port has no room for, whatever either end is configured for.
pub const MAX_UNANSWERED: u32 = 256;
/// RDMA reads of a peer that one VI can be told to keep, at most.
const MAX_READS_ACCEPTED: u16 = 256;
/// Nanoseconds in a millisecond.
const NS_PER_MS: u64 = 1_000_000;

/// The shortest time between two sendings of an IU of a connection, where frames are lost.
const LOSSY_RETRY_NS: u64 = 100 * NS_PER_MS;

/// What an [`Engine`](crate::Engine) must know before the first frame.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Our N_Port_ID; also the low half of our MAC address.
    pub n_port_id: NPortId,
    /// Our Port_Name.
    pub port_name: u64,
    /// Our Node_Name.
    pub node_name: u64,
    /// The host part of our network address.
    pub host: HostAddress,
    /// The largest data field of a frame that we send or accept, device_header included.
    pub data_field_bytes: u16,
    /// E_D_TOV: how long a message may lack its next frame.
    pub e_d_tov_ns: u64,
    /// R_A_TOV: how long a frame can live in the network.
    pub r_a_tov_ns: u64,
    /// FCVI_ULP_TIMEOUT: how long a response may take. A request is sent four times in it; with
    /// message recovery 16 times, but not more often than every 100 ms unless four times are.
    pub ulp_timeout_ns: u64,
    /// After another port of the same host answered NO_MATCH, how long a silent one is waited for.
    pub silent_port_ns: u64,
    /// A peer request that was not answered with a connection is sent again after so long, then
    /// after four times that, and so on up to the pace of all requests; so are the other IUs of a
    /// peer-to-peer connection. Not 0.
    pub peer_retry_ns: u64,
    /// Ask a peer with open connections that it is still there when it was silent for so long;
    /// 0 if the port itself reports stations that go.
    pub probe_interval_ns: u64,
    /// VIs, at most 65535.
    pub max_vi: u32,
    /// Connection requests of others waiting for the consumer, at most.
    pub max_incoming: u32,
    /// Bytes of the discriminators of a connection request, at most; longer ones are refused.
    pub max_discriminator_bytes: u16,
    /// Disconnects waiting for their response, at most.
    pub max_closing: u32,
    /// A message ID further ahead than this is not believed.
    pub message_window: u32,
    /// RDMA reads of a peer that one VI keeps at a time, 1 to 256. Told to the peer, which
    /// asks no more; one that does breaks its connection.
    pub max_reads_accepted: u16,
    /// Descriptors that one VI has in flight at a time, 1 to [`MAX_UNANSWERED`]. More are sent
    /// when earlier ones complete. What it keeps for its peer does not depend on this.
    pub max_unanswered: u32,
    /// Limits on RDMA accesses of a peer whose handle names no region.
    pub miss_limits: MissLimits,
    /// Message recovery is offered for connections of the reliable levels, and how it is done;
    /// `None`: the first frame that is lost breaks them.
    pub recovery: Option<RecoveryConfig>,
    /// Messages between two VIs of this engine are moved from memory to memory, without frames.
    pub shortcut: bool,
    /// Bytes that one call of [`Engine::pump`](crate::Engine::pump) moves so for one VI, at most;
    /// not 0. A longer message takes several calls.
    pub shortcut_bytes: u32,
}

impl EngineConfig {
    /// The defaults of the wire profile for this identity.
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
            max_discriminator_bytes: fcvi_frame::connect::MAX_DISCRIMINATOR_BYTES as u16,
            max_closing: 1024,
            message_window: 1 << 24,
            max_reads_accepted: 16,
            max_unanswered: 64,
            miss_limits: MissLimits::default(),
            recovery: None,
            shortcut: false,
            shortcut_bytes: 1 << 16,
        }
    }

    /// How long an IU of a connection waits for its answer before it is sent again: it is sent
    /// four times in FCVI_ULP_TIMEOUT. On a network that loses frames 16 times, but not more often
    /// than every 100 ms, or four times where that is more: of a fifth of all frames lost, one
    /// exchange in three comes to nothing.
    pub(crate) fn retry_interval_ns(&self) -> u64 {
        let quarter_ns = self.ulp_timeout_ns / 4;
        match self.recovery {
            Some(_) => (quarter_ns / 4).max(LOSSY_RETRY_NS).min(quarter_ns),
            None => quarter_ns,
        }
    }

    /// The interval of repetitions after this one.
    pub(crate) fn slower(&self, interval_ns: u64) -> u64 {
        interval_ns
            .saturating_mul(4)
            .min(self.retry_interval_ns().max(interval_ns))
    }

    /// `max_reads_accepted` within its limits.
    pub(crate) fn reads_accepted(&self) -> u16 {
        self.max_reads_accepted.clamp(1, MAX_READS_ACCEPTED)
    }

    /// `max_unanswered` within its limits.
    pub(crate) fn unanswered(&self) -> usize {
        self.max_unanswered.clamp(1, MAX_UNANSWERED) as usize
    }
}
