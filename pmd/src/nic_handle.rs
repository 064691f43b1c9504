//! NIC handles: their objects and their error handlers (VIPL 3.1, 3.8).

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use vi_core::events::AsyncEvent;
use vi_core::handle::{FIELD_MASK, HandleKind, RawHandle};
use vi_core::handler_thread::in_handler;
use vi_types::{CallError, Limit, LimitOf, LimitReached, Outcome, ResourceError};

/// A consumer's error handler.
pub type Handler = Box<dyn FnMut(&AsyncEvent) + Send>;

/// A handler, which is locked while it runs.
pub(crate) type SharedHandler = Arc<Mutex<Handler>>;

/// The state of one NIC handle.
struct NicHandleState {
    handle: u64,
    /// Its handle in the datapath process, if the NIC is attached.
    remote: u64,
    handler: Option<SharedHandler>,
    /// Numbers of its protection tags.
    tags: Vec<u32>,
}

/// A protection tag.
#[derive(Clone, Copy)]
struct Tag {
    /// The NIC handle that created it.
    nic_handle: u64,
    /// Its handle in the datapath process, if the NIC is attached.
    remote: u64,
}

/// A connection request that was passed to the consumer, by the number that the NIC's control calls gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conn(pub(crate) u64);

#[derive(Default)]
struct Table {
    handles: Vec<NicHandleState>,
    opened: u32,
    next_tag: u32,
    /// The tags of all NIC handles by number; looked up under the backend lock.
    tags: HashMap<u32, Tag>,
    /// Requests that were passed to the consumer: handle, NIC handle, ID.
    conns: Vec<(u64, u64, Conn)>,
    next_conn: u32,
    /// The NIC handles whose handlers are running.
    running: Vec<u64>,
}

/// Objects of a closed NIC handle that the caller releases.
pub(crate) struct Closed {
    conns: Vec<Conn>,
    _handler: Option<SharedHandler>,
}

impl Closed {
    /// Returns the requests that its consumer has neither accepted nor rejected.
    pub(crate) fn conns(&self) -> &[Conn] {
        &self.conns
    }
}

/// All handles of one NIC.
#[derive(Default)]
pub(crate) struct NicHandles {
    table: Mutex<Table>,
    /// Notified when a handler has returned.
    returned: Condvar,
}

impl Table {
    fn add_tag(&mut self, device: u16, handle: u64, remote: u64) -> Outcome<u64> {
        let state = self.handles.iter_mut().find(|i| i.handle == handle);
        let state = state.ok_or(CallError::InvalidParameter)?;
        let no_memory = |_| CallError::from(ResourceError::OutOfMemory);
        state.tags.try_reserve(1).map_err(no_memory)?;
        self.tags.try_reserve(1).map_err(no_memory)?;
        loop {
            self.next_tag = (self.next_tag + 1) & FIELD_MASK;
            let number = self.next_tag;
            if number != 0 && !self.tags.contains_key(&number) {
                state.tags.push(number);
                let nic_handle = handle;
                self.tags.insert(number, Tag { nic_handle, remote });
                return Ok(RawHandle::pack(HandleKind::Ptag, device, 1, number));
            }
        }
    }
}

