//! What an application owns.

use std::collections::HashMap;

use crate::config::Quota;
use crate::control::{ControlError, Outcome};

/// What an application owns on its NIC, by the handles that it was given.
///
/// What is made while another call closes the opening that it is made for has gone with that.
#[derive(Default)]
pub(super) struct Owned {
    pub(super) nics: Vec<u64>,
    /// Each with its opening.
    pub(super) tags: HashMap<u64, u64>,
    /// Likewise.
    pub(super) vis: HashMap<u64, u64>,
    /// Requests that it has not answered, each with its opening.
    pub(super) conns: HashMap<u64, u64>,
    pub(super) regions: HashMap<u32, Region>,
    /// Of its regions, and of those that are being registered.
    pub(super) registered_bytes: u64,
    /// Tags, VIs and regions that other calls are making: they are counted, too.
    tags_to_come: usize,
    vis_to_come: usize,
    regions_to_come: usize,
}

/// A region of an application's.
pub(super) struct Region {
    pub(super) nic: u64,
    /// That it was registered with.
    pub(super) address: u64,
    /// Of whole pages.
    pub(super) bytes: u64,
}

impl Owned {
    /// What was made for this opening, if that has not ended meanwhile.
    fn of_open<T>(&self, made: Outcome<T>, nic: u64) -> Outcome<T> {
        let is_open = self.nics.contains(&nic);
        made.and_then(|made| {
            is_open
                .then_some(made)
                .ok_or(ControlError::InvalidParameter)
        })
    }

    /// An opening has ended, and all that was made for it.
    pub(super) fn close(&mut self, nic: u64) {
        self.nics.retain(|open| *open != nic);
        let bytes = |region: &Region| if region.nic == nic { region.bytes } else { 0 };
        let ended = self.regions.values().map(bytes).sum();
        self.regions.retain(|_, region| region.nic != nic);
        self.give_up(ended);
        for made in [&mut self.tags, &mut self.vis, &mut self.conns] {
            made.retain(|_, opening| *opening != nic);
        }
    }

    /// Counts a tag that is about to be made. [`Self::have_tag`] follows.
    pub(super) fn expect_tag(&mut self, quota: &Quota) -> Outcome<()> {
        if self.tags.len() + self.tags_to_come >= quota.max_ptags as usize {
            return Err(ControlError::Resource);
        }
        self.tags_to_come += 1;
        Ok(())
    }

    /// It was made for this opening, or not.
    pub(super) fn have_tag(&mut self, made: Outcome<u64>, nic: u64) -> Outcome<u64> {
        self.tags_to_come -= 1;
        let made = self.of_open(made, nic);
        self.tags.extend(made.ok().map(|tag| (tag, nic)));
        made
    }

    /// Counts a VI that is about to be made. [`Self::have_vi`] follows.
    pub(super) fn expect_vi(&mut self, quota: &Quota) -> Outcome<()> {
        if self.vis.len() + self.vis_to_come >= quota.max_vi as usize {
            return Err(ControlError::Resource);
        }
        self.vis_to_come += 1;
        Ok(())
    }

    /// It was made for this opening, or not.
    pub(super) fn have_vi(&mut self, made: Outcome<u64>, nic: u64) -> Outcome<u64> {
        self.vis_to_come -= 1;
        let made = self.of_open(made, nic);
        self.vis.extend(made.ok().map(|vi| (vi, nic)));
        made
    }

    /// A request came to this opening.
    pub(super) fn have_conn(&mut self, conn: u64, nic: u64) -> Outcome<()> {
        let conn = self.of_open(Ok(conn), nic)?;
        self.conns.insert(conn, nic);
        Ok(())
    }

    /// Counts a region of so many bytes that is about to be registered. [`Self::have_region`]
    /// follows.
    pub(super) fn expect_region(&mut self, bytes: u64, quota: &Quota) -> Outcome<()> {
        let sum = self.registered_bytes.saturating_add(bytes);
        let regions = self.regions.len() + self.regions_to_come;
        if sum > quota.max_registered_bytes || regions >= quota.max_regions as usize {
            return Err(ControlError::Resource);
        }
        self.registered_bytes = sum;
        self.regions_to_come += 1;
        Ok(())
    }

    /// It was registered, or not.
    pub(super) fn have_region(&mut self, made: Outcome<u32>, region: Region) -> Outcome<u32> {
        self.regions_to_come -= 1;
        let made = self.of_open(made, region.nic);
        match made {
            Ok(handle) => {
                self.regions.insert(handle, region);
            }
            Err(_) => self.give_up(region.bytes),
        }
        made
    }

