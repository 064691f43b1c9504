//! Page allocation of memory regions: heap, or memory that a datapath process can map.

use std::alloc::{self, Layout};
use std::ptr::NonNull;
use std::sync::Once;

use super::PAGE_BYTES;
use crate::{Result, SharedMemory, VipError};

/// Zeroed whole pages, freed on drop.
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
    /// Allocates at least `len_bytes` on the heap.
    pub(super) fn heap(len_bytes: usize) -> Result<Self> {
        if len_bytes == 0 {
            return Err(VipError::InvalidParameter);
        }
        let layout = Layout::from_size_align(len_bytes, PAGE_BYTES)
            .map_err(|_| VipError::InvalidParameter)?
            .pad_to_align();
        // SAFETY: the layout is not empty, since `len_bytes` is not 0.
        let address = unsafe { alloc::alloc_zeroed(layout) };
        let address = NonNull::new(address).ok_or(VipError::ErrorResource)?;
        Ok(Self::Heap { address, layout })
    }

    /// Allocates at least `len_bytes` that a datapath process can map; `None` on failure. Each allocation keeps a file
    /// descriptor open, whose number is limited.
    pub(super) fn shared(len_bytes: usize) -> Option<Self> {
        SharedMemory::allocate(len_bytes).ok().map(Self::Shared)
    }

    /// Returns the address of the first byte, at a page boundary.
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
            // SAFETY: allocated in `heap` with this layout and owned by this value.
            unsafe { alloc::dealloc(address.as_ptr(), *layout) };
        }
    }
}

/// Logs once that a region of an attached NIC is on the heap.
pub(super) fn warn_of_heap() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        log::warn!(
            "memory cannot be shared with the datapath process: data is copied once more; \
             raise the limit of open file descriptors (ulimit -n) or of memory"
        );
    });
}
