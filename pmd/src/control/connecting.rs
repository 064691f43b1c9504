//! Establishes, queries and ends connections (VIPL 3.3).

use std::thread;
use std::time::{Duration, Instant};

use vi_core::biased_lock::BiasedGuard;
use vi_core::sync::Ordering;
use vi_types::{
    CallError, ConnId, ConnectRequest, ConnectionOptions, HostAddress, Indication,
    NegotiatedOptions, NetAddress, Outcome, ReliabilityLevel, ResourceError, ViParams, ViState,
};

use super::{LocalCalls, poller_of, working_poller_for};
use crate::call_waiters::Object;
use crate::config::{NicConfig, ip_address};
use crate::control_calls::ConnectionCalls;
use crate::device::Device;
use crate::lookup::Vi;
use crate::nic_backend::Backend;
use crate::nic_handle::Conn;
use crate::poller::PollState;
use crate::progress::{TimedOut, wait_for};
use crate::transport::{ListenState, Transport};
use vi_tcp::{LISTEN_TIMEOUT, retry_listening};

/// Numbers a request for the consumer.
pub(super) fn conn_of(id: ConnId) -> Conn {
    Conn(u64::from(id.index()) << 32 | u64::from(id.generation()))
}

/// Returns the ID of a request that [`conn_of`] has numbered.
pub(super) fn id_of(conn: Conn) -> ConnId {
    ConnId::new((conn.0 >> 32) as u32, conn.0 as u32)
}

fn found(indication: Indication) -> (Conn, NetAddress, ViParams) {
    let Indication {
        conn,
        remote,
        attributes,
    } = indication;
    (conn_of(conn), remote, attributes)
}

impl ConnectionCalls for LocalCalls {
    fn connect_wait(
        &self,
        device: &'static Device,
        nic_handle: u64,
        local: &NetAddress,
        limit: Option<Duration>,
    ) -> Outcome<(Conn, NetAddress, ViParams)> {
        start_listening(device, nic_handle, LISTEN_TIMEOUT)?;
        let (listener, epoch) = {
            let mut held = device.lock();
            let (transport, state) = working_poller_for(&mut held, device, nic_handle)?;
            let listener = transport.listen(state.clock.now_ns(), local.discriminator);
            (listener, device.epoch())
        };
        let objects = [Object::Listener(listener), Object::NicHandle(nic_handle)];
        let outcome = wait_for(device, &objects, limit, |held| {
            match working_poller_for(held, device, nic_handle) {
                Ok((transport, _)) => transport.take_indication(listener).map(Ok),
                Err(closed) => Some(Err(closed)),
            }
        });
        let error = match outcome {
            Ok(Ok(indication)) => return Ok(found(indication)),
            Ok(Err(closed)) => closed,
            Err(TimedOut) => CallError::Timeout,
        };
        let mut held = device.lock();
        // The engine of a later epoch does not have this listener.
        let Some((transport, state)) = held
            .as_mut()
            .and_then(|backend| backend.local_mut())
            .filter(|_| device.is_current_epoch(epoch))
        else {
            return Err(CallError::InvalidParameter);
        };
        if error == CallError::Timeout
            && let Some(indication) = transport.take_indication(listener)
        {
            return Ok(found(indication));
        }
        transport.unlisten(state.clock.now_ns(), listener, &mut state.path);
        state.path.flush();
        Err(error)
    }

    fn connect_accept(&self, conn: Conn, vi: Vi, handle: u64) -> Outcome<()> {
        {
            let mut held = lock_for_connecting(vi);
            let (transport, state) = poller_of(&mut held, vi, handle)?;
            let now_ns = state.clock.now_ns();
            transport.accept(now_ns, id_of(conn), vi.index, &mut state.path)?;
            vi.connecting.fetch_add(1, Ordering::Relaxed);
            state.path.flush();
        }
        await_outcome(vi, handle).map(|_| ())
    }

    fn connect_reject(&self, device: &'static Device, conn: Conn) -> Outcome<()> {
        let mut held = device.lock();
        let (transport, state) = held
            .as_mut()
            .and_then(|backend| backend.local_mut())
            .ok_or(CallError::InvalidParameter)?;
        transport.reject(state.clock.now_ns(), id_of(conn), &mut state.path)?;
        state.path.flush();
        Ok(())
    }

