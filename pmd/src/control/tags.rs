//! Destroys protection tags that are not in use.

use vi_core::biased_lock::BiasedGuard;
use vi_types::{CallError, Outcome, ResourceError};

use crate::device::Device;
use crate::nic_backend::Backend;

/// Destroys a protection tag that no VI and no region uses (VIPL 3.4.2).
pub(crate) fn destroy_ptag(device: &'static Device, ptag: u64) -> Outcome<()> {
    destroy(device, &device.lock(), ptag)
}

/// As [`destroy_ptag`], under the backend lock, under which VIs acquire their tags.
fn destroy(device: &Device, _lock: &BiasedGuard<'_, Option<Backend>>, ptag: u64) -> Outcome<()> {
    let tag = device
        .nic_handles
        .tag(device.shared.number, ptag)
        .ok_or(CallError::InvalidParameter)?;
    let destroyed = device
        .shared
        .regions
        .end_tag(tag, || device.nic_handles.destroy_tag(tag));
    if destroyed {
        Ok(())
    } else {
        Err(ResourceError::TagInUse.into())
    }
}

#[cfg(test)]
mod tests {
    use vi_types::{PtagHandle, ViAttributes};

    use super::*;
    use crate::config::{Network, NicConfig};
    use crate::nic::create_vi;

    #[test]
    fn vi_is_not_created_with_a_tag_that_is_destroyed_meanwhile() {
        let config = NicConfig {
            network: Network::segment(format!("unit-{}-tags", std::process::id())),
            ..NicConfig::default()
        };
        let (device, nic_handle) = crate::open::open_without_threads(&config).unwrap();
        let ptag = device
            .nic_handles
            .create_tag(device.shared.number, nic_handle, 1)
            .unwrap();
        let settings = ViAttributes {
            reliability: 2,
            max_transfer_bytes: 4096,
            ptag: Some(PtagHandle::from_raw(ptag)),
            ..ViAttributes::default()
        };
        let make = || create_vi(nic_handle, &settings, 0, 0);
        std::thread::scope(|scope| {
            let backend_lock = device.lock();
            let vi = scope.spawn(make);
            // It has done all checks that precede the lock.
            while device.backend.waiting() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(destroy(device, &backend_lock, ptag), Ok(()));
            drop(backend_lock);
            assert_eq!(vi.join().unwrap(), Err(CallError::Ptag));
        });
        assert_eq!(destroy_ptag(device, ptag), Err(CallError::InvalidParameter));
        crate::open::close(device, nic_handle).unwrap();
    }
}
