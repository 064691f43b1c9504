//! One opening of a NIC: what it owns and who hears its errors (VIPL 3.1, 3.8).

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use vi_engine::ConnId;

use crate::device::Device;
use crate::events::AsyncEvent;
use crate::vi::{FIELD_MASK, Kind, RawHandle};

/// A consumer's error handler.
pub type Handler = Box<dyn FnMut(&AsyncEvent) + Send>;

/// A handler and who may be calling it.
type SharedHandler = Arc<Mutex<Handler>>;

struct Instance {
    handle: u64,
    handler: Option<SharedHandler>,
    /// Protection tags: numbers, unique in the process.
    tags: Vec<u32>,
}

#[derive(Default)]
struct Table {
    instances: Vec<Instance>,
    opened: u32,
    next_tag: u32,
    /// Requests that the consumer was told of: handle, instance, what the engine calls it.
    conns: Vec<(u64, u64, ConnId)>,
    next_conn: u32,
    /// The instances whose handlers are being called.
    called: Vec<u64>,
}

/// What an opening that ended leaves to its closer.
pub(crate) struct Closed {
    conns: Vec<ConnId>,
    _handler: Option<SharedHandler>,
}

impl Closed {
    /// The requests that its consumer was told of and did not answer.
    pub(crate) fn conns(&self) -> &[ConnId] {
        &self.conns
    }
}

/// All openings of one NIC.
#[derive(Default)]
pub(crate) struct Instances {
    table: Mutex<Table>,
    /// A handler has returned.
    returned: Condvar,
}

impl Instances {
    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().instances.len()
    }

    /// The openings as they are now.
    fn handles(&self) -> Vec<u64> {
        self.lock().instances.iter().map(|i| i.handle).collect()
    }

    pub(crate) fn open(&self, device: u16) -> u64 {
        let mut table = self.lock();
        table.opened = (table.opened + 1) & FIELD_MASK;
        let handle = RawHandle::pack(Kind::Nic, device, table.opened, 0);
        table.instances.push(Instance {
            handle,
            handler: None,
            tags: Vec::new(),
        });
        handle
    }

    /// Ends an opening: nothing can be done through its handle any more. `None` if it ended
    /// before.
    pub(crate) fn close(&self, handle: u64) -> Option<Closed> {
        let mut table = self.lock();
        let at = table.instances.iter().position(|i| i.handle == handle)?;
        let instance = table.instances.remove(at);
        let mut conns = Vec::new();
        table.conns.retain(|(_, owner, conn)| {
            if *owner == handle {
                conns.push(*conn);
            }
            *owner != handle
        });
        Some(Closed {
            conns,
            _handler: instance.handler,
        })
    }

    pub(crate) fn is_open(&self, handle: u64) -> bool {
        self.lock().instances.iter().any(|i| i.handle == handle)
    }

    /// Replaces the handler of an opening. When this returns, the old one is not running,
    /// unless it is called from one.
    pub(crate) fn set_handler(&self, handle: u64, handler: Option<Handler>) -> bool {
        let new = handler.map(|h| Arc::new(Mutex::new(h)));
        let old = {
            let mut table = self.lock();
            let Some(instance) = table.instances.iter_mut().find(|i| i.handle == handle) else {
                return false;
            };
            core::mem::replace(&mut instance.handler, new)
        };
        self.await_handler(handle);
        // It goes outside of the lock: it may own things of the program's.
        drop(old);
        true
    }

    /// Waits until the handler of an instance that may be running has returned.
    pub(crate) fn await_handler(&self, handle: u64) {
        if in_handler() {
            return;
        }
        let _table = self
            .returned
            .wait_while(self.lock(), |table| table.called.contains(&handle))
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// The handler of an open instance, which counts as called from now on.
    fn begin_call(&self, handle: u64) -> Option<Option<SharedHandler>> {
        let mut table = self.lock();
        let instance = table.instances.iter().find(|i| i.handle == handle)?;
        let handler = instance.handler.clone();
        table.called.push(handle);
        Some(handler)
    }

    fn end_call(&self, handle: u64) {
        let mut table = self.lock();
        if let Some(at) = table.called.iter().position(|called| *called == handle) {
            table.called.swap_remove(at);
        }
        self.returned.notify_all();
    }

    /// A new protection tag; `None` at the limit.
    pub(crate) fn create_tag(&self, device: u16, handle: u64, limit: u32) -> Option<u64> {
        let mut table = self.lock();
        let used: usize = table.instances.iter().map(|i| i.tags.len()).sum();
        if used >= limit as usize {
            return None;
        }
        loop {
            table.next_tag = (table.next_tag + 1) & FIELD_MASK;
            let tag = table.next_tag;
            let taken = table.instances.iter().any(|i| i.tags.contains(&tag));
            if tag != 0 && !taken {
                let instance = table.instances.iter_mut().find(|i| i.handle == handle)?;
                instance.tags.push(tag);
                return Some(RawHandle::pack(Kind::Ptag, device, 1, tag));
            }
        }
    }

    /// The number of a tag that exists on this NIC (of any of its openings).
    pub(crate) fn tag(&self, device: u16, ptag: u64) -> Option<u32> {
        let raw = RawHandle::unpack(ptag);
        if raw.kind != Kind::Ptag as u8 || raw.device != device || raw.generation != 1 {
            return None;
        }
        let table = self.lock();
        table
            .instances
            .iter()
            .any(|i| i.tags.contains(&raw.index))
            .then_some(raw.index)
    }

    pub(crate) fn destroy_tag(&self, tag: u32) {
        for instance in &mut self.lock().instances {
            instance.tags.retain(|t| *t != tag);
        }
    }

    /// A handle for a request that the consumer is told of. `None` if the opening ended
    /// meanwhile.
    pub(crate) fn add_conn(&self, device: u16, instance: u64, conn: ConnId) -> Option<u64> {
        let mut table = self.lock();
        if !table.instances.iter().any(|i| i.handle == instance) {
            return None;
        }
        table.next_conn = (table.next_conn + 1) & FIELD_MASK;
        let handle = RawHandle::pack(Kind::Conn, device, table.next_conn, 1);
        table.conns.push((handle, instance, conn));
        Some(handle)
    }

    pub(crate) fn conn(&self, handle: u64) -> Option<ConnId> {
        let table = self.lock();
        table
            .conns
            .iter()
            .find(|(h, _, _)| *h == handle)
            .map(|(_, _, conn)| *conn)
    }

    pub(crate) fn remove_conn(&self, handle: u64) {
        self.lock().conns.retain(|(h, _, _)| *h != handle);
    }
}

