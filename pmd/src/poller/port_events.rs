//! Events of a port: stations that join and leave, MTU changes, and failures.

use pmd_port::{MtuChange, PortEvent, PortFailure, RingFailure};
use vi_core::events::AsyncEvent;
use vi_core::waiters::Event;

use super::PollState;
use crate::transport::Transport;

impl PollState {
    /// Handles the events that the port reports. Returns true if there were any.
    pub(crate) fn serve_port_events(&mut self, transport: &mut dyn Transport, now_ns: u64) -> bool {
        let reported = self.path.port.events(&mut self.port_events);
        if reported {
            self.handle_port_events(transport, now_ns);
        }
        reported
    }

    fn handle_port_events(&mut self, transport: &mut dyn Transport, now_ns: u64) {
        // Taken out and put back, so that the data path can be used in between.
        let mut events = core::mem::take(&mut self.port_events);
        self.path.pending_events |= Event::CONTROL;
        for event in events.drain(..) {
            match event {
                PortEvent::Joined(station) => {
                    transport.station_joined(now_ns, station.mac, &mut self.path);
                }
                PortEvent::Left(station) => {
                    transport.station_left(now_ns, station.mac, &mut self.path);
                }
                PortEvent::MtuChanged(change) => self.note_mtu(change),
                PortEvent::RingFailed(failure) => self.warn_ring_failed(failure),
                PortEvent::Unreachable(mac) => {
                    transport.station_unreachable(now_ns, mac, &mut self.path);
                }
                PortEvent::Failed(failure) => self.fail_port(transport, now_ns, failure),
            }
        }
        self.port_events = events;
    }

    /// Logs that the MTU was lowered below the port's frames, or is sufficient again.
    #[cold]
    fn note_mtu(&mut self, change: MtuChange) {
        let interface = &self.path.port.capabilities().device;
        let MtuChange {
            opened_bytes,
            now_bytes,
            is_too_low,
        } = change;
        if !is_too_low {
            log::info!("{interface}: the MTU is {now_bytes} bytes, which is enough again");
            self.path.lowered_mtu = None;
            return;
        }
        log::warn!(
            "{interface}: the MTU was lowered from {opened_bytes} to {now_bytes} bytes: longer frames are dropped, sent \
             or received: `ip link set {interface} mtu {opened_bytes}`"
        );
        self.path.lowered_mtu = Some(change);
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

    /// Handles the failure of the port (VIPL 6.3.1): moves every VI to Error, wakes all waiters, and
    /// reports the error to every NIC handle. Objects can still be destroyed in order.
    #[cold]
    fn fail_port(&mut self, transport: &mut dyn Transport, now_ns: u64, failure: PortFailure) {
        if self.failure.replace(failure).is_some() {
            return;
        }
        let port = self.path.port.capabilities();
        log::error!("{} {}: {failure}", port.driver, port.device);
        self.path.fail_port();
        transport.port_lost(now_ns, &mut self.path);
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
