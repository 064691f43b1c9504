//! Values for tests.

use fcvi_frame::fc::FcType;

use crate::Fc4;

/// FC-VI.
pub(crate) const FC_VI: Fc4 = Fc4 {
    fc_type: FcType::Vi,
    features: 0,
    service_parameters: 0,
    handles_aborts: false,
};
/// The initiator of FCP.
pub(crate) const FCP_INITIATOR: Fc4 = Fc4 {
    fc_type: FcType::Fcp,
    features: 2,
    service_parameters: 0x22,
    handles_aborts: true,
};
