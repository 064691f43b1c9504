//! The FC-4 protocol of a port.

use fcvi_frame::fc::FcType;

/// The FC-4 protocol for which a port logs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fc4 {
    /// Its TYPE, as claims of discovery advertise it.
    pub fc_type: FcType,
    /// Its features in these claims: four bits whose meaning depends on the protocol.
    pub features: u8,
    /// Service parameters of the accept of its PRLI.
    pub service_parameters: u32,
    /// Leaves frames of TYPE 0x00 to the caller, with addresses that are not checked, except those of
    /// a responder that name a request of this port's logins. Otherwise an ABTS is rejected: the
    /// protocol cannot undo an exchange.
    pub handles_aborts: bool,
}
