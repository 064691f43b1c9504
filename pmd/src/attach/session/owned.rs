//! The resources of an application.

use std::collections::HashMap;
use std::hash::Hash;

use vi_types::{CallError, Limit, LimitOf, LimitReached, Outcome, ResourceError};

use crate::attach::mapped_files::FileUse;
use crate::config::Quota;

/// The resources of an application on its NIC, by their handles.
///
/// A resource that is created while another call closes its NIC handle is destroyed with that handle.
#[derive(Default)]
pub(super) struct Owned {
    pub(super) nics: Vec<u64>,
    /// Protection tags, each with its NIC handle.
    pub(super) tags: HashMap<u64, u64>,
    /// VIs, each with its NIC handle.
    pub(super) vis: HashMap<u64, u64>,
    /// Pending connection requests, each with its NIC handle.
    pub(super) conns: HashMap<u64, u64>,
    pub(super) regions: HashMap<u32, Region>,
    /// Bytes of regions that are not in mapped files, including regions that are being registered.
    pub(super) other_bytes: u64,
    /// Tags, VIs and regions that calls are creating: they count, too.
    reserved_tags: usize,
    reserved_vis: usize,
    reserved_regions: usize,
}

/// A region of an application.
pub(super) struct Region {
    pub(super) nic: u64,
    /// The registered address.
    pub(super) address: u64,
    /// Bytes in whole pages; 0 in a mapped file, which is charged as a whole.
    pub(super) bytes: u64,
    /// The file is a bounce buffer of the library.
    pub(super) is_bounce_buffer: bool,
    /// The file that contains it.
    #[allow(dead_code, reason = "charged until dropped")]
    pub(super) file: Option<FileUse>,
}

/// Numbers of resources that count against the limits of a user.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InUse {
    pub(super) vis: u64,
    pub(super) tags: u64,
    /// Regions, or mapped files if they are more.
    pub(super) regions: u64,
    pub(super) bytes: u64,
    pub(super) conns: u64,
}

/// The error of a reached quota.
pub(super) fn all_in_use(limit: Limit, quota: u32) -> CallError {
    LimitReached::all_in_use(limit, quota, LimitOf::Program).into()
}

/// Reserves memory for one more resource, besides those that calls are creating.
fn reserve<K: Eq + Hash, V>(resources: &mut HashMap<K, V>, creating: usize) -> Outcome<()> {
    let no_memory = |_| ResourceError::OutOfMemory.into();
    resources.try_reserve(creating + 1).map_err(no_memory)
}

impl Owned {
    /// Returns what was created for a NIC handle, unless the handle was closed meanwhile.
    fn if_open<T>(&self, made: Outcome<T>, nic: u64) -> Outcome<T> {
        let is_open = self.nics.contains(&nic);
        made.and_then(|made| is_open.then_some(made).ok_or(CallError::InvalidParameter))
    }

    /// Removes a closed NIC handle and its resources. Returns its regions, which the caller drops without a lock.
    pub(super) fn close(&mut self, nic: u64) -> Vec<Region> {
        self.nics.retain(|open| *open != nic);
        let of_nic = |_: &u32, region: &mut Region| region.nic == nic;
        let ended: Vec<_> = self.regions.extract_if(of_nic).map(|(_, r)| r).collect();
        self.release_bytes(ended.iter().map(|region| region.bytes).sum());
        for made in [&mut self.tags, &mut self.vis, &mut self.conns] {
            made.retain(|_, handle| *handle != nic);
        }
        ended
    }

    /// Counts a tag that is about to be created. [`Self::commit_tag`] follows.
    pub(super) fn reserve_tag(&mut self, quota: &Quota) -> Outcome<()> {
        if self.tags.len() + self.reserved_tags >= quota.max_ptags as usize {
            return Err(all_in_use(Limit::MaxPtags, quota.max_ptags));
        }
        reserve(&mut self.tags, self.reserved_tags)?;
        self.reserved_tags += 1;
        Ok(())
    }

    /// Adds a created tag; `made` is the result of the creation.
    pub(super) fn commit_tag(&mut self, made: Outcome<u64>, nic: u64) -> Outcome<u64> {
        self.reserved_tags -= 1;
        let made = self.if_open(made, nic);
        self.tags.extend(made.ok().map(|tag| (tag, nic)));
        made
    }

