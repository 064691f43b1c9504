//! Events of a port: stations that join and leave, MTU changes, and failures.

use fcvi_frame::fc::NPortId;
use pmd_port::{MacBytes, PortEvent, PortFailure, RingFailure};
use vi_core::events::AsyncEvent;
use vi_core::waiters::Event;

use super::Poller;

/// Returns the N_Port_ID of a station of a segment.
fn id_of(mac: MacBytes) -> Option<NPortId> {
    NPortId::new(u32::from_be_bytes([0, mac[3], mac[4], mac[5]]))
}

impl Poller {
    /// Handles the events that the port reports. Returns true if there were any.
    pub(crate) fn serve_port_events(&mut self, now_ns: u64) -> bool {
        let reported = self.path.port.events(&mut self.port_events);
        if reported {
            self.handle_port_events(now_ns);
        }
        reported
    }

    fn handle_port_events(&mut self, now_ns: u64) {
        // Taken out and put back, so that the engine can be called in between.
        let mut events = core::mem::take(&mut self.port_events);
        self.path.pending_events |= Event::CONTROL;
        for event in events.drain(..) {
            let (mac, joined) = match event {
                PortEvent::Joined(n) => (n.mac, true),
                PortEvent::Left(n) => (n.mac, false),
                PortEvent::MtuChanged(change) => {
                    self.path.note_mtu(change);
                    continue;
                }
                PortEvent::RingFailed(failure) => {
                    self.warn_ring_failed(failure);
                    continue;
                }
                PortEvent::Unreachable(mac) => {
                    self.lose_peer(now_ns, mac);
                    continue;
                }
                PortEvent::Failed(failure) => {
                    self.fail_port(now_ns, failure);
                    continue;
                }
            };
            let Some(id) = id_of(mac) else {
                continue;
            };
            if joined {
                self.neighbours.add_sibling(id);
                let host = self.neighbours.own_host();
                if let Some(engine) = self.engine.fc_vi_mut() {
                    engine.port_joined(now_ns, host, id, &mut self.path);
                }
            } else {
                self.neighbours.remove(id);
                if let Some(engine) = self.engine.fc_vi_mut() {
                    engine.peer_lost(now_ns, id, &mut self.path);
                }
            }
        }
        self.port_events = events;
    }

    /// Logs, once, why frames of this port are dropped in shared memory.
    #[cold]
    fn warn_ring_failed(&mut self, failure: RingFailure) {
        if core::mem::replace(&mut self.ring_failure_logged, true) {
            return;
        }
        let port = self.path.port.capabilities();
        let (driver, device) = (port.driver, &port.device);
        let error = std::io::Error::from_raw_os_error(failure.errno);
        let ring_kib = failure.ring_bytes >> 10;
        let remedy = remedy_for_ring(failure);
        log::warn!(
            "{driver} {device}: the ring to or from another program ({ring_kib} KiB) cannot be \
             created: {error}: connections with it fail: {remedy}"
        );
    }

    /// Ends the logins and connections of a station to which frames are dropped.
    #[cold]
    fn lose_peer(&mut self, now_ns: u64, mac: MacBytes) {
        if let (Some(id), Some(engine)) = (id_of(mac), self.engine.fc_vi_mut()) {
            engine.peer_lost(now_ns, id, &mut self.path);
        }
    }

    /// Handles the failure of the port (VIPL 6.3.1): moves every VI to Error, wakes all waiters, and
    /// reports the error to every NIC handle. Objects can still be destroyed in order.
    #[cold]
    fn fail_port(&mut self, now_ns: u64, failure: PortFailure) {
        if self.failure.replace(failure).is_some() {
            return;
        }
        let port = self.path.port.capabilities();
        log::error!("{} {}: {failure}", port.driver, port.device);
        self.path.fail_port();
        if let Some(engine) = self.engine.fc_vi_mut() {
            engine.port_lost(now_ns, &mut self.path);
        }
        self.path.events.push(AsyncEvent::of_nic());
        self.path.pending_events = Event::ALL;
        self.path.calls.notify_all();
    }
}

/// Returns the advice for a ring in shared memory that cannot be created.
fn remedy_for_ring(failure: RingFailure) -> String {
    match failure.errno {
        libc::EACCES | libc::EPERM => {
            "the program may not open files that it could when it opened the NIC; drop privileges \
             before that"
                .to_owned()
        }
        libc::EMFILE => {
            "no file descriptor is left; raise RLIMIT_NOFILE (LimitNOFILE= of a unit)".to_owned()
        }
        libc::ENFILE => "the system has no file left; raise fs.file-max".to_owned(),
        libc::ENOMEM => "check RLIMIT_AS and vm.max_map_count".to_owned(),
        libc::EFBIG => "raise RLIMIT_FSIZE".to_owned(),
        _ => format!(
            "the file system of the segment has {} MiB in all; enlarge it (mount -o \
             remount,size=..., docker --shm-size), or set directory to one on a larger tmpfs, for \
             all programs of the segment",
            failure.file_system_bytes >> 20
        ),
    }
}
