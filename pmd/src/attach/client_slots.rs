//! Slots of the applications that are attached to a datapath process: the limits in all and per user.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vi_core::handle::FIELD_MASK;
use vi_core::memory::backing::Owner;

use crate::config::ProcessConfig;

/// Maximum numbers of attached applications.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotLimits {
    pub(super) per_process: u32,
    pub(super) per_user: u32,
}

impl From<&ProcessConfig> for SlotLimits {
    fn from(config: &ProcessConfig) -> Self {
        Self {
            per_process: config.max_applications,
            per_user: config.applications_per_user(),
        }
    }
}

/// All slots of a datapath process.
#[derive(Debug, Default)]
pub(super) struct ClientSlots(Mutex<SlotsInUse>);

#[derive(Debug, Default)]
struct SlotsInUse {
    count: u32,
    users: HashMap<libc::uid_t, u32>,
    owners: HashSet<u32>,
    /// The owner number that was assigned last.
    last_owner: u32,
}

impl SlotsInUse {
    /// Assigns an owner number for the regions and VIs of the next application: none that is in use, and those of
    /// former applications as late as possible.
    fn next_owner(&mut self) -> Owner {
        loop {
            self.last_owner = (self.last_owner + 1) & FIELD_MASK;
            if let Some(owner) = Owner::client(self.last_owner)
                && self.owners.insert(self.last_owner)
            {
                return owner;
            }
        }
    }
}

/// The slot of one application; freed on drop.
#[derive(Debug)]
pub(super) struct ClientSlot {
    slots: Arc<ClientSlots>,
    uid: libc::uid_t,
    owner: Owner,
}

impl ClientSlot {
    /// The owner of the application's regions and VIs.
    pub(super) fn owner(&self) -> Owner {
        self.owner
    }
}

impl ClientSlots {
    fn in_use(&self) -> MutexGuard<'_, SlotsInUse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a slot for an application of this user, atomically.
    ///
    /// # Errors
    /// The limit that is reached, and the remedy.
    pub(super) fn allocate(
        self: &Arc<Self>,
        uid: libc::uid_t,
        limits: SlotLimits,
    ) -> Result<ClientSlot, String> {
        let mut in_use = self.in_use();
        let SlotLimits {
            per_process,
            per_user,
        } = limits;
        if in_use.count >= per_process {
            return Err(format!(
                "max_applications = {per_process} are attached: end one, or raise it in [process]"
            ));
        }
        let of_user = in_use.users.get(&uid).copied().unwrap_or(0);
        if of_user >= per_user {
            return Err(format!(
                "max_applications_per_user = {per_user} of user {uid} are attached: end one, or \
                 raise it in [process]"
            ));
        }
        in_use.count += 1;
        in_use.users.insert(uid, of_user + 1);
        let owner = in_use.next_owner();
        let slots = Arc::clone(self);
        Ok(ClientSlot { slots, uid, owner })
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let mut in_use = self.slots.in_use();
        in_use.count -= 1;
        in_use.owners.remove(&self.owner.number());
        if let Some(count) = in_use.users.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                in_use.users.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const LIMITS: SlotLimits = SlotLimits {
        per_process: 8,
        per_user: 5,
    };

    #[test]
    fn slots_are_limited_per_user_and_per_process() {
        let all = Arc::new(ClientSlots::default());
        let mut slots: Vec<_> = (0..5).map(|_| all.allocate(7, LIMITS).unwrap()).collect();
        let why = all.allocate(7, LIMITS).unwrap_err();
        assert!(
            why.contains("max_applications_per_user = 5 of user 7"),
            "{why}"
        );
        slots.extend((0..3).map(|_| all.allocate(8, LIMITS).unwrap()));
        for uid in [7, 8, 9] {
            let why = all.allocate(uid, LIMITS).unwrap_err();
            assert!(why.contains("max_applications = 8 are"), "{why}");
        }
        slots.remove(0);
        assert!(all.allocate(7, LIMITS).is_ok(), "one was freed");
        drop(slots);
        assert_eq!(all.in_use().count, 0);
        assert!(all.in_use().users.is_empty());
    }

    #[test]
    fn owner_of_a_freed_slot_is_reused_last() {
        let all = Arc::new(ClientSlots::default());
        let allocate = || all.allocate(7, LIMITS).unwrap();
        let [first, second] = [allocate(), allocate()];
        let [of_first, of_second] = [first.owner(), second.owner()];
        assert_ne!(of_first, of_second);
        drop(first);
        let third = allocate();
        assert!(![of_first, of_second].contains(&third.owner()));
        // The numbers wrap, and those in use are skipped.
        all.in_use().last_owner = FIELD_MASK - 1;
        let owners = [allocate(), allocate(), allocate()].map(|slot| slot.owner().number());
        assert_eq!(owners, [FIELD_MASK, 1, 4]);
        assert_eq!([of_second, third.owner()].map(Owner::number), [2, 3]);
    }

    #[test]
    fn concurrent_allocations_get_exactly_the_limit() {
        for _ in 0..200 {
            let all = Arc::new(ClientSlots::default());
            let start = Barrier::new(6);
            let allocate = |uid| {
                start.wait();
                let slots: Vec<_> = (0..4)
                    .filter_map(|_| all.allocate(uid, LIMITS).ok())
                    .collect();
                // No slot is freed before all threads have allocated.
                start.wait();
                slots.len()
            };
            let got: [usize; 6] = std::thread::scope(|scope| {
                let threads = [7, 7, 7, 8, 8, 8].map(|uid| scope.spawn(move || allocate(uid)));
                threads.map(|thread| thread.join().unwrap())
            });
            assert_eq!(got.iter().sum::<usize>(), 8, "{got:?}");
            let of_user: usize = got.iter().take(3).sum();
            assert!((3..=5).contains(&of_user), "{got:?}");
        }
    }
}
