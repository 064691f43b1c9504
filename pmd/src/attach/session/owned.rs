//! What an application owns.

use std::collections::HashMap;

use crate::attach::mapped_files::FileUse;
use crate::config::Quota;
use crate::control::{ControlError, Outcome};
use crate::resource_error::{Limit, LimitOf, LimitReached, ResourceError};

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
    /// Of its regions that are not in files which are mapped, and of those that are being
    /// registered.
    pub(super) other_bytes: u64,
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
    /// Of whole pages; 0 for one in a file that is mapped, which is charged as a whole.
    pub(super) bytes: u64,
    /// The file is a bounce buffer of the library.
    pub(super) is_bounce_buffer: bool,
    /// The file that it is in.
    #[allow(dead_code, reason = "charged until dropped")]
    pub(super) file: Option<FileUse>,
}

/// A quota is used up.
pub(super) fn all_in_use(limit: Limit, quota: u32) -> ControlError {
    LimitReached::all_in_use(limit, quota, LimitOf::Program).into()
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

    /// An opening has ended, and all that was made for it. The caller drops its regions when it
    /// holds nothing that others wait for.
    pub(super) fn close(&mut self, nic: u64) -> Vec<Region> {
        self.nics.retain(|open| *open != nic);
        let of_nic = |_: &u32, region: &mut Region| region.nic == nic;
        let ended: Vec<_> = self.regions.extract_if(of_nic).map(|(_, r)| r).collect();
        self.give_up(ended.iter().map(|region| region.bytes).sum());
        for made in [&mut self.tags, &mut self.vis, &mut self.conns] {
            made.retain(|_, opening| *opening != nic);
        }
        ended
    }

    /// Counts a tag that is about to be made. [`Self::have_tag`] follows.
    pub(super) fn expect_tag(&mut self, quota: &Quota) -> Outcome<()> {
        if self.tags.len() + self.tags_to_come >= quota.max_ptags as usize {
            return Err(all_in_use(Limit::MaxPtags, quota.max_ptags));
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
            return Err(all_in_use(Limit::MaxVi, quota.max_vi));
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

    /// Counts a region that is about to be registered. [`Self::have_region`] follows.
    pub(super) fn expect_region(&mut self, quota: &Quota) -> Outcome<()> {
        let regions = self.regions.len() + self.regions_to_come;
        if regions >= quota.max_regions as usize {
            return Err(all_in_use(Limit::MaxRegions, quota.max_regions));
        }
        self.regions_to_come += 1;
        Ok(())
    }

    /// Counts the bytes of a region that was counted, beside those of the files.
    pub(super) fn expect_bytes(
        &mut self,
        bytes: u64,
        quota: &Quota,
        file_bytes: u64,
    ) -> Outcome<()> {
        let sum = self.other_bytes.saturating_add(bytes);
        if sum.saturating_add(file_bytes) > quota.max_registered_bytes {
            return Err(ControlError::Resource(ResourceError::Limit(LimitReached {
                limit: Limit::MaxRegisteredBytes,
                value: quota.max_registered_bytes,
                in_use: self.other_bytes.saturating_add(file_bytes),
                wanted: bytes,
                of: LimitOf::Program,
            })));
        }
        self.other_bytes = sum;
        Ok(())
    }

    /// It was registered, or not: then the caller gets it back, and drops it when it holds
    /// nothing that others wait for.
    pub(super) fn have_region(
        &mut self,
        made: Outcome<u32>,
        region: Region,
    ) -> (Outcome<u32>, Option<Region>) {
        self.regions_to_come -= 1;
        let made = self.of_open(made, region.nic);
        match made {
            Ok(handle) => (made, self.regions.insert(handle, region)),
            Err(_) => {
                self.give_up(region.bytes);
                (made, Some(region))
            }
        }
    }

    /// A region is registered no more. The caller drops it when it holds nothing that others wait
    /// for.
    pub(super) fn remove_region(&mut self, handle: u32) -> Option<Region> {
        let region = self.regions.remove(&handle)?;
        self.give_up(region.bytes);
        Some(region)
    }

    /// So many bytes are registered no more.
    pub(super) fn give_up(&mut self, bytes: u64) {
        self.other_bytes = self.other_bytes.saturating_sub(bytes);
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

    fn too_many_bytes(in_use: u64, wanted: u64) -> ControlError {
        ControlError::Resource(ResourceError::Limit(LimitReached {
            limit: Limit::MaxRegisteredBytes,
            value: 0x3000,
            in_use,
            wanted,
            of: LimitOf::Program,
        }))
    }

    fn region(bytes: u64) -> Region {
        Region {
            nic: 1,
            address: 0x1000,
            bytes,
            is_bounce_buffer: false,
            file: None,
        }
    }

    fn expect(owned: &mut Owned, bytes: u64, quota: &Quota) -> Outcome<()> {
        owned.expect_region(quota)?;
        owned.expect_bytes(bytes, quota, 0).inspect_err(|error| {
            let _none = owned.have_region(Err(*error), region(0));
        })
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
            expect(&mut owned, 0x1000, &quota).unwrap();
        }
        owned.have_tag(Ok(3), 1).unwrap();
        owned.have_vi(Ok(4), 1).unwrap();
        owned.have_region(Ok(5), region(0x1000)).0.unwrap();
        owned.have_conn(6, 1).unwrap();
        assert_eq!(owned.close(1).len(), 1);
        let gone = Err(ControlError::InvalidParameter);
        assert_eq!(owned.have_tag(Ok(7), 1), gone);
        assert_eq!(owned.have_vi(Ok(8), 1), gone);
        let (made, unused) = owned.have_region(Ok(9), region(0x1000));
        assert_eq!(made, gone.map(|_| 0));
        assert!(unused.is_some(), "for the caller to drop");
        assert!(owned.have_conn(10, 1).is_err());
        assert!(owned.tags.is_empty() && owned.vis.is_empty() && owned.conns.is_empty());
        assert!(owned.regions.is_empty());
        assert_eq!(owned.other_bytes, 0);
        assert_eq!(owned.expect_vi(&quota), Ok(()));
        assert_eq!(owned.have_vi(Ok(11), 2), Ok(11), "another opening");
    }

    #[test]
    fn tags_that_are_being_made_count() {
        let (mut owned, quota) = (owned(), quota());
        owned.expect_tag(&quota).unwrap();
        owned.expect_tag(&quota).unwrap();
        let reached = all_in_use(Limit::MaxPtags, 2);
        assert_eq!(owned.expect_tag(&quota), Err(reached));
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
        assert_eq!(owned.expect_vi(&quota), Err(all_in_use(Limit::MaxVi, 2)));
        assert_eq!(owned.have_vi(Ok(7), 1), Ok(7));
        assert_eq!(owned.expect_vi(&quota), Err(all_in_use(Limit::MaxVi, 2)));
        let refused = owned.have_vi(Err(ControlError::Ptag), 1);
        assert_eq!(refused, Err(ControlError::Ptag));
        assert_eq!(owned.expect_vi(&quota), Ok(()), "one was not made");
        assert_eq!(owned.vis.len(), 1);
    }

    #[test]
    fn regions_that_are_being_registered_count() {
        let (mut owned, quota) = (owned(), quota());
        expect(&mut owned, 0x1000, &quota).unwrap();
        expect(&mut owned, 0x1000, &quota).unwrap();
        let third = expect(&mut owned, 0x1000, &quota);
        assert_eq!(third, Err(all_in_use(Limit::MaxRegions, 2)));
        assert_eq!(owned.have_region(Ok(7), region(0x1000)).0, Ok(7));
        let failed = owned.have_region(Err(ControlError::Ptag), region(0x1000)).0;
        assert_eq!(failed, Err(ControlError::Ptag));
        let long = expect(&mut owned, 0x3000, &quota);
        assert_eq!(long, Err(too_many_bytes(0x1000, 0x3000)));
        assert_eq!(owned.other_bytes, 0x1000);
        expect(&mut owned, 0x2000, &quota).unwrap();
        owned.have_region(Ok(8), region(0x2000)).0.unwrap();
        assert!(owned.remove_region(7).is_some());
        assert!(owned.remove_region(7).is_none());
        assert_eq!(owned.other_bytes, 0x2000);
        let beside_files = owned.expect_bytes(0x1000, &quota, 0x1000);
        assert_eq!(beside_files, Err(too_many_bytes(0x3000, 0x1000)));
    }
}
