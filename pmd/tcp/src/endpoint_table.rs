//! The VIs of a NIC, by index.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use vi_types::{ConnectionOptions, ViIndex, ViParams};

use super::endpoint::{Endpoint, Phase};
use super::request::Request;

/// The VIs of a NIC.
pub(super) struct EndpointTable {
    slots: Vec<Option<Endpoint>>,
    /// Unused slots; the lowest is taken next.
    free: BinaryHeap<Reverse<u32>>,
}

impl EndpointTable {
    /// Creates a table for at most `max_vi` VIs.
    pub(super) fn new(max_vi: u32) -> Self {
        Self {
            slots: (0..max_vi).map(|_| None).collect(),
            free: (0..max_vi).map(Reverse).collect(),
        }
    }

    /// Adds an Idle VI; `None` if all slots are used.
    pub(super) fn create(
        &mut self,
        params: ViParams,
        options: ConnectionOptions,
    ) -> Option<ViIndex> {
        let Reverse(slot) = self.free.pop()?;
        *self.slots.get_mut(slot as usize)? = Some(Endpoint::new(params, options));
        Some(ViIndex(slot))
    }

    /// Removes a VI.
    pub(super) fn remove(&mut self, vi: ViIndex) {
        if let Some(slot) = self.slots.get_mut(vi.0 as usize)
            && slot.take().is_some()
        {
            self.free.push(Reverse(vi.0));
        }
    }

    pub(super) fn get(&self, vi: ViIndex) -> Option<&Endpoint> {
        self.slots.get(vi.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, vi: ViIndex) -> Option<&mut Endpoint> {
        self.slots.get_mut(vi.0 as usize)?.as_mut()
    }

    /// Returns a VI that may be changed by its consumer: an Idle one.
    pub(super) fn idle(&mut self, vi: ViIndex) -> Option<&mut Endpoint> {
        self.get_mut(vi)
            .filter(|endpoint| matches!(endpoint.phase, Phase::Idle))
    }

    /// Returns the connection request of a VI, if it has one.
    pub(super) fn request(&mut self, vi: ViIndex) -> Option<&mut Request> {
        match &mut self.get_mut(vi)?.phase {
            Phase::Requesting(request) => Some(request),
            Phase::Idle | Phase::Connected(_) | Phase::Error => None,
        }
    }

    /// Returns the number of a VI's connection, if it is connected.
    pub(super) fn connection_of(&self, vi: ViIndex) -> Option<u32> {
        match self.get(vi)?.phase {
            Phase::Connected(number) => Some(number),
            Phase::Idle | Phase::Requesting(_) | Phase::Error => None,
        }
    }

    /// Iterates over the VIs with a connection request.
    pub(super) fn requests(&self) -> impl Iterator<Item = (ViIndex, &Endpoint, &Request)> {
        let slots = self.slots.iter().zip(0..);
        slots.filter_map(|(slot, index)| {
            let endpoint = slot.as_ref()?;
            match &endpoint.phase {
                Phase::Requesting(request) => Some((ViIndex(index), endpoint, &**request)),
                Phase::Idle | Phase::Connected(_) | Phase::Error => None,
            }
        })
    }
}