    fn connect_request(
        &self,
        vi: Vi,
        handle: u64,
        local: &NetAddress,
        remote: &NetAddress,
        limit: Option<Duration>,
    ) -> Outcome<ViParams> {
        let limit = await_host_ports(vi, handle, remote.host, limit)?;
        {
            let mut held = lock_for_connecting(vi);
            let (transport, state) = poller_of(&mut held, vi, handle)?;
            let now_ns = state.clock.now_ns();
            // Includes ports that joined before this call, even without a poll since then.
            state.serve_port_events(transport, now_ns);
            if state.failure.is_some() {
                return Err(fail_unreachable(vi, transport, state, now_ns));
            }
            warn_if_not_on_segment(vi, transport, remote.host);
            let request = ConnectRequest {
                local,
                remote,
                timeout_ns: timeout_ns(limit),
            };
            transport.connect(now_ns, vi.index, &request, &mut state.path)?;
            vi.connecting.fetch_add(1, Ordering::Relaxed);
            state.path.flush();
        }
        await_outcome(vi, handle)
    }

    fn connect_peer_request(
        &self,
        vi: Vi,
        handle: u64,
        local: &NetAddress,
        remote: &NetAddress,
        limit: Option<Duration>,
    ) -> Outcome<()> {
        let mut held = lock_for_connecting(vi);
        let (transport, state) = poller_of(&mut held, vi, handle)?;
        let now_ns = state.clock.now_ns();
        // As for a request to a server.
        state.serve_port_events(transport, now_ns);
        if state.failure.is_some() {
            return Err(ResourceError::NicFailed.into());
        }
        warn_if_not_on_segment(vi, transport, remote.host);
        let request = ConnectRequest {
            local,
            remote,
            timeout_ns: timeout_ns(limit),
        };
        transport.connect_peer(now_ns, vi.index, &request, &mut state.path)?;
        state.path.flush();
        vi.device.shared.notify(state.path.take_pending_events());
        Ok(())
    }

    fn connect_peer_done(&self, vi: Vi, handle: u64) -> Outcome<Option<ViParams>> {
        vi.device.poll();
        let mut held = vi.device.lock();
        let (transport, _) = poller_of(&mut held, vi, handle)?;
        let number = transport.peer_request(vi.index);
        let number = number.ok_or(CallError::InvalidState)?;
        transport.take_peer_outcome(vi.index, number).transpose()
    }

    fn connect_peer_wait(&self, vi: Vi, handle: u64) -> Outcome<ViParams> {
        let number = {
            let mut held = vi.device.lock();
            let (transport, _) = poller_of(&mut held, vi, handle)?;
            let number = transport.peer_request(vi.index);
            number.ok_or(CallError::InvalidState)?
        };
        // The request has its own timeout: this wait ends with it, or with the VI.
        let connection = Object::Connection(vi.index);
        wait_for(vi.device, &[connection], None, |held| {
            match poller_of(held, vi, handle) {
                Ok((transport, _)) => transport.take_peer_outcome(vi.index, number),
                Err(closed) => Some(Err(closed)),
            }
        })?
    }

    fn disconnect(&self, vi: Vi, handle: u64) -> Outcome<()> {
        let device = vi.device;
        let mut held = device.lock();
        let backend = held
            .as_mut()
            .filter(|_| vi.is_live(handle))
            .ok_or(CallError::InvalidParameter)?;
        backend.end_connection(&vi);
        device.wake_waiters(backend);
        Ok(())
    }

    fn connection_options(&self, vi: Vi, handle: u64) -> Outcome<ConnectionOptions> {
        let mut held = vi.device.lock();
        let (transport, _) = poller_of(&mut held, vi, handle)?;
        let options = transport.connection_options(vi.index);
        options.cloned().ok_or(CallError::InvalidParameter)
    }

    fn set_connection_options(
        &self,
        vi: Vi,
        handle: u64,
        options: &ConnectionOptions,
    ) -> Outcome<()> {
        options.check(max_security_bytes(&vi.device.config))?;
        let mut held = vi.device.lock();
        let (transport, _) = poller_of(&mut held, vi, handle)?;
        transport.set_connection_options(vi.index, options)
    }

    fn negotiated_options(&self, vi: Vi, handle: u64) -> Outcome<NegotiatedOptions> {
        vi.device.poll();
        let mut held = vi.device.lock();
        let (transport, _) = poller_of(&mut held, vi, handle)?;
        transport.negotiated_options(vi.index)
    }