    /// Counts a VI that is about to be created. [`Self::commit_vi`] follows.
    pub(super) fn reserve_vi(&mut self, quota: &Quota) -> Outcome<()> {
        if self.vis.len() + self.reserved_vis >= quota.max_vi as usize {
            return Err(all_in_use(Limit::MaxVi, quota.max_vi));
        }
        reserve(&mut self.vis, self.reserved_vis)?;
        self.reserved_vis += 1;
        Ok(())
    }

    /// Adds a created VI; `made` is the result of the creation.
    pub(super) fn commit_vi(&mut self, made: Outcome<u64>, nic: u64) -> Outcome<u64> {
        self.reserved_vis -= 1;
        let made = self.if_open(made, nic);
        self.vis.extend(made.ok().map(|vi| (vi, nic)));
        made
    }

    /// Checks that another connection request may be received.
    pub(super) fn check_conns(&self, max_incoming: u32) -> Outcome<()> {
        if self.conns.len() >= max_incoming as usize {
            return Err(all_in_use(Limit::MaxIncoming, max_incoming));
        }
        Ok(())
    }

    /// Adds a connection request of a NIC handle.
    pub(super) fn add_conn(&mut self, conn: u64, nic: u64) -> Outcome<()> {
        let conn = self.if_open(Ok(conn), nic)?;
        self.conns.insert(conn, nic);
        Ok(())
    }

    /// Counts a region that is about to be registered. [`Self::commit_region`] follows.
    pub(super) fn reserve_region(&mut self, quota: &Quota) -> Outcome<()> {
        let regions = self.regions.len() + self.reserved_regions;
        if regions >= quota.max_regions as usize {
            return Err(all_in_use(Limit::MaxRegions, quota.max_regions));
        }
        reserve(&mut self.regions, self.reserved_regions)?;
        self.reserved_regions += 1;
        Ok(())
    }

