use super::*;

mod conflicts;
mod errors;

#[test]
fn every_example_is_valid() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let (mut seen, mut served) = (0, 0);
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            let config = Config::read(&path).unwrap();
            assert!(!config.nic.is_empty(), "{}", path.display());
            seen += 1;
            served += u32::from(config.process.is_some());
        }
    }
    assert!(
        seen >= 6 && served >= 3,
        "{seen} examples, {served} with [process]"
    );
}

#[test]
fn reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("VIPL_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&path, reference::reference()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written == reference::reference(),
        "{}: generate it again: VIPL_WRITE_DOCUMENTS=1 cargo test -p vi-config",
        path.display()
    );
}

#[test]
fn empty_nic_table_is_a_nic_on_shared_memory() {
    let config = Config::parse("[[nic]]\nshm = {}").unwrap();
    for name in ["VINIC", "VINIC0"] {
        let nic = config.nic(name).unwrap();
        assert_eq!(nic.network, Network::Shm(Shm::default()));
    }
    for unknown in ["VINIC1", "vinic0", "VINIC-1", "VINICx", "", "eth0"] {
        assert!(config.nic(unknown).is_none(), "{unknown}");
    }
}

#[test]
fn nics_are_found_by_index_name_alias_and_interface() {
    let config = Config::parse(
        r#"
        [[nic]]
        shm.segment = "one"
        [[nic]]
        name = "fast"
        af_packet.interface = "veth7"
        host = "10.0.0.1"
        static.n_port_ids = "00.01.01-00.01.04"
        static.neighbour = [{ host = "10.0.0.2", n_port_ids = "00.01.10" }]
        [alias]
        clan0 = "fast"
        "#,
    )
    .unwrap();
    for name in ["VINIC1", "fast", "clan0", "veth7"] {
        assert_eq!(config.nic(name).unwrap().name, "fast", "{name}");
    }
    let nic = config.nic("fast").unwrap();
    let ids = nic.addressing.r#static().unwrap();
    assert_eq!(parse_range(&ids.n_port_ids), Ok((0x0101, 0x0104)));
    let neighbour = &ids.neighbour[0];
    assert_eq!(parse_range(&neighbour.n_port_ids), Ok((0x0110, 0x0110)));
    assert_eq!(nic.r_a_tov_ms(), 10_000);
}

#[test]
fn af_xdp_keys_are_parsed() {
    let text = "[[nic]]\naf_xdp.interface = \"veth7\"\nhost = \"10.0.0.1\"\n";
    let of = |keys: &str| Config::parse(&format!("{text}{keys}")).expect("legal keys");
    let port = |config: &Config| match &config.nic("veth7").expect("by its interface").network {
        Network::AfXdp(port) => port.clone(),
        network => panic!("{network:?}"),
    };
    let config = of("");
    let found = port(&config);
    assert_eq!(
        (found.queue, found.queues, found.copy),
        (0, 1, CopyMode::Auto)
    );
    let nic = &config.nic[0];
    assert!(nic.discovers() && nic.recovery().is_some());
    assert_eq!(nic.r_a_tov_ms(), 10_000);
    for (word, copy) in [
        ("auto", CopyMode::Auto),
        ("zero-copy", CopyMode::ZeroCopy),
        ("copy", CopyMode::Copy),
    ] {
        let keys = format!("af_xdp.queue = 3\naf_xdp.queues = 2\naf_xdp.copy = \"{word}\"\n");
        let found = port(&of(&keys));
        assert_eq!((found.queue, found.queues, found.copy), (3, 2, copy));
    }
}

#[test]
fn dpdk_keys_are_parsed() {
    let text = "[[nic]]\nhost = \"10.0.0.1\"\n[nic.dpdk]\ndevice = \"net_memif0,role=server\"\n";
    let of = |keys: &str| Config::parse(&format!("{text}{keys}")).expect("legal keys");
    let port = |config: &Config| match &config.nic[0].network {
        Network::Dpdk(port) => port.clone(),
        network => panic!("{network:?}"),
    };
    let config = of("");
    let nic = config.nic("net_memif0").expect("by its device");
    assert_eq!(nic.network.name(), "dpdk");
    let found = port(&config);
    assert_eq!(found.device, "net_memif0,role=server");
    assert_eq!((found.queues, found.mtu_bytes), (1, None));
    assert_eq!((found.huge_pages, found.memory_mb), (false, 256));
    assert!(found.args.is_empty() && nic.discovers() && nic.recovery().is_some());
    assert_eq!((nic.r_a_tov_ms(), nic.silent_port_ms()), (10_000, 100));
    assert!(config.nic("net_memif0,role=server").is_none());
    let keys = "queues = 2\nrx_frames = 16\nhuge_pages = true\nmemory_mb = 0\nmtu_bytes = 2500\n\
                args = [\"-l\", \"0\"]\n[nic.static]\nn_port_ids = \"00.01.01\"";
    let config = of(keys);
    let found = port(&config);
    assert_eq!((found.queues, found.mtu_bytes), (2, Some(2500)));
    assert_eq!((found.huge_pages, found.memory_mb), (true, 0));
    assert_eq!(found.args, ["-l", "0"]);
    let nic = &config.nic[0];
    assert!(!nic.discovers());
    let recovery = nic.recovery().expect("on");
    assert_eq!(recovery.window_frames, 16, "capacity of the ring");
    assert_eq!(recovery.min_window_frames, 16);
}