    fn request_security(&self, device: &'static Device, conn: Conn) -> Outcome<Vec<u8>> {
        let held = device.lock();
        let local = held.as_ref().and_then(|backend| backend.local());
        let (transport, _) = local.ok_or(CallError::InvalidParameter)?;
        transport.security_of(id_of(conn))
    }

    fn request_user(&self, device: &'static Device, conn: Conn) -> Outcome<Option<u32>> {
        let mut held = device.lock();
        let local = held.as_mut().and_then(|backend| backend.local_mut());
        let (transport, state) = local.ok_or(CallError::InvalidParameter)?;
        let requester = transport.requester(id_of(conn))?;
        Ok(requester.and_then(|vi| state.path.user_of(vi)))
    }

    fn peer_user(&self, vi: Vi, handle: u64) -> Outcome<Option<u32>> {
        vi.device.poll();
        let mut held = vi.device.lock();
        let (transport, state) = poller_of(&mut held, vi, handle)?;
        let peer = transport.connected_to(vi.index)?;
        Ok(peer.and_then(|vi| state.path.user_of(vi)))
    }
}

/// Starts listening, if the transport has a TCP port. Retries until `timeout` while another program uses the port,
/// without the backend lock, since that program may never share it.
pub(crate) fn start_listening(device: &Device, nic_handle: u64, timeout: Duration) -> Outcome<()> {
    retry_listening(timeout, |is_last_try| {
        let mut held = device.lock();
        let (transport, _) = match working_poller_for(&mut held, device, nic_handle) {
            Ok(poller) => poller,
            Err(error) => return Some(Err(error)),
        };
        match transport.start_listening(is_last_try) {
            ListenState::Listening => Some(Ok(())),
            ListenState::PortTaken if !is_last_try => None,
            ListenState::PortTaken | ListenState::Failed => Some(Err(ResourceError::Listen.into())),
        }
    })
}

/// Waits for the outcome of a connection procedure on a VI.
fn await_outcome(vi: Vi, handle: u64) -> Outcome<ViParams> {
    let device = vi.device;
    // The procedure has its own timeouts: this wait ends with them, or with the VI.
    let connection = Object::Connection(vi.index);
    let found = wait_for(device, &[connection], None, |held| {
        match poller_of(held, vi, handle) {
            Ok((transport, _)) => transport.take_outcome(vi.index),
            Err(closed) => Some(Err(closed)),
        }
    });
    vi.connecting.fetch_sub(1, Ordering::Relaxed);
    found?
}

/// Acquires the backend lock once no earlier connection call on this VI has its outcome pending: a call that was ended
/// by a disconnect of another thread must not receive the outcome of the next call.
fn lock_for_connecting(vi: Vi) -> BiasedGuard<'static, Option<Backend>> {
    loop {
        let mut held = vi.device.lock();
        let Some((transport, state)) = held.as_mut().and_then(|backend| backend.local_mut()) else {
            return held;
        };
        let idle = transport.state(vi.index) == Some(ViState::Idle);
        if !idle || vi.connecting.load(Ordering::Relaxed) == 0 {
            return held;
        }
        state.path.calls.notify(Object::Connection(vi.index));
        state.path.calls.wake_due();
        drop(held);
        vi.device.shared.wake_all_waiters();
        thread::yield_now();
    }
}

/// Converts a timeout for the engine.
fn timeout_ns(limit: Option<Duration>) -> Option<u64> {
    limit.map(|l| u64::try_from(l.as_nanos()).unwrap_or(u64::MAX))
}

/// Logs the reason if a host is unknown on a shared-memory segment.
fn warn_if_not_on_segment(vi: Vi, transport: &dyn Transport, host: HostAddress) {
    let (device, config) = (vi.device, &vi.device.config);
    if let Some(segment) = config.network.segment_name()
        && !transport.knows_host(host)
    {
        let (host, own) = (ip_address(host), config.own_host());
        let line = format_args!(
            "connection request to {host}: not on segment {segment}, whose programs have the host {own}: connect to \
             localhost, or set host = \"{host}\" in the configuration of all programs of the segment"
        );
        device.shared.log_limited(log::Level::Warn, line);
    }
}

