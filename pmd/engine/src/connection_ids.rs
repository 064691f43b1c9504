//! FCVI_CONNECTION_IDs of the requests of this port [FCVI P-9].
//!
//! They are all numbers of 32 bits in an order that only this port knows: none repeats within 2^32
//! requests, so no late frame matches another request, and no earlier ID helps to guess the next.

use crate::handles::permute;

/// The connection IDs of one N_Port.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionIds {
    /// Key of the order.
    key: u64,
    /// Position of the next ID in that order.
    next: u32,
}

impl ConnectionIds {
    /// `key`: 64 secret random bits.
    pub(crate) fn new(key: u64) -> Self {
        Self { key, next: 0 }
    }

    /// Returns the ID of a new request.
    pub(crate) fn allocate(&mut self) -> u32 {
        let id = permute(self.key, self.next, u32::BITS);
        self.next = self.next.wrapping_add(1);
        id
    }
}

#[cfg(test)]
impl ConnectionIds {
    /// Returns the ID of the last request.
    pub(crate) fn last(&self) -> u32 {
        permute(self.key, self.next.wrapping_sub(1), u32::BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn connection_ids_do_not_repeat_and_their_distances_do_not_either() {
        let mut ids = ConnectionIds::new(7);
        let (mut seen, mut distances) = (HashSet::new(), HashSet::new());
        let mut before = ids.allocate();
        for _ in 0..10_000 {
            let id = ids.allocate();
            assert!(seen.insert(id), "{id:#x} again");
            distances.insert(id.wrapping_sub(before));
            before = id;
        }
        assert!(distances.len() > 9_990, "{}", distances.len());
    }
}