impl NicHandles {
    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().handles.len()
    }

    /// Returns the current handles.
    pub(crate) fn handles(&self) -> Vec<u64> {
        self.lock().handles.iter().map(|i| i.handle).collect()
    }

    /// Allocates a handle; `remote` is the handle in the datapath process, or 0.
    pub(crate) fn open(&self, device: u16, remote: u64) -> u64 {
        let mut table = self.lock();
        let handle = loop {
            table.opened = (table.opened + 1) & FIELD_MASK;
            let handle = RawHandle::pack(HandleKind::Nic, device, table.opened, 0);
            // Numbers are reused, and a handle with this one may still be open.
            if !table.handles.iter().any(|i| i.handle == handle) {
                break handle;
            }
        };
        table.handles.push(NicHandleState {
            handle,
            remote,
            handler: None,
            tags: Vec::new(),
        });
        handle
    }

    /// Closes a handle, which invalidates it. `None` if it was closed
    /// already.
    pub(crate) fn close(&self, handle: u64) -> Option<Closed> {
        let mut table = self.lock();
        let at = table.handles.iter().position(|i| i.handle == handle)?;
        let state = table.handles.remove(at);
        for number in &state.tags {
            table.tags.remove(number);
        }
        let mut conns = Vec::new();
        table.conns.retain(|(_, owner, conn)| {
            if *owner == handle {
                conns.push(*conn);
            }
            *owner != handle
        });
        Some(Closed {
            conns,
            _handler: state.handler,
        })
    }

    pub(crate) fn is_open(&self, handle: u64) -> bool {
        self.lock().handles.iter().any(|i| i.handle == handle)
    }

    /// Replaces the handler of a NIC handle. After this returns, the old one is not running,
    /// unless this is called from a handler.
    pub(crate) fn set_handler(&self, handle: u64, handler: Option<Handler>) -> bool {
        let new = handler.map(|h| Arc::new(Mutex::new(h)));
        let old = {
            let mut table = self.lock();
            let Some(state) = table.handles.iter_mut().find(|i| i.handle == handle) else {
                return false;
            };
            core::mem::replace(&mut state.handler, new)
        };
        self.await_handler(handle);
        // Dropped outside of the lock: its drop may run code of the program.
        drop(old);
        true
    }

    /// Waits until the handler of a NIC handle is not running.
    pub(crate) fn await_handler(&self, handle: u64) {
        if in_handler() {
            return;
        }
        let _table = self
            .returned
            .wait_while(self.lock(), |table| table.running.contains(&handle))
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// Returns the handler of an open NIC handle and marks it as running.
    pub(crate) fn begin_call(&self, handle: u64) -> Option<Option<SharedHandler>> {
        let mut table = self.lock();
        let state = table.handles.iter().find(|i| i.handle == handle)?;
        let handler = state.handler.clone();
        table.running.push(handle);
        Some(handler)
    }

    pub(crate) fn end_call(&self, handle: u64) {
        let mut table = self.lock();
        if let Some(at) = table.running.iter().position(|running| *running == handle) {
            table.running.swap_remove(at);
        }
        self.returned.notify_all();
    }

    /// Returns the handle in the datapath process of a NIC handle.
    pub(crate) fn remote(&self, handle: u64) -> Option<u64> {
        let table = self.lock();
        let state = table.handles.iter().find(|i| i.handle == handle)?;
        Some(state.remote)
    }

    /// Returns the handle in the datapath process of the tag with this number.
    pub(crate) fn remote_tag(&self, number: u32) -> Option<u64> {
        Some(self.lock().tags.get(&number)?.remote)
    }

    /// Allocates a local tag for one of the datapath process, unless the NIC handle was closed meanwhile.
    pub(crate) fn adopt_tag(&self, device: u16, handle: u64, remote: u64) -> Outcome<u64> {
        self.lock().add_tag(device, handle, remote)
    }

    /// Creates a protection tag, within the limit and unless the NIC handle is closed.
    pub(crate) fn create_tag(&self, device: u16, handle: u64, limit: u32) -> Outcome<u64> {
        let mut table = self.lock();
        if table.tags.len() >= limit as usize {
            return Err(LimitReached::all_in_use(Limit::MaxPtags, limit, LimitOf::Nic).into());
        }
        table.add_tag(device, handle, 0)
    }

    /// Returns the number of a tag of this NIC (of any of its handles).
    pub(crate) fn tag(&self, device: u16, ptag: u64) -> Option<u32> {
        let raw = RawHandle::unpack(ptag);
        if raw.kind != HandleKind::Ptag as u8 || raw.device != device || raw.generation != 1 {
            return None;
        }
        let exists = self.lock().tags.contains_key(&raw.index);
        exists.then_some(raw.index)
    }

    pub(crate) fn destroy_tag(&self, tag: u32) {
        let mut table = self.lock();
        let Some(removed) = table.tags.remove(&tag) else {
            return;
        };
        let owner = |i: &&mut NicHandleState| i.handle == removed.nic_handle;
        if let Some(state) = table.handles.iter_mut().find(owner) {
            state.tags.retain(|number| *number != tag);
        }
    }

    /// Allocates a handle for a request that is passed to the consumer. `None` if the NIC handle was closed
    /// meanwhile.
    pub(crate) fn add_conn(&self, device: u16, nic_handle: u64, conn: Conn) -> Option<u64> {
        let mut table = self.lock();
        if !table.handles.iter().any(|i| i.handle == nic_handle) {
            return None;
        }
        table.next_conn = (table.next_conn + 1) & FIELD_MASK;
        let handle = RawHandle::pack(HandleKind::Conn, device, table.next_conn, 1);
        table.conns.push((handle, nic_handle, conn));
        Some(handle)
    }

    pub(crate) fn conn(&self, handle: u64) -> Option<Conn> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_handle_is_not_allocated_again() {
        let nic_handles = NicHandles::default();
        let mut handles = vec![nic_handles.open(3, 0), nic_handles.open(3, 0)];
        // As if many more had been opened and closed.
        nic_handles.lock().opened = FIELD_MASK - 1;
        handles.extend([(); 3].map(|()| nic_handles.open(3, 0)));
        handles.sort_unstable();
        handles.dedup();
        assert_eq!(handles.len(), 5);
    }

    #[test]
    fn tags_are_destroyed_one_by_one_or_with_their_nic_handle() {
        let nic_handles = NicHandles::default();
        let [first, second] = [(); 2].map(|()| nic_handles.open(3, 0));
        let make = |nic| nic_handles.create_tag(3, nic, 4);
        let tags = [make(first), make(second), make(first), make(second)].map(Result::unwrap);
        let reached = LimitReached::all_in_use(Limit::MaxPtags, 4u32, LimitOf::Nic);
        assert_eq!(make(first), Err(reached.into()), "for all handles");
        let number = |tag| nic_handles.tag(3, tag);
        assert!(tags.iter().all(|tag| number(*tag).is_some()));
        assert_eq!(nic_handles.tag(4, tags[0]), None, "another NIC's");
        nic_handles.destroy_tag(number(tags[0]).unwrap());
        assert_eq!(number(tags[0]), None);
        let again = make(second).unwrap();
        assert!(nic_handles.close(first).is_some());
        assert_eq!(number(tags[2]), None, "destroyed with its NIC handle");
        assert!(
            [tags[1], tags[3], again]
                .iter()
                .all(|tag| number(*tag).is_some())
        );
        assert!(nic_handles.close(second).is_some());
        assert_eq!(number(again), None);
        let third = nic_handles.open(3, 0);
        for _ in 0..4 {
            assert!(make(third).is_ok(), "destroyed tags do not count");
        }
    }
}