/// With discovery, waits until the N_Port_IDs of a host are known; returns the remaining
/// limit.
fn await_host_ports(
    vi: Vi,
    handle: u64,
    host: HostAddress,
    limit: Option<Duration>,
) -> Outcome<Option<Duration>> {
    let device = vi.device;
    if !device.config.discovers() {
        return Ok(limit);
    }
    let start = Instant::now();
    let is_resolving = {
        let mut held = device.lock();
        let (transport, state) = poller_of(&mut held, vi, handle)?;
        transport.resolve_host(state.clock.now_ns(), host, &mut state.path)?
    };
    if is_resolving {
        let discovery_timeout =
            Duration::from_millis(device.config.addressing.discovery().timeout_ms);
        let poll = |held: &mut BiasedGuard<'_, Option<Backend>>| match poller_of(held, vi, handle) {
            Ok((transport, state)) => {
                let is_done = state.failure.is_some() || !transport.is_resolving_host(host);
                is_done.then_some(Ok(()))
            }
            Err(closed) => Some(Err(closed)),
        };
        let timeout = limit.unwrap_or(discovery_timeout).min(discovery_timeout);
        // After the timeout the request goes to the ports that are known; its own limit may have expired, too.
        let objects = [Object::Host(host), Object::Connection(vi.index)];
        if let Ok(found) = wait_for(device, &objects, Some(timeout), poll) {
            found?;
        }
    }
    match limit.map(|limit| limit.saturating_sub(start.elapsed())) {
        Some(Duration::ZERO) => Err(CallError::Timeout),
        left => Ok(left),
    }
}

/// Fails a request on a NIC whose port has failed: moves a reliable VI to Error, which flushes its
/// descriptors (VIPL 3.3.4).
#[cold]
fn fail_unreachable(
    vi: Vi,
    transport: &mut dyn Transport,
    state: &mut PollState,
    now_ns: u64,
) -> CallError {
    if transport.state(vi.index) != Some(ViState::Idle) {
        return CallError::InvalidState;
    }
    if vi.settings().reliability != ReliabilityLevel::UnreliableDelivery.bit() {
        transport.fail_vi(now_ns, vi.index, &mut state.path);
        vi.device.shared.notify(state.path.take_pending_events());
    }
    CallError::NotReachable
}

/// Returns the maximum length of security information of VIs of this NIC.
fn max_security_bytes(nic: &NicConfig) -> usize {
    let tcp = nic.network.vi_tcp();
    match tcp.and_then(|tcp| tcp.key_file.as_ref()) {
        Some(_) => ConnectionOptions::MAX_KEYED_SECURITY_BYTES,
        None => ConnectionOptions::MAX_SECURITY_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;
    use crate::config::{Network, ViTcp};
    use crate::open;

    #[test]
    fn keys_limit_security_information() {
        let mut nic = NicConfig::default();
        assert_eq!(max_security_bytes(&nic), 256);
        nic.network = Network::ViTcp(ViTcp {
            key_file: Some("keys".into()),
            ..ViTcp::default()
        });
        assert_eq!(max_security_bytes(&nic), 191);
    }

    /// The backend lock is free while a call waits for a port that an unrelated program has.
    #[test]
    fn call_that_waits_for_port_does_not_hold_backend_lock() {
        const TIMEOUT: Duration = Duration::from_secs(20);
        let name = format!("viaduct-unit-{}-taken", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let host = Ipv4Addr::from_bits(0x7F71_0000 | std::process::id() & 0xFFFF);
        let tcp = ViTcp {
            directory: Some(directory.clone()),
            ..ViTcp::default()
        };
        let unrelated = TcpListener::bind((host, tcp.port)).unwrap();
        let config = NicConfig {
            host: Some(host.into()),
            network: Network::ViTcp(tcp),
            ..NicConfig::default()
        };
        let (device, nic) = open::open_without_threads(&config).unwrap();
        thread::scope(|scope| {
            let call = scope.spawn(|| start_listening(device, nic, TIMEOUT));
            while fs::read_dir(&directory).unwrap().next().is_none() {
                assert!(!call.is_finished(), "it did not wait");
                thread::yield_now();
            }
            let held = device.lock();
            drop(unrelated);
            drop(held);
            assert_eq!(call.join().unwrap(), Ok(()));
        });
        open::close(device, nic).unwrap();
        fs::remove_dir_all(directory).unwrap();
    }
}
