//! Destroys protection tags that are not in use.

use super::{ControlError, Outcome};
use crate::biased_lock::BiasedGuard;
use crate::device::Device;
use crate::nic_backend::Backend;
use crate::resource_error::ResourceError;

/// Destroys a protection tag that no VI and no region uses (VIPL 3.4.2).
pub(crate) fn destroy_ptag(device: &'static Device, ptag: u64) -> Outcome<()> {
    destroy(device, &device.lock(), ptag)
}

/// As [`destroy_ptag`], under the turn, under which VIs acquire their tags.
fn destroy(device: &Device, _turn: &BiasedGuard<'_, Option<Backend>>, ptag: u64) -> Outcome<()> {
    let tag = device
        .instances
        .tag(device.number(), ptag)
        .ok_or(ControlError::InvalidParameter)?;
    let destroyed = device
        .regions
        .end_tag(tag, || device.instances.destroy_tag(tag));
    if destroyed {
        Ok(())
    } else {
        Err(ResourceError::TagInUse.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NicConfig;
    use crate::control::create_vi;
    use crate::vi::ViSettings;

    #[test]
    fn vi_is_not_created_with_a_tag_that_is_destroyed_meanwhile() {
        let config = NicConfig {
            segment: format!("unit-{}-tags", std::process::id()),
            ..NicConfig::default()
        };
        let (device, instance) = crate::device::open_without_threads(&config).unwrap();
        let ptag = device.instances.create_tag(device.number(), instance, 1);
        let settings = ViSettings {
            reliability: 2,
            max_transfer_bytes: 4096,
            ptag: ptag.unwrap(),
            ..ViSettings::default()
        };
        let make = || create_vi(device, instance, &settings, (0, 0));
        std::thread::scope(|scope| {
            let turn = device.lock();
            let vi = scope.spawn(make);
            // It has done all checks that precede the turn.
            while device.backend.waiting() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(destroy(device, &turn, settings.ptag), Ok(()));
            drop(turn);
            assert_eq!(vi.join().unwrap(), Err(ControlError::Ptag));
        });
        assert_eq!(
            destroy_ptag(device, settings.ptag),
            Err(ControlError::InvalidParameter)
        );
        crate::device::close(device, instance).unwrap();
    }
}
