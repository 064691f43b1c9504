//! The thread of a NIC that calls error handlers (VIPL 3.8).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Instant;

use pmd_port::stderr;
use vi_core::events::AsyncEvent;
use vi_core::handler_thread::enter_handlers;

use crate::device::Device;

/// Runs the thread that calls the error handlers, until the NIC is taken down.
pub(crate) fn deliver(device: &'static Device, epoch: u32) {
    enter_handlers();
    while let Some(event) = device.shared.events.next(epoch) {
        if event.nic_handle != 0 {
            deliver_one(device, &event);
            continue;
        }
        for nic_handle in device.nic_handles.handles() {
            deliver_one(
                device,
                &AsyncEvent {
                    nic_handle,
                    ..event
                },
            );
        }
    }
}

fn deliver_one(device: &'static Device, event: &AsyncEvent) {
    let Some(handler) = device.nic_handles.begin_call(event.nic_handle) else {
        return;
    };
    let _call = HandlerCall(device, event.nic_handle);
    let call = move || match handler {
        Some(handler) => {
            let mut handler = handler.lock().unwrap_or_else(PoisonError::into_inner);
            handler(event);
        }
        None => default_handler(device, event),
    };
    // If the handler was replaced meanwhile, it is also dropped here.
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        device
            .shared
            .log_limited(log::Level::Error, format_args!("an error handler panicked"));
    }
}

/// A running handler call; ends on drop, even if a handler or logger panics, since other threads may wait for it.
struct HandlerCall(&'static Device, u64);

impl Drop for HandlerCall {
    fn drop(&mut self) {
        self.0.nic_handles.end_call(self.1);
    }
}

/// Logs the error, within the rate limit; in a program without a logger it is written to standard
/// error. An orderly disconnect of the peer is logged at level `info`.
fn default_handler(device: &'static Device, event: &AsyncEvent) {
    if event.is_orderly {
        let level = log::Level::Info;
        device.shared.log_limited(
            level,
            format_args!("VI {:#x}: disconnected by its peer", event.vi),
        );
        return;
    }
    let mut text = format!("asynchronous error {} of {}", event.code, event.resource);
    if event.vi != 0 {
        text += &format!(" (VI {:#x})", event.vi);
    }
    if log::max_level() != log::LevelFilter::Off {
        device
            .shared
            .log_limited(log::Level::Error, format_args!("{text}"));
        return;
    }
    let (name, limiter) = (&device.shared.name, &device.shared.log_limiter);
    let Some(suppressed) = limiter.admit(Instant::now()) else {
        return;
    };
    if suppressed > 0 {
        let limit = limiter.lines_per_second();
        stderr::write_line(format_args!(
            "viaduct: NIC {name}: {suppressed} log lines suppressed: more than {limit} per second"
        ));
    }
    stderr::write_line(format_args!("viaduct: NIC {name}: {text}"));
}
