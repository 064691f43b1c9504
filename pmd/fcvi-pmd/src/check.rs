//! `check`: describes the NICs and the process of a configuration, and checks that they can be used on this host.

use std::io::Write;
use std::net::{IpAddr, TcpListener};
use std::path::Path;

use pmd::config::{
    Addressing, Config, Idle, NicConfig, Pinned, Principal, ProcessConfig, Progress, read_to_serve,
    socket_of,
};

use crate::Error;

/// Checks a file; without one, prints the reference.
pub(crate) fn run(file: Option<&Path>, here: bool, out: &mut impl Write) -> Result<(), Error> {
    let Some(file) = file else {
        return Ok(write!(out, "{}", pmd::config::reference::reference())?);
    };
    let config = read_to_serve(file).map_err(Error::Config)?;
    if config.nic.is_empty() {
        return Err(Error::NoNic {
            device: "VINIC0".into(),
            known: Vec::new(),
        });
    }
    for nic in &config.nic {
        let polled = describe_polling(nic, config.process.is_some());
        writeln!(out, "{}: {}{polled}", nic.name, describe_nic(nic))?;
    }
    for (alias, name) in &config.alias {
        writeln!(out, "{alias}: alias of {name}")?;
    }
    if let Some(process) = &config.process {
        for warning in process.oversubscribed(&config.nic) {
            writeln!(out, "warning: {warning}")?;
        }
        writeln!(out, "process: {}", describe_process(process))?;
    }
    if !here {
        return Ok(());
    }
    out.flush()?;
    match host_errors(&config) {
        errors if errors.is_empty() => Ok(writeln!(out, "usable on this host")?),
        errors => Err(Error::UnusableOnHost(errors)),
    }
}

/// Returns the reasons why the configuration cannot be used on this host.
fn host_errors(config: &Config) -> Vec<String> {
    let is_served = config.process.is_some();
    let mut errors = Vec::new();
    for nic in &config.nic {
        let of_nic = pmd::check_nic(nic, is_served).into_iter();
        errors.extend(of_nic.map(|error| format!("NIC {}: {error}", nic.name)));
    }
    if let Some(process) = &config.process {
        let socket = pmd::check_process(process).err();
        errors.extend(socket.map(|error| error.to_string()));
        if let Some(address) = process.metrics
            && let Err(error) = TcpListener::bind(address)
        {
            errors.push(Error::Metrics { address, error }.to_string());
        }
    }
    errors
}

fn describe_nic(nic: &NicConfig) -> String {
    let network = nic.network.summary();
    if let Some(tcp) = nic.network.vi_tcp() {
        let (host, port) = (nic.own_host(), tcp.port);
        return match host.ip() {
            IpAddr::V4(_) => format!("{network} at {host}:{port}"),
            IpAddr::V6(_) => format!("{network} at [{host}]:{port}"),
        };
    }
    let port = format!("{network}, host {}", nic.host_address());
    if !nic.network.is_on_wire() {
        return port;
    }
    match &nic.addressing {
        Addressing::Discovery(_) => format!("{port}, neighbours are discovered"),
        Addressing::Static(ids) => format!(
            "{port}, N_Port_IDs {}, neighbours are configured: {}",
            ids.n_port_ids,
            ids.neighbour.len()
        ),
    }
}

fn describe_polling(nic: &NicConfig, is_served: bool) -> String {
    match &nic.progress {
        Progress::Inline(_) => String::new(),
        Progress::Pinned(Pinned { core: Some(core) }) => format!(", polled on core {core}"),
        Progress::Pinned(_) if is_served => ", polled on the last permitted core".into(),
        Progress::Pinned(_) => ", polled by a dedicated thread".into(),
    }
}

fn describe_process(process: &ProcessConfig) -> String {
    let list = |all: &[Principal]| {
        all.iter()
            .map(Principal::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let users = match process.users.as_deref() {
        None => "its own user".to_owned(),
        Some([]) => "none".to_owned(),
        Some(users) => list(users),
    };
    let groups = match process.groups.as_slice() {
        [] => String::new(),
        groups => format!(", groups {}", list(groups)),
    };
    let idle = match process.idle {
        Idle::Spin => "spin".to_owned(),
        Idle::Hybrid => format!("hybrid after {} us", process.spin_us),
    };
    let metrics = match process.metrics {
        None => "no metrics".to_owned(),
        Some(address) => format!("metrics at {address}"),
    };
    format!(
        "socket {}, users {users}{groups}, idle {idle}, {metrics}",
        socket_of(process).display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_and_polling_cores_are_described() {
        let text = "[[nic]]\nshm = {}\n[[nic]]\nshm = {}\nprogress.pinned.core = 3\n[process]\nsocket = \"/run/x.sock\"\n";
        let config = Config::parse(text).unwrap();
        let polled_of = |config: &Config| -> Vec<String> {
            let is_served = config.process.is_some();
            let nics = config.nic.iter();
            nics.map(|nic| describe_polling(nic, is_served)).collect()
        };
        let expected = [", polled on the last permitted core", ", polled on core 3"];
        assert_eq!(polled_of(&config), expected);
        let alone =
            Config::parse("[[nic]]\nshm = {}\nprogress.pinned = {}\n[[nic]]\nshm = {}\n").unwrap();
        assert_eq!(polled_of(&alone), [", polled by a dedicated thread", ""]);
        let plain = "socket /run/x.sock, users its own user, idle spin, no metrics";
        assert_eq!(describe_process(&config.process.unwrap()), plain);
        let keys = "users = [\"alice\", 7]\ngroups = [100]\nidle = \"hybrid\"\nspin_us = 20\n\
                    metrics = \"127.0.0.1:9464\"\n";
        let config = Config::parse(&format!("{text}{keys}")).unwrap();
        let full = "socket /run/x.sock, users \"alice\", 7, groups 100, idle hybrid after 20 us, \
                    metrics at 127.0.0.1:9464";
        assert_eq!(describe_process(&config.process.unwrap()), full);
    }

    fn lines(text: &str) -> Vec<String> {
        let config = Config::parse(text).unwrap();
        config.nic.iter().map(describe_nic).collect()
    }

    #[test]
    fn nics_of_all_kinds_are_described() {
        let text = "[[nic]]\nshm = {}\n[[nic]]\naf_packet.interface = \"a\"\nhost = \"192.0.2.1\"\n\
                    [[nic]]\naf_packet.interface = \"b\"\nhost = \"192.0.2.1\"\nstatic.n_port_ids = \"00.01.01\"\n\
                    static.neighbour = [{ host = \"192.0.2.2\", n_port_ids = \"00.02.01\" }]\n\
                    [[nic]]\naf_xdp.interface = \"c\"\nhost = \"192.0.2.1\"\n\
                    [[nic]]\ndpdk.device = \"net_tap0,iface=d\"\nhost = \"192.0.2.1\"\n\
                    [[nic]]\nvi_tcp = {}\n[[nic]]\nhost = \"fe80::1%lo\"\nvi_tcp.port = 9000\n";
        let expected = [
            "shm, segment \"default\", host ::1",
            "af_packet on a, host 192.0.2.1, neighbours are discovered",
            "af_packet on b, host 192.0.2.1, N_Port_IDs 00.01.01, neighbours are configured: 1",
            "af_xdp on c, host 192.0.2.1, neighbours are discovered",
            "dpdk on net_tap0, host 192.0.2.1, neighbours are discovered",
            "VI/TCP at 127.0.0.1:8420",
            "VI/TCP at [fe80::1%lo]:9000",
        ];
        assert_eq!(lines(text), expected);
    }
}
