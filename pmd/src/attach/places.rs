//! How many applications are attached to a datapath process, and of whom.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::ProcessConfig;
use crate::memory::place::Owner;
use crate::vi::FIELD_MASK;

/// Applications that are attached, at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct MostAttached {
    pub(super) all: u32,
    pub(super) per_user: u32,
}

impl From<&ProcessConfig> for MostAttached {
    fn from(config: &ProcessConfig) -> Self {
        Self {
            all: config.max_applications,
            per_user: config.applications_per_user(),
        }
    }
}

/// The places that applications have.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    all: u32,
    users: HashMap<libc::uid_t, u32>,
    owners: HashSet<u32>,
    /// That of the last one who came.
    last_owner: u32,
}

impl Taken {
    /// Whose regions and VIs they are of the next one who comes: not one who is here, and as late
    /// as possible one who was.
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

/// The place of one application, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    uid: libc::uid_t,
    owner: Owner,
}

impl Place {
    /// Whose the regions and VIs of the application are.
    pub(super) fn owner(&self) -> Owner {
        self.owner
    }
}

impl Places {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for an application of this user; or why there is none. Looks and takes in one step.
    pub(super) fn take(
        self: &Arc<Self>,
        uid: libc::uid_t,
        most: MostAttached,
    ) -> Result<Place, String> {
        let mut taken = self.taken();
        let MostAttached { all, per_user } = most;
        if taken.all >= all {
            return Err(format!(
                "max_applications = {all} are attached: end one, or raise it in [process]"
            ));
        }
        let of_user = taken.users.get(&uid).copied().unwrap_or(0);
        if of_user >= per_user {
            return Err(format!(
                "max_applications_per_user = {per_user} of user {uid} are attached: end one, or \
                 raise it in [process]"
            ));
        }
        taken.all += 1;
        taken.users.insert(uid, of_user + 1);
        let owner = taken.next_owner();
        let places = Arc::clone(self);
        Ok(Place { places, uid, owner })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        taken.owners.remove(&self.owner.number());
        if let Some(count) = taken.users.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                taken.users.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const MOST: MostAttached = MostAttached {
        all: 8,
        per_user: 5,
    };

    #[test]
    fn one_user_leaves_places_for_others() {
        let places = Arc::new(Places::default());
        let mut taken: Vec<_> = (0..5).map(|_| places.take(7, MOST).unwrap()).collect();
        let why = places.take(7, MOST).unwrap_err();
        assert!(
            why.contains("max_applications_per_user = 5 of user 7"),
            "{why}"
        );
        taken.extend((0..3).map(|_| places.take(8, MOST).unwrap()));
        for uid in [7, 8, 9] {
            let why = places.take(uid, MOST).unwrap_err();
            assert!(why.contains("max_applications = 8 are"), "{why}");
        }
        taken.remove(0);
        assert!(places.take(7, MOST).is_ok(), "one was left");
        drop(taken);
        assert_eq!(places.taken().all, 0);
        assert!(places.taken().users.is_empty());
    }

    #[test]
    fn nobody_is_taken_for_who_was_in_its_place() {
        let places = Arc::new(Places::default());
        let take = || places.take(7, MOST).unwrap();
        let [first, second] = [take(), take()];
        let [of_first, of_second] = [first.owner(), second.owner()];
        assert_ne!(of_first, of_second);
        drop(first);
        let third = take();
        assert!(![of_first, of_second].contains(&third.owner()));
        // Many more have come and gone: the numbers begin again, but for those who are here.
        places.taken().last_owner = FIELD_MASK - 1;
        let owners = [take(), take(), take()].map(|place| place.owner().number());
        assert_eq!(owners, [FIELD_MASK, 1, 4]);
        assert_eq!([of_second, third.owner()].map(Owner::number), [2, 3]);
    }

    #[test]
    fn those_who_come_at_once_get_as_many_places_as_there_are() {
        for _ in 0..200 {
            let places = Arc::new(Places::default());
            let start = Barrier::new(6);
            let come = |uid| {
                start.wait();
                let taken: Vec<_> = (0..4).filter_map(|_| places.take(uid, MOST).ok()).collect();
                // Nobody leaves before all have come.
                start.wait();
                taken.len()
            };
            let got: [usize; 6] = std::thread::scope(|scope| {
                let threads = [7, 7, 7, 8, 8, 8].map(|uid| scope.spawn(move || come(uid)));
                threads.map(|thread| thread.join().unwrap())
            });
            assert_eq!(got.iter().sum::<usize>(), 8, "{got:?}");
            let of_user: usize = got.iter().take(3).sum();
            assert!((3..=5).contains(&of_user), "{got:?}");
        }
    }
}
