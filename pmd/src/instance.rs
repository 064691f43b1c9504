//! One opening of a NIC: what it owns and who hears its errors (VIPL 3.1, 3.8).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::device::Device;
use crate::events::AsyncEvent;
use crate::vi::{FIELD_MASK, Kind, RawHandle};

/// A consumer's error handler.
pub type Handler = Box<dyn FnMut(&AsyncEvent) + Send>;

struct Instance {
    handle: u64,
    handler: Option<Arc<Mutex<Handler>>>,
    /// Protection tags: numbers, unique in the process.
    tags: Vec<u32>,
}

#[derive(Default)]
struct Table {
    instances: Vec<Instance>,
    opened: u32,
    next_tag: u32,
    /// Requests that the consumer was told of: handle, instance, what the engine calls it.
    conns: Vec<(u64, u64, vi_engine::ConnId)>,
    next_conn: u32,
}

/// All openings of one NIC.
#[derive(Default)]
pub(crate) struct Instances {
    table: Mutex<Table>,
}

impl Instances {
    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().instances.len()
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

    pub(crate) fn close(&self, handle: u64) {
        let mut table = self.lock();
        table.instances.retain(|i| i.handle != handle);
        table.conns.retain(|(_, instance, _)| *instance != handle);
    }

    pub(crate) fn is_open(&self, handle: u64) -> bool {
        self.lock().instances.iter().any(|i| i.handle == handle)
    }

    pub(crate) fn set_handler(&self, handle: u64, handler: Option<Handler>) -> bool {
        let mut table = self.lock();
        let Some(instance) = table.instances.iter_mut().find(|i| i.handle == handle) else {
            return false;
        };
        instance.handler = handler.map(|h| Arc::new(Mutex::new(h)));
        true
    }

    fn handler(&self, handle: u64) -> Option<Option<Arc<Mutex<Handler>>>> {
        let table = self.lock();
        let instance = table.instances.iter().find(|i| i.handle == handle)?;
        Some(instance.handler.clone())
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

    /// A handle for a request that the consumer is told of.
    pub(crate) fn add_conn(&self, device: u16, instance: u64, conn: vi_engine::ConnId) -> u64 {
        let mut table = self.lock();
        table.next_conn = (table.next_conn + 1) & FIELD_MASK;
        let handle = RawHandle::pack(Kind::Conn, device, table.next_conn, 1);
        table.conns.push((handle, instance, conn));
        handle
    }

    pub(crate) fn conn(&self, handle: u64) -> Option<vi_engine::ConnId> {
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

    /// The requests that an instance was told of and did not answer.
    pub(crate) fn conns_of(&self, instance: u64) -> Vec<vi_engine::ConnId> {
        let table = self.lock();
        table
            .conns
            .iter()
            .filter(|(_, i, _)| *i == instance)
            .map(|(_, _, conn)| *conn)
            .collect()
    }
}

/// How long the thread waits before it looks whether it should end.
const LOOK: Duration = Duration::from_secs(3600);

/// The thread that calls the handlers, until the NIC goes down.
pub(crate) fn deliver(device: &'static Device) {
    loop {
        match device.events.next(LOOK) {
            Some(event) => deliver_one(device, &event),
            None if device.events.is_closed() => return,
            None => {}
        }
    }
}

fn deliver_one(device: &'static Device, event: &AsyncEvent) {
    match device.instances.handler(event.instance) {
        Some(Some(handler)) => {
            let mut handler = handler.lock().unwrap_or_else(PoisonError::into_inner);
            handler(event);
        }
        Some(None) => default_handler(device, event),
        None => {}
    }
}

/// Logs the error; a program without a logger sees it on standard error.
fn default_handler(device: &'static Device, event: &AsyncEvent) {
    let text = format!(
        "NIC {}: asynchronous error {:?} on {:?} (VI {:#x})",
        device.config.name, event.code, event.resource, event.vi
    );
    if log::max_level() == log::LevelFilter::Off {
        eprintln!("viaduct: {text}");
    } else {
        log::error!("{text}");
    }
}