    /// A region is registered no more.
    pub(super) fn remove_region(&mut self, handle: u32) {
        if let Some(region) = self.regions.remove(&handle) {
            self.give_up(region.bytes);
        }
    }

    /// So many bytes are registered no more.
    fn give_up(&mut self, bytes: u64) {
        self.registered_bytes = self.registered_bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota() -> Quota {
        Quota {
            max_vi: 2,
            max_ptags: 2,
            max_regions: 2,
            max_registered_bytes: 0x3000,
            ..Quota::default()
        }
    }

    fn region(bytes: u64) -> Region {
        Region {
            nic: 1,
            address: 0x1000,
            bytes,
        }
    }

    /// Of one who has opened the NIC.
    fn owned() -> Owned {
        Owned {
            nics: vec![1],
            ..Owned::default()
        }
    }

    #[test]
    fn what_is_made_while_its_opening_is_closed_is_not_counted() {
        let (mut owned, quota) = (owned(), quota());
        owned.nics.push(2);
        for _ in 0..2 {
            owned.expect_tag(&quota).unwrap();
            owned.expect_vi(&quota).unwrap();
            owned.expect_region(0x1000, &quota).unwrap();
        }
        owned.have_tag(Ok(3), 1).unwrap();
        owned.have_vi(Ok(4), 1).unwrap();
        owned.have_region(Ok(5), region(0x1000)).unwrap();
        owned.have_conn(6, 1).unwrap();
        owned.close(1);
        let gone = Err(ControlError::InvalidParameter);
        assert_eq!(owned.have_tag(Ok(7), 1), gone);
        assert_eq!(owned.have_vi(Ok(8), 1), gone);
        assert_eq!(owned.have_region(Ok(9), region(0x1000)), gone.map(|_| 0));
        assert!(owned.have_conn(10, 1).is_err());
        assert!(owned.tags.is_empty() && owned.vis.is_empty() && owned.conns.is_empty());
        assert!(owned.regions.is_empty());
        assert_eq!(owned.registered_bytes, 0);
        assert_eq!(owned.expect_vi(&quota), Ok(()));
        assert_eq!(owned.have_vi(Ok(11), 2), Ok(11), "another opening");
    }

    #[test]
    fn tags_that_are_being_made_count() {
        let (mut owned, quota) = (owned(), quota());
        owned.expect_tag(&quota).unwrap();
        owned.expect_tag(&quota).unwrap();
        assert_eq!(owned.expect_tag(&quota), Err(ControlError::Resource));
        assert_eq!(owned.have_tag(Ok(7), 1), Ok(7));
        let refused = owned.have_tag(Err(ControlError::InvalidParameter), 1);
        assert!(refused.is_err());
        assert_eq!(owned.expect_tag(&quota), Ok(()), "one was not made");
        assert_eq!(owned.tags.len(), 1);
    }

    #[test]
    fn vis_that_are_being_made_count() {
        let (mut owned, quota) = (owned(), quota());
        owned.expect_vi(&quota).unwrap();
        owned.expect_vi(&quota).unwrap();
        assert_eq!(owned.expect_vi(&quota), Err(ControlError::Resource));
        assert_eq!(owned.have_vi(Ok(7), 1), Ok(7));
        assert_eq!(owned.expect_vi(&quota), Err(ControlError::Resource));
        let refused = owned.have_vi(Err(ControlError::Ptag), 1);
        assert_eq!(refused, Err(ControlError::Ptag));
        assert_eq!(owned.expect_vi(&quota), Ok(()), "one was not made");
        assert_eq!(owned.vis.len(), 1);
    }

    #[test]
    fn regions_that_are_being_registered_count() {
        let (mut owned, quota) = (owned(), quota());
        owned.expect_region(0x1000, &quota).unwrap();
        owned.expect_region(0x1000, &quota).unwrap();
        let third = owned.expect_region(0x1000, &quota);
        assert_eq!(third, Err(ControlError::Resource));
        assert_eq!(owned.have_region(Ok(7), region(0x1000)), Ok(7));
        let failed = owned.have_region(Err(ControlError::Ptag), region(0x1000));
        assert_eq!(failed, Err(ControlError::Ptag));
        let long = owned.expect_region(0x3000, &quota);
        assert_eq!(long, Err(ControlError::Resource), "of 0x1000 and 0x3000");
        assert_eq!(owned.registered_bytes, 0x1000);
        owned.expect_region(0x2000, &quota).unwrap();
        owned.have_region(Ok(8), region(0x2000)).unwrap();
        owned.remove_region(7);
        owned.remove_region(7);
        assert_eq!(owned.registered_bytes, 0x2000);
    }
}
