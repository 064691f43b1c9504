//! Where the pages of a region come from.

use std::alloc::{self, Layout};
use std::ptr::NonNull;
use std::sync::Once;

use super::PAGE_BYTES;
use crate::{Result, SharedMemory, VipError};

/// Zeroed whole pages, which go back where they came from when this is dropped.
pub(super) enum Pages {
    /// The program's heap.
    Heap {
        address: NonNull<u8>,
        layout: Layout,
    },
    /// Memory that a datapath process can map.
    Shared(SharedMemory),
}

impl Pages {
    /// At least so many bytes of the heap.
    pub(super) fn of_heap(len_bytes: usize) -> Result<Self> {
        if len_bytes == 0 {
            return Err(VipError::InvalidParameter);
        }
        let layout = Layout::from_size_align(len_bytes, PAGE_BYTES)
            .map_err(|_| VipError::InvalidParameter)?
            .pad_to_align();
        // SAFETY: the layout is not empty: `len_bytes` is not.
        let address = unsafe { alloc::alloc_zeroed(layout) };
        let address = NonNull::new(address).ok_or(VipError::ErrorResource)?;
        Ok(Self::Heap { address, layout })
    }

    /// At least so many bytes that a datapath process can map; `None` if there is no such memory:
    /// each piece holds a descriptor open, and a program may not have any number.
    pub(super) fn shared(len_bytes: usize) -> Option<Self> {
        SharedMemory::allocate(len_bytes).ok().map(Self::Shared)
    }

    /// The first byte, which begins a page.
    pub(super) fn address(&self) -> NonNull<u8> {
        match self {
            Self::Heap { address, .. } => *address,
            Self::Shared(memory) => memory.address(),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Self::Heap { address, layout } = self {
            // SAFETY: allocated in `of_heap` with this layout and owned by this value.
            unsafe { alloc::dealloc(address.as_ptr(), *layout) };
        }
    }
}

/// A region of an attached NIC is on the heap: said once.
pub(super) fn warn_of_heap() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        log::warn!(
            "memory cannot be shared with the datapath process, and is copied once more: \
             see the limit of open descriptors (ulimit -n) and of memory"
        );
    });
}
