//! Protection tags ended: only those that nothing has, and nobody is given one that ended.

use super::{ControlError, Outcome};
use crate::device::Device;
use crate::driver::Driver;
use crate::resource_error::ResourceError;
use crate::token::Held;

/// Ends a protection tag that no VI and no region has (VIPL 3.4.2).
pub(crate) fn destroy_ptag(device: &'static Device, ptag: u64) -> Outcome<()> {
    end(device, &device.hold(), ptag)
}

/// As [`destroy_ptag`], under the turn, in which VIs are given their tags.
fn end(device: &Device, _turn: &Held<'_, Option<Driver>>, ptag: u64) -> Outcome<()> {
    let tag = device
        .instances
        .tag(device.number(), ptag)
        .ok_or(ControlError::InvalidParameter)?;
    let ended = device
        .regions
        .end_tag(tag, || device.instances.destroy_tag(tag));
    if ended {
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
    fn a_vi_is_not_made_with_a_tag_that_ends_meanwhile() {
        let config = NicConfig {
            segment: format!("unit-{}-tags", std::process::id()),
            ..NicConfig::default()
        };
        let (device, instance) = crate::device::open_unattended(&config).unwrap();
        let ptag = device.instances.create_tag(device.number(), instance, 1);
        let settings = ViSettings {
            reliability: 2,
            max_transfer_bytes: 4096,
            ptag: ptag.unwrap(),
            ..ViSettings::default()
        };
        let make = || create_vi(device, instance, &settings, (0, 0));
        std::thread::scope(|scope| {
            let turn = device.hold();
            let vi = scope.spawn(make);
            // Whatever it looks at before its turn it has looked at then.
            while device.turn.waiting() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(end(device, &turn, settings.ptag), Ok(()));
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