#[test]
fn both_ends_of_a_pair_of_rings_may_be_nics_of_one_file() {
    let end = "[[nic]]\ndpdk.device = \"ring:a\"\nhost = \"10.0.0.1\"\ndpdk.memory_mb = 64\n";
    let other = end.replace("ring:a", "ring:b");
    let config = Config::parse(&[end, other.as_str(), end].concat()).unwrap();
    let names: Vec<_> = config
        .nic
        .iter()
        .map(|nic| nic.network.wire_name())
        .collect();
    assert_eq!(names, [Some("ring:a"), Some("ring:b"), Some("ring:a")]);
    assert_eq!(
        Config::parse("[[nic]]\nshm = {}").unwrap().nic[0]
            .network
            .wire_name(),
        None
    );
}

#[test]
fn error_texts_name_key_and_requirement() {
    for (text, expected) in [
        ("[[nic]]\nshm = {}\nmax_vis = 3", "max_vis"),
        ("[[nic]]\nshn = {}\n", "did you mean `shm`"),
        ("[[nic]]\nshm = {}\nlimits.max_vi = 0", "max_vi = 0"),
        ("[[nic]]\nshm = {}\nlimits.max_vi = 5000", "1 to 4096"),
        ("[[nic]]\nshm = {}\nlimits.max_rdma_reads = 0", "1 to 256"),
        (
            "[[nic]]\nshm = {}\nlimits.max_rdma_reads = 257",
            "max_rdma_reads = 257",
        ),
        ("[[nic]]\nshm = {}\nlimits.max_in_flight = 0", "1 to 256"),
        (
            "[[nic]]\nshm = {}\nlimits.rdma_miss_burst = 0",
            "1 to 1000000",
        ),
        (
            "[[nic]]\nshm = {}\nlimits.rdma_misses_per_hour = 0",
            "1 to 1000000",
        ),
        (
            "[[nic]]\nshm = {}\nlimits.rdma_misses_per_connection = 0",
            "1 to 1000000",
        ),
        ("[[nic]]\nshm = {}\nrecovery.ack_messages = 0", "1 to 256"),
        ("[[nic]]\nshm = {}\nrecovery.ack_bytes = 0", "ack_bytes = 0"),
        (
            "[[nic]]\nshm = {}\nrecovery.ack_us = 1000001",
            "0 to 1000000",
        ),
        (
            "[[nic]]\nshm = {}\nrecovery.timeout_us = 9",
            "10 to 10000000",
        ),
        ("[[nic]]\nshm = {}\nrecovery.tries = 101", "1 to 100"),
        (
            "[[nic]]\nshm = {}\nrecovery.min_window_frames = 1",
            "2 to 65536",
        ),
        ("[[nic]]\nshm = {}\nrecovery.window_frames = 31", "at most"),
        (
            "[[nic]]\nshm = {}\nrecovery.received_ranges = 4097",
            "1 to 4096",
        ),
        (
            "[[nic]]\nshm = {}\nlimits.max_in_flight = 257",
            "max_in_flight = 257",
        ),
        ("[[nic]]\naf_packet = {}\n", "interface"),
        ("[[nic]]\naf_packet.interface = \"a\"", "host"),
        (
            "[[nic]]\naf_packet.interface = \"a\"\nhost = \"10.0.0.1\"\n\
             static.neighbour = [{host = \"::2\", n_port_ids = \"00.01.09\"}]",
            "without this table, they are discovered",
        ),
        (
            "[[nic]]\naf_packet.interface = \"a\"\nhost = \"10.0.0.1\"\n\
             discovery.port_name = \"20:00:52:54:00:00:00\"",
            "port_name = \"20:00:52:54:00:00:00\": must be eight bytes",
        ),
        (
            "[[nic]]\naf_packet.interface = \"a\"\nhost = \"10.0.0.1\"\n\
             discovery.node_name = \"0000000000000000\"",
            "node_name",
        ),
        (
            "[[nic]]\naf_packet = {}\ndiscovery.beacon_ms = 9",
            "beacon_ms = 9",
        ),
        (
            "[[nic]]\nshm = {}\ndiscovery.timeout_ms = 0",
            "valid only for NICs on a wire",
        ),
        ("[[nic]]\nshm = {}\nhost = \"ten\"", "host"),
        (
            "[[nic]]\naf_packet = {}\nstatic.neighbour = [{host = \"::2\", n_port_ids = \"00.01.09-00.01.01\"}]",
            "ascending order",
        ),
        (
            "[[nic]]\naf_packet = {}\nstatic.neighbour = [{host = \"::2\", n_port_ids = \"7\"}]",
            "must be",
        ),
        (
            "[[nic]]\nshm = {}\nname = \"x\"\n[[nic]]\nshm = {}\nname = \"x\"",
            "already used",
        ),
        ("nic = 7", "nic"),
        ("[[nic", "TOML"),
    ] {
        let message = Config::parse(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{text:?}: {message}");
    }
    let missing = Config::read(Path::new("no/such/file.toml")).unwrap_err();
    assert!(missing.to_string().contains("no/such/file.toml"));
}

#[test]
fn nic_on_ethernet_without_n_port_ids_uses_discovery() {
    let text = "[[nic]]\naf_packet.interface = \"a\"\nhost = \"10.0.0.1\"\n";
    let names = "[nic.discovery]\nport_name = \"20:00:52:54:00:00:12:34\"\nnode_name = \"100052540000ABCD\"";
    let nic = |text: &str| Config::parse(text).unwrap().nic.remove(0);
    let plain = nic(text);
    assert!(plain.discovers());
    assert_eq!(plain.addressing.discovery().names(), (None, None));
    let named = nic(&format!("{text}{names}"));
    let expected = (Some(0x2000_5254_0000_1234), Some(0x1000_5254_0000_ABCD));
    assert_eq!(named.addressing.discovery().names(), expected);
    assert!(!nic(&format!("{text}static.n_port_ids = \"00.01.01\"")).discovers());
    assert!(!nic("[[nic]]\nshm = {}").discovers());
}

#[test]
fn recovery_defaults_to_networks_that_lose_frames() {
    let of = |network: &str, keys: &str| {
        let network = match network {
            "shm" => "shm = {}",
            "dpdk" => "dpdk.device = \"x\"\nhost = \"10.0.0.1\"",
            _ => "af_packet.interface = \"x\"\nhost = \"10.0.0.1\"",
        };
        let config = Config::parse(&format!("[[nic]]\n{network}\n{keys}")).expect("legal keys");
        config.nic[0].recovery()
    };
    let default = RecoveryParameters::default();
    assert_eq!(of("shm", ""), None);
    assert_eq!(of("af_packet", "recovery = false"), None);
    for (network, keys) in [
        ("shm", "recovery = true"),
        ("shm", "[nic.recovery]"),
        ("af_packet", ""),
        ("dpdk", ""),
    ] {
        assert_eq!(of(network, keys), Some(default.clone()), "{network} {keys}");
    }
    let small = of("af_packet", "af_packet.rx_frames = 16").expect("on");
    assert_eq!((small.min_window_frames, small.window_frames), (16, 16));
    let keys = "[nic.recovery]\nack_us = 7\ntimeout_us = 20\ntries = 3";
    let expected = RecoveryParameters {
        ack_us: 7,
        timeout_us: 20,
        tries: 3,
        ..default
    };
    assert_eq!(of("af_packet", keys), Some(expected));
}

#[test]
fn applications_per_user_defaults_to_half_if_other_users_may_attach() {
    for (text, of_user) in [
        ("", 64),
        ("max_applications = 1\nusers = [0, 1]", 1),
        ("users = [0, 1]", 32),
        ("groups = [100]", 32),
        ("max_applications = 9\ngroups = [100]", 5),
        ("groups = [100]\nmax_applications_per_user = 64", 64),
        ("max_applications_per_user = 3", 3),
    ] {
        let config = Config::parse(&format!("[[nic]]\nshm = {{}}\n[process]\n{text}")).unwrap();
        assert_eq!(
            config.process.unwrap().applications_per_user(),
            of_user,
            "{text}"
        );
    }
}
