//! The NICs of a configuration.

use std::io::Write;
use std::path::Path;

use pmd::config::{Config, NicConfig, PortKind};

use crate::Error;

pub(crate) fn run(file: &Path, out: &mut impl Write) -> Result<(), Error> {
    let config = Config::read(file).map_err(Error::Config)?;
    if config.nics.is_empty() {
        return Err(Error::NoNic {
            device: "VINIC0".into(),
            known: Vec::new(),
        });
    }
    for nic in &config.nics {
        writeln!(out, "{}: {}", nic.name, described(nic))?;
    }
    for (alias, name) in &config.alias {
        writeln!(out, "{alias}: another name of {name}")?;
    }
    Ok(())
}

fn described(nic: &NicConfig) -> String {
    let host = nic.host_address();
    match nic.port {
        PortKind::Shm => format!("shm, segment {:?}, host {host}", nic.segment),
        PortKind::AfPacket if nic.discovers() => format!(
            "af_packet on {}, host {host}, neighbours are discovered",
            nic.interface
        ),
        PortKind::AfPacket => format!(
            "af_packet on {}, host {host}, N_Port_IDs {}, neighbours are configured: {}",
            nic.interface,
            nic.n_port_ids,
            nic.neighbour.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        let config = Config::parse(text).unwrap();
        config.nics.iter().map(described).collect()
    }

    #[test]
    fn each_kind_of_nic_is_described() {
        let text = "[[nic]]\n[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"192.0.2.1\"\n\
                    [[nic]]\nport = \"af_packet\"\ninterface = \"b\"\nhost = \"192.0.2.1\"\nn_port_ids = \"00.01.01\"\n\
                    neighbour = [{ host = \"192.0.2.2\", n_port_ids = \"00.02.01\" }]\n";
        let expected = [
            "shm, segment \"default\", host ::1",
            "af_packet on a, host 192.0.2.1, neighbours are discovered",
            "af_packet on b, host 192.0.2.1, N_Port_IDs 00.01.01, neighbours are configured: 1",
        ];
        assert_eq!(lines(text), expected);
    }
}
