//! Validates the values of a NIC, from a file or from a program.

use crate::error::{ConfigError, Step, ValueError};
use crate::nic::{FcVi, Limits, NicConfig};
use crate::recovery::Recovery;
use crate::table::Table as _;

/// Maximum length of a discriminator with VI/TCP, in bytes.
const MAX_VI_TCP_DISCRIMINATOR_BYTES: u16 = 16;

impl NicConfig {
    /// Checks every value, of a NIC that is not from a file.
    ///
    /// # Errors
    /// All errors of the values.
    pub fn check(&self) -> Result<(), ConfigError> {
        let errors = self.errors();
        if errors.is_empty() {
            return Ok(());
        }
        let texts: Vec<_> = errors.into_iter().map(|error| error.text).collect();
        Err(ConfigError::new(texts.join("; ")))
    }

    /// Returns the errors of the values, of its tables too.
    pub(crate) fn errors(&self) -> Vec<ValueError> {
        let mut found = self.range_errors();
        let host = self.host.as_ref();
        found.extend(host.and_then(|host| host.error(&self.network)));
        if self.host.is_none() && self.network.is_on_wire() {
            let text = format!(
                "[nic.{}] requires host = \"...\" in [[nic]], the IP address of this NIC",
                self.network.name()
            );
            found.push(ValueError::new("host", text));
        }
        found.extend(self.network.errors());
        if self.network.vi_tcp().is_none() {
            let is_on_wire = self.network.is_on_wire();
            found.extend(self.addressing.errors(is_on_wire));
        }
        let mut add = |tables: &[&'static str], errors: Vec<ValueError>| {
            let under = |error: ValueError| {
                let tables = tables.iter().rev();
                tables.fold(error, |error, table| error.under(Step::Table(table)))
            };
            found.extend(errors.into_iter().map(under));
        };
        add(
            &["progress", self.progress.name()],
            self.progress.range_errors(),
        );
        add(&["limits"], self.limits.errors(self));
        add(&["fc_vi"], self.fc_vi.range_errors());
        let FcVi { fault, .. } = &self.fc_vi;
        let of_faults = fault.as_ref().map(|fault| fault.range_errors());
        add(&["fc_vi", "fault"], of_faults.unwrap_or_default());
        if let Some(Recovery::Parameters(parameters)) = &self.recovery {
            add(&["recovery"], parameters.errors());
        }
        found
    }
}

impl Limits {
    fn errors(&self, nic: &NicConfig) -> Vec<ValueError> {
        let mut found = self.range_errors();
        if self.max_ptags < self.max_vi {
            let (ptags, vis) = (self.max_ptags, self.max_vi);
            let text = format!(
                "max_ptags = {ptags}: must be at least max_vi = {vis}: raise this, or lower that"
            );
            found.push(ValueError::new("max_ptags", text));
        }
        let (bytes, most) = (self.max_discriminator_bytes, MAX_VI_TCP_DISCRIMINATOR_BYTES);
        if nic.network.vi_tcp().is_some() && bytes > most && found.is_empty() {
            let text =
                format!("max_discriminator_bytes = {bytes}: must be {most} with [nic.vi_tcp]");
            found.push(ValueError::new("max_discriminator_bytes", text));
        }
        found
    }
}