thread_local! {
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Is this a call from inside a handler: for errors, or of a notify call?
pub(crate) fn in_handler() -> bool {
    IN_HANDLER.get()
}

/// From now on this thread calls handlers and does nothing else.
pub(crate) fn enter_handlers() {
    IN_HANDLER.set(true);
}

/// The thread that calls the handlers, until the NIC goes down.
pub(crate) fn deliver(device: &'static Device, epoch: u32) {
    enter_handlers();
    while let Some(event) = device.events.next(epoch) {
        if event.instance != 0 {
            deliver_one(device, &event);
            continue;
        }
        for instance in device.instances.handles() {
            deliver_one(device, &AsyncEvent { instance, ..event });
        }
    }
}

fn deliver_one(device: &'static Device, event: &AsyncEvent) {
    let Some(handler) = device.instances.begin_call(event.instance) else {
        return;
    };
    match handler {
        Some(handler) => {
            let call = move || {
                let mut handler = handler.lock().unwrap_or_else(PoisonError::into_inner);
                handler(event);
            };
            // If the handler was replaced meanwhile, it also goes in here.
            if catch_unwind(AssertUnwindSafe(call)).is_err() {
                log::error!("NIC {}: an error handler panicked", device.config.name);
            }
        }
        None => default_handler(device, event),
    }
    device.instances.end_call(event.instance);
}

/// Logs the error; a program without a logger sees it on standard error.
fn default_handler(device: &'static Device, event: &AsyncEvent) {
    let mut text = format!(
        "NIC {}: asynchronous error {:?} on {:?}",
        device.config.name, event.code, event.resource
    );
    if event.vi != 0 {
        text += &format!(" (VI {:#x})", event.vi);
    }
    if log::max_level() == log::LevelFilter::Off {
        eprintln!("viaduct: {text}");
    } else {
        log::error!("{text}");
    }
}
