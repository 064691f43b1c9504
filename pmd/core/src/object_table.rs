//! Tables of VIs and completion queues. Objects are never freed, only retired, so that a stale handle is detected.

use std::sync::OnceLock;

/// A table of objects that are created on first use and kept until the process ends.
pub struct ObjectTable<T: 'static> {
    slots: Box<[OnceLock<Box<T>>]>,
}

impl<T> ObjectTable<T> {
    /// Creates a table of this number of empty slots.
    pub fn new(slots: u32) -> Self {
        Self {
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Returns the object in a slot.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.get().map(|boxed| &**boxed)
    }

    /// Returns the object in a slot below [`Self::slots`], created by `make` on first use; `None` if `make`
    /// fails.
    pub fn get_or_make(&self, index: u32, make: impl FnOnce() -> Option<T>) -> Option<&T> {
        let slot = self.slots.get(index as usize)?;
        if slot.get().is_none() {
            // If another thread was first, its object is used and this one dropped.
            let _ = slot.set(Box::new(make()?));
        }
        slot.get().map(|boxed| &**boxed)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Iterates over all objects.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|p| p.get().map(|b| &**b))
    }
}