    /// Counts the bytes of a reserved region; `file_bytes` are those of mapped files.
    pub(super) fn reserve_bytes(
        &mut self,
        bytes: u64,
        quota: &Quota,
        file_bytes: u64,
    ) -> Outcome<()> {
        let sum = self.other_bytes.saturating_add(bytes);
        if sum.saturating_add(file_bytes) > quota.max_registered_bytes {
            return Err(CallError::Resource(ResourceError::Limit(LimitReached {
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

    /// Adds a registered region; `made` is the result of the registration. If that failed, returns the region, which
    /// the caller drops without holding a lock.
    pub(super) fn commit_region(
        &mut self,
        made: Outcome<u32>,
        region: Region,
    ) -> (Outcome<u32>, Option<Region>) {
        self.reserved_regions -= 1;
        let made = self.if_open(made, region.nic);
        match made {
            Ok(handle) => (made, self.regions.insert(handle, region)),
            Err(_) => {
                self.release_bytes(region.bytes);
                (made, Some(region))
            }
        }
    }

    /// Removes a deregistered region, which the caller drops without holding a lock.
    pub(super) fn remove_region(&mut self, handle: u32) -> Option<Region> {
        let region = self.regions.remove(&handle)?;
        self.release_bytes(region.bytes);
        Some(region)
    }

    /// Returns what counts against the limits of the application's user, without its mapped files.
    pub(super) fn in_use(&self) -> InUse {
        InUse {
            vis: (self.vis.len() + self.reserved_vis) as u64,
            tags: (self.tags.len() + self.reserved_tags) as u64,
            regions: (self.regions.len() + self.reserved_regions) as u64,
            bytes: self.other_bytes,
            conns: self.conns.len() as u64,
        }
    }

    /// Uncounts deregistered bytes.
    pub(super) fn release_bytes(&mut self, bytes: u64) {
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

    fn too_many_bytes(in_use: u64, wanted: u64) -> CallError {
        CallError::Resource(ResourceError::Limit(LimitReached {
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
        owned.reserve_region(quota)?;
        owned.reserve_bytes(bytes, quota, 0).inspect_err(|error| {
            let _none = owned.commit_region(Err(*error), region(0));
        })
    }

    /// Resources with one NIC handle.
    fn owned() -> Owned {
        Owned {
            nics: vec![1],
            ..Owned::default()
        }
    }

    #[test]
    fn resources_created_while_the_nic_handle_is_closed_are_not_added() {
        let (mut owned, quota) = (owned(), quota());
        owned.nics.push(2);
        for _ in 0..2 {
            owned.reserve_tag(&quota).unwrap();
            owned.reserve_vi(&quota).unwrap();
            expect(&mut owned, 0x1000, &quota).unwrap();
        }
        owned.commit_tag(Ok(3), 1).unwrap();
        owned.commit_vi(Ok(4), 1).unwrap();
        owned.commit_region(Ok(5), region(0x1000)).0.unwrap();
        owned.add_conn(6, 1).unwrap();
        assert_eq!(owned.close(1).len(), 1);
        let closed = Err(CallError::InvalidParameter);
        assert_eq!(owned.commit_tag(Ok(7), 1), closed);
        assert_eq!(owned.commit_vi(Ok(8), 1), closed);
        let (made, unused) = owned.commit_region(Ok(9), region(0x1000));
        assert_eq!(made, closed.map(|_| 0));
        assert!(unused.is_some(), "for the caller to drop");
        assert!(owned.add_conn(10, 1).is_err());
        assert!(owned.tags.is_empty() && owned.vis.is_empty() && owned.conns.is_empty());
        assert!(owned.regions.is_empty());
        assert_eq!(owned.other_bytes, 0);
        assert_eq!(owned.reserve_vi(&quota), Ok(()));
        assert_eq!(owned.commit_vi(Ok(11), 2), Ok(11), "another handle");
    }

    #[test]
    fn tags_that_are_being_created_count() {
        let (mut owned, quota) = (owned(), quota());
        owned.reserve_tag(&quota).unwrap();
        owned.reserve_tag(&quota).unwrap();
        let reached = all_in_use(Limit::MaxPtags, 2);
        assert_eq!(owned.reserve_tag(&quota), Err(reached));
        assert_eq!(owned.commit_tag(Ok(7), 1), Ok(7));
        let refused = owned.commit_tag(Err(CallError::InvalidParameter), 1);
        assert!(refused.is_err());
        assert_eq!(owned.reserve_tag(&quota), Ok(()), "one was not created");
        assert_eq!(owned.tags.len(), 1);
    }

    #[test]
    fn vis_that_are_being_created_count() {
        let (mut owned, quota) = (owned(), quota());
        owned.reserve_vi(&quota).unwrap();
        owned.reserve_vi(&quota).unwrap();
        assert_eq!(owned.reserve_vi(&quota), Err(all_in_use(Limit::MaxVi, 2)));
        assert_eq!(owned.commit_vi(Ok(7), 1), Ok(7));
        assert_eq!(owned.reserve_vi(&quota), Err(all_in_use(Limit::MaxVi, 2)));
        let refused = owned.commit_vi(Err(CallError::Ptag), 1);
        assert_eq!(refused, Err(CallError::Ptag));
        assert_eq!(owned.reserve_vi(&quota), Ok(()), "one was not created");
        assert_eq!(owned.vis.len(), 1);
    }

    #[test]
    fn regions_that_are_being_registered_count() {
        let (mut owned, quota) = (owned(), quota());
        expect(&mut owned, 0x1000, &quota).unwrap();
        expect(&mut owned, 0x1000, &quota).unwrap();
        let third = expect(&mut owned, 0x1000, &quota);
        assert_eq!(third, Err(all_in_use(Limit::MaxRegions, 2)));
        assert_eq!(owned.commit_region(Ok(7), region(0x1000)).0, Ok(7));
        let failed = owned.commit_region(Err(CallError::Ptag), region(0x1000)).0;
        assert_eq!(failed, Err(CallError::Ptag));
        let long = expect(&mut owned, 0x3000, &quota);
        assert_eq!(long, Err(too_many_bytes(0x1000, 0x3000)));
        assert_eq!(owned.other_bytes, 0x1000);
        expect(&mut owned, 0x2000, &quota).unwrap();
        owned.commit_region(Ok(8), region(0x2000)).0.unwrap();
        assert!(owned.remove_region(7).is_some());
        assert!(owned.remove_region(7).is_none());
        assert_eq!(owned.other_bytes, 0x2000);
        let beside_files = owned.reserve_bytes(0x1000, &quota, 0x1000);
        assert_eq!(beside_files, Err(too_many_bytes(0x3000, 0x1000)));
    }
}
